/* A space is JSON, the usual ones too, so that there is one way to read and to check it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cJSON.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/random/philox.h"
#include "base/text/json.h"
#include "base/text/text.h"
#include "worker/tune/tune.h"

enum { MOST_BYTES = 1 << 20, PATH_DEPTH = 3 };

/* --- The usual spaces --- */

/*
 * Around what a run without flags takes; the rates are those of its optimizer. Single nets are left out: where rows are
 * few, the luckiest of many looks better on the validation rows than an ensemble, and is not.
 */
static const char of_tables[] = "{\"learning_rate\": {\"min\": %g, \"max\": %g, \"log\": true},"
                                "\"hidden\": [[256], [128], [512], [128, 128], [256, 256]],"
                                "\"ensemble\": [\"raw:1,ple:1\", \"raw:2,ple:2\"],"
                                "\"bins\": [16, 8, 32],"
                                "\"ema_decay\": [0.99, 0.995],"
                                "\"batch_size\": [\"auto\", 32, 64, 128],"
                                "\"dropout\": [0, 0.1, 0.2, 0.4],"
                                "\"weight_decay\": [0, 0.001, 0.01, 0.1]}";

static const char of_pictures[] = "{\"learning_rate\": {\"min\": %g, \"max\": %g, \"log\": true},"
                                  "\"hidden\": [[500], [256], [1000], [256, 256], [500, 200]],"
                                  "\"batch_size\": [100, 32, 64, 200],"
                                  "\"dropout\": [0, 0.1, 0.2, 0.4],"
                                  "\"l2\": {\"min\": 1e-6, \"max\": 1e-3, \"log\": true}}";

static const double RATE_DOWN = 0.25, RATE_UP = 4;

/* --- Errors --- */

struct space_reader {
    struct space *space;
    const struct config *config; /* the search's */
    struct config scratch;       /* takes values, to check them */
    const char *name, *text;
    size_t size;
    struct error *error;
};

/* Puts "FILE:LINE:COLUMN: " before the error; path as for json_find. */
static bool fail_at(const struct space_reader *reader, const int *path, int depth, bool name)
{
    struct json_place place = {1, 1};
    json_find(reader->text, reader->size, path, depth, name, &place);
    return error_wrap(reader->error, "%s:%d:%d", reader->name, place.line, place.column);
}

/* --- Keys --- */

/* "learning_rate" or "train.learning_rate". */
static const struct config_key *find_key(const char *name)
{
    for (const struct config_key *key = config_keys; key->section; key++) {
        char path[CONFIG_PATH_SIZE];
        config_key_path(key, path);
        if (!key->no_flag && (strcmp(key->name, name) == 0 || strcmp(path, name) == 0)) {
            return key;
        }
    }
    return NULL;
}

static bool is_one_of(const struct config_key *key, const char *const *names)
{
    for (; *names; names++) {
        if (strcmp(key->name, *names) == 0) {
            return true;
        }
    }
    return false;
}

/* Why a key cannot be searched; NULL: it can. */
static const char *refusal(const struct config_key *key, const struct config *config)
{
    static const char *const lengths[] = {"train_steps", "epochs", "patience", "time_limit", NULL};
    static const char *const compared[] = {
        "data_source",   "validation_size", "fold",      "test_share", "target",          "group",
        "time",          "best_metric",     "threshold", "weight",     "target_accuracy", "target_metric",
        "data_sharding", "interval",        NULL};
    static const char *const losses[] = {"loss", "huber_delta", "quantile", "class_weights", NULL};
    const bool is_of_training =
        strcmp(key->section, "model") == 0 || strcmp(key->section, "train") == 0 || strcmp(key->section, "data") == 0;
    const enum metric metric = config->train.best_metric;
    if (!is_of_training || key->scope != SCOPE_JOB) {
        return "says where and how a process runs, not what it learns; leave it out";
    }
    if (is_one_of(key, lengths)) {
        return "sets how long a trial is, which the search decides; give it as a flag for all trials";
    }
    if (is_one_of(key, compared)) {
        return "sets what trials are compared by, which must be the same for all; give it as a flag";
    }
    return is_one_of(key, losses) && (metric == METRIC_AUTO || metric == METRIC_LOSS)
               ? "changes the loss, by which trials are compared; set --best_metric to compare them by"
               : NULL;
}

static bool is_number(const struct config_key *key)
{
    return key->type == KEY_COUNT || key->type == KEY_LONG || key->type == KEY_NUMBER;
}

/* --- Values --- */

/* Checks one value by the key's own rules; path: of the value. */
static bool take_value(struct space_reader *reader, const struct config_key *key, const cJSON *value, const int *path,
                       int depth)
{
    int full[PATH_DEPTH + 1] = {path[0], path[1], path[2], -1};
    if (config_key_set_json(key, &reader->scratch, value, &full[depth], reader->error)) {
        return true;
    }
    if (full[depth] >= 0) {
        depth++;
    }
    error_wrap(reader->error, "%s", key->name);
    return fail_at(reader, full, depth, false);
}

static bool read_values(struct space_reader *reader, struct space_key *dimension, const cJSON *list, int index)
{
    int path[PATH_DEPTH] = {index, 0, 0};
    const int count = cJSON_GetArraySize(list);
    if (count < 1 || count > SPACE_MOST_VALUES) {
        error_set(reader->error, "%s: has %d values; give from 1 to %d", dimension->key->name, count,
                  SPACE_MOST_VALUES);
        return fail_at(reader, path, 1, false);
    }
    dimension->values = must_zero((size_t)count, sizeof *dimension->values, "a space of configs");
    for (const cJSON *value = list->child; value; value = value->next, path[1]++) {
        if (!take_value(reader, dimension->key, value, path, 2)) {
            return false;
        }
        dimension->values[dimension->value_count++] = config_key_text(dimension->key, &reader->scratch);
    }
    return true;
}

/* "min", "max", "log" or "int" of a range. */
static bool read_limit(struct space_reader *reader, struct space_key *dimension, const cJSON *member, const int *path)
{
    const char *name = dimension->key->name, *called = member->string;
    const bool is_log = strcmp(called, "log") == 0, is_minimum = strcmp(called, "min") == 0;
    if (is_log || strcmp(called, "int") == 0) {
        bool *on = is_log ? &dimension->is_log : &dimension->is_integer;
        *on = *on || cJSON_IsTrue(member);
        if (cJSON_IsBool(member)) {
            return true;
        }
        error_set(reader->error, "%s: \"%s\" must be true or false", name, called);
        return fail_at(reader, path, 2, false);
    }
    if (!is_minimum && strcmp(called, "max") != 0) {
        error_set(reader->error, "%s: unknown member \"%.32s\"; a range has min and max, and may have log and int",
                  name, called);
        return fail_at(reader, path, 2, true);
    }
    if (!cJSON_IsNumber(member)) {
        error_set(reader->error, "%s: \"%s\" must be a number", name, called);
        return fail_at(reader, path, 2, false);
    }
    *(is_minimum ? &dimension->minimum : &dimension->maximum) = member->valuedouble;
    return take_value(reader, dimension->key, member, path, 2);
}

static bool read_range(struct space_reader *reader, struct space_key *dimension, const cJSON *object, int index)
{
    int path[PATH_DEPTH] = {index, 0, 0};
    const char *name = dimension->key->name;
    dimension->is_integer = dimension->key->type != KEY_NUMBER;
    dimension->minimum = dimension->maximum = NAN;
    if (!is_number(dimension->key)) {
        error_set(reader->error, "%s: is no number, so it needs a list of values: [...]", name);
        return fail_at(reader, path, 1, false);
    }
    for (const cJSON *member = object->child; member; member = member->next, path[1]++) {
        if (!read_limit(reader, dimension, member, path)) {
            return false;
        }
    }
    if (!(dimension->minimum < dimension->maximum)) {
        error_set(reader->error, "%s: a range needs \"min\" below \"max\"", name);
    } else if (dimension->is_log && dimension->minimum <= 0) {
        error_set(reader->error, "%s: \"log\" needs a \"min\" above 0", name);
    } else if (dimension->is_integer &&
               (dimension->minimum != floor(dimension->minimum) || dimension->maximum != floor(dimension->maximum))) {
        error_set(reader->error, "%s: is an integer, and so must be \"min\" and \"max\"", name);
    } else {
        return true;
    }
    return fail_at(reader, path, 1, false);
}

static bool read_key(struct space_reader *reader, const cJSON *member, int index)
{
    const int path[PATH_DEPTH] = {index, 0, 0};
    const struct config_key *key = find_key(member->string);
    struct suggestion suggestion = {.word = member->string};
    struct space *space = reader->space;
    if (!key) {
        for (const struct config_key *each = config_keys; each->section; each++) {
            suggest_offer(&suggestion, each->name);
        }
        error_set(reader->error, "%.64s: unknown key; %s%s%s", member->string,
                  suggestion.best ? "did you mean " : "`trainer help config` lists them",
                  suggestion.best ? suggestion.best : "", suggestion.best ? "?" : "");
        return fail_at(reader, path, 1, true);
    }
    for (int i = 0; i < space->count; i++) {
        if (space->keys[i].key == key) {
            error_set(reader->error, "%s: duplicate key; remove one", key->name);
            return fail_at(reader, path, 1, true);
        }
    }
    const char *why = refusal(key, reader->config);
    if (why) {
        error_set(reader->error, "%s: %s", key->name, why);
        return fail_at(reader, path, 1, true);
    }
    if (space->count == SPACE_MOST_KEYS) {
        error_set(reader->error, "%s: is one key too many; a space has at most %d", key->name, SPACE_MOST_KEYS);
        return fail_at(reader, path, 1, true);
    }
    struct space_key *dimension = &space->keys[space->count++];
    *dimension = (struct space_key){.key = key};
    if (cJSON_IsArray(member)) {
        return read_values(reader, dimension, member, index);
    }
    if (cJSON_IsObject(member)) {
        return read_range(reader, dimension, member, index);
    }
    error_set(reader->error, "%s: must be a list of values, or a range: {\"min\": ..., \"max\": ...}", key->name);
    return fail_at(reader, path, 1, false);
}

static bool read_root(struct space_reader *reader, const cJSON *root)
{
    int index = 0;
    if (!cJSON_IsObject(root) || !root->child) {
        error_set(reader->error, "expected an object of keys to search: {\"learning_rate\": {\"min\": 0.001, \"max\": "
                                 "0.1, \"log\": true}, \"hidden\": [[128], [256, 256]]}");
        return fail_at(reader, NULL, 0, false);
    }
    for (const cJSON *member = root->child; member; member = member->next, index++) {
        if (!read_key(reader, member, index)) {
            return false;
        }
    }
    return true;
}

bool space_parse(struct space *space, const char *name, const char *text, size_t size, const struct config *config,
                 struct error *error)
{
    struct space_reader reader = {
        .space = space, .config = config, .name = name, .text = text, .size = size, .error = error};
    struct json_place place;
    space->count = 0;
    if (size > MOST_BYTES) {
        return error_set(error, "%s: larger than %d bytes, the limit for a space", name, MOST_BYTES);
    }
    if (!json_check(text, size, &place, error)) {
        return error_wrap(error, "%s:%d:%d", name, place.line, place.column);
    }
    cJSON *root = must_have(json_build(text, size), 0, "a space of configs");
    config_defaults(&reader.scratch);
    const bool done = read_root(&reader, root);
    config_free(&reader.scratch);
    cJSON_Delete(root);
    if (!done) {
        space_free(space);
    }
    return done;
}

bool space_read(struct space *space, const char *path, const struct config *config, struct error *error)
{
    uint8_t *bytes;
    size_t size;
    space->count = 0;
    if (!file_read(path, MOST_BYTES + 1, &bytes, &size, error)) {
        return false;
    }
    const bool done = space_parse(space, path, (const char *)bytes, size, config, error);
    free(bytes);
    return done;
}

static void free_key(struct space_key *dimension)
{
    for (int i = 0; i < dimension->value_count; i++) {
        free(dimension->values[i]);
    }
    free(dimension->values);
}

void space_free(struct space *space)
{
    for (int i = 0; i < space->count; i++) {
        free_key(&space->keys[i]);
    }
    space->count = 0;
}

/* Does the user's config say what this key is? */
static bool is_set(const struct config *config, const struct config_key *key)
{
    const char *name = key->name;
    const bool of_shape = strcmp(name, "hidden") == 0, of_view = strcmp(name, "ensemble") == 0;
    const struct config_key *layers = config_key_by_path("model", "layers");
    const struct config_key *encoding = config_key_by_path("data", "encoding");
    return config_origin_of(config, key)->source != SOURCE_DEFAULT ||
           (of_shape && config_origin_of(config, layers)->source != SOURCE_DEFAULT) ||
           ((of_view || strcmp(name, "bins") == 0) && config_origin_of(config, encoding)->source != SOURCE_DEFAULT);
}

void space_usual(struct space *space, const struct config *config, bool on_gpu)
{
    const struct config_train *train = &config->train;
    struct error error;
    char text[2048];
    const int size = snprintf(text, sizeof text, config_is_of_table(config) ? of_tables : of_pictures,
                              RATE_DOWN * train->learning_rate, RATE_UP * train->learning_rate);
    if (!space_parse(space, "the usual space", text, (size_t)size, config, &error)) {
        must_have(NULL, 0, "the usual space");
    }
    int kept = 0;
    for (int i = 0; i < space->count; i++) {
        const char *name = space->keys[i].key->name;
        const bool is_of_cpu = strcmp(name, "ensemble") == 0 || strcmp(name, "bins") == 0;
        if (is_set(config, space->keys[i].key) || (on_gpu && is_of_cpu)) {
            free_key(&space->keys[i]);
        } else {
            space->keys[kept++] = space->keys[i];
        }
    }
    space->count = kept;
}

/* A key's only values are these two; NULL: the key is not searched. */
static void limit_key(struct space *space, const char *name, const char *one, const char *other)
{
    int kept = 0;
    for (int i = 0; i < space->count; i++) {
        struct space_key *dimension = &space->keys[i];
        const bool is_it = strcmp(dimension->key->name, name) == 0;
        if (is_it) {
            free_key(dimension);
        }
        if (is_it && one) {
            dimension->values = must_zero(2, sizeof *dimension->values, "a space of configs");
            dimension->values[0] = must_copy(one);
            dimension->values[1] = must_copy(other);
            dimension->value_count = 2;
        }
        if (!is_it || one) {
            space->keys[kept++] = *dimension;
        }
    }
    space->count = kept;
}

void space_fit(struct space *space, const char *nets)
{
    if (!strstr(nets, config_view_name(VIEW_PIECEWISE))) {
        limit_key(space, "ensemble", nets[0] != '\0' ? "raw:2" : NULL, "raw:4");
        limit_key(space, "bins", NULL, NULL);
    }
}

/* --- Draws --- */

static char *draw_value(const struct space_key *dimension, double share)
{
    char text[32];
    if (dimension->values) {
        const int at = (int)(share * dimension->value_count);
        return must_copy(dimension->values[at < dimension->value_count ? at : dimension->value_count - 1]);
    }
    double low = dimension->minimum, high = dimension->maximum;
    if (dimension->is_integer) { /* each integer has as much of the range */
        low -= 0.5;
        high += 0.5;
    }
    low = dimension->is_log && low <= 0 ? dimension->minimum / 2 : low;
    double value = dimension->is_log ? low * exp(share * log(high / low)) : low + share * (high - low);
    if (dimension->is_integer) {
        value = floor(value + 0.5);
    } else {
        snprintf(text, sizeof text, "%.3g", value); /* as people write them */
        value = strtod(text, NULL);
    }
    value = fmin(fmax(value, dimension->minimum), dimension->maximum);
    config_number_text(value, text);
    return must_copy(text);
}

int space_draw(const struct space *space, uint64_t seed, int trial, struct config_setting *settings, char **texts)
{
    if (trial == 0) {
        return 0;
    }
    for (int i = 0; i < space->count; i++) {
        const struct philox_block block =
            philox(philox_key(seed), (uint32_t)trial, (uint32_t)i, 0, (uint32_t)RANDOM_TRIALS << 28);
        const double share = ((double)block.word[0] + 0.5) * 0x1p-32;
        texts[i] = draw_value(&space->keys[i], share);
        settings[i] = (struct config_setting){space->keys[i].key->name, texts[i]};
    }
    return space->count;
}
