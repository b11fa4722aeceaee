/*
 * The store: parameters, optimizer slots, moving averages and the global step; what gradients are applied to.
 *
 * Local training uses it in process, and a parameter server serves (its part of) it by network. Memory is taken once,
 * at store_create: 4 bytes x float_count x (1 + slots + averages), and one byte per row of a variable.
 *
 * A step is: store_begin_step (one thread), then store_apply for blocks that together cover every variable exactly
 * once (any threads, disjoint blocks), then store_end_step (one thread, after all). Between steps one thread may read
 * the vectors directly, and write them if it calls store_restored afterwards.
 */
#ifndef PS_STORE_STORE_H
#define PS_STORE_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/config.h"
#include "base/error.h"
#include "ps/store/model.h"
#include "ps/store/optimizer.h"

/*
 * The gradient of rows [row, row + rows) x columns [col, col + cols) of one variable, all in one panel, final. Row k of
 * values, k < present_count, is that of row + present[k] (ascending); rows that are not listed have gradient zero.
 * present = NULL: all rows are there, in order. values: [present_count or rows, cols] with `stride` floats from row to
 * row.
 */
struct gradient_block {
    int variable;
    int row, rows;
    int col, cols;
    const float *values;
    int stride;
    const int32_t *present;
    int present_count;
};

/*
 * Where an engine's gradients go. An engine calls `block` from any of its threads, each block once it is final and the
 * parameters it covers are no longer read in this step; values may be reused when the call returns.
 */
struct gradient_sink {
    void (*block)(void *context, const struct gradient_block *block);
    void *context;
};

enum store_vector {
    STORE_PARAMETERS,
    STORE_SLOT0,
    STORE_SLOT1,
    STORE_AVERAGES,
    STORE_VECTORS,              /* of a store, an engine, a checkpoint */
    STORE_TOLD = STORE_VECTORS, /* of a ps alone: what workers were told (ps/store/told.h) */
    STORE_PS_VECTORS
};

/* Does a store with this configuration have that vector? */
bool store_has_vector(const struct config_train *config, enum store_vector vector);

struct store {
    const struct model *model;               /* borrowed */
    const struct config_train *config;       /* borrowed */
    const struct optimizer_kernels *kernels; /* by config->cpu_kernels */
    float *vectors[STORE_VECTORS]; /* [model->float_count] each, 64-byte aligned; NULL where the optimizer has none */
    int64_t global_step;
    struct update update[2];      /* of the step under way: [0] biases, [1] weights */
    bool fresh_is_noop[2];        /* for those: a zero gradient changes nothing where the slots have never moved */
    _Atomic unsigned char *moved; /* per row of all variables: 0 = its slots are still as at the start */
    size_t first_row[MODEL_MAX_VARIABLES]; /* of each variable, in `moved` */
    void *memory;
};

bool store_create(struct store *store, const struct model *model, const struct config_train *config,
                  struct error *error);
void store_destroy(struct store *store); /* fine after a failed store_create, or on a store that is all zero */

/* Slots and global step as they are at the beginning; parameters stay. */
void store_forget(struct store *store);

/* To be called after the vectors were written directly, before the next step. */
void store_restored(struct store *store);

void store_begin_step(struct store *store);
void store_apply(struct store *store, const struct gradient_block *block);
void store_end_step(struct store *store);

/*
 * Asks for the listed rows of a block, of which values are not looked at, in vectors [vector, end), into the L2 cache.
 * Where rows lie far apart a core waits for one after the other; asked for at once, they come side by side.
 */
void store_fetch(const struct store *store, const struct gradient_block *block, enum store_vector vector,
                 enum store_vector end);

/* A sink that applies each block to the store at once. */
struct gradient_sink store_sink(struct store *store);

#endif
