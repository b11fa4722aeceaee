/*
 * Inside the chief: what its parts share. chief.c keeps the whole together and ends the job; restore.c brings a model into
 * the shards; snapshot.c takes their state, of one step; checkpoint.c writes down what was taken; saving.c does both when
 * they are due; validate.c measures.
 *
 * Two threads use the chief's connections and its copy of the state: the one that trains, when it validates or ends the
 * job, and the one that saves. A mutex is held for the whole of a snapshot, its transfer and its writing. "Locked" means
 * that it is the caller who holds it.
 *
 * Checkpoints by steps are of exactly those steps, although nobody stops for them: the shards are told of the next one
 * long before it comes, keep it when it does, and are asked for it afterwards. A shard holds one snapshot at a time, so
 * whatever else needs one first sees to the one that is ordered, and orders it anew if it had to be given up.
 */
#ifndef WORKER_REMOTE_CHIEF_INTERNAL_H
#define WORKER_REMOTE_CHIEF_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "ps/checkpoint/folder.h"
#include "ps/checkpoint/supervisor.h"
#include "worker/evaluate.h"
#include "worker/remote/chief.h"

/* The next checkpoint by steps, as the shards were told of it. */
struct order {
    uint64_t number; /* of the snapshot; 0: there is none */
    int64_t step;
};

struct chief {
    struct chief_options options;
    struct push_pull shards;
    struct checkpoint_state state;
    struct config_output output;     /* when to save, and what to keep. Locked */
    struct plan plan;                /* locked, too */
    struct checkpoint_folder folder; /* only with a train_dir */
    bool has_folder;
    struct supervisor supervisor;
    struct checkpoint_info info;
    struct evaluation evaluation;
    struct summary *summary; /* borrowed; NULL: none */
    uint32_t generation;     /* the last one written or found */
    uint64_t snapshots;      /* taken so far, on top of a random number: an earlier chief's must not be met */
    char last_checkpoint[CHECKPOINT_MAX_PATH]; /* "": none */
    bool checkpoint_failed;
    pthread_mutex_t mutex;
    pthread_t thread;
    bool saves; /* the thread runs */
    atomic_bool end;
    bool holds;         /* no checkpoints: a rollout may go back to the last one. Locked */
    struct order order; /* locked */
    int64_t ordered;    /* step of the last order; -1: there was none. Locked */
    atomic_llong global_step;
    double rate_s; /* when the step was looked at last */
    int64_t rate_step;
    double steps_per_s;
};

/*
 * Takes the state of one step, that of now or soon, of all shards. Locked. which: as in transfer_read. stopped: nobody
 * trains any more, so shards at different steps are taken too: a worker that was killed may have pushed to some of them
 * only. Anything but PUSH_PULL_DONE leaves the state a mixture.
 */
enum push_pull_end chief_take_now(struct chief *chief, unsigned which, bool stopped, int64_t *global_step,
                                  struct error *error);

/* Tells the shards of the next checkpoint by steps, if there is to be one. Locked. */
void chief_order_next(struct chief *chief);

/*
 * Reads and saves the checkpoint that was ordered, whose step has come to this worker at least. Locked. False: some
 * shard was past it when it was told, so that there is no such checkpoint.
 */
bool chief_collect_order(struct chief *chief);

/*
 * To be called before another snapshot is taken. Locked. An ordered one that the shards hold already, or will in a
 * moment, is saved first. It is waited for only while others push: the thread that waits may be the one that trains.
 */
void chief_settle_order(struct chief *chief);

bool chief_state_is_finite(const struct chief *chief);

/* Writes the state that was taken. targets: enum checkpoint_target's, added up. Locked. A failure is logged and noted. */
void chief_write_checkpoint(struct chief *chief, int targets, int64_t global_step);

/* Saves the state that was taken, unless it is past saving. Locked. */
void chief_save_taken(struct chief *chief, int64_t global_step);

/* The thread that saves: begins unless it runs, and ends. Unlocked. */
void chief_start_saving(struct chief *chief);
void chief_stop_saving(struct chief *chief);

/* What evaluation needs of the state that was taken, into the engine. Locked. */
bool chief_state_to_engine(struct chief *chief, struct error *error);

#endif
