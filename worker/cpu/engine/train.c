/* Runs over batches: many steps with the optimizer, or one whose gradient goes to a sink. */
#include <assert.h>
#include <math.h>

#include "worker/cpu/engine/internal.h"

/* Applies this thread's rows of the sum over all micro-batches. */
static void apply_collected(struct cpu_engine *engine, int thread)
{
    struct engine_thread *member = &engine->members[thread];
    pool_barrier(engine->pool);
    for (int i = 0; i < engine->model->variable_count; i++) {
        const struct variable *variable = &engine->model->variables[i];
        int first = share_first(engine, variable->rows, thread);
        struct gradient_block block = {.variable = i,
                                       .row = first,
                                       .rows = share_first(engine, variable->rows, thread + 1) - first,
                                       .cols = variable->cols,
                                       .values = engine->gradient + variable->offset +
                                                 (size_t)first * (size_t)variable->stride,
                                       .stride = variable->stride};
        if (block.rows > 0) {
            store_apply(&member->store, &block);
        }
    }
    pool_barrier(engine->pool);
}

/* The sink for a batch of train(): the thread's own view of the store, or of the sum over micro-batches. */
static struct gradient_sink train_sink(const struct engine_run *run, int64_t number, int thread)
{
    struct cpu_engine *engine = run->engine;
    struct engine_thread *member = &engine->members[thread];
    int micro = micro_batches(engine);
    if (number % micro == 0) {
        member->store.global_step = run->first_step + number / micro;
        store_begin_step(&member->store);
    }
    if (micro == 1) {
        return store_sink(&member->store);
    }
    /* All micro-batches of a step have the same size: that of the step's batch, for every task. */
    member->collector = (struct collector){
        .model = engine->model, .sum = engine->gradient, .weight = 1.0f / (float)micro, .first = number % micro == 0};
    return collector_sink(&member->collector);
}

static void record(const struct engine_run *run, int64_t number, double loss, int right)
{
    const struct cpu_engine *engine = run->engine;
    struct train_result *result = run->result;
    int micro = micro_batches(engine);
    if (number % micro == 0) {
        result->last_loss = 0.0;
    }
    result->last_loss += run->sink ? loss : loss / micro;
    result->correct += right;
    result->images += engine->draws[number % DRAWS].count;
    if (run->sink || (number + 1) % micro == 0) {
        result->steps++;
        result->loss_sum += result->last_loss;
    }
}

static void train_thread(void *context, int thread)
{
    const struct engine_run *run = context;
    struct cpu_engine *engine = run->engine;
    int micro = micro_batches(engine);
    bool clips = engine->clip.limit > 0, gathers = clips || micro > 1;
    bool drawer = thread == engine->threads - 1;
    for (int64_t i = 0; drawer && i < 2 && i < run->batches; i++) {
        cpu_draw_batch(run, i);
    }
    pool_barrier(engine->pool);
    cpu_index_batch(run, 0, thread);
    pool_barrier(engine->pool);
    cpu_forward_begin(run, 0, thread);
    for (int64_t q = 0; q < run->batches; q++) {
        if (drawer && q + 2 < run->batches) {
            cpu_draw_batch(run, q + 2);
        }
        if (q + 1 < run->batches) {
            cpu_index_batch(run, q + 1, thread);
        }
        struct matrix upper;
        int right;
        double loss = cpu_forward_finish(run, q, thread, &upper, &right);
        if (!isfinite(loss)) {
            if (thread == 0) {
                run->result->finite = false;
                run->result->bad_loss = loss;
            }
            return;
        }
        if (thread == 0) {
            record(run, q, loss, right);
        }
        struct gradient_sink sink = train_sink(run, q, thread);
        bool last = q + 1 == run->batches;
        if (clips) {
            cpu_backward_clipped(run, q, upper, thread, &sink);
        } else {
            cpu_backward(run, q, upper, thread, &sink, last || gathers ? -1 : q + 1);
        }
        if (micro > 1 && (q + 1) % micro == 0) {
            apply_collected(engine, thread);
        }
        if (gathers && !last) {
            cpu_forward_begin(run, q + 1, thread);
        }
    }
}

bool cpu_train(struct engine *base, int64_t n, struct train_result *result, struct error *error)
{
    struct cpu_engine *engine = (struct cpu_engine *)base;
    assert(engine->train && n >= 0);
    *result = (struct train_result){.finite = true};
    struct engine_run run = {.engine = engine,
                             .first_step = engine->store.global_step,
                             .batches = n * micro_batches(engine),
                             .result = result};
    if (n > 0) {
        for (int i = 0; i < engine->threads; i++) {
            engine->members[i].store = engine->store;
        }
        pool_run(engine->pool, train_thread, &run);
        engine->store.global_step += result->steps;
    }
    if (engine->starved) {
        *error = engine->starved_error;
    }
    return !engine->starved;
}

static void step_thread(void *context, int thread)
{
    const struct engine_run *run = context;
    struct cpu_engine *engine = run->engine;
    cpu_index_batch(run, 0, thread);
    pool_barrier(engine->pool);
    cpu_forward_begin(run, 0, thread);
    struct matrix upper;
    int right;
    double loss = cpu_forward_finish(run, 0, thread, &upper, &right);
    if (thread == 0) {
        run->result->finite = isfinite(loss);
        run->result->bad_loss = loss;
    }
    if (isfinite(loss)) {
        if (thread == 0) {
            record(run, 0, loss, right);
        }
        if (engine->clip.limit > 0) {
            cpu_backward_clipped(run, 0, upper, thread, run->sink);
        } else {
            cpu_backward(run, 0, upper, thread, run->sink, -1);
        }
    }
}

bool cpu_step(struct engine *base, const struct batch *batch, const struct gradient_sink *sink,
              struct train_result *result, struct error *error)
{
    (void)error;
    struct cpu_engine *engine = (struct cpu_engine *)base;
    assert(batch->count >= 1 && batch->count <= engine->config->train.batch_size);
    *result = (struct train_result){.finite = true};
    cpu_draw_take(engine, &engine->draws[0], batch);
    struct engine_run run = {.engine = engine, .sink = sink, .batches = 1, .result = result};
    pool_run(engine->pool, step_thread, &run);
    return true;
}
