/* What reading a part of a data set may keep in memory, and what is noted of a part that is more than that. */
#ifndef WORKER_DATA_STREAMING_OVERFLOW_H
#define WORKER_DATA_STREAMING_OVERFLOW_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/data/streaming/blocks.h"
#include "worker/data/streaming/source.h"

/*
 * Where `source` is not NULL after the read, the part is larger than `limit`: only its first `keep` examples (or fewer)
 * were read into memory, and the blocks are those behind the first `held_out`. Source and blocks are the reader's
 * creator's to free.
 */
struct overflow {
    uint64_t limit;  /* bytes of images and labels */
    int held_out;    /* examples, from the first on, that never stream */
    bool is_at_most; /* held_out is a bound until overflow_settle: no more than a tenth is held out */
    int keep;        /* at least held_out */
    struct example_source *source;
    struct blocks blocks;
};

/*
 * How many examples there are is known: held_out, and keep with it, become what they stay. A reader calls it before it
 * notes the blocks of a part that is larger than the limit. A second call changes nothing.
 */
void overflow_settle(struct overflow *overflow, int count);

#endif
