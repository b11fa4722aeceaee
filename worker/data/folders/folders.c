/* Decodes and fits the images of a part, into memory or, if they are too many, block by block during training. */
#include "worker/data/folders/folders.h"

#include <stdlib.h>

#include "base/file.h"
#include "worker/data/builder.h"
#include "worker/data/folders/class_names.h"
#include "worker/data/folders/collection.h"
#include "worker/data/image/fit.h"
#include "worker/data/image/image.h"
#include "worker/data/names.h"

bool folders_find(char path[DATA_MAX_PATH], const char *data_dir, enum dataset_part part, struct error *error)
{
    static const char *const names[2][2] = {{"train", "training"}, {"test", "testing"}};
    for (int i = 0; i < 2; i++) {
        struct names classes = {0};
        bool done = file_join(path, DATA_MAX_PATH, data_dir, names[part == DATASET_TEST][i], error) &&
                    collection_list_classes(&classes, path, error);
        bool found = classes.count > 0;
        names_free(&classes);
        if (!done || found) {
            return done;
        }
    }
    path[0] = '\0';
    return true;
}

/* The size to which all are fitted: the first image's if the model has as many inputs, otherwise a square. */
static bool choose_size(struct image *size, const struct image *first, int inputs, struct error *error)
{
    int side = image_side(inputs);
    bool as_it_is = (int64_t)first->width * first->height == inputs;
    *size = (struct image){.width = as_it_is ? first->width : side, .height = as_it_is ? first->height : side};
    return as_it_is || side > 0 ||
           error_set(error, "is an image of %dx%d, but the model's %d inputs are not a square to scale it to",
                     first->width, first->height, inputs);
}

/* Reads one picture and fits it to the size in `fitted`, which the first one sets and allocates. */
static bool read_picture(const struct collection *collection, int picture, struct image *fitted, int inputs,
                         struct error *error)
{
    char path[DATA_MAX_PATH];
    uint8_t *bytes;
    size_t size;
    struct image image;
    if (!collection_path(collection, picture, path, error) || !file_read(path, IMAGE_MAX_FILE, &bytes, &size, error)) {
        return false;
    }
    bool done = image_decode(&image, bytes, size, error);
    free(bytes);
    if (done && !fitted->pixels) {
        done = choose_size(fitted, &image, inputs, error);
        fitted->pixels = done ? malloc((size_t)fitted->width * (size_t)fitted->height) : NULL;
        done = done && (fitted->pixels || error_set(error, "out of memory for an image"));
    }
    done = done && image_fit(&image, fitted->width, fitted->height, fitted->pixels, error);
    image_free(&image);
    return done || error_wrap(error, "%s", path);
}

static bool read_pictures(const struct collection *collection, int count, struct builder *builder, int inputs,
                          struct error *error)
{
    struct image fitted = {0};
    bool done = true;
    for (int i = 0; i < count && done; i++) {
        done = read_picture(collection, i, &fitted, inputs, error) &&
               builder_add(builder, &fitted, collection_label(collection, i), error);
    }
    image_free(&fitted);
    return done;
}

/* --- Streaming: a block's offset is the number of its first picture --- */

struct folders_source {
    struct example_source source;
    struct collection collection;
};

static bool source_open(const struct example_source *source, struct example_reader **reader, struct error *error)
{
    *reader = malloc(sizeof **reader);
    if (!*reader) {
        return error_set(error, "out of memory while reading pictures");
    }
    (*reader)->source = source;
    return true;
}

static bool source_read(struct example_reader *reader, const struct stream_block *block, uint32_t first,
                        const struct examples *into, struct error *error)
{
    const struct folders_source *source = (const struct folders_source *)reader->source;
    const size_t pixels = (size_t)into->height * (size_t)into->width;
    for (int i = 0; i < into->count; i++) {
        int picture = (int)(block->offset + block->skip + first) + i;
        struct image fitted = {
            .width = into->width, .height = into->height, .pixels = into->images + (size_t)i * pixels};
        if (!read_picture(&source->collection, picture, &fitted, (int)pixels, error)) {
            return false;
        }
        into->labels[i] = collection_label(&source->collection, picture);
    }
    return true;
}

static void source_close(struct example_reader *reader)
{
    free(reader);
}

static void source_destroy(struct example_source *base)
{
    struct folders_source *source = (struct folders_source *)base;
    collection_free(&source->collection);
    free(source);
}

static const struct example_source_table source_table = {
    .open = source_open, .read = source_read, .close = source_close, .destroy = source_destroy};

/* Takes ownership of the collection. read: the examples in memory, and the size of the images. */
static bool make_source(struct overflow *overflow, struct collection *collection, const struct examples *read,
                        struct error *error)
{
    struct folders_source *source = calloc(1, sizeof *source);
    int in_block = BLOCK_BYTES / (read->height * read->width) + 1;
    bool done = source;
    for (int i = overflow->held_out; i < collection->count && done; i += in_block) {
        int left = collection->count - i;
        done = blocks_add(&overflow->blocks, 0, (uint64_t)i, (uint32_t)(left < in_block ? left : in_block));
    }
    if (!done) {
        free(source);
        return error_set(error, "%s: out of memory while listing its pictures", collection->path);
    }
    source->source = (struct example_source){
        .table = &source_table,
        .like = {.height = read->height, .width = read->width, .classes = collection_classes(collection)},
        .files = 1};
    source->collection = *collection;
    *collection = (struct collection){.count = 0};
    overflow->source = &source->source;
    return true;
}

bool folders_class_names(char **text, const char *training, struct error *error)
{
    struct names classes = {0};
    *text = NULL;
    bool done = collection_list_classes(&classes, training, error);
    if (done && !collection_are_numbers(&classes)) {
        *text = class_names_text(&classes);
        done = *text || error_set(error, "%s: out of memory for the names of its classes", training);
    }
    names_free(&classes);
    return done;
}

bool folders_read(struct examples *examples, const char *path, const char *training, int inputs,
                  struct overflow *overflow, struct error *error)
{
    struct collection collection;
    struct builder builder = {.capacity = 0};
    bool done = collection_list(&collection, path, training, error);
    bool too_large = (uint64_t)collection.count * ((uint64_t)inputs + sizeof *examples->labels) > overflow->limit;
    overflow_settle(overflow, collection.count);
    int count = too_large && overflow->keep < collection.count ? overflow->keep : collection.count;
    done = done && read_pictures(&collection, count, &builder, inputs, error) &&
           (builder_finish(&builder, examples, error) || error_wrap(error, "%s", path)) &&
           (!too_large || make_source(overflow, &collection, examples, error));
    collection_free(&collection);
    builder_free(&builder);
    return done;
}
