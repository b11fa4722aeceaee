/*
 * Queries a member's HTTP server, one request at a time, over a persistent connection; after a failure it reconnects
 * with the next request. One thread at a time uses a client.
 */
#ifndef OBSERVE_TOP_CLIENT_H
#define OBSERVE_TOP_CLIENT_H

#include <cJSON.h>
#include <stddef.h>

#include "net/wake.h"
#include "observe/guard.h"
#include "observe/top/view.h"

struct client;

/* guard (from guard_visit) and wake (ends waits) are borrowed. NULL: out of memory. */
struct client *client_create(const struct guard *guard, const struct wake *wake);
void client_destroy(struct client *client); /* NULL is fine */

/* The body of a 200 answer, followed by a zero byte; the caller frees it. */
bool client_get(struct client *client, const char *path, char **body, size_t *size, struct error *error);

/* --- Answers --- */

/* Reads a member's HTTP answers (docs/operations.md) into a board; missing or invalid values count as unknown. */

void read_status(const cJSON *status, struct view_run *run);
void read_history(const cJSON *history, struct board *board);
void read_events(const cJSON *events, struct board *board, int64_t *last_id);

#endif
