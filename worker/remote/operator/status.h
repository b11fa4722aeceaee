/* Asks a running cluster how its members are, for `trainer status` and the progress line of `trainer cluster`. */
#ifndef WORKER_REMOTE_OPERATOR_STATUS_H
#define WORKER_REMOTE_OPERATOR_STATUS_H

#include <stdbool.h>

#include "base/config.h"
#include "base/error.h"
#include "observe/board.h"

struct status_query;

/* As an operator. config is borrowed. */
bool status_query_create(struct status_query **query, const struct config *config, struct error *error);
void status_query_destroy(struct status_query *query); /* NULL is fine */

/*
 * Asks all ps at once and waits at most `timeout_s` for each. The members, ps first, are the query's until it is asked
 * again. One that did not answer is absent, and its message says why. Connections are kept for the next time.
 */
const struct board_member *status_query_ask(struct status_query *query, double timeout_s, int *count);

#endif
