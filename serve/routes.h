/* The HTTP routes of `trainer serve`. */
#ifndef SERVE_ROUTES_H
#define SERVE_ROUTES_H

#include <stdatomic.h>
#include <stdbool.h>

#include "net/endpoint.h"
#include "observe/guard.h"
#include "observe/http/server.h"
#include "serve/access.h"
#include "serve/model.h"
#include "serve/pack.h"
#include "serve/request_log.h"
#include "serve/work.h"

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
