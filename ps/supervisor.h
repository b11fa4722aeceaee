/*
 * The supervisor's decisions about checkpoints, as a state machine without clock or disk: when to save, and which old
 * checkpoints to delete. The local session drives it now; the chief of a cluster does so with the same rules.
 */
#ifndef PS_SUPERVISOR_H
#define PS_SUPERVISOR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"

struct supervisor {
    int64_t save_steps;
    double save_secs;
    double last_save_s;     /* monotonic */
    int64_t last_save_step; /* -1: none yet */
    bool saving;            /* one is being written */
};

void supervisor_begin(struct supervisor *supervisor, const struct config_output *config, int64_t step, double now_s);

/* Should a checkpoint begin now, between two steps? Never while one is being written. */
bool supervisor_should_save(const struct supervisor *supervisor, int64_t step, double now_s);
void supervisor_save_began(struct supervisor *supervisor, int64_t step, double now_s);
void supervisor_save_ended(struct supervisor *supervisor);

/* Steps until the next checkpoint by steps is due, so that an engine may run that many at once; INT64_MAX if none. */
int64_t supervisor_steps_to_save(const struct supervisor *supervisor, int64_t step);

/* A checkpoint on disk. */
struct kept_checkpoint {
    int64_t step;
    double written_s; /* wall clock */
    bool keep;        /* set by supervisor_retain */
};

/*
 * Decides what stays, as tf.train.Saver: the newest max_to_keep (0 = all), and for good the first one of every
 * keep_every_n_hours. checkpoints: ascending by step; marks `keep`.
 */
void supervisor_retain(struct kept_checkpoint *checkpoints, int count, const struct config_output *config);

#endif
