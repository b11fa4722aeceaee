/* Relations between keys. Each error points at the key that the user most likely wants to change. */
#include "base/config/keys.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text/address.h"

/* Images in one step, over all micro-batches: they are gathered in memory before the update. */
enum { MAX_STEP_IMAGES = 1 << 20 };

/* What "auto" means: steps of a run on pictures; epochs of one on a table, fewer without validation, and patience. */
static const double USUAL_AVERAGES = 0.99;
enum { USUAL_BATCH = 100, USUAL_STEPS = 10000, USUAL_EPOCHS = 300, BLIND_EPOCHS = 100, USUAL_PATIENCE = 30 };

static const struct config_origin *origin(const struct config *config, const char *section, const char *name)
{
    return config_origin_of(config, config_key_by_path(section, name));
}

static bool error_at_key(const struct config *config, const char *section, const char *name, struct error *error)
{
    const struct config_origin *from = origin(config, section, name);
    if (from->source == SOURCE_FLAG) {
        return error_wrap(error, "--%s", name);
    }
    if (from->source == SOURCE_ENVIRONMENT) {
        return error_wrap(error, "%s: %s", config_environment_name(config), name);
    }
    error_wrap(error, "%s.%s", section, name);
    if (from->source == SOURCE_VERSION) {
        return error_wrap(error, "%s: version %lld, rolled out", config->path, (long long)config->fleet.version);
    }
    return from->source == SOURCE_DEFAULT ? false
                                          : error_wrap(error, "%s:%d:%d", config->path, from->line, from->column);
}

bool config_error_at(const struct config *config, const char *section, const char *name, struct error *error)
{
    return config->origins ? error_at_key(config, section, name, error) : error_wrap(error, "%s.%s", section, name);
}

/* A key that is "auto": notes that the caller chooses its value. */
static bool is_open(const struct config *config, const char *name, bool is_auto)
{
    config_origin_of(config, config_key_by_path("train", name))->is_auto = is_auto;
    return is_auto;
}

/* Of both, if both are set: the one set more explicitly (flag over file) replaces the other. */
static void choose_bound(struct config *config)
{
    enum config_source steps = origin(config, "train", "train_steps")->source;
    enum config_source epochs = origin(config, "train", "epochs")->source;
    if (config->train.epochs > 0 && epochs > steps) {
        config->train.train_steps = 0;
    } else if (config->train.train_steps > 0 && steps > epochs) {
        config->train.epochs = 0;
    }
}

/*
 * How long a run is, and when it may end before. What is set is what happens: patience ends only runs whose length
 * nobody set. Workers with their own rows count different epochs, so they get a number of steps.
 */
static void fill_in_length(struct config *config)
{
    struct config_train *train = &config->train;
    const bool has_epochs = config_is_of_table(config) &&
                            (config->data.data_sharding != SHARDING_OWN || config->cluster.ps_hosts.count == 0);
    const bool any_steps = is_open(config, "train_steps", train->train_steps == CONFIG_AUTO);
    const bool any_epochs = is_open(config, "epochs", train->epochs == CONFIG_AUTO);
    const bool is_usual = any_steps && (any_epochs || train->epochs == 0);
    if (any_steps) {
        train->train_steps = is_usual && !has_epochs ? USUAL_STEPS : 0; /* epochs=0 of a table: no limit */
    }
    if (any_epochs) {
        train->epochs = !is_usual || !has_epochs ? 0 : config->data.validation_size == 0 ? BLIND_EPOCHS : USUAL_EPOCHS;
    }
    if (!any_steps && !any_epochs) {
        choose_bound(config);
    }
    if (is_open(config, "patience", train->patience == CONFIG_AUTO)) {
        train->patience = is_usual && has_epochs && config->data.validation_size != 0 ? USUAL_PATIENCE : 0;
    }
}

void config_choose_blind(struct config *config)
{
    if (config_was_chosen(config, "train", "patience")) {
        config->train.patience = 0;
    }
    if (config_was_chosen(config, "train", "epochs") && config->train.epochs > BLIND_EPOCHS) {
        config->train.epochs = BLIND_EPOCHS;
    }
}

/*
 * Is it a table of which one process trains a model that nobody has described, on the CPU? Where others must know the
 * model before they see the data, it is described.
 */
static bool may_have_several_nets(const struct config *config)
{
    const struct config_train *train = &config->train;
    bool is_placed = train->device == DEVICE_GPU || train->towers[0] != '\0' || train->precision != PRECISION_FLOAT32;
    for (int i = 0; i < CONFIG_MAX_LAYERS - 1; i++) {
        is_placed |= train->placement[i] != LAYER_ANYWHERE;
    }
    const bool is_alone = config->cluster.job_name == JOB_LOCAL && config->data.data_sharding != SHARDING_OWN;
    return config_is_of_table(config) && is_alone && !is_placed && !config_has_rounds(train) &&
           config->model.hidden_count == CONFIG_AUTO && origin(config, "model", "layers")->source == SOURCE_DEFAULT &&
           config->data.encoding == ENCODING_AUTO;
}

/* Those of model.ensemble=auto; the data may have less (dataset_fit). */
static void choose_nets(struct config *config)
{
    const struct config_key *key = config_key_by_path("model", "ensemble");
    struct config_train *train = &config->train;
    const bool is_chosen = strcmp(config->model.ensemble, "auto") == 0;
    const bool are_several = is_chosen && may_have_several_nets(config);
    struct error ignored;
    if (is_chosen) {
        config_key_set_text(key, config,
                            are_several                             ? "raw:1,ple:1"
                            : config->data.encoding == ENCODING_PLE ? "ple:1"
                                                                    : "raw:1",
                            &ignored);
        config_note_chosen(config, "model", "ensemble", true);
    }
    if (is_open(config, "ema_decay", train->ema_decay == CONFIG_AUTO)) {
        train->ema_decay = are_several ? USUAL_AVERAGES : 0;
    }
}

/*
 * The usual model of a table is set here where ps, which see no data, must know that its widths follow from worker 0's.
 * Of one process it follows from the data with the rest (dataset_fit).
 */
static void choose_hidden(struct config *config)
{
    struct error ignored;
    if (config_is_of_table(config) && config->cluster.job_name != JOB_LOCAL &&
        config->data.data_sharding != SHARDING_OWN && config->model.hidden_count == CONFIG_AUTO &&
        origin(config, "model", "layers")->source == SOURCE_DEFAULT) {
        config_key_set_text(config_key_by_path("model", "hidden"), config, "256", &ignored);
        config_note_chosen(config, "model", "hidden", true);
    }
}

void config_fill_in(struct config *config)
{
    struct config_train *train = &config->train;
    const bool of_table = config_is_of_table(config);
    choose_nets(config);
    choose_hidden(config);
    if (is_open(config, "optimizer", train->optimizer == OPTIMIZER_AUTO)) {
        train->optimizer = of_table ? OPTIMIZER_ADAM : OPTIMIZER_SGD;
    }
    if (is_open(config, "learning_rate", train->learning_rate == CONFIG_AUTO)) {
        train->learning_rate = config_default_learning_rate(train->optimizer, of_table);
    }
    if (is_open(config, "batch_size", train->batch_size == CONFIG_AUTO)) {
        train->batch_size = USUAL_BATCH;
    }
    fill_in_length(config);
}

/* "raw:2": a view and its nets; false if it is none. */
static bool take_nets(struct config_model *model, const char *text, size_t size)
{
    for (int view = VIEW_RAW; view <= VIEW_PIECEWISE; view++) {
        const char *const called = config_view_name((enum number_view)view);
        const size_t name = strlen(called);
        if (size <= name + 1 || strncmp(text, called, name) != 0 || text[name] != ':') {
            continue;
        }
        char *end;
        const long count = text[name + 1] >= '1' && text[name + 1] <= '9' ? strtol(text + name + 1, &end, 10) : 0;
        if (count < 1 || end != text + size || count > CONFIG_MAX_NETS - model->net_count) {
            return false;
        }
        for (long i = 0; i < count; i++) {
            model->views[model->net_count++] = (enum number_view)view;
        }
        return true;
    }
    return false;
}

bool config_parse_ensemble(struct config_model *model, const char *text, struct error *error)
{
    model->net_count = 0;
    for (const char *at = text; at;) {
        const size_t size = strcspn(at, ",");
        if (!take_nets(model, at, size)) {
            return error_set(error,
                             "\"%.*s\" is no view:count; views are raw and ple, and all counts together at most %d",
                             (int)(size < 64 ? size : 64), at, CONFIG_MAX_NETS);
        }
        at = at[size] == ',' ? at + size + 1 : NULL;
    }
    return true;
}

bool config_take_ensemble(struct config *config, struct error *error)
{
    struct config_model *model = &config->model;
    const char *text = model->ensemble;
    const bool is_chosen = config_was_chosen(config, "model", "ensemble");
    model->net_count = 0;
    memset(model->net_inputs, 0, sizeof model->net_inputs);
    if (text[0] != '\0' && !config_parse_ensemble(model, text, error)) {
        return error_at_key(config, "model", "ensemble", error);
    }
    model->net_count = is_chosen && model->net_count == 1 ? 0 : model->net_count; /* of any view */
    return true;
}

static bool takes_view(const struct config_model *model, enum number_view view)
{
    for (int i = 0; i < model->net_count; i++) {
        if (model->views[i] == view) {
            return true;
        }
    }
    return false;
}

/* Does the ensemble take another view of the numbers than data.encoding asks for? */
static bool contradicts_encoding(const struct config *config)
{
    return (config->data.encoding == ENCODING_PLE && takes_view(&config->model, VIEW_RAW)) ||
           (config->data.encoding == ENCODING_NONE && takes_view(&config->model, VIEW_PIECEWISE));
}

/* Says what is wrong with a key, and where it was set; returns false. */
__attribute__((format(printf, 5, 6))) static bool refuse(const struct config *config, const char *section,
                                                         const char *name, struct error *error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
    return error_at_key(config, section, name, error);
}

/* What must not be, the key that the user most likely wants to change, and why. */
struct rule {
    bool is_broken;
    const char *section, *name, *why;
};

/* The first rule that is broken is the error. */
static bool check_rules(const struct config *config, const struct rule *rules, size_t count, struct error *error)
{
    for (size_t i = 0; i < count; i++) {
        if (rules[i].is_broken) {
            return refuse(config, rules[i].section, rules[i].name, error, "%s", rules[i].why);
        }
    }
    return true;
}

#define CHECK_RULES(config, rules, error) check_rules(config, rules, sizeof(rules) / sizeof *(rules), error)

/* What the nets of an ensemble cannot do. */
static bool check_ensemble(const struct config *config, struct error *error)
{
    const struct config_model *model = &config->model;
    const int weights = model->hidden_count != CONFIG_AUTO ? model->hidden_count + 1 : model->layer_count - 1;
    const struct rule rules[] = {
        {model->net_count > 1 && config->train.towers[0] != '\0', "model", "ensemble",
         "cannot be combined with train.towers; remove one of the two"},
        {contradicts_encoding(config), "model", "ensemble",
         "says itself which view of numbers each net takes, and data.encoding says otherwise; remove data.encoding, or "
         "set it to auto"}};
    if (model->net_count > 1 && model->net_count * weights > CONFIG_MAX_WEIGHTS) {
        return refuse(config, "model", "ensemble", error,
                      "makes %d nets of %d layers of weights each; together the most is %d", model->net_count, weights,
                      CONFIG_MAX_WEIGHTS);
    }
    return CHECK_RULES(config, rules, error);
}

bool config_parse_fold(const char *text, int *fold, int *folds, struct error *error)
{
    char end;
    *fold = *folds = 0;
    const bool is_one = strspn(text, "0123456789/") == strlen(text) && strlen(text) < 10 &&
                        sscanf(text, "%d/%d%c", fold, folds, &end) == 2;
    return text[0] == '\0' || (is_one && *folds >= 2 && *folds <= CONFIG_MAX_FOLDS && *fold >= 1 && *fold <= *folds) ||
           error_set(error, "must be which part of how many, at most %d, as 2/5, not \"%.16s\"", CONFIG_MAX_FOLDS,
                     text);
}

static bool check_fold(const struct config *config, struct error *error)
{
    int fold, folds;
    if (!config_parse_fold(config->data.fold, &fold, &folds, error)) {
        return error_at_key(config, "data", "fold", error);
    }
    if (folds == 0) {
        return true;
    }
    if (!config_is_of_table(config)) {
        error_set(error, "divides the rows of a table, and there is no target; remove it");
    } else if (config->data.validation_size != CONFIG_AUTO) {
        error_set(error, "and validation_size both set which rows are held out; remove one of the two");
    } else if (config->data.time[0] != '\0') {
        error_set(error, "holds out rows at random, and data.time the latest ones; remove one of the two");
    } else {
        return true;
    }
    return error_at_key(config, "data", "fold", error);
}

static bool check_hosts_disjoint(const struct config *config, struct error *error)
{
    const struct string_list *ps = &config->cluster.ps_hosts, *workers = &config->cluster.worker_hosts;
    for (int i = 0; i < ps->count; i++) {
        for (int j = 0; j < workers->count; j++) {
            if (strcmp(ps->items[i], workers->items[j]) == 0) {
                return refuse(config, "cluster", "worker_hosts", error,
                              "%s is also in ps_hosts; every process needs its own port", ps->items[i]);
            }
        }
    }
    return true;
}

static bool check_bind(const struct config *config, struct error *error)
{
    struct address address;
    if (address_parse_bind(config->cluster.bind, &address, error)) {
        return true;
    }
    error_wrap(error, "\"%.200s\" is not an address to listen on", config->cluster.bind);
    return error_at_key(config, "cluster", "bind", error);
}

static bool check_steps(const struct config *config, struct error *error)
{
    const struct config_train *train = &config->train;
    int64_t images = (int64_t)train->batch_size * train->micro_batches;
    if (images > MAX_STEP_IMAGES) {
        return refuse(config, "train", "micro_batches", error,
                      "%d micro-batches of %d images make a step of %lld images, above the limit of %d",
                      train->micro_batches, train->batch_size, (long long)images, MAX_STEP_IMAGES);
    }
    if (train->nesterov && train->optimizer != OPTIMIZER_MOMENTUM) {
        return refuse(config, "train", "nesterov", error, "needs optimizer momentum, not %s",
                      config_optimizer_name(train->optimizer));
    }
    if (train->weight_decay > 0 && train->optimizer == OPTIMIZER_FTRL) {
        return refuse(config, "train", "weight_decay", error,
                      "cannot be combined with optimizer ftrl, which derives weights from its slots; use l2 instead");
    }
    return train->l1 == 0 || train->optimizer == OPTIMIZER_FTRL ||
           refuse(config, "train", "l1", error, "needs optimizer ftrl, not %s",
                  config_optimizer_name(train->optimizer));
}

static bool check_calibration(const struct config *config, struct error *error)
{
    return config->train.calibration != CALIBRATION_TEMPERATURE || config_is_of_table(config) ||
           refuse(config, "train", "calibration", error,
                  "temperature corrects the probabilities of a table's model, and there is no target; use none");
}

static bool check_interval(const struct config *config, struct error *error)
{
    const bool learns_inputs = config->data.target.count == 1 && strcmp(config->data.target.items[0], "inputs") == 0;
    if (config->train.interval == 0) {
        return true;
    }
    if (!config_is_of_table(config) || learns_inputs) {
        error_set(error, "intervals are of numbers that a table's model predicts, and there is no such target; use 0");
    } else if (config->data.data_sharding == SHARDING_OWN) {
        error_set(error, "needs the errors of all validation rows, which are not in one place with data_sharding=own; "
                         "use 0");
    } else {
        return true;
    }
    return error_at_key(config, "train", "interval", error);
}

/* A model uses the CPU and at most one GPU; *on_gpu: whether any layer is placed on the GPU. */
static bool check_placement(const struct config *config, bool *on_gpu, struct error *error)
{
    const struct config_train *train = &config->train;
    int gpu = train->device == DEVICE_GPU ? train->device_index : -1, layers = config->model.layer_count - 1;
    *on_gpu = false;
    for (int i = 0; i < CONFIG_MAX_LAYERS - 1; i++) {
        int named = train->placement[i] - LAYER_ON_GPU;
        if (train->placement[i] == LAYER_ANYWHERE) {
            continue;
        }
        *on_gpu |= named >= 0;
        if (i >= layers) {
            error_set(error, "names layer%d, but model.layers makes layer0 to layer%d", i, layers - 1);
        } else if (train->towers[0] != '\0') {
            error_set(error, "cannot be combined with train.towers; remove one of the two");
        } else if (named >= 0 && gpu >= 0 && named != gpu) {
            error_set(
                error,
                "puts layer%d on gpu:%d and others on gpu:%d; a model uses one GPU and the CPU: name gpu:%d or cpu:0",
                i, named, gpu, gpu);
        } else {
            gpu = named >= 0 ? named : gpu;
            continue;
        }
        return error_at_key(config, "train", "placement", error);
    }
    return true;
}

static bool check_devices(const struct config *config, struct error *error)
{
    const struct config_train *train = &config->train;
    bool on_gpu;
    return check_placement(config, &on_gpu, error) &&
           (train->precision == PRECISION_FLOAT32 || train->device != DEVICE_CPU || train->towers[0] != '\0' ||
            on_gpu ||
            refuse(config, "train", "precision", error,
                   "%s needs a GPU's tensor cores, but device is cpu, which computes in float32; remove it",
                   config_precision_name(train->precision)));
}

/* target_accuracy is target_metric for best_metric accuracy: with another metric it would mean something else. */
static bool check_target(const struct config *config, struct error *error)
{
    const struct config_train *train = &config->train;
    if (train->target_accuracy == 0) {
        return true;
    }
    if (train->target_metric > 0) {
        return refuse(config, "train", "target_accuracy", error,
                      "and target_metric cannot be combined; remove one of the two");
    }
    return train->best_metric == METRIC_AUTO || train->best_metric == METRIC_ACCURACY ||
           refuse(config, "train", "target_accuracy", error,
                  "cannot be combined with best_metric=%s; set target_metric instead",
                  config_metric_name(train->best_metric));
}

/* Early stopping is decided on validation images; without any it would never happen. */
static bool check_validation(const struct config *config, struct error *error)
{
    const struct config_train *train = &config->train;
    const struct rule rules[] = {
        {train->target_accuracy > 0, "train", "target_accuracy",
         "needs validation images; set validation_size above 0"},
        {train->target_metric > 0, "train", "target_metric", "needs validation examples; set validation_size above 0"},
        {train->patience > 0, "train", "patience", "counts validations; set validation_size above 0"}};
    return config->data.validation_size != 0 || CHECK_RULES(config, rules, error);
}

/* In a cluster only worker 0 keeps checkpoints, although the keys are the whole job's. */
static bool keeps_checkpoints(const struct config_cluster *cluster)
{
    return cluster->job_name == JOB_WORKER ? cluster->task_index == 0 : cluster->worker_hosts.count == 0;
}

/*
 * A changed checkpoint key means that checkpoints are expected, so a missing train_dir is an error; defaults ask for
 * nothing.
 */
static bool check_checkpoints(const struct config *config, struct error *error)
{
    static const char *const names[] = {"save_steps", "save_model_secs", "max_to_keep", "keep_every_n_hours"};
    if (config->output.train_dir[0] != '\0' || !keeps_checkpoints(&config->cluster)) {
        return true;
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const struct config_key *key = config_key_by_path("output", names[i]);
        const bool off =
            key->offset == offsetof(struct config, output.save_model_secs) && config->output.save_model_secs == 0;
        if (!config_key_is_default(key, config) && !off) {
            return refuse(config, "output", names[i], error,
                          "has no effect without a folder for checkpoints; set train_dir");
        }
    }
    return true;
}

/* "worker_hosts lists 3 and elastic lets 10 more join" */
static const char *who_may_come(const struct config_cluster *cluster, char text[96])
{
    const int listed = cluster->worker_hosts.count, more = config_worker_room(cluster) - listed;
    const int used = snprintf(text, 96, "worker_hosts lists %d", listed);
    if (more > 0) {
        snprintf(text + used, 96 - (size_t)used, " and elastic lets %d more join", more);
    }
    return text;
}

/* Keys of synchronous training mean nothing in asynchronous training, and the other way round. */
static bool check_synchronous(const struct config *config, struct error *error)
{
    const struct config_cluster *cluster = &config->cluster;
    int listed = cluster->worker_hosts.count, workers = listed > 0 ? config_worker_room(cluster) : 0;
    int wanted = cluster->replicas_to_aggregate > 0 ? cluster->replicas_to_aggregate : workers;
    char come[96];
    static const char not_synchronous[] = "applies to synchronous training only; set issync=1 or remove it";
    const struct rule rules[] = {
        {!cluster->issync && cluster->replicas_to_aggregate > 0, "cluster", "replicas_to_aggregate", not_synchronous},
        {!cluster->issync && cluster->min_replicas > 1, "cluster", "min_replicas", not_synchronous},
        {cluster->issync && cluster->max_staleness > 0, "cluster", "max_staleness",
         "applies to asynchronous training only; issync drops stale gradients: set it to 0"},
        {cluster->issync && cluster->pipeline_depth > 0, "cluster", "pipeline_depth",
         "would make every gradient stale, and issync drops stale gradients: set it to 0"}};
    if (cluster->issync && workers > 0 && wanted > workers) {
        return refuse(config, "cluster", "replicas_to_aggregate", error,
                      "no step could ever complete: %s, fewer than %d", who_may_come(cluster, come), wanted);
    }
    if (cluster->issync && workers > 0 && cluster->min_replicas > wanted) {
        return refuse(config, "cluster", "min_replicas", error, "must be at most %d, the gradients per step, not %d",
                      wanted, cluster->min_replicas);
    }
    return CHECK_RULES(config, rules, error);
}

/* Without rounds their keys are ignored. */
static bool check_unused(const struct config *config, struct error *error)
{
    static const char *const names[] = {"proximal_mu",    "outer_optimizer",      "outer_learning_rate",
                                        "outer_momentum", "round_weights",        "aggregate",
                                        "trim",           "clip_difference_norm", "participation",
                                        "over_selection", "round_deadline_secs",  "buffer_size"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (!config_key_is_default(config_key_by_path("train", names[i]), config)) {
            return refuse(config, "train", names[i], error,
                          "has no effect while every step is shared; set local_steps above 1, or local_epochs");
        }
    }
    return true;
}

/* Which workers are selected for a round, and what counts. */
static bool check_asked(const struct config *config, struct error *error)
{
    const struct config_train *train = &config->train;
    const bool is_shared = config->cluster.ps_hosts.count > 0, asks_some = config_asks_some(train);
    const struct rule rules[] = {
        {!asks_some && train->over_selection > 1, "train", "over_selection",
         "has no effect while all workers are selected; set participation below 1"},
        {is_shared && asks_some && config->cluster.replicas_to_aggregate > 0, "cluster", "replicas_to_aggregate",
         "and participation both set how many workers make a round; use over_selection for backups"},
        {config->cluster.ps_hosts.count > 1 && train->clip_difference_norm > 0, "train", "clip_difference_norm",
         "needs whole differences on one ps: list a single ps in ps_hosts, or set it to 0"},
        {train->aggregate != AGGREGATE_TRIMMED_MEAN &&
             !config_key_is_default(config_key_by_path("train", "trim"), config),
         "train", "trim", "has no effect without aggregate=trimmed_mean"}};
    return CHECK_RULES(config, rules, error);
}

/* With buffered rounds no worker is selected or waited for, and only the mean of differences is kept. */
static bool check_buffer(const struct config *config, struct error *error)
{
    const struct config_train *train = &config->train;
    const struct rule rules[] = {
        {config->cluster.issync, "train", "buffer_size",
         "makes asynchronous rounds: remove issync, or use replicas_to_aggregate or participation"},
        {train->aggregate != AGGREGATE_MEAN, "train", "aggregate",
         "needs all differences of a round at once, but buffer_size keeps only their running mean; use mean"},
        {config_asks_some(train), "train", "participation",
         "selects the workers of a round, but with buffer_size whichever are ready make it; set it to 1"},
        {train->round_deadline_secs > 0, "train", "round_deadline_secs",
         "limits how long a round waits, but with buffer_size rounds do not wait; set it to 0"},
        {config->cluster.pipeline_depth > 0, "cluster", "pipeline_depth",
         "computes ahead of the answer, but a round (local_steps) begins with the model in that answer; set it to 0"}};
    return train->buffer_size == 0 || CHECK_RULES(config, rules, error);
}

static bool check_rounds(const struct config *config, struct error *error)
{
    const struct config_train *train = &config->train;
    const char *name = train->local_epochs > 0 ? "local_epochs" : "local_steps";
    const struct rule rules[] = {
        {train->local_steps > 1 && train->local_epochs > 0, "train", name,
         "and local_steps both set the length of a round; remove one of the two"},
        {config->cluster.ps_hosts.count > 0 && !config->cluster.issync && train->buffer_size == 0, "train", name,
         "makes rounds, which end for all workers together; set issync=1, or buffer_size above 0 for asynchronous "
         "ones"},
        {config->data.data_sharding == SHARDING_CHIEF, "train", name,
         "cannot be combined with data_sharding=chief, which sends a batch for every step; use disjoint or own"},
        {train->micro_batches > 1, "train", name, "cannot be combined with micro_batches; raise batch_size instead"}};
    if (!config_has_rounds(train)) {
        return check_unused(config, error);
    }
    return CHECK_RULES(config, rules, error) && check_asked(config, error) && check_buffer(config, error);
}

/* Workers would count different epochs, but a step must mean the same to all. */
static bool check_own_data(const struct config *config, struct error *error)
{
    const struct config_train *train = &config->train;
    const struct rule rules[] = {
        {train->epochs > 0, "train", "epochs",
         "is undefined with data_sharding=own, where each worker has its own number of examples; set train_steps"},
        {config->data.scaling == SCALING_ROBUST, "data", "scaling",
         "robust needs the quantiles of all rows, which cannot be merged with data_sharding=own; use standard or "
         "minmax"},
        {config->data.encoding == ENCODING_PLE, "data", "encoding",
         "ple needs the quantiles of all rows, which cannot be merged with data_sharding=own; use none"},
        {takes_view(&config->model, VIEW_PIECEWISE), "model", "ensemble",
         "has ple nets, which need the quantiles of all rows, and those cannot be merged with data_sharding=own; use "
         "raw nets"},
        {config->model.hidden_count != CONFIG_AUTO, "model", "hidden",
         "derives the outer layers from the data, but with data_sharding=own no member has all of them; give all "
         "layers"},
        {train->lr_decay < 1 && train->lr_decay_steps == 0, "train", "lr_decay_steps",
         "must be set with data_sharding=own, where the length of an epoch differs between workers"}};
    return config->data.data_sharding != SHARDING_OWN || config->cluster.ps_hosts.count == 0 ||
           CHECK_RULES(config, rules, error);
}

/* All validating workers must hold the same model. */
static bool check_validate_by(const struct config *config, struct error *error)
{
    static const char section[] = "train", name[] = "validate_by";
    const struct rule rules[] = {
        {config->data.data_sharding != SHARDING_OWN, section, name,
         "workers needs workers with their own rows: set data_sharding=own, or use auto"},
        {config->cluster.ps_hosts.count > 0 && !config->cluster.issync, section, name,
         "workers needs all workers to have the same model: set issync=1, or use auto"},
        {config->output.validate_steps == 0, section, name,
         "workers needs common steps to validate at, but epochs end at different steps: set validate_steps"},
        {config->train.ema_decay > 0, section, name,
         "workers can't validate moving averages (ema_decay), which workers do not have; use auto"}};
    return config->train.validate_by != VALIDATE_BY_WORKERS || CHECK_RULES(config, rules, error);
}

/* A worker beyond worker_hosts has no shard of the data, and the chief's data server does not know it. */
static bool check_elastic(const struct config *config, struct error *error)
{
    const enum data_sharding sharding = config->data.data_sharding;
    return !config->cluster.elastic || sharding == SHARDING_SHUFFLED || sharding == SHARDING_OWN ||
           refuse(config, "cluster", "elastic", error,
                  "needs data_sharding shuffled or own: workers that join have no share of the common data");
}

bool config_check_relations(const struct config *config, struct error *error)
{
    return check_hosts_disjoint(config, error) && check_bind(config, error) && check_steps(config, error) &&
           check_devices(config, error) && check_ensemble(config, error) && check_calibration(config, error) &&
           check_interval(config, error) && check_fold(config, error) && check_target(config, error) &&
           check_validation(config, error) && check_checkpoints(config, error) && check_synchronous(config, error) &&
           check_rounds(config, error) && check_own_data(config, error) && check_validate_by(config, error) &&
           check_elastic(config, error);
}

bool config_check_role(const struct config *config, struct error *error)
{
    const struct config_cluster *cluster = &config->cluster;
    if (cluster->job_name == JOB_LOCAL || cluster->job_name == JOB_EVALUATOR) {
        return true;
    }
    bool is_ps = cluster->job_name == JOB_PS;
    const char *role = is_ps ? "ps" : "worker";
    if (cluster->ps_hosts.count == 0) {
        return refuse(config, "cluster", "ps_hosts", error, "is empty; job_name=%s needs the addresses of all ps",
                      role);
    }
    if (cluster->worker_hosts.count == 0) {
        return refuse(config, "cluster", "worker_hosts", error,
                      "is empty; job_name=%s needs the addresses of all workers", role);
    }
    if (cluster->task_index == CONFIG_AUTO && is_ps) {
        return refuse(config, "cluster", "task_index", error,
                      "is for workers: a ps's index is its position in ps_hosts");
    }
    int listed = is_ps ? cluster->ps_hosts.count : cluster->worker_hosts.count;
    int count = is_ps ? listed : config_worker_room(cluster);
    if (cluster->task_index >= count) {
        return refuse(config, "cluster", "task_index", error, "must be from 0 to %d (%s_hosts lists %d%s), not %d",
                      count - 1, role, listed, count > listed ? " and elastic lets more join" : "",
                      cluster->task_index);
    }
    if (cluster->min_workers > config_worker_room(cluster)) {
        char come[96];
        return refuse(config, "cluster", "min_workers", error, "training would never start: %s, fewer than %d",
                      who_may_come(cluster, come), cluster->min_workers);
    }
    return true;
}
