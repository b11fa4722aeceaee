/*
 * Internal to the role of a worker: the updater whose model lives in the shards of a cluster (worker/updater.h). open.c
 * creates a worker's parts; updater.c joins and connects the loop with the shards; step.c takes steps; batch.c draws
 * for them; residual.c keeps what packed gradients still owe; validation.c validates on the worker's own rows; end.c
 * ends it.
 *
 * The training thread calls everything but worker_is_over.
 */
#ifndef WORKER_REMOTE_WORKER_INTERNAL_H
#define WORKER_REMOTE_WORKER_INTERNAL_H

#include "ps/status.h"
#include "worker/batch_source.h"
#include "worker/dataset.h"
#include "worker/engine_choose.h"
#include "worker/local_steps.h"
#include "worker/remote/batch_fetcher.h"
#include "worker/remote/chief.h"
#include "worker/remote/data_server.h"
#include "worker/remote/exchange/residual_files.h"
#include "worker/remote/exchange/outbox.h"
#include "worker/remote/exchange/pipeline.h"
#include "worker/remote/exchange/push_pull.h"
#include "worker/remote/heartbeat.h"
#include "worker/remote/live_config.h"
#include "worker/training.h"

struct remote_worker {
    struct updater updater;
    struct training training;
    const struct config *launched; /* the config as at process start */
    struct config config;          /* the same, with what depends on the data filled in; owns nothing */
    struct config engine_config;   /* the shards have the optimizer: no slots here */
    bool is_chief;
    bool gives_way; /* yields to other members on this machine */
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

extern const struct updater_table remote_updater_table;

/* --- open.c --- */

/*
 * Loads the data and creates all that training needs; with data_sharding chief, only the chief knows the data yet. Call
 * worker_close after a failure too.
 */
bool worker_open(struct remote_worker *worker, struct error *error);
void worker_close(struct remote_worker *worker, const char *goodbye); /* goodbye: for the shards */

/*
 * Before it joins for the first time: starts the worker's part in rollouts, one of which may be what lets it join; the
 * chief starts serving data, and a worker without data asks how much there is. False: training is stopped.
 */
bool worker_begin(struct remote_worker *worker);

/* push_pull_options.given_up, of a struct remote_worker: is waiting pointless? Any thread. */
bool worker_is_over(void *context);

/* --- updater.c --- */

/* Handles a result of push_pull or the chief. True: continue. False: training is stopped, perhaps to join again. */
bool worker_take_end(struct remote_worker *worker, enum exchange_result end);

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
void worker_tell_vitals(struct remote_worker *worker, enum member_state state);

/* --- validation.c: on each worker's own rows --- */

/*
 * After a step that began at `before`, on all workers but the chief: if the chief validates at that step, validates the
 * engine's model and reports. False: training is stopped.
 */
bool worker_validate_if_due(struct remote_worker *worker, int64_t before);

/* As in struct updater_table; for the chief. */
bool worker_gather(struct updater *updater, int64_t global_step, enum metric metric, struct evaluation *evaluation,
                   struct validators *validators);
void worker_destroy_validation(struct remote_worker *worker);

/* --- residual.c: the residual of packed gradients survives the process --- */

/* The worker has the parameters of its global step: loads the residual of that step. */
bool worker_recall_residual(struct remote_worker *worker, struct error *error);

/* Saves the residual of a step. Failing to write the file does not end training. */
void worker_keep_residual(struct remote_worker *worker, int64_t step);

/* The same after steps from which the job may continue: after a round, or if one of save_steps lies after `before`. */
void worker_keep_residual_if_due(struct remote_worker *worker, int64_t before, int64_t step);

/* --- batch.c --- */

/* Chooses the images that this worker draws from, and makes room for a batch of them. */
bool worker_take_share(struct remote_worker *worker, struct error *error);

/* Batches that this worker draws per global step: 1, or those of a round. */
int64_t worker_step_batches(const struct remote_worker *worker);

/*
 * Asynchronous: what it would have drawn by now. Workers share the steps, so one that comes late or returns continues
 * about where it would be.
 */
int64_t worker_fair_draws(const struct remote_worker *worker);

/* Batch number `number`. False: training is stopped. */
bool worker_draw(struct remote_worker *worker, int64_t number, struct batch *batch);

/* --- step.c and end.c: as in struct updater_table --- */

bool worker_step(struct updater *updater);
void worker_finish(struct updater *updater);
void worker_conclude(struct updater *updater, bool failed, double test_accuracy, const char *why);

#endif
