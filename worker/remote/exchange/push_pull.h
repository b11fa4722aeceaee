/*
 * Push and pull: one round trip to every shard per step. The gradient is sent to all of them first, then their answers
 * are read: what changed since our version goes straight into the engine's parameters.
 *
 * A push whose answer is lost is sent again on a new connection, with the same sequence number: it counts once. If a
 * shard was restored or restarted, the caller must join again.
 *
 * Used by one thread. Waits end when the process is stopped or given_up returns true, and are logged.
 */
#ifndef WORKER_REMOTE_EXCHANGE_PUSH_PULL_H
#define WORKER_REMOTE_EXCHANGE_PUSH_PULL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/config.h"
#include "base/error.h"
#include "ps/identity.h"
#include "ps/store/model.h"
#include "worker/engine.h"
#include "worker/remote/exchange/outbox.h"
#include "worker/remote/shard_link.h"

/* A worker's view of one ps. */
struct shard_part {
    struct link link;
    struct span spans[PLACEMENT_MAX_SPANS];
    int span_count;       /* 0: it has no parameters, and is not asked for any */
    uint64_t version;     /* version of our parameters; 0: none, because an answer was cut off */
    uint64_t sequence;    /* of the last push */
    bool has_sent_model;  /* the sent model has that version, too */
    int64_t global_step;  /* at that version */
    uint64_t request;     /* of the push in flight */
    bool pending, sent;   /* of the push in flight */
    double moved_s;       /* when bytes of it last advanced, or a keepalive came */
    size_t unsent;        /* bytes unsent at that time */
    uint64_t incarnation; /* of the process that the parameters are from: another one would know nothing of them */
    bool over;            /* it accepts no more pushes */
};

struct push_pull {
    const struct config *config; /* borrowed, like the next three */
    const struct model *model;
    struct engine *engine;
    float *mirror; /* NULL, or where parameters go instead of the engine: [float_count] */
    bool (*given_up)(void *context);
    bool (*needs_rejoin)(void *context, uint32_t generation, double since_s, char why[256]);
    void *context;
    bool writes_model;
    struct shard_part *parts;
    struct pollfd *polled; /* [count] */
    int count;
    uint32_t generation;
    int retries;         /* as in struct config_train, of this generation */
    int64_t global_step; /* the highest known */
    int64_t token;       /* with participation below 1: the step for which we were last selected; -1: none */
    double logged_s, joined_s;
    double pushed_s;    /* when the push in flight began */
    char awaited[256];  /* whom a ps waits for, as it said after a long delay; "": not known */
    bool broken;        /* set when a connection broke, for callers */
    uint8_t *ranges;    /* of the frame being sent */
    struct iovec *bulk; /* likewise */
    uint8_t *landing;   /* buffer for received bytes on their way into the engine */
    float *widened;     /* the same as float32 */
    uint16_t *known; /* [float_count]: parameters as bfloat16, as received on each connection; NULL: float32 is sent */
    float *sent_model; /* [float_count] (ps/store/codec.h); NULL: none */
    enum dtype sent_dtype;
};

struct push_pull_options {
    const struct config *config;
    const struct model *model;
    struct engine *engine; /* NULL is fine: then nothing can be pulled */
    const struct identity *identity;
    struct traffic *traffic;
    bool (*given_up)(void *context);
    /*
     * Has some ps reported, after since_s, that it has nothing to train on in this generation? Called while an answer
     * is due. May be NULL.
     */
    bool (*needs_rejoin)(void *context, uint32_t generation, double since_s, char why[256]);
    void *context;
    bool writes_model; /* the caller does: push_pull_join does not wait for a model that only it could write */
    bool quiet;        /* logs no waits */
};

bool push_pull_create(struct push_pull *exchange, const struct push_pull_options *options, struct error *error);
void push_pull_destroy(struct push_pull *exchange); /* fine on zeros */

/* The result of an exchange with the shards. */
enum exchange_result {
    EXCHANGE_OK,
    EXCHANGE_REJOIN,  /* the training state has changed: join again */
    EXCHANGE_STOPPED, /* the process is being stopped, or the caller gave up */
    EXCHANGE_FAILED,  /* for good, the error says why: a ps refused, memory ran out, or the engine failed */
};

/*
 * Waits until every shard can be trained on, all of one generation, and pulls all parameters into the engine.
 * EXCHANGE_REJOIN only with writes_model: some shard has no model, or one of another generation.
 */
enum exchange_result push_pull_join(struct push_pull *exchange, struct error *error);

/* Synchronous: waits a limited time until some shard is past this step. */
enum exchange_result push_pull_await_step(struct push_pull *exchange, int64_t step, struct error *error);

/*
 * With train.participation below 1: is this worker selected for the step that it is at? If not, push_pull_await_round
 * waits a limited time until it is, or until some shard is past after_step: then the step is known, and the parameters
 * are pulled once the worker is selected.
 */
bool push_pull_is_asked(const struct push_pull *exchange);
enum exchange_result push_pull_await_round(struct push_pull *exchange, int64_t after_step, struct error *error);

/* Pulls all parameters again, or only the changes to the sent model if that is still there. */
enum exchange_result push_pull_refresh(struct push_pull *exchange, struct error *error);

/*
 * In synchronous training the engine's parameters are those of one step, global_step, on all shards, and a push is a
 * gradient of that step: base_step.
 */

/* A push's description of itself. */
struct push_note {
    int64_t base_step, local_step;
    uint32_t examples;
    float loss;
};

/* The result of a push. */
struct push_answer {
    int64_t global_step;
    uint32_t staleness; /* the largest over all shards */
    bool not_finite;    /* some shard refused it */
    bool stale;         /* synchronous: its step was made without it */
    bool over;          /* no shard accepts pushes any more */
};

/* Prepares a complete gradient for pushing, in the outbox's form. The training thread's. */
void push_pull_pack(const struct push_pull *exchange, struct outbox *outbox);

enum exchange_result push_pull_exchange(struct push_pull *exchange, const struct outbox *outbox,
                                        const struct push_note *note, struct push_answer *answer, struct error *error);

/* --- For other requests to the shards --- */

/* Is the process being stopped, or does the caller give up? */
bool push_pull_must_stop(const struct push_pull *exchange);

/*
 * One attempt at a request, on the open link of `part`. False: *code is the ps's refusal, or 0 if the connection broke.
 */
typedef bool shard_request(struct shard_part *part, void *context, uint16_t *code, struct error *error);

/*
 * Repeats a request until it is answered, over as many connections as that takes; so it must be one that a ps may get
 * twice. EXCHANGE_FAILED with *code: the ps refused. EXCHANGE_REJOIN: the ps is not the process that our parameters are
 * from.
 */
enum exchange_result shard_call(struct push_pull *exchange, struct shard_part *part, shard_request *request,
                                void *context, uint16_t *code, struct error *error);

/* Decides what an error answered by a ps means. */
enum exchange_result push_pull_by_code(uint16_t code);

/* The ps that decides on synchronous steps: the first with parameters. */
struct shard_part *push_pull_decider(const struct push_pull *exchange);

/* --- The pipeline (pipeline.c) --- */

/*
 * Pushes in flight while the next step computes (cluster.pipeline_depth): a thread exchanges gradients with the shards,
 * one after another and in order, while the engine computes the next one.
 *
 * A step computes on parameters that include all pushes but the last `depth`. The shards' answers are collected in a
 * mirror of the parameters, and reach the engine only between steps. A push counts as it does without a pipeline:
 * exactly once, in order; it is answered when max_staleness allows, before the next one is sent.
 *
 * Memory: 4 bytes x floats x (2 + gradients), of which there are depth + 1 (bfloat16 ones take 6 bytes each). The
 * training thread calls all functions; while a push is in flight (between pipeline_push and pipeline_drain) it must not
 * use the push_pull.
 */

struct pipeline;

/* depth: at least 1. Everything is borrowed; from now on the exchange's parameters land in the mirror. */
bool pipeline_create(struct pipeline **pipeline, struct push_pull *exchange, struct engine *engine, int depth,
                     struct error *error);

/* Waits for the push in flight, which ends soon if exchange->given_up returns true. NULL is fine. */
void pipeline_destroy(struct pipeline *pipeline);

/* The outbox of the next gradient: begin it, and fill it. */
struct outbox *pipeline_outbox(struct pipeline *pipeline);

/*
 * Hands over that gradient, waits until at most `depth` are in flight, and copies the newest parameters into the
 * engine. The answer sums those received since the last call; *answers is their number; if it is 0 the answer is
 * meaningless. Any result but EXCHANGE_OK is that of some push; those after it were not sent, and pipeline_drain drops
 * them.
 */
enum exchange_result pipeline_push(struct pipeline *pipeline, const struct push_note *note, struct push_answer *answer,
                                   int *answers, struct error *error);

/* The same without another gradient: waits until none is in flight. Afterwards the exchange may be used directly. */
enum exchange_result pipeline_drain(struct pipeline *pipeline, struct push_answer *answer, int *answers,
                                    struct error *error);

/* Copies what landed in the mirror into the engine, after direct use of the exchange. */
bool pipeline_load(struct pipeline *pipeline, struct error *error);

#endif
