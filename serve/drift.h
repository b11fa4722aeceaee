/*
 * Do the rows or pictures that come look like those that the model learnt from? Counts of values that it does not know,
 * and the population stability index of each column and of the predictions against a reference, such as training's own
 * data: the sum over bins of (share now - share there) x ln(share now / share there). Below 0.1 nothing has changed;
 * above 0.2 somebody should look.
 *
 * Rows are counted as the model sees them, preprocessed. "Now" is the last 10,000 to 20,000 rows.
 */
#ifndef SERVE_DRIFT_H
#define SERVE_DRIFT_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "worker/export/trained.h"

enum {
    DRIFT_BINS = 64,  /* most of a column: categories beyond that share the last one */
    DRIFT_PARTS = 10, /* of numbers: as many of the reference in each */
    DRIFT_WINDOW = 10000,
};

/* What is looked at of a picture. */
enum drift_measure {
    DRIFT_BRIGHTNESS, /* the mean of its pixels, 0 to 1 */
    DRIFT_CONTRAST,   /* and their standard deviation */
    DRIFT_CENTRE_X,   /* where the centre of its light is, 0 to 1; of square pictures, */
    DRIFT_CENTRE_Y,   /* and nowhere of black ones */
    DRIFT_MEASURES,
};

/* A column, or the predictions. */
struct drift_column {
    const char *name; /* the schema's; "" of the predictions */
    int measure;      /* of pictures; -1: none */
    int input;        /* of a number: which of a row's; -1: none */
    int code, place;  /* of a category, or of a missing number: which of a row's codes, and the first of its places */
    int bins;         /* 0: there is no reference */
    float edges[DRIFT_PARTS - 1]; /* of a number: where the next bin begins */
    float least, most;            /* of the reference */
    uint32_t expected[DRIFT_BINS];
    uint32_t seen[2][DRIFT_BINS]; /* in this window, and in the one before */
    uint64_t unknown;             /* categories without a place of their own: rare in training, or new */
    uint64_t outside;             /* numbers beyond the reference's */
};

struct drift_watch {
    const struct trained *trained; /* borrowed */
    struct drift_column *columns;  /* [count], the predictions last */
    int count;
    int classes; /* that predictions are counted by: DRIFT_BINS at most; 0: they are not */
    bool has_reference;
    pthread_mutex_t mutex; /* guards counts: seen, unknown, outside, and: */
    uint64_t rows, predicted[DRIFT_BINS];
    int window, windowed; /* which of `seen` is filled, and with how many rows */
};

/* drift_end in any case; a zeroed one is fine. */
bool drift_begin(struct drift_watch *drift, const struct trained *trained, struct error *error);
void drift_end(struct drift_watch *drift);

/*
 * Takes a file's rows, or the pictures of a data_dir, as the reference, at random no more than DRIFT_WINDOW of them.
 * What the engine makes of them is looked at, too: it fails where that is no number. Once, before drift_add.
 */
bool drift_refer(struct drift_watch *drift, const char *path, struct engine *engine, struct error *error);

/* Rows that came, and what the model made of them: outputs [examples->count, units of the last layer]. Any thread. */
void drift_add(struct drift_watch *drift, const struct examples *examples, const float *outputs);

/* A copy of column `index` at one moment; NaN where there is no reference, or no row came. Any thread. */
struct drift_state {
    const char *name;
    double index; /* PSI */
    uint64_t unknown, outside;
};
struct drift_state drift_state(struct drift_watch *drift, int column);
uint64_t drift_rows(struct drift_watch *drift);

/* How many rows were predicted to be of a class, and which share of the reference; NaN: there is none. Any thread. */
struct drift_class {
    uint64_t count;
    double expected;
};
struct drift_class drift_class(struct drift_watch *drift, int index);

#endif
