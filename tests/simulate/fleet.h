/*
 * Rollouts in a simulated cluster: an operator who proposes one config after another, good and bad, by the program's
 * own command; an intruder who proposes what nobody signed, or was made to sign, and who gives up what others began;
 * and what must hold of it all:
 *
 *  - a member keeps and takes only what the operator signed for this fleet, and no version below its own but the one
 *    that the operator named to go back to;
 *  - nobody takes a version before all members that are listed have it, but for workers of a job that waits for some;
 *  - a push is accepted only between processes that were started in configs of one job;
 *  - live keys change at one step on all shards, and where synchronous steps are decided; steps that were made
 *    otherwise while a rollout fails are undone, and never saved (in oracle.c, which knows the steps);
 *  - nothing is given up for a worker that is not listed, whether it is slow or gone;
 *  - at the end all members that are there are on one version, on their disks and in their processes, which is none of
 *    the bad ones.
 */
#ifndef TESTS_SIMULATE_FLEET_H
#define TESTS_SIMULATE_FLEET_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"

struct machine;

/* False: no rollouts in this run. */
bool fleet_rolls(void);

/* Makes the operator's and the intruder's machines and puts config and keys on all disks; settings: as for flags. */
void fleet_begin(const struct config_setting *settings, int count);
void fleet_forget(void); /* at the beginning of a run: no rollouts unless fleet_begin is called */

/* A member's config at the start of its process; false as for config_load, which only a rotten disk excuses. */
bool fleet_load(struct machine *machine, struct config *config, const struct config_setting *settings, int count,
                struct error *error);
bool fleet_dies_of(const struct config *config); /* the version is the death of a process at its start */

/* After every event. */
void fleet_step(void);
/* The phase of the rollout changed since the last call: a good moment for trouble. */
bool fleet_turned(void);
/*
 * The first ps has just come to the step of a live change, and others may not have said yet that they have: once for
 * each.
 */
bool fleet_switches(void);
/* A job that waits for workers has begun to switch, all members at once: once for each. */
bool fleet_switches_at_once(void);
/* The next version comes once a listed worker, or some, could have been off for as long as counts: once for each. */
bool fleet_wants_workers_off(void);
bool fleet_is_done(void); /* all was tried, and ended somehow */
/* And all that were to come to rest have done so. */
bool fleet_is_at_rest(void);
void fleet_blame(void); /* says who is not */

/* A push of this process of a worker is accepted by the ps that runs. */
void fleet_check_push(int worker, uint64_t incarnation);

/* For process.c. */
bool fleet_is_small(const struct machine *machine); /* it has no memory left */
bool fleet_trial_fails(const char *path); /* of the config at this path on the disk of the machine that runs */

#endif
