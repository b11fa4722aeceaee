/*
 * Programs that are rolled out in a simulated fleet (fleet.h): builds that work, crash, hang, are slow or are refused
 * by every kernel, on machines of two architectures; and how a process comes to run one, through base/process/restart.c
 * and a supervisor, which starts the installed one. What must hold:
 *
 *  - a process that executes another program runs the one that was signed for its version, bit for bit;
 *  - nobody switches to a program before all members that are waited for have it, whole; and at most one worker of each
 *    architecture does before one of them has made a step in it;
 *  - a rollout that came into force did so in processes of the new program;
 *  - at the end each process runs the program that its version names.
 */
#ifndef TESTS_SIMULATE_PROGRAMS_H
#define TESTS_SIMULATE_PROGRAMS_H

#include <stdbool.h>
#include <stdint.h>

struct disk;
struct error;
struct machine;
struct manifest_programs;

enum { PROGRAMS_VERSIONS = 64 };

/* Are there any in this run? */
bool programs_roll(void);
void programs_forget(void);
/* Draws each machine's architecture; all run the installed program. */
void programs_begin(void);

/*
 * New files for a candidate, on the operator's disk. Returns the value of --binary, and whether they are good: bad ones
 * must never be in force.
 */
const char *programs_draw(struct disk *disk, bool *good);

/* A manifest was signed. */
void programs_signed(uint64_t version, uint64_t fallback, const struct manifest_programs *programs);

/* A plausible one, of a build that nobody has. */
void programs_forge(struct manifest_programs *programs);

/* --- Processes --- */

/* It is about to start: by re-exec (or by a program that hands over), or by its supervisor. */
void programs_started(struct machine *machine, bool again);
/* What its program does first; 0: it continues. Otherwise its exit status. */
int programs_live(struct machine *machine);
/* The delay of each step. */
double programs_slowness(const struct machine *machine);
/* Its disk broke its promises: it may be unable to run the right one. */
void programs_excuse(const struct machine *machine);

/* Does this machine have, or its process run, that version's program? */
bool programs_has(const struct machine *machine, uint64_t version);
bool programs_is_in(const struct machine *machine, uint64_t version);
/* Does that version's program work on this machine? */
bool programs_works(const struct machine *machine, uint64_t version);
/* Does the version run in other programs than that one? */
bool programs_differ(uint64_t version, uint64_t other);
int programs_architectures(void);

/* For process.c, for the running process. */
bool programs_next(const char *path, bool on_probation, struct error *error);
bool programs_execute(const char *path, bool on_probation, struct error *error);
bool programs_was_executed(void);
void programs_arrived(void);

#endif
