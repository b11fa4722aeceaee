/*
 * Rollouts in a simulated cluster: an operator who proposes one config after another, good and bad, with the program's
 * own command; an intruder who proposes what nobody signed, or what the operator was tricked into signing, and who
 * aborts others' rollouts; and what must always hold:
 *
 *  - a member keeps and accepts only what the operator signed for this fleet, and no version below its own but the one
 *    that the operator named as fallback;
 *  - nobody switches to a version before all listed members have it, except for workers that the job waits for;
 *  - a push is accepted only between processes that were started in configs of one job;
 *  - live keys change at one step on all shards, and where synchronous steps are decided; steps that were made
 *    otherwise while a rollout fails are undone, and never saved (in reference.c, which knows the steps);
 *  - nothing is aborted because an unlisted worker is slow or gone;
 *  - at the end all running members are on one version, on disk and in memory, which is none of the bad ones.
 */
#ifndef TESTS_SIMULATE_FLEET_H
#define TESTS_SIMULATE_FLEET_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"

struct machine;

/* False: no rollouts in this run. */
bool fleet_rolls(void);

/* Creates the operator's and the intruder's machines and puts config and keys on all disks; settings: as for flags. */
void fleet_begin(const struct config_setting *settings, int count);
void fleet_forget(void); /* at the beginning of a run: no rollouts unless fleet_begin is called */

/* A member's config at the start of its process; false as for config_load, which only a rotten disk excuses. */
bool fleet_load(struct machine *machine, struct config *config, const struct config_setting *settings, int count,
                struct error *error);
bool fleet_dies_of(const struct config *config); /* the version kills a process at its start */

/* After every event. */
void fleet_step(void);
/* The phase of the rollout changed since the last call: a good moment for faults. */
bool fleet_turned(void);
/*
 * The first ps has just reached the step of a live change, and others may not have reported it yet: true once for each.
 */
bool fleet_switches(void);
/* A job that waits for workers has begun to switch, all members at once: true once for each. */
bool fleet_switches_at_once(void);
/* The next version comes after some listed workers could have been off for long enough: true once for each. */
bool fleet_wants_workers_off(void);
bool fleet_is_done(void); /* all were tried, and ended one way or another */
/* And all that should come to rest have done so. */
bool fleet_is_at_rest(void);
void fleet_blame(void); /* prints who has not */

/* A push of this process of a worker is accepted by the running ps. */
void fleet_check_push(int worker, uint64_t incarnation);

/* For process.c. */
bool fleet_is_small(const struct machine *machine); /* it has run out of memory */
bool fleet_trial_fails(const char *path);           /* for the config at this path on the running machine's disk */

#endif
