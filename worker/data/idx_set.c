/* Reads headers first, so that files that do not belong together are refused before much memory is allocated. */
#include "worker/data/idx_set.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/config.h"
#include "worker/data/idx.h"
#include "worker/data/image.h"
#include "worker/data/idx_source.h"

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

static bool read_images(struct examples *examples, const char *path, struct error *error)
{
    struct stream *stream;
    if (!stream_open_file(&stream, path, error)) {
        return false;
    }
    struct idx_header header;
    bool done = idx_read_header(&header, stream, error) && image_shape(examples, &header, path, error) &&
                idx_read_elements(&header, stream, &examples->images, error);
    stream_close(stream);
    return done;
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
        uint32_t label =
            type == IDX_UINT8 ? b[0] : (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
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

/* Reads all labels, but only the first few images. */
static bool leave_images(struct examples *examples, const char *images, const struct idx_header *header,
                         const char *labels, struct overflow *overflow, struct error *error)
{
    struct examples shape = {0};
    struct stream *stream;
    if (!stream_open_file(&stream, images, error)) {
        return false;
    }
    bool packed = stream_is_packed(stream);
    stream_close(stream);
    bool done = image_shape(&shape, header, images, error) && read_labels(&shape, images, labels, error) &&
                idx_source_create(overflow, examples, images, packed, header, &shape, error);
    free(shape.labels);
    return done;
}

bool idx_set_read(struct examples *examples, const struct data_files *files, enum dataset_part part, const char *folder,
                  struct overflow *overflow, struct error *error)
{
    const char *images = files->path[part == DATASET_TEST ? TEST_IMAGES : TRAIN_IMAGES];
    const char *labels = files->path[part == DATASET_TEST ? TEST_LABELS : TRAIN_LABELS];
    struct idx_header header;
    if (!need_file(files, part == DATASET_TEST ? TEST_IMAGES : TRAIN_IMAGES, folder, error) ||
        !need_file(files, part == DATASET_TEST ? TEST_LABELS : TRAIN_LABELS, folder, error) ||
        !idx_examine(&header, images, error)) {
        return false;
    }
    if (header.bytes + header.sizes[0] * sizeof *examples->labels > overflow->limit) {
        return leave_images(examples, images, &header, labels, overflow, error);
    }
    return read_images(examples, images, error) && read_labels(examples, images, labels, error);
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
