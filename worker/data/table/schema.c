/* Positions follow from the columns and are not stored, so that two files can't disagree about them. */
#include "worker/data/table/schema.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cJSON.h>

#include "base/config/keys.h"
#include "base/text/json.h"
#include "worker/data/table/number.h"

static const char *const task_names[] = {"class", "flags", "numbers", "inputs", NULL};
static const char *const role_names[] = {"feature", "target", "weight", NULL};
static const char *const kind_names[] = {"number", "category", "date", NULL};
static const char *const encoding_names[] = {"auto", "none", "ple", "both", NULL};
static const char *const order_names[] = {"auto", "dmy", "mdy", "ymd", NULL};

enum { SCHEMA_VERSION = 1, MOST_EDGES = CONFIG_MOST_BINS + 1 };

void schema_free(struct schema *schema)
{
    for (int i = 0; i < schema->count; i++) {
        free(schema->columns[i].name);
        free(schema->columns[i].edges);
        dictionary_free(&schema->columns[i].categories);
    }
    for (int i = 0; i < schema->missing.count; i++) {
        free(schema->missing.items[i]);
    }
    free(schema->missing.items);
    free(schema->columns);
    free(schema->bins);
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
                                     .piece = -1,
                                     .bin = -1,
                                     .place = -1,
                                     .code = -1};
    if (!column->name) {
        return NULL;
    }
    schema->count++;
    return column;
}

const double *schema_edges(const struct schema_column *column, int part, double of_part[2], int *count)
{
    if (column->kind == SCHEMA_NUMBER) {
        *count = column->edge_count;
        return column->edges;
    }
    of_part[0] = column->parts[part].low;
    of_part[1] = column->parts[part].high;
    *count = 2;
    return of_part;
}

bool schema_set_edges(struct schema_column *column, const double *edges, int count)
{
    column->edges = malloc((size_t)count * sizeof *edges);
    if (column->edges) {
        memcpy(column->edges, edges, (size_t)count * sizeof *edges);
        column->edge_count = count;
    }
    return column->edges;
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

/* The bins of encoded numbers; false if out of memory. */
static bool lay_out_bins(struct schema *schema, int *bins)
{
    *bins = 0;
    if (schema->encoding == ENCODING_NONE) {
        return true;
    }
    schema->bins = calloc((size_t)schema->numbers + 1, sizeof *schema->bins);
    for (int i = 0; schema->bins && i < schema->count; i++) {
        struct schema_column *column = &schema->columns[i];
        const int pieces = column->role == SCHEMA_FEATURE ? schema_pieces(column) : 0;
        column->piece = pieces > 0 ? schema->piecewise : -1;
        column->bin = pieces > 0 ? *bins : -1;
        for (int part = 0; part < pieces; part++) {
            const int mine = column->kind == SCHEMA_NUMBER ? column->edge_count - 1 : 1;
            schema->bins[schema->piecewise++] = mine;
            *bins += mine;
        }
    }
    return schema->bins;
}

/* The one-hot inputs; false if there are more inputs than a layer may have. */
static bool lay_out_places(struct schema *schema, int widest)
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
        if (widest + places > CONFIG_MAX_INPUTS) {
            return false;
        }
    }
    schema->inputs = schema->dense + (int)places;
    return widest <= CONFIG_MAX_INPUTS;
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
    int bins;
    schema->encoding = schema->encoding == ENCODING_AUTO ? ENCODING_NONE : schema->encoding;
    schema->piecewise = schema->dense = 0;
    lay_out_numbers(schema);
    if (!lay_out_bins(schema, &bins)) {
        return error_set(error, "out of memory for the bins of %d numbers", schema->numbers);
    }
    schema->dense = schema->encoding == ENCODING_PLE ? bins : schema->numbers;
    if (!lay_out_places(schema, bins > schema->dense ? bins : schema->dense)) {
        return error_set(error,
                         "the columns make more than %d inputs; leave those with the most categories out (--ignore), "
                         "or raise --category_min",
                         CONFIG_MAX_INPUTS);
    }
    if (schema->inputs == 0 || (schema->encoding == ENCODING_BOTH && schema->inputs == schema->dense && bins == 0)) {
        return error_set(error, "no column is left to learn from; name some with --features");
    }
    if (schema->task == TASK_INPUTS && schema->encoding != ENCODING_NONE) {
        return error_set(error, "data.encoding: ple has no numbers that --target=inputs could learn; use none");
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

static bool add_edges(cJSON *object, const struct schema_column *column)
{
    cJSON *edges = column->edge_count > 1 ? cJSON_AddArrayToObject(object, "edges") : NULL;
    bool done = edges || column->edge_count < 2;
    for (int i = 0; edges && done && i < column->edge_count; i++) {
        char text[32];
        config_number_text(column->edges[i], text);
        done = cJSON_AddItemToArray(edges, cJSON_CreateRaw(text));
    }
    return done;
}

static bool add_date(cJSON *object, const struct schema_column *column, bool is_encoded)
{
    bool done = cJSON_AddStringToObject(object, "dates", order_names[column->dates]);
    cJSON *parts = done ? cJSON_AddArrayToObject(object, "parts") : NULL;
    for (int i = 0; parts && done && i < column->part_count; i++) {
        const struct schema_part *part = &column->parts[i];
        cJSON *item = cJSON_CreateObject();
        done = cJSON_AddStringToObject(item, "part", date_part_names[part->part]) &&
               add_double(item, "center", part->center) && add_double(item, "scale", part->scale) &&
               add_double(item, "fill", part->fill);
        if (is_encoded) {
            done = done && add_double(item, "low", part->low) && add_double(item, "high", part->high);
        }
        done = cJSON_AddItemToArray(parts, item) && done;
    }
    return parts && done;
}

static cJSON *column_json(const struct schema_column *column, bool is_encoded)
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
        done = done && add_date(object, column, is_encoded);
    } else {
        done = done && add_notation(object, &column->notation) && add_double(object, "center", column->center) &&
               add_double(object, "scale", column->scale) && add_double(object, "fill", column->fill);
        done = done && (isinf(column->low) || add_double(object, "low", column->low)) &&
               (isinf(column->high) || add_double(object, "high", column->high)) && add_edges(object, column);
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
    const bool is_encoded = schema->encoding != ENCODING_NONE;
    done = done && (!is_encoded || cJSON_AddStringToObject(root, "encoding", encoding_names[schema->encoding]));
    cJSON *missing = done && schema->missing.count > 0 ? cJSON_AddArrayToObject(root, "missing") : NULL;
    done = done && (missing || schema->missing.count == 0);
    for (int i = 0; done && i < schema->missing.count; i++) {
        done = cJSON_AddItemToArray(missing, cJSON_CreateString(schema->missing.items[i]));
    }
    cJSON *columns = done ? cJSON_AddArrayToObject(root, "columns") : NULL;
    for (int i = 0; columns && done && i < schema->count; i++) {
        done = cJSON_AddItemToArray(columns, column_json(&schema->columns[i], is_encoded));
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

bool schema_take_raw(struct schema *schema, struct error *error)
{
    for (int i = 0; i < schema->count; i++) {
        struct schema_column *column = &schema->columns[i];
        free(column->edges);
        column->edges = NULL;
        column->edge_count = 0;
        column->piece = column->bin = -1;
    }
    free(schema->bins);
    free(schema->target_means);
    free(schema->target_scales);
    free(schema->text);
    schema->bins = NULL;
    schema->target_means = schema->target_scales = NULL;
    schema->text = NULL;
    schema->encoding = ENCODING_NONE;
    return schema_finish(schema, error);
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

/* Without bins: none. */
static bool get_edges(struct schema_column *column, struct json_value object)
{
    const struct json_value array = json_member(object, "edges");
    struct json_walk walk = json_walk(array);
    struct json_value item;
    double edges[MOST_EDGES + 1];
    int count = 0;
    if (array.kind == JSON_NONE) {
        return true;
    }
    while (array.kind == JSON_ARRAY && count <= MOST_EDGES && json_next(&walk, &item)) {
        if (item.kind != JSON_NUMBER || number_parse(item.text, item.size, &edges[count]) != NUMBER_FINITE ||
            (count > 0 && !(edges[count] > edges[count - 1])) || fabs(edges[count]) > FLT_MAX) {
            return false;
        }
        count++;
    }
    return count > 1 && count <= MOST_EDGES && schema_set_edges(column, edges, count);
}

static bool get_parts(struct schema_column *column, struct json_value object, bool is_encoded)
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
            !get_double(item, "fill", &to->fill) || to->scale == 0 ||
            (is_encoded &&
             (!get_double(item, "low", &to->low) || !get_double(item, "high", &to->high) || !(to->low < to->high)))) {
            return false;
        }
    }
    column->dates = (enum table_dates)(order < 0 ? 0 : order);
    return order > 0 && column->part_count > 0;
}

static bool get_column(const struct schema_reader *reader, struct json_value object)
{
    const bool is_encoded = reader->schema->encoding != ENCODING_NONE;
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
        return role == SCHEMA_FEATURE && get_parts(column, object, is_encoded);
    }
    return get_notation(reader, &column->notation, object) && get_double(object, "center", &column->center) &&
           get_double(object, "scale", &column->scale) && get_double(object, "fill", &column->fill) &&
           column->scale != 0 && get_bound(object, "low", &column->low) && get_bound(object, "high", &column->high) &&
           column->low <= column->high && (!is_encoded || get_edges(column, object));
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
    const int encoding =
        json_member(root, "encoding").kind == JSON_NONE ? ENCODING_NONE : find_word(root, "encoding", encoding_names);
    bool done = columns.kind == JSON_ARRAY && task >= 0 && encoding > ENCODING_AUTO;
    reader->schema->encoding = (enum table_encoding)(done ? encoding : ENCODING_NONE);
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

static bool same_edges(const struct schema_column *there, const struct schema_column *here, struct error *error)
{
    const size_t bytes = (size_t)here->edge_count * sizeof *here->edges;
    if (there->edge_count != here->edge_count || (bytes > 0 && memcmp(there->edges, here->edges, bytes) != 0)) {
        return error_set(error, "column %.64s has %d bins there and %d here, or other edges of them", here->name,
                         there->edge_count > 1 ? there->edge_count - 1 : 0,
                         here->edge_count > 1 ? here->edge_count - 1 : 0);
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
            a->scale != b->scale || a->fill != b->fill || a->low != b->low || a->high != b->high) {
            return error_set(error, "column %.64s has other dates there than here", here->name);
        }
    }
    if (there->low != here->low || there->high != here->high) {
        return error_set(error, "column %.64s is used from %.9g to %.9g there, and from %.9g to %.9g here", here->name,
                         there->low, there->high, here->low, here->high);
    }
    return same_edges(there, here, error) && say_categories(there, here, error);
}

bool schema_same(const struct schema *there, const struct schema *here, struct error *error)
{
    if (there->task != here->task) {
        return error_set(error, "it learns %s there and %s here", task_names[there->task], task_names[here->task]);
    }
    if (there->encoding != here->encoding) {
        return error_set(error, "data.encoding is %s there and %s here", encoding_names[there->encoding],
                         encoding_names[here->encoding]);
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
