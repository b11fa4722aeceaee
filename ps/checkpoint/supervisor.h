/*
 * The supervisor's decisions about checkpoints, as a state machine without clock or disk: when to save, and which old
 * checkpoints to delete. A process that trains alone and the chief of a cluster ask it when to save, and the folder
 * (ps/checkpoint/folder.h) what stays.
 */
#ifndef PS_CHECKPOINT_SUPERVISOR_H
#define PS_CHECKPOINT_SUPERVISOR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"

struct supervisor {
    int64_t save_steps;     /* at every multiple of it; 0 = not by steps */
    double save_secs;       /* 0 = not by time */
    double last_save_s;     /* monotonic: when the last one began, or the job */
    int64_t last_save_step; /* the step of the last one, or the one the job began at */
    bool saving;            /* one is being written */
    bool failed;            /* the last one was not written */
};

/* step: the one just restored, or 0. */
void supervisor_begin(struct supervisor *supervisor, const struct config_output *config, int64_t step, double now_s);

/* Changes the intervals; the last save still counts. */
void supervisor_retime(struct supervisor *supervisor, const struct config_output *config);

/*
 * True if a checkpoint should begin now, between two steps: never while one is being written, and never twice for a
 * step. A clock that stands still or goes back only means that no time passes.
 */
bool supervisor_should_save(const struct supervisor *supervisor, int64_t step, double now_s);

/* The same by the clock alone, for a caller that handles checkpoints by steps itself. */
bool supervisor_is_time_to_save(const struct supervisor *supervisor, int64_t step, double now_s);

/* True if a last checkpoint at the end of a run would add anything. */
bool supervisor_is_unsaved(const struct supervisor *supervisor, int64_t step);

void supervisor_save_began(struct supervisor *supervisor, int64_t step, double now_s);

/*
 * written: false if it failed; the step then counts as unsaved again, and the next attempt is when the next one is due.
 */
void supervisor_save_ended(struct supervisor *supervisor, bool written);

/* Steps until the next checkpoint by steps is due, so that an engine may run that many at once; INT64_MAX if none. */
int64_t supervisor_steps_to_save(const struct supervisor *supervisor, int64_t step);

/* A checkpoint on disk. */
struct kept_checkpoint {
    int64_t step;
    double written_s; /* wall clock */
    bool keep;        /* set by supervisor_retain */
};

/*
 * Decides what stays: the newest max_to_keep (0 = all), as tf.train.Saver, and for good the first one of every
 * keep_every_n_hours by the wall clock (0 = none). checkpoints: ascending by step; marks `keep`. It depends only on the
 * existing files, so a restarted run decides as the old one would have.
 */
void supervisor_retain(struct kept_checkpoint *checkpoints, int count, const struct config_output *config);

#endif
