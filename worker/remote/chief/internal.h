/*
 * Internal to the chief: what its parts share. chief.c ties them together and ends the job; restore.c brings a model
 * into the shards; checkpoints.c takes their state, saves it, and lends it for a validation; transfer.c does the
 * network side of it.
 *
 * Two threads use the chief's connections and its copy of the state: the training thread, to validate or end the job,
 * and the saving thread. A mutex is held for the whole of a snapshot, its transfer and its writing. "Locked" means that
 * the caller holds it.
 */
#ifndef WORKER_REMOTE_CHIEF_INTERNAL_H
#define WORKER_REMOTE_CHIEF_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "ps/shard.h"
#include "worker/checkpoint_ledger.h"
#include "worker/remote/chief.h"
#include "worker/remote/exchange/residual_files.h"

/* A checkpoint by steps that was announced to the shards. */
struct order {
    uint64_t number; /* of the snapshot */
    int64_t step;
};

struct chief {
    struct chief_options options;
    struct push_pull shards;
    struct config_train train; /* which checkpoints to keep */
    struct checkpoint_state state;
    float *sent_model;                /* [float_count]: the state's STORE_SENT; NULL: it has none */
    struct residual_files sent_files; /* their files, one per checkpoint */
    struct config_output output;      /* when to save and what to keep. Locked */
    struct plan plan;                 /* locked, too */
    struct checkpoint_ledger ledger;  /* its folder's ledger; only with a train_dir */
    bool has_folder;
    int64_t held_step;   /* of the state while it is held for a validation */
    uint32_t generation; /* the last written or found */
    uint64_t snapshots;  /* taken so far, plus a random number, to differ from an earlier chief's */
    pthread_mutex_t mutex;
    pthread_t thread;
    bool saves; /* the thread is running */
    atomic_bool end;
    atomic_int waiting; /* threads that want the mutex, except the saving thread */

    atomic_bool holds;                 /* no checkpoints: a rollout may go back to the last one */
    struct order orders[SHARD_ORDERS]; /* [order_count], by step. Locked, like all that follow up to caution */
    int order_count;
    int64_t ordered;           /* step of the last order; -1: none */
    double asked_s;            /* when the first of them was last asked for; -INFINITY: never */
    int caution, last_caution; /* checkpoints to save before training may be held again */

    atomic_llong global_step; /* of this worker */
    atomic_llong wake_step;   /* at which to wake the saving thread */
    pthread_mutex_t wake_mutex;
    pthread_cond_t wake;
    bool woken;    /* guarded by wake_mutex */
    double rate_s; /* when the step was last looked at */
    int64_t rate_step;
    double steps_per_s;
};

/*
 * Takes the state of all shards after training has ended. Locked. They may be at different steps: a killed worker may
 * have pushed to only some of them. Anything but EXCHANGE_OK leaves the state a mixture; EXCHANGE_REJOIN: some shard
 * has lost its state.
 */
enum exchange_result chief_take_last(struct chief *chief, int64_t *global_step, struct error *error);

/*
 * Tells the shards of the next checkpoints by steps, if there are any. Locked. step: a lower bound of where they are;
 * -1: not known.
 */
void chief_order_ahead(struct chief *chief, int64_t step);

/* Training is over, at least for this chief: reads and saves the orders due by now, and forgets the rest. Locked. */
void chief_collect_last(struct chief *chief);

/* Saves the state that was taken, unless it has been saved. Locked. */
void chief_save_taken(struct chief *chief, int64_t global_step);

/* For any thread but the saving thread, which gives way. */
static inline void chief_lock(struct chief *chief)
{
    atomic_fetch_add(&chief->waiting, 1);
    pthread_mutex_lock(&chief->mutex);
    atomic_fetch_sub(&chief->waiting, 1);
}

/* The saving thread: starts unless it runs, is woken, and ends. Unlocked. */
void chief_wake(struct chief *chief);
void chief_start_saving(struct chief *chief);
void chief_stop_saving(struct chief *chief);

/* Loads what evaluation needs of the state that was taken into the engine. Locked. */
bool chief_state_to_engine(struct chief *chief, struct error *error);

#endif
