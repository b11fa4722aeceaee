/*
 * Assembles local training: data, model, engine, updater. The test set is loaded with the training set, so that a
 * missing file is found before training and not after it.
 */
#include "worker/local_run.h"

#include "base/cli/command.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/process/signals.h"
#include "ps/job/plan.h"
#include "worker/clients/clients.h"
#include "worker/data/dataset.h"
#include "worker/engine_choose.h"
#include "worker/initial.h"
#include "worker/local_updater.h"
#include "worker/training.h"

/* Everything that a run owns; zeros are safe to release. */
struct local_run {
    struct config config; /* the command's, with what depends on the data filled in; owns nothing */
    struct dataset dataset;
    struct examples test;
    struct model model;
    struct engine_startup startup;
    char digest[CONFIG_DIGEST_HEX + 1];
    struct clients_options clients; /* with rounds, like the next four */
    struct clients_data data;
    struct dataset seen;  /* by the chief; owns nothing */
    struct config inside; /* for the engine that the clients share; owns nothing */
    struct training training;
    bool has_read;
};

/* With rounds, the engine that clients share only computes: the optimizer's state is theirs. */
static struct engine_options engine_options(struct local_run *run)
{
    struct engine_options options = {
        .model = &run->model, .config = &run->config, .like = run->has_read ? &run->dataset.train : NULL};
    if (config_has_rounds(&run->config.train)) {
        run->inside = run->config;
        run->inside.train.optimizer = OPTIMIZER_SGD;
        options.config = &run->inside;
    }
    return options;
}

static bool create_engine(struct local_run *run, struct engine_options *options, struct error *error)
{
    struct training *training = &run->training;
    const struct dataset *dataset = &run->dataset;
    struct engine *inside;
    if (!config_has_rounds(&run->config.train)) {
        options->train = &dataset->train;
        options->streaming = dataset->streaming;
        return engine_choose(&training->engine, options, &run->startup, error);
    }
    options->like = &dataset->train;
    if (!engine_choose(&inside, options, &run->startup, error)) {
        return false;
    }
    options->config = &run->config;
    return clients_engine_create(&training->engine, inside, options, &run->clients, &run->data, error);
}

/* Between clients, if there are any. */
static bool divide_data(struct local_run *run, struct error *error)
{
    struct training *training = &run->training;
    const struct config *config = &run->config;
    training->dataset = &run->dataset;
    if (config_has_rounds(&config->train)) {
        if (!clients_data_create(&run->data, &run->clients, &run->dataset, config, error)) {
            return false;
        }
        run->seen = clients_dataset(&run->data, &run->dataset);
        training->dataset = &run->seen;
        training->validates_as_all = clients_hold_out(&run->clients, config) && config->train.ema_decay == 0 &&
                                     config->output.validate_steps > 0 &&
                                     config->train.validate_by != VALIDATE_BY_CHIEF;
    }
    return true;
}

static bool open_run(struct local_run *run, struct error *error)
{
    struct training *training = &run->training;
    struct engine_options options = engine_options(run);
    const bool data_first = dataset_is_needed_first(&run->config);
    const int usual_batch = run->config.train.batch_size;
    if (!data_first) {
        model_layout(&run->model, &run->config.model);
        engine_begin(&run->startup, &options); /* a GPU takes time to start, and so does loading */
    }
    if (!load_data(&run->dataset, &run->test, &run->config, error)) {
        return false;
    }
    run->has_read = true;
    if (run->config.train.batch_size < usual_batch) {
        engine_startup_end(&run->startup); /* it was begun for larger batches than there will be */
    }
    if (data_first) {
        model_layout(&run->model, &run->config.model);
        options = engine_options(run); /* again, because some depend on the data */
        engine_begin(&run->startup, &options);
    }
    training->config = &run->config;
    training->model = &run->model;
    if (!divide_data(run, error)) {
        return false;
    }
    training->test = &run->test;
    training->keeps_best = true;
    training->digest = run->digest;
    training->sharers = clients_divide_data(&run->clients, &run->config) ? run->clients.count : 1;
    training->replicas = round_share(run->config.train.participation, run->clients.count);
    if (!training_check_data(training, error) || !local_updater_create(&training->updater, training, error)) {
        return false;
    }
    training_plan(training);
    config_digest(&run->config, run->digest);
    return create_engine(run, &options, error);
}

int local_run(const struct config *config, const struct clients_options *clients, struct local_outcome *outcome)
{
    struct local_run run = {.config = *config, .clients = *clients, .training = {.begun_s = clock_monotonic_s()}};
    struct engine **engine = &run.training.engine;
    struct error error;
    int status = COMMAND_FAILED;
    signals_catch();
    if (open_run(&run, &error)) {
        status = training_run(&run.training);
    } else {
        log_error("%s", error.text);
    }
    if (outcome) {
        outcome->has_read = run.has_read;
        outcome->has_diverged = run.training.has_diverged;
    }
    local_updater_destroy(run.training.updater);
    if (*engine) {
        (*engine)->table->destroy(*engine);
    }
    engine_startup_end(&run.startup);
    clients_data_destroy(&run.data);
    examples_free(&run.test);
    dataset_free(&run.dataset);
    return status;
}
