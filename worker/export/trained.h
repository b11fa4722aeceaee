/*
 * A trained model from a checkpoint, for eval, predict and export. The model is the checkpoint's own, whatever
 * config.json says now.
 */
#ifndef WORKER_EXPORT_TRAINED_H
#define WORKER_EXPORT_TRAINED_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/budget.h"
#include "base/config.h"
#include "base/error.h"
#include "ps/checkpoint/checkpoint.h"
#include "ps/store/model.h"
#include "worker/data/names.h"
#include "worker/data/table/encode.h"
#include "worker/engine.h"

struct schema;

/* A zeroed struct may be closed. */
struct trained {
    struct config
        config; /* the command's, with the checkpoint's model, loss and metric, no slots and averages; owns nothing */
    struct checkpoint_file *file;
    struct schema *schema;    /* of a table's columns; NULL: pictures */
    struct image_shape shape; /* of pictures; height 0: a table's */
    struct names classes;     /* of pictures, by label, if they have names */
    struct string_list known; /* the names of its columns, for config.data.known_names; not the names' owner */
    char **targets;           /* target names that config.data.target points to, unless the command names some */
    double threshold;         /* of a binary model or an anomaly detector, by its validation data; NaN: none */
    double temperature;       /* by which outputs are divided before they are probabilities; 0: by none */
    struct interval interval; /* around predicted numbers; coverage 0: none */
    struct model model;
    float *parameters;     /* [model.float_count], in the model's layout */
    bool averaged;         /* they are the moving averages */
    struct engine *engine; /* NULL until trained_start */
};

/*
 * Opens a checkpoint and reads its parameters. wanted: a file, a train_dir, or "best" or "newest" in train_dir (NULL:
 * train_dir). Of a folder it is the best, or without an intact one the newest. The config is borrowed.
 */
bool trained_open(struct trained *trained, const struct config *config, const char *wanted, const char *train_dir,
                  enum checkpoint_weights which, struct error *error);

/* Creates an engine with the parameters: trained->engine. */
bool trained_start(struct trained *trained, struct error *error);

/*
 * Creates another engine, owned by the caller. like: the shape of its examples, if it differs from training's; else
 * NULL.
 */
bool trained_engine(const struct trained *trained, const struct examples *like, struct engine **engine,
                    struct error *error);

void trained_close(struct trained *trained);

/* Opens the file that `wanted` and train_dir name, as above. */
bool trained_find(struct checkpoint_file **file, const char *wanted, const char *train_dir, struct error *error);

/* --- Predictions for rows of a table (worker/export/predict.c) --- */

/*
 * Reads rows from memory and writes them as CSV: their own columns, followed by the predictions (predict.c lists
 * those), with the caller's engine. `took` (may be NULL) is called for each row as it is read, `saw` for each batch of
 * them. What it takes is charged to the account (NULL: nowhere); it ends when that is closed, or has refused something.
 * Errors call the file "body". Output written before a damaged place stays, and the error says so.
 */
struct predict_watch {
    void (*took)(void *context, const struct encoder *encoder, const struct row *row);
    void (*saw)(void *context, const struct examples *examples, const float *outputs);
    void *context;
    bool has_spread; /* of an ensemble: the spread is wanted, too */
};
bool predict_rows_bytes(const struct trained *trained, struct engine *engine, const void *bytes, size_t size,
                        struct budget_account *account, const struct predict_watch *watch, FILE *out,
                        struct error *error);

#endif
