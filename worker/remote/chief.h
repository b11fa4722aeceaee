/*
 * Worker 0's work for the whole job, like tf.train.Supervisor: it initialises the model or restores the newest good
 * checkpoint of its train_dir into the shards, saves checkpoints of them during training (on its own thread), takes
 * snapshots of them to validate, and ends the job. A restarted chief takes over the shards as they are and resets
 * nothing.
 *
 * Checkpoints have the format and content of local training's, so either can continue from the other's.
 */
#ifndef WORKER_REMOTE_CHIEF_H
#define WORKER_REMOTE_CHIEF_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"
#include "base/error.h"
#include "ps/checkpoint/checkpoint.h"
#include "ps/identity.h"
#include "ps/job/plan.h"
#include "worker/data/dataset.h"
#include "worker/engine.h"
#include "worker/remote/exchange/push_pull.h"
#include "worker/updater.h"

struct chief;

struct chief_options {
    const struct config *config; /* with train.lr_decay_steps filled in; its live keys may change between two steps */
    const struct model *model;
    const struct identity *identity;
    struct engine *engine; /* of this worker; used for evaluation */
    const struct dataset *dataset;
    const struct examples *test; /* NULL: none */
    const struct plan *plan;     /* copied */
    struct traffic *traffic;
    bool (*given_up)(void *context); /* as for push_pull */
    void *context;
};

/* Locks train_dir for this process. Everything is borrowed. */
bool chief_create(struct chief **chief, const struct chief_options *options, struct error *error);
void chief_destroy(struct chief *chief); /* NULL is fine */

/*
 * The preprocessing in train_dir's newest checkpoint, with which a chief that has data continues, in *text, which the
 * caller frees; NULL: there is none.
 */
bool chief_preprocessing(char **text, const struct config *config, struct error *error);

/* Where the job starts for this chief. */
struct chief_start {
    int64_t global_step;
    bool resumed;                  /* the shards already held the model: nothing was written */
    const char *restored_from;     /* the checkpoint's path; NULL: none; owned by the chief */
    struct checkpoint_info record; /* what the next checkpoint will record */
};

/*
 * Ensures that every shard holds the model, of one generation: writes it where that is not so. Call it before the chief
 * trains, and again whenever push_pull returns EXCHANGE_REJOIN.
 */
enum exchange_result chief_begin(struct chief *chief, struct chief_start *start, struct error *error);

/* Reports the job's progress, so that checkpoints are made when due. Cheap; call it after every step. */
void chief_note_step(struct chief *chief, int64_t global_step);

/*
 * For a validation: loads a snapshot of the shards into the engine. The chief keeps it until it is released; until then
 * this thread may ask the chief for nothing else, and other threads wait. *record: what the next checkpoint will
 * record.
 */
enum chief_hold_result {
    CHIEF_HELD,        /* must be released */
    CHIEF_NOT_NOW,     /* no snapshot: some shards can't be read, or they are at different steps */
    CHIEF_HOLD_FAILED, /* the engine refused it; the error says why */
};
enum chief_hold_result chief_hold(struct chief *chief, int64_t *global_step, struct checkpoint_info **record,
                                  struct error *error);
void chief_release(struct chief *chief, bool is_best); /* is_best: keep it as the best so far */

/*
 * Writes this chief's last checkpoint, if it would add anything, whether or not the job continues. EXCHANGE_REJOIN:
 * some shard has lost its state; nothing is written.
 */
enum exchange_result chief_save_last(struct chief *chief, int64_t *global_step, struct error *error);

/* The same at the end of the job: no more pushes count; also loads the final state into the engine. */
enum exchange_result chief_finish(struct chief *chief, int64_t *global_step, struct error *error);

/*
 * For a rollout: saves a checkpoint now and makes no others until chief_settle, which can restore it as a new
 * generation on every shard. Any thread. chief_checkpoint needs a train_dir; chief_settle never waits.
 */
bool chief_checkpoint(struct chief *chief, struct error *error);
bool chief_restore(struct chief *chief, struct error *error);
void chief_settle(struct chief *chief);

/*
 * After a divergence: every shard gets the best model so far as a new generation, with its record's retries, which is
 * the newest checkpoint, too; before any validation, the newest checkpoint's model, or the initial one. *global_step:
 * of that model. The training thread's, which then joins again.
 */
enum exchange_result chief_go_back(struct chief *chief, const struct good_model *good, int64_t *global_step,
                                   struct error *error);

/* Changes the intervals of checkpoints, which of them to keep, and the end of the job. The training thread's. */
void chief_reschedule(struct chief *chief, const struct config_output *output, const struct plan *plan);

/* Tells all ps that the job is over. test_accuracy: NaN if there is none. */
bool chief_end_job(struct chief *chief, bool failed, double test_accuracy, const char *why, struct error *error);

/* As in struct updater_table. */
void chief_record(struct chief *chief, struct updater_record *record);

#endif
