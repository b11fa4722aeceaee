/*
 * Finds the data, reads it, and checks it against the configured model and training. Errors name the file and the keys
 * that conflict.
 */
#include "worker/data/dataset.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/config/keys.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/text/text.h"
#include "base/threads.h"
#include "worker/data/folders.h"
#include "worker/data/idx.h"
#include "worker/data/image.h"
#include "worker/data/names.h"
#include "worker/data/source.h"
#include "worker/data/stream.h"
#include "worker/data/streaming.h"
#include "worker/data/synth.h"
#include "worker/data/table/encode.h"
#include "worker/data/table/table.h"
#include "worker/data/tfrecord/reader.h"

enum {
    VALIDATION_MOST = 5000, /* as in TensorFlow's read_data_sets; of a smaller set ... */
    PICTURES_PERCENT = 10,  /* ... at most a tenth, ... */
    ROWS_PERCENT = 15,      /* ... or what 38 tables did best with */
    VISIT_BYTES = 64 << 20,
};

/* Of tables: units of the hidden layer, and examples of a batch, by their rows. */
enum { USUAL_HIDDEN = 256, ROWS_A_BATCH = 32, SMALLEST_BATCH = 16, LARGEST_BATCH = 256 };

/* --- Kinds of data sets --- */

/* What data_dir contains of one part. */
struct found {
    bool is_there;
    struct data_files files;    /* of IDX */
    char images[DATA_MAX_PATH]; /* as in struct dataset_origin */
    char labels[DATA_MAX_PATH];
};

/* A part being read. */
struct part_reading {
    const struct config *config;
    enum dataset_part part;
    bool is_logged; /* how pictures are read is */
    const struct found *found;
    struct overflow *overflow; /* what is larger than its limit stays in the files */
    struct image_shape shape;  /* of all pictures, once they are read */
};

struct data_kind {
    const char *what;   /* in descriptions */
    bool layers_follow; /* from the pictures, if nobody has set them */
    /* Looks for a part. Fails only if data_dir can't be read. */
    bool (*look)(struct found *found, enum dataset_part part, const struct config *config, struct error *error);
    bool (*read)(struct examples *examples, struct part_reading *reading, struct error *error);
};

/* Without a folder for the test a share of the training pictures is it, or there is no test at all. */
static bool find_folder(char found[DATA_MAX_PATH], const char *folder, enum dataset_part part, struct error *error)
{
    char test[DATA_MAX_PATH];
    if (!folders_find(found, folder, part, error) || !file_join(test, sizeof test, folder, "test", error)) {
        return false;
    }
    const bool is_held_out = part == DATASET_TEST && found[0] == '\0' && !file_exists(test);
    return !is_held_out || folders_find(found, folder, DATASET_TRAIN, error);
}

static bool look_for_idx(struct found *found, enum dataset_part part, const struct config *config, struct error *error)
{
    const bool is_test = part == DATASET_TEST;
    if (!data_files_find(&found->files, config->data.data_dir, error)) {
        return false;
    }
    found->is_there = found->files.found > 0;
    memcpy(found->images, found->files.path[is_test ? TEST_IMAGES : TRAIN_IMAGES], sizeof found->images);
    memcpy(found->labels, found->files.path[is_test ? TEST_LABELS : TRAIN_LABELS], sizeof found->labels);
    return true;
}

static bool look_for_records(struct found *found, enum dataset_part part, const struct config *config,
                             struct error *error)
{
    snprintf(found->images, sizeof found->images, "%.900s/%.100s", config->data.data_dir,
             tfrecord_pattern(&config->data, part));
    memcpy(found->labels, found->images, sizeof found->labels);
    return tfrecord_files_exist(&found->is_there, &config->data, part, error);
}

static bool look_for_folders(struct found *found, enum dataset_part part, const struct config *config,
                             struct error *error)
{
    if (!find_folder(found->images, config->data.data_dir, part, error)) {
        return false;
    }
    memcpy(found->labels, found->images, sizeof found->labels);
    found->is_there = found->images[0] != '\0';
    return true;
}

static bool look_for_table(struct found *found, enum dataset_part part, const struct config *config,
                           struct error *error)
{
    snprintf(found->images, sizeof found->images, "%s", config->data.data_dir);
    memcpy(found->labels, found->images, sizeof found->labels);
    if (!table_files_exist(&found->is_there, config, part, error)) {
        return false;
    }
    found->is_there |= part == DATASET_TEST; /* rows of the training files, or with test_share 0 no test at all */
    return true;
}

/* Bytes that images may take. */
static uint64_t memory_limit(const struct config *config)
{
    uint64_t bytes;
    if (config->data.memory_mb > 0) {
        return (uint64_t)config->data.memory_mb << 20;
    }
    return memory_for_this_process(&bytes) ? bytes / 2 : UINT64_MAX;
}

/* Layers that nobody has set: of a table, or of pictures in folders or TFRecord files, they follow from the data. */
static bool layers_are_usual(const struct config *config)
{
    return config->cluster.job_name == JOB_LOCAL && config->model.hidden_count == CONFIG_AUTO && config->origins &&
           config->data.shape.height == 0 && /* else the model is known, too */
           config_origin_of(config, config_key_by_path("model", "layers"))->source == SOURCE_DEFAULT;
}

/* Inputs that the pictures must have; 0: any number. */
static int inputs_given(const struct config *config)
{
    const bool follows = config->model.hidden_count != CONFIG_AUTO || !config->origins || layers_are_usual(config);
    return follows ? 0 : config->model.layers[0];
}

/* Of pictures whose source gives a size itself. digits: in grey they are taken for digits like MNIST's. */
static struct image_shape shape_of(const struct examples *examples, bool digits, const struct config *config)
{
    const int channels = examples_channels(examples), inputs = examples->height * examples->width;
    const bool is_flat = examples->height == 1 && channels == 1;
    struct image_shape shape = {
        .height = examples->height, .width = examples_columns(examples), .channels = channels, .digits = digits};
    shape = is_flat ? image_shape_of(inputs) : shape;
    shape.digits = channels == 1 &&
                   (config->data.image_fit == PICTURE_FIT_AUTO ? digits : config->data.image_fit == PICTURE_FIT_DIGITS);
    return shape;
}

static bool draw_examples(struct examples *examples, struct part_reading *reading, struct error *error)
{
    const struct config *config = reading->config;
    const enum dataset_part part = reading->part;
    const uint64_t limit = memory_limit(config);
    int count = part == DATASET_TEST ? config->data.synthetic_test : config->data.synthetic_train;
    examples->count = count;
    examples->height = SYNTH_SIDE;
    examples->width = SYNTH_SIDE;
    examples->classes = SYNTH_CLASSES;
    if ((uint64_t)count * (SYNTH_PIXELS + sizeof *examples->labels) > limit) {
        return error_set(error,
                         "%d synthetic images do not fit into %llu MiB (data.memory_mb), and they do not stream: lower "
                         "--synthetic_train and --synthetic_test, or raise --memory_mb",
                         count, (unsigned long long)(limit >> 20));
    }
    examples->images = must_alloc((size_t)count * SYNTH_PIXELS + EXAMPLES_PADDING,
                                  "synthetic images: lower --synthetic_train or --synthetic_test");
    examples->labels = must_alloc((size_t)count * sizeof *examples->labels, "labels of synthetic images");
    memset(examples->images + (size_t)count * SYNTH_PIXELS, 0, EXAMPLES_PADDING);
    int threads = config->train.num_threads > 0 ? config->train.num_threads : threads_available();
    reading->shape = shape_of(examples, true, config);
    return synth_fill((uint64_t)config->train.seed, part == DATASET_TEST ? SYNTH_TEST : SYNTH_TRAIN, count, threads,
                      examples->images, examples->labels, error);
}

static bool read_folders(struct examples *examples, struct part_reading *reading, struct error *error)
{
    const struct config *config = reading->config;
    struct image_shape *shape = &reading->shape;
    char training[DATA_MAX_PATH], test[DATA_MAX_PATH];
    const struct config_data *data = &config->data;
    const bool is_test = reading->part == DATASET_TEST;
    *shape = data->shape;
    if (!folders_find(training, data->data_dir, DATASET_TRAIN, error) ||
        !folders_find(test, data->data_dir, DATASET_TEST, error)) {
        return false;
    }
    if (is_test && test[0] == '\0' && data->test_share == 0) {
        return error_set(error,
                         "%s: has no folder test, and data.test_share is 0, so there are no pictures to test with",
                         data->data_dir);
    }
    const struct folders_part wanted = {.path = is_test && test[0] != '\0' ? test : training,
                                        .training = training,
                                        .is_test = is_test,
                                        .test_share = test[0] != '\0' ? 0 : data->test_share,
                                        .needs_classes = !is_test && config->cluster.job_name == JOB_LOCAL,
                                        .max_bad_records = data->max_bad_records};
    return (shape->height > 0 ||
            folders_shape(shape, training, data, inputs_given(config), reading->is_logged, error)) &&
           folders_read(examples, &wanted, shape, reading->overflow, error);
}

/* Pictures of IDX files are taken as they are. */
static bool check_side(const struct examples *examples, const struct config *config, struct error *error)
{
    int height, width;
    return image_size_parse(config->data.image_size, &height, &width, error) &&
           (height == 0 || (height == examples->height && width == examples_columns(examples)) ||
            error_set(error,
                      "data.image_size: the pictures of IDX files in %s are %dx%d and are not scaled; remove it, or "
                      "scale them as folders: trainer convert --data_dir=%s --to=folders --out=FOLDER",
                      config->data.data_dir, examples->height, examples_columns(examples), config->data.data_dir));
}

static bool read_idx(struct examples *examples, struct part_reading *reading, struct error *error)
{
    const struct config *config = reading->config;
    if (!idx_set_read(examples, &reading->found->files, reading->part, config->data.data_dir, reading->overflow,
                      error)) {
        return false;
    }
    reading->shape = shape_of(examples, true, config);
    return check_side(examples, config, error);
}

static bool read_records(struct examples *examples, struct part_reading *reading, struct error *error)
{
    const struct config *config = reading->config;
    bool encoded = false;
    if (!tfrecord_files_read(examples, &encoded, &config->data, reading->part, reading->overflow, error)) {
        return false;
    }
    reading->shape = shape_of(examples, !encoded, config);
    return true;
}

static bool read_rows(struct examples *examples, struct part_reading *reading, struct error *error)
{
    (void)examples;
    return error_set(error, "%s: is a table; only pictures can be read without a model", reading->found->images);
}

static bool look_for_nothing(struct found *found, enum dataset_part part, const struct config *config,
                             struct error *error)
{
    (void)part;
    (void)config;
    (void)error;
    found->is_there = true;
    return true;
}

static const struct data_kind kinds[] = {
    [DATA_IDX] = {"IDX files", false, look_for_idx, read_idx},
    [DATA_TFRECORD] = {"TFRecord files", true, look_for_records, read_records},
    [DATA_FOLDERS] = {"pictures", true, look_for_folders, read_folders},
    [DATA_TABLE] = {"table", false, look_for_table, read_rows},
    [DATA_SYNTHETIC] = {"synthetic digits", false, look_for_nothing, draw_examples},
};

/* --- What data_dir contains --- */

/*
 * Which kind of data set is read. Nothing is made up: a folder that is missing, unreadable or empty, or that holds
 * nothing of the kinds known, is an error. It names the folder, the place where it was set, what the folder holds, and
 * what to do. Kinds are tried in a fixed order.
 */

enum { SHOWN_NAMES = 3, LOOKED_AT = 16 /* files, to say of what kind they are */ };

/* "is empty", or "holds notes.txt, a.jpg, b.jpg and 12 more". */
static void say_content(const char *folder, char *text, size_t size)
{
    struct names names;
    struct error ignored;
    size_t used;
    if (!names_list(&names, folder, "*", &ignored) || names.count == 0) {
        snprintf(text, size, "is empty");
        names_free(&names);
        return;
    }
    used = (size_t)snprintf(text, size, "holds ");
    for (int i = 0; i < names.count && i < SHOWN_NAMES && used < size; i++) {
        const char *before = i == 0 ? "" : i + 1 == names.count ? " and " : ", ";
        used += (size_t)snprintf(text + used, size - used, "%s%.48s", before, names.items[i]);
    }
    if (names.count > SHOWN_NAMES && used < size) {
        snprintf(text + used, size - used, " and %d more", names.count - SHOWN_NAMES);
    }
    names_free(&names);
}

/* What the kind consists of. */
static void say_wanted(enum data_source source, enum dataset_part part, const struct config *config, char *text,
                       size_t size)
{
    const char *name = part == DATASET_TEST ? "test" : "train";
    switch (source) {
    case DATA_TFRECORD:
        snprintf(text, size, "has no files %.100s; name them with --train_files and --test_files",
                 tfrecord_pattern(&config->data, part));
        break;
    case DATA_FOLDERS:
        snprintf(text, size, "has no folder %s with folders of pictures in it, one for each class", name);
        break;
    case DATA_TABLE:
        snprintf(text, size,
                 "has no table, a file with the ending .csv, .tsv, .npy or .npz, plain or .gz; rename it, or name it "
                 "with --%s_files",
                 name);
        break;
    case DATA_IDX:
        snprintf(text, size, "has no IDX files; it needs %s, %s, %s and %s, plain or .gz (" HOW_TO_GET_DATA ")",
                 data_file_names[0], data_file_names[1], data_file_names[2], data_file_names[3]);
        break;
    case DATA_SYNTHETIC:
    case DATA_AUTO:
        snprintf(text, size,
                 "has no data set of a known kind: the IDX files of MNIST, a table (.csv, .tsv, .npy or .npz), "
                 "TFRecord files (%.100s), or folders train and test of pictures by class; --train_files names other "
                 "files (" HOW_TO_GET_DATA ")",
                 tfrecord_pattern(&config->data, part));
        break;
    }
}

/* A file of a kind that is known and not read here, such as a workbook: then the error is what to do with it. */
static bool say_foreign(const struct config *config, struct error *error)
{
    struct names names;
    struct error ignored;
    bool is_said = false;
    if (!names_list(&names, config->data.data_dir, "*", &ignored)) {
        return false;
    }
    for (int i = 0; i < names.count && i < LOOKED_AT && !is_said; i++) {
        char path[DATA_MAX_PATH];
        uint8_t head[SIGNATURE_HEAD];
        struct stream *stream = NULL;
        size_t size;
        if (file_join(path, sizeof path, config->data.data_dir, names.items[i], &ignored) &&
            stream_open_file(&stream, path, &ignored) && stream_read(stream, head, sizeof head, &size, &ignored)) {
            const struct file_kind *kind = signature_find(head, size);
            is_said = kind && !strstr(kind->what, "picture") && signature_say(path, head, size, error);
        }
        stream_close(stream);
    }
    names_free(&names);
    return is_said;
}

/* Says that data_dir has no such part; returns false. */
static bool found_say_missing(enum data_source source, enum dataset_part part, const struct config *config,
                              struct error *error)
{
    char content[256], wanted[512];
    if ((source == DATA_TABLE || source == DATA_AUTO) && say_foreign(config, error)) {
        return config_error_at(config, "data", "data_dir", error);
    }
    say_content(config->data.data_dir, content, sizeof content);
    say_wanted(source, part, config, wanted, sizeof wanted);
    error_set(error, "%.300s %s, and %s", config->data.data_dir, content, wanted);
    return config_error_at(config, "data", "data_dir", error);
}

static bool say_no_folder(const struct config *config, struct error *error)
{
    const char *folder = config->data.data_dir;
    char here[256], in[288] = "";
    if (folder[0] != '/' && getcwd(here, sizeof here)) {
        snprintf(in, sizeof in, " in %s", here);
    }
    if (config_key_is_default(config_key_by_path("data", "data_dir"), config)) {
        error_set(error,
                  "there is no folder %s%s. To begin, name the folder that holds your data, --data_dir=FOLDER, and for "
                  "a table the column to learn, --target=COLUMN (" HOW_TO_GET_DATA ")",
                  folder, in);
    } else {
        error_set(error,
                  "there is no folder %.300s%s; name the one with the data, or mount its disk (" HOW_TO_GET_DATA ")",
                  folder, in);
    }
    return config_error_at(config, "data", "data_dir", error);
}

bool dataset_check_folder(const struct config *config, struct error *error)
{
    const char *folder = config->data.data_dir;
    struct stat status;
    if (stat(folder, &status) != 0) {
        if (errno == ENOENT || errno == ENOTDIR) {
            return say_no_folder(config, error);
        }
        file_error(error, folder, "cannot be looked at", errno);
        return config_error_at(config, "data", "data_dir", error);
    }
    if (!S_ISDIR(status.st_mode)) {
        const char *slash = strrchr(folder, '/');
        error_set(error, "%.300s is a file; name the folder that it is in: --data_dir=%.*s --train_files=%.100s",
                  folder,
                  slash == folder ? 1
                  : slash         ? (int)(slash - folder)
                                  : 1,
                  slash ? folder : ".", slash ? slash + 1 : folder);
        return config_error_at(config, "data", "data_dir", error);
    }
    if (access(folder, R_OK | X_OK) != 0) {
        file_error(error, folder, "cannot be read", errno);
        return config_error_at(config, "data", "data_dir", error);
    }
    return true;
}

/*
 * Decides what to read: the kind that the config names, or with DATA_AUTO the first one that data_dir has. *source is
 * DATA_SYNTHETIC only if the config names it. Fails if the part is not there.
 */
static bool found_choose(struct found *found, enum data_source *source, enum dataset_part part,
                         const struct config *config, struct error *error)
{
    static const enum data_source candidates[] = {DATA_IDX, DATA_TFRECORD, DATA_FOLDERS, DATA_TABLE};
    const bool is_table = config->data.target.count > 0;
    *source = config->data.data_source;
    if (*source == DATA_SYNTHETIC) {
        return true;
    }
    if (!dataset_check_folder(config, error)) {
        return false;
    }
    for (size_t i = 0; i < sizeof candidates / sizeof candidates[0]; i++) {
        const bool is_wanted =
            *source == DATA_AUTO ? !is_table || candidates[i] == DATA_TABLE : *source == candidates[i];
        if (!is_wanted) {
            continue;
        }
        if (!kinds[candidates[i]].look(found, DATASET_TRAIN, config, error)) {
            return false;
        }
        if (found->is_there) {
            *source = candidates[i];
            return kinds[*source].look(found, part, config, error) &&
                   (found->is_there || found_say_missing(*source, part, config, error));
        }
    }
    return found_say_missing(*source == DATA_AUTO && is_table ? DATA_TABLE : *source, part, config, error);
}

/* --- Reading --- */

/* Reads a part, except what the overflow leaves in the files. is_logged: how pictures are read is. */
static bool read_part(struct examples *examples, struct image_shape *shape, bool is_logged,
                      struct dataset_origin *origin, enum dataset_part part, const struct config *config,
                      struct overflow *overflow, struct error *error)
{
    assert(part != DATASET_VALIDATION);
    struct found found = {.is_there = false};
    struct part_reading reading = {
        .config = config, .part = part, .is_logged = is_logged, .found = &found, .overflow = overflow};
    *examples = (struct examples){0};
    memset(origin, 0, sizeof *origin);
    if (!found_choose(&found, &origin->source, part, config, error)) {
        return false;
    }
    memcpy(origin->images, found.images, sizeof origin->images);
    memcpy(origin->labels, found.labels, sizeof origin->labels);
    if (!kinds[origin->source].read(examples, &reading, error)) {
        examples_free(examples);
        return false;
    }
    *shape = reading.shape;
    return true;
}

static void overflow_free(struct overflow *overflow)
{
    if (overflow->source) {
        overflow->source->table->destroy(overflow->source);
        overflow->source = NULL;
    }
    blocks_free(&overflow->blocks);
}

static bool say_too_large(const struct dataset_origin *origin, const struct config *config, uint64_t limit,
                          struct error *error)
{
    return error_set(error, "%s: its images do not fit into %llu MiB (%s); raise --memory_mb, or use fewer of them",
                     origin->images, (unsigned long long)(limit >> 20),
                     config->data.memory_mb > 0 ? "data.memory_mb" : "data.memory_mb, half of this machine's memory");
}

bool dataset_read(struct examples *result, struct dataset_origin *origin, enum dataset_part part,
                  const struct config *config, struct error *error)
{
    struct overflow overflow = {.limit = memory_limit(config), .keep = 1};
    struct image_shape shape;
    if (!read_part(result, &shape, part == DATASET_TRAIN, origin, part, config, &overflow, error)) {
        overflow_free(&overflow);
        return false;
    }
    bool fits = !overflow.source;
    overflow_free(&overflow);
    if (!fits) {
        examples_free(result);
    }
    return fits || say_too_large(origin, config, overflow.limit, error);
}

/* One block, some examples at a time. */
static bool visit_block(struct example_reader *reader, const struct stream_block *block, struct examples *some,
                        const struct dataset_visitor *visitor, struct error *error)
{
    const struct example_source *source = reader->source;
    bool done = true;
    for (uint32_t first = 0; first < block->count && done; first += (uint32_t)some->count) {
        const uint32_t left = block->count - first;
        const uint32_t count = left < (uint32_t)some->count ? left : (uint32_t)some->count;
        const struct examples into = examples_part(some, 0, (int)count);
        done = source->table->read(reader, block, first, &into, error);
        if (done) {
            visitor->show(visitor->context, some->images, some->labels, (int)count);
        }
    }
    return done;
}

static bool visit_blocks(const struct overflow *overflow, const struct dataset_visitor *visitor, struct error *error)
{
    const struct example_source *source = overflow->source;
    const int count = (int)(VISIT_BYTES / examples_bytes(&source->like) / 8) + 1;
    struct examples some;
    struct example_reader *reader = NULL;
    bool done = examples_create(&some, &source->like, count) || error_set(error, "out of memory for %d images", count);
    done = done && source->table->open(source, &reader, error);
    for (int i = 0; i < overflow->blocks.count && done; i++) {
        done = visit_block(reader, &overflow->blocks.items[i], &some, visitor, error);
    }
    if (reader) {
        source->table->close(reader);
    }
    examples_free(&some);
    return done;
}

bool dataset_visit(struct dataset_origin *origin, enum dataset_part part, const struct config *config,
                   const struct dataset_visitor *visitor, struct error *error)
{
    const uint64_t limit = memory_limit(config);
    struct overflow overflow = {.limit = limit < VISIT_BYTES ? limit : VISIT_BYTES, .keep = 1};
    struct examples examples;
    struct image_shape pictures;
    if (!read_part(&examples, &pictures, false, origin, part, config, &overflow, error)) {
        overflow_free(&overflow);
        return false;
    }
    struct examples shape = {.count = examples.count,
                             .height = examples.height,
                             .width = examples.width,
                             .channels = examples.channels,
                             .classes = examples.classes};
    if (overflow.source) {
        shape.count = (int)overflow.blocks.examples;
        shape.classes = overflow.source->like.classes;
    }
    bool done = visitor->begin(visitor->context, &shape, error);
    if (done && overflow.source) {
        done = visit_blocks(&overflow, visitor, error);
    } else if (done) {
        visitor->show(visitor->context, examples.images, examples.labels, examples.count);
    }
    examples_free(&examples);
    overflow_free(&overflow);
    return done;
}

/* What the user sees as the source of images or labels in an error. */
static const char *source_name(const struct dataset_origin *origin, const char *path)
{
    return origin->source == DATA_SYNTHETIC ? "synthetic digits" : path;
}

/* The model must have an input for each pixel and an output for each class. */
static bool check_model(const struct examples *examples, const struct dataset_origin *origin,
                        const struct config *config, struct error *error)
{
    const struct config_model *model = &config->model;
    int inputs = model->layers[0], outputs = model->layers[model->layer_count - 1];
    if (config->model.hidden_count != CONFIG_AUTO ||
        (kinds[origin->source].layers_follow && layers_are_usual(config))) {
        return true; /* they will follow from the data */
    }
    if (examples->height * examples->width != inputs) {
        return error_set(error,
                         "%s: images of %dx%d%s = %d %s do not fit model.layers, which begins with %d; begin it "
                         "with %d, or choose other data (data.data_dir)",
                         source_name(origin, origin->images), examples->height, examples_columns(examples),
                         examples_channels(examples) > 1 ? " in colour" : "", examples->height * examples->width,
                         examples_channels(examples) > 1 ? "values" : "pixels", inputs,
                         examples->height * examples->width);
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

/* Checks the labels that are left in the files. */
static bool check_streamed_labels(const struct example_source *source, const struct dataset_origin *origin,
                                  const struct config *config, struct error *error)
{
    int outputs = config->model.layers[config->model.layer_count - 1];
    return config->model.hidden_count != CONFIG_AUTO ||
           (kinds[origin->source].layers_follow && layers_are_usual(config)) || source->like.classes <= outputs ||
           error_set(
               error,
               "%s: an image has the label %d, but model.layers ends with %d outputs (labels 0 to %d); end it with "
               "at least %d",
               origin->labels, source->like.classes - 1, outputs, outputs - 1, source->like.classes);
}

/* There must be enough images for those held out, and for one full batch of the rest. */
static bool check_counts(int count, int held_out, const struct dataset_origin *origin, const struct config *config,
                         struct error *error)
{
    const char *name = source_name(origin, origin->images);
    const bool of_rows = origin->source == DATA_TABLE;
    const char *what = of_rows ? "rows" : "images";
    if (held_out >= count) {
        return error_set(error,
                         "%s: has %d %s, and data.validation_size=%d would leave none to train on; lower "
                         "--validation_size%s",
                         name, count, what, held_out, of_rows ? ", or add rows" : "");
    }
    const bool is_set = !config_was_chosen(config, "train", "batch_size");
    /* In a round of new files, however few rows they have, the only batch is short. */
    if (is_set && config->train.batch_size > count - held_out && !config->data.round_files) {
        return error_set(error,
                         "%s: train.batch_size=%d is more than the %d %s to train on (%d less "
                         "data.validation_size=%d); lower --batch_size",
                         name, config->train.batch_size, count - held_out, what, count, held_out);
    }
    return true;
}

/* A test set that does not fit should be reported before training, not after it. */
static bool check_test_files(const struct examples *train, const struct dataset_origin *origin,
                             const struct config *config, struct error *error)
{
    struct found found = {.is_there = false};
    if (!kinds[origin->source].look(&found, DATASET_TEST, config, error)) {
        return false;
    }
    if (origin->source == DATA_IDX) {
        return idx_set_check_test(train, origin->images, &found.files, config->data.data_dir, error);
    }
    return found.is_there || found_say_missing(origin->source, DATASET_TEST, config, error);
}

static void describe(struct dataset *dataset, const struct dataset_origin *origin, const struct config *config)
{
    const struct examples *train = &dataset->train;
    char source[160], training[COUNT_TEXT], validation[COUNT_TEXT];
    if (origin->source == DATA_SYNTHETIC) {
        snprintf(source, sizeof source, "synthetic digits of seed %" PRId64, config->train.seed);
    } else {
        snprintf(source, sizeof source, "%s in %.140s", kinds[origin->source].what, config->data.data_dir);
    }
    count_text(training, train->count);
    count_text(validation, dataset->validation.count);
    const bool tenth = config->data.validation_size == CONFIG_AUTO && dataset->validation.count < VALIDATION_MOST;
    snprintf(dataset->description, sizeof dataset->description,
             "%s: %s training, %s validation images%s, %dx%d%s, %d classes%s", source, training, validation,
             tenth ? " (a tenth)" : "", train->height, examples_columns(train),
             examples_channels(train) > 1 ? " in colour" : "", train->classes, dataset->streaming ? "; streams" : "");
}

/* Divides what is in memory into the images held out, which come first, and the rest. */
static void split(struct dataset *dataset, const struct examples *whole, int held_out)
{
    *dataset = (struct dataset){.validation = examples_part(whole, 0, held_out),
                                .train = examples_part(whole, held_out, whole->count - held_out),
                                .bytes = (size_t)whole->count * examples_bytes(whole)};
    dataset->sample = dataset->train;
}

int dataset_batch(const struct config *config, int count)
{
    const int share = count / ROWS_A_BATCH;
    int batch = config->train.batch_size;
    if (!config_was_chosen(config, "train", "batch_size") || config->data.data_sharding == SHARDING_CHIEF) {
        return batch; /* also where workers who don't know the rows must expect the same */
    }
    if (config_is_of_table(config)) {
        batch = share < SMALLEST_BATCH ? SMALLEST_BATCH : share > LARGEST_BATCH ? LARGEST_BATCH : share;
    }
    return count < 1 ? 1 : batch < count ? batch : count;
}

/* Tasks whose batches this process draws from the files, each with its own windows. */
static int streaming_tasks(const struct config *config)
{
    const struct config_cluster *cluster = &config->cluster;
    if (cluster->job_name != JOB_WORKER) {
        return config->train.micro_batches;
    }
    return config->data.data_sharding == SHARDING_CHIEF ? cluster->worker_hosts.count : 1;
}

/* Makes the rest, after what is in memory, stream. Takes ownership of the overflow's source and blocks. */
static bool stream_rest(struct dataset *dataset, struct overflow *overflow, const struct config *config,
                        struct error *error)
{
    const struct streaming_options options = {.seed = (uint64_t)config->train.seed,
                                              .batch_size = dataset_batch(config, (int)overflow->blocks.examples),
                                              .shuffle_buffer = config->data.shuffle_buffer};
    const struct examples *like = &overflow->source->like;
    uint64_t tasks = (uint64_t)streaming_tasks(config), of_task = streaming_task_bytes(&options, like);
    uint64_t held = dataset->bytes;
    if (held + tasks * of_task > overflow->limit) {
        uint64_t left = overflow->limit > held ? overflow->limit - held : 0;
        return error_set(error,
                         "data.shuffle_buffer: two windows of %d %s for each of %d tasks, beside %llu MiB of those "
                         "held out, do not fit into %llu MiB (data.memory_mb); lower --shuffle_buffer to %llu or "
                         "--validation_size, or raise --memory_mb",
                         options.shuffle_buffer, examples_are_rows(like) ? "rows" : "images", (int)tasks,
                         (unsigned long long)(held >> 20), (unsigned long long)(overflow->limit >> 20),
                         (unsigned long long)(left / tasks / 2 / examples_bytes(like)));
    }
    const int rows = (int)overflow->blocks.examples;
    dataset->train = *like;
    dataset->train.count = rows;
    dataset->bytes += (size_t)(tasks * of_task);
    dataset->streaming = streaming_create(&options, overflow->source, &overflow->blocks);
    overflow->source = NULL;
    return true;
}

/* --- tables --- */

static struct table_options table_options(const struct config *config)
{
    return (struct table_options){.config = config, .limit = memory_limit(config)};
}

bool dataset_is_table(bool *is_table, const struct config *config, struct error *error)
{
    struct found found = {.is_there = false};
    enum data_source source = config->data.data_source;
    const bool done = source != DATA_AUTO || found_choose(&found, &source, DATASET_TRAIN, config, error);
    *is_table = done && source == DATA_TABLE;
    return done;
}

/* Only hidden layers are given; for tables that is the usual case. */
static bool model_follows(const struct config *config, bool is_table)
{
    if (config->cluster.job_name != JOB_LOCAL) { /* where ps, which see no data, must know whether to wait for them */
        return config->model.hidden_count != CONFIG_AUTO;
    }
    const enum config_source layers = config_origin_of(config, config_key_by_path("model", "layers"))->source;
    return config->model.hidden_count != CONFIG_AUTO || (is_table && layers == SOURCE_DEFAULT);
}

/* The model must have the schema's inputs, and an output for each class or target. */
static bool check_rows(const struct schema *schema, const char *name, const struct config *config, struct error *error)
{
    const struct config_model *model = &config->model;
    const int inputs = model->layers[0], outputs = model->layers[model->layer_count - 1];
    return (inputs == schema->inputs && outputs == schema_outputs(schema)) ||
           error_set(error,
                     "%s: its columns make %d inputs and %d outputs, and model.layers begins with %d and ends with %d; "
                     "change it%s",
                     name, schema->inputs, schema_outputs(schema), inputs, outputs,
                     config->data.data_sharding == SHARDING_OWN ? "" : ", or give model.hidden alone");
}

static void describe_table(struct dataset *dataset, const struct config *config)
{
    const struct schema *schema = dataset->schema;
    char training[COUNT_TEXT], validation[COUNT_TEXT];
    count_text(training, dataset->train.count);
    count_text(validation, dataset->validation.count);
    snprintf(dataset->description, sizeof dataset->description,
             "table in %.140s: %s training, %s validation rows, "
             "%d inputs of %d columns, %d %s%s",
             config->data.data_dir, training, validation, schema->inputs, schema_features(schema),
             schema_outputs(schema), schema->task == TASK_CLASS ? "classes" : "targets",
             dataset->streaming ? "; streams" : "");
}

/* Room for the rows held out, and for a sample, if not everything fits. */
static struct overflow begin_overflow(const struct config *config)
{
    const bool is_auto = config->data.validation_size == CONFIG_AUTO;
    const int held_out = is_auto ? VALIDATION_MOST : config->data.validation_size;
    const int percent = config_is_of_table(config) ? ROWS_PERCENT : PICTURES_PERCENT;
    return (struct overflow){.limit = memory_limit(config),
                             .held_out = held_out,
                             .percent = is_auto ? percent : 0,
                             .keep = held_out + DATASET_SAMPLE};
}

int dataset_held_out(const struct config *config, int count)
{
    struct overflow overflow = begin_overflow(config);
    overflow_settle(&overflow, count);
    return overflow.held_out;
}

/* Checks on a table that has been read. */
static bool check_table(const struct examples *whole, const struct overflow *overflow, const struct schema *schema,
                        const struct config *config, struct error *error)
{
    const struct dataset_origin origin = {.source = DATA_TABLE, .images = "the table"};
    const int count = overflow->source ? overflow->held_out + (int)overflow->blocks.examples : whole->count;
    return (model_follows(config, true) || check_rows(schema, config->data.data_dir, config, error)) &&
           check_counts(count, overflow->held_out, &origin, config, error);
}

static bool load_table(struct dataset *dataset, struct examples *test, const struct config *config, struct error *error)
{
    struct examples whole;
    struct fingerprint fingerprint;
    struct overflow overflow = begin_overflow(config);
    struct schema *schema = dataset->schema ? dataset->schema : must_zero(1, sizeof *schema, "columns");
    dataset->schema = NULL;
    if (!table_read_train(&whole, test, schema, &fingerprint, &overflow, config, error)) {
        overflow_free(&overflow);
        free(schema);
        return false;
    }
    split(dataset, &whole, overflow.held_out);
    dataset->schema = schema;
    dataset->fingerprint = fingerprint;
    bool done = check_table(&whole, &overflow, schema, config, error) &&
                (!overflow.source || stream_rest(dataset, &overflow, config, error));
    overflow_free(&overflow);
    if (!done) {
        dataset_free(dataset);
        return false;
    }
    describe_table(dataset, config);
    return true;
}

bool dataset_describe(struct dataset *dataset, const char *schema, const struct config *config, struct error *error)
{
    *dataset = (struct dataset){.schema = must_zero(1, sizeof *dataset->schema, "columns")};
    if (!schema_parse(dataset->schema, schema, error)) {
        return false;
    }
    dataset->train = encoder_shape(dataset->schema);
    dataset->train.is_weighted |= config->train.class_weights[0] != '\0';
    return model_follows(config, true) || check_rows(dataset->schema, "worker 0's table", config, error);
}

bool dataset_is_needed_first(const struct config *config)
{
    struct found found = {.is_there = false};
    struct error ignored; /* reading the data reports it again */
    enum data_source source = config->data.data_source;
    if (config->model.hidden_count != CONFIG_AUTO) {
        return true;
    }
    if (source == DATA_AUTO && !found_choose(&found, &source, DATASET_TRAIN, config, &ignored)) {
        return false;
    }
    return source == DATA_TABLE || (kinds[source].layers_follow && layers_are_usual(config));
}

/* Of a table; a target is a number that people have in mind, so it is not the loss. */
static enum metric usual_metric(const struct config_train *train, int targets)
{
    const bool has_target = train->target_accuracy > 0 || train->target_metric > 0;
    if (loss_is_of_numbers(train->loss)) {
        return has_target || (train->loss == LOSS_MSE && targets == 1) ? METRIC_RMSE : METRIC_LOSS;
    }
    return has_target ? METRIC_ACCURACY : METRIC_LOSS;
}

void dataset_choose_metric(struct config *config, const struct dataset *dataset)
{
    if (dataset->schema &&
        (config->train.best_metric == METRIC_AUTO || config_was_chosen(config, "train", "best_metric"))) {
        config->train.best_metric = usual_metric(&config->train, dataset->train.targets);
        config_note_chosen(config, "train", "best_metric", true);
    }
}

/*
 * Of the nets that nobody has set, those that suit the set: without numbers both see the same; where these are not
 * encoded (survey_schema, table_read_train) there is one.
 */
static void revise_nets(struct config *config, const struct dataset *dataset)
{
    struct config_model *model = &config->model;
    const struct examples *rows = &dataset->train;
    const bool is_chosen = model->net_count > 1 && config_was_chosen(config, "model", "ensemble");
    if (!is_chosen || (rows->piecewise > 0 && rows->numbers > 0)) {
        return;
    }
    const bool is_same = dataset->schema && rows->piecewise == 0 && rows->numbers == 0 && !dataset->streaming;
    model->net_count = is_same ? model->net_count : 0;
    for (int net = 0; net < model->net_count; net++) {
        model->views[net] = VIEW_RAW;
    }
}

/* Does the set have what a net of each view takes? */
static bool check_views(const struct config *config, const struct dataset *dataset, struct error *error)
{
    const struct examples *rows = &dataset->train;
    for (int net = 0; net < config->model.net_count; net++) {
        const bool has_raw = rows->piecewise == 0 || rows->numbers > 0;
        if (config->model.views[net] == VIEW_RAW ? !has_raw : rows->piecewise == 0) {
            error_set(error, "%s nets take numbers of a table %s, and this set has none",
                      config_view_name(config->model.views[net]), has_raw ? "that are encoded in bins" : "as they are");
            return config_error_at(config, "model", "ensemble", error);
        }
    }
    return true;
}

/* Each net's inputs are those of its view. */
static void take_net_inputs(struct config_model *model, const struct dataset *dataset)
{
    for (int net = 0; net < model->net_count; net++) {
        model->net_inputs[net] = dataset->schema ? examples_view(&dataset->train, model->views[net]).inputs : 0;
    }
    model->layers[0] = config_net_inputs(model, 0);
}

bool dataset_fit(struct config *config, const struct dataset *dataset, struct error *error)
{
    const struct schema *schema = dataset->schema;
    struct config_model *model = &config->model;
    if (schema && config->train.loss == LOSS_AUTO) {
        config->train.loss = schema_usual_loss(schema);
    }
    if (schema && dataset->validation.count == 0 && config->cluster.job_name == JOB_LOCAL) {
        config_choose_blind(config); /* so few rows that none are held out */
    }
    dataset_choose_metric(config, dataset);
    config->data.shape = dataset->shape;
    revise_nets(config, dataset);
    if (!check_views(config, dataset, error)) {
        return false;
    }
    if (!model_follows(config, schema) && !dataset->layers_follow) {
        return true;
    }
    const bool is_usual = model->hidden_count == CONFIG_AUTO;
    const int hidden = !is_usual ? model->hidden_count : schema ? 1 : model->layer_count - 2;
    int layers[CONFIG_MAX_LAYERS] = {0};
    layers[0] = schema ? schema->inputs : dataset->train.height * dataset->train.width;
    for (int i = 0; i < hidden; i++) {
        layers[i + 1] = !is_usual ? model->hidden[i] : schema ? USUAL_HIDDEN : model->layers[i + 1];
    }
    layers[hidden + 1] = schema ? schema_outputs(schema) : dataset->train.classes;
    if (layers[0] > CONFIG_MAX_INPUTS || layers[hidden + 1] > CONFIG_MAX_WIDTH) {
        return error_set(error, "data of %d inputs and %d outputs is too wide for a model; the most is %d and %d",
                         layers[0], layers[hidden + 1], CONFIG_MAX_INPUTS, CONFIG_MAX_WIDTH);
    }
    memcpy(model->layers, layers, sizeof layers);
    model->layer_count = hidden + 2;
    take_net_inputs(model, dataset);
    if (config->cluster.job_name == JOB_LOCAL) {
        model->hidden_count = CONFIG_AUTO; /* layers has all of it now */
    }
    return true;
}

bool dataset_check_classes(const char *path, const char *class_names, const struct config *config, struct error *error)
{
    struct found found = {.is_there = false};
    enum data_source source;
    char *here = NULL;
    const bool done = !class_names || (found_choose(&found, &source, DATASET_TRAIN, config, error) &&
                                       (source != DATA_FOLDERS || folders_class_names(&here, found.images, error)) &&
                                       class_names_check(path, class_names, here, error));
    free(here);
    return done;
}

bool dataset_load_file(struct examples *test, const char *path, const struct config *config,
                       const struct schema *schema, struct error *error)
{
    const struct table_options options = table_options(config);
    return table_read_file(test, schema, path, &options, error);
}

/* What is known of a set of folders beside its pictures. */
static bool describe_folders(struct dataset *dataset, const char *training, const struct config *config,
                             struct error *error)
{
    char test[DATA_MAX_PATH];
    if (!folders_find(test, config->data.data_dir, DATASET_TEST, error)) {
        return false;
    }
    dataset->shares_test = test[0] == '\0';
    folders_warn_of_unused(config->data.data_dir, training);
    return folders_class_names(&dataset->class_names, training, error);
}

bool dataset_load(struct dataset *dataset, struct examples *test, const struct config *config, struct error *error)
{
    bool is_table;
    if (!dataset_is_table(&is_table, config, error)) {
        return false;
    }
    if (is_table) {
        return load_table(dataset, test, config, error);
    }
    struct examples whole = {0};
    struct dataset_origin origin;
    struct overflow overflow = begin_overflow(config);
    struct image_shape shape = {.height = 0};
    bool done = read_part(&whole, &shape, true, &origin, DATASET_TRAIN, config, &overflow, error) &&
                check_model(&whole, &origin, config, error);
    if (done && overflow.source) {
        int64_t count = overflow.held_out + overflow.blocks.examples; /* blocks contain the examples after them */
        done = check_streamed_labels(overflow.source, &origin, config, error) &&
               check_counts(overflow.blocks.examples > 0 ? (int)count : whole.count, overflow.held_out, &origin, config,
                            error);
    } else if (done) {
        overflow_settle(&overflow, whole.count);
        done = check_counts(whole.count, overflow.held_out, &origin, config, error);
    }
    if (!done || !check_test_files(&whole, &origin, config, error)) {
        examples_free(&whole);
        overflow_free(&overflow);
        return false;
    }
    split(dataset, &whole, overflow.held_out);
    dataset->shape = shape;
    dataset->layers_follow = layers_are_usual(config) &&
                             (origin.source == DATA_FOLDERS || (origin.source == DATA_TFRECORD &&
                                                                whole.height * whole.width != config->model.layers[0]));
    dataset->fingerprint =
        fingerprint_of_pictures(&whole, overflow.source ? overflow.held_out + overflow.blocks.examples : whole.count);
    dataset->fingerprint.held_out = overflow.held_out;
    done = (!overflow.source || stream_rest(dataset, &overflow, config, error)) &&
           (origin.source != DATA_FOLDERS || describe_folders(dataset, origin.images, config, error));
    overflow_free(&overflow);
    if (!done) {
        dataset_free(dataset);
        return false;
    }
    describe(dataset, &origin, config);
    return true;
}

void dataset_free(struct dataset *dataset)
{
    streaming_destroy(dataset->streaming);
    if (dataset->schema) {
        schema_free(dataset->schema);
        free(dataset->schema);
    }
    free(dataset->class_names);
    examples_free(&dataset->validation); /* the start of the memory of both */
    memset(dataset, 0, sizeof *dataset);
}

bool dataset_wants_test(bool *wanted, const struct config *config, struct error *error)
{
    struct found found = {.is_there = false};
    enum data_source source;
    *wanted = true;
    if (config->data.test_share > 0) {
        return true;
    }
    if (!found_choose(&found, &source, DATASET_TRAIN, config, error)) {
        return false;
    }
    if (source == DATA_TABLE) {
        return table_files_exist(wanted, config, DATASET_TEST, error);
    }
    const bool done = source != DATA_FOLDERS || folders_find(found.images, config->data.data_dir, DATASET_TEST, error);
    *wanted = source != DATA_FOLDERS || found.images[0] != '\0';
    return done;
}

bool dataset_load_test(struct examples *test, const struct config *config, const struct schema *schema,
                       struct error *error)
{
    if (schema) {
        const struct table_options options = table_options(config);
        return table_read_test(test, schema, &options, error);
    }
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
