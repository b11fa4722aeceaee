/* What was saved, is found again, and should have been saved; and what was validated. */
#ifndef TESTS_SIMULATE_CHECKPOINTS_H
#define TESTS_SIMULATE_CHECKPOINTS_H

#include <stdbool.h>
#include <stdint.h>

struct saved;

/* Once per process: sets only what does not start as zero, because runs are many and touch little of the rest. */
void checkpoints_begin(void);

/* What was saved at a step below RECORDS_MAX_STEPS; NULL: nothing was. */
const struct saved *checkpoints_saved(int64_t step);

/* The chief's disk broke its promises: this is the newest of its checkpoints that can be expected to be found. */
void checkpoints_lose(int64_t newest_step);

/* At the end of a run that finished. undisturbed: there were no faults. */
void checkpoints_check_end(bool undisturbed);

#endif
