/*
 * `trainer top`: a run in a terminal. The data comes from a source: a member's HTTP server (below), or the ps of a
 * cluster.
 */
#ifndef OBSERVE_TOP_TOP_H
#define OBSERVE_TOP_TOP_H

#include "observe/top/client.h"
#include "observe/top/view.h"

/* All calls come from one thread. */
struct top_source {
    const char *name;                                  /* for the title */
    bool (*ask)(void *context, struct error *error);   /* may take seconds */
    void (*fill)(void *context, struct view_run *run); /* with the last answers; does not block */
    void *context;
};

struct top_options {
    bool is_once, is_ascii;
    struct wake *wake; /* raised to end the source's waits */
};

/* Runs until the user quits, or shows it once. False: it could not show anything. */
bool top_show(const struct top_source *source, const struct top_options *options, struct error *error);

/* --- A member's HTTP server --- */

struct top_member;
struct top_member *top_member_create(struct client *client); /* borrowed; NULL: out of memory */
void top_member_destroy(struct top_member *member);          /* NULL is fine */
struct top_source top_member_source(struct top_member *member, const char *name);

#endif
