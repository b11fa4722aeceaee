/* trainer convert: converts a data set between file formats. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cli/commands.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text/count.h"
#include "worker/data/convert/write.h"
#include "worker/dataset.h"

enum { MOST_SHARDS = 1024 };

static const double LOG_EVERY_S = 1;

/* The part being written, for progress lines. */
struct telling {
    const char *part;
    double logged_s;
};

static void tell(void *context, int done, int count)
{
    struct telling *telling = context;
    char so_far[COUNT_TEXT], all[COUNT_TEXT];
    double now_s = clock_monotonic_s();
    if (done == count || now_s - telling->logged_s >= LOG_EVERY_S) {
        telling->logged_s = now_s;
        log_info("%s: %s of %s images", telling->part, count_text(so_far, done), count_text(all, count));
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
    struct telling telling = {part == DATASET_TEST ? "test" : "training", clock_monotonic_s()};
    struct write_options options = *wanted;
    options.part = part;
    options.progress = tell;
    options.context = &telling;
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
        "another folder. TFRecord files hold tf.train.Examples with raw pixels, label, height and width.",
    .flags = flags,
    .takes_config = true,
    .run = run_convert,
};
