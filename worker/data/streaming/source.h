/*
 * The files behind a data set that streams. Three kinds implement this: TFRecord files (worker/data/tfrecord/source.c),
 * folders of pictures (worker/data/folders.c) and IDX files (worker/data/idx_source.c).
 *
 * A source does not change once it is made, and any thread may ask it for a reader; a reader is one thread's.
 */
#ifndef WORKER_DATA_STREAMING_SOURCE_H
#define WORKER_DATA_STREAMING_SOURCE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "worker/data/streaming/blocks.h"

struct example_source;

/* What a kind of reader begins with. */
struct example_reader {
    const struct example_source *source;
};

struct example_source_table {
    bool (*open)(const struct example_source *source, struct example_reader **reader, struct error *error);

    /*
     * Examples [first, first + count) of those of a block that count: images [count, pixels] uint8, labels [count], each
     * below the source's classes. Cheap where it goes on where it ended last. A file that is no longer what it was when
     * the blocks were made is an error.
     */
    bool (*read)(struct example_reader *reader, const struct stream_block *block, uint32_t first, uint32_t count,
                 uint8_t *images, int32_t *labels, struct error *error);
    void (*close)(struct example_reader *reader);
    void (*destroy)(struct example_source *source);
};

/* What a kind of source begins with. */
struct example_source {
    const struct example_source_table *table;
    int height, width;
    int32_t classes;
    int files;
    const bool *forward_only; /* [files]; NULL: none is such (blocks_order) */
};

#endif
