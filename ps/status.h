/*
 * The status of a cluster's members, as the ps know it: for display, queried from all ps, once or each second.
 */
#ifndef PS_STATUS_H
#define PS_STATUS_H

#include <math.h>
#include <stdbool.h>

#include "base/board_member.h"
#include "base/config.h"
#include "base/error.h"
#include "net/message.h"
#include "ps/identity.h"

/* --- For display --- */

/* The values of message_status.link. */
enum { STATUS_LINK_UNKNOWN, STATUS_LINK_PLAIN, STATUS_LINK_TLS, STATUS_LINK_MEMORY };

/* Converts a ps's status of a member for display. */

/* address: as in the config. What the message does not report stays unknown. */
void status_show(struct board_member *member, const struct message_status *status, const char *address);

/* For a worker, after its status. Ignored if the ps does not decide on rounds. */
void status_show_rounds(struct board_member *member, const struct message_rounds *rounds);

/* For qsort. Higher scores are better. Among equals the lower number comes first; no score (NaN) is worst of all. */
static inline int worst_first(double score, int worker, double other_score, int other_worker)
{
    if (isnan(score) != isnan(other_score)) {
        return isnan(score) ? -1 : 1;
    }
    return score < other_score ? -1 : score > other_score ? 1 : worker - other_worker;
}

/* --- Querying the ps once --- */

/*
 * Queries the ps of a running cluster for the status of all members: for commands, and for members that show the whole
 * fleet.
 */

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

/* --- Querying them each second --- */

/*
 * A thread that polls the ps each second for the members' status, so that showing the whole fleet (observe.http) need
 * not wait for any of them.
 */

struct fleet_watch;

/* As status_query_create_for. */
bool fleet_watch_create(struct fleet_watch **watch, const struct config *config, const struct identity *identity,
                        struct error *error);
void fleet_watch_destroy(struct fleet_watch *watch); /* NULL is fine */

/* Copies the latest status of up to `room` members. Returns how many; 0: nothing yet. Any thread. */
int fleet_watch_members(struct fleet_watch *watch, struct board_member *members, int room);

/* The largest number of members it may report. */
int fleet_watch_most(const struct fleet_watch *watch);

#endif
