/* A copy of the state, and its way into a file: in one pass, straight from the copy. */
#include "ps/checkpoint/checkpoint.h"

#include <assert.h>
#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/trust.h"
#include "base/version.h"
#include "ps/checkpoint/internal.h"

/* --- state --- */

void checkpoint_state_create(struct checkpoint_state *state, const struct model *model,
                             const struct config_train *train)
{
    memset(state, 0, sizeof *state);
    size_t vectors = 0;
    for (int vector = 0; vector < STORE_VECTORS; vector++) {
        vectors += store_has_vector(train, (enum store_vector)vector);
    }
    /* float_count is a multiple of a cache line, so every vector is aligned. */
    size_t vector_bytes = model->float_count * sizeof(float);
    char *memory = must_align(vectors * vector_bytes, "a copy of the model to checkpoint: make model.layers smaller");
    memset(memory, 0, vectors * vector_bytes);
    state->model = model;
    state->train = train;
    state->memory = memory;
    for (int vector = 0; vector < STORE_VECTORS; vector++) {
        if (store_has_vector(train, (enum store_vector)vector)) {
            state->vectors[vector] = (float *)(void *)memory;
            memory += vector_bytes;
        }
    }
}

void checkpoint_state_copy(struct checkpoint_state *to, const struct checkpoint_state *from)
{
    for (int v = 0; v < STORE_VECTORS; v++) {
        if (to->vectors[v] && from->vectors[v]) {
            memcpy(to->vectors[v], from->vectors[v], from->model->float_count * sizeof(float));
        }
    }
}

void checkpoint_state_destroy(struct checkpoint_state *state)
{
    free(state->memory);
    memset(state, 0, sizeof *state);
}

/* --- names, shapes, digests --- */

void checkpoint_tensor_name(char name[TENSOR_NAME], const struct variable *variable, enum optimizer_kind kind,
                            enum store_vector vector)
{
    if (vector == STORE_PARAMETERS) {
        snprintf(name, TENSOR_NAME, "%s", variable->name);
    } else if (vector == STORE_AVERAGES) {
        snprintf(name, TENSOR_NAME, "%s/" OPTIMIZER_AVERAGE_NAME, variable->name);
    } else {
        snprintf(name, TENSOR_NAME, "%s/%s", variable->name, optimizer_slot_name(kind, (int)vector - STORE_SLOT0));
    }
}

int checkpoint_tensor_shape(const struct variable *variable, int64_t shape[2])
{
    if (!variable->is_weights) {
        shape[0] = variable->cols;
        return 1;
    }
    shape[0] = variable->rows;
    shape[1] = variable->cols;
    return 2;
}

void checkpoint_layers_text(char text[METADATA_VALUE], const struct model *model)
{
    const int first = 2 * model->layer_count; /* variables of a net */
    bool differ = false;
    for (int net = 1; net < model->net_count; net++) {
        differ |= model->variables[net * first].rows != model->widths[0];
    }
    size_t used = (size_t)snprintf(text, METADATA_VALUE, "%d", model->widths[0]);
    for (int net = 1; differ && net < model->net_count; net++) {
        used += (size_t)snprintf(text + used, METADATA_VALUE - used, "+%d", model->variables[net * first].rows);
        assert(used < METADATA_VALUE);
    }
    for (int i = 1; i <= model->layer_count; i++) {
        used += (size_t)snprintf(text + used, METADATA_VALUE - used, ",%d", model->widths[i]);
        assert(used < METADATA_VALUE);
    }
}

void checkpoint_metric_key(char key[METRIC_KEY], const char *of, enum metric metric)
{
    snprintf(key, METRIC_KEY, "%s_%s", of, config_metric_name(metric));
}

/* Set once. name "": there is none. */
static struct {
    uint8_t bytes[crypto_generichash_KEYBYTES];
    char name[KEY_NAME_HEX + 1];
} digest_key;

void checkpoint_digest_hex(crypto_generichash_state *hash, char hex[DIGEST_HEX + 1])
{
    uint8_t digest[DIGEST_BYTES];
    crypto_generichash_final(hash, digest, sizeof digest);
    sodium_bin2hex(hex, DIGEST_HEX + 1, digest, sizeof digest);
}

static bool start_sodium(const char *path, struct error *error)
{
    return sodium_init() >= 0 || error_set(error, "%s: libsodium cannot start: is /dev/urandom there?", path);
}

bool checkpoint_start_digest(crypto_generichash_state *hash, const char *path, struct error *error)
{
    if (!start_sodium(path, error)) {
        return false;
    }
    const bool is_keyed = digest_key.name[0] != '\0';
    crypto_generichash_init(hash, is_keyed ? digest_key.bytes : NULL, is_keyed ? sizeof digest_key.bytes : 0,
                            DIGEST_BYTES);
    return true;
}

const char *checkpoint_key_name(void)
{
    return digest_key.name;
}

bool checkpoint_use_key(const char *path, struct error *error)
{
    enum { LEAST = 32, MOST = 4096 };
    static const char purpose[] = "trainer: the name of a checkpoint key";
    uint8_t *text, name[KEY_NAME_HEX / 2];
    size_t size;
    if (path[0] == '\0' || digest_key.name[0] != '\0') {
        return true;
    }
    if (!start_sodium(path, error) || !trust_secret(path, "key", error) ||
        !file_read(path, MOST, &text, &size, error)) {
        return false;
    }
    while (size > 0 && isspace(text[size - 1])) {
        size--;
    }
    if (size < LEAST) {
        free(text);
        return error_set(error, "%s: a checkpoint key has at least %d characters; make one with: openssl rand -hex 32",
                         path, LEAST);
    }
    crypto_generichash(digest_key.bytes, sizeof digest_key.bytes, text, size, NULL, 0);
    sodium_memzero(text, size);
    free(text);
    crypto_generichash(name, sizeof name, (const uint8_t *)purpose, sizeof purpose, digest_key.bytes,
                       sizeof digest_key.bytes);
    sodium_bin2hex(digest_key.name, sizeof digest_key.name, name, sizeof name);
    return true;
}

/* --- writing --- */

static void put(struct safetensors_writer *writer, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void put(struct safetensors_writer *writer, const char *key, const char *format, ...)
{
    char value[METADATA_VALUE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(value, sizeof value, format, arguments);
    va_end(arguments);
    safetensors_write_metadata(writer, key, value);
}

/* An unknown accuracy is -1, for compatibility; another metric may be negative, and is NaN then. */
static void put_scores(struct safetensors_writer *writer, const struct checkpoint_info *info)
{
    enum metric metric = info->metric == METRIC_AUTO ? METRIC_ACCURACY : info->metric;
    double unknown = metric == METRIC_ACCURACY ? -1 : NAN;
    char key[METRIC_KEY];
    checkpoint_metric_key(key, "validation", metric);
    put(writer, key, "%.17g", isnan(info->validation_score) ? unknown : info->validation_score);
    checkpoint_metric_key(key, "best", metric);
    put(writer, key, "%.17g", isnan(info->best_score) ? unknown : info->best_score);
    if (metric != METRIC_LOSS && !isnan(info->best_score)) {
        put(writer, "best_loss", "%.17g", info->best_loss);
    }
    if (metric != METRIC_ACCURACY) {
        put(writer, "best_metric", "%s", config_metric_name(metric));
    }
    if (info->has_threshold) {
        put(writer, "threshold", "%.17g", info->threshold);
    }
    if (info->temperature > 0) {
        put(writer, "temperature", "%.17g", info->temperature);
    }
}

void checkpoint_interval_text(const struct interval *interval, char text[INTERVAL_TEXT])
{
    int used = snprintf(text, INTERVAL_TEXT, "%.17g", interval->coverage);
    for (int i = 0; i < interval->targets; i++) {
        used +=
            snprintf(text + used, INTERVAL_TEXT - (size_t)used, " %.17g %.17g", interval->low[i], interval->high[i]);
    }
}

static void put_interval(struct safetensors_writer *writer, const struct interval *interval)
{
    char text[INTERVAL_TEXT];
    if (interval->coverage > 0) {
        checkpoint_interval_text(interval, text);
        safetensors_write_metadata(writer, "interval", text);
    }
}

static void put_loss(struct safetensors_writer *writer, const struct checkpoint_info *info)
{
    if (info->loss == LOSS_AUTO) {
        return;
    }
    put(writer, "loss", "%s", config_loss_name(info->loss));
    if (loss_is_of_numbers(info->loss)) {
        put(writer, "huber_delta", "%.17g", info->huber_delta);
        put(writer, "quantile", "%.17g", info->quantile);
    }
}

/* Texts of the metadata, escaped for the header; NULL: none. */
struct escaped {
    char *preprocessing, *group, *time, *class_names;
    size_t size; /* of those that may be long */
};

/* False if out of memory. "" is as good as none. */
static bool escape_text(const char *text, char **escaped)
{
    *escaped = text && text[0] != '\0' ? safetensors_escape(text) : NULL;
    return *escaped || !text || text[0] == '\0';
}

static bool escape(struct escaped *escaped, const struct checkpoint_info *info)
{
    *escaped = (struct escaped){NULL};
    if (!escape_text(info->preprocessing, &escaped->preprocessing) || !escape_text(info->group, &escaped->group) ||
        !escape_text(info->time, &escaped->time) || !escape_text(info->class_names, &escaped->class_names)) {
        return false;
    }
    escaped->size = (escaped->preprocessing ? strlen(escaped->preprocessing) : 0) +
                    (escaped->class_names ? strlen(escaped->class_names) : 0);
    return true;
}

static void escaped_free(struct escaped *escaped)
{
    free(escaped->preprocessing);
    free(escaped->group);
    free(escaped->time);
    free(escaped->class_names);
}

/* If part of the training files is the test. Column names are short. */
static void put_held_out(struct safetensors_writer *writer, const struct checkpoint_info *info,
                         const struct escaped *escaped)
{
    if (info->test_share >= 0) {
        put(writer, "test_share", "%.17g", info->test_share);
    }
    if (escaped->group && strlen(escaped->group) < METADATA_VALUE) {
        safetensors_write_metadata(writer, "group", escaped->group);
    }
    if (escaped->time && strlen(escaped->time) < METADATA_VALUE) {
        safetensors_write_metadata(writer, "time", escaped->time);
    }
}

/* Returns the header's size and the position of its digest. */
static size_t build_header(char *buffer, size_t capacity, const struct checkpoint_state *state,
                           const struct checkpoint_info *info, const struct escaped *escaped, size_t *digest_offset)
{
    const struct model *model = state->model;
    enum optimizer_kind kind = state->train->optimizer;
    struct safetensors_writer writer;
    safetensors_write_begin(&writer, buffer, capacity);
    put(&writer, "format", "%s", FORMAT_NAME);
    put(&writer, "format_version", "%d", FORMAT_VERSION);
    put(&writer, "trainer_version", "%s", version_trainer());
    put(&writer, "global_step", "%" PRId64, info->global_step);
    put(&writer, "seed", "%" PRId64, info->seed);
    char layers[METADATA_VALUE];
    checkpoint_layers_text(layers, model);
    put(&writer, "layers", "%s", layers);
    if (model->net_count > 1) {
        char ensemble[METADATA_VALUE];
        model_ensemble_text(model, ensemble, sizeof ensemble);
        put(&writer, "ensemble", "%s", ensemble);
    }
    put(&writer, "activation", "%s", config_activation_name(model->activation));
    put(&writer, "optimizer", "%s", config_optimizer_name(kind));
    put_scores(&writer, info);
    put(&writer, "best_step", "%" PRId64, info->best_step);
    put(&writer, "bad_validations", "%d", info->bad_validations);
    if (info->retries > 0) {
        put(&writer, "retries", "%d", info->retries);
        put(&writer, "first_rate", "%.17g", info->first_rate);
    }
    put(&writer, "config_digest", "%s", info->config_digest);
    put(&writer, "fleet_version", "%" PRId64, info->fleet_version);
    put_interval(&writer, &info->interval);
    put_loss(&writer, info);
    if (escaped->preprocessing) {
        safetensors_write_metadata(&writer, "preprocessing", escaped->preprocessing);
    }
    put_held_out(&writer, info, escaped);
    if (info->shape.height > 0) {
        put(&writer, "image_shape", "%d,%d,%d", info->shape.height, info->shape.width, info->shape.channels);
        put(&writer, "image_fit", "%s", info->shape.digits ? "digits" : "scale");
    }
    if (escaped->class_names) {
        safetensors_write_metadata(&writer, "class_names", escaped->class_names);
    }
    if (info->data[0] != '\0') {
        put(&writer, "data", "%s", info->data);
        put(&writer, "data_since", "%" PRId64, info->data_since);
    }
    if (info->kept_rows) {
        safetensors_write_metadata(&writer, "kept_rows", info->kept_rows);
    }
    if (checkpoint_key_name()[0] != '\0') {
        put(&writer, "digest_key", "%s", checkpoint_key_name());
    }
    *digest_offset = safetensors_write_metadata(&writer, "digest", ZERO_DIGEST);
    for (int vector = 0; vector < STORE_VECTORS; vector++) {
        for (int i = 0; i < model->variable_count && state->vectors[vector]; i++) {
            const struct variable *variable = &model->variables[i];
            char name[TENSOR_NAME];
            int64_t shape[2];
            checkpoint_tensor_name(name, variable, kind, (enum store_vector)vector);
            int dimensions = checkpoint_tensor_shape(variable, shape);
            safetensors_write_tensor(&writer, name, dimensions, shape);
        }
    }
    size_t size = safetensors_write_end(&writer);
    assert(size > 0); /* MODEL_MAX_VARIABLES x STORE_VECTORS entries of some 120 bytes, and the preprocessing */
    return size;
}

/* The tensors' bytes in the header's order, row by row where there is padding. parts NULL: only counts. */
static int list_parts(const struct checkpoint_state *state, struct file_part *parts)
{
    int count = 0;
    for (int vector = 0; vector < STORE_VECTORS; vector++) {
        for (int i = 0; i < state->model->variable_count && state->vectors[vector]; i++) {
            const struct variable *variable = &state->model->variables[i];
            const float *values = state->vectors[vector] + variable->offset;
            for (int row = 0; row < variable->rows; row++, count++) {
                if (parts) {
                    parts[count].bytes = values + (size_t)row * (size_t)variable->stride;
                    parts[count].size = (size_t)variable->cols * sizeof(float);
                }
            }
        }
    }
    return count;
}

bool checkpoint_write(const char *path, const struct checkpoint_state *state, const struct checkpoint_info *info,
                      struct error *error)
{
    bool done = false;
    crypto_generichash_state hash;
    char hex[DIGEST_HEX + 1];
    size_t digest_offset;
    int rows = list_parts(state, NULL);
    struct escaped escaped;
    const bool is_escaped = escape(&escaped, info);
    const size_t capacity = SAFETENSORS_USUAL_HEADER + escaped.size + (info->kept_rows ? strlen(info->kept_rows) : 0);
    char *header = malloc(capacity);
    struct file_part *parts = malloc(((size_t)rows + 1) * sizeof *parts);
    if (!header || !parts || !is_escaped) {
        error_set(error, "%s: out of memory while writing it", path);
        goto out;
    }
    if (capacity > SAFETENSORS_MAX_HEADER) {
        error_set(error,
                  "%s: the names of columns and categories take %zu MiB, more than a checkpoint holds; exclude the "
                  "columns with the most categories (--ignore)",
                  path, capacity >> 20);
        goto out;
    }
    if (!checkpoint_start_digest(&hash, path, error)) {
        goto out;
    }
    parts[0] = (struct file_part){header, build_header(header, capacity, state, info, &escaped, &digest_offset)};
    list_parts(state, parts + 1);
    for (int i = 0; i <= rows; i++) {
        crypto_generichash_update(&hash, parts[i].bytes, parts[i].size);
    }
    checkpoint_digest_hex(&hash, hex);
    memcpy(header + digest_offset, hex, DIGEST_HEX);
    done = file_write_atomic(path, parts, rows + 1, error);
out:
    escaped_free(&escaped);
    free(parts);
    free(header);
    return done;
}
