/*
 * Models in service: a checkpoint, or a folder that training writes to, of which a newer checkpoint takes the older
 * one's place between two requests.
 *
 * A version is immutable but for its engines, one for each worker thread. Whoever uses a version holds it. One that was
 * replaced is held by its model, too, until all others have let go: so the thread that loads models frees it, and no
 * request waits for that.
 */
#ifndef SERVE_MODEL_H
#define SERVE_MODEL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "base/config.h"
#include "base/error.h"
#include "serve/drift.h"
#include "worker/export/trained.h"

enum { SERVE_MOST_MODELS = 64, SERVE_MOST_NAME = 64 };

/* Memory of all models together. */
struct budget {
    atomic_size_t used;
    size_t most; /* bytes */
};

struct version {
    atomic_int holders;
    struct version *next; /* of those that were replaced */
    uint64_t id;          /* of all versions that this process loaded, this one's own */
    struct trained trained;
    int64_t number; /* the checkpoint's global step */
    char path[CHECKPOINT_MAX_PATH];
    double loaded_s;  /* by the wall clock */
    int checked_rows; /* that the checkpoint keeps, and that gave what they should */
    struct budget *budget;
    size_t bytes; /* of the budget */
    struct drift_watch drift;
    int workers;
    struct engine **engines; /* [workers] */
    /* [workers]: of a model of pictures, for pixels that are no whole levels of grey; NULL until the first such. */
    struct engine **wide_engines;
};

/* What the model says of some rows. */
struct answers {
    struct version *version; /* held by the caller */
    const float *outputs;    /* [count, version_outputs] */
    const float *wanted;     /* [count, targets]: what a model of its own inputs was to give back; else NULL */
    int count;
};

struct served {
    char name[SERVE_MOST_NAME];
    const char *source;          /* file or folder, borrowed */
    const struct config *config; /* borrowed, as what follows */
    const char *reference;       /* data like training's, for drift; NULL: none */
    struct request_log *log;     /* of requests; NULL: none */
    struct budget *budget;
    bool takes_best; /* of a folder: the best checkpoint, not the newest */
    int workers;
    pthread_mutex_t mutex; /* guards what follows: */
    struct version *current;
    char problem[1024]; /* why the newest could not be loaded; "": no problem */
    uint64_t swaps, failures;
    /* The watching thread's own: what the source looked like when it was last tried; whether it had a checkpoint. */
    struct stat seen;
    bool was_found;
    struct version *replaced; /* and not freed yet */
};

/* The name is checked: letters, digits, '-', '_' and '.'. Loads nothing yet. */
bool served_init(struct served *served, const char *name, const char *source, struct error *error);
void served_destroy(struct served *served); /* all holders have let go */

/*
 * Looks for something newer, loads it beside what is in service, tries it, and swaps. True if the source is what is in
 * service now. False: the error names the file, and what was in service stays. Frees what was replaced and is no longer
 * held. By one thread at a time.
 */
bool served_refresh(struct served *served, struct error *error);

struct version *served_hold(struct served *served);    /* NULL: none is loaded */
struct version *version_hold(struct version *version); /* once more */
void version_let_go(struct version *version);          /* NULL is fine */

/* Of the network. */
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
