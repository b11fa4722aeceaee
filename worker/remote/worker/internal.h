/*
 * Inside the role of a worker: what its parts share. worker.c goes from start to end; open.c puts together what a worker
 * is made of; join.c asks the shards for what they hold, and notes what they answer; train.c takes steps; due.c does what
 * is due between two of them; end.c takes leave.
 *
 * All of it is the training thread's, but for worker_is_over.
 */
#ifndef WORKER_REMOTE_WORKER_INTERNAL_H
#define WORKER_REMOTE_WORKER_INTERNAL_H

#include "ps/job/plan.h"
#include "worker/dataset.h"
#include "worker/engine_choose.h"
#include "worker/remote/chief.h"
#include "worker/remote/data_server.h"
#include "worker/remote/batch_fetcher.h"
#include "worker/remote/heartbeat.h"
#include "worker/remote/live_config.h"
#include "worker/remote/exchange/outbox.h"
#include "worker/remote/exchange/pipeline.h"
#include "worker/remote/exchange/push_pull.h"
#include "worker/remote/summary_tally.h"
#include "base/random/sampler.h"

/* Steps and seconds of some stretch of training. */
struct remote_tally {
    double begun_s;
    int64_t local_steps, images, global_step;
    double loss_sum;
};

enum end_reason {
    END_NOT_YET,
    END_LAST_STEP,
    END_TARGET,
    END_PATIENCE,
    END_INTERRUPTED,
    END_BY_OTHERS,
    END_PARTS,
    END_FAILED
};

struct remote_worker {
    struct config config;        /* the command's, with what depends on the data filled in; owns nothing */
    struct config engine_config; /* optimizers are the shards' business: no slots here */
    double begin_s;
    bool is_chief;
    bool gives_way; /* to other members on this machine */
    struct dataset dataset;
    struct examples test;  /* chief */
    struct examples share; /* of dataset.train: what this worker draws from; borrows */
    struct model model;
    struct plan plan;
    struct identity identity;
    struct engine_startup startup;
    struct engine *engine;
    struct traffic traffic;
    struct outbox outbox;
    struct push_pull exchange;
    struct pipeline *pipeline; /* NULL: each step waits for its push */
    struct heartbeat *heartbeat;
    struct chief *chief;
    struct live_config *live;        /* rollouts */
    struct data_server *data_server; /* the chief's with data_sharding chief, or NULL */
    struct batch_fetcher *feed;      /* the others' with it, or NULL: dataset holds numbers only then, and no images */
    struct summary_tally watch;      /* the chief's */
    struct sampler sampler;
    int32_t *indexes; /* [batch_size] */
    uint8_t *images;  /* [batch_size, pixels], as are the labels [batch_size]: of data that stream, else NULL */
    int32_t *labels;
    int64_t first_draw, local_step, global_step;
    struct remote_tally since_report, since_vitals, all, warm;
    double last_loss;
    uint32_t staleness;
    int64_t dropped; /* gradients that were not used */
    int bad_steps;
    bool joined; /* it has had parameters of this job */
    enum end_reason end;
    struct error error; /* of END_FAILED */
};

/* ---- open.c ---- */

/*
 * Loads the data and creates all that training needs; with data_sharding chief, all but the chief know nothing of the data
 * yet. worker_close is due after a failure too.
 */
bool worker_open(struct remote_worker *worker, struct error *error);
void worker_close(struct remote_worker *worker, const char *goodbye); /* goodbye: to the shards */

/* The plan, and train.lr_decay_steps, by what the config says now. */
void worker_make_plan(struct remote_worker *worker);

/* Data that comes from the chief: asks how much there is, and plans with it. False: the worker is stopped. */
bool worker_learn_data(struct remote_worker *worker);

/* push_pull_options.given_up, of a struct remote_worker: is there no use in waiting? Any thread. */
bool worker_is_over(void *context);

/* ---- join.c ---- */

/* Training ends, for this reason if there is none yet. */
void worker_stop(struct remote_worker *worker, enum end_reason end);

/* What push_pull or the chief reported; true: go on. */
bool worker_take_end(struct remote_worker *worker, enum push_pull_end end);

/* Everybody comes in here at the start, and again after the shards were restored. False: the worker is stopped. */
bool worker_join(struct remote_worker *worker, struct chief_start *start);

/* Waits for pushes that are under way, so that the shards can be asked for something else. */
enum push_pull_end worker_settle(struct remote_worker *worker);

/* All parameters anew, after the engine was used for something else or looks bad. */
enum push_pull_end worker_refresh(struct remote_worker *worker);

/* What shards answered to a push: how far the job is. */
void worker_take_answer(struct remote_worker *worker, const struct push_answer *answer);

/* Tells the heartbeats how this worker is. */
void worker_tell_vitals(struct remote_worker *worker, enum member_state state);

/* The counters as they are now. */
struct remote_tally worker_begin_tally(const struct remote_worker *worker);

/* ---- train.c ---- */

/* Steps until the worker is stopped. */
void worker_train(struct remote_worker *worker);

/* ---- due.c ---- */

/* What the chief's summaries are about. */
struct summary_options worker_summary_options(struct remote_worker *worker);

/* Takes up live keys of a rollout, at their step. finite: as for live_config_look. */
void worker_look_for_change(struct remote_worker *worker, float loss, bool finite);

/* A log line about the steps since the last one. */
void worker_report_progress(struct remote_worker *worker);

/* Log lines, signs of life, summaries and validations, after a step that led on from global step `before`. */
void worker_do_what_is_due(struct remote_worker *worker, int64_t before);

/* ---- end.c ---- */

/* The chief ends the job, the others wait for that; where the end was none, training goes on. Returns the exit status. */
int worker_end(struct remote_worker *worker);

#endif
