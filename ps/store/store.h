/*
 * The store: parameters, optimizer slots, moving averages and the global step, to which gradients are applied.
 *
 * Local training uses it in process, and a parameter server serves (its part of) it over the network. Memory is
 * allocated once, by store_create: 4 bytes x float_count x (1 + slots + averages), and one byte per row of a variable.
 *
 * A step is: store_begin_step (one thread), then store_apply for blocks that together cover every variable exactly once
 * (any threads, disjoint blocks), then store_end_step (one thread, after all). Between steps one thread may read the
 * vectors directly, or write them and then call store_restored.
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
 * present = NULL: all rows are listed, in order. values: [present_count or rows, cols] with `stride` floats from row to
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
 * Receives an engine's gradients. The engine calls `block` from any of its threads, for each block once it is final and
 * the parameters it covers are no longer read in this step; values may be reused when the call returns.
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
    STORE_SENT = STORE_VECTORS, /* of a ps only: as it was sent to workers (ps/store/codec.h) */
    STORE_PS_VECTORS
};

/* True if a store with this configuration has that vector. */
bool store_has_vector(const struct config_train *config, enum store_vector vector);

struct store {
    const struct model *model;               /* borrowed */
    const struct config_train *config;       /* borrowed */
    const struct optimizer_kernels *kernels; /* by config->cpu_kernels */
    float *vectors[STORE_VECTORS]; /* [model->float_count] each, 64-byte aligned; NULL where the optimizer has none */
    int64_t global_step;
    struct update updates[UPDATE_KINDS]; /* of the current step */
    bool fresh_is_noop[UPDATE_KINDS]; /* likewise: a zero gradient changes nothing where the slots have never moved */
    _Atomic unsigned char *moved;     /* per row of all variables: 0 = its slots still have their initial values */
    size_t first_row[MODEL_MAX_VARIABLES]; /* of each variable, in `moved` */
    void *memory;
};

void store_create(struct store *store, const struct model *model, const struct config_train *config);
void store_destroy(struct store *store); /* fine on a store that is all zero */

/* Resets slots and global step to their initial values; parameters stay. */
void store_forget(struct store *store);

/* Call it after writing the vectors directly, before the next step. */
void store_restored(struct store *store);

void store_begin_step(struct store *store);
void store_apply(struct store *store, const struct gradient_block *block);
void store_end_step(struct store *store);

/*
 * Prefetches the listed rows of a block, whose values are ignored, in vectors [vector, end), into the L2 cache.
 * Otherwise a core waits for scattered rows one by one; prefetched, their misses overlap.
 */
void store_fetch(const struct store *store, const struct gradient_block *block, enum store_vector vector,
                 enum store_vector end);

/* A sink that applies each block to the store at once. */
struct gradient_sink store_sink(struct store *store);

/* --- Sums of gradients --- */

/*
 * A sink that adds up whole gradients before anything is applied: the weighted sum of the gradients of several
 * micro-batches, or several workers, at the same parameters.
 *
 * The sum of contributions 0, 1, ... is, element by element, ((w0 x g0) + w1 x g1) + ..., in float32 without
 * contraction: the same bits wherever it is computed, if contributions come in the same order. A row that a
 * contribution leaves out is a zero gradient.
 */

/*
 * One contribution being added to the sum. Threads that add disjoint blocks of it may share this struct or use copies;
 * for every range, a barrier separates two contributions.
 */
struct collector {
    const struct model *model;
    float *sum;   /* [model->float_count], borrowed; padding is never written */
    float weight; /* of this contribution: its share of the images */
    bool first;   /* the first contribution replaces the content of `sum` */
};

/* The sink that adds a contribution's blocks, each element once. The collector must outlive it. */
struct gradient_sink collector_sink(struct collector *collector);

#endif
