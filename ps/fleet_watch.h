/*
 * A thread that polls the ps each second for the members' status, so that showing the whole fleet (observe.http) need
 * not wait for any of them.
 */
#ifndef PS_FLEET_WATCH_H
#define PS_FLEET_WATCH_H

#include "ps/status_query.h"

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
