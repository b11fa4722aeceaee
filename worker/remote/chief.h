/*
 * What worker 0 does for the whole job, as tf.train.Supervisor: it initialises the model or restores the newest good
 * checkpoint of its train_dir into the shards, keeps checkpoints of them while training goes on (on a thread of its
 * own), takes snapshots of them to validate, and ends the job. A chief that is started again finds the shards as they
 * are, and resets nothing.
 *
 * Checkpoints are those of local training: the same files, of the same content, so either goes on from the other's.
 */
#ifndef WORKER_REMOTE_CHIEF_H
#define WORKER_REMOTE_CHIEF_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"
#include "base/error.h"
#include "ps/job/plan.h"
#include "ps/checkpoint/checkpoint.h"
#include "ps/identity.h"
#include "worker/dataset.h"
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

/* Takes train_dir for this process. All is borrowed. */
bool chief_create(struct chief **chief, const struct chief_options *options, struct error *error);
void chief_destroy(struct chief *chief); /* NULL is fine */

/*
 * The preprocessing in the newest checkpoint of train_dir, which a chief with data of its own goes on with, into *text,
 * which the caller frees; NULL: there is none.
 */
bool chief_preprocessing(char **text, const struct config *config, struct error *error);

/* Where the job begins for this chief. */
struct chief_start {
    int64_t global_step;
    bool resumed;                  /* the shards held the model already: nothing was written */
    const char *restored_from;     /* a checkpoint's path, NULL: none; the chief's */
    struct checkpoint_info record; /* what the next checkpoint says */
};

/*
 * Sees to it that every shard holds the model, of one generation: writes it where it is not so. To be called before the
 * chief trains, and again whenever push_pull says EXCHANGE_REJOIN.
 */
enum exchange_result chief_begin(struct chief *chief, struct chief_start *start, struct error *error);

/* Tells how far the job is, so that checkpoints are made when they are due; cheap, after every step. */
void chief_note_step(struct chief *chief, int64_t global_step);

/*
 * For a validation: a snapshot of the shards goes into the engine, and the chief keeps it until it is released; between
 * the two nothing else may be asked of the chief by this thread, and others wait. *record: what the next checkpoint
 * says.
 */
enum chief_hold_result {
    CHIEF_HELD,        /* to be released */
    CHIEF_NOT_NOW,     /* no snapshot is to be had: shards that can't be read, or are of different steps */
    CHIEF_HOLD_FAILED, /* the engine did not take it; the error says why */
};
enum chief_hold_result chief_hold(struct chief *chief, int64_t *global_step, struct checkpoint_info **record,
                                  struct error *error);
void chief_release(struct chief *chief, bool is_best); /* is_best: keeps it as the best so far */

/*
 * The last checkpoint of this chief, if it would add anything, whether the job goes on or not. EXCHANGE_REJOIN: some
 * shard has lost its state; nothing is written then.
 */
enum exchange_result chief_save_last(struct chief *chief, int64_t *global_step, struct error *error);

/* The same where the job ends, so that no more pushes count; and the final state into the engine. */
enum exchange_result chief_finish(struct chief *chief, int64_t *global_step, struct error *error);

/*
 * For a rollout: a checkpoint of now, after which none is made until chief_settle; and back to it, as a new generation
 * on every shard. From any thread. chief_checkpoint needs a train_dir; chief_settle never waits.
 */
bool chief_checkpoint(struct chief *chief, struct error *error);
bool chief_restore(struct chief *chief, struct error *error);
void chief_settle(struct chief *chief);

/*
 * Takes other intervals of checkpoints, other rules of what to keep, and another end of the job, from now on. By the
 * thread that trains.
 */
void chief_retime(struct chief *chief, const struct config_output *output, const struct plan *plan);

/* Tells all ps that the job is over. test_accuracy: NaN if there is none. */
bool chief_end_job(struct chief *chief, bool failed, double test_accuracy, const char *why, struct error *error);

/* As in struct updater_table. */
void chief_record(struct chief *chief, struct updater_record *record);

#endif
