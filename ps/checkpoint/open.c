/*
 * A file is read twice: first the digest is verified over all bytes, then the tensors are read from the same open file,
 * so that nothing is used before everything is known to be intact, and there is never a second copy of the parameters
 * in memory.
 */
#include <assert.h>
#include <cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "ps/checkpoint/internal.h"

static bool read_at(struct checkpoint_file *file, void *bytes, size_t size, uint64_t offset, struct error *error)
{
    uint8_t *next = bytes;
    while (size > 0) {
        ssize_t got = pread(file->fd, next, size, (off_t)offset);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return file_error(error, file->path, "cannot be read", errno);
        }
        if (got == 0) {
            return error_set(error, "%s: became shorter while it was read", file->path);
        }
        next += got;
        size -= (size_t)got;
        offset += (uint64_t)got;
    }
    return true;
}

static enum checkpoint_status open_file(struct checkpoint_file *file, struct error *error)
{
    file->fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a named pipe would wait for its writer */
    if (file->fd < 0) {
        file_error(error, file->path, "cannot be opened", errno);
        return CHECKPOINT_UNREADABLE;
    }
    struct stat status;
    if (fstat(file->fd, &status) != 0 || !S_ISREG(status.st_mode)) {
        error_set(error, "%s: is not a regular file", file->path);
        return CHECKPOINT_UNREADABLE;
    }
    file->size = (uint64_t)status.st_size;
    if (file->size < SAFETENSORS_PREFIX) {
        error_set(error, "%s is cut off: %" PRIu64 " bytes", file->path, file->size);
        return CHECKPOINT_DAMAGED;
    }
    return CHECKPOINT_OPENED;
}

static enum checkpoint_status read_header(struct checkpoint_file *file, struct error *error)
{
    uint8_t prefix[SAFETENSORS_PREFIX];
    if (!read_at(file, prefix, sizeof prefix, 0, error)) {
        return CHECKPOINT_UNREADABLE;
    }
    if (!safetensors_header_size(prefix, file->size, &file->header_size, error)) {
        error_wrap(error, "%s", file->path);
        return CHECKPOINT_DAMAGED;
    }
    file->header = malloc(file->header_size);
    if (!file->header) {
        error_set(error, "%s: out of memory for its header", file->path);
        return CHECKPOINT_UNREADABLE;
    }
    if (!read_at(file, file->header, file->header_size, 0, error)) {
        return CHECKPOINT_UNREADABLE;
    }
    if (!safetensors_decode(&file->tensors, file->header, file->header_size, file->size, error)) {
        error_wrap(error, "%s", file->path);
        return CHECKPOINT_DAMAGED;
    }
    return CHECKPOINT_OPENED;
}

/* A file that someone else may have written is not used, nor set aside as damaged: it is the flag that does not fit. */
static enum checkpoint_status check_key(const struct checkpoint_file *file, struct error *error)
{
    const struct safetensors_text *made_with = safetensors_metadata(&file->tensors, "digest_key");
    const char *own = checkpoint_key_name();
    if (!made_with && own[0] == '\0') {
        return CHECKPOINT_OPENED;
    }
    if (!made_with) {
        error_set(error,
                  "%s: has a digest without a key, so anyone may have written it; with --checkpoint_key only "
                  "checkpoints made with that key are used",
                  file->path);
    } else if (own[0] == '\0') {
        error_set(error, "%s: has a digest made with a key, and cannot be verified without it: give --checkpoint_key",
                  file->path);
    } else if (made_with->size != strlen(own) || memcmp(made_with->bytes, own, made_with->size) != 0) {
        error_set(error, "%s: has a digest made with another key than --checkpoint_key", file->path);
    } else {
        return CHECKPOINT_OPENED;
    }
    return CHECKPOINT_UNREADABLE;
}

/* Hashes the header with the digest's place zeroed, then the rest of the file. */
static enum checkpoint_status verify_digest(struct checkpoint_file *file, struct error *error)
{
    const struct safetensors_text *written = safetensors_metadata(&file->tensors, "digest");
    if (!written || written->size != DIGEST_HEX) {
        error_set(error, "%s: has no digest, so it is no checkpoint of this program", file->path);
        return CHECKPOINT_DAMAGED;
    }
    crypto_generichash_state hash;
    if (!checkpoint_start_digest(&hash, file->path, error)) {
        return CHECKPOINT_UNREADABLE;
    }
    size_t before = (size_t)((const uint8_t *)written->bytes - file->header);
    size_t after = before + DIGEST_HEX;
    crypto_generichash_update(&hash, file->header, before);
    crypto_generichash_update(&hash, (const uint8_t *)ZERO_DIGEST, DIGEST_HEX);
    crypto_generichash_update(&hash, file->header + after, file->header_size - after);
    for (uint64_t offset = file->header_size; offset < file->size;) {
        size_t size = file->size - offset < CHUNK_BYTES ? (size_t)(file->size - offset) : CHUNK_BYTES;
        if (!read_at(file, file->chunk, size, offset, error)) {
            return CHECKPOINT_UNREADABLE;
        }
        crypto_generichash_update(&hash, file->chunk, size);
        offset += size;
    }
    checkpoint_digest_hex(&hash, file->digest);
    if (memcmp(file->digest, written->bytes, DIGEST_HEX) != 0) {
        error_set(error, "%s: is damaged: its content does not match its digest", file->path);
        return CHECKPOINT_DAMAGED;
    }
    return CHECKPOINT_OPENED;
}

/* --- metadata --- */

static bool get_text(const struct checkpoint_file *file, const char *key, char *text, size_t size, struct error *error)
{
    const struct safetensors_text *value = safetensors_metadata(&file->tensors, key);
    if (!value || value->size >= size) {
        return error_set(error, "%s: \"%s\" in its metadata is %s", file->path, key, !value ? "missing" : "too long");
    }
    memcpy(text, value->bytes, value->size);
    text[value->size] = '\0';
    return true;
}

static bool get_integer(const struct checkpoint_file *file, const char *key, int64_t lowest, int64_t highest,
                        int64_t *number, struct error *error)
{
    char text[32];
    if (!get_text(file, key, text, sizeof text, error)) {
        return false;
    }
    char *end;
    errno = 0;
    long long parsed = strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || parsed < lowest || parsed > highest) {
        return error_set(error, "%s: \"%s\" in its metadata is \"%s\", not a number from %" PRId64 " to %" PRId64,
                         file->path, key, text, lowest, highest);
    }
    *number = parsed;
    return true;
}

static bool get_double(const struct checkpoint_file *file, const char *key, double *number, struct error *error)
{
    char text[64];
    if (!get_text(file, key, text, sizeof text, error)) {
        return false;
    }
    char *end;
    *number = strtod(text, &end);
    if (end == text || *end != '\0') {
        return error_set(error, "%s: \"%s\" in its metadata is \"%s\", not a number", file->path, key, text);
    }
    return true;
}

/* Scores of the metric that decides which model is best, and a binary model's threshold if it has one. */
static bool get_scores(struct checkpoint_file *file, struct error *error)
{
    struct checkpoint_info *info = &file->info;
    char name[METRIC_KEY], key[METRIC_KEY];
    info->metric = METRIC_ACCURACY;
    if (safetensors_metadata(&file->tensors, "best_metric")) {
        if (!get_text(file, "best_metric", name, sizeof name, error)) {
            return false;
        }
        for (info->metric = METRIC_LOSS; info->metric < METRICS; info->metric++) {
            if (strcmp(name, config_metric_name(info->metric)) == 0) {
                break;
            }
        }
        if (info->metric == METRICS) {
            return error_set(error, "%s: its best_metric is \"%s\", which this program does not know", file->path,
                             name);
        }
    }
    checkpoint_metric_key(key, "validation", info->metric);
    if (!get_double(file, key, &info->validation_score, error)) {
        return false;
    }
    checkpoint_metric_key(key, "best", info->metric);
    if (!get_double(file, key, &info->best_score, error)) {
        return false;
    }
    if (info->metric == METRIC_ACCURACY) {
        info->validation_score = info->validation_score < 0 ? NAN : info->validation_score;
        info->best_score = info->best_score < 0 ? NAN : info->best_score;
    }
    info->best_loss = info->metric == METRIC_LOSS ? info->best_score : NAN;
    if (info->metric != METRIC_LOSS && safetensors_metadata(&file->tensors, "best_loss") &&
        !get_double(file, "best_loss", &info->best_loss, error)) {
        return false;
    }
    info->has_threshold = safetensors_metadata(&file->tensors, "threshold");
    return !info->has_threshold || get_double(file, "threshold", &info->threshold, error);
}

static bool get_temperature(struct checkpoint_file *file, struct error *error)
{
    double *temperature = &file->info.temperature;
    *temperature = 0;
    if (!safetensors_metadata(&file->tensors, "temperature")) {
        return true;
    }
    return get_double(file, "temperature", temperature, error) &&
           ((isfinite(*temperature) && *temperature > 0) ||
            error_set(error, "%s: its temperature of %g is not above 0", file->path, *temperature));
}

/* "0.9 -1.5 2.25"; false: it is not so. */
static bool parse_interval(struct interval *interval, const char *text)
{
    enum { MOST = 2 * INTERVAL_MOST_TARGETS + 1 };
    double values[MOST];
    int count = 0;
    for (char *end; *text != '\0'; text = end) {
        const double value = strtod(text, &end);
        if (end == text || !isfinite(value) || count == MOST) {
            return false;
        }
        values[count++] = value;
    }
    if (count < 3) {
        return false;
    }
    interval->coverage = values[0];
    interval->targets = (count - 1) / 2;
    bool is_good = count % 2 == 1 && values[0] > 0 && values[0] < 1;
    for (int i = 0; is_good && i < interval->targets; i++) {
        interval->low[i] = values[1 + 2 * i];
        interval->high[i] = values[2 + 2 * i];
        is_good = interval->low[i] <= interval->high[i];
    }
    return is_good;
}

static bool get_interval(struct checkpoint_file *file, struct error *error)
{
    char text[INTERVAL_TEXT];
    file->info.interval = (struct interval){.coverage = 0};
    if (!safetensors_metadata(&file->tensors, "interval")) {
        return true;
    }
    return get_text(file, "interval", text, sizeof text, error) &&
           (parse_interval(&file->info.interval, text) ||
            error_set(error, "%s: its interval is \"%.100s\", not a coverage and two bounds for each target",
                      file->path, text));
}

/* Its training settings; older files lack them. */
static bool get_loss(struct checkpoint_file *file, struct error *error)
{
    struct checkpoint_info *info = &file->info;
    char name[32];
    if (!safetensors_metadata(&file->tensors, "loss")) {
        return true;
    }
    if (!get_text(file, "loss", name, sizeof name, error)) {
        return false;
    }
    info->loss = LOSS_SOFTMAX;
    while (info->loss <= LOSS_QUANTILE && strcmp(name, config_loss_name(info->loss)) != 0) {
        info->loss++;
    }
    if (info->loss > LOSS_QUANTILE) {
        return error_set(error, "%s: its loss is \"%s\", which this program does not know", file->path, name);
    }
    return !loss_is_of_numbers(info->loss) || (get_double(file, "huber_delta", &info->huber_delta, error) &&
                                               get_double(file, "quantile", &info->quantile, error));
}

/* The nets of an ensemble; a model without says nothing of them. */
static bool get_nets(struct checkpoint_file *file, struct error *error)
{
    char text[METADATA_VALUE];
    if (!safetensors_metadata(&file->tensors, "ensemble")) {
        return true;
    }
    return get_text(file, "ensemble", text, sizeof text, error) &&
           (config_parse_ensemble(&file->model, text, error) || error_wrap(error, "%s: its ensemble", file->path));
}

static bool get_model(struct checkpoint_file *file, struct error *error)
{
    char text[METADATA_VALUE];
    if (!get_text(file, "layers", text, sizeof text, error)) {
        return false;
    }
    struct config_model *model = &file->model;
    if (!get_nets(file, error)) {
        return false;
    }
    if (!model_parse_units(model, text)) {
        return error_set(error, "%s: \"layers\" in its metadata is \"%s\", no list of widths", file->path, text);
    }
    if (!get_text(file, "activation", text, sizeof text, error)) {
        return false;
    }
    for (int i = ACTIVATION_RELU; i <= ACTIVATION_IDENTITY; i++) {
        if (strcmp(text, config_activation_name((enum activation)i)) == 0) {
            model->activation = (enum activation)i;
            return true;
        }
    }
    return error_set(error, "%s: its activation is \"%s\", which this program does not know", file->path, text);
}

/* A copy of a text that was escaped in JSON, if there is one. */
static bool get_escaped(const struct checkpoint_file *file, const char *key, char **copy, struct error *error)
{
    const struct safetensors_text *value = safetensors_metadata(&file->tensors, key);
    if (!value) {
        return true;
    }
    cJSON *string = cJSON_ParseWithLength(value->bytes - 1, value->size + 2); /* with the quotes around it */
    if (cJSON_IsString(string)) {
        *copy = strdup(string->valuestring);
    }
    cJSON_Delete(string);
    return *copy || error_set(error, "%s: \"%s\" in its metadata cannot be read", file->path, key);
}

/* How rows become inputs, and which of them were held out; older files lack the latter. */
static bool get_table(struct checkpoint_file *file, struct error *error)
{
    struct checkpoint_info *info = &file->info;
    info->test_share = -1;
    if (!get_escaped(file, "preprocessing", &file->preprocessing, error) ||
        !get_escaped(file, "group", &file->group, error) || !get_escaped(file, "time", &file->time, error)) {
        return false;
    }
    info->preprocessing = file->preprocessing;
    info->group = file->group;
    info->time = file->time;
    return !safetensors_metadata(&file->tensors, "test_share") ||
           get_double(file, "test_share", &info->test_share, error);
}

/* The fingerprint of the training data; older files lack it. */
static bool get_data(struct checkpoint_file *file, struct error *error)
{
    struct checkpoint_info *info = &file->info;
    return !safetensors_metadata(&file->tensors, "data") ||
           (get_text(file, "data", info->data, sizeof info->data, error) &&
            get_integer(file, "data_since", 0, INT64_MAX, &info->data_since, error));
}

/* Of pictures. The values are checked against the model: a file need not be from this program. */
static bool get_shape(struct checkpoint_file *file, struct error *error)
{
    enum { ROOM = 48 };
    struct image_shape *shape = &file->info.shape;
    char text[ROOM], fit[ROOM], end;
    if (!safetensors_metadata(&file->tensors, "image_shape")) {
        return true;
    }
    if (!get_text(file, "image_shape", text, sizeof text, error) ||
        !get_text(file, "image_fit", fit, sizeof fit, error)) {
        return false;
    }
    shape->digits = strcmp(fit, "digits") == 0;
    return (strlen(text) < 24 && strspn(text, "0123456789,") == strlen(text) &&
            sscanf(text, "%6d,%6d,%6d%c", &shape->height, &shape->width, &shape->channels, &end) == 3 &&
            (shape->channels == 1 || shape->channels == 3) && shape->height > 0 && shape->width > 0 &&
            (int64_t)shape->height * shape->width * shape->channels <= CONFIG_MAX_INPUTS) ||
           error_set(error, "%s: its image_shape is \"%s\"; expected height,width,channels", file->path, text);
}

static bool read_metadata(struct checkpoint_file *file, struct error *error)
{
    struct checkpoint_info *info = &file->info;
    char format[sizeof FORMAT_NAME];
    int64_t version, bad_validations, retries = 0;
    if (!get_text(file, "format", format, sizeof format, error) ||
        !get_integer(file, "format_version", 1, INT_MAX, &version, error)) {
        return false;
    }
    if (strcmp(format, FORMAT_NAME) != 0 || version > FORMAT_VERSION) {
        return error_set(error, "%s: is a %s of version %" PRId64 ", this program reads %s up to version %d",
                         file->path, format, version, FORMAT_NAME, FORMAT_VERSION);
    }
    if (!get_integer(file, "global_step", 0, INT64_MAX, &info->global_step, error) ||
        !get_integer(file, "seed", INT64_MIN, INT64_MAX, &info->seed, error) || !get_scores(file, error) ||
        !get_temperature(file, error) || !get_interval(file, error) || !get_loss(file, error) ||
        !get_integer(file, "best_step", INT64_MIN, INT64_MAX, &info->best_step, error) ||
        !get_integer(file, "bad_validations", 0, INT_MAX, &bad_validations, error) ||
        (safetensors_metadata(&file->tensors, "retries") &&
         !get_integer(file, "retries", 0, INT_MAX, &retries, error)) ||
        (safetensors_metadata(&file->tensors, "first_rate") &&
         !get_double(file, "first_rate", &info->first_rate, error)) ||
        !get_text(file, "config_digest", info->config_digest, sizeof info->config_digest, error) ||
        !get_integer(file, "fleet_version", INT64_MIN, INT64_MAX, &info->fleet_version, error) ||
        !get_text(file, "optimizer", file->optimizer, sizeof file->optimizer, error)) {
        return false;
    }
    info->bad_validations = (int)bad_validations;
    info->retries = (int)retries;
    if (!get_table(file, error) || !get_escaped(file, "class_names", &file->class_names, error) ||
        !get_escaped(file, "kept_rows", &file->kept_rows, error) || !get_data(file, error) || !get_shape(file, error)) {
        return false;
    }
    info->class_names = file->class_names;
    info->kept_rows = file->kept_rows;
    return get_model(file, error);
}

/* --- open files --- */

enum checkpoint_status checkpoint_open(struct checkpoint_file **opened, const char *path, struct error *error)
{
    *opened = NULL;
    struct checkpoint_file *file = calloc(1, sizeof *file);
    if (!file) {
        error_set(error, "%s: out of memory while reading it", path);
        return CHECKPOINT_UNREADABLE;
    }
    file->fd = -1;
    enum checkpoint_status status = CHECKPOINT_UNREADABLE;
    if ((size_t)snprintf(file->path, sizeof file->path, "%s", path) >= sizeof file->path) {
        error_set(error, "%s: the path is too long", path);
    } else {
        status = open_file(file, error);
    }
    if (status == CHECKPOINT_OPENED) {
        status = read_header(file, error);
    }
    if (status == CHECKPOINT_OPENED) {
        status = check_key(file, error);
    }
    if (status == CHECKPOINT_OPENED) {
        status = verify_digest(file, error);
    }
    if (status == CHECKPOINT_OPENED && !read_metadata(file, error)) {
        status = CHECKPOINT_UNREADABLE;
    }
    if (status != CHECKPOINT_OPENED) {
        checkpoint_close(file);
        return status;
    }
    *opened = file;
    return CHECKPOINT_OPENED;
}

void checkpoint_close(struct checkpoint_file *file)
{
    if (!file) {
        return;
    }
    if (file->fd >= 0) {
        close(file->fd);
    }
    free(file->preprocessing);
    free(file->group);
    free(file->time);
    free(file->class_names);
    free(file->kept_rows);
    free(file->header);
    free(file);
}

const char *checkpoint_digest(const struct checkpoint_file *file)
{
    _Static_assert((int)CHECKPOINT_DIGEST_HEX == (int)DIGEST_HEX, "the same digest");
    return file->digest;
}

const char *checkpoint_path(const struct checkpoint_file *file)
{
    return file->path;
}

const struct checkpoint_info *checkpoint_file_info(const struct checkpoint_file *file)
{
    return &file->info;
}

void checkpoint_file_model(const struct checkpoint_file *file, struct config_model *config)
{
    config->net_count = file->model.net_count;
    memcpy(config->views, file->model.views, sizeof config->views);
    memcpy(config->net_inputs, file->model.net_inputs, sizeof config->net_inputs);
    memcpy(config->layers, file->model.layers, sizeof config->layers);
    config->layer_count = file->model.layer_count;
    config->activation = file->model.activation;
}

const struct safetensors *checkpoint_file_tensors(const struct checkpoint_file *file)
{
    return &file->tensors;
}

/* --- Loading from an open file: does it fit? --- */

static void shape_text(char *text, size_t size, int dimensions, const int64_t *shape)
{
    size_t used = (size_t)snprintf(text, size, "[");
    for (int i = 0; i < dimensions && used < size; i++) {
        used += (size_t)snprintf(text + used, size - used, "%s%" PRId64, i > 0 ? "," : "", shape[i]);
    }
    if (used < size) {
        snprintf(text + used, size - used, "]");
    }
}

static bool tensor_fits(const struct checkpoint_file *file, const struct variable *variable, const char *name,
                        struct error *error)
{
    const struct safetensors_tensor *tensor = safetensors_find(&file->tensors, name);
    if (!tensor) {
        return error_set(error, "%s does not fit: %s is not in it", file->path, name);
    }
    int64_t shape[2];
    int dimensions = checkpoint_tensor_shape(variable, shape);
    if (tensor->dimensions == dimensions && memcmp(tensor->shape, shape, (size_t)dimensions * sizeof *shape) == 0) {
        return true;
    }
    char there[64], here[64];
    shape_text(there, sizeof there, tensor->dimensions, tensor->shape);
    shape_text(here, sizeof here, dimensions, shape);
    return error_set(error, "%s does not fit: %s is %s there and %s here", file->path, name, there, here);
}

/* The first variable that differs, and both lists of layers. */
static bool layers_fit(const struct checkpoint_file *file, const struct model *model, struct error *error)
{
    bool same = true;
    if (config_nets(&file->model) != model->net_count) {
        return error_set(error,
                         "%.600s does not fit: it has %d nets there and %d here: set --ensemble as it was, or give "
                         "another --train_dir",
                         file->path, config_nets(&file->model), model->net_count);
    }
    if (file->model.layer_count != model->layer_count + 1) {
        same = error_set(error, "%s does not fit: it has %d layers of weights there and %d here", file->path,
                         file->model.layer_count - 1, model->layer_count);
    }
    for (int i = 0; i < model->variable_count && same; i++) {
        same = tensor_fits(file, &model->variables[i], model->variables[i].name, error);
    }
    if (same) {
        return true;
    }
    struct model there;
    model_layout(&there, &file->model);
    char there_text[METADATA_VALUE], here_text[METADATA_VALUE];
    checkpoint_layers_text(there_text, &there);
    checkpoint_layers_text(here_text, model);
    struct error inner = *error;
    return error_set(error, "%.600s (layers %.150s there, %.150s here): give --layers=%.150s or another --train_dir",
                     inner.text, there_text, here_text, there_text);
}

static bool model_fits(const struct checkpoint_file *file, const struct model *model, struct error *error)
{
    if (!layers_fit(file, model, error)) {
        return false;
    }
    if (file->model.activation != model->activation) {
        const char *there = config_activation_name(file->model.activation);
        return error_set(error,
                         "%s does not fit: activation is %s there and %s here: give --activation=%s or another "
                         "--train_dir",
                         file->path, there, config_activation_name(model->activation), there);
    }
    return true;
}

static bool has_averages(const struct checkpoint_file *file, const struct model *model)
{
    char name[TENSOR_NAME];
    checkpoint_tensor_name(name, &model->variables[0], OPTIMIZER_SGD, STORE_AVERAGES);
    return safetensors_find(&file->tensors, name);
}

static bool optimizer_fits(const struct checkpoint_file *file, const struct checkpoint_state *state,
                           struct error *error)
{
    const char *here = config_optimizer_name(state->train->optimizer);
    if (strcmp(file->optimizer, here) != 0) {
        return error_set(error,
                         "%s does not fit: the optimizer is %s there and %s here: give --optimizer=%s or "
                         "another --train_dir",
                         file->path, file->optimizer, here, file->optimizer);
    }
    bool averages_there = has_averages(file, state->model);
    bool averages_here = state->vectors[STORE_AVERAGES];
    if (averages_there != averages_here) {
        return error_set(error,
                         "%s does not fit: it has %s moving averages and ema_decay is %g here: give %s or "
                         "another --train_dir",
                         file->path, averages_there ? "" : "no", state->train->ema_decay,
                         averages_there ? "the --ema_decay it was trained with" : "--ema_decay=0");
    }
    return true;
}

static bool vectors_fit(const struct checkpoint_file *file, const struct checkpoint_state *state, struct error *error)
{
    int wanted = 0;
    for (int vector = 0; vector < STORE_VECTORS; vector++) {
        for (int i = 0; i < state->model->variable_count && state->vectors[vector]; i++, wanted++) {
            char name[TENSOR_NAME];
            checkpoint_tensor_name(name, &state->model->variables[i], state->train->optimizer,
                                   (enum store_vector)vector);
            if (!tensor_fits(file, &state->model->variables[i], name, error)) {
                return false;
            }
        }
    }
    if (file->tensors.tensor_count != wanted) {
        return error_set(error, "%s does not fit: it has %d tensors, %d are needed here", file->path,
                         file->tensors.tensor_count, wanted);
    }
    return true;
}

/* --- loading --- */

/* Takes whole rows by the chunk and spreads them over the padded ones. */
static bool load_tensor(struct checkpoint_file *file, const char *name, const struct variable *variable, float *values,
                        struct error *error)
{
    const struct safetensors_tensor *tensor = safetensors_find(&file->tensors, name);
    size_t row_bytes = (size_t)variable->cols * sizeof(float);
    int most = (int)(CHUNK_BYTES / row_bytes);
    uint64_t offset = tensor->offset;
    for (int row = 0; row < variable->rows;) {
        int rows = variable->rows - row < most ? variable->rows - row : most;
        if (!read_at(file, file->chunk, (size_t)rows * row_bytes, offset, error)) {
            return false;
        }
        for (int i = 0; i < rows; i++) {
            memcpy(values + (size_t)(row + i) * (size_t)variable->stride, file->chunk + (size_t)i * row_bytes,
                   row_bytes);
        }
        offset += (uint64_t)rows * row_bytes;
        row += rows;
    }
    return true;
}

static bool load_vector(struct checkpoint_file *file, const struct model *model, enum optimizer_kind kind,
                        enum store_vector vector, float padding, float *values, struct error *error)
{
    for (size_t i = 0; i < model->float_count; i++) {
        values[i] = padding;
    }
    for (int i = 0; i < model->variable_count; i++) {
        const struct variable *variable = &model->variables[i];
        char name[TENSOR_NAME];
        checkpoint_tensor_name(name, variable, kind, vector);
        if (!load_tensor(file, name, variable, values + variable->offset, error)) {
            return false;
        }
    }
    return true;
}

bool checkpoint_load(struct checkpoint_file *file, struct checkpoint_state *state, struct error *error)
{
    if (!model_fits(file, state->model, error) || !optimizer_fits(file, state, error) ||
        !vectors_fit(file, state, error)) {
        return false;
    }
    for (int vector = 0; vector < STORE_VECTORS; vector++) {
        bool is_slot = vector == STORE_SLOT0 || vector == STORE_SLOT1;
        if (!state->vectors[vector]) {
            continue;
        }
        float padding = is_slot ? optimizer_slot_initial(state->train, vector - STORE_SLOT0) : 0.0f;
        if (!load_vector(file, state->model, state->train->optimizer, (enum store_vector)vector, padding,
                         state->vectors[vector], error)) {
            return false;
        }
    }
    return true;
}

/* --- Loading what fits --- */

static void report_lost(char *lost, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void report_lost(char *lost, size_t size, const char *format, ...)
{
    size_t used = strlen(lost);
    va_list arguments;
    if (used + 3 < size) {
        used += (size_t)snprintf(lost + used, size - used, "%s", used > 0 ? "; " : "");
        va_start(arguments, format);
        vsnprintf(lost + used, size - used, format, arguments);
        va_end(arguments);
    }
}

/* Decides about one variable's parameters: *fits, and if not, why they are lost. */
static void weigh_variable(const struct checkpoint_file *file, const struct variable *variable, bool *fits, char *lost,
                           size_t size)
{
    const struct safetensors_tensor *tensor = safetensors_find(&file->tensors, variable->name);
    struct error ignored;
    char there[64], here[64];
    int64_t shape[2];
    *fits = tensor && tensor_fits(file, variable, variable->name, &ignored);
    if (tensor && !*fits) {
        shape_text(there, sizeof there, tensor->dimensions, tensor->shape);
        shape_text(here, sizeof here, checkpoint_tensor_shape(variable, shape), shape);
        report_lost(lost, size, "%s %s, which would be %s", variable->name, there, here);
    }
}

/* Variables of the file that the model lacks. */
static void weigh_layers(const struct checkpoint_file *file, const struct model *model, char *lost, size_t size)
{
    struct model there;
    model_layout(&there, &file->model);
    for (int i = model->variable_count; i < there.variable_count; i++) {
        report_lost(lost, size, "%s, for which there is no layer", there.variables[i].name);
    }
    if (there.variable_count < model->variable_count) {
        report_lost(lost, size, "the order of layers: %d of weights there and %d here", there.layer_count,
                    model->layer_count);
    }
}

/* One variable of one vector: from the file, or its initial value. */
static bool load_fitting(struct checkpoint_file *file, struct checkpoint_state *state, int vector,
                         const struct variable *variable, bool fits, struct error *error)
{
    char name[TENSOR_NAME];
    struct error ignored;
    float *values = state->vectors[vector] + variable->offset;
    checkpoint_tensor_name(name, variable, state->train->optimizer, (enum store_vector)vector);
    if (fits && safetensors_find(&file->tensors, name) && tensor_fits(file, variable, name, &ignored)) {
        return load_tensor(file, name, variable, values, error);
    }
    if (vector == STORE_AVERAGES) {
        assert(state->vectors[STORE_PARAMETERS]);
        memcpy(values, state->vectors[STORE_PARAMETERS] + variable->offset,
               (size_t)variable->rows * (size_t)variable->stride * sizeof *values);
    }
    return true;
}

bool checkpoint_load_fitting(struct checkpoint_file *file, struct checkpoint_state *state, char *lost, size_t size,
                             struct error *error)
{
    const struct model *model = state->model;
    lost[0] = '\0';
    for (int slot = STORE_SLOT0; slot <= STORE_SLOT1; slot++) {
        for (size_t i = 0; state->vectors[slot] && i < model->float_count; i++) {
            state->vectors[slot][i] = optimizer_slot_initial(state->train, slot - STORE_SLOT0);
        }
    }
    for (int i = 0; i < model->variable_count; i++) {
        bool fits;
        weigh_variable(file, &model->variables[i], &fits, lost, size);
        for (int vector = 0; vector < STORE_VECTORS; vector++) {
            if (state->vectors[vector] && !load_fitting(file, state, vector, &model->variables[i], fits, error)) {
                return false;
            }
        }
    }
    weigh_layers(file, model, lost, size);
    if (file->model.activation != model->activation) {
        report_lost(lost, size, "what was learnt with activation %s, which would be %s",
                    config_activation_name(file->model.activation), config_activation_name(model->activation));
    }
    return true;
}

/* --- parts --- */

bool checkpoint_load_parameters(struct checkpoint_file *file, const struct model *model, enum checkpoint_weights which,
                                float *values, bool *averaged, struct error *error)
{
    if (!model_fits(file, model, error)) {
        return false;
    }
    bool averages = which != CHECKPOINT_RAW && has_averages(file, model);
    if (which == CHECKPOINT_AVERAGED && !averages) {
        return error_set(error, "%s: has no moving averages (it was trained with ema_decay=0): take its raw weights",
                         file->path);
    }
    for (int i = 0; i < model->variable_count && averages; i++) {
        char name[TENSOR_NAME];
        checkpoint_tensor_name(name, &model->variables[i], OPTIMIZER_SGD, STORE_AVERAGES);
        if (!tensor_fits(file, &model->variables[i], name, error)) {
            return false;
        }
    }
    if (averaged) {
        *averaged = averages;
    }
    return load_vector(file, model, OPTIMIZER_SGD, averages ? STORE_AVERAGES : STORE_PARAMETERS, 0.0f, values, error);
}

bool checkpoint_read_tensor(struct checkpoint_file *file, const struct safetensors_tensor *tensor, uint64_t first,
                            size_t count, float *values, struct error *error)
{
    assert(first <= tensor->size / sizeof *values && count <= tensor->size / sizeof *values - first);
    return read_at(file, values, count * sizeof *values, tensor->offset + first * sizeof *values, error);
}
