/*
 * Finds the data, reads it, and checks it against the model and the training that were asked for. Errors name the file
 * and the keys that do not go together.
 */
#include "worker/dataset.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config/keys.h"
#include "base/file.h"
#include "base/threads.h"
#include "worker/data/files.h"
#include "worker/data/idx.h"
#include "worker/data/synth.h"
#include "worker/report.h"

#define HOW_TO_GET_DATA "`make mnist` fetches MNIST, --data_source=synthetic does without files"

static bool named_by_flag(const struct config *config)
{
    return config->origins && config_origin_of(config, config_key_by_path("data", "data_dir"))->source == SOURCE_FLAG;
}

/* Decides between files and synthetic digits; files are wanted if the user named their folder just now. */
static bool choose_source(struct data_files *files, bool *synthetic, const struct config *config, struct error *error)
{
    const char *folder = config->data.data_dir;
    *synthetic = config->data.data_source == DATA_SYNTHETIC;
    if (*synthetic) {
        return true;
    }
    if (!data_files_find(files, folder, error)) {
        return false;
    }
    if (files->found > 0) {
        return true;
    }
    if (config->data.data_source == DATA_AUTO && !named_by_flag(config)) {
        *synthetic = true;
        return true;
    }
    if (!file_exists(folder)) {
        return error_set(error,
                         "data.data_dir: there is no folder %s; name the one with the IDX files (" HOW_TO_GET_DATA ")",
                         folder);
    }
    return error_set(
        error, "data.data_dir: no IDX files in %s; it needs %s, %s, %s and %s, plain or .gz (" HOW_TO_GET_DATA ")",
        folder, data_file_names[0], data_file_names[1], data_file_names[2], data_file_names[3]);
}

static bool need_file(const struct data_files *files, enum data_file file, const char *folder, struct error *error)
{
    if (files->path[file][0] != '\0') {
        return true;
    }
    return error_set(error,
                     "%s/%s: is missing, plain and as .gz, though other files of the data set are there; add it (%s)",
                     folder, data_file_names[file], HOW_TO_GET_DATA);
}

/* [count, height, width] of an IDX file of images; [count, pixels] counts as one row, colours as further columns. */
static bool image_shape(struct examples *examples, const struct idx_header *header, const char *path,
                        struct error *error)
{
    if (header->type != IDX_UINT8 || header->dimensions < 2) {
        return error_set(error, "%s: holds type 0x%02x in %d dimensions; images are uint8 (0x08) in 2 to 4", path,
                         (unsigned)header->type, header->dimensions);
    }
    uint64_t pixels = header->elements / header->sizes[0];
    if (pixels > CONFIG_MAX_WIDTH) {
        return error_set(error, "%s: its images have %" PRIu64 " pixels; at most %d are possible", path, pixels,
                         CONFIG_MAX_WIDTH);
    }
    examples->count = (int)header->sizes[0];
    examples->height = header->dimensions == 2 ? 1 : (int)header->sizes[1];
    examples->width = (int)pixels / examples->height;
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

/* Widens the labels of a file, uint8 or big-endian int32, and finds the number of classes. */
static bool convert_labels(struct examples *examples, const uint8_t *bytes, enum idx_type type, const char *path,
                           struct error *error)
{
    int32_t *labels = malloc((size_t)examples->count * sizeof *labels);
    if (!labels) {
        return error_set(error, "%s: no memory for %d labels", path, examples->count);
    }
    int32_t largest = 0;
    for (int i = 0; i < examples->count; i++) {
        const uint8_t *b = type == IDX_UINT8 ? bytes + i : bytes + (size_t)4 * (size_t)i;
        uint32_t label =
            type == IDX_UINT8 ? b[0] : (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
        if (label >= CONFIG_MAX_WIDTH) {
            free(labels);
            return error_set(error, "%s: the label of image %d is %d; 0 to %d are possible", path, i, (int32_t)label,
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
        return error_set(error,
                         "%s: holds type 0x%02x in %d dimensions; labels are uint8 (0x08) or int32 (0x0c) in one", path,
                         (unsigned)header->type, header->dimensions);
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

static bool draw_examples(struct examples *examples, enum dataset_part part, const struct config *config,
                          struct error *error)
{
    int count = part == DATASET_TEST ? config->data.synthetic_test : config->data.synthetic_train;
    examples->count = count;
    examples->height = SYNTH_SIDE;
    examples->width = SYNTH_SIDE;
    examples->classes = SYNTH_CLASSES;
    examples->images = malloc((size_t)count * SYNTH_PIXELS + IDX_PADDING);
    examples->labels = malloc((size_t)count * sizeof *examples->labels);
    if (!examples->images || !examples->labels) {
        return error_set(error, "no memory for %d synthetic images; lower data.synthetic_train or synthetic_test",
                         count);
    }
    memset(examples->images + (size_t)count * SYNTH_PIXELS, 0, IDX_PADDING);
    int threads = config->train.num_threads > 0 ? config->train.num_threads : threads_available();
    return synth_fill((uint64_t)config->train.seed, part == DATASET_TEST ? SYNTH_TEST : SYNTH_TRAIN, count, threads,
                      examples->images, examples->labels, error);
}

bool dataset_read(struct examples *result, struct dataset_origin *origin, enum dataset_part part,
                  const struct config *config, struct error *error)
{
    assert(part != DATASET_VALIDATION);
    enum data_file images = part == DATASET_TEST ? TEST_IMAGES : TRAIN_IMAGES;
    enum data_file labels = part == DATASET_TEST ? TEST_LABELS : TRAIN_LABELS;
    const char *folder = config->data.data_dir;
    struct examples examples = {0};
    struct data_files files;
    bool done = false;
    memset(origin, 0, sizeof *origin);
    if (!choose_source(&files, &origin->synthetic, config, error)) {
        return false;
    }
    if (origin->synthetic) {
        done = draw_examples(&examples, part, config, error);
    } else {
        memcpy(origin->images, files.path[images], sizeof origin->images);
        memcpy(origin->labels, files.path[labels], sizeof origin->labels);
        done = need_file(&files, images, folder, error) && need_file(&files, labels, folder, error) &&
               read_images(&examples, origin->images, error) &&
               read_labels(&examples, origin->images, origin->labels, error);
    }
    if (!done) {
        examples_free(&examples);
        return false;
    }
    *result = examples;
    return true;
}

/* What the user sees as the source of images or labels in an error. */
static const char *source_name(const struct dataset_origin *origin, const char *path)
{
    return origin->synthetic ? "synthetic digits" : path;
}

/* The model must have an input for each pixel and an output for each class. */
static bool check_model(const struct examples *examples, const struct dataset_origin *origin,
                        const struct config *config, struct error *error)
{
    const struct config_model *model = &config->model;
    int inputs = model->layers[0], outputs = model->layers[model->layer_count - 1];
    if (examples->height * examples->width != inputs) {
        return error_set(error,
                         "%s: images of %dx%d = %d pixels do not fit model.layers, which begins with %d; begin it "
                         "with %d, or choose other data (data.data_dir)",
                         source_name(origin, origin->images), examples->height, examples->width,
                         examples->height * examples->width, inputs, examples->height * examples->width);
    }
    for (int i = 0; i < examples->count; i++) {
        if (examples->labels[i] >= outputs) {
            return error_set(error,
                             "%s: the label of image %d is %d, but model.layers ends with %d outputs (labels 0 to "
                             "%d); end it with at least %d",
                             source_name(origin, origin->labels), i, examples->labels[i], outputs, outputs - 1,
                             examples->classes);
        }
    }
    return true;
}

/* Enough images must be there for what is held out, and for one full batch of the rest. */
static bool check_counts(const struct examples *examples, const struct dataset_origin *origin,
                         const struct config *config, struct error *error)
{
    int held_out = config->data.validation_size;
    const char *name = source_name(origin, origin->images);
    if (held_out >= examples->count) {
        return error_set(error,
                         "%s: has %d images, and data.validation_size=%d would leave none to train on; lower "
                         "--validation_size",
                         name, examples->count, held_out);
    }
    if (config->train.batch_size > examples->count - held_out) {
        return error_set(error,
                         "%s: train.batch_size=%d is more than the %d images to train on (%d less "
                         "data.validation_size=%d); lower --batch_size",
                         name, config->train.batch_size, examples->count - held_out, examples->count, held_out);
    }
    return true;
}

/* A test set that does not fit should be known before training, not after it; its headers tell. */
static bool check_test_files(const struct examples *train, const struct dataset_origin *origin,
                             const struct config *config, struct error *error)
{
    struct data_files files;
    struct idx_header header;
    struct examples test = {0};
    if (origin->synthetic) {
        return true;
    }
    if (!data_files_find(&files, config->data.data_dir, error) ||
        !need_file(&files, TEST_IMAGES, config->data.data_dir, error) ||
        !need_file(&files, TEST_LABELS, config->data.data_dir, error) ||
        !idx_examine(&header, files.path[TEST_IMAGES], error) ||
        !image_shape(&test, &header, files.path[TEST_IMAGES], error)) {
        return false;
    }
    if (test.height != train->height || test.width != train->width) {
        return error_set(error,
                         "%s: has images of %dx%d, but those of %s have %dx%d; the two files do not belong "
                         "together",
                         files.path[TEST_IMAGES], test.height, test.width, origin->images, train->height, train->width);
    }
    return idx_examine(&header, files.path[TEST_LABELS], error) &&
           check_label_header(&test, &header, files.path[TEST_IMAGES], files.path[TEST_LABELS], error);
}

static void describe(struct dataset *dataset, const struct dataset_origin *origin, const struct config *config)
{
    const struct examples *train = &dataset->train;
    char source[160], training[REPORT_COUNT_SIZE], validation[REPORT_COUNT_SIZE];
    if (origin->synthetic) {
        snprintf(source, sizeof source, "synthetic digits of seed %" PRId64, config->train.seed);
    } else {
        snprintf(source, sizeof source, "IDX files in %.140s", config->data.data_dir);
    }
    report_count(training, train->count);
    report_count(validation, dataset->validation.count);
    snprintf(dataset->description, sizeof dataset->description,
             "%s: %s training, %s validation images, %dx%d, %d classes", source, training, validation, train->height,
             train->width, train->classes);
}

/* Cuts the whole set into the images held out, which come first, and the rest. */
static void split(struct dataset *dataset, const struct examples *whole, int held_out)
{
    size_t pixels = (size_t)whole->height * (size_t)whole->width;
    dataset->validation = *whole;
    dataset->validation.count = held_out;
    dataset->train = *whole;
    dataset->train.count = whole->count - held_out;
    dataset->train.images += (size_t)held_out * pixels;
    dataset->train.labels += held_out;
    dataset->bytes = (size_t)whole->count * (pixels + sizeof *whole->labels);
}

bool dataset_load(struct dataset *dataset, const struct config *config, struct error *error)
{
    struct examples whole;
    struct dataset_origin origin;
    if (!dataset_read(&whole, &origin, DATASET_TRAIN, config, error)) {
        return false;
    }
    if (!check_model(&whole, &origin, config, error) || !check_counts(&whole, &origin, config, error) ||
        !check_test_files(&whole, &origin, config, error)) {
        examples_free(&whole);
        return false;
    }
    split(dataset, &whole, config->data.validation_size);
    describe(dataset, &origin, config);
    return true;
}

void dataset_free(struct dataset *dataset)
{
    examples_free(&dataset->validation); /* the beginning of the memory of both */
    memset(dataset, 0, sizeof *dataset);
}

bool dataset_load_test(struct examples *test, const struct config *config, struct error *error)
{
    struct examples examples;
    struct dataset_origin origin;
    if (!dataset_read(&examples, &origin, DATASET_TEST, config, error)) {
        return false;
    }
    if (!check_model(&examples, &origin, config, error)) {
        examples_free(&examples);
        return false;
    }
    *test = examples;
    return true;
}

void examples_free(struct examples *examples)
{
    free(examples->images);
    free(examples->labels);
    memset(examples, 0, sizeof *examples);
}
