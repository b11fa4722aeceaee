/*
 * Inside the role of a worker: the updater whose model lives in the shards of a cluster (worker/updater.h). open.c puts
 * together what a worker is made of; updater.c joins, goes between the loop and the shards, and holds what they share;
 * step.c takes steps; batch.c draws for them; residual.c keeps what packed gradients still owe; validation.c validates
 * on rows of its own; end.c takes leave.
 *
 * All of it is the training thread's, but for worker_is_over.
 */
#ifndef WORKER_REMOTE_WORKER_INTERNAL_H
#define WORKER_REMOTE_WORKER_INTERNAL_H

#include "ps/fleet_watch.h"
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
    const struct config *launched; /* the config as the process was started */
    struct config config;          /* the same, with what depends on the data filled in; owns nothing */
    struct config engine_config;   /* optimizers are the shards' business: no slots here */
    bool is_chief;
    bool gives_way; /* to other members on this machine */
    struct dataset dataset;
    struct examples test;  /* chief */
    struct examples share; /* of dataset.train: what this worker draws from; borrows */
    struct model model;
    struct identity identity;
    struct engine_startup startup;
    struct traffic traffic;
    struct outbox outbox;
    struct own_rows_validation *validation; /* with data of their own; NULL: none yet */
    struct residual_files residual_files;   /* of what it pushes, in train_dir */
    uint32_t residual_of;                   /* the generation that the residual is of; 0: none */
    struct local_steps *local;              /* NULL: every step is shared */
    struct push_pull exchange;
    struct pipeline *pipeline; /* NULL: each step waits for its push */
    struct heartbeat *heartbeat;
    struct chief *chief;
    struct live_config *live;        /* rollouts */
    struct fleet_watch *watch;       /* of all members, for who watches the chief; NULL: none */
    struct data_server *data_server; /* the chief's with data_sharding chief, or NULL */
    struct batch_fetcher *fetcher;   /* the others' with it, or NULL: dataset holds numbers only then, and no images */
    struct batch_source source;      /* of the share; with a fetcher only its sampler counts */
    int64_t first_draw;
    double last_loss;
    uint32_t staleness;
    double staleness_sum; /* since the last summary */
    int64_t dropped;      /* gradients that were not used */
    int bad_steps;
    double vitals_s; /* when the heartbeats were last told, and at which step */
    int64_t vitals_step;
    bool joined;   /* it has had parameters of this job */
    bool borrowed; /* the engine was used for a validation: its parameters are not the newest */
};

extern const struct updater_table remote_updater_table;

/* --- open.c --- */

/*
 * Loads the data and creates all that training needs; with data_sharding chief, all but the chief know nothing of the
 * data yet. worker_close is due after a failure too.
 */
bool worker_open(struct remote_worker *worker, struct error *error);
void worker_close(struct remote_worker *worker, const char *goodbye); /* goodbye: to the shards */

/*
 * Before it joins for the first time: it takes part in rollouts, one of which may be what lets it join; the chief
 * serves data, and who has none asks how much there is. False: the training is stopped.
 */
bool worker_begin(struct remote_worker *worker);

/* push_pull_options.given_up, of a struct remote_worker: is there no use in waiting? Any thread. */
bool worker_is_over(void *context);

/* --- updater.c --- */

/* What push_pull or the chief reported. True: go on. False: the training is stopped, perhaps to join again. */
bool worker_take_end(struct remote_worker *worker, enum exchange_result end);

/* Pulls all parameters, after the engine was used for something else or looks bad. */
enum exchange_result worker_refresh(struct remote_worker *worker);

/* What shards answered to a push: how far the job is. */
void worker_take_answer(struct remote_worker *worker, const struct push_answer *answer);

/* Tells the heartbeats how this worker is. */
void worker_tell_vitals(struct remote_worker *worker, enum member_state state);

/* --- validation.c: on rows that each worker has for itself --- */

/*
 * After a step that began at `before`, of all but the chief: validates what the engine holds if the chief does at that
 * step, and tells. False: the training is stopped.
 */
bool worker_validate_if_due(struct remote_worker *worker, int64_t before);

/* As in struct updater_table; of the chief. */
bool worker_gather(struct updater *updater, int64_t global_step, enum metric metric, struct evaluation *evaluation,
                   struct validators *validators);
void worker_destroy_validation(struct remote_worker *worker);

/* --- residual.c: that of packed gradients outlives the process --- */

/* The worker has the parameters of its global step: with them comes the residual of that step. */
bool worker_recall_residual(struct remote_worker *worker, struct error *error);

/* Keeps the residual as of a step. A file that can't be written is no reason to end training. */
void worker_keep_residual(struct remote_worker *worker, int64_t step);

/* The same after steps that the job may go on from: a round, or with one of save_steps since `before`. */
void worker_keep_residual_if_due(struct remote_worker *worker, int64_t before, int64_t step);

/* --- batch.c --- */

/* Which images this worker draws from, and room for a batch of them. */
bool worker_take_share(struct remote_worker *worker, struct error *error);

/* Batches that this worker draws for one global step: 1, or those of a round. */
int64_t worker_step_batches(const struct remote_worker *worker);

/*
 * Asynchronous: what it would have drawn by now. Workers share the steps, so one that comes late or comes back goes on
 * about where it would stand.
 */
int64_t worker_fair_draws(const struct remote_worker *worker);

/* Batch `number` of them. False: the training is stopped. */
bool worker_draw(struct remote_worker *worker, int64_t number, struct batch *batch);

/* --- step.c and end.c: as in struct updater_table --- */

bool worker_step(struct updater *updater);
void worker_finish(struct updater *updater);
void worker_conclude(struct updater *updater, bool failed, double test_accuracy, const char *why);

#endif
