/*
 * What the page, `trainer top` and scripts read: runs as JSON (docs/operations.md has the schema), events as they
 * happen, and the page itself.
 */
#ifndef OBSERVE_API_H
#define OBSERVE_API_H

#include <stdatomic.h>
#include <stdbool.h>

#include "observe/board.h"
#include "observe/http/server.h"

/* Pictures and columns of a run, as JSON: *json is malloc'd. False: this run has none. */
struct api_extras {
    bool (*weights)(void *context, char **json, size_t *size);
    bool (*mistakes)(void *context, char **json, size_t *size);
    bool (*columns)(void *context, char **json, size_t *size);
    void *context;
};

enum { API_STANDSTILL_S = 300 }; /* without a sign of life from its main loop a process is not healthy */

struct api_run {
    struct board *board;
    struct api_extras extras; /* members NULL: none */
};

struct api {
    struct api_run *runs; /* [run_count]; run 0 is meant where a request names none */
    int run_count;
    bool (*is_ready)(void *context, char why[BOARD_TEXT]); /* /readyz; NULL: as run 0's state says */
    void *context;
    const struct http_server *server; /* for its own counts in /metrics; NULL: none */
    atomic_bool ends;                 /* the run is over: streams get its last status, and end */
    struct api_stream *streams;       /* the API's */
};

/* Ends with a path of NULL. Their context is a struct api. */
extern const struct http_route api_routes[];

/* Tells those who listen; on the server's thread, each second, after board_tick. */
void api_tick(struct api *api);

#endif
