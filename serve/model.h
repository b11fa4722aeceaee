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
#include "serve/drift.h"
#include "worker/export/trained.h"

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
    struct drift_watch drift;
    int workers;
    struct engine **engines; /* [workers] */
    /* [workers]: for a model of pictures, for pixels that are not whole levels of grey; NULL until the first one. */
    struct engine **wide_engines;
};

/* The model's answers for some rows. */
struct answers {
    struct version *version; /* held by the caller */
    const float *outputs;    /* [count, version_outputs] */
    const float *wanted;     /* [count, targets]: the inputs that an autoencoder should reproduce; else NULL */
    int count;
};

enum { SERVED_LATENCY_BUCKETS = 16, SERVED_BATCH_BUCKETS = 12 };

/* Of one model's requests. */
struct served_counts {
    atomic_uint_fast64_t answered, faulty, refused; /* with 200; at fault; refused by a full queue or memory */
    atomic_uint_fast64_t left;                      /* whose clients left before their answer */
    atomic_uint_fast64_t rows;
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
    /* Private to the watching thread: what its files were when last tried (0: never); whether there was a checkpoint. */
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

struct version *served_hold(struct served *served);    /* NULL: none is loaded */
struct version *version_hold(struct version *version); /* adds a reference */
void version_let_go(struct version *version);          /* NULL is fine */

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
