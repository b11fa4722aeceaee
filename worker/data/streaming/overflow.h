/* The memory limit for reading a part of a data set, and how to stream a part that exceeds it. */
#ifndef WORKER_DATA_STREAMING_OVERFLOW_H
#define WORKER_DATA_STREAMING_OVERFLOW_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/data/streaming/blocks.h"
#include "worker/data/streaming/source.h"

/*
 * If `source` is set after the read, the part is larger than `limit`: only its first `keep` examples (or fewer) are in
 * memory, and the blocks are those after the first `held_out`. Source and blocks belong to the caller that started the
 * read.
 */
struct overflow {
    uint64_t limit; /* bytes of images and labels */
    int held_out;   /* leading examples that never stream */
    int percent; /* held_out is an upper bound until overflow_settle, which limits it to this share; 0: it is exact */
    int keep;    /* at least held_out */
    struct example_source *source;
    struct blocks blocks;
};

/*
 * Fixes held_out, and keep with it, once the number of examples is known. A reader calls it before it records the
 * blocks of a part larger than the limit. A second call changes nothing.
 */
void overflow_settle(struct overflow *overflow, int count);

#endif
