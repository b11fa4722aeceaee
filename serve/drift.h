/*
 * Drift: whether incoming rows or pictures still resemble the training data. Counts values unknown to the model, and
 * computes the population stability index of each column and of the predictions against a reference, such as the
 * training data: the sum over bins of (share now - share there) x ln(share now / share there). Below 0.1 nothing has
 * changed; above 0.2 calls for investigation.
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
    DRIFT_BINS = 64,  /* most bins of a column: further categories share the last one */
    DRIFT_PARTS = 10, /* bins of a number, each with an equal part of the reference */
    DRIFT_WINDOW = 10000,
};

/* What is measured of a picture. */
enum drift_measure {
    DRIFT_BRIGHTNESS, /* the mean of its pixels, 0 to 1 */
    DRIFT_CONTRAST,   /* and their standard deviation */
    DRIFT_CENTRE_X,   /* the centre of its light, 0 to 1; only of square pictures, */
    DRIFT_CENTRE_Y,   /* and undefined for black ones */
    DRIFT_MEASURES,
};

/* A column, or the predictions. */
struct drift_column {
    const char *name; /* the schema's; "" for the predictions */
    int measure;      /* of pictures; -1: none */
    int input;        /* index of a number in a row; -1: none */
    int code, place;  /* of a category, or a missing number: index among a row's codes, and its first place */
    int bins;         /* 0: there is no reference */
    float edges[DRIFT_PARTS - 1]; /* of a number: the lower bounds of all bins but the first */
    float least, most;            /* of the reference */
    uint32_t expected[DRIFT_BINS];
    uint32_t seen[2][DRIFT_BINS]; /* in this window, and in the one before */
    uint64_t unknown;             /* categories without their own input: rare in training, or new */
    uint64_t outside;             /* numbers outside the reference's range */
};

struct drift_watch {
    const struct trained *trained; /* borrowed */
    struct drift_column *columns;  /* [count], the predictions last */
    int count;
    int classes; /* to count predictions by: at most DRIFT_BINS; 0: not counted */
    bool has_reference;
    pthread_mutex_t mutex; /* guards counts: seen, unknown, outside, and: */
    uint64_t rows, predicted[DRIFT_BINS];
    int window, windowed; /* index of the `seen` being filled, and its rows so far */
};

/* Call drift_end in any case; zeros are fine. */
bool drift_begin(struct drift_watch *drift, const struct trained *trained, struct error *error);
void drift_end(struct drift_watch *drift);

/*
 * Takes a file's rows, or the pictures of a data_dir, as the reference: a random sample of at most DRIFT_WINDOW of
 * them. The engine's outputs for them belong to it, too; fails if one is not a number. Call it once, before drift_add.
 */
bool drift_refer(struct drift_watch *drift, const char *path, struct engine *engine, struct error *error);

/* Adds incoming rows and the model's outputs for them [examples->count, units of the last layer]. Any thread. */
void drift_add(struct drift_watch *drift, const struct examples *examples, const float *outputs);

/* A consistent copy of a column's state; index is NaN without a reference or rows. Any thread. */
struct drift_state {
    const char *name;
    double index; /* PSI */
    uint64_t unknown, outside;
};
struct drift_state drift_state(struct drift_watch *drift, int column);
uint64_t drift_rows(struct drift_watch *drift);

/* The number of rows predicted to be of a class, and the reference's share of that class; NaN: none. Any thread. */
struct drift_class {
    uint64_t count;
    double expected;
};
struct drift_class drift_class(struct drift_watch *drift, int index);

#endif
