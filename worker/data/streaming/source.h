/*
 * The files behind a streaming data set. Implementations: TFRecord files (worker/data/tfrecord/files.c), folders of
 * pictures (worker/data/folders.c), IDX files (worker/data/idx_source.c) and rows of tables
 * (worker/data/table/spool.c).
 *
 * A source is immutable, and any thread may open a reader; a reader is used by one thread.
 */
#ifndef WORKER_DATA_STREAMING_SOURCE_H
#define WORKER_DATA_STREAMING_SOURCE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "worker/data/examples.h"
#include "worker/data/streaming/blocks.h"

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

#endif
