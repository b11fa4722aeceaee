/*
 * The processes of the ps and workers: what runs in them, and when each starts, ends and starts again, as by the
 * operator's service manager.
 */
#ifndef TESTS_SIMULATE_SERVICE_H
#define TESTS_SIMULATE_SERVICE_H

#include <stdbool.h>

#include "tests/simulate/world.h"

extern struct service {
    double restart_s[WORLD_MAX_MACHINES]; /* when it starts again; 0: not known yet */
    bool over;                            /* training is */
    bool leaving;                         /* all are told to leave */
    bool is_gone;                         /* setup.gone is lost for good */
    bool disk_was_full;                   /* or failed otherwise: the chief may give up */
} service;

/* The main of a ps's or a worker's machine. */
int service_run(struct machine *machine);

/* An unlisted worker. */
bool service_is_unlisted(const struct machine *machine);

/* After every event: of an unlisted one that runs; of one that does not run. */
void service_let_go(struct machine *machine);
void service_look_after(struct machine *machine);

#endif
