/* A part of a data set in TFRecord files, read into memory or streamed from disk. */
#include "worker/data/tfrecord/reader.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "worker/data/idx.h"
#include "worker/data/names.h"
#include "worker/data/source.h"
#include "worker/data/tfrecord/example.h"

/* --- Streaming --- */

/*
 * Streaming from TFRecord files (worker/data/source.h).
 *
 * Blocks of TFRecord files by their offset. A plain file can seek, so one open file serves all; a packed one cannot, so
 * each stays open where it was left.
 */

struct tfrecord_source {
    struct example_source source;
    struct names names;
    char *folder;
    char *image_feature, *label_feature;
    enum label_dtype label_dtype;
    struct image_shape shape; /* of example_names */
    bool *packed;             /* [names.count] */
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

static bool set_changed(const struct source_reader *reader, const struct stream_block *block, struct error *error)
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
        return set_changed(reader, block, error);
    }
    return tfrecord_go_to(*file, block->offset, error);
}

/* Reads the next intact record's example. */
static bool next_example(struct source_reader *reader, const struct stream_block *block, struct error *error)
{
    const struct tfrecord_source *source = of(reader);
    const struct example_names names = {source->image_feature, source->label_feature, source->label_dtype,
                                        source->shape};
    const struct example *example = &reader->example;
    const uint8_t *record;
    size_t size;
    for (;;) {
        switch (tfrecord_next(reader->files[block->file], &record, &size, error)) {
        case TFRECORD_RECORD:
            if (example_decode(&reader->example, record, size, &names, error) &&
                example->image.height == source->source.like.height &&
                example->image.width * example->image.channels == source->source.like.width) {
                return example->label < source->source.like.classes || set_changed(reader, block, error);
            }
            break;
        case TFRECORD_DAMAGED:
            break;
        case TFRECORD_END:
            return set_changed(reader, block, error);
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
    struct source_reader *opened = must_zero(1, sizeof *opened, "a reader of TFRecord files");
    (void)error;
    opened->reader.source = source;
    opened->plain = -1;
    opened->files = must_zero((size_t)source->files, sizeof(struct tfrecord_reader *), "a reader of TFRecord files");
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

/*
 * names: the files in config->data_dir; ownership passes to the source. packed: [names->count]. Block
 * offsets are those of records in the unpacked content. Damaged records are skipped: they were counted when the blocks
 * were made.
 */
static struct example_source *tfrecord_source_create(const struct config_data *config, struct names *names,
                                                     const bool *packed, const struct examples *like,
                                                     const struct image_shape *shape)
{
    struct tfrecord_source *source = must_zero(1, sizeof *source, "a source of TFRecord files");
    source->source = (struct example_source){
        .table = &table,
        .like = {.height = like->height, .width = like->width, .channels = like->channels, .classes = like->classes},
        .files = names->count};
    source->shape = *shape;
    source->folder = must_copy(config->data_dir);
    source->image_feature = must_copy(config->image_feature);
    source->label_feature = must_copy(config->label_feature);
    source->label_dtype = config->label_dtype;
    source->packed = must_zero((size_t)names->count, sizeof *packed, "a source of TFRecord files");
    for (int i = 0; i < names->count; i++) {
        source->packed[i] = packed[i];
        source->source.forward_only = packed[i] ? source->packed : source->source.forward_only;
    }
    source->names = *names;
    *names = (struct names){.items = NULL};
    return &source->source;
}

/* --- Collecting an unknown number of examples --- */

/* A zeroed builder is empty. Memory grows by half as images arrive, up to the limits of a set; all are of one size. */
struct builder {
    struct examples examples;
    int capacity;
};

static size_t pixels_of(const struct examples *examples)
{
    return (size_t)examples->height * (size_t)examples->width;
}

/* Memory for `capacity` images, plus the padding that vector loads may read. */
static bool resize(struct builder *builder, int capacity)
{
    struct examples *examples = &builder->examples;
    uint8_t *images = realloc(examples->images, (size_t)capacity * pixels_of(examples) + EXAMPLES_PADDING);
    if (!images) {
        return false;
    }
    examples->images = images;
    int32_t *labels = realloc(examples->labels, (size_t)capacity * sizeof *labels);
    if (!labels) {
        return false;
    }
    examples->labels = labels;
    builder->capacity = capacity;
    return true;
}

/* Whether builder_add would accept this image; changes nothing. */
static bool builder_fits(const struct builder *builder, const struct image *image, struct error *error)
{
    const struct examples *examples = &builder->examples;
    size_t values = (size_t)image->height * (size_t)image->width * (size_t)image->channels;
    if (examples->count == 0 && values > CONFIG_MAX_WIDTH) {
        return error_set(error, "its image has %zu %s; the limit is %d (--image_size=32 scales it)", values,
                         image->channels > 1 ? "values" : "pixels", CONFIG_MAX_WIDTH);
    }
    if (examples->count > 0 && (image->height != examples->height || image->width != examples_columns(examples) ||
                                image->channels != examples_channels(examples))) {
        return error_set(error, "its image is %dx%d%s, but the images before it are %dx%d%s", image->height,
                         image->width, image->channels > 1 ? " in colour" : "", examples->height,
                         examples_columns(examples), examples_channels(examples) > 1 ? " in colour" : "");
    }
    return true;
}

/* memcpy, a vector at a time: musl's is several times slower for the bytes of a small image. */
static void copy_pixels(uint8_t *to, const uint8_t *from, size_t size)
{
    enum { PIECE = 16 };
    size_t done = 0;
    for (; done + PIECE <= size; done += PIECE) {
        memcpy(to + done, from + done, PIECE);
        __asm__ volatile("" ::: "memory"); /* stops the compiler from turning the loop into memcpy */
    }
    memcpy(to + done, from + done, size - done);
}

/* Adds an image and its label, 0 <= label < CONFIG_MAX_WIDTH. The first image sets the size of all. */
static bool builder_add(struct builder *builder, const struct image *image, int32_t label, struct error *error)
{
    struct examples *examples = &builder->examples;
    if (!builder_fits(builder, image, error)) {
        return false;
    }
    if (examples->count == 0) {
        examples->height = image->height;
        examples->width = image->width * image->channels;
        examples->channels = image->channels;
    }
    if (examples->count == builder->capacity) {
        int capacity = builder->capacity < 1024 ? 1024 : builder->capacity + builder->capacity / 2;
        if (examples->count > INT_MAX / 2 || !resize(builder, capacity)) {
            return error_set(error, "out of memory for more than %d images", examples->count);
        }
    }
    const size_t pixels = pixels_of(examples);
    copy_pixels(examples->images + (size_t)examples->count * pixels, image->pixels, pixels);
    examples->labels[examples->count++] = label;
    examples->classes = label + 1 > examples->classes ? label + 1 : examples->classes;
    return true;
}

/* Of images and labels so far. */
static uint64_t builder_bytes(const struct builder *builder)
{
    return (uint64_t)builder->examples.count * (pixels_of(&builder->examples) + sizeof *builder->examples.labels);
}

/* Keeps at most the first `count` examples; `classes` stays. */
static void builder_cut(struct builder *builder, int count)
{
    if (count < builder->examples.count) {
        builder->examples.count = count;
        resize(builder, count > 0 ? count : 1);
    }
}

/* Hands over the collected set; fails if it is empty. The error does not name the source. */
static bool builder_finish(struct builder *builder, struct examples *examples, struct error *error)
{
    if (builder->examples.count == 0) {
        return error_set(error, "holds no images");
    }
    resize(builder, builder->examples.count); /* if shrinking fails, the larger block stays */
    memset(builder->examples.images + (size_t)builder->examples.count * pixels_of(&builder->examples), 0,
           EXAMPLES_PADDING);
    *examples = builder->examples;
    *builder = (struct builder){.capacity = 0};
    return true;
}

static void builder_free(struct builder *builder)
{
    examples_free(&builder->examples);
    builder->capacity = 0;
}

/* --- Reading whole parts --- */

/*
 * Reads all files of a part round robin, so that classes stored file by file are mixed from the start. Beyond the
 * memory limit only block offsets are recorded, and the set streams.
 */

enum { MOST_FILES = 1024 /* open at the same time */, LOG_AT = 4096, LOG_EVERY_S = 10 };

const char *tfrecord_pattern(const struct config_data *config, enum dataset_part part)
{
    return part == DATASET_TEST ? config->test_files : config->train_files;
}

bool tfrecord_files_exist(bool *exist, const struct config_data *config, enum dataset_part part, struct error *error)
{
    struct names names;
    bool done = names_list(&names, config->data_dir, tfrecord_pattern(config, part), error);
    *exist = done && names.count > 0;
    names_free(&names);
    return done;
}

/* State of one read. */
struct reading {
    const struct config_data *config;
    struct names names;
    struct tfrecord_reader **readers; /* [names.count]; NULL at their end */
    struct example example;           /* the one being read */
    struct image_shape shape;         /* wanted: as of example_names; the first picture decides what is left open */
    bool encoded;                     /* pictures are stored as such */
    struct builder builder;
    struct overflow *overflow;
    bool too_large;      /* for memory: from now on only blocks are recorded */
    int *open;           /* [names.count]: the current block of each file, -1: none */
    bool *packed;        /* [names.count] */
    struct blocks early; /* one per example that may still be held out: see overflow_settle */
    int64_t count;       /* good examples so far */
    int32_t classes;
    int bad;
    double logged_s;
};

static bool open_readers(struct reading *reading, const char *pattern, struct error *error)
{
    const char *folder = reading->config->data_dir;
    if (!names_list(&reading->names, folder, pattern, error)) {
        return false;
    }
    if (reading->names.count == 0 || reading->names.count > MOST_FILES) {
        return error_set(error, "%s: has %d files %s; expected 1 to %d", folder, reading->names.count, pattern,
                         MOST_FILES);
    }
    const size_t files = (size_t)reading->names.count;
    reading->readers = must_zero(files, sizeof(struct tfrecord_reader *), "readers of TFRecord files");
    reading->open = must_zero(files, sizeof *reading->open, "readers of TFRecord files");
    reading->packed = must_zero(files, sizeof *reading->packed, "readers of TFRecord files");
    for (int i = 0; i < reading->names.count; i++) {
        char path[DATA_MAX_PATH];
        if (!file_join(path, sizeof path, folder, reading->names.items[i], error) ||
            !tfrecord_open(&reading->readers[i], path, error)) {
            return false;
        }
        reading->open[i] = -1;
        reading->packed[i] = tfrecord_is_packed(reading->readers[i]);
    }
    return true;
}

/* Counts a bad record, described in the error; false if there were too many. */
static bool pass_over(struct reading *reading, struct error *error)
{
    if (reading->bad >= reading->config->max_bad_records) {
        if (reading->count == 0 && reading->bad == 0 && reading->config->max_bad_records == 0) {
            return false; /* not even the first is as expected, which more often is a matter of names */
        }
        return error_wrap(error, reading->bad == 0 ? "damaged data (raise --max_bad_records to skip it)"
                                                   : "more damaged data than --max_bad_records");
    }
    reading->bad++;
    log_warning("%s; skipping it", error->text);
    return true;
}

/* Prefixes the error with the position of the record read last. */
static bool pass_over_record(struct reading *reading, const struct tfrecord_reader *reader, struct error *error)
{
    error_wrap(error, "%s: the record at byte %llu", tfrecord_name(reader),
               (unsigned long long)tfrecord_offset(reader));
    return pass_over(reading, error);
}

/* Progress, for large sets. */
static void log_progress(struct reading *reading)
{
    double now_s = clock_monotonic_s();
    if (now_s - reading->logged_s >= LOG_EVERY_S) {
        reading->logged_s = now_s;
        log_info("reading %s: %lld images so far%s", reading->config->data_dir, (long long)reading->count,
                 reading->too_large ? ", more than data.memory_mb allows: they will stream" : "");
    }
}

/* Stores the example read last in memory, or records where it is. */
static bool keep(struct reading *reading, int file, struct error *error)
{
    struct overflow *overflow = reading->overflow;
    if (reading->count == INT32_MAX) {
        return error_set(error, "%s: has more than %d images", reading->config->data_dir, INT32_MAX);
    }
    if (!reading->too_large &&
        !builder_add(&reading->builder, &reading->example.image, reading->example.label, error)) {
        return false;
    }
    int64_t number = reading->count++;
    if (number % LOG_AT == 0) {
        log_progress(reading);
    }
    reading->classes = reading->example.label >= reading->classes ? reading->example.label + 1 : reading->classes;
    uint64_t offset = tfrecord_offset(reading->readers[file]);
    bool noted = number >= overflow->held_out ? blocks_extend(&overflow->blocks, &reading->open[file], file, offset)
                                              : overflow->percent == 0 || blocks_add(&reading->early, file, offset, 1);
    if (!noted) {
        return error_set(error, "out of memory while recording the positions of %lld images",
                         (long long)reading->count);
    }
    if (!reading->too_large && builder_bytes(&reading->builder) > overflow->limit) {
        reading->too_large = true;
        builder_cut(&reading->builder, overflow->keep);
    }
    return true;
}

static bool add_record(struct reading *reading, int file, const uint8_t *record, size_t size, struct error *error)
{
    const struct example_names names = {reading->config->image_feature, reading->config->label_feature,
                                        reading->config->label_dtype, reading->shape};
    struct example *example = &reading->example;
    if (!example_decode(example, record, size, &names, error) ||
        !builder_fits(&reading->builder, &example->image, error)) {
        return pass_over_record(reading, reading->readers[file], error);
    }
    reading->shape.channels = example->image.channels;
    reading->encoded = example->encoded;
    return keep(reading, file, error);
}

/* Reads one record of one file; closes the reader at the file's end. */
static bool take_one(struct reading *reading, int file, struct error *error)
{
    struct tfrecord_reader *reader = reading->readers[file];
    const uint8_t *record;
    size_t size;
    switch (tfrecord_next(reader, &record, &size, error)) {
    case TFRECORD_RECORD:
        return add_record(reading, file, record, size, error);
    case TFRECORD_DAMAGED:
        return pass_over(reading, error);
    case TFRECORD_END:
        tfrecord_close(reader);
        reading->readers[file] = NULL;
        return true;
    case TFRECORD_FAILED:
        break;
    }
    return false;
}

static bool read_all(struct reading *reading, struct error *error)
{
    for (int open = reading->names.count; open > 0;) {
        open = 0;
        for (int i = 0; i < reading->names.count; i++) {
            if (reading->readers[i] && !take_one(reading, i, error)) {
                return false;
            }
            open += !!reading->readers[i];
        }
    }
    return true;
}

/*
 * Only now is the number of examples known, and so how many of the first ones are held out: the blocks of the rest of
 * these go before the others. A sufficiently large set gets the same blocks as if the number had been known from the
 * start.
 */
static bool settle(struct reading *reading, struct error *error)
{
    struct overflow *overflow = reading->overflow;
    struct blocks all = {0};
    bool done = true;
    overflow_settle(overflow, (int)reading->count);
    builder_cut(&reading->builder, overflow->keep);
    if (overflow->held_out >= reading->early.count) {
        return true;
    }
    for (int i = 0; i < reading->names.count; i++) {
        reading->open[i] = -1;
    }
    for (int i = overflow->held_out; i < reading->early.count && done; i++) {
        const struct stream_block *one = &reading->early.items[i];
        done = blocks_extend(&all, &reading->open[one->file], one->file, one->offset);
    }
    for (int i = 0; i < overflow->blocks.count && done; i++) {
        const struct stream_block *block = &overflow->blocks.items[i];
        done = blocks_add(&all, block->file, block->offset, block->count);
    }
    blocks_free(done ? &overflow->blocks : &all);
    if (!done) {
        return error_set(error, "out of memory while recording the positions of %lld images",
                         (long long)reading->count);
    }
    overflow->blocks = all;
    return true;
}

/* Delivers the examples, and the files themselves if some of them stream. */
static bool finish(struct reading *reading, struct examples *examples, const char *pattern, struct error *error)
{
    struct examples like = reading->builder.examples;
    like.classes = reading->classes;
    if (reading->too_large && !settle(reading, error)) {
        return false;
    }
    if (reading->too_large) {
        reading->overflow->source =
            tfrecord_source_create(reading->config, &reading->names, reading->packed, &like, &reading->shape);
    }
    return builder_finish(&reading->builder, examples, error) ||
           error_wrap(error, "%s/%s", reading->config->data_dir, pattern);
}

/* What the config, or the training set, says of the pictures. */
static bool begin_shape(struct image_shape *shape, const struct config_data *config, struct error *error)
{
    *shape = config->shape;
    if (shape->height > 0) {
        return true;
    }
    shape->channels = config->color == COLOR_GRAY ? 1 : config->color == COLOR_RGB ? IMAGE_RGB : 0;
    shape->digits = config->image_fit == PICTURE_FIT_DIGITS;
    return image_size_parse(config->image_size, &shape->height, &shape->width, error);
}

bool tfrecord_files_read(struct examples *examples, bool *encoded, const struct config_data *config,
                         enum dataset_part part, struct overflow *overflow, struct error *error)
{
    struct reading reading = {.config = config, .overflow = overflow, .logged_s = clock_monotonic_s()};
    const char *pattern = tfrecord_pattern(config, part);
    bool done = begin_shape(&reading.shape, config, error) && open_readers(&reading, pattern, error);
    int files = reading.names.count;
    done = done && read_all(&reading, error) && finish(&reading, examples, pattern, error);
    *encoded = reading.encoded;
    for (int i = 0; i < files && reading.readers; i++) {
        tfrecord_close(reading.readers[i]);
    }
    free(reading.readers);
    free(reading.open);
    free(reading.packed);
    blocks_free(&reading.early);
    names_free(&reading.names);
    example_free(&reading.example);
    builder_free(&reading.builder);
    return done;
}
