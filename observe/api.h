/*
 * The HTTP API for the page, `trainer top` and scripts: runs as JSON (docs/operations.md has the schema), a stream of
 * events, and the page itself.
 */
#ifndef OBSERVE_API_H
#define OBSERVE_API_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/text/json_writer.h"
#include "observe/board.h"
#include "observe/http/server.h"

/* What a run may show besides, each at /api/NAME. */
enum api_extra { EXTRA_WEIGHTS, EXTRA_MISTAKES, EXTRA_COLUMNS, EXTRA_CLASSES, API_EXTRAS };

/* Each as JSON: *json is malloc'd. NULL, or false: this run has none. */
struct api_extras {
    bool (*make[API_EXTRAS])(void *context, char **json, size_t *size);
    void *context;
};

enum { API_STANDSTILL_S = 300 }; /* a process whose main loop is silent this long is not healthy */

struct api_run {
    struct board *board;
    struct api_extras extras;
};

struct api {
    struct api_run *runs; /* [run_count]; run 0 is the default for requests */
    int run_count;
    bool (*is_ready)(void *context, char why[BOARD_TEXT]); /* /readyz; NULL: as run 0's state says */
    void *context;
    const struct http_server *server; /* for its own counts in /metrics; NULL: none */
    atomic_bool ends;                 /* the run is over: streams get its last status and end */
    struct api_stream *streams;       /* private to the API */
};

/* Ends with a path of NULL. Their context is a struct api. */
extern const struct http_route api_routes[];

/* Updates the streams; on the server's thread, each second, after board_tick. */
void api_tick(struct api *api);

/* --- A member as JSON --- */

/* A member as JSON, for `/api/status` and `trainer status --json`: the schema is docs/operations.md's. */

void member_write(struct text_buffer *text, const struct board_member *member);

#endif
