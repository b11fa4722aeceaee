/* Streaming from TFRecord files (worker/data/streaming/source.h). */
#ifndef WORKER_DATA_TFRECORD_SOURCE_H
#define WORKER_DATA_TFRECORD_SOURCE_H

#include <stdbool.h>

#include "base/config.h"
#include "base/error.h"
#include "worker/data/names.h"
#include "worker/data/streaming/source.h"

/*
 * names: the files in config->data_dir; ownership passes to the source, unless it fails. packed: [names->count]. Block
 * offsets are those of records in the unpacked content. Damaged records are skipped: they were counted when the blocks
 * were made.
 */
bool tfrecord_source_create(struct example_source **source, const struct config_data *config, struct names *names,
                            const bool *packed, int height, int width, int32_t classes, struct error *error);

#endif
