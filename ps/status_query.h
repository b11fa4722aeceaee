/*
 * Queries the ps of a running cluster for the status of all members: for commands, and for members that show the whole
 * fleet.
 */
#ifndef PS_STATUS_QUERY_H
#define PS_STATUS_QUERY_H

#include <stdbool.h>

#include "base/config.h"
#include "base/error.h"
#include "observe/board.h"
#include "ps/identity.h"

struct status_query;

/* As an operator. config is borrowed. */
bool status_query_create(struct status_query **query, const struct config *config, struct error *error);

/*
 * As a member, with a borrowed identity, as a guest whatever its config. A ps asks the others only about themselves,
 * since it knows the workers.
 */
bool status_query_create_for(struct status_query **query, const struct config *config, const struct identity *identity,
                             struct error *error);
void status_query_destroy(struct status_query *query); /* NULL is fine */

/*
 * Asks all ps at once and waits at most `timeout_s` for each. The members, ps first, belong to the query and are valid
 * until the next call. A ps that did not answer is absent, and its message says why. Connections are kept for the next
 * call.
 */
const struct board_member *status_query_ask(struct status_query *query, double timeout_s, int *count);

/* Ends waits, now and from now on. Any thread. */
void status_query_interrupt(struct status_query *query);

#endif
