/* Only scalars that the page can show are read; other events cost no more than a look at their tags. */
#include "worker/dashboard/curves.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/encoding/proto.h"
#include "base/file.h"
#include "worker/data/names.h"
#include "worker/data/tfrecord/reader.h"

/* Fields of tensorflow/core/util/event.proto and tensorflow/core/framework/summary.proto. */
enum { EVENT_TIME = 1, EVENT_STEP = 2, EVENT_SUMMARY = 5, SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_SCALAR = 2 };

static const struct {
    const char *tag, *series;
} known[] = {
    {"cross_entropy", "loss"},
    {"learning_rate", "learning_rate"},
    {"global_step/sec", "steps_per_s"},
    {"examples/sec", "examples_per_s"},
};

static const char validation[] = "validation/";

/* The series that a tag is for; -1: none. */
static int series_of(struct history *history, const char *tag)
{
    char name[HISTORY_NAME];
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(tag, known[i].tag) == 0) {
            return history_series(history, known[i].series);
        }
    }
    if (strncmp(tag, validation, strlen(validation)) != 0) {
        return -1;
    }
    const int length = snprintf(name, sizeof name, "metric:%s", tag + strlen(validation));
    return length < (int)sizeof name ? history_series(history, name) : -1;
}

static void take_value(struct history *history, const struct proto_field *value, float values[HISTORY_SERIES])
{
    struct proto_reader reader = proto_read(value->bytes, value->size);
    struct proto_field field;
    char tag[64] = "";
    float scalar = NAN;
    while (proto_next(&reader, &field)) {
        if (field.number == VALUE_TAG && field.wire == PROTO_BYTES && field.size < sizeof tag) {
            memcpy(tag, field.bytes, field.size);
            tag[field.size] = '\0';
        } else if (field.number == VALUE_SCALAR && field.wire == PROTO_FIXED32) {
            scalar = proto_float_of(field.value);
        }
    }
    const int index = isfinite(scalar) ? series_of(history, tag) : -1;
    if (index >= 0) {
        values[index] = scalar;
    }
}

static void take_summary(struct history *history, const struct proto_field *summary, float values[HISTORY_SERIES])
{
    struct proto_reader reader = proto_read(summary->bytes, summary->size);
    struct proto_field field;
    while (proto_next(&reader, &field)) {
        if (field.number == SUMMARY_VALUE && field.wire == PROTO_BYTES) {
            take_value(history, &field, values);
        }
    }
}

static void take_event(struct history *history, const uint8_t *record, size_t size)
{
    struct proto_reader reader = proto_read(record, size);
    struct proto_field field;
    float values[HISTORY_SERIES];
    double time_s = NAN;
    int64_t step = 0;
    bool any = false;
    for (int i = 0; i < HISTORY_SERIES; i++) {
        values[i] = NAN;
    }
    while (proto_next(&reader, &field)) {
        if (field.number == EVENT_TIME && field.wire == PROTO_FIXED64) {
            memcpy(&time_s, &field.value, sizeof time_s);
        } else if (field.number == EVENT_STEP && field.wire == PROTO_VARINT) {
            step = (int64_t)field.value;
        } else if (field.number == EVENT_SUMMARY && field.wire == PROTO_BYTES) {
            take_summary(history, &field, values);
        }
    }
    for (int i = 0; i < history->series; i++) {
        any |= !isnan(values[i]);
    }
    if (any && time_s > 0 && step >= 0 && !reader.damaged) {
        history_add(history, time_s, step, values);
    }
}

static bool read_file(struct history *history, const char *path, struct error *error)
{
    struct tfrecord_reader *reader;
    enum tfrecord_status status;
    const uint8_t *record;
    size_t size;
    if (!tfrecord_open(&reader, path, error)) {
        return false;
    }
    do {
        status = tfrecord_next(reader, &record, &size, error);
        if (status == TFRECORD_RECORD) {
            take_event(history, record, size);
        }
    } while (status == TFRECORD_RECORD || status == TFRECORD_DAMAGED);
    tfrecord_close(reader);
    return status == TFRECORD_END;
}

bool curves_read(struct history *history, const char *folder, struct error *error)
{
    struct names names = {.items = NULL};
    char path[4096];
    bool done = names_list(&names, folder, "events.out.tfevents.*", error);
    for (int i = 0; i < names.count && done; i++) {
        done = file_join(path, sizeof path, folder, names.items[i], error) && read_file(history, path, error);
    }
    names_free(&names);
    return done;
}
