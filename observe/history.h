/*
 * The history of a run's numbers: each second of the last hour, and the whole run in at most HISTORY_WHOLE buckets,
 * whose width doubles whenever there would be more. Its size is fixed, however long a run takes; a file keeps it
 * between two starts.
 *
 * One thread at a time uses a history. Times are seconds since 1970; an unknown value is NaN.
 */
#ifndef OBSERVE_HISTORY_H
#define OBSERVE_HISTORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum {
    HISTORY_RECENT = 3600,
    HISTORY_WHOLE = 2048,
    HISTORY_SERIES = 24,
    HISTORY_NAME = 40,
};

/* One bucket of time: its beginning, the global step at its end, and the mean of each series. */
struct history_bucket {
    double time_s;
    int64_t step;
    uint32_t seconds; /* seconds that it averages */
    float values[HISTORY_SERIES];
};

/* In order of time, circular from `first`. */
struct history_ring {
    struct history_bucket *buckets; /* [room] */
    int room, first, count;
};

struct history {
    char names[HISTORY_SERIES][HISTORY_NAME];
    int series;
    struct history_ring recent, whole;
    double width_s; /* of the buckets of `whole` */
};

bool history_create(struct history *history, struct error *error);
void history_destroy(struct history *history); /* fine on zeros */

/*
 * The index of the series with that name, added if it is new; -1: there are too many, or the name holds anything but
 * letters, digits and _ - . / :
 */
int history_series(struct history *history, const char *name);

/* Adds one second. Time that goes back counts as standing still. values: [history->series] */
void history_add(struct history *history, double time_s, int64_t step, const float *values);

/* index: 0 is the oldest. */
const struct history_bucket *history_at(const struct history_ring *ring, int index);

/* Replaces the file. */
bool history_save(const struct history *history, const char *path, struct error *error);

/* False if there is no valid file: the history is then unchanged, and *damaged tells whether there is a damaged one. */
bool history_load(struct history *history, const char *path, bool *damaged, struct error *error);

#endif
