/* Only parameters (or their moving averages) are read; slots stay on disk. */
#include "worker/export/trained.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/config/keys.h"
#include "base/file.h"
#include "base/log.h"
#include "ps/checkpoint/folder.h"
#include "worker/data/folders.h"
#include "worker/data/image.h"
#include "worker/data/table/encode.h"
#include "worker/data/table/schema.h"
#include "worker/engine.h"

static bool find_newest(struct checkpoint_file **file, const char *folder, struct error *error)
{
    if (!checkpoint_folder_find(folder, file, error)) {
        return false;
    }
    return *file || error_set(error, "%s: no intact checkpoint; train with --train_dir=%s first", folder, folder);
}

/* Was the best one found before the run went on with other data, by the newest checkpoint? */
static bool is_outdated(const struct checkpoint_file *best, const char *folder)
{
    struct checkpoint_file *newest = NULL;
    struct error ignored; /* then there is only the best */
    const bool is_there = checkpoint_folder_find(folder, &newest, &ignored) && newest;
    const bool is_older = is_there && checkpoint_file_info(best)->data_since < checkpoint_file_info(newest)->data_since;
    checkpoint_close(newest);
    return is_older;
}

/* The best of a folder on its newest data, if it is intact, otherwise the newest. */
static bool find_usual(struct checkpoint_file **file, const char *folder, struct error *error)
{
    char path[CHECKPOINT_MAX_PATH];
    if (!file_join(path, sizeof path, folder, CHECKPOINT_BEST_NAME, error)) {
        return false;
    }
    if (file_exists(path)) {
        if (checkpoint_open(file, path, error) == CHECKPOINT_OPENED) {
            if (!is_outdated(*file, folder)) {
                return true;
            }
            checkpoint_close(*file);
            *file = NULL;
            error_set(error, "%s: was the best on other data, with which the run began", path);
        }
        log_warning("%s; the newest checkpoint is used instead", error->text);
    }
    return find_newest(file, folder, error);
}

bool trained_find(struct checkpoint_file **file, const char *wanted, const char *train_dir, struct error *error)
{
    char path[CHECKPOINT_MAX_PATH];
    const bool is_newest = wanted && strcmp(wanted, "newest") == 0, is_best = wanted && strcmp(wanted, "best") == 0;
    *file = NULL;
    if ((!wanted || is_newest || is_best) && train_dir[0] == '\0') {
        return error_set(error, "no checkpoint given: name a file, or a training folder (--train_dir=DIR)");
    }
    if (!wanted && !file_is_folder(train_dir)) {
        if (!file_exists(train_dir)) {
            return error_set(error, "%s: there is no such training folder or checkpoint", train_dir);
        }
        wanted = train_dir;
    }
    if (is_newest) {
        return find_newest(file, train_dir, error);
    }
    if (!wanted || (!is_best && file_is_folder(wanted))) {
        return find_usual(file, wanted ? wanted : train_dir, error);
    }
    if (is_best && !file_join(path, sizeof path, train_dir, CHECKPOINT_BEST_NAME, error)) {
        return false;
    }
    return checkpoint_open(file, is_best ? path : wanted, error) == CHECKPOINT_OPENED;
}

/* How rows become inputs, for a table's model. */
static bool read_schema(struct trained *trained, struct error *error)
{
    const char *text = checkpoint_file_info(trained->file)->preprocessing;
    if (!text) {
        return true;
    }
    trained->schema = calloc(1, sizeof *trained->schema);
    if (!trained->schema) {
        return error_set(error, "%s: out of memory for its columns", checkpoint_path(trained->file));
    }
    if (!schema_parse(trained->schema, text, error)) {
        return error_wrap(error, "%s", checkpoint_path(trained->file));
    }
    const struct config_model *model = &trained->config.model;
    const struct examples shape = encoder_shape(trained->schema);
    bool fits = model->layers[model->layer_count - 1] == schema_outputs(trained->schema);
    for (int net = 0; net < config_nets(model); net++) {
        const int inputs = model->net_count > 0 ? examples_view(&shape, model->views[net]).inputs : shape.inputs;
        fits = fits && config_net_inputs(model, net) == inputs;
    }
    return fits || error_set(error, "%s: its layers do not fit its preprocessing", checkpoint_path(trained->file));
}

/* The pictures it was trained on; without a record, by its inputs. */
static bool take_shape(struct trained *trained, struct error *error)
{
    const struct checkpoint_info *info = checkpoint_file_info(trained->file);
    const int inputs = trained->config.model.layers[0];
    if (trained->schema) {
        return true;
    }
    trained->shape = info->shape.height > 0 ? info->shape : image_shape_of(inputs);
    trained->config.data.shape = trained->shape;
    return image_values(&trained->shape) == (size_t)inputs ||
           error_set(error, "%s: its %d inputs do not fit its image_shape, %dx%dx%d", checkpoint_path(trained->file),
                     inputs, trained->shape.height, trained->shape.width, trained->shape.channels);
}

/* The names of its classes, if they have any. */
static bool read_classes(struct trained *trained, struct error *error)
{
    const char *text = checkpoint_file_info(trained->file)->class_names;
    return !text || class_names_parse(&trained->classes, text, error) ||
           error_wrap(error, "%s", checkpoint_path(trained->file));
}

/* Its columns, whose classes may be one-hot in TFRecord files, unless others are named. */
static bool take_targets(struct trained *trained, struct error *error)
{
    struct string_list *target = &trained->config.data.target;
    const struct schema *schema = trained->schema;
    if (!schema || target->count > 0) {
        return true;
    }
    trained->targets = calloc((size_t)schema->count, sizeof *trained->targets);
    if (!trained->targets) {
        return error_set(error, "%s: out of memory for its columns", checkpoint_path(trained->file));
    }
    target->items = trained->targets;
    for (int i = 0; i < schema->count; i++) {
        if (schema->columns[i].role == SCHEMA_TARGET) {
            target->items[target->count++] = schema->columns[i].name;
        }
    }
    return true;
}

/* A file's row of names is known by them. */
static bool take_names(struct trained *trained, struct error *error)
{
    const struct schema *schema = trained->schema;
    if (!schema) {
        return true;
    }
    trained->known.items = calloc((size_t)schema->count + 1, sizeof *trained->known.items);
    if (!trained->known.items) {
        return error_set(error, "%s: out of memory for its columns", checkpoint_path(trained->file));
    }
    for (int i = 0; i < schema->count; i++) {
        trained->known.items[trained->known.count++] = schema->columns[i].name;
    }
    trained->config.data.known_names = &trained->known;
    return true;
}

/*
 * A table's model is measured by the metric it was trained with; for older files, which don't record it, by the
 * config's.
 */
static void take_loss(struct trained *trained)
{
    const struct checkpoint_info *info = checkpoint_file_info(trained->file);
    struct config_train *train = &trained->config.train;
    trained->threshold = info->has_threshold ? info->threshold : NAN;
    trained->temperature = info->temperature;
    trained->interval = info->interval;
    if (!trained->schema) {
        return;
    }
    train->best_metric = info->metric;
    if (info->loss != LOSS_AUTO) {
        train->loss = info->loss;
    } else if (train->loss == LOSS_AUTO) {
        train->loss = schema_usual_loss(trained->schema);
    }
    if (loss_is_of_numbers(info->loss)) {
        train->huber_delta = info->huber_delta;
        train->quantile = info->quantile;
    }
}

static bool is_chosen(const struct config *config, const char *name)
{
    return config->origins && config_origin_of(config, config_key_by_path("data", name))->source == SOURCE_FLAG;
}

/* The examples that it was not trained on, unless a flag holds out others. */
static void take_held_out(struct trained *trained)
{
    const struct checkpoint_info *info = checkpoint_file_info(trained->file);
    struct config_data *data = &trained->config.data;
    static char none[] = "";
    const bool is_chosen_here = is_chosen(&trained->config, "group") || is_chosen(&trained->config, "time");
    if (info->test_share < 0) {
        return;
    }
    if (!is_chosen(&trained->config, "test_share")) {
        data->test_share = info->test_share;
    }
    if (!is_chosen_here) {
        data->group = info->group ? info->group : none;
        data->time = info->time ? info->time : none;
    }
}

bool trained_open(struct trained *trained, const struct config *config, const char *wanted, const char *train_dir,
                  enum checkpoint_weights which, struct error *error)
{
    *trained = (struct trained){.config = *config};
    if (!checkpoint_use_key(config->output.checkpoint_key, error) ||
        !trained_find(&trained->file, wanted, train_dir, error)) {
        return false;
    }
    checkpoint_file_model(trained->file, &trained->config.model);
    trained->config.model.hidden_count = CONFIG_AUTO;
    if (!read_schema(trained, error) || !read_classes(trained, error) || !take_shape(trained, error) ||
        !take_targets(trained, error) || !take_names(trained, error)) {
        return false;
    }
    take_loss(trained);
    take_held_out(trained);
    trained->config.train.optimizer = OPTIMIZER_SGD; /* only parameters are needed, no slots */
    trained->config.train.ema_decay = 0;
    model_layout(&trained->model, &trained->config.model);
    trained->parameters = malloc(trained->model.float_count * sizeof *trained->parameters);
    if (!trained->parameters) {
        return error_set(error, "%s: out of memory for %zu parameters", checkpoint_path(trained->file),
                         trained->model.float_count);
    }
    return checkpoint_load_parameters(trained->file, &trained->model, which, trained->parameters, &trained->averaged,
                                      error);
}

bool trained_engine(const struct trained *trained, const struct examples *like, struct engine **engine,
                    struct error *error)
{
    const struct examples rows = trained->schema ? encoder_shape(trained->schema) : (struct examples){.count = 0};
    struct engine_options options = {
        .model = &trained->model, .config = &trained->config, .like = like ? like : &rows, .only_forward = true};
    return engine_choose(engine, &options, NULL, error) &&
           (*engine)->table->write(*engine, STORE_PARAMETERS, 0, trained->model.float_count, trained->parameters,
                                   error);
}

bool trained_start(struct trained *trained, struct error *error)
{
    return trained_engine(trained, NULL, &trained->engine, error);
}

void trained_close(struct trained *trained)
{
    if (trained->engine) {
        trained->engine->table->destroy(trained->engine);
    }
    free(trained->parameters);
    free(trained->targets);
    free(trained->known.items);
    names_free(&trained->classes);
    if (trained->schema) {
        schema_free(trained->schema);
        free(trained->schema);
    }
    checkpoint_close(trained->file);
    *trained = (struct trained){0};
}
