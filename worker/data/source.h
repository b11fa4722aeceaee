/* Files with examples: where they come from, the blocks they are read in, and how much of them stays in memory. */
#ifndef WORKER_DATA_SOURCE_H
#define WORKER_DATA_SOURCE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "worker/data/examples.h"

/* --- Blocks --- */

/*
 * A data set cut into blocks: runs of examples in a file, about BLOCK_BYTES long. Blocks are the unit of reading when a
 * set streams: large enough to read efficiently, small enough that a window holds many.
 *
 * The list takes a few bytes per block, not per example. It is built once; then any thread may read it.
 */

enum { BLOCK_BYTES = 1 << 19 };

struct stream_block {
    uint64_t offset; /* position of its first example, in the source's own unit */
    int32_t file;    /* the source's file number */
    uint32_t skip;   /* examples at its beginning to skip: another worker's share */
    uint32_t count;  /* examples after them */
};

/* A zeroed list is empty; blocks_free releases it. */
struct blocks {
    struct stream_block *items;
    int count, capacity;
    int64_t examples; /* in all */
};

/* Appends a block; false if out of memory. */
bool blocks_add(struct blocks *blocks, int file, uint64_t offset, uint32_t count);

/*
 * Adds one more example of a file to its current block *open (-1: none yet); starts a new block once that one is large
 * enough by its offsets, which are bytes. False if out of memory.
 */
bool blocks_extend(struct blocks *blocks, int *open, int file, uint64_t offset);

/* Keeps only examples [first, first + count) of the current list. */
void blocks_cut(struct blocks *blocks, int64_t first, int64_t count);

/*
 * The order in which a task reads the blocks in an epoch, drawn by (seed, task, epoch), into order[count]. Blocks of a
 * file that cannot seek (forward_only[file]; NULL: all can) are sorted among the positions drawn for them.
 */
bool blocks_order(const struct blocks *blocks, const bool *forward_only, int files, uint64_t seed, uint32_t task,
                  int64_t epoch, int32_t *order);

void blocks_free(struct blocks *blocks);

/* --- Sources --- */

/*
 * The files behind a streaming data set. Implementations: TFRecord files (worker/data/tfrecord/files.c), folders of
 * pictures (worker/data/folders.c), IDX files (worker/data/idx.c) and rows of tables
 * (worker/data/table/spool.c).
 *
 * A source is immutable, and any thread may open a reader; a reader is used by one thread.
 */

struct example_source;

/* First member of every reader. */
struct example_reader {
    const struct example_source *source;
};

struct example_source_table {
    bool (*open)(const struct example_source *source, struct example_reader **reader, struct error *error);

    /*
     * Reads examples [first, first + into->count) of a block, not counting skipped ones. `into` has the shape of the
     * source's examples; each label is below its classes. Cheap if it continues where the last call ended. A file that
     * has changed since the blocks were made is an error.
     */
    bool (*read)(struct example_reader *reader, const struct stream_block *block, uint32_t first,
                 const struct examples *into, struct error *error);
    void (*close)(struct example_reader *reader);
    void (*destroy)(struct example_source *source);
};

/* First member of every source. */
struct example_source {
    const struct example_source_table *table;
    struct examples like; /* the shape of its examples; sizes only */
    int files;
    const bool *forward_only; /* [files]; NULL: all can seek (blocks_order) */
};

/* --- What does not fit into memory --- */

/* The memory limit for reading a part of a data set, and how to stream a part that exceeds it. */

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
