/* What reading a part of a data set may keep in memory, and what is noted of a part that is more than that. */
#ifndef WORKER_DATA_STREAMING_OVERFLOW_H
#define WORKER_DATA_STREAMING_OVERFLOW_H

#include <stdint.h>

#include "worker/data/streaming/blocks.h"
#include "worker/data/streaming/source.h"

/*
 * Where `source` is not NULL after the read, the part is larger than `limit`: only its first `keep` examples (or fewer)
 * were read into memory, and the blocks are those behind the first `held_out`. Source and blocks are the reader's
 * creator's to free.
 */
struct overflow {
    uint64_t limit; /* bytes of images and labels */
    int held_out;   /* examples, from the first on, that never stream */
    int keep;       /* at least held_out */
    struct example_source *source;
    struct blocks blocks;
};

#endif
