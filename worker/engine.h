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
    const int32_t *indexes; /* [count]: their numbers in the set */
    int count;              /* 1..batch_size of the engine */
    uint32_t task;          /* the task that drew it, and for which of its steps; dropout depends on both */
    int64_t step;
};

struct train_result {
    int64_t steps;   /* steps done: fewer than asked for only if finite is false */
    double loss_sum; /* sum over the steps done of each step's mean loss (without L2) */
    double last_loss;
    int64_t correct; /* examples of these steps that the model classified correctly, before the update */
    int64_t images;
    bool finite;     /* false: the next step's loss is not finite; its update was not applied */
    double bad_loss; /* that loss, if not finite */
};

struct engine;

struct engine_table {
    const char *name; /* "cpu", "gpu" */

    /*
     * Runs n steps of the job from the store's global step on: draws the batches of its tasks (micro-batch i of m draws
     * what task first_task + i draws), computes, updates. Returns false only if the device fails or data can't be read
     * any more; the state is then unusable.
     */
    bool (*train)(struct engine *engine, int64_t n, struct train_result *result, struct error *error);

    /*
     * Writes the gradient of one batch's mean loss at the present parameters into the sink, which the caller prepared;
     * result describes this one step. The store is not touched, unless it is the sink.
     */
    bool (*step)(struct engine *engine, const struct batch *batch, const struct gradient_sink *sink,
                 struct train_result *result, struct error *error);

    /*
     * Writes logits of examples [first, first + count) into logits [count, units of the last layer] row-major;
     * averaged: by the moving averages.
     */
    bool (*forward)(struct engine *engine, bool averaged, const struct examples *examples, int first, int count,
                    float *logits, struct error *error);

    /* Copies floats [first, first + count) of one vector of the model, in the layout of ps/store/model.h. */
    bool (*read)(struct engine *engine, enum store_vector vector, size_t first, size_t count, float *values,
                 struct error *error);
    bool (*write)(struct engine *engine, enum store_vector vector, size_t first, size_t count, const float *values,
                  struct error *error);

    /*
     * All parameters in place, which the caller may write between steps, so that received parameters need no extra
     * copy. NULL if they lie elsewhere, or in another layout (in an engine that trains by itself): use read and write.
     */
    float *(*parameters)(struct engine *engine);

    int64_t (*global_step)(const struct engine *engine);
    void (*set_global_step)(struct engine *engine, int64_t global_step);

    /*
     * State that is not part of a checkpoint but needed to resume from it with the same bits: `keep` saves it for the
     * checkpoint of this step, `load_state` loads it once that is restored. NULL: there is none.
     */
    void (*keep)(struct engine *engine, int64_t global_step);
    bool (*load_state)(struct engine *engine, int64_t global_step, struct error *error);

    /* One line for `version` and the log: kernels, threads, and why they were chosen. */
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
     * The shape of examples: for rows inputs, numbers and codes; targets or none. NULL: as train's, or pictures.
     */
    const struct examples *like;
    struct streaming *streaming; /* the source of train's images if they are not in memory; else NULL */
    uint32_t first_task;         /* 0 for local training */
    int net;                     /* which of an ensemble's nets it is: dropout differs between them */
    bool only_forward;           /* only a few forward passes: --device=auto starts no GPU for them */
    bool low_priority;           /* its threads run at low priority (base/threads.h) */
};

bool cpu_engine_create(struct engine **engine, const struct engine_options *options, struct error *error);

/*
 * An upper bound of what ensemble_create_on_cpu takes for one thread, batches of 1 and no slots, so that a server can
 * refuse a model for which there is no memory.
 */
size_t cpu_engine_most_bytes(const struct model *model);

/* --- The choice of an engine --- */

/* Chooses the engine: by --device, and by what this machine and this build have. */

struct gpu_client;

/* A GPU engine that is starting in the background. All zero: none. */
struct engine_startup {
    struct gpu_client *client;
};

/*
 * Begins to start the engine that the config asks for, so that a GPU is opened while the caller does other work, such
 * as reading the data, which the options need not have yet. Main thread only. If it fails, engine_choose tries again
 * and reports the error.
 */
void engine_begin(struct engine_startup *startup, const struct engine_options *options);
void engine_startup_end(
    struct engine_startup *startup); /* if engine_choose was not called; otherwise there is nothing left to do */

/*
 * Creates the engine for config->train.device, from what engine_begin started (NULL: nothing). auto falls back to the
 * CPU if no GPU is usable, with one log line; gpu does so with a warning if train.allow_soft_placement is set, and
 * fails otherwise, as auto does if only a GPU has train.precision. train.towers overrides both; a missing device in it
 * is an error.
 */
bool engine_choose(struct engine **engine, const struct engine_options *options, struct engine_startup *startup,
                   struct error *error);

#endif
