/* Writers for each kind of file that data_dir may hold. Missing folders are created; nothing is overwritten. */
#ifndef WORKER_DATA_CONVERT_H
#define WORKER_DATA_CONVERT_H

#include <stdbool.h>

#include "base/error.h"
#include "worker/data/examples.h"
#include "worker/data/stream.h"
#include "worker/data/tfrecord/example.h"

struct write_options {
    const char *folder;
    enum dataset_part part;                               /* DATASET_TRAIN or DATASET_TEST */
    enum stream_packing packing;                          /* of IDX (no zlib) and TFRecord */
    int shards;                                           /* TFRecord files */
    struct example_names names;                           /* TFRecord */
    void (*progress)(void *context, int done, int count); /* images so far; may be NULL */
    void *context;
};

/* MNIST's two files; labels must fit into a byte. */
bool write_idx(const struct examples *examples, const struct write_options *options, struct error *error);

#endif
