/* A file is opened twice: to find its columns, which takes several records if the first are damaged, and to read it. */
#include "worker/data/table/records.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config/keys.h"
#include "base/text/text.h"
#include "worker/data/stream.h"
#include "worker/data/table/npy.h"
#include "worker/data/tfrecord/example.h"
#include "worker/data/tfrecord/reader.h"

enum { MOST_NAME = 4096, MOST_LEFT_OUT = 16, MOST_TEXT = 1 << 16 };

/* A feature and its columns. */
struct group {
    char *name;
    size_t name_size;
    bool is_raw; /* bytes, of this type: */
    enum label_dtype dtype;
    bool is_label; /* one column: the class */
    bool is_text;  /* one column */
    int first, count;
};

struct records_reader {
    struct tfrecord_reader *file;
    struct stream_content content;
    struct group *groups; /* by name */
    int group_count, group_capacity, columns;
    char **names;              /* [columns] */
    double *numbers;           /* [columns] */
    struct proto_field *texts; /* [columns], in the record; NULL: no feature is text */
    struct csv_field *fields;  /* [columns] */
    char *line;                /* that the fields are in */
    size_t line_capacity;
    char *left_out[MOST_LEFT_OUT];
    int left_out_count;
    uint64_t next; /* number of the next record, of those that are intact */
};

bool records_are_known(const char *name, const void *head, size_t size)
{
    uint64_t length;
    return fnmatch("*.tfrecord*", name, 0) == 0 || fnmatch("*.tfrecords*", name, 0) == 0 ||
           (size >= TFRECORD_HEADER && tfrecord_length(head, &length) && length <= TFRECORD_MAX_RECORD);
}

/* Says which record the error is about: the one that was read last. */
static void name_record(const struct records_reader *reader, uint64_t number, struct error *error)
{
    error_wrap(error, "%s: record %llu at byte %llu", records_name(reader), (unsigned long long)number,
               (unsigned long long)tfrecord_offset(reader->file));
}

static bool no_memory(const struct records_reader *reader, struct error *error)
{
    return error_set(error, "%s: out of memory while reading it", records_name(reader));
}

/* --- the features of a record --- */

/* The action for each feature; false stops, with the error set. */
typedef bool (*feature_taker)(struct records_reader *reader, const struct config_data *data,
                              const struct proto_field *key, const struct feature *feature, struct error *error);

static bool take_entry(struct records_reader *reader, const struct config_data *data, const struct proto_field *entry,
                       feature_taker take, struct error *error)
{
    struct proto_field key, value;
    struct feature feature = {.kind = FEATURE_NONE};
    if (entry->number != EXAMPLE_ENTRY || entry->wire != PROTO_BYTES) {
        return true;
    }
    if (!feature_entry(entry, &key, &value) || !feature_read(&feature, &value)) {
        return error_set(error, "its features are not those of a tf.train.Example");
    }
    return !key.bytes || key.size == 0 || take(reader, data, &key, &feature, error);
}

static bool take_record(struct records_reader *reader, const struct config_data *data, const uint8_t *record,
                        size_t size, feature_taker take, struct error *error)
{
    struct proto_reader example = proto_read(record, size);
    struct proto_field field, entry;
    while (proto_next(&example, &field)) {
        if (field.number != EXAMPLE_FEATURES || field.wire != PROTO_BYTES) {
            continue;
        }
        struct proto_reader map = proto_read(field.bytes, field.size);
        while (proto_next(&map, &entry)) {
            if (!take_entry(reader, data, &entry, take, error)) {
                return false;
            }
        }
        if (map.damaged) {
            return error_set(error, "its features are not those of a tf.train.Example");
        }
    }
    return !example.damaged || error_set(error, "it is not a tf.train.Example");
}

/* --- columns, from the first record --- */

static bool is_target(const struct config_data *data, const char *name)
{
    for (int i = 0; data && i < data->target.count; i++) {
        if (strcmp(data->target.items[i], name) == 0) {
            return true;
        }
    }
    return false;
}

static int count_numbers(const struct feature *feature, const struct group *group)
{
    struct proto_field raw;
    if (group->is_raw) {
        return feature_bytes(feature, &raw) ? (int)(raw.size / (size_t)feature_dtype_bytes(group->dtype)) : 0;
    }
    struct feature_walk walk = feature_walk(feature);
    int count = 0;
    for (double number; feature_next(&walk, feature->kind, &number);) {
        count++;
    }
    return count;
}

static bool is_one_hot(const struct feature *feature, const struct group *group)
{
    int32_t label;
    struct error ignored;
    return example_label(feature, &(struct example_names){.label = group->name, .dtype = group->dtype}, &label,
                         &ignored);
}

/* Printable UTF-8; nothing at all is a text, too. */
static bool is_text(const struct proto_field *bytes)
{
    bool is = bytes->size <= MOST_TEXT && utf8_check(bytes->bytes, bytes->size);
    for (size_t i = 0; is && i < bytes->size; i++) {
        is = bytes->bytes[i] >= ' ' ? bytes->bytes[i] != 0x7F : strchr("\t\n\r", bytes->bytes[i]) && bytes->bytes[i];
    }
    return is;
}

/* A list of one text, or of none. */
static bool is_text_feature(const struct feature *feature)
{
    struct proto_reader list = proto_read(feature->bytes, feature->size);
    struct proto_field value;
    int count = 0;
    bool is = true;
    while (is && proto_next(&list, &value)) {
        is = value.number == FEATURE_LIST && value.wire == PROTO_BYTES && ++count == 1 && is_text(&value);
    }
    return is && !list.damaged;
}

static bool leave_out(struct records_reader *reader, const struct group *group, const struct feature *feature)
{
    struct proto_field raw = {.size = 0};
    const bool has_bytes = feature->kind == FEATURE_BYTES && feature_bytes(feature, &raw);
    const struct file_kind *found = has_bytes ? signature_find(raw.bytes, raw.size) : NULL;
    char text[512];
    snprintf(text, sizeof text,
             has_bytes
                 ? "%.200s: the feature %.64s holds %zu bytes, %s, and --feature_dtype does not say of which numbers"
                 : "%.200s: the feature %.64s is empty in the first record",
             records_name(reader), group->name, raw.size, found ? found->what : "which are no text");
    if (reader->left_out_count < MOST_LEFT_OUT) {
        reader->left_out[reader->left_out_count] = strdup(text);
        reader->left_out_count += !!reader->left_out[reader->left_out_count];
    }
    return true;
}

/* How to read a feature; *leave: it gives no columns. */
static bool plan_group(struct group *group, const struct config_data *data, const struct feature *feature, bool *leave,
                       struct error *error)
{
    const bool learnt = is_target(data, group->name);
    group->is_raw = feature->kind == FEATURE_BYTES;
    *leave = feature->kind == FEATURE_NONE;
    if (group->is_raw) {
        group->dtype = !data ? LABEL_AUTO : learnt ? data->label_dtype : data->feature_dtype;
        group->is_text = group->dtype == LABEL_AUTO && is_text_feature(feature) && !(learnt && feature->size == 0);
        *leave = group->dtype == LABEL_AUTO && !learnt && !group->is_text;
    }
    if (*leave || group->is_text) {
        group->is_raw = group->is_raw && !group->is_text;
        group->count = 1;
        return true;
    }
    const bool guesses = group->is_raw && group->dtype == LABEL_AUTO;
    group->count = guesses ? 1 : count_numbers(feature, group);
    if (guesses || (learnt && group->count > 1 && is_one_hot(feature, group))) {
        group->is_label = true;
        group->count = 1;
    }
    return group->count >= 1 ||
           error_set(error, "its feature \"%s\" has no numbers; the first record says how many there are", group->name);
}

static bool add_group(struct records_reader *reader, const struct config_data *data, const struct proto_field *key,
                      const struct feature *feature, struct error *error)
{
    if (reader->group_count == reader->group_capacity) {
        const int capacity = reader->group_capacity ? 2 * reader->group_capacity : 16;
        struct group *groups = realloc(reader->groups, (size_t)capacity * sizeof *groups);
        if (!groups) {
            return no_memory(reader, error);
        }
        reader->groups = groups;
        reader->group_capacity = capacity;
    }
    if (key->size > MOST_NAME || memchr(key->bytes, '\0', key->size)) {
        return error_set(error, "the name of a feature is longer than %d bytes, or no text", MOST_NAME);
    }
    struct group group = {.name = strndup((const char *)key->bytes, key->size), .name_size = key->size};
    bool leave = true;
    if (!group.name) {
        return no_memory(reader, error);
    }
    if (!plan_group(&group, data, feature, &leave, error)) {
        free(group.name);
        return false;
    }
    if (leave) {
        const bool done = leave_out(reader, &group, feature);
        free(group.name);
        return done;
    }
    reader->groups[reader->group_count++] = group;
    return true;
}

static int compare(const char *one, size_t one_size, const char *other, size_t other_size)
{
    const int order = memcmp(one, other, one_size < other_size ? one_size : other_size);
    return order ? order : (one_size > other_size) - (one_size < other_size);
}

static int by_name(const void *one, const void *other)
{
    const struct group *a = one, *b = other;
    return compare(a->name, a->name_size, b->name, b->name_size);
}

static bool name_group(struct records_reader *reader, struct group *group, struct error *error)
{
    group->first = reader->columns;
    for (int i = 0; i < group->count; i++) {
        char name[MOST_NAME + 16];
        snprintf(name, sizeof name, group->count > 1 ? "%s.%d" : "%s", group->name, i);
        reader->names[reader->columns] = strdup(name);
        if (!reader->names[reader->columns++]) {
            return no_memory(reader, error);
        }
    }
    return true;
}

/* If any column is text. */
static bool make_fields(struct records_reader *reader, size_t columns)
{
    bool has_text = false;
    for (int i = 0; i < reader->group_count; i++) {
        has_text |= reader->groups[i].is_text;
    }
    if (has_text) {
        reader->texts = calloc(columns, sizeof *reader->texts);
        reader->fields = calloc(columns, sizeof *reader->fields);
    }
    return !has_text || (reader->texts && reader->fields);
}

static bool name_columns(struct records_reader *reader, struct error *error)
{
    int64_t columns = 0;
    if (reader->group_count > 0) {
        qsort(reader->groups, (size_t)reader->group_count, sizeof *reader->groups, by_name);
    }
    for (int i = 0; i < reader->group_count; i++) {
        columns += reader->groups[i].count;
        if (i > 0 && by_name(&reader->groups[i - 1], &reader->groups[i]) == 0) {
            return error_set(error, "%s: its first record has feature \"%s\" twice", records_name(reader),
                             reader->groups[i].name);
        }
    }
    if (columns < 1 || columns > NPY_MAX_COLUMNS) {
        return error_set(error,
                         "%s: its first record has %lld numbers in its features; a table needs 1 to %d (of raw bytes, "
                         "--feature_dtype says what numbers they are)",
                         records_name(reader), (long long)columns, NPY_MAX_COLUMNS);
    }
    reader->names = calloc((size_t)columns, sizeof *reader->names);
    reader->numbers = calloc((size_t)columns, sizeof *reader->numbers);
    bool done = (reader->names && reader->numbers && make_fields(reader, (size_t)columns)) || no_memory(reader, error);
    for (int i = 0; done && i < reader->group_count; i++) {
        done = name_group(reader, &reader->groups[i], error);
    }
    return done;
}

static void forget_groups(struct records_reader *reader)
{
    for (int i = 0; i < reader->group_count; i++) {
        free(reader->groups[i].name);
    }
    reader->group_count = 0;
    while (reader->left_out_count > 0) {
        free(reader->left_out[--reader->left_out_count]);
    }
}

/* From the first record that is an Example; if there is none, the error is that of the last. */
static bool find_columns(struct records_reader *reader, const struct config_data *data, struct error *error)
{
    const uint8_t *record;
    size_t size;
    uint64_t number = 0;
    error_set(error, "%s: has no records; a table has at least a row", records_name(reader));
    for (;;) {
        struct error last;
        switch (tfrecord_next(reader->file, &record, &size, &last)) {
        case TFRECORD_RECORD:
            if (take_record(reader, data, record, size, add_group, &last)) {
                return name_columns(reader, error);
            }
            forget_groups(reader);
            *error = last;
            name_record(reader, number++, error);
            break;
        case TFRECORD_DAMAGED:
            *error = last;
            break;
        case TFRECORD_END:
            return false;
        case TFRECORD_FAILED:
            *error = last;
            return false;
        }
    }
}

static bool open_file(struct records_reader *reader, struct error *error)
{
    const struct stream_content *content = &reader->content;
    tfrecord_close(reader->file);
    reader->file = NULL;
    if (!content->bytes) {
        return tfrecord_open(&reader->file, content->name, error);
    }
    if (!tfrecord_open_bytes(&reader->file, content->name, content->bytes, content->size, error)) {
        return false;
    }
    tfrecord_charge_to(reader->file, content->account);
    return true;
}

bool records_open(struct records_reader **result, const struct stream_content *content, const struct config_data *data,
                  struct error *error)
{
    struct records_reader *reader = calloc(1, sizeof *reader);
    if (!reader) {
        return error_set(error, "%s: out of memory while reading it", content->name);
    }
    reader->content = *content;
    const bool done = open_file(reader, error) && find_columns(reader, data, error) && open_file(reader, error);
    reader->content.name = NULL; /* the file has its own copy */
    if (!done) {
        records_close(reader);
        return false;
    }
    *result = reader;
    return true;
}

void records_close(struct records_reader *reader)
{
    if (!reader) {
        return;
    }
    for (int i = 0; reader->names && i < reader->columns; i++) {
        free(reader->names[i]);
    }
    forget_groups(reader);
    free(reader->groups);
    free(reader->names);
    free(reader->numbers);
    free(reader->texts);
    free(reader->fields);
    budget_release(reader->content.account, reader->line_capacity);
    free(reader->line);
    tfrecord_close(reader->file);
    free(reader);
}

int records_columns(const struct records_reader *reader)
{
    return reader->columns;
}

const char *records_column_name(const struct records_reader *reader, int column)
{
    return reader->names[column];
}

const char *records_name(const struct records_reader *reader)
{
    return tfrecord_name(reader->file);
}

const char *records_left_out(const struct records_reader *reader, int index)
{
    return index < reader->left_out_count ? reader->left_out[index] : "";
}

uint64_t records_row(const struct records_reader *reader)
{
    return reader->next - 1;
}

/* --- rows --- */

static const struct group *find_group(const struct records_reader *reader, const struct proto_field *key)
{
    int low = 0, high = reader->group_count;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        const struct group *group = &reader->groups[middle];
        const int order = compare(group->name, group->name_size, (const char *)key->bytes, key->size);
        if (order == 0) {
            return group;
        }
        low = order < 0 ? middle + 1 : low;
        high = order < 0 ? high : middle;
    }
    return NULL;
}

static bool say_length(const struct group *group, struct error *error)
{
    return error_set(error, "its feature \"%s\" is not %d number%s, as in the first record", group->name, group->count,
                     group->count == 1 ? "" : "s");
}

static bool read_raw(const struct group *group, const struct feature *feature, double *numbers, struct error *error)
{
    struct proto_field raw;
    const size_t size = (size_t)feature_dtype_bytes(group->dtype);
    if (!feature_bytes(feature, &raw) || raw.size == 0) {
        return true; /* missing */
    }
    if (raw.size != size * (size_t)group->count) {
        return say_length(group, error);
    }
    for (int i = 0; i < group->count; i++) {
        numbers[i] = feature_raw_number(raw.bytes + (size_t)i * size, group->dtype);
    }
    return true;
}

static bool read_list(const struct group *group, const struct feature *feature, double *numbers, struct error *error)
{
    struct feature_walk walk = feature_walk(feature);
    int count = 0;
    for (double number; feature_next(&walk, feature->kind, &number); count++) {
        if (count == group->count) {
            return say_length(group, error);
        }
        numbers[count] = number;
    }
    return (!walk.list.damaged && (count == 0 || count == group->count)) || say_length(group, error);
}

static bool read_text(struct records_reader *reader, const struct group *group, const struct feature *feature,
                      struct error *error)
{
    struct proto_field *text = &reader->texts[group->first];
    if (feature->kind != FEATURE_BYTES || !is_text_feature(feature)) {
        return error_set(error, "its feature \"%s\" is not one text, as in the first record%s", group->name,
                         feature->kind == FEATURE_BYTES
                             ? "; if it is raw bytes, --feature_dtype (of a label --label_dtype) says of which numbers"
                             : "");
    }
    if (!feature_bytes(feature, text)) {
        *text = (struct proto_field){.size = 0};
    }
    return true;
}

static bool read_feature(struct records_reader *reader, const struct config_data *data, const struct proto_field *key,
                         const struct feature *feature, struct error *error)
{
    (void)data;
    const struct group *group = find_group(reader, key);
    if (!group || feature->kind == FEATURE_NONE) {
        return true;
    }
    double *numbers = reader->numbers + group->first;
    if (group->is_label) {
        int32_t label;
        const struct example_names names = {.label = group->name, .dtype = group->dtype};
        if (!example_label(feature, &names, &label, error)) {
            return false;
        }
        *numbers = (double)label;
        return true;
    }
    if (group->is_text) {
        return read_text(reader, group, feature, error);
    }
    if (group->is_raw != (feature->kind == FEATURE_BYTES)) {
        return error_set(error, "its feature \"%s\" is %s, unlike in the first record", group->name,
                         group->is_raw ? "numbers" : "bytes");
    }
    return group->is_raw ? read_raw(group, feature, numbers, error) : read_list(group, feature, numbers, error);
}

static bool grow_line(struct records_reader *reader, size_t size, struct error *error)
{
    if (size <= reader->line_capacity) {
        return true;
    }
    if (!budget_charge(reader->content.account, 2 * size - reader->line_capacity, error)) {
        return false;
    }
    char *larger = realloc(reader->line, 2 * size);
    if (!larger) {
        budget_release(reader->content.account, 2 * size - reader->line_capacity);
        return no_memory(reader, error);
    }
    reader->line = larger;
    reader->line_capacity = 2 * size;
    return true;
}

/* All columns as text, one behind the other, with a zero byte after each. */
static bool write_fields(struct records_reader *reader, struct records_row *row, struct error *error)
{
    enum { NUMBER_SIZE = 32 };
    size_t size = 0, used = 0;
    for (int i = 0; i < reader->columns; i++) {
        size += reader->texts[i].size + NUMBER_SIZE;
    }
    if (!grow_line(reader, size, error)) {
        return false;
    }
    for (int i = 0; i < reader->columns; i++) {
        struct csv_field *field = &reader->fields[i];
        char *at = reader->line + used;
        *field = (struct csv_field){.text = at, .size = (uint32_t)reader->texts[i].size, .column = (uint32_t)i + 1};
        if (field->size > 0) {
            memcpy(at, reader->texts[i].bytes, field->size);
        } else if (!isnan(reader->numbers[i])) {
            config_number_text(reader->numbers[i], at);
            field->size = (uint32_t)strlen(at);
        }
        at[field->size] = '\0';
        used += field->size + 1;
    }
    *row = (struct records_row){.fields = reader->fields, .raw = reader->line, .raw_size = used};
    return true;
}

enum csv_status records_next(struct records_reader *reader, struct records_row *next, struct error *error)
{
    const uint8_t *record;
    size_t size;
    switch (tfrecord_next(reader->file, &record, &size, error)) {
    case TFRECORD_RECORD:
        break;
    case TFRECORD_END:
        return CSV_END;
    case TFRECORD_DAMAGED:
        return CSV_BAD;
    case TFRECORD_FAILED:
        return CSV_FAILED;
    }
    for (int i = 0; i < reader->columns; i++) {
        reader->numbers[i] = NAN;
        if (reader->texts) {
            reader->texts[i] = (struct proto_field){.size = 0};
        }
    }
    const uint64_t row = reader->next++;
    if (!take_record(reader, NULL, record, size, read_feature, error)) {
        name_record(reader, row, error);
        return CSV_BAD;
    }
    *next = (struct records_row){.numbers = reader->numbers};
    return !reader->texts || write_fields(reader, next, error) ? CSV_ROW : CSV_FAILED;
}
