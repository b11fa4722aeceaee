/* IDX files that stay on the disk: worker/data/streaming/source.h for them. A block's offset is its first image's number. */
#ifndef WORKER_DATA_IDX_SOURCE_H
#define WORKER_DATA_IDX_SOURCE_H

#include <stdbool.h>

#include "base/error.h"
#include "worker/data/idx.h"
#include "worker/data/streaming/overflow.h"
#include "worker/data/examples.h"

/*
 * path: of a file of images with this header, packed (gzip) or not. shape: its count, height, width and classes, and all its labels, which
 * are taken over. Sets the overflow's source, and its blocks of all images but those held out; the first images, as many
 * as are to be kept, come with their labels into `examples`.
 */
bool idx_source_create(struct overflow *overflow, struct examples *examples, const char *path, bool packed,
                       const struct idx_header *header, struct examples *shape, struct error *error);

#endif
