/*
 * Internal to the role of a worker: what it consists of, what the shards' answers mean for it, its batches, and its
 * residual. worker/remote/worker.c is the updater (worker/updater.h) that trains with these.
 *
 * The training thread calls everything but worker_is_over.
 */
#ifndef WORKER_REMOTE_REMOTE_WORKER_H
#define WORKER_REMOTE_REMOTE_WORKER_H

#include "ps/status.h"
#include "worker/data/batch_source.h"
#include "worker/data/dataset.h"
#include "worker/data/examples.h"
#include "worker/engine.h"
#include "worker/evaluation/validation.h"
#include "worker/local_steps.h"
#include "worker/remote/batches.h"
#include "worker/remote/chief.h"
#include "worker/remote/exchange/outbox.h"
#include "worker/remote/exchange/push_pull.h"
#include "worker/remote/heartbeat.h"
#include "worker/remote/live_config.h"
#include "worker/training.h"

/* With data_sharding own: validations on each worker's own rows. */
struct own_rows_validation {
    uint8_t *bytes;            /* the report */
    struct validation_sum sum; /* the chief's */
    bool has_warned;
};

struct remote_worker {
    struct updater updater;
    struct training training;
    const struct config *launched; /* the config as at process start */
    struct config config;          /* the same, with what depends on the data filled in; owns nothing */
    struct config engine_config;   /* the shards have the optimizer: no slots here */
    bool is_chief;
    bool low_priority; /* yields to other members on this machine */
    struct dataset dataset;
    struct examples test;  /* the chief's */
    struct examples share; /* of dataset.train: the part this worker draws from; borrows */
    struct model model;
    struct identity identity;
    struct engine_startup startup;
    struct traffic traffic;
    struct outbox outbox;
    struct own_rows_validation *validation; /* with data_sharding own; NULL: none yet */
    struct residual_files residual_files;   /* of its gradients, in train_dir */
    uint32_t residual_of;                   /* generation of the residual; 0: none */
    struct local_steps *local;              /* NULL: every step is shared */
    struct push_pull exchange;
    struct pipeline *pipeline; /* NULL: each step waits for its push */
    struct heartbeat *heartbeat;
    struct chief *chief;
    struct live_config *live;        /* rollouts */
    struct fleet_watch *watch;       /* of all members, for the chief's dashboards; NULL: none */
    struct data_server *data_server; /* the chief's with data_sharding chief; otherwise NULL */
    struct batch_fetcher *fetcher; /* the others' with it; otherwise NULL. The dataset then has sizes only, no images */
    struct batch_source source;    /* of the share; with a fetcher only its sampler counts */
    int64_t first_draw;
    double last_loss;
    uint32_t staleness;
    double staleness_sum; /* since the last summary */
    int64_t dropped;      /* gradients that were not used */
    int bad_steps;        /* consecutive ones whose loss was not finite */
    int refused_steps;    /* consecutive ones whose gradient was not, although the loss was */
    double vitals_s;      /* when the heartbeats were last updated, and at which step */
    int64_t vitals_step;
    bool joined;   /* it has had parameters of this job */
    bool borrowed; /* the engine was used for a validation: its parameters are not the newest */
};

/* worker/remote/worker.c: what trains by these. */
extern const struct updater_table remote_updater_table;

/* --- Parts --- */

/*
 * Loads the data and creates all that training needs; with data_sharding chief, only the chief knows the data yet. Call
 * worker_close after a failure too.
 */
bool worker_open(struct remote_worker *worker, struct error *error);
void worker_close(struct remote_worker *worker, const char *message); /* message: for the shards */

/*
 * Before it joins for the first time: starts the worker's part in rollouts, one of which may be what lets it join; the
 * chief starts serving data, and a worker without data asks how much there is. False: training is stopped.
 */
bool worker_begin(struct remote_worker *worker);

/* push_pull_options.given_up, of a struct remote_worker: is waiting pointless? Any thread. */
bool worker_is_over(void *context);

/* --- Answers of the shards --- */

/* Handles a result of push_pull or the chief. True: continue. False: training is stopped, perhaps to join again. */
bool worker_take_end(struct remote_worker *worker, enum exchange_result end);

/* Waits for pushes in flight, so that the shards can be asked for something else. */
enum exchange_result worker_settle(struct remote_worker *worker);

/* Pulls all parameters, after the engine was used for something else or its parameters look bad. */
enum exchange_result worker_refresh(struct remote_worker *worker);

/*
 * Fails the job if this is the chief, so many steps in a row were bad, and no rollout is under way that may mend it.
 * Other workers keep trying. what: was not finite; value: what it was.
 */
bool worker_has_diverged(struct remote_worker *worker, int bad_steps, const char *what, double value);

/* Takes the job's progress from the answers to a push. It may end training: the job is over, or has diverged. */
void worker_take_answer(struct remote_worker *worker, const struct push_answer *answer);

/* Updates the worker's state for the heartbeats. */
void worker_update_vitals(struct remote_worker *worker, enum member_state state);

/* --- The residual of packed gradients, which survives the process --- */

/* The worker has the parameters of its global step: loads the residual of that step. */
bool worker_load_residual(struct remote_worker *worker, struct error *error);

/* Saves the residual of a step. Failing to write the file does not end training. */
void worker_save_residual(struct remote_worker *worker, int64_t step);

/* The same after steps from which the job may continue: after a round, or if one of save_steps lies after `before`. */
void worker_save_residual_if_due(struct remote_worker *worker, int64_t before, int64_t step);

/* --- Batches --- */

/* Batches that this worker draws per global step: 1, or those of a round. */
int64_t worker_step_batches(const struct remote_worker *worker);

/*
 * Asynchronous: what it would have drawn by now. Workers share the steps, so one that comes late or returns continues
 * about where it would be.
 */
int64_t worker_fair_draws(const struct remote_worker *worker);

/* Batch number `number`. False: training is stopped. */
bool worker_draw(struct remote_worker *worker, int64_t number, struct batch *batch);

/* --- The shape of the data --- */

/*
 * With data_sharding chief: a worker without data asks worker 0 what the data are like, before it creates anything
 * whose size depends on them.
 */

/* Is that necessary? For images the config is enough, unless layer widths follow from them. */
bool data_shape_is_unknown(const struct config *config);

/*
 * Waits for worker 0. Fills in the layers and the loss that follow from the data, and for a table how rows become
 * inputs and their format; the dataset has no rows. Also false if the process is stopped.
 */
bool data_shape_learn(struct dataset *dataset, struct config *config, const struct identity *identity,
                      struct traffic *traffic, struct error *error);

#endif
