/*
 * A version that a process has just been started anew in, and that may be the death of it. Whatever goes wrong then, in
 * the parsing of the config or anywhere later, ends the process; whoever starts it again (systemd, trainer --supervise)
 * need know nothing: a process that finds that it has died in this version twice takes the fallback.
 *
 * A file CONFIG.d/probation-ID for each process (base/process/restart.h): "TARGET FALLBACK STARTS FAILED\n".
 */
#ifndef BASE_PROCESS_PROBATION_H
#define BASE_PROCESS_PROBATION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

enum { PROBATION_STARTS = 2 /* that end badly, and the next one goes back */ };

struct probation {
    uint64_t target, fallback;
    int starts;  /* in the target, so far */
    bool failed; /* it went back */
};

/* This process is about to start anew in `target`, which is in the versions' folder, as is the fallback. */
bool probation_begin(const char *config_path, uint64_t target, uint64_t fallback, struct error *error);

/*
 * At the start of a process, before the config is read: counts, and goes back if it is time. config_path: NULL: none.
 */
void probation_check(const char *config_path);

/* False: it is not on probation, and never failed one that has not been ended. */
bool probation_read(const char *config_path, struct probation *probation);

void probation_end(const char *config_path);

#endif
