/*
 * Overlaps computation and communication: an exchange thread exchanges one gradient while the engine computes the next;
 * the engine gets new parameters between two steps, never during one.
 */
#include "worker/remote/exchange/push_pull.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/copy.h"
#include "base/memory.h"
#include "base/profile.h"

struct errand {
    struct push_note note;
    struct outbox outbox;
};

struct pipeline {
    struct push_pull *exchange;
    struct engine *engine;
    int depth;
    struct errand *errands; /* [depth + 1], used in turn */
    float *mirror;          /* the exchange thread's while a push is in flight */

    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t handed_over, finished;
    int64_t handed, done; /* errands: number handed over, number done */
    bool stopping;
    float *ready; /* copy of the mirror after the last finished push */
    bool fresh;   /* `ready` is newer than the engine's parameters */
    struct push_answer answer;
    int answers;
    enum exchange_result end; /* other than EXCHANGE_OK: nothing is sent until pipeline_drain */
    struct error error;
};

static size_t vector_bytes(const struct pipeline *pipeline)
{
    return pipeline->exchange->model->float_count * sizeof(float);
}

/* --- The exchange thread --- */

static void take_answer(struct pipeline *pipeline, const struct push_answer *answer)
{
    struct push_answer *sum = &pipeline->answer;
    *sum = (struct push_answer){
        .global_step = answer->global_step,
        .staleness = sum->staleness > answer->staleness ? sum->staleness : answer->staleness,
        .not_finite = sum->not_finite || answer->not_finite,
        .over = answer->over,
    };
    pipeline->answers++;
    copy_bytes(pipeline->ready, pipeline->mirror, vector_bytes(pipeline));
    pipeline->fresh = true;
}

static void *carry(void *context)
{
    struct pipeline *pipeline = context;
    profile_thread("pushes");
    pthread_mutex_lock(&pipeline->lock);
    while (!pipeline->stopping) {
        if (pipeline->done == pipeline->handed || pipeline->end != EXCHANGE_OK) {
            pthread_cond_wait(&pipeline->handed_over, &pipeline->lock);
            continue;
        }
        const struct errand *errand = &pipeline->errands[pipeline->done % (pipeline->depth + 1)];
        struct push_answer answer;
        struct error error;
        pthread_mutex_unlock(&pipeline->lock);
        enum exchange_result end =
            push_pull_exchange(pipeline->exchange, &errand->outbox, &errand->note, &answer, &error);
        pthread_mutex_lock(&pipeline->lock);
        if (end == EXCHANGE_OK) {
            take_answer(pipeline, &answer);
        } else {
            pipeline->end = end;
            pipeline->error = error;
        }
        pipeline->done++;
        pthread_cond_signal(&pipeline->finished);
    }
    pthread_mutex_unlock(&pipeline->lock);
    return NULL;
}

/* --- The training thread --- */

static bool into_engine(struct pipeline *pipeline, const float *values, struct error *error)
{
    return engine_put_parameters(pipeline->engine, values, pipeline->exchange->model->float_count, error);
}

/* Locked: waits until at most `allowed` pushes are in flight, and collects the answers. */
static enum exchange_result collect(struct pipeline *pipeline, int allowed, struct push_answer *answer, int *answers,
                                    struct error *error)
{
    PROFILE("wait for pushes");
    while (pipeline->handed - pipeline->done > allowed && pipeline->end == EXCHANGE_OK) {
        pthread_cond_wait(&pipeline->finished, &pipeline->lock);
    }
    *answer = pipeline->answer;
    *answers = pipeline->answers;
    pipeline->answer = (struct push_answer){0};
    pipeline->answers = 0;
    if (pipeline->end != EXCHANGE_OK) {
        *error = pipeline->error;
        return pipeline->end;
    }
    if (pipeline->fresh) {
        pipeline->fresh = false;
        if (!into_engine(pipeline, pipeline->ready, error)) {
            return EXCHANGE_FAILED;
        }
    }
    return EXCHANGE_OK;
}

struct outbox *pipeline_outbox(struct pipeline *pipeline)
{
    return &pipeline->errands[pipeline->handed % (pipeline->depth + 1)].outbox;
}

enum exchange_result pipeline_push(struct pipeline *pipeline, const struct push_note *note, struct push_answer *answer,
                                   int *answers, struct error *error)
{
    pthread_mutex_lock(&pipeline->lock);
    pipeline->errands[pipeline->handed % (pipeline->depth + 1)].note = *note;
    pipeline->handed++;
    pthread_cond_signal(&pipeline->handed_over);
    enum exchange_result end = collect(pipeline, pipeline->depth, answer, answers, error);
    pthread_mutex_unlock(&pipeline->lock);
    return end;
}

enum exchange_result pipeline_drain(struct pipeline *pipeline, struct push_answer *answer, int *answers,
                                    struct error *error)
{
    pthread_mutex_lock(&pipeline->lock);
    enum exchange_result end = collect(pipeline, 0, answer, answers, error);
    /* After a failure nothing is in flight: the thread waits, and pushes that it has not begun are dropped. */
    pipeline->done = pipeline->handed;
    pipeline->end = EXCHANGE_OK;
    pthread_mutex_unlock(&pipeline->lock);
    return end;
}

bool pipeline_load(struct pipeline *pipeline, struct error *error)
{
    pthread_mutex_lock(&pipeline->lock);
    assert(pipeline->done == pipeline->handed);
    pipeline->fresh = false;
    pthread_mutex_unlock(&pipeline->lock);
    return into_engine(pipeline, pipeline->mirror, error);
}

/* --- Create and destroy --- */

static void create_memory(struct pipeline *pipeline)
{
    static const char what[] = "cluster.pipeline_depth: choose a smaller one";
    const struct push_pull *exchange = pipeline->exchange;
    const struct outbox_form form = outbox_form(exchange->config);
    pipeline->errands = must_zero((size_t)pipeline->depth + 1, sizeof *pipeline->errands, what);
    pipeline->mirror = must_zero(exchange->model->float_count, sizeof(float), what);
    pipeline->ready = must_zero(exchange->model->float_count, sizeof(float), what);
    for (int i = 0; i <= pipeline->depth; i++) {
        struct outbox *shared = i > 0 ? &pipeline->errands[0].outbox : NULL;
        outbox_create(&pipeline->errands[i].outbox, exchange->model, form, shared);
    }
}

bool pipeline_create(struct pipeline **out, struct push_pull *exchange, struct engine *engine, int depth,
                     struct error *error)
{
    assert(depth >= 1);
    struct pipeline *pipeline = must_zero(1, sizeof *pipeline, "a pipeline of pushes");
    *out = pipeline;
    pipeline->exchange = exchange;
    pipeline->engine = engine;
    pipeline->depth = depth;
    pthread_mutex_init(&pipeline->lock, NULL);
    pthread_cond_init(&pipeline->handed_over, NULL);
    pthread_cond_init(&pipeline->finished, NULL);
    create_memory(pipeline);
    exchange->mirror = pipeline->mirror;
    pipeline->started = pthread_create(&pipeline->thread, NULL, carry, pipeline) == 0;
    return pipeline->started || error_set(error, "can't start a thread for pushes");
}

void pipeline_destroy(struct pipeline *pipeline)
{
    if (!pipeline) {
        return;
    }
    if (pipeline->started) {
        pthread_mutex_lock(&pipeline->lock);
        pipeline->stopping = true;
        pthread_cond_signal(&pipeline->handed_over);
        pthread_mutex_unlock(&pipeline->lock);
        pthread_join(pipeline->thread, NULL);
    }
    pipeline->exchange->mirror = NULL;
    for (int i = pipeline->depth; pipeline->errands && i >= 0; i--) {
        outbox_destroy(&pipeline->errands[i].outbox);
    }
    pthread_mutex_destroy(&pipeline->lock);
    pthread_cond_destroy(&pipeline->handed_over);
    pthread_cond_destroy(&pipeline->finished);
    free(pipeline->errands);
    free(pipeline->mirror);
    free(pipeline->ready);
    free(pipeline);
}
