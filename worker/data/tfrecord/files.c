#include "worker/data/tfrecord/files.h"

#include <stdlib.h>

#include "base/file.h"
#include "base/log.h"
#include "worker/data/builder.h"
#include "worker/data/files.h"
#include "worker/data/names.h"
#include "worker/data/tfrecord/example.h"
#include "worker/data/tfrecord/reader.h"

enum { MOST_FILES = 1024 }; /* open at the same time */

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

/* All that a read owns. */
struct reading {
    const struct config_data *config;
    struct names names;
    struct tfrecord_reader **readers; /* [names.count]; NULL at their end */
    struct example example;           /* the one being read */
    struct builder builder;
    int bad;
};

static bool open_readers(struct reading *reading, const char *pattern, struct error *error)
{
    const char *folder = reading->config->data_dir;
    if (!names_list(&reading->names, folder, pattern, error)) {
        return false;
    }
    if (reading->names.count == 0 || reading->names.count > MOST_FILES) {
        return error_set(error, "%s: has %d files %s; 1 to %d are possible", folder, reading->names.count, pattern,
                         MOST_FILES);
    }
    reading->readers = calloc((size_t)reading->names.count, sizeof(struct tfrecord_reader *));
    if (!reading->readers) {
        return error_set(error, "no memory to read %d files", reading->names.count);
    }
    for (int i = 0; i < reading->names.count; i++) {
        char path[DATA_MAX_PATH];
        if (!file_join(path, sizeof path, folder, reading->names.items[i], error) ||
            !tfrecord_open(&reading->readers[i], path, error)) {
            return false;
        }
    }
    return true;
}

/* What is wrong with a record has been put into the error: is there still room for it? */
static bool pass_over(struct reading *reading, struct error *error)
{
    if (reading->bad >= reading->config->max_bad_records) {
        return error_wrap(error, reading->bad == 0 ? "damaged data (--max_bad_records allows for some)"
                                                   : "more damaged data than --max_bad_records");
    }
    reading->bad++;
    log_warning("%s; it is passed over", error->text);
    return true;
}

static bool add_record(struct reading *reading, const struct tfrecord_reader *reader, const uint8_t *record,
                       size_t size, struct error *error)
{
    const struct example_names names = {reading->config->image_feature, reading->config->label_feature};
    struct example *example = &reading->example;
    if (!example_decode(example, record, size, &names, error)) {
        error_wrap(error, "%s: the record at byte %llu", tfrecord_name(reader),
                   (unsigned long long)tfrecord_offset(reader));
        return pass_over(reading, error);
    }
    bool added = builder_add(&reading->builder, &example->image, example->label, error);
    if (!added) {
        error_wrap(error, "%s: the record at byte %llu", tfrecord_name(reader),
                   (unsigned long long)tfrecord_offset(reader));
    }
    return added || pass_over(reading, error);
}

/* One record of one file; closes the reader at the file's end. */
static bool take_one(struct reading *reading, int file, struct error *error)
{
    struct tfrecord_reader *reader = reading->readers[file];
    const uint8_t *record;
    size_t size;
    switch (tfrecord_next(reader, &record, &size, error)) {
    case TFRECORD_RECORD:
        return add_record(reading, reader, record, size, error);
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
            open += reading->readers[i] != NULL;
        }
    }
    return true;
}

bool tfrecord_files_read(struct examples *examples, const struct config_data *config, enum dataset_part part,
                         struct error *error)
{
    struct reading reading = {.config = config};
    const char *pattern = tfrecord_pattern(config, part);
    bool done = open_readers(&reading, pattern, error) && read_all(&reading, error);
    if (done && !builder_finish(&reading.builder, examples, error)) {
        done = error_wrap(error, "%s/%s", config->data_dir, pattern);
    }
    for (int i = 0; i < reading.names.count && reading.readers; i++) {
        tfrecord_close(reading.readers[i]);
    }
    free(reading.readers);
    names_free(&reading.names);
    example_free(&reading.example);
    builder_free(&reading.builder);
    return done;
}
