/* A new run: parameters by initializer and seed, or another run's; averages and slots follow. */
#include "worker/initial.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "ps/checkpoint/folder.h"
#include "ps/store/optimizer.h"
#include "worker/data/dataset.h"
#include "worker/data/folders.h"
#include "worker/data/table/schema.h"
#include "worker/export/trained.h"

static bool take_over(const struct config *config, const struct model *model, float *values, char *source,
                      size_t source_size, struct error *error)
{
    struct checkpoint_file *file = NULL;
    const char *source_path = config->train.warm_start;
    bool done = trained_find(&file, file_is_folder(source_path) ? "newest" : source_path, source_path, error) &&
                checkpoint_load_parameters(file, model, CHECKPOINT_RAW, values, NULL, error);
    if (done) {
        snprintf(source, source_size, "with the parameters of %.180s at step %lld", checkpoint_path(file),
                 (long long)checkpoint_file_info(file)->global_step);
        log_info("begins %s", source);
    }
    checkpoint_close(file);
    return done || error_wrap(error, "train.warm_start");
}

static bool initial_parameters(const struct config *config, const struct model *model, float *values, char *source,
                               size_t source_size, struct error *error)
{
    if (config->train.warm_start[0] != '\0') {
        return take_over(config, model, values, source, source_size, error);
    }
    model_initialise(model, &config->model, config->train.seed, values);
    snprintf(source, source_size, "initialised with seed %lld", (long long)config->train.seed);
    return true;
}

bool initial_state(const struct config *config, struct checkpoint_state *state, char *source, size_t source_size,
                   struct error *error)
{
    const size_t floats = state->model->float_count;
    const float *parameters = state->vectors[STORE_PARAMETERS];
    if (!initial_parameters(config, state->model, state->vectors[STORE_PARAMETERS], source, source_size, error)) {
        return false;
    }
    if (state->vectors[STORE_AVERAGES]) {
        memcpy(state->vectors[STORE_AVERAGES], parameters, floats * sizeof *parameters);
    }
    for (int slot = 0; slot < optimizer_slots(state->train->optimizer); slot++) {
        const float initial = optimizer_slot_initial(state->train, slot);
        for (size_t i = 0; i < floats; i++) {
            state->vectors[STORE_SLOT0 + slot][i] = initial;
        }
    }
    return true;
}

bool initial_load_fitting(struct checkpoint_file *file, const struct config *config, struct checkpoint_state *state,
                          char *lost, size_t lost_size, struct error *error)
{
    char source[256];
    return initial_state(config, state, source, sizeof source, error) &&
           checkpoint_load_fitting(file, state, lost, lost_size, error);
}

/* The first rows are held out, or those with the smallest hashes: more of them are others than those before. */
static void warn_if_trained_on(const char *path, const struct fingerprint *there, const struct fingerprint *here)
{
    if (here->held_out > there->held_out) {
        log_warning("%s: held out %lld for validation, and this run %lld: it was trained on the others, so validation "
                    "will look better than it is (data.validation_size)",
                    path, (long long)there->held_out, (long long)here->held_out);
    }
}

/* difference: in the fingerprint. */
static bool say_other_data(const struct checkpoint_file *file, const struct dataset *dataset, const char *difference,
                           struct error *error)
{
    const char *text = checkpoint_file_info(file)->preprocessing;
    struct schema there;
    struct error column = {.text = ""};
    if (text && dataset->schema && schema_parse(&there, text, &column)) {
        if (schema_same(&there, dataset->schema, &column)) {
            column.text[0] = '\0';
        }
        schema_free(&there);
    }
    return error_set(error,
                     "%.250s was trained on other data than these, %.150s: %.150s%s%.200s. Rows held out here may be "
                     "rows it has learnt. Give it its data back, choose another --train_dir, or go on with these by "
                     "--new_data",
                     checkpoint_path(file), dataset->description, difference, column.text[0] != '\0' ? "; " : "",
                     column.text);
}

static const char *text_of(const char *text)
{
    return text ? text : "";
}

/* Are the same rows held out for the test? Otherwise those of a table that train are others, of the same files. */
static bool check_held_out(const struct checkpoint_file *file, const struct config_data *data, struct error *error)
{
    const struct checkpoint_info *info = checkpoint_file_info(file);
    if (info->test_share < 0 ||
        (info->test_share == data->test_share && strcmp(text_of(info->group), data->group) == 0 &&
         strcmp(text_of(info->time), data->time) == 0)) {
        return true;
    }
    return error_set(
        error,
        "%.250s held out other rows for its test (test_share %g, group \"%.64s\", time \"%.64s\") than this "
        "run (%g, \"%.64s\", \"%.64s\"): it has learnt some of these. Set --test_share, --group and --time "
        "as they were, choose another --train_dir, or go on by --new_data",
        checkpoint_path(file), info->test_share, text_of(info->group), text_of(info->time), data->test_share,
        data->group, data->time);
}

/* Are the data those of the checkpoint? Older checkpoints do not say. */
static bool check_fingerprint(const struct checkpoint_file *file, const struct dataset *dataset,
                              const struct config *config, bool changes, bool *is_new, struct error *error)
{
    const struct checkpoint_info *info = checkpoint_file_info(file);
    struct fingerprint there;
    if (dataset->fingerprint.count == 0 || !fingerprint_parse(&there, info->data)) {
        return true;
    }
    struct error difference;
    if (fingerprint_same(&there, &dataset->fingerprint, &difference)) {
        warn_if_trained_on(checkpoint_path(file), &there, &dataset->fingerprint);
        return true;
    }
    if (!config->data.new_data && !changes) {
        return say_other_data(file, dataset, difference.text, error);
    }
    *is_new = true;
    log_warning("%s goes on with other data, %s: %s. Rows held out of them may be rows it has learnt, so scores look "
                "better than they are; the best score starts over",
                checkpoint_path(file), dataset->description, difference.text);
    return true;
}

bool initial_fits(const struct checkpoint_file *file, const struct dataset *dataset, const struct config *config,
                  bool changes, bool *is_new, struct error *error)
{
    const struct checkpoint_info *info = checkpoint_file_info(file);
    *is_new = false;
    return class_names_check(checkpoint_path(file), info->class_names, dataset->class_names, error) &&
           (config->data.data_sharding == SHARDING_OWN ||
            check_fingerprint(file, dataset, config, changes, is_new, error)) &&
           (schema_check(checkpoint_path(file), info->preprocessing, dataset->schema, error) ||
            (check_held_out(file, &config->data, error) && false));
}

/* Of two classes, one that is set; one found by an earlier process stays only if this one looks for it, too. */
static void take_threshold(struct checkpoint_info *info, const struct config_train *train,
                           const struct dataset *dataset)
{
    const bool is_of_inputs = dataset->schema && dataset->schema->task == TASK_INPUTS;
    if (is_of_inputs || train->threshold == CONFIG_AUTO) {
        return;
    }
    info->has_threshold = train->threshold > 0 && train->threshold != 0.5;
    info->threshold = info->has_threshold ? train->threshold : 0;
}

void initial_record(struct checkpoint_info *info, const struct config *config, const struct dataset *dataset)
{
    const struct schema *schema = dataset->schema;
    info->class_names = dataset->class_names;
    info->shape = dataset->shape;
    info->seed = config->train.seed;
    info->fleet_version = config->fleet.version;
    info->preprocessing = schema ? schema->text : NULL;
    const bool holds_out = schema || dataset->shares_test;
    info->test_share = holds_out ? config->data.test_share : -1;
    info->group = holds_out ? config->data.group : NULL;
    info->time = holds_out ? config->data.time : NULL;
    info->loss = schema ? config->train.loss : LOSS_AUTO;
    info->huber_delta = config->train.huber_delta;
    info->quantile = config->train.quantile;
    info->data[0] = '\0';
    if (dataset->fingerprint.count > 0 && config->data.data_sharding != SHARDING_OWN) {
        fingerprint_text(&dataset->fingerprint, info->data);
    }
    take_threshold(info, &config->train, dataset);
    info->temperature = config->train.calibration == CALIBRATION_TEMPERATURE ? info->temperature : 0;
    if (info->interval.coverage != config->train.interval) {
        info->interval = (struct interval){.coverage = 0};
    }
    info->kept_rows = NULL; /* each checkpoint has its own answers */
}

/* --- Data --- */

/* The test set is read on a second thread: decompressing one set after the other would delay the start. */

struct test_loader {
    const struct config *config;
    struct examples *test;
    const struct schema *schema;
    bool loaded;
    struct error error;
};

static void *load_test(void *context)
{
    struct test_loader *loader = context;
    bool is_wanted;
    loader->loaded = dataset_wants_test(&is_wanted, loader->config, &loader->error) &&
                     (!is_wanted || dataset_load_test(loader->test, loader->config, loader->schema, &loader->error));
    return NULL;
}

/* The run's own checkpoint if it goes on with other data than it began with; NULL: not so. */
static bool find_own(struct checkpoint_file **file, const struct config *config, struct error *error)
{
    const char *train_dir = config->output.train_dir;
    *file = NULL;
    if (train_dir[0] == '\0' || !file_exists(train_dir)) {
        return true;
    }
    if (!checkpoint_folder_find(train_dir, file, error)) {
        return false;
    }
    if (*file && !config->data.new_data && checkpoint_file_info(*file)->data_since == 0) {
        checkpoint_close(*file);
        *file = NULL;
    }
    return true;
}

static bool find_before(struct checkpoint_file **file, const struct config *config, struct error *error)
{
    const char *start = config->train.warm_start;
    return find_own(file, config, error) &&
           (*file || start[0] == '\0' || trained_find(file, file_is_folder(start) ? "newest" : start, start, error) ||
            error_wrap(error, "train.warm_start"));
}

/*
 * A model continues with the columns and scales it was trained with: anything else would change what it has learnt.
 */
static bool take_over_schema(struct schema **schema, const struct config *config, struct error *error)
{
    struct checkpoint_file *file = NULL;
    bool is_table;
    if (*schema) {
        return true;
    }
    if (!dataset_is_table(&is_table, config, error)) {
        return false;
    }
    bool done = !is_table || find_before(&file, config, error);
    if (file && checkpoint_file_info(file)->preprocessing) {
        *schema = must_zero(1, sizeof **schema, "columns");
        done = schema_parse(*schema, checkpoint_file_info(file)->preprocessing, error) ||
               error_wrap(error, "%s", checkpoint_path(file));
    }
    checkpoint_close(file);
    return done;
}

bool load_data(struct dataset *dataset, struct examples *test, struct config *config, struct error *error)
{
    struct test_loader loader = {.config = config, .test = test, .loaded = !test};
    pthread_t thread;
    const bool data_first = dataset_is_needed_first(config);
    bool beside = test && !data_first && pthread_create(&thread, NULL, load_test, &loader) == 0;
    bool loaded = take_over_schema(&dataset->schema, config, error) &&
                  dataset_load(dataset, data_first ? test : NULL, config, error) &&
                  (!data_first || dataset_fit(config, dataset, error));
    if (loaded) {
        config->train.batch_size = dataset_batch(config, dataset->train.count);
    }
    if (beside) {
        pthread_join(thread, NULL);
    } else if (test && loaded && test->count == 0) {
        loader.schema = dataset->schema;
        load_test(&loader);
    }
    loader.loaded |= test && test->count > 0;
    if (loaded && !loader.loaded) {
        *error = loader.error;
    }
    return loaded && loader.loaded;
}
