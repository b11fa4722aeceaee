/* Blocks of an IDX file by their offset. A gzip file cannot seek: it is read forward, and started over to go back. */
#include "worker/data/idx_source.h"

#include <stdlib.h>
#include <string.h>

struct idx_source {
    struct example_source source;
    char *path;
    uint64_t header_bytes;
    bool packed;
    int32_t *labels; /* [all images]: small enough to keep */
};

struct idx_reader {
    struct example_reader reader;
    struct stream *stream;
    uint64_t position; /* of the stream, in the unpacked content */
};

static bool source_open(const struct example_source *source, struct example_reader **reader, struct error *error)
{
    struct idx_reader *opened = calloc(1, sizeof *opened);
    if (!opened) {
        return error_set(error, "out of memory while reading images");
    }
    opened->reader.source = source;
    if (!stream_open_file(&opened->stream, ((const struct idx_source *)source)->path, error)) {
        free(opened);
        return false;
    }
    *reader = &opened->reader;
    return true;
}

/* Moves the stream to a position of the content; a packed one reads up to it. images: scratch, overwritten. */
static bool go_to(struct idx_reader *reader, uint64_t position, uint8_t *images, size_t size, struct error *error)
{
    const struct idx_source *source = (const struct idx_source *)reader->reader.source;
    if (!source->packed) {
        reader->position = position;
        return stream_seek(reader->stream, position, error);
    }
    if (position < reader->position) {
        stream_close(reader->stream);
        reader->stream = NULL;
        reader->position = 0;
        if (!stream_open_file(&reader->stream, source->path, error)) {
            return false;
        }
    }
    while (reader->position < position) {
        uint64_t left = position - reader->position;
        size_t some = left < size ? (size_t)left : size, got;
        if (!stream_read(reader->stream, images, some, &got, error)) {
            return false;
        }
        if (got == 0) {
            return error_set(error, "%s: shorter than when training began; restart training", source->path);
        }
        reader->position += got;
    }
    return true;
}

static bool source_read(struct example_reader *base, const struct stream_block *block, uint32_t first,
                        const struct examples *into, struct error *error)
{
    struct idx_reader *reader = (struct idx_reader *)base;
    const struct idx_source *source = (const struct idx_source *)base->source;
    const size_t pixels = (size_t)into->height * (size_t)into->width, count = (size_t)into->count;
    size_t got;
    uint64_t from = block->offset + block->skip + first;
    if (!go_to(reader, source->header_bytes + from * pixels, into->images, count * pixels, error) ||
        !stream_read(reader->stream, into->images, count * pixels, &got, error)) {
        return false;
    }
    reader->position += got;
    if (got < count * pixels) {
        return error_set(error, "%s: shorter than when training began; restart training", source->path);
    }
    memcpy(into->labels, source->labels + from, count * sizeof *into->labels);
    return true;
}

static void source_close(struct example_reader *base)
{
    stream_close(((struct idx_reader *)base)->stream);
    free(base);
}

static void source_destroy(struct example_source *base)
{
    struct idx_source *source = (struct idx_source *)base;
    free(source->path);
    free(source->labels);
    free(source);
}

static const struct example_source_table table = {
    .open = source_open, .read = source_read, .close = source_close, .destroy = source_destroy};

static bool note_blocks(struct overflow *overflow, int count, size_t pixels)
{
    int in_block = (int)(BLOCK_BYTES / pixels) + 1;
    bool done = true;
    overflow_settle(overflow, count);
    for (int i = overflow->held_out; i < count && done; i += in_block) {
        done = blocks_add(&overflow->blocks, 0, (uint64_t)i, (uint32_t)(count - i < in_block ? count - i : in_block));
    }
    return done;
}

/* The first images, and their labels. */
static bool read_kept(struct example_source *source, struct examples *examples, int count, struct error *error)
{
    struct stream_block all = {.count = (uint32_t)count};
    struct example_reader *reader;
    if (!examples_create(examples, &source->like, count)) {
        return error_set(error, "out of memory for %d images", count);
    }
    if (!source->table->open(source, &reader, error)) {
        return false;
    }
    bool done = source->table->read(reader, &all, 0, examples, error);
    source->table->close(reader);
    return done;
}

bool idx_source_create(struct overflow *overflow, struct examples *examples, const char *path, bool packed,
                       const struct idx_header *header, struct examples *shape, struct error *error)
{
    static const bool forward = true;
    struct idx_source *source = calloc(1, sizeof *source);
    if (!source || !(source->path = strdup(path)) ||
        !note_blocks(overflow, shape->count, (size_t)shape->height * (size_t)shape->width)) {
        free(source ? source->path : NULL);
        free(source);
        return error_set(error, "%s: out of memory while reading it", path);
    }
    source->source = (struct example_source){.table = &table,
                                             .like = {.height = shape->height,
                                                      .width = shape->width,
                                                      .channels = shape->channels,
                                                      .classes = shape->classes},
                                             .files = 1};
    source->source.forward_only = packed ? &forward : NULL;
    source->packed = packed;
    source->header_bytes = 4 + 4 * (uint64_t)header->dimensions;
    source->labels = shape->labels;
    shape->labels = NULL;
    overflow->source = &source->source;
    return read_kept(&source->source, examples, overflow->keep < shape->count ? overflow->keep : shape->count, error);
}
