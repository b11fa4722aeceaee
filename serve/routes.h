/* The HTTP routes of `trainer serve`. */
#ifndef SERVE_ROUTES_H
#define SERVE_ROUTES_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/error.h"
#include "base/text/json_writer.h"
#include "net/socket.h"
#include "observe/guard.h"
#include "observe/http/server.h"
#include "serve/model.h"
#include "serve/request_log.h"
#include "serve/work.h"

/* --- The access log --- */

/*
 * An access log: one JSON object for each answer. Lines are kept for up to a second and written together. A file that
 * was moved away is created again, so that logrotate needs no signal. HTTP server's thread only, except open and close.
 */

struct access_log {
    const char *path; /* borrowed; NULL: there is none */
    int fd;
    struct text_buffer lines;
    bool has_failed; /* and the failure was logged, once */
};

bool access_open(struct access_log *log, const char *path, struct error *error);
void access_close(struct access_log *log); /* fine on zeros */

struct service {
    struct served *models; /* [count] */
    int count;
    bool takes_best;
    double interval_s;
    double begun_s;       /* by the wall clock */
    struct budget budget; /* of models */
    size_t most_memory;   /* bytes of all requests and answers */
    char *references;     /* models' references point into it; NULL: none */
    struct request_log_options log_options;
    struct access_log access;
    int listener; /* passed by systemd; 0: none */
    struct work_options options;
    struct work *work;
    struct http_server *server;
    struct packer packer;    /* the server's thread's */
    atomic_bool is_draining; /* no longer ready; requests that still come are answered */
};

/* Starts listening and answering; the caller stops service->server. The guard is borrowed. */
bool routes_serve(struct service *service, const struct guard *guard, struct error *error);

#endif
