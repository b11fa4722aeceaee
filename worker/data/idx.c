/* Headers are not trusted: the elements they promise must fit the file. */
#include "worker/data/idx.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/file.h"
#include "base/memory.h"
#include "net/bytes.h"
#include "worker/data/examples.h"
#include "worker/data/image.h"
#include "worker/data/source.h"

static int element_bytes(int type)
{
    switch (type) {
    case IDX_UINT8:
    case IDX_INT8:
        return 1;
    case IDX_INT16:
        return 2;
    case IDX_INT32:
    case IDX_FLOAT:
        return 4;
    case IDX_DOUBLE:
        return 8;
    default:
        return 0;
    }
}

static bool read_exactly(struct stream *stream, uint8_t *bytes, size_t size, const char *what, struct error *error)
{
    size_t got;
    if (!stream_read(stream, bytes, size, &got, error)) {
        return false;
    }
    if (got < size) {
        return error_set(error, "%s: ends after %zu of the %zu bytes of its %s; fetch the file again",
                         stream_name(stream), got, size, what);
    }
    return true;
}

static bool read_sizes(struct idx_header *header, struct stream *stream, struct error *error)
{
    const char *name = stream_name(stream);
    uint8_t bytes[4 * IDX_MAX_DIMENSIONS];
    if (!read_exactly(stream, bytes, 4 * (size_t)header->dimensions, "list of dimensions", error)) {
        return false;
    }
    header->elements = 1;
    uint64_t most = IDX_MAX_BYTES / (uint64_t)element_bytes((int)header->type);
    for (int i = 0; i < IDX_MAX_DIMENSIONS; i++) {
        uint32_t size = i < header->dimensions ? get_be32(bytes + (size_t)4 * (size_t)i) : 1;
        if (size == 0 || size > INT32_MAX) {
            return error_set(error, "%s: dimension %d at byte %d is %u; expected 1 to %d", name, i + 1, 4 + 4 * i, size,
                             INT32_MAX);
        }
        if (size > most / header->elements) {
            return error_set(error, "%s: its dimensions need more than %llu GiB", name,
                             (unsigned long long)(IDX_MAX_BYTES >> 30));
        }
        header->sizes[i] = size;
        header->elements *= size;
    }
    return true;
}

bool idx_read_header(struct idx_header *header, struct stream *stream, struct error *error)
{
    const char *name = stream_name(stream);
    uint8_t magic[4];
    if (!read_exactly(stream, magic, sizeof magic, "header", error)) {
        return false;
    }
    if (signature_say(name, magic, sizeof magic, error)) {
        return false;
    }
    if (magic[0] != 0 || magic[1] != 0 || element_bytes(magic[2]) == 0) {
        return error_set(error, "%s: is not an IDX file: begins with %02x %02x %02x %02x, expected 00 00 and a type",
                         name, magic[0], magic[1], magic[2], magic[3]);
    }
    if (magic[3] < 1 || magic[3] > IDX_MAX_DIMENSIONS) {
        return error_set(error, "%s: has %u dimensions (byte 3); expected 1 to %d", name, magic[3], IDX_MAX_DIMENSIONS);
    }
    memset(header, 0, sizeof *header);
    header->type = (enum idx_type)magic[2];
    header->dimensions = magic[3];
    if (!read_sizes(header, stream, error)) {
        return false;
    }
    header->bytes = header->elements * (uint64_t)element_bytes(magic[2]);
    uint64_t header_bytes = 4 + 4 * (uint64_t)magic[3];
    uint64_t promised = header_bytes + header->bytes;
    uint64_t most = stream_most_bytes(stream);
    if (promised > most || (!stream_is_packed(stream) && promised < most)) {
        return error_set(error, "%s: its header promises %llu bytes, but the file has %s%llu; fetch it again", name,
                         (unsigned long long)promised, stream_is_packed(stream) ? "at most " : "",
                         (unsigned long long)most);
    }
    return true;
}

bool idx_read_part(struct stream *stream, uint8_t *bytes, size_t size, struct error *error)
{
    return read_exactly(stream, bytes, size, "elements", error);
}

bool idx_read_end(const struct idx_header *header, struct stream *stream, struct error *error)
{
    /* Only reading past the last element reaches the end of the stream and its checksum. */
    uint8_t extra;
    size_t got;
    return stream_read(stream, &extra, 1, &got, error) &&
           (got == 0 || error_set(error,
                                  "%s: continues after the %llu bytes of elements that its header promises; fetch it "
                                  "again",
                                  stream_name(stream), (unsigned long long)header->bytes));
}

/* The first `size` bytes of the elements only; the end is checked if these are all. */
static bool idx_read_first(const struct idx_header *header, struct stream *stream, size_t size, uint8_t **bytes,
                           struct error *error)
{
    uint8_t *elements = memory_aligned(size + EXAMPLES_PADDING);
    if (!elements) {
        return error_set(error, "%s: out of memory for its %zu bytes", stream_name(stream), size);
    }
    if (!idx_read_part(stream, elements, size, error) ||
        (size == header->bytes && !idx_read_end(header, stream, error))) {
        free(elements);
        return false;
    }
    memset(elements + size, 0, EXAMPLES_PADDING);
    *bytes = elements;
    return true;
}

bool idx_read_elements(const struct idx_header *header, struct stream *stream, uint8_t **bytes, struct error *error)
{
    return idx_read_first(header, stream, (size_t)header->bytes, bytes, error);
}

static bool idx_examine(struct idx_header *header, const char *path, struct error *error)
{
    struct stream *stream;
    if (!stream_open_file(&stream, path, error)) {
        return false;
    }
    bool done = idx_read_header(header, stream, error);
    stream_close(stream);
    return done;
}

size_t idx_write_header(uint8_t bytes[IDX_MAX_HEADER], int dimensions, const uint32_t *sizes)
{
    assert(dimensions >= 1 && dimensions <= IDX_MAX_DIMENSIONS);
    bytes[0] = 0;
    bytes[1] = 0;
    bytes[2] = IDX_UINT8;
    bytes[3] = (uint8_t)dimensions;
    for (int i = 0; i < dimensions; i++) {
        for (int j = 0; j < 4; j++) {
            bytes[4 + 4 * i + j] = (uint8_t)(sizes[i] >> (24 - 8 * j));
        }
    }
    return 4 + 4 * (size_t)dimensions;
}

/* --- The files of a data set --- */

const char *const data_file_names[DATA_FILES] = {"train-images-idx3-ubyte", "train-labels-idx1-ubyte",
                                                 "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"};

/* A plain file takes precedence over a compressed one, since it loads faster. */
static bool find_file(char path[DATA_MAX_PATH], const char *folder, const char *name, struct error *error)
{
    for (int variant = 0; variant < 4; variant++) {
        char file[64];
        snprintf(file, sizeof file, "%s%s", name, variant % 2 == 1 ? ".gz" : "");
        if (variant >= 2) {
            *strstr(file, "-idx") = '.';
        }
        if (!file_join(path, DATA_MAX_PATH, folder, file, error)) {
            return false;
        }
        if (file_exists(path)) {
            return true;
        }
    }
    path[0] = '\0';
    return true;
}

bool data_files_find(struct data_files *files, const char *folder, struct error *error)
{
    files->found = 0;
    for (int i = 0; i < DATA_FILES; i++) {
        if (!find_file(files->path[i], folder, data_file_names[i], error)) {
            return error_wrap(error, "data.data_dir");
        }
        files->found += files->path[i][0] != '\0';
    }
    return true;
}

static bool need_file(const struct data_files *files, enum data_file file, const char *folder, struct error *error)
{
    if (files->path[file][0] != '\0') {
        return true;
    }
    return error_set(error, "%s/%s: missing, plain and as .gz, although other files of the data set exist; add it (%s)",
                     folder, data_file_names[file], HOW_TO_GET_DATA);
}

/* [count, height, width] of an IDX file of images, with 3 behind it in colour; [count, pixels] is read as one row. */
static bool image_shape(struct examples *examples, const struct idx_header *header, const char *path,
                        struct error *error)
{
    if (header->type != IDX_UINT8 || header->dimensions < 2) {
        return error_set(error, "%s: has type 0x%02x in %d dimensions; images need uint8 (0x08) in 2 to 4", path,
                         (unsigned)header->type, header->dimensions);
    }
    if (header->sizes[0] > IDX_MAX_EXAMPLES) { /* whose labels are all in memory, even if images are streamed */
        return error_set(error, "%s: has %u images; the limit is %d", path, header->sizes[0], IDX_MAX_EXAMPLES);
    }
    uint64_t pixels = header->elements / header->sizes[0];
    if (pixels > CONFIG_MAX_WIDTH) {
        return error_set(error, "%s: its images have %" PRIu64 " pixels; the limit is %d", path, pixels,
                         CONFIG_MAX_WIDTH);
    }
    examples->count = (int)header->sizes[0];
    examples->height = header->dimensions == 2 ? 1 : (int)header->sizes[1];
    examples->width = (int)pixels / examples->height;
    examples->channels = header->dimensions == 4 && header->sizes[3] == IMAGE_RGB ? IMAGE_RGB : 1;
    return true;
}

/* Widens a file's labels, uint8 or big-endian int32, to int32 and finds the number of classes. */
static bool convert_labels(struct examples *examples, const uint8_t *bytes, enum idx_type type, const char *path,
                           struct error *error)
{
    int32_t *labels = malloc((size_t)examples->count * sizeof *labels);
    if (!labels) {
        return error_set(error, "%s: out of memory for %d labels", path, examples->count);
    }
    int32_t largest = 0;
    for (int i = 0; i < examples->count; i++) {
        const uint8_t *b = type == IDX_UINT8 ? bytes + i : bytes + (size_t)4 * (size_t)i;
        const uint32_t label = type == IDX_UINT8 ? b[0] : get_be32(b);
        if (label >= CONFIG_MAX_WIDTH) {
            free(labels);
            return error_set(error, "%s: the label of image %d is %d; expected 0 to %d", path, i, (int32_t)label,
                             CONFIG_MAX_WIDTH - 1);
        }
        labels[i] = (int32_t)label;
        largest = labels[i] > largest ? labels[i] : largest;
    }
    examples->labels = labels;
    examples->classes = largest + 1;
    return true;
}

static bool check_label_header(const struct examples *examples, const struct idx_header *header, const char *images,
                               const char *path, struct error *error)
{
    if ((header->type != IDX_UINT8 && header->type != IDX_INT32) || header->dimensions != 1) {
        return error_set(error, "%s: has type 0x%02x in %d dimensions; labels need uint8 (0x08) or int32 (0x0c) in one",
                         path, (unsigned)header->type, header->dimensions);
    }
    if (header->sizes[0] != (uint32_t)examples->count) {
        return error_set(error, "%s: has %u labels for the %d images of %s; the two files do not belong together", path,
                         header->sizes[0], examples->count, images);
    }
    return true;
}

static bool read_labels(struct examples *examples, const char *images, const char *path, struct error *error)
{
    struct stream *stream;
    if (!stream_open_file(&stream, path, error)) {
        return false;
    }
    struct idx_header header;
    uint8_t *bytes = NULL;
    bool done = idx_read_header(&header, stream, error) && check_label_header(examples, &header, images, path, error) &&
                idx_read_elements(&header, stream, &bytes, error) &&
                convert_labels(examples, bytes, header.type, path, error);
    free(bytes);
    stream_close(stream);
    return done;
}

/* --- Images that stream: a gzip file cannot seek, so it is read forward, and started over to go back --- */

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
    struct idx_reader *opened = must_zero(1, sizeof *opened, "a reader of images");
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

/* Takes ownership of the labels of all images. */
static bool make_source(struct overflow *overflow, const struct examples *whole, const struct idx_header *header,
                        const struct stream *stream, struct error *error)
{
    static const bool forward = true;
    const int in_block = (int)(BLOCK_BYTES / ((size_t)whole->height * (size_t)whole->width)) + 1;
    struct idx_source *source = must_zero(1, sizeof *source, "a source of images");
    source->source = (struct example_source){.table = &table,
                                             .like = {.height = whole->height,
                                                      .width = whole->width,
                                                      .channels = whole->channels,
                                                      .classes = whole->classes},
                                             .files = 1,
                                             .forward_only = stream_is_packed(stream) ? &forward : NULL};
    source->path = must_copy(stream_name(stream));
    source->packed = stream_is_packed(stream);
    source->header_bytes = 4 + 4 * (uint64_t)header->dimensions;
    source->labels = whole->labels;
    overflow->source = &source->source;
    bool done = true;
    for (int i = overflow->held_out; i < whole->count && done; i += in_block) {
        const int left = whole->count - i;
        done = blocks_add(&overflow->blocks, 0, (uint64_t)i, (uint32_t)(left < in_block ? left : in_block));
    }
    return done || error_set(error, "%s: out of memory while reading it", stream_name(stream));
}

/* --- Reading --- */

/* Leaves the images behind the first ones, which have been read, in the file; examples have all labels. */
static bool leave_rest(struct examples *examples, int kept, const struct idx_header *header,
                       const struct stream *stream, struct overflow *overflow, struct error *error)
{
    const struct examples whole = *examples;
    examples->count = kept;
    examples->labels = malloc((size_t)kept * sizeof *examples->labels);
    if (!examples->labels) {
        examples->labels = whole.labels;
        return error_set(error, "%s: out of memory for %d labels", stream_name(stream), kept);
    }
    memcpy(examples->labels, whole.labels, (size_t)kept * sizeof *examples->labels);
    return make_source(overflow, &whole, header, stream, error);
}

bool idx_set_read(struct examples *examples, const struct data_files *files, enum dataset_part part, const char *folder,
                  struct overflow *overflow, struct error *error)
{
    const bool is_test = part == DATASET_TEST;
    const enum data_file images = is_test ? TEST_IMAGES : TRAIN_IMAGES, labels = is_test ? TEST_LABELS : TRAIN_LABELS;
    const char *path = files->path[images];
    struct idx_header header;
    struct stream *stream;
    if (!need_file(files, images, folder, error) || !need_file(files, labels, folder, error) ||
        !stream_open_file(&stream, path, error)) {
        return false;
    }
    bool done = idx_read_header(&header, stream, error) && image_shape(examples, &header, path, error);
    const bool is_large = done && header.bytes + header.sizes[0] * sizeof *examples->labels > overflow->limit;
    int kept = examples->count;
    if (is_large) {
        overflow_settle(overflow, examples->count);
        kept = overflow->keep < kept ? overflow->keep : kept;
    }
    done = done &&
           idx_read_first(&header, stream, (size_t)kept * (size_t)examples->height * (size_t)examples->width,
                          &examples->images, error) &&
           read_labels(examples, path, files->path[labels], error) &&
           (!is_large || leave_rest(examples, kept, &header, stream, overflow, error));
    stream_close(stream);
    return done;
}

bool idx_set_check_test(const struct examples *train, const char *train_path, const struct data_files *files,
                        const char *folder, struct error *error)
{
    struct idx_header header;
    struct examples test = {0};
    if (!need_file(files, TEST_IMAGES, folder, error) || !need_file(files, TEST_LABELS, folder, error) ||
        !idx_examine(&header, files->path[TEST_IMAGES], error) ||
        !image_shape(&test, &header, files->path[TEST_IMAGES], error)) {
        return false;
    }
    if (test.height != train->height || test.width != train->width) {
        return error_set(error,
                         "%s: has images of %dx%d, but %s has images of %dx%d; the two files do not belong "
                         "together",
                         files->path[TEST_IMAGES], test.height, test.width, train_path, train->height, train->width);
    }
    return idx_examine(&header, files->path[TEST_LABELS], error) &&
           check_label_header(&test, &header, files->path[TEST_IMAGES], files->path[TEST_LABELS], error);
}
