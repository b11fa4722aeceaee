/*
 * Images and labels. Images stay uint8, as in the files; engines scale them by 1/255.
 *
 * A set that fits into data.memory_mb is read before training begins and stays in memory. Loading takes the memory of
 * the set itself and less than 1 MiB more, compressed files included. Of a training set that does not fit, only the
 * held-out part is read, and the rest streams from its files (worker/data/streaming.h). In both cases every
 * record is checked before training begins, except pictures that stream from folders without max_bad_records.
 */
#ifndef WORKER_DATASET_H
#define WORKER_DATASET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/config.h"
#include "base/error.h"
#include "worker/data/examples.h"
#include "worker/data/fingerprint.h"
#include "worker/data/names.h"

enum { DATASET_SAMPLE = 1000 };

struct schema;
struct streaming;

struct dataset {
    struct examples train;       /* without those held out; images and labels are NULL if it streams */
    struct streaming *streaming; /* the source of batches if it streams; else NULL */
    struct examples sample; /* the first images of train, at least DATASET_SAMPLE if there are that many; borrowed */
    struct examples validation;     /* lies before train, in the same memory; count 0 if none are held out */
    struct schema *schema;          /* how rows of a table become inputs; NULL: pictures */
    char *class_names;              /* of folders of pictures, as JSON; NULL: labels are numbers */
    struct image_shape shape;       /* of pictures; height 0: rows, or not known */
    bool shares_test;               /* of pictures: a data.test_share of the training files is the test */
    bool layers_follow;             /* model.layers is not set, and takes its inputs and classes from the pictures */
    struct fingerprint fingerprint; /* of what was read */
    size_t bytes;                   /* of memory, in all */
    char description[320]; /* "IDX files in DIR: 55,000 training, 5,000 validation images, 28x28, 10 classes" */
};

/*
 * Loads the training set that the config names, and holds out its first validation_size images (as TensorFlow's
 * read_data_sets does): dataset_held_out. Checks that image size, labels,
 * validation_size and batch_size fit one another, and that the test set is there and has images of the same size,
 * without looking at them. A model derived from the data is not checked against it.
 *
 * dataset: zeros, except that it may have a schema to encode rows by; ownership of that passes to the call, even if it
 * fails.
 *
 * test: NULL, or receives the test rows that are split off the training files, since these are read anyway; it stays
 * empty if dataset_load_test is to read the test set. The caller frees it before the dataset.
 */
bool dataset_load(struct dataset *dataset, struct examples *test, const struct config *config, struct error *error);
void dataset_free(struct dataset *dataset); /* also fine on one that is all zeros */

/* How many of `count` examples are held out: by CONFIG_AUTO a tenth, of a table 15%, at most 5,000. */
int dataset_held_out(const struct config *config, int count);

/*
 * Describes the rows of a set that has none, from its preprocessing (as JSON). If the config gives layers, they must
 * fit.
 */
bool dataset_describe(struct dataset *dataset, const char *schema, const struct config *config, struct error *error);

/* The batch to train on `count` examples with: train.batch_size, or what "auto" means for them. */
int dataset_batch(const struct config *config, int count);

/* True if data_dir is a folder that can be read. */
bool dataset_check_folder(const struct config *config, struct error *error);

/* *is_table: whether the training set is a table. False: this cannot be determined. */
bool dataset_is_table(bool *is_table, const struct config *config, struct error *error);

/* True if the model's inputs and outputs, or the preprocessing of rows, follow from the data. */
bool dataset_is_needed_first(const struct config *config);

/* Of a table, if the config leaves it open: the metric that decides which model is best; a target changes it. */
void dataset_choose_metric(struct config *config, const struct dataset *dataset);

/* Sets the layers that follow from the data, a suitable loss and metric, if the config leaves them open. */
bool dataset_fit(struct config *config, const struct dataset *dataset, struct error *error);

/* *wanted: false if there are no files to test with, and data.test_share holds nothing out of the others. */
bool dataset_wants_test(bool *wanted, const struct config *config, struct error *error);

/*
 * Loads the test set of the same source; freed with examples_free. One that does not fit into data.memory_mb is an
 * error. schema: of a table, which must outlive the examples; else NULL.
 */
bool dataset_load_test(struct examples *test, const struct config *config, const struct schema *schema,
                       struct error *error);

/*
 * Checks that labels mean the same in the source as in the checkpoint at `path`. class_names: the checkpoint's, as JSON
 * (worker/data/folders.h); NULL, as for a table: any labels fit.
 */
bool dataset_check_classes(const char *path, const char *class_names, const struct config *config, struct error *error);

/* The same from one file of rows. */
bool dataset_load_file(struct examples *test, const char *path, const struct config *config,
                       const struct schema *schema, struct error *error);

/* The files of a part. */
struct dataset_origin {
    enum data_source source;    /* never DATA_AUTO */
    char images[DATA_MAX_PATH]; /* the file; for TFRecord the pattern, for pictures their folder; "" if synthetic */
    char labels[DATA_MAX_PATH]; /* likewise */
};

/*
 * Reads the whole training set (DATASET_TRAIN, validation images included) or the test set (DATASET_TEST) as it is,
 * independently of the model. A set that does not fit into data.memory_mb is an error; so is a table, which needs a
 * schema (worker/data/table/table.h).
 */
bool dataset_read(struct examples *examples, struct dataset_origin *origin, enum dataset_part part,
                  const struct config *config, struct error *error);

/*
 * The same, but passes the examples on in portions, in the order of the files, so that a part of any size takes little
 * memory. shape: count, height, width and classes of the whole part; `begin` gets it before the first `show`.
 */
struct dataset_visitor {
    bool (*begin)(void *context, const struct examples *shape, struct error *error);
    void (*show)(void *context, const uint8_t *images, const int32_t *labels, int count);
    void *context;
};
bool dataset_visit(struct dataset_origin *origin, enum dataset_part part, const struct config *config,
                   const struct dataset_visitor *visitor, struct error *error);

#endif
