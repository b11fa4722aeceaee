/*
 * Asks a member's HTTP server, one question at a time, over a connection that is kept; what it can't reach it tries
 * again with the next question. One thread at a time uses a client.
 */
#ifndef OBSERVE_TOP_CLIENT_H
#define OBSERVE_TOP_CLIENT_H

#include <stddef.h>

#include "net/wake.h"
#include "observe/guard.h"

struct client;

/* guard, from guard_visit, and wake, which ends waits, are borrowed. NULL: out of memory. */
struct client *client_create(const struct guard *guard, const struct wake *wake);
void client_destroy(struct client *client); /* NULL is fine */

/* The body of an answer of 200, with a zero byte behind it, which the caller frees. */
bool client_get(struct client *client, const char *path, char **body, size_t *size, struct error *error);

#endif
