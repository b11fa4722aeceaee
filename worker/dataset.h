/*
 * Images and labels. Images stay uint8, as in the files; engines scale them by 1/255.
 *
 * A set that fits into data.memory_mb is read before training begins and stays where it is. Loading takes the memory of
 * the set itself and less than 1 MiB more, compressed files included. Of a training set that does not fit, only what is
 * held out is read, and the rest streams from its files (worker/data/streaming/streaming.h). In both cases every record
 * has been looked at before training begins, but for pictures in folders that stay there.
 */
#ifndef WORKER_DATASET_H
#define WORKER_DATASET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/config.h"
#include "base/error.h"
#include "worker/data/examples.h"
#include "worker/data/files.h"

enum { DATASET_SAMPLE = 1000 };

struct schema;
struct streaming;

struct dataset {
    struct examples train;       /* without those held out; images and labels are NULL if it streams */
    struct streaming *streaming; /* where its batches come from then; else NULL */
    struct examples sample;      /* the first images of train, DATASET_SAMPLE at least if so many are there; borrowed */
    struct examples validation;  /* lies before train, in the same memory; count 0 if none are held out */
    struct schema *schema;       /* how rows of a table become inputs; NULL: pictures */
    char *class_names;           /* of folders of pictures, as JSON; NULL: labels are numbers */
    size_t bytes;                /* of memory, in all */
    char description[320];       /* "IDX files in DIR: 55,000 training, 5,000 validation images, 28x28, 10 classes" */
};

/*
 * Loads the training set that the config names, and holds out its first validation_size images (as TensorFlow's
 * read_data_sets does); CONFIG_AUTO: 5,000, and of fewer than 50,000 a tenth. DATA_AUTO: IDX files in data_dir if any
 * are there, else the synthetic digits of the seed; but a data_dir that was named by a flag must hold files. Checks
 * that image size, labels, validation_size and batch_size fit one another, and that the test set is there and has
 * images of the same size, without looking at them. Where the model follows from the data, it is not compared with it.
 *
 * dataset: zeros, but that a schema may be given for rows to be encoded by; it is taken over, after a failure too.
 *
 * test: NULL, or where rows go that are split off the training files for the test, since these are read anyway; it
 * stays empty if dataset_load_test is to read the test set. It is the caller's to free before the dataset.
 */
bool dataset_load(struct dataset *dataset, struct examples *test, const struct config *config, struct error *error);
void dataset_free(struct dataset *dataset); /* also fine on one that is all zeros */

/* How many of so many examples are held out. */
int dataset_held_out(const struct config *config, int count);

/*
 * A set without rows, whose preprocessing is known (as JSON): what its rows look like. Where the config gives layers,
 * they must fit.
 */
bool dataset_describe(struct dataset *dataset, const char *schema, const struct config *config, struct error *error);

/* Is the training set a table? False: what there is can't be found out. */
bool dataset_is_table(bool *is_table, const struct config *config, struct error *error);

/* Does the config leave the model's inputs and outputs to the data, or the preprocessing of rows? */
bool dataset_is_needed_first(const struct config *config);

/* Sets the layers that follow from the data, and the loss that suits it, if the config leaves them open. */
bool dataset_fit(struct config *config, const struct dataset *dataset, struct error *error);

/*
 * The test set of the same source; loaded only when it is looked at. Freed with examples_free. One that does not fit
 * into data.memory_mb is an error. schema: of a table, which must outlive the examples; else NULL.
 */
bool dataset_load_test(struct examples *test, const struct config *config, const struct schema *schema,
                       struct error *error);

/*
 * Does the source mean by a label what the file at `path`, a checkpoint, means? class_names: its own, as JSON
 * (worker/data/folders/class_names.h); NULL, as of a table: any labels do.
 */
bool dataset_check_classes(const char *path, const char *class_names, const struct config *config, struct error *error);

/* dataset_load_test of a file of rows. */
bool dataset_load_file(struct examples *test, const char *path, const struct config *config,
                       const struct schema *schema, struct error *error);

/* Where a part comes from. */
struct dataset_origin {
    enum data_source source;    /* never DATA_AUTO */
    char images[DATA_MAX_PATH]; /* the file; of TFRecord the pattern, of pictures their folder; "" if synthetic */
    char labels[DATA_MAX_PATH]; /* likewise */
};

/*
 * Reads the whole training set (DATASET_TRAIN, validation images included) or the test set (DATASET_TEST) as it is,
 * with no regard to the model. What does not fit into data.memory_mb is an error, and so are tables, which need a
 * schema (worker/data/table/table.h).
 */
bool dataset_read(struct examples *examples, struct dataset_origin *origin, enum dataset_part part,
                  const struct config *config, struct error *error);

/*
 * The same, but shows the examples some at a time, in the order of the files, and keeps few: a part of any size takes
 * little memory. shape: count, height, width and classes of the whole part, known before the first are shown.
 */
struct dataset_visitor {
    bool (*begin)(void *context, const struct examples *shape, struct error *error);
    void (*show)(void *context, const uint8_t *images, const int32_t *labels, int count);
    void *context;
};
bool dataset_visit(struct dataset_origin *origin, enum dataset_part part, const struct config *config,
                   const struct dataset_visitor *visitor, struct error *error);

#endif
