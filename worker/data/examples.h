/* Examples in memory, pictures or rows of a table, with their labels or targets. */
#ifndef WORKER_DATA_EXAMPLES_H
#define WORKER_DATA_EXAMPLES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/config/kinds.h"

/* Zero bytes after the pixels of a set, so that vector loads may read past the last one. */
enum { EXAMPLES_PADDING = 64 };

/*
 * A set of either pictures or rows. Arrays that a set has no use for are NULL.
 *
 * A row holds the first layer's preprocessed inputs: first its numbers, in one of two views, then one-hot inputs, of
 * which only the places of the ones are stored, so that a category costs 4 bytes however many categories there are.
 *
 *     raw        an input for each number, its scaled value
 *     piecewise  an input for each bin of each encoded column, which a position stands for: 3.25 in a column of 5 bins
 *                is 1, 1, 1, .25, 0. So a column costs 4 bytes however many bins it has.
 *
 * A set may hold both, for models that each take one (examples_view). Its `inputs` are then those of the raw view.
 */
struct examples {
    int count;
    /* Pictures: */
    uint8_t *images;   /* [count, height x width] row-major, uint8 0..255, with 64 readable bytes after the last */
    int height, width; /* width: values in a line, which are the pixels times the channels */
    int channels;      /* 3: red, green and blue; else (0 or 1) grey */
    /* Rows: */
    int inputs;       /* width of the first layer: of the numbers, and of all categories; 0: pictures */
    int numbers;      /* raw: inputs */
    float *values;    /* raw: [count, numbers] row-major */
    int piecewise;    /* piecewise: columns */
    const int *bins;  /* piecewise: [piecewise]: inputs of each, at least 1; borrowed */
    float *positions; /* piecewise: [count, piecewise] row-major, 0 <= position <= the column's bins */
    int codes;        /* most ones in a row among the one-hot inputs */
    int32_t *places;  /* [count, codes]: which one-hot input is 1, from 0, each at most once; -1: none */
    /* What to learn, as labels or as target values: */
    int32_t *labels;       /* [count], 0 <= label < classes; NULL: target_values */
    int classes;           /* 1 + the largest label */
    int targets;           /* per example, and units of the last layer */
    float *target_values;  /* [count, targets]: 0 or 1 for sigmoid; for regression as the model computes them */
    double *target_means;  /* [targets]: a target value stands for mean + scale x value ... */
    double *target_scales; /* [targets], > 0 ... both borrowed; NULL: itself */
    float *weights;        /* [count]: an example's weight in the loss, 1 on average; NULL: all 1 */
    bool is_weighted;      /* examples like these have weights */
};

/* The parts of a data set. */
enum dataset_part { DATASET_TRAIN, DATASET_VALIDATION, DATASET_TEST };

static inline bool examples_are_rows(const struct examples *examples)
{
    return examples->inputs > 0;
}

static inline int examples_channels(const struct examples *examples)
{
    return examples->channels > 1 ? examples->channels : 1;
}

/* Pixels in a line. */
static inline int examples_columns(const struct examples *examples)
{
    return examples->width / examples_channels(examples);
}

/* Inputs before the one-hot ones: place 0 is that input. */
int examples_dense(const struct examples *examples);

/* The same rows in the same memory with only one view of their numbers, which the set must hold. */
struct examples examples_view(const struct examples *examples, enum number_view view);

/*
 * Allocates `count` examples of the same shape as others, of which only the sizes are read: they say which arrays
 * exist. Arrays are zeroed, with no place set. False if out of memory.
 */
bool examples_create(struct examples *examples, const struct examples *like, int count);

/* Bytes per example. */
size_t examples_bytes(const struct examples *like);

/* Copies examples [first, first + count) of a set to [at, at + count) of another one of the same shape. */
void examples_copy(struct examples *to, int at, const struct examples *from, int first, int count);

/* Examples [first, first + count) in the same memory. */
struct examples examples_part(const struct examples *examples, int first, int count);

void examples_free(struct examples *examples); /* also fine on examples that are all zeros */

#endif
