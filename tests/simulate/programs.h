/*
 * Programs that are rolled out in a simulated fleet (fleet.h): builds that work, crash, hang, are slow or are started
 * by no kernel, on machines of two architectures; and how a process comes into one, as base/process/restart.c and a
 * supervisor see to it: started by the latter it is the one that is installed. What must hold:
 *
 *  - a process that executes another program comes into the one that was signed for its version, bit for bit;
 *  - nobody goes over to a program before all that are waited for have it, whole; and no more workers than there are
 *    architectures before one of them has made a step in it;
 *  - a rollout that came into force did so in processes of the new program;
 *  - at the end each process is of the program that its version names.
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

/* Whether there are any in this run. */
bool programs_roll(void);
void programs_forget(void);
/* Draws which machine is of which architecture; all are in the installed program. */
void programs_begin(void);

/*
 * New files for a candidate, on the operator's disk. Returns what to say as --binary, and whether they do any good: bad
 * ones must never be in force.
 */
const char *programs_draw(struct disk *disk, bool *good);

/* A manifest was signed. */
void programs_signed(uint64_t version, uint64_t fallback, const struct manifest_programs *programs);

/* One that makes sense, of a build that is nobody's. */
void programs_forge(struct manifest_programs *programs);

/* --- Processes --- */

/* It is about to start: again by itself (or by a program that hands over), or by its supervisor. */
void programs_started(struct machine *machine, bool again);
/* What its program does before anything else; 0: it goes on. Else the status that it ends with. */
int programs_live(struct machine *machine);
/* By so much a step takes longer. */
double programs_slowness(const struct machine *machine);
/* Its disk broke its word: it may be unable to come into the right one. */
void programs_excuse(const struct machine *machine);

/* Does this machine have, or its process run, what that version runs in? */
bool programs_has(const struct machine *machine, uint64_t version);
bool programs_is_in(const struct machine *machine, uint64_t version);
/* Is what that version runs in on this machine a program that works? */
bool programs_works(const struct machine *machine, uint64_t version);
/* Does the version run in other programs than that one? */
bool programs_differ(uint64_t version, uint64_t other);
int programs_architectures(void);

/* For process.c, of the process that runs. */
bool programs_next(const char *path, bool on_probation, struct error *error);
bool programs_execute(const char *path, bool on_probation, struct error *error);
bool programs_was_executed(void);
void programs_arrived(void);

#endif
