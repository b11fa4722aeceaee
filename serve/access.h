/*
 * An access log: one JSON object for each answer. Lines are kept for up to a second and written together. A file that
 * was moved away is created again, so that logrotate needs no signal. HTTP server's thread only, except open and close.
 */
#ifndef SERVE_ACCESS_H
#define SERVE_ACCESS_H

#include <stdbool.h>

#include "base/error.h"
#include "base/text/json_writer.h"
#include "observe/http/server.h"

struct access_log {
    const char *path; /* borrowed; NULL: there is none */
    int fd;
    struct text_buffer lines;
    bool has_failed; /* and the failure was logged, once */
};

bool access_open(struct access_log *log, const char *path, struct error *error);
void access_add(struct access_log *log, const struct http_logged *logged);
void access_flush(struct access_log *log); /* each second */
void access_close(struct access_log *log); /* fine on zeros */

#endif
