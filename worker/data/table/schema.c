/* Positions follow from the columns and are not stored, so that two files can't disagree about them. */
#include "worker/data/table/schema.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cJSON.h>

#include "base/config/keys.h"
#include "base/text/json.h"
#include "worker/data/table/number.h"

static const char *const task_names[] = {"class", "flags", "numbers", "inputs", NULL};
static const char *const role_names[] = {"feature", "target", "weight", NULL};
static const char *const kind_names[] = {"number", "category", "date", NULL};
static const char *const order_names[] = {"auto", "dmy", "mdy", "ymd", NULL};

enum { SCHEMA_VERSION = 1 };

void schema_free(struct schema *schema)
{
    for (int i = 0; i < schema->count; i++) {
        free(schema->columns[i].name);
        dictionary_free(&schema->columns[i].categories);
    }
    for (int i = 0; i < schema->missing.count; i++) {
        free(schema->missing.items[i]);
    }
    free(schema->missing.items);
    free(schema->columns);
    free(schema->target_means);
    free(schema->target_scales);
    free(schema->text);
    *schema = (struct schema){.count = 0};
}

struct schema_column *schema_add(struct schema *schema, const char *name, enum schema_role role, enum schema_kind kind)
{
    struct schema_column *columns = realloc(schema->columns, ((size_t)schema->count + 1) * sizeof *columns);
    if (!columns) {
        return NULL;
    }
    schema->columns = columns;
    struct schema_column *column = &columns[schema->count];
    *column = (struct schema_column){.name = strdup(name),
                                     .role = role,
                                     .kind = kind,
                                     .scale = 1,
                                     .low = -INFINITY,
                                     .high = INFINITY,
                                     .input = -1,
                                     .place = -1,
                                     .code = -1};
    if (!column->name) {
        return NULL;
    }
    schema->count++;
    return column;
}

static bool add_missing(struct schema *schema, const char *text)
{
    struct string_list *list = &schema->missing;
    char **items = realloc(list->items, ((size_t)list->count + 1) * sizeof *items);
    if (!items) {
        return false;
    }
    list->items = items;
    items[list->count] = strdup(text);
    return items[list->count] && ++list->count > 0;
}

bool schema_set_missing(struct schema *schema, const struct string_list *missing)
{
    for (int i = 0; i < missing->count; i++) {
        if (!add_missing(schema, missing->items[i])) {
            return false;
        }
    }
    return true;
}

/* --- places --- */

static void lay_out_numbers(struct schema *schema)
{
    for (int i = 0; i < schema->count; i++) {
        struct schema_column *column = &schema->columns[i];
        if (column->role == SCHEMA_FEATURE && column->kind != SCHEMA_CATEGORY) {
            column->input = schema->numbers;
            schema->numbers += schema_numbers(column);
        } else if (column->role == SCHEMA_TARGET) {
            column->input = schema->targets++;
        }
    }
}

/* The one-hot inputs; false if there are more inputs than a layer may have. */
static bool lay_out_places(struct schema *schema)
{
    int64_t places = 0;
    for (int i = 0; i < schema->count; i++) {
        struct schema_column *column = &schema->columns[i];
        const bool is_category = column->kind == SCHEMA_CATEGORY;
        if (column->role != SCHEMA_FEATURE || (!is_category && !column->may_miss)) {
            continue;
        }
        column->place = (int)places;
        column->code = schema->codes++;
        places += is_category ? 1 + (int64_t)column->categories.count + column->may_miss : 1;
        if (schema->numbers + places > CONFIG_MAX_INPUTS) {
            return false;
        }
    }
    schema->inputs = schema->numbers + (int)places;
    return true;
}

/* A class is one of the target's categories; other targets are numbers. */
static bool targets_fit(const struct schema *schema)
{
    const enum schema_kind wanted = schema->task == TASK_CLASS ? SCHEMA_CATEGORY : SCHEMA_NUMBER;
    for (int i = 0; i < schema->count; i++) {
        const struct schema_column *column = &schema->columns[i];
        if (column->role == SCHEMA_TARGET &&
            (column->kind != wanted || (wanted == SCHEMA_CATEGORY && column->categories.count == 0))) {
            return false;
        }
    }
    return true;
}

static bool lay_out(struct schema *schema, struct error *error)
{
    schema->numbers = schema->codes = schema->inputs = schema->targets = schema->classes = 0;
    lay_out_numbers(schema);
    if (!lay_out_places(schema)) {
        return error_set(error,
                         "the columns make more than %d inputs; leave those with the most categories out (--ignore), "
                         "or raise --category_min",
                         CONFIG_MAX_INPUTS);
    }
    if (schema->inputs == 0) {
        return error_set(error, "no column is left to learn from; name some with --features");
    }
    if (schema->task == TASK_INPUTS) {
        schema->targets = schema->inputs;
    } else if (schema->targets == 0 || (schema->task == TASK_CLASS && schema->targets != 1)) {
        return error_set(error, "a class needs one target, and the other tasks at least one");
    }
    if (!targets_fit(schema)) {
        return error_set(error, "a class is one of a target's categories, and the other tasks learn numbers");
    }
    if (schema->task == TASK_CLASS) {
        schema->classes = schema_target(schema, 0)->categories.count;
        schema->targets = 0;
    }
    return true;
}

const struct schema_column *schema_target(const struct schema *schema, int target)
{
    for (int i = 0; i < schema->count; i++) {
        if (schema->columns[i].role == SCHEMA_TARGET && schema->columns[i].input == target) {
            return &schema->columns[i];
        }
    }
    return NULL;
}

enum loss_kind schema_usual_loss(const struct schema *schema)
{
    return schema->task == TASK_CLASS ? LOSS_SOFTMAX : schema->task == TASK_FLAGS ? LOSS_SIGMOID : LOSS_MSE;
}

int schema_features(const struct schema *schema)
{
    int features = 0;
    for (int i = 0; i < schema->count; i++) {
        features += schema->columns[i].role == SCHEMA_FEATURE;
    }
    return features;
}

const char *schema_output_name(const struct schema *schema, int output)
{
    if (schema->task == TASK_CLASS) {
        return dictionary_text(&schema_target(schema, 0)->categories, output);
    }
    const struct schema_column *target = schema_target(schema, output);
    return target ? target->name : "";
}

/* --- JSON --- */

static bool add_double(cJSON *object, const char *name, double number)
{
    char text[32];
    config_number_text(number, text);
    return cJSON_AddRawToObject(object, name, text);
}

static cJSON *categories_json(const struct dictionary *categories)
{
    cJSON *array = cJSON_CreateArray();
    for (int i = 0; array && i < categories->count; i++) {
        if (!cJSON_AddItemToArray(array, cJSON_CreateString(dictionary_text(categories, i)))) {
            cJSON_Delete(array);
            return NULL;
        }
    }
    return array;
}

static bool add_categories(cJSON *object, const struct dictionary *categories)
{
    cJSON *array = categories_json(categories);
    if (!array || !cJSON_AddItemToObject(object, "categories", array)) {
        cJSON_Delete(array);
        return false;
    }
    return true;
}

/* How a column is written, where that is not plain. */
static bool add_notation(cJSON *object, const struct notation *notation)
{
    const char decimal[] = {notation->decimal, '\0'}, group[] = {notation->group, '\0'};
    if (notation_is_plain(notation)) {
        return true;
    }
    cJSON *written = cJSON_AddObjectToObject(object, "notation");
    return written && cJSON_AddStringToObject(written, "decimal", decimal) &&
           cJSON_AddStringToObject(written, "group", group) && cJSON_AddStringToObject(written, "unit", notation->unit);
}

static bool add_date(cJSON *object, const struct schema_column *column)
{
    bool done = cJSON_AddStringToObject(object, "dates", order_names[column->dates]);
    cJSON *parts = done ? cJSON_AddArrayToObject(object, "parts") : NULL;
    for (int i = 0; parts && done && i < column->part_count; i++) {
        const struct schema_part *part = &column->parts[i];
        cJSON *item = cJSON_CreateObject();
        done = cJSON_AddStringToObject(item, "part", date_part_names[part->part]) &&
               add_double(item, "center", part->center) && add_double(item, "scale", part->scale) &&
               add_double(item, "fill", part->fill);
        done = cJSON_AddItemToArray(parts, item) && done;
    }
    return parts && done;
}

static cJSON *column_json(const struct schema_column *column)
{
    cJSON *object = cJSON_CreateObject();
    bool done = cJSON_AddStringToObject(object, "name", column->name) &&
                cJSON_AddStringToObject(object, "role", role_names[column->role]) &&
                cJSON_AddStringToObject(object, "kind", kind_names[column->kind]);
    if (column->role == SCHEMA_FEATURE) {
        done = done && cJSON_AddBoolToObject(object, "may_miss", column->may_miss);
    }
    if (column->kind == SCHEMA_CATEGORY) {
        done = done && add_categories(object, &column->categories);
    } else if (column->kind == SCHEMA_DATE) {
        done = done && add_date(object, column);
    } else {
        done = done && add_notation(object, &column->notation) && add_double(object, "center", column->center) &&
               add_double(object, "scale", column->scale) && add_double(object, "fill", column->fill);
        done = done && (isinf(column->low) || add_double(object, "low", column->low)) &&
               (isinf(column->high) || add_double(object, "high", column->high));
    }
    if (!done) {
        cJSON_Delete(object);
        return NULL;
    }
    return object;
}

static bool make_text(struct schema *schema)
{
    cJSON *root = cJSON_CreateObject();
    bool done = cJSON_AddNumberToObject(root, "version", SCHEMA_VERSION) &&
                cJSON_AddStringToObject(root, "task", task_names[schema->task]);
    cJSON *missing = done && schema->missing.count > 0 ? cJSON_AddArrayToObject(root, "missing") : NULL;
    done = done && (missing || schema->missing.count == 0);
    for (int i = 0; done && i < schema->missing.count; i++) {
        done = cJSON_AddItemToArray(missing, cJSON_CreateString(schema->missing.items[i]));
    }
    cJSON *columns = done ? cJSON_AddArrayToObject(root, "columns") : NULL;
    for (int i = 0; columns && done && i < schema->count; i++) {
        done = cJSON_AddItemToArray(columns, column_json(&schema->columns[i]));
    }
    free(schema->text);
    schema->text = columns && done ? cJSON_PrintUnformatted(root) : NULL;
    cJSON_Delete(root);
    return schema->text;
}

static bool keep_target_scales(struct schema *schema)
{
    if (schema->task != TASK_NUMBERS) {
        return true;
    }
    schema->target_means = calloc((size_t)schema->targets, sizeof *schema->target_means);
    schema->target_scales = calloc((size_t)schema->targets, sizeof *schema->target_scales);
    for (int i = 0; schema->target_means && schema->target_scales && i < schema->targets; i++) {
        const struct schema_column *target = schema_target(schema, i);
        schema->target_means[i] = target->center;
        schema->target_scales[i] = target->scale;
    }
    return schema->target_means && schema->target_scales;
}

bool schema_finish(struct schema *schema, struct error *error)
{
    return lay_out(schema, error) && ((keep_target_scales(schema) && make_text(schema)) ||
                                      error_set(error, "out of memory for the names of columns and categories"));
}

/* Reads in place: the text may be another member's, and of any size that a message holds. */
struct schema_reader {
    struct schema *schema;
    char *scratch; /* room for any string of the text */
};

static const char *unescape(const struct schema_reader *reader, struct json_value string, size_t *size)
{
    *size = json_unescape(string, reader->scratch);
    reader->scratch[*size] = '\0';
    return reader->scratch;
}

/* The index of a word in a list; -1 if it is missing. */
static int find_word(struct json_value object, const char *name, const char *const *words)
{
    const struct json_value item = json_member(object, name);
    for (int i = 0; item.kind == JSON_STRING && words[i]; i++) {
        if (json_is(item, words[i])) {
            return i;
        }
    }
    return -1;
}

static bool get_double(struct json_value object, const char *name, double *number)
{
    const struct json_value item = json_member(object, name);
    return item.kind == JSON_NUMBER && number_parse(item.text, item.size, number) == NUMBER_FINITE;
}

/* One that may be missing, and then stays as it is. */
static bool get_bound(struct json_value object, const char *name, double *number)
{
    return json_member(object, name).kind == JSON_NONE || get_double(object, name, number);
}

static bool get_categories(const struct schema_reader *reader, struct schema_column *column, struct json_value array)
{
    struct json_walk walk = json_walk(array);
    struct json_value item;
    size_t size;
    for (int expected = 0; json_next(&walk, &item); expected++) {
        if (item.kind != JSON_STRING) {
            return false;
        }
        const char *text = unescape(reader, item, &size);
        if (dictionary_add(&column->categories, text, size) != expected) {
            return false; /* also a duplicate */
        }
    }
    return array.kind == JSON_ARRAY;
}

/* The one byte of a short text; none: 0. False: it is longer. */
static bool get_sign(struct json_value object, const char *name, char *sign)
{
    const struct json_value item = json_member(object, name);
    *sign = item.kind == JSON_STRING && item.size == 3 ? item.text[1] : '\0';
    return item.kind == JSON_STRING && item.size <= 3;
}

/* Without one, numbers are plain. */
static bool get_notation(const struct schema_reader *reader, struct notation *notation, struct json_value object)
{
    const struct json_value written = json_member(object, "notation"), unit = json_member(written, "unit");
    size_t size;
    if (written.kind == JSON_NONE) {
        return true;
    }
    if (unit.kind != JSON_STRING || !get_sign(written, "decimal", &notation->decimal) ||
        !get_sign(written, "group", &notation->group) || notation->decimal == '\0') {
        return false;
    }
    const char *text = unescape(reader, unit, &size);
    if (size >= NOTATION_UNIT) {
        return false;
    }
    memcpy(notation->unit, text, size);
    return notation_is_valid(notation);
}

static bool get_parts(struct schema_column *column, struct json_value object)
{
    const struct json_value parts = json_member(object, "parts");
    const int order = find_word(object, "dates", order_names);
    struct json_walk walk = json_walk(parts);
    struct json_value item;
    unsigned seen = 0;
    while (parts.kind == JSON_ARRAY && json_next(&walk, &item)) {
        const int part = find_word(item, "part", date_part_names);
        if (part < 0 || (seen >> part & 1) != 0) {
            return false;
        }
        struct schema_part *to = &column->parts[column->part_count++];
        seen |= 1U << part;
        to->part = (enum date_part)part;
        if (!get_double(item, "center", &to->center) || !get_double(item, "scale", &to->scale) ||
            !get_double(item, "fill", &to->fill) || to->scale == 0) {
            return false;
        }
    }
    column->dates = (enum table_dates)(order < 0 ? 0 : order);
    return order > 0 && column->part_count > 0;
}

static bool get_column(const struct schema_reader *reader, struct json_value object)
{
    const struct json_value name = json_member(object, "name");
    const int role = find_word(object, "role", role_names), kind = find_word(object, "kind", kind_names);
    size_t size;
    if (name.kind != JSON_STRING || role < 0 || kind < 0) {
        return false;
    }
    struct schema_column *column =
        schema_add(reader->schema, unescape(reader, name, &size), (enum schema_role)role, (enum schema_kind)kind);
    if (!column) {
        return false;
    }
    column->may_miss = role == SCHEMA_FEATURE && json_member(object, "may_miss").kind == JSON_TRUE;
    if (kind == SCHEMA_CATEGORY) {
        return get_categories(reader, column, json_member(object, "categories"));
    }
    if (kind == SCHEMA_DATE) {
        return role == SCHEMA_FEATURE && get_parts(column, object);
    }
    return get_notation(reader, &column->notation, object) && get_double(object, "center", &column->center) &&
           get_double(object, "scale", &column->scale) && get_double(object, "fill", &column->fill) &&
           column->scale != 0 && get_bound(object, "low", &column->low) && get_bound(object, "high", &column->high) &&
           column->low <= column->high;
}

static bool get_columns(const struct schema_reader *reader, struct json_value root)
{
    const struct json_value columns = json_member(root, "columns");
    const int task = find_word(root, "task", task_names);
    struct json_walk walk = json_walk(columns);
    struct json_value object;
    const struct json_value missing = json_member(root, "missing");
    struct json_walk marks = json_walk(missing);
    size_t size;
    bool done = columns.kind == JSON_ARRAY && task >= 0;
    while (done && missing.kind == JSON_ARRAY && json_next(&marks, &object)) {
        done = object.kind == JSON_STRING && add_missing(reader->schema, unescape(reader, object, &size));
    }
    while (done && json_next(&walk, &object)) {
        done = get_column(reader, object);
    }
    reader->schema->task = (enum schema_task)(done ? task : 0);
    return done;
}

bool schema_parse(struct schema *schema, const char *text, struct error *error)
{
    const size_t text_size = strlen(text);
    struct schema_reader reader = {schema, malloc(text_size + 1)};
    struct json_place place;
    double version = SCHEMA_VERSION;
    *schema = (struct schema){.count = 0};
    if (!reader.scratch) {
        return error_set(error, "out of memory for the preprocessing in it");
    }
    bool done = json_check_bytes(text, text_size, &place, error);
    const struct json_value root = done ? json_whole(text, text_size) : (struct json_value){.kind = JSON_NONE};
    const struct json_value item = json_member(root, "version");
    const bool is_other = get_double(root, "version", &version) && version != SCHEMA_VERSION;
    done = item.kind != JSON_NONE && !is_other && get_columns(&reader, root);
    free(reader.scratch);
    if (!done) {
        schema_free(schema);
        return error_set(error, is_other ? "the preprocessing in it is of another version of this program"
                                         : "the preprocessing in it is damaged, or there is too little memory for it");
    }
    if (!schema_finish(schema, error)) {
        schema_free(schema);
        return false;
    }
    return true;
}

/* --- comparing --- */

static bool say_categories(const struct schema_column *there, const struct schema_column *here, struct error *error)
{
    for (int i = 0; i < there->categories.count || i < here->categories.count; i++) {
        const char *a = i < there->categories.count ? dictionary_text(&there->categories, i) : NULL;
        const char *b = i < here->categories.count ? dictionary_text(&here->categories, i) : NULL;
        if (!a || !b || strcmp(a, b) != 0) {
            return error_set(error,
                             "column %.64s has %d categories there and %d here; the first that differs: %.64s "
                             "there, %.64s here",
                             here->name, there->categories.count, here->categories.count, a ? a : "none",
                             b ? b : "none");
        }
    }
    return true;
}

static bool same_column(const struct schema_column *there, const struct schema_column *here, struct error *error)
{
    if (strcmp(there->name, here->name) != 0) {
        return error_set(error, "column %.64s there is %.64s here", there->name, here->name);
    }
    if (there->role != here->role || there->kind != here->kind) {
        return error_set(error, "column %.64s is a %s (%s) there and a %s (%s) here", here->name,
                         role_names[there->role], kind_names[there->kind], role_names[here->role],
                         kind_names[here->kind]);
    }
    if (there->may_miss != here->may_miss) {
        return error_set(error, "column %.64s has missing values %s only", here->name,
                         there->may_miss ? "there" : "here");
    }
    if (there->center != here->center || there->scale != here->scale || there->fill != here->fill) {
        return error_set(error, "column %.64s has centre %.9g and scale %.9g there, %.9g and %.9g here", here->name,
                         there->center, there->scale, here->center, here->scale);
    }
    if (memcmp(&there->notation, &here->notation, sizeof there->notation) != 0 || there->dates != here->dates) {
        char one[NOTATION_TEXT], other[NOTATION_TEXT];
        notation_text(&there->notation, one);
        notation_text(&here->notation, other);
        return there->dates != here->dates
                   ? error_set(error, "column %.64s has dates as %s there and as %s here", here->name,
                               order_names[there->dates], order_names[here->dates])
                   : error_set(error, "column %.64s has numbers with %s there, and with %s here", here->name, one,
                               other);
    }
    for (int i = 0; i < there->part_count || i < here->part_count; i++) {
        const struct schema_part *a = &there->parts[i], *b = &here->parts[i];
        if (there->part_count != here->part_count || a->part != b->part || a->center != b->center ||
            a->scale != b->scale || a->fill != b->fill) {
            return error_set(error, "column %.64s has other dates there than here", here->name);
        }
    }
    if (there->low != here->low || there->high != here->high) {
        return error_set(error, "column %.64s is used from %.9g to %.9g there, and from %.9g to %.9g here", here->name,
                         there->low, there->high, here->low, here->high);
    }
    return say_categories(there, here, error);
}

bool schema_same(const struct schema *there, const struct schema *here, struct error *error)
{
    if (there->task != here->task) {
        return error_set(error, "it learns %s there and %s here", task_names[there->task], task_names[here->task]);
    }
    for (int i = 0; i < there->count && i < here->count; i++) {
        if (!same_column(&there->columns[i], &here->columns[i], error)) {
            return false;
        }
    }
    if (there->count != here->count) {
        const struct schema *longer = there->count > here->count ? there : here;
        return error_set(error, "column %.64s is %s only",
                         longer->columns[there->count < here->count ? there->count : here->count].name,
                         longer == there ? "there" : "here");
    }
    return true;
}

bool schema_check(const char *path, const char *there, const struct schema *here, struct error *error)
{
    if ((there && here && strcmp(there, here->text) == 0) || (!there && !here)) {
        return true;
    }
    struct schema schema;
    if (!there || !here) {
        return error_set(error, "%s: is of a model of %s, and the data are %s; choose another --train_dir", path,
                         there ? "tables" : "pictures", here ? "a table" : "pictures");
    }
    if (!schema_parse(&schema, there, error)) {
        return error_wrap(error, "%s", path);
    }
    const bool same = schema_same(&schema, here, error);
    schema_free(&schema);
    return same || error_wrap(error,
                              "%s: was trained on different data, so the inputs would mean something else (choose "
                              "another --train_dir)",
                              path);
}
