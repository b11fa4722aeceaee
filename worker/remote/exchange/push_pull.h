/*
 * Push and pull: one round trip to every shard in each step. The gradient goes to all of them first, then their answers
 * are read: what changed since our version goes straight into the engine's parameters.
 *
 * A push whose answer is lost is sent again, with the same sequence number, on a new connection: it counts once. Other
 * trouble of a shard (restored since, restarted) is for the caller to solve by joining again.
 *
 * One thread drives it. Waits end when the process is asked to leave or when given_up says so, and are named in the
 * log.
 */
#ifndef WORKER_REMOTE_EXCHANGE_PUSH_PULL_H
#define WORKER_REMOTE_EXCHANGE_PUSH_PULL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/config.h"
#include "base/error.h"
#include "ps/store/placement.h"
#include "ps/identity.h"
#include "worker/engine.h"
#include "worker/remote/exchange/outbox.h"
#include "worker/remote/shard_link.h"

/* One ps, as a worker sees it. */
struct shard_part {
    struct link link;
    struct span spans[PLACEMENT_MAX_SPANS];
    int span_count;       /* 0: it holds nothing, and is asked for nothing */
    uint64_t version;     /* that our parameters have; 0: none of them all, since an answer broke off */
    uint64_t sequence;    /* of the last push */
    bool has_sent_model;  /* the sent model is of that version, too */
    int64_t global_step;  /* at that version */
    uint64_t request;     /* of the push under way */
    bool pending, sent;   /* of the push under way */
    double moved_s;       /* when something of it left, or a sign of life came */
    size_t unsent;        /* of it, then */
    uint64_t incarnation; /* of the ps that the parameters are from: another one knows nothing of them */
    bool over;            /* it takes no more pushes */
};

struct push_pull {
    const struct config *config; /* borrowed, as the next three */
    const struct model *model;
    struct engine *engine;
    float *mirror; /* NULL, or where parameters go instead of into the engine: [float_count] */
    bool (*given_up)(void *context);
    bool (*needs_rejoin)(void *context, uint32_t generation, double since_s, char why[256]);
    void *context;
    bool writes_model;
    struct shard_part *parts;
    struct pollfd *polled; /* [count] */
    int count;
    uint32_t generation;
    int64_t global_step; /* the highest that is known */
    int64_t token;       /* with participation below 1: the step that we are asked for, as it was told last; -1: none */
    double logged_s, joined_s;
    double pushed_s;    /* when the push under way began */
    char awaited[256];  /* whom a ps waits for, as it said when it had held the answer back for long; "": not known */
    bool broken;        /* set where a connection broke, for callers */
    uint8_t *ranges;    /* of the frame being sent */
    struct iovec *bulk; /* likewise */
    uint8_t *landing;   /* received bytes on their way into the engine */
    float *widened;     /* what they are as float32 */
    uint16_t *known; /* [float_count]: parameters as bfloat16, as each connection brought them; NULL: float32 travels */
    float *sent_model; /* [float_count] (ps/store/sent_model.h); NULL: there is none */
    enum dtype sent_dtype;
};

struct push_pull_options {
    const struct config *config;
    const struct model *model;
    struct engine *engine; /* may be NULL: then nothing can be pulled */
    const struct identity *identity;
    struct traffic *traffic;
    bool (*given_up)(void *context);
    /*
     * Has some ps said, after since_s, that it has nothing to train on in this generation? Asked while an answer is
     * awaited. May be NULL.
     */
    bool (*needs_rejoin)(void *context, uint32_t generation, double since_s, char why[256]);
    void *context;
    bool writes_model; /* its user: push_pull_join waits for no model then that only it could write */
    bool quiet;        /* no lines about waiting */
};

bool push_pull_create(struct push_pull *exchange, const struct push_pull_options *options, struct error *error);
void push_pull_destroy(struct push_pull *exchange); /* fine on zeros */

/* How an exchange with the shards ended, or what was made of one. */
enum exchange_result {
    EXCHANGE_OK,
    EXCHANGE_REJOIN,  /* the training state is not the one we knew: join again */
    EXCHANGE_STOPPED, /* the process was asked to leave, or the caller gave up */
    EXCHANGE_FAILED,  /* for good, and the error says why: a ps refused, memory ran out, or the engine failed */
};

/*
 * Waits until every shard can be trained on, all of one generation, and pulls all parameters into the engine.
 * EXCHANGE_REJOIN only with writes_model: some shard has no model, or one of another generation.
 */
enum exchange_result push_pull_join(struct push_pull *exchange, struct error *error);

/* Synchronous: waits, for a while at most, until some shard is past this step. */
enum exchange_result push_pull_await_step(struct push_pull *exchange, int64_t step, struct error *error);

/*
 * Rounds of some (train.participation): are we asked to push a gradient of the step that we are at? If not,
 * push_pull_await_round waits, for a while at most, until we are, or until some shard is past after_step: the step is
 * known then, and the parameters are its own once we are asked.
 */
bool push_pull_is_asked(const struct push_pull *exchange);
enum exchange_result push_pull_await_round(struct push_pull *exchange, int64_t after_step, struct error *error);

/* Pulls all parameters again; where the sent model is still there, only what it lacks. */
enum exchange_result push_pull_refresh(struct push_pull *exchange, struct error *error);

/*
 * With synchronous training the parameters in the engine are those of one step, global_step, whichever shard they come
 * from, and a push is a gradient of that step: base_step.
 */

/* What a push says of itself. */
struct push_note {
    int64_t base_step, local_step;
    uint32_t examples;
    float loss;
};

/* What became of it. */
struct push_answer {
    int64_t global_step;
    uint32_t staleness; /* the largest of all shards */
    bool not_finite;    /* some shard refused it */
    bool stale;         /* synchronous: its step was made without it */
    bool over;          /* no shard takes pushes any more */
};

/* Makes a whole gradient ready to be pushed, in the form that the outbox has. The training thread's. */
void push_pull_pack(const struct push_pull *exchange, struct outbox *outbox);

enum exchange_result push_pull_exchange(struct push_pull *exchange, const struct outbox *outbox,
                                        const struct push_note *note, struct push_answer *answer, struct error *error);

/*
 * Reads the rest of a frame's bulk from this ps, `ranges` of `dtype`, into a vector of the engine. They must be its
 * own.
 */
bool push_pull_land(struct push_pull *exchange, struct shard_part *part, enum store_vector vector, enum dtype dtype,
                    const struct ranges *ranges, struct error *error);

#endif
