/* data info and data synth. Both ignore the model: people run them when the data does not fit it. */

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cJSON.h>
#include <sodium.h>

#include "base/cli/commands.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text/json.h"
#include "worker/data/convert.h"
#include "worker/data/files.h"
#include "worker/data/stream.h"
#include "worker/data/table/info.h"
#include "worker/data/folders.h"
#include "worker/data/names.h"
#include "worker/dataset.h"

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
    uint8_t *chunk = malloc(DIGEST_CHUNK);
    crypto_hash_sha256_state state;
    crypto_hash_sha256_init(&state);
    bool done = chunk || error_set(error, "%s: out of memory while reading it", path);
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
    .run = run_synth,
};
