/*
 * Models in service: a checkpoint, or a folder that training writes to, where a newer checkpoint replaces the older one
 * between two requests.
 *
 * A version is immutable except for its engines, one for each worker thread. Versions are reference-counted. A replaced
 * version is also held by its model until all others have released it: so the thread that loads models frees it, and no
 * request waits for that.
 */
#ifndef SERVE_MODEL_H
#define SERVE_MODEL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/budget.h"
#include "base/config.h"
#include "base/error.h"
#include "worker/export/shapley.h"
#include "worker/export/trained.h"

/* --- Drift (drift.c) --- */

/*
 * Drift: whether incoming rows or pictures still resemble the training data. Counts values unknown to the model, and
 * computes the population stability index of each column and of the predictions against a reference, such as the
 * training data: the sum over bins of (share now - share there) x ln(share now / share there). Below 0.1 nothing has
 * changed; above 0.2 calls for investigation.
 *
 * Rows are counted as the model sees them, preprocessed. "Now" is the last 10,000 to 20,000 rows.
 */

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
 * *rows: gets the sampled rows of a table, which the caller frees in any case; else left as it is.
 */
bool drift_refer(struct drift_watch *drift, const char *path, struct engine *engine, struct examples *rows,
                 struct error *error);

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

enum { SERVE_MOST_MODELS = 64, SERVE_MOST_NAME = 64 };

struct version {
    atomic_int holders;
    struct version *next; /* in the list of replaced versions */
    uint64_t id;          /* unique among all versions that this process loaded */
    struct trained trained;
    int64_t number; /* the checkpoint's global step */
    char path[CHECKPOINT_MAX_PATH];
    char digest[CHECKPOINT_DIGEST_HEX + 1]; /* what it is: a step may be reached twice */
    double loaded_s;                        /* by the wall clock */
    int checked_rows;                       /* rows kept in the checkpoint that passed the check */
    struct budget *budget;                  /* of all models' memory */
    atomic_size_t bytes;                    /* of it */
    size_t spare;                           /* bytes that requests may take meanwhile */
    int *by_name;                           /* of a table, [features]: the columns, sorted by name */
    struct drift_watch drift;
    struct shapley shapley; /* by which rows are explained; samples 0: it has no rows to compare with, or can't be */
    int workers;
    struct engine **engines; /* [workers] */
    /* [workers]: for a model of pictures, for pixels that are not whole levels of grey; NULL until the first one. */
    struct engine **wide_engines;
};

/* The model's answers for some rows. */
struct answers {
    struct version *version; /* held by the caller */
    const float *outputs;    /* [count, version_outputs] */
    const float *spreads;    /* likewise, how far the nets of an ensemble differ; NULL: not wanted */
    const float *wanted;     /* [count, targets]: the inputs that an autoencoder should reproduce; else NULL */
    int count;
};

enum { SERVED_LATENCY_BUCKETS = 16, SERVED_BATCH_BUCKETS = 12 };

/* Of one model's requests. */
struct served_counts {
    atomic_uint_fast64_t answered, faulty, refused;       /* with 200; at fault; refused by a full queue or memory */
    atomic_uint_fast64_t left;                            /* whose clients left before their answer */
    atomic_uint_fast64_t rows, explained;                 /* explained: rows, too */
    atomic_uint_fast64_t latency[SERVED_LATENCY_BUCKETS]; /* from the end of the request to the start of the answer */
    atomic_uint_fast64_t latency_us;
    atomic_uint_fast64_t batch[SERVED_BATCH_BUCKETS]; /* rows: at most 1, 2, 4, ... */
};

struct served {
    char name[SERVE_MOST_NAME];
    const char *source;          /* file or folder, borrowed */
    const struct config *config; /* borrowed, as what follows */
    const char *reference;       /* data like training's, for drift; NULL: none */
    struct request_log *log;     /* of requests; NULL: none */
    struct budget *budget;
    size_t spare;    /* bytes that requests may take while a model is loaded */
    bool takes_best; /* for a folder: the best checkpoint, if there is one, not the newest */
    int workers;
    struct served_counts counts;
    pthread_mutex_t mutex; /* guards what follows: */
    struct version *current;
    char problem[1024]; /* why the newest could not be loaded; "": no problem */
    uint64_t swaps, failures;
    /* Private to the watching thread: its files when last tried (0: never); whether there was a checkpoint. */
    uint64_t seen;
    bool was_found;
    struct version *replaced; /* but not freed yet */
};

/* Checks the name: letters, digits, '-', '_' and '.'. Loads nothing yet. */
bool served_init(struct served *served, const char *name, const char *source, struct error *error);
void served_destroy(struct served *served); /* all holders must have released */

/*
 * If the source changed since the last call, looks for another checkpoint, by its digest, loads it beside the one in
 * service, tries it, and swaps. True if the source's newest is in service now, or nothing changed. False: the error
 * names the file, and the version in service stays; it is not tried again until the source changes. Frees replaced
 * versions that are no longer held. One thread at a time.
 */
bool served_refresh(struct served *served, struct error *error);

/* Prepares, once, for what finds the column of a table with a name; -1: none. */
bool version_sort_columns(struct version *version, struct error *error);
int version_find_column(const struct version *version, const char *name, size_t size);

struct version *served_hold(struct served *served);    /* NULL: none is loaded */
struct version *version_hold(struct version *version); /* adds a reference */
void version_release(struct version *version);         /* NULL is fine */

/*
 * The worker's engine for pixels that are not whole levels of grey, created for the first of them. NULL with an error,
 * and not the end of the process, where there is no memory for it. Called by that worker only.
 */
struct engine *version_wide_engine(struct version *version, int worker, struct error *error);

/* Inputs and outputs of the network. */
static inline int version_inputs(const struct version *version)
{
    return version->trained.model.widths[0];
}

static inline int version_outputs(const struct version *version)
{
    return version->trained.model.widths[version->trained.model.layer_count];
}

static inline bool version_is_of_pictures(const struct version *version)
{
    return !version->trained.schema;
}

#endif
