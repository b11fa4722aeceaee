/*
 * Blocks of TFRecord files by their offset. A plain file can seek, so one open file serves all; a packed one cannot, so
 * each stays open where it was left.
 */
#include "worker/data/tfrecord/source.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "worker/data/files.h"
#include "worker/data/tfrecord/example.h"
#include "worker/data/tfrecord/reader.h"

struct tfrecord_source {
    struct example_source source;
    struct names names;
    char *folder;
    char *image_feature, *label_feature;
    enum label_dtype label_dtype;
    bool *packed; /* [names.count] */
};

/* A plain file can seek, so one open reader is enough; each packed file keeps its own, at its position. */
struct source_reader {
    struct example_reader reader;
    struct tfrecord_reader **files; /* [names.count]; NULL: not open */
    int plain;                      /* the plain file that is open; -1: none */
    struct example example;
    const struct stream_block *block; /* where the last read ended, and the next example in it */
    uint32_t next;
};

static const struct tfrecord_source *of(const struct source_reader *reader)
{
    return (const struct tfrecord_source *)reader->reader.source;
}

static bool open_file(struct source_reader *reader, int file, struct error *error)
{
    const struct tfrecord_source *source = of(reader);
    char path[DATA_MAX_PATH];
    tfrecord_close(reader->files[file]);
    reader->files[file] = NULL;
    if (!source->packed[file]) {
        if (reader->plain >= 0) {
            tfrecord_close(reader->files[reader->plain]);
            reader->files[reader->plain] = NULL;
        }
        reader->plain = -1;
    }
    if (!file_join(path, sizeof path, source->folder, source->names.items[file], error) ||
        !tfrecord_open(&reader->files[file], path, error)) {
        return false;
    }
    reader->plain = source->packed[file] ? reader->plain : file;
    return true;
}

static bool say_changed(const struct source_reader *reader, const struct stream_block *block, struct error *error)
{
    const struct tfrecord_source *source = of(reader);
    return error_set(error,
                     "%s/%s: has changed since training began: %u records from byte %llu on are gone; restart training",
                     source->folder, source->names.items[block->file], block->skip + block->count,
                     (unsigned long long)block->offset);
}

/* Moves the file's reader to the first record of a block. */
static bool go_to(struct source_reader *reader, const struct stream_block *block, struct error *error)
{
    struct tfrecord_reader **file = &reader->files[block->file];
    bool behind = *file && tfrecord_is_packed(*file) && tfrecord_position(*file) > block->offset;
    if ((!*file || behind) && !open_file(reader, block->file, error)) {
        return false;
    }
    if (tfrecord_is_packed(*file) != of(reader)->packed[block->file]) {
        return say_changed(reader, block, error);
    }
    return tfrecord_go_to(*file, block->offset, error);
}

/* Reads the next intact record's example. */
static bool next_example(struct source_reader *reader, const struct stream_block *block, struct error *error)
{
    const struct tfrecord_source *source = of(reader);
    const struct example_names names = {source->image_feature, source->label_feature, source->label_dtype};
    const struct example *example = &reader->example;
    const uint8_t *record;
    size_t size;
    for (;;) {
        switch (tfrecord_next(reader->files[block->file], &record, &size, error)) {
        case TFRECORD_RECORD:
            if (example_decode(&reader->example, record, size, &names, error) &&
                example->image.height == source->source.like.height &&
                example->image.width == source->source.like.width) {
                return example->label < source->source.like.classes || say_changed(reader, block, error);
            }
            break;
        case TFRECORD_DAMAGED:
            break;
        case TFRECORD_END:
            return say_changed(reader, block, error);
        case TFRECORD_FAILED:
            return false;
        }
    }
}

static bool source_read(struct example_reader *base, const struct stream_block *block, uint32_t first,
                        const struct examples *into, struct error *error)
{
    struct source_reader *reader = (struct source_reader *)base;
    const size_t pixels = (size_t)into->height * (size_t)into->width;
    const uint32_t count = (uint32_t)into->count;
    first += block->skip;
    if (reader->block != block || reader->next != first) {
        reader->block = NULL;
        if (!go_to(reader, block, error)) {
            return false;
        }
        for (uint32_t i = 0; i < first; i++) {
            if (!next_example(reader, block, error)) {
                return false;
            }
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        if (!next_example(reader, block, error)) {
            return false;
        }
        memcpy(into->images + i * pixels, reader->example.image.pixels, pixels);
        into->labels[i] = reader->example.label;
    }
    reader->block = block;
    reader->next = first + count;
    return true;
}

static void source_close(struct example_reader *base)
{
    struct source_reader *reader = (struct source_reader *)base;
    for (int i = 0; reader->files && i < base->source->files; i++) {
        tfrecord_close(reader->files[i]);
    }
    free(reader->files);
    example_free(&reader->example);
    free(reader);
}

static bool source_open(const struct example_source *source, struct example_reader **reader, struct error *error)
{
    struct source_reader *opened = calloc(1, sizeof *opened);
    if (!opened) {
        return error_set(error, "out of memory while reading TFRecord files");
    }
    opened->reader.source = source;
    opened->plain = -1;
    opened->files = calloc((size_t)source->files, sizeof(struct tfrecord_reader *));
    if (!opened->files) {
        source_close(&opened->reader);
        return error_set(error, "out of memory while reading %d TFRecord files", source->files);
    }
    *reader = &opened->reader;
    return true;
}

static void source_destroy(struct example_source *base)
{
    struct tfrecord_source *source = (struct tfrecord_source *)base;
    names_free(&source->names);
    free(source->folder);
    free(source->image_feature);
    free(source->label_feature);
    free(source->packed);
    free(source);
}

static const struct example_source_table table = {
    .open = source_open, .read = source_read, .close = source_close, .destroy = source_destroy};

bool tfrecord_source_create(struct example_source **out, const struct config_data *config, struct names *names,
                            const bool *packed, int height, int width, int32_t classes, struct error *error)
{
    struct tfrecord_source *source = calloc(1, sizeof *source);
    if (!source) {
        return error_set(error, "out of memory while reading TFRecord files");
    }
    source->source = (struct example_source){
        .table = &table, .like = {.height = height, .width = width, .classes = classes}, .files = names->count};
    source->folder = strdup(config->data_dir);
    source->image_feature = strdup(config->image_feature);
    source->label_feature = strdup(config->label_feature);
    source->label_dtype = config->label_dtype;
    source->packed = malloc((size_t)names->count * sizeof *packed);
    if (!source->folder || !source->image_feature || !source->label_feature || !source->packed) {
        source_destroy(&source->source);
        return error_set(error, "out of memory while reading %d TFRecord files", names->count);
    }
    bool any = false;
    for (int i = 0; i < names->count; i++) {
        source->packed[i] = packed[i];
        any = any || packed[i];
    }
    source->source.forward_only = any ? source->packed : NULL;
    source->names = *names;
    *names = (struct names){.items = NULL};
    *out = &source->source;
    return true;
}
