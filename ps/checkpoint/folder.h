/*
 * A folder of checkpoints (train_dir): finding the newest valid one, writing new ones, deleting old ones.
 *
 *     model-<step, at least 10 digits>.safetensors     checkpoints
 *     best.safetensors                                 the best by validation, never deleted
 *     trainer.lock                                     held by the process that writes here
 *     *.damaged                                        damaged files that were set aside
 *
 * One process writes to a folder, readers (`trainer eval`) need no lock. A struct checkpoint_folder is used by one
 * thread at a time.
 */
#ifndef PS_CHECKPOINT_FOLDER_H
#define PS_CHECKPOINT_FOLDER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"
#include "base/error.h"
#include "ps/checkpoint/checkpoint.h"

/* --- When to save, and what to keep --- */

/*
 * The supervisor's decisions about checkpoints, as a state machine without clock or disk: when to save, and which old
 * checkpoints to delete. A process that trains alone and the chief of a cluster ask it when to save, and their folder
 * asks what stays.
 */

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

/* --- The folder --- */

#define CHECKPOINT_BEST_NAME "best.safetensors"

struct checkpoint_folder {
    char path[CHECKPOINT_MAX_PATH];
    const struct config_output *config; /* borrowed: max_to_keep, keep_every_n_hours */
    int lock;
};

/*
 * Creates the folder if necessary, takes its lock (fails with "train_dir ... is in use by process N") and removes the
 * temporary files of processes that were killed.
 */
bool checkpoint_folder_open(struct checkpoint_folder *folder, const char *path, const struct config_output *config,
                            struct error *error);
void checkpoint_folder_close(struct checkpoint_folder *folder);

/*
 * Opens the newest valid checkpoint; *file is NULL if the folder holds none at all. Each damaged one that is skipped
 * gets one warning, and once a valid one is found the damaged ones are renamed to end in ".damaged". If there are
 * checkpoints but none is usable, this call and every later one fails: training must not silently start over.
 */
bool checkpoint_folder_newest(struct checkpoint_folder *folder, struct checkpoint_file **file, struct error *error);

/*
 * False: the best checkpoint is missing or damaged, and then set aside; the reason is logged. Nobody should report a
 * best model that isn't there.
 */
bool checkpoint_folder_has_best(const struct checkpoint_folder *folder);

/*
 * As checkpoint_folder_newest, for a reader without the lock: nothing is renamed. A folder that does not exist is an
 * error.
 */
bool checkpoint_folder_find(const char *path, struct checkpoint_file **file, struct error *error);

/* What to write. */
enum checkpoint_target {
    CHECKPOINT_MODEL = 1, /* model-<step>.safetensors; then delete those that retention no longer keeps */
    CHECKPOINT_BEST = 2,  /* best.safetensors */
};

/*
 * The path of a checkpoint of this folder; step is that of a CHECKPOINT_MODEL. "" if it is too long; then it can't be
 * written either.
 */
void checkpoint_folder_name(const struct checkpoint_folder *folder, enum checkpoint_target target, int64_t step,
                            char path[CHECKPOINT_MAX_PATH]);

/*
 * Deletes the checkpoints of steps after this one, except that of `saved`: training went back to this step, and has
 * saved another one since. Never deletes the best.
 */
void checkpoint_folder_go_back(const struct checkpoint_folder *folder, int64_t step, int64_t saved);

/*
 * The disk is full, and the last checkpoint of a run matters more than earlier ones: deletes the oldest ones before
 * `step`, but never the newest, until another of their size fits. Says so. False: nothing was deleted.
 */
bool checkpoint_folder_make_room(const struct checkpoint_folder *folder, int64_t step);

/*
 * Writes the state as one or both (`targets`: sum of enum checkpoint_target). If writing fails, all older checkpoints
 * are kept. Failing to delete old ones is only a warning.
 */
bool checkpoint_folder_save(struct checkpoint_folder *folder, int targets, const struct checkpoint_state *state,
                            const struct checkpoint_info *info, struct error *error);

#endif
