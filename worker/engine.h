/*
 * An engine computes: it owns parameters, slots, averages and whatever it needs to train on them, wherever they live.
 *
 * The CPU engine (worker/cpu/engine.c) and the GPU engine (worker/gpu/engine.c) implement this table. An engine is
 * driven by one thread; it uses others inside. After engine creation a training step allocates nothing.
 */
#ifndef WORKER_ENGINE_H
#define WORKER_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/config.h"
#include "base/error.h"
#include "ps/store/model.h"
#include "ps/store/store.h"
#include "worker/data/examples.h"

/* A batch to compute on: some examples of a set. */
struct batch {
    const struct examples *examples;
    const int32_t *indexes; /* [count]: which of them */
    int count;              /* 1..batch_size of the engine */
    uint32_t task;          /* who drew it, and for which of its steps: dropout depends on it */
    int64_t step;
};

struct train_result {
    int64_t steps;   /* done: less than asked for only if finite is false */
    double loss_sum; /* over the steps done, of the mean loss of each step (without L2) */
    double last_loss;
    int64_t correct; /* examples of these steps that the model, before the update, put into their class */
    int64_t images;
    bool finite;     /* false: the next step's loss is not finite; its update was not applied */
    double bad_loss; /* that loss, if not finite */
};

struct engine;

struct engine_table {
    const char *name; /* "cpu", "gpu" */

    /*
     * Runs n steps of the job from the store's global step on: draws the batches of its tasks (micro-batch i of m draws
     * what task first_task + i draws), computes, updates. Returns false only for a failure of the device, or if data
     * can't be read any more: then the state is good for nothing.
     */
    bool (*train)(struct engine *engine, int64_t n, struct train_result *result, struct error *error);

    /*
     * The gradient of the mean loss of one batch at the present parameters into the sink, which the caller
     * prepared; result gets this one step. The store is not touched, unless it is the sink.
     */
    bool (*step)(struct engine *engine, const struct batch *batch, const struct gradient_sink *sink,
                 struct train_result *result, struct error *error);

    /*
     * Logits of examples [first, first + count) into logits [count, units of the last layer] row-major; averaged: with
     * the averages.
     */
    bool (*forward)(struct engine *engine, bool averaged, const struct examples *examples, int first, int count,
                    float *logits, struct error *error);

    /* Floats [first, first + count) of one vector of the model, in the layout of ps/store/model.h. */
    bool (*read)(struct engine *engine, enum store_vector vector, size_t first, size_t count, float *values,
                 struct error *error);
    bool (*write)(struct engine *engine, enum store_vector vector, size_t first, size_t count, const float *values,
                  struct error *error);

    /*
     * All floats of the parameters where they lie, to be written between steps by the caller: what comes from afar
     * needs no stop on its way then. NULL where they lie elsewhere, or otherwise (in an engine that trains by itself):
     * read and write do it.
     */
    float *(*parameters)(struct engine *engine);

    int64_t (*global_step)(const struct engine *engine);
    void (*set_global_step)(struct engine *engine, int64_t global_step);

    /*
     * What is no part of a checkpoint, and yet of training that goes on from it with the same bits: kept beside the
     * checkpoint of this step, and taken up again once that is restored. NULL: there is nothing.
     */
    void (*keep)(struct engine *engine, int64_t global_step);
    bool (*recall)(struct engine *engine, int64_t global_step, struct error *error);

    /* One line for `version` and the log: kernels, threads, and why these. */
    void (*describe)(const struct engine *engine, char *text, size_t size);
    void (*destroy)(struct engine *engine);
};

/* Every engine begins with this. */
struct engine {
    const struct engine_table *table;
};

/* --- What any engine's users and engines need (worker/engine.c) --- */

/* The floats of engine_table.parameters; NULL if it has none to be written there. */
float *engine_parameters_in_place(struct engine *engine);

/* All `count` parameters into the engine, where they lie if it lets us, else by write. */
bool engine_put_parameters(struct engine *engine, const float *values, size_t count, struct error *error);

/* Writes each of these vectors, [count] floats, that is not NULL. Stops at the first that the engine does not take. */
bool engine_put_vectors(struct engine *engine, float *const vectors[STORE_VECTORS], size_t count, struct error *error);

/* Hands a gradient that lies in the model's layout, [float_count], to a sink, variable by variable. */
void gradient_feed(const struct model *model, const float *gradient, const struct gradient_sink *sink);

/* Adds what was done later; where that was no step, last_loss stays what it is. */
void train_result_add(struct train_result *sum, const struct train_result *later);

struct engine_options {
    const struct model *model; /* borrowed, as all pointers here */
    const struct config *config;
    const struct examples *train; /* what train() draws from; NULL if only step() and forward() will be used */
    /*
     * What examples look like: of rows inputs, numbers, codes, and targets or none. NULL: as train's, or pictures.
     */
    const struct examples *like;
    struct streaming *streaming; /* where train's images come from if they are not in memory; else NULL */
    uint32_t first_task;         /* 0 for local training */
    bool only_forward;           /* a few forward passes, for which --device=auto starts no GPU */
    bool gives_way;              /* its threads leave the CPUs to others that want them (base/threads.h) */
};

bool cpu_engine_create(struct engine **engine, const struct engine_options *options, struct error *error);

#endif
