/* The commands data and convert. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cJSON.h>
#include <sodium.h>

#include "base/cli/commands.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text/json.h"
#include "base/text/text.h"
#include "worker/data/dataset.h"
#include "worker/data/examples.h"
#include "worker/data/folders.h"
#include "worker/data/idx.h"
#include "worker/data/image.h"
#include "worker/data/names.h"
#include "worker/data/stream.h"
#include "worker/data/table/survey.h"
#include "worker/data/table/table.h"
#include "worker/data/tfrecord/example.h"
#include "worker/data/tfrecord/reader.h"

/* --- Writers --- */

struct write_options {
    const char *folder;
    enum dataset_part part;                               /* DATASET_TRAIN or DATASET_TEST */
    enum stream_packing packing;                          /* of IDX (no zlib) and TFRecord */
    int shards;                                           /* TFRecord files */
    struct example_names names;                           /* TFRecord */
    void (*progress)(void *context, int done, int count); /* images so far; may be NULL */
    void *context;
};

/* trainer convert: data sets written as IDX, TFRecord, or folders of pictures. */

/* --- Compression --- */

/*
 * Compression of files to be written.
 *
 * Compresses in memory, so that the file itself is still written atomically.
 */

#define ZLIB_CONST /* deflate does not write to its input */
#include <zlib.h>

enum { ZLIB_WINDOW = 15, GZIP_WINDOW = 15 + 16, MEMORY_LEVEL = 8 };

/* Compresses them, one after another, into malloc'd memory (packed->bytes) as one gzip or zlib stream. */
static bool pack_parts(const struct file_part *parts, int count, enum stream_packing packing, struct file_part *packed,
                       struct error *error)
{
    z_stream deflater = {0};
    int window = packing == STREAM_ZLIB ? ZLIB_WINDOW : GZIP_WINDOW;
    assert(packing == STREAM_ZLIB || packing == STREAM_GZIP);
    if (deflateInit2(&deflater, Z_DEFAULT_COMPRESSION, Z_DEFLATED, window, MEMORY_LEVEL, Z_DEFAULT_STRATEGY) != Z_OK) {
        return error_set(error, "out of memory while compressing the images; write them plain");
    }
    size_t total = 0;
    for (int i = 0; i < count; i++) {
        total += parts[i].size;
    }
    size_t bound = deflateBound(&deflater, total);
    uint8_t *bytes = total <= UINT32_MAX / 2 ? malloc(bound) : NULL;
    if (!bytes) {
        deflateEnd(&deflater);
        return error_set(error, "out of memory while compressing %zu bytes of images; write them plain", total);
    }
    deflater.next_out = bytes;
    deflater.avail_out = (uInt)bound;
    for (int i = 0; i < count; i++) {
        deflater.next_in = parts[i].bytes;
        deflater.avail_in = (uInt)parts[i].size;
        deflate(&deflater, i + 1 < count ? Z_NO_FLUSH : Z_FINISH);
    }
    *packed = (struct file_part){bytes, bound - deflater.avail_out};
    deflateEnd(&deflater);
    return true;
}

/* Writes the parts to `path`, packed or plain, atomically. */
static bool pack_write(const char *path, const struct file_part *parts, int count, enum stream_packing packing,
                       struct error *error)
{
    struct file_part packed;
    if (packing == STREAM_PLAIN || packing == STREAM_DETECT) {
        return file_write_atomic(path, parts, count, error);
    }
    if (!pack_parts(parts, count, packing, &packed, error)) {
        return false;
    }
    bool done = file_write_atomic(path, &packed, 1, error);
    free((void *)(uintptr_t)packed.bytes);
    return done;
}

/* --- Writing --- */

/* One writer per kind of file. Each refuses to overwrite a file that exists. */

enum { PROGRESS_EVERY = 256 };

static void report_progress(const struct write_options *options, int done, int count)
{
    if (options->progress && (done % PROGRESS_EVERY == 0 || done == count)) {
        options->progress(options->context, done, count);
    }
}

/* Its pixels are the examples', to be read only. */
static struct image picture_at(const struct examples *examples, int i)
{
    return (struct image){.width = examples_columns(examples),
                          .height = examples->height,
                          .channels = examples_channels(examples),
                          .pixels = examples->images + (size_t)i * (size_t)examples->height * (size_t)examples->width};
}

static bool check_new(const char *path, struct error *error)
{
    return !file_exists(path) || error_set(error, "%s: already exists; choose another folder, or remove it", path);
}

/* --- IDX --- */

static bool write_idx_file(const char *name, const struct write_options *options, int dimensions, const uint32_t *sizes,
                           const struct file_part *elements, struct error *error)
{
    char path[DATA_MAX_PATH], file[64];
    uint8_t header[IDX_MAX_HEADER];
    struct file_part parts[2] = {{header, idx_write_header(header, dimensions, sizes)}, *elements};
    snprintf(file, sizeof file, "%s%s", name, options->packing == STREAM_GZIP ? ".gz" : "");
    return file_join(path, sizeof path, options->folder, file, error) && check_new(path, error) &&
           pack_write(path, parts, 2, options->packing, error);
}

static bool write_idx(const struct examples *examples, const struct write_options *options, struct error *error)
{
    bool test = options->part == DATASET_TEST;
    const uint32_t channels = (uint32_t)examples_channels(examples);
    uint32_t sizes[] = {(uint32_t)examples->count, (uint32_t)examples->height, (uint32_t)examples_columns(examples),
                        channels};
    size_t count = (size_t)examples->count;
    if (examples->classes > UINT8_MAX + 1) {
        return error_set(error, "IDX files hold labels up to %d, but the largest is %d; convert to TFRecord", UINT8_MAX,
                         examples->classes - 1);
    }
    uint8_t *labels = malloc(count);
    if (!labels) {
        return error_set(error, "out of memory for %zu labels", count);
    }
    for (size_t i = 0; i < count; i++) {
        labels[i] = (uint8_t)examples->labels[i];
    }
    struct file_part images_part = {examples->images, count * (size_t)examples->height * (size_t)examples->width};
    struct file_part labels_part = {labels, count};
    bool done =
        file_make_folder(options->folder, error) &&
        write_idx_file(data_file_names[test ? TEST_IMAGES : TRAIN_IMAGES], options, channels > 1 ? 4 : 3, sizes,
                       &images_part, error) &&
        write_idx_file(data_file_names[test ? TEST_LABELS : TRAIN_LABELS], options, 1, sizes, &labels_part, error);
    free(labels);
    if (done) {
        report_progress(options, examples->count, examples->count);
    }
    return done;
}

/* --- TFRecord --- */

static bool shard_path(char path[DATA_MAX_PATH], const struct write_options *options, int shard, struct error *error)
{
    char file[96];
    const char *part = options->part == DATASET_TEST ? "test" : "train";
    if (options->shards == 1) {
        snprintf(file, sizeof file, "%s.tfrecord", part);
    } else {
        snprintf(file, sizeof file, "%s-%05d-of-%05d.tfrecord", part, shard, options->shards);
    }
    return file_join(path, DATA_MAX_PATH, options->folder, file, error) && check_new(path, error);
}

static bool write_shard(const struct examples *examples, const struct write_options *options, int shard, int *done,
                        struct error *error)
{
    char path[DATA_MAX_PATH];
    struct proto file = {0}, record = {0};
    bool written = shard_path(path, options, shard, error);
    for (int i = shard; i < examples->count && written; i += options->shards) {
        proto_clear(&record);
        const struct image image = picture_at(examples, i);
        example_encode(&record, &options->names, &image, examples->labels[i]);
        tfrecord_append(&file, record.bytes, record.size);
        report_progress(options, ++*done, examples->count);
    }
    written = written && pack_write(path, &(struct file_part){file.bytes, file.size}, 1, options->packing, error);
    proto_free(&record);
    proto_free(&file);
    return written;
}

/* train.tfrecord, or train-00000-of-00004.tfrecord ...: images are dealt to the files in turn. */
static bool write_tfrecord(const struct examples *examples, const struct write_options *options, struct error *error)
{
    int done = 0;
    if (options->shards > examples->count) {
        return error_set(error, "--shards=%d exceeds the number of images, %d", options->shards, examples->count);
    }
    if (!file_make_folder(options->folder, error)) {
        return false;
    }
    for (int shard = 0; shard < options->shards; shard++) {
        if (!write_shard(examples, options, shard, &done, error)) {
            return false;
        }
    }
    return true;
}

/* --- folders of pictures --- */

static bool write_picture(const char *folder, const struct examples *examples, int i, struct error *error)
{
    const struct image image = picture_at(examples, i);
    char path[DATA_MAX_PATH], name[64];
    uint8_t *bytes;
    size_t size;
    snprintf(name, sizeof name, "%d", examples->labels[i]);
    if (!file_join(path, sizeof path, folder, name, error) || (!file_exists(path) && !file_make_folder(path, error))) {
        return false;
    }
    snprintf(name, sizeof name, "%d/%05d.png", examples->labels[i], i);
    if (!file_join(path, sizeof path, folder, name, error) || !image_encode_png(&image, &bytes, &size, error)) {
        return false;
    }
    /* No sync for each of many small files: a copy damaged by a crash can be made again. */
    const int fd = file_create(path, 0666, error);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    bool done = file && fwrite(bytes, 1, size, file) == size;
    done = (file ? fclose(file) == 0 : false) && done;
    free(bytes);
    return done || (fd >= 0 && error_set(error, "%s: cannot be written", path));
}

/* train/7/00012.png: image number 12, in the folder of its label. */
static bool write_folders(const struct examples *examples, const struct write_options *options, struct error *error)
{
    char folder[DATA_MAX_PATH];
    if (!file_join(folder, sizeof folder, options->folder, options->part == DATASET_TEST ? "test" : "train", error) ||
        !check_new(folder, error)) {
        return false;
    }
    for (int i = 0; i < examples->count; i++) {
        if (!write_picture(folder, examples, i, error)) {
            return false;
        }
        report_progress(options, i + 1, examples->count);
    }
    return true;
}

/* --- The command --- */

/* trainer convert: converts a data set between file formats. */

enum { MOST_SHARDS = 1024 };

static const double LOG_EVERY_S = 1;

/* The part being written, for progress lines. */
struct progress_line {
    const char *part;
    double logged_s;
};

static void show_progress(void *context, int done, int count)
{
    struct progress_line *line = context;
    char so_far[COUNT_TEXT], all[COUNT_TEXT];
    double now_s = clock_monotonic_s();
    if (done == count || now_s - line->logged_s >= LOG_EVERY_S) {
        line->logged_s = now_s;
        log_info("%s: %s of %s images", line->part, count_text(so_far, done), count_text(all, count));
    }
}

static const struct {
    const char *name;
    bool (*write)(const struct examples *examples, const struct write_options *options, struct error *error);
} formats[] = {{"idx", write_idx}, {"tfrecord", write_tfrecord}, {"folders", write_folders}};

enum { FORMATS = sizeof formats / sizeof formats[0] };

/* Converts one part; *count: its images. */
static bool convert_part(const struct write_options *wanted, enum dataset_part part, int format,
                         const struct config *config, int *count, struct error *error)
{
    struct examples examples;
    struct dataset_origin origin;
    struct progress_line line = {part == DATASET_TEST ? "test" : "training", clock_monotonic_s()};
    struct write_options options = *wanted;
    options.part = part;
    options.progress = show_progress;
    options.context = &line;
    if (!dataset_read(&examples, &origin, part, config, error)) {
        return false;
    }
    *count = examples.count;
    bool done = formats[format].write(&examples, &options, error);
    examples_free(&examples);
    return done;
}

/* Parses the flags; logs errors and returns false. */
static bool read_flags(const struct command_call *call, struct write_options *options, int *format)
{
    const char *to = command_value(call, "to"), *shards = command_value(call, "shards");
    const char *packing = command_value(call, "compression");
    options->folder = command_value(call, "out");
    options->names =
        (struct example_names){.image = call->config->data.image_feature, .label = call->config->data.label_feature};
    for (*format = 0; *format < FORMATS && (!to || strcmp(formats[*format].name, to) != 0); ++*format) {
    }
    if (*format == FORMATS || !options->folder || options->folder[0] == '\0') {
        log_error("convert needs --to=idx, tfrecord or folders, and --out=DIR, the folder to write to");
        return false;
    }
    char *end;
    errno = 0;
    long count = shards ? strtol(shards, &end, 10) : 1;
    if (shards && (errno != 0 || end == shards || *end != '\0' || count < 1 || count > MOST_SHARDS)) {
        log_error("--shards: must be an integer from 1 to %d, not \"%.64s\"", MOST_SHARDS, shards);
        return false;
    }
    options->shards = (int)count;
    options->packing = !packing || strcmp(packing, "none") == 0 ? STREAM_PLAIN
                       : strcmp(packing, "gzip") == 0           ? STREAM_GZIP
                       : strcmp(packing, "zlib") == 0           ? STREAM_ZLIB
                                                                : STREAM_DETECT;
    bool fits = options->packing != STREAM_DETECT &&
                (options->packing == STREAM_PLAIN || formats[*format].write == write_tfrecord ||
                 (options->packing == STREAM_GZIP && formats[*format].write == write_idx));
    if (!fits) {
        log_error("--compression: must be none, gzip (IDX, TFRecord) or zlib (TFRecord), not \"%.64s\"", packing);
        return false;
    }
    return true;
}

static int run_convert(const struct command_call *call)
{
    static const enum dataset_part parts[] = {DATASET_TRAIN, DATASET_TEST};
    struct write_options options = {.shards = 1};
    struct error error;
    int format, counts[2] = {0};
    if (!read_flags(call, &options, &format)) {
        return COMMAND_MISUSED;
    }
    for (int i = 0; i < 2; i++) {
        if (!convert_part(&options, parts[i], format, call->config, &counts[i], &error)) {
            log_error("%s", error.text);
            return COMMAND_FAILED;
        }
    }
    cJSON *fields = cJSON_CreateObject();
    cJSON_AddStringToObject(fields, "out", options.folder);
    cJSON_AddStringToObject(fields, "to", formats[format].name);
    cJSON_AddNumberToObject(fields, "train", counts[0]);
    cJSON_AddNumberToObject(fields, "test", counts[1]);
    log_event("converted", fields, "%s: %d training and %d test images as %s", options.folder, counts[0], counts[1],
              formats[format].name);
    return COMMAND_DONE;
}

static const struct command_flag flags[] = {
    {"to", "KIND", "idx, tfrecord, or folders (PNG images by class)"},
    {"out", "DIR", "folder to write into; existing files are never overwritten"},
    {"shards", "N", "number of TFRecord files per part (1)"},
    {"compression", "KIND", "none, gzip or zlib (none)"},
    {NULL, NULL, NULL},
};

const struct command command_convert = {
    .name = "convert",
    .summary = "convert a data set between IDX, TFRecord and folders of images",
    .details =
        "Reads --data_dir as training does (--data_source, --train_files, --image_feature and so on), and writes it to "
        "another folder. Pictures in folders keep their size and colours (--image_size, --color). TFRecord files hold "
        "tf.train.Examples "
        "with raw pixels, label, height and width, and channels where they are in colour.",
    .flags = flags,
    .takes_config = true,
    .confine = CONFINE_READER,
    .run = run_convert,
};

/* --- Commands --- */

/* data info and data synth. Both ignore the model: people run them when the data does not fit it. */

/* --- data info: a table --- */

/* Shows what each column holds: training's survey, extended to all values of all columns. */

enum { MOST_SHOWN = 24 /* bytes of a value */ };

static double deviation(const struct survey_column *column)
{
    return column->numbers.count > 0 ? sqrt(column->numbers.squares / (double)column->numbers.count) : 0;
}

static bool is_category(const struct survey_column *column)
{
    return column->is_category || column->texts > 0;
}

static bool are_dates(const struct survey_column *column)
{
    return column->dates != DATES_AUTO;
}

static const char *type_of(const struct survey_column *column, int64_t rows)
{
    return column->missing == rows ? "empty"
           : are_dates(column)     ? "date"
           : is_category(column)   ? "category"
           : column->is_integer    ? "integer"
                                   : "number";
}

enum { BECOMES = 160 };

static int bins_of(const struct survey_column *column, const struct survey *survey)
{
    double edges[CONFIG_MOST_BINS + 1];
    int count = 0;
    if (!sample_edges(&survey->sample, (int)(column - survey->columns), survey->data->bins, edges, &count)) {
        return 0;
    }
    return count > 1 ? count - 1 : 0;
}

/* What the model gets of a column: "number", "number in 9 bins", "date: month", "category of 4", "left out: empty". */
static void describe_inputs(const struct survey *survey, const struct survey_column *column, char text[BECOMES])
{
    char written[NOTATION_TEXT];
    notation_text(&column->notation, written);
    if (column->use == USE_NOTHING) {
        snprintf(text, BECOMES, "left out: not to be used");
    } else if (column->missing == survey->rows) {
        snprintf(text, BECOMES, "left out: empty");
    } else if (column->is_index) {
        snprintf(text, BECOMES, "left out: it only identifies the rows");
    } else if (are_dates(column)) {
        size_t used = (size_t)snprintf(text, BECOMES, "date");
        for (int i = 0; i < DATE_PARTS; i++) {
            if (column->calendar->maximum[i] > column->calendar->minimum[i]) {
                used +=
                    (size_t)snprintf(text + used, BECOMES - used, "%s%s", used > 4 ? ", " : ": ", date_part_names[i]);
            }
        }
        snprintf(text + used, BECOMES - used, "%s", used > 4 ? "" : ", left out: only one");
    } else if (survey_is_name(column, survey->rows)) {
        snprintf(text, BECOMES, "left out: different in nearly every row");
    } else if (is_category(column)) {
        snprintf(text, BECOMES, "category of %d", column->values.count);
    } else {
        const bool is_encoded = survey->encoding != ENCODING_NONE && column->use == USE_FEATURE;
        const int bins = is_encoded ? bins_of(column, survey) : 0;
        size_t used = (size_t)snprintf(text, BECOMES, "number");
        if (survey->encoding == ENCODING_PLE && is_encoded) {
            used += (size_t)snprintf(text + used, BECOMES - used, " in %d bins", bins);
        }
        if (!notation_is_plain(&column->notation) && used < BECOMES) {
            used += (size_t)snprintf(text + used, BECOMES - used, ": %s", written);
        }
        if (survey->encoding == ENCODING_BOTH && bins > 1 && used < BECOMES) {
            snprintf(text + used, BECOMES - used, ", also in %d bins", bins);
        }
    }
}

static const char *use_of(const struct survey_column *column)
{
    static const char *const names[] = {
        [USE_FEATURE] = "feature", [USE_TARGET] = "target", [USE_WEIGHT] = "weight", [USE_NOTHING] = "ignored"};
    return names[column->use];
}

static bool has_range(const struct survey_column *column)
{
    return !is_category(column) && !are_dates(column) && column->numbers.count > 0;
}

/* The most frequent value; -1: none. */
static int most_frequent(const struct survey_column *column)
{
    const struct dictionary *values = &column->values;
    int best = values->count > 0 ? 0 : -1;
    for (int i = 1; i < values->count; i++) {
        best = values->entries[i].count > values->entries[best].count ? i : best;
    }
    return best;
}

static void put_json(const struct survey *survey, const char *part, int files)
{
    cJSON *fields = cJSON_CreateObject();
    cJSON_AddStringToObject(fields, "part", part);
    cJSON_AddStringToObject(fields, "source", "table");
    cJSON_AddNumberToObject(fields, "files", files);
    cJSON_AddNumberToObject(fields, "rows", (double)survey->rows);
    if (survey->note[0] != '\0') {
        cJSON_AddStringToObject(fields, "note", survey->note);
    }
    cJSON *columns = cJSON_AddArrayToObject(fields, "columns");
    for (int i = 0; i < survey->count; i++) {
        const struct survey_column *column = &survey->columns[i];
        const int frequent = most_frequent(column);
        cJSON *object = cJSON_CreateObject();
        cJSON_AddStringToObject(object, "name", column->name);
        cJSON_AddStringToObject(object, "type", type_of(column, survey->rows));
        cJSON_AddStringToObject(object, "use", use_of(column));
        cJSON_AddNumberToObject(object, "missing", (double)column->missing);
        cJSON_AddNumberToObject(object, "distinct", column->values.count);
        char becomes[BECOMES];
        describe_inputs(survey, column, becomes);
        cJSON_AddStringToObject(object, "becomes", becomes);
        if (column->doubt[0] != '\0') {
            cJSON_AddStringToObject(object, "doubt", column->doubt);
        }
        cJSON *examples = cJSON_AddArrayToObject(object, "examples");
        for (int j = 0; j < SURVEY_EXAMPLES && column->examples[j][0] != '\0'; j++) {
            json_append(examples, cJSON_CreateString(column->examples[j]));
        }
        if (has_range(column)) {
            cJSON_AddNumberToObject(object, "min", column->minimum);
            cJSON_AddNumberToObject(object, "mean", column->numbers.mean);
            cJSON_AddNumberToObject(object, "max", column->maximum);
            cJSON_AddNumberToObject(object, "std", deviation(column));
        }
        if (frequent >= 0) {
            cJSON_AddStringToObject(object, "most_frequent", dictionary_text(&column->values, frequent));
            cJSON_AddNumberToObject(object, "most_frequent_rows", (double)column->values.entries[frequent].count);
        }
        json_append(columns, object);
    }
    log_event("data", fields, NULL);
}

static void put_readings(const struct survey *survey)
{
    printf("  %-24s %-44s %s\n", "column", "becomes", "examples");
    for (int i = 0; i < survey->count; i++) {
        const struct survey_column *column = &survey->columns[i];
        char becomes[BECOMES];
        describe_inputs(survey, column, becomes);
        printf("  %-24.24s %-44s", column->name, column->use == USE_TARGET ? "target" : becomes);
        for (int j = 0; j < SURVEY_EXAMPLES && column->examples[j][0] != '\0'; j++) {
            printf("%s %s", j > 0 ? " |" : "", column->examples[j]);
        }
        printf("\n");
        if (column->doubt[0] != '\0') {
            printf("  %-24s in doubt: %s\n", "", column->doubt);
        }
    }
}

static void put_text(const struct survey *survey, const char *part, int files)
{
    printf("%s: %" PRId64 " rows of %d columns, %d file%s\n", part, survey->rows, survey->count, files,
           files == 1 ? "" : "s");
    if (survey->note[0] != '\0') {
        printf("  %s\n", survey->note);
    }
    printf("  %-24s %-8s %-7s %9s %11s %11s %11s %11s %9s  %s\n", "column", "type", "use", "missing", "min", "mean",
           "max", "std", "distinct", "most frequent");
    for (int i = 0; i < survey->count; i++) {
        const struct survey_column *column = &survey->columns[i];
        const int frequent = most_frequent(column);
        printf("  %-24.24s %-8s %-7s %9" PRId64, column->name, type_of(column, survey->rows), use_of(column),
               column->missing);
        if (has_range(column)) {
            printf(" %11.5g %11.5g %11.5g %11.5g", column->minimum, column->numbers.mean, column->maximum,
                   deviation(column));
        } else {
            printf(" %11s %11s %11s %11s", "", "", "", "");
        }
        printf(" %8d%s", column->values.count, column->has_too_many ? "+" : " ");
        if (frequent >= 0) {
            printf("  %.*s (%" PRId64 ")", MOST_SHOWN, dictionary_text(&column->values, frequent),
                   column->values.entries[frequent].count);
        }
        printf("\n");
    }
    put_readings(survey);
}

/*
 * Prints a line for each column of the part's files, or one JSON object if the log's format is JSON. *there: whether
 * there are such files.
 */
static bool table_info(enum dataset_part part, bool *there, const struct config *config, struct error *error)
{
    struct survey survey = {.count = 0};
    int files = 0;
    if (!table_files_exist(there, config, part, error)) {
        return false;
    }
    const bool done = !*there || table_survey(&survey, &files, part, config, error);
    if (done && *there) {
        const char *name = part == DATASET_TEST ? "test" : "training";
        if (log_format() == LOG_JSON) {
            put_json(&survey, name, files);
        } else {
            put_text(&survey, name, files);
        }
    }
    survey_free(&survey);
    return done;
}

/* --- data info --- */

enum { SHA256_HEX = 2 * crypto_hash_sha256_BYTES + 1, DIGEST_CHUNK = 1 << 16 };

static void hex_digest(crypto_hash_sha256_state *state, char hex[SHA256_HEX])
{
    unsigned char digest[crypto_hash_sha256_BYTES];
    crypto_hash_sha256_final(state, digest);
    sodium_bin2hex(hex, SHA256_HEX, digest, sizeof digest);
}

/* SHA-256 of a file's unpacked content, as publishers of data sets list it. */
static bool digest_file(const char *path, char hex[SHA256_HEX], struct error *error)
{
    struct stream *stream;
    if (!stream_open_file(&stream, path, error)) {
        return false;
    }
    uint8_t *chunk = must_alloc(DIGEST_CHUNK, "a file's content");
    crypto_hash_sha256_state state;
    crypto_hash_sha256_init(&state);
    bool done = true;
    for (size_t got = DIGEST_CHUNK; done && got == DIGEST_CHUNK;) {
        done = stream_read(stream, chunk, DIGEST_CHUNK, &got, error);
        if (done) {
            crypto_hash_sha256_update(&state, chunk, got);
        }
    }
    hex_digest(&state, hex);
    free(chunk);
    stream_close(stream);
    return done;
}

/* Facts about one part. */
struct data_summary {
    struct examples examples; /* their counts alone */
    struct dataset_origin origin;
    char images_sha256[SHA256_HEX], labels_sha256[SHA256_HEX]; /* "" except for IDX files */
    struct names names;                                        /* of the classes of folders; none: numbers */
    int *class_counts;                                         /* [examples.classes] */
    uint64_t zero_pixels, pixel_sum;
    double zeros; /* share of the pixels */
    double mean;  /* of the pixels, 0..255 */
};

static bool begin_summary(void *context, const struct examples *shape, struct error *error)
{
    struct data_summary *summary = context;
    summary->examples = *shape;
    summary->class_counts = calloc((size_t)shape->classes, sizeof *summary->class_counts);
    return summary->class_counts || error_set(error, "out of memory while counting %d classes", shape->classes);
}

static void add_to_summary(void *context, const uint8_t *images, const int32_t *labels, int count)
{
    struct data_summary *summary = context;
    const size_t pixels = (size_t)count * (size_t)summary->examples.height * (size_t)summary->examples.width;
    for (int i = 0; i < count; i++) {
        summary->class_counts[labels[i]]++;
    }
    for (size_t i = 0; i < pixels; i++) {
        summary->zero_pixels += images[i] == 0;
        summary->pixel_sum += images[i];
    }
}

/* Of the classes, if they are not numbers. */
static bool read_names(struct names *names, const struct config *config, struct error *error)
{
    char training[DATA_MAX_PATH], *text = NULL;
    const bool done = folders_find(training, config->data.data_dir, DATASET_TRAIN, error) &&
                      folders_class_names(&text, training, error) && (!text || class_names_parse(names, text, error));
    free(text);
    return done;
}

static bool summarize(struct data_summary *summary, enum dataset_part part, const struct config *config,
                      struct error *error)
{
    memset(summary, 0, sizeof *summary);
    const struct dataset_visitor visitor = {.begin = begin_summary, .show = add_to_summary, .context = summary};
    if (!dataset_visit(&summary->origin, part, config, &visitor, error)) {
        return false;
    }
    if (summary->origin.source == DATA_FOLDERS && !read_names(&summary->names, config, error)) {
        return false;
    }
    const struct examples *all = &summary->examples;
    const double pixels = (double)all->count * (double)all->height * (double)all->width;
    summary->zeros = (double)summary->zero_pixels / pixels;
    summary->mean = (double)summary->pixel_sum / pixels;
    return summary->origin.source != DATA_IDX || (digest_file(summary->origin.images, summary->images_sha256, error) &&
                                                  digest_file(summary->origin.labels, summary->labels_sha256, error));
}

static void summary_free(struct data_summary *summary)
{
    free(summary->class_counts);
    names_free(&summary->names);
}

static void show_as_json(const struct data_summary *summary, const char *part)
{
    const struct examples *examples = &summary->examples;
    cJSON *fields = cJSON_CreateObject();
    cJSON_AddStringToObject(fields, "part", part);
    static const char *const sources[] = {
        [DATA_AUTO] = "",           [DATA_IDX] = "idx",    [DATA_SYNTHETIC] = "synthetic", [DATA_TFRECORD] = "tfrecord",
        [DATA_FOLDERS] = "folders", [DATA_TABLE] = "table"};
    cJSON_AddStringToObject(fields, "source", sources[summary->origin.source]);
    if (summary->origin.source == DATA_IDX) {
        cJSON_AddStringToObject(fields, "images_file", summary->origin.images);
        cJSON_AddStringToObject(fields, "images_sha256", summary->images_sha256);
        cJSON_AddStringToObject(fields, "labels_file", summary->origin.labels);
        cJSON_AddStringToObject(fields, "labels_sha256", summary->labels_sha256);
    }
    cJSON_AddNumberToObject(fields, "images", examples->count);
    cJSON_AddNumberToObject(fields, "height", examples->height);
    cJSON_AddNumberToObject(fields, "width", examples_columns(examples));
    cJSON_AddNumberToObject(fields, "channels", examples_channels(examples));
    cJSON_AddNumberToObject(fields, "classes", examples->classes);
    json_put(fields, "images_per_class", cJSON_CreateIntArray(summary->class_counts, examples->classes));
    if (summary->names.count > 0) {
        json_put(fields, "class_names",
                 cJSON_CreateStringArray((const char *const *)summary->names.items, summary->names.count));
    }
    cJSON_AddNumberToObject(fields, "zeros", summary->zeros);
    cJSON_AddNumberToObject(fields, "mean_pixel", summary->mean);
    log_event("data", fields, NULL);
}

static void show_as_text(const struct data_summary *summary, const char *part, int64_t seed)
{
    const struct examples *examples = &summary->examples;
    printf("%s: %d images of %dx%d%s, %d classes\n", part, examples->count, examples->height,
           examples_columns(examples), examples_channels(examples) > 1 ? " in colour" : "", examples->classes);
    if (summary->origin.source == DATA_SYNTHETIC) {
        printf("  source           synthetic digits of seed %" PRId64 "\n", seed);
    } else if (summary->origin.source != DATA_IDX) {
        printf("  source           %s\n", summary->origin.images);
    } else {
        printf("  images           %s\n  sha256, unpacked %s\n", summary->origin.images, summary->images_sha256);
        printf("  labels           %s\n  sha256, unpacked %s\n", summary->origin.labels, summary->labels_sha256);
    }
    printf("  pixels           %.1f%% are zero, mean %.1f of 255\n", 100 * summary->zeros, summary->mean);
    for (int i = 0; i < examples->classes && i < summary->names.count; i++) {
        printf("%s  %s: %d\n", i == 0 ? "  images per class" : "                  ", summary->names.items[i],
               summary->class_counts[i]);
    }
    for (int i = summary->names.count > 0 ? examples->classes : 0; i < examples->classes; i++) {
        const char *before = i == 0 ? "  images per class" : i % 5 == 0 ? "                  " : "";
        bool last_of_line = i % 5 == 4 || i + 1 == examples->classes;
        printf("%s  %3d: %-6d%s", before, i, summary->class_counts[i], last_of_line ? "\n" : "");
    }
}

static int run_info(const struct command_call *call)
{
    static const struct {
        enum dataset_part part;
        const char *name;
    } parts[] = {{DATASET_TRAIN, "training"}, {DATASET_TEST, "test"}};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        struct data_summary summary;
        struct error error;
        bool there, is_table;
        if (!dataset_is_table(&is_table, call->config, &error) ||
            (is_table && !table_info(parts[i].part, &there, call->config, &error))) {
            log_error("%s", error.text);
            return COMMAND_FAILED;
        }
        if (is_table) {
            continue;
        }
        bool done = summarize(&summary, parts[i].part, call->config, &error);
        if (!done) {
            log_error("%s", error.text);
        } else if (log_format() == LOG_JSON) {
            show_as_json(&summary, parts[i].name);
        } else {
            show_as_text(&summary, parts[i].name, call->config->train.seed);
        }
        summary_free(&summary);
        if (!done) {
            return COMMAND_FAILED;
        }
    }
    return COMMAND_DONE;
}

const struct command command_data_info = {
    .name = "data info",
    .summary = "describe the data in data_dir, or the synthetic digits: files, sizes, images per class; columns of a "
               "table",
    .takes_config = true,
    .confine = CONFINE_READER,
    .run = run_info,
};

/* --- data synth --- */

/* Never overwrite real data, nor mix it with synthetic digits. */
static bool check_folder(const char *folder, struct error *error)
{
    struct data_files files;
    if (!data_files_find(&files, folder, error)) {
        return false;
    }
    for (int i = 0; i < DATA_FILES; i++) {
        if (files.path[i][0] != '\0') {
            return error_set(error, "%s: already exists; choose another folder with --out, or remove it",
                             files.path[i]);
        }
    }
    return true;
}

static bool synth(const char *folder, struct config *config, bool gzip, struct error *error)
{
    static const enum dataset_part parts[] = {DATASET_TRAIN, DATASET_TEST};
    if (!check_folder(folder, error) || !file_make_folder(folder, error)) {
        return false;
    }
    config->data.data_source = DATA_SYNTHETIC;
    bool done = true;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0] && done; i++) {
        struct examples examples;
        struct dataset_origin origin;
        done = dataset_read(&examples, &origin, parts[i], config, error);
        if (done) {
            struct write_options options = {
                .folder = folder, .part = parts[i], .packing = gzip ? STREAM_GZIP : STREAM_PLAIN};
            done = write_idx(&examples, &options, error);
            examples_free(&examples);
        }
    }
    return done;
}

static int run_synth(const struct command_call *call)
{
    const char *folder = command_value(call, "out");
    struct config *config = call->config;
    struct error error;
    if (!folder || folder[0] == '\0') {
        log_error("data synth needs --out=DIR, the folder for the four files");
        return COMMAND_MISUSED;
    }
    if (!synth(folder, config, command_switch(call, "gzip"), &error)) {
        log_error("%s", error.text);
        return COMMAND_FAILED;
    }
    cJSON *fields = cJSON_CreateObject();
    cJSON_AddStringToObject(fields, "out", folder);
    cJSON_AddNumberToObject(fields, "seed", (double)config->train.seed);
    cJSON_AddNumberToObject(fields, "train", config->data.synthetic_train);
    cJSON_AddNumberToObject(fields, "test", config->data.synthetic_test);
    log_event("synth", fields, "%s: %d training and %d test images of seed %" PRId64, folder,
              config->data.synthetic_train, config->data.synthetic_test, config->train.seed);
    return COMMAND_DONE;
}

static const struct command_flag synth_flags[] = {
    {"out", "DIR", "folder to write into; existing files are never overwritten"},
    {"gzip", NULL, "compress the files"},
    {NULL, NULL, NULL},
};

const struct command command_data_synth = {
    .name = "data synth",
    .summary = "write synthetic digits as IDX files, as set by --seed, --synthetic_train and --synthetic_test",
    .flags = synth_flags,
    .takes_config = true,
    .confine = CONFINE_READER,
    .run = run_synth,
};
