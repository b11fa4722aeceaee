/* Streaming from IDX files (worker/data/source.h). A block's offset is the number of its first image. */
#ifndef WORKER_DATA_IDX_SOURCE_H
#define WORKER_DATA_IDX_SOURCE_H

#include <stdbool.h>

#include "base/error.h"
#include "worker/data/examples.h"
#include "worker/data/idx.h"
#include "worker/data/source.h"

/*
 * path: a file of images with this header, packed (gzip) or not. shape: its count, height, width and classes, and all
 * labels, which the source takes over. Sets the overflow's source, and its blocks of all images except those held out;
 * the first overflow->keep images and their labels go into `examples`.
 */
bool idx_source_create(struct overflow *overflow, struct examples *examples, const char *path, bool packed,
                       const struct idx_header *header, struct examples *shape, struct error *error);

#endif
