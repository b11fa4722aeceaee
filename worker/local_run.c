/*
 * Assembles local training: data, model, engine, updater. The test set is loaded with the training set, so that a
 * missing file is found before training and not after it.
 */
#include "worker/local_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cli/command.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/process/signals.h"
#include "base/profile.h"
#include "ps/checkpoint/writer.h"
#include "ps/job/plan.h"
#include "ps/store/rounds.h"
#include "worker/checkpoints.h"
#include "worker/clients/clients.h"
#include "worker/data/dataset.h"
#include "worker/engine.h"
#include "worker/evaluation/kept_rows.h"
#include "worker/initial.h"
#include "worker/training.h"

/* --- The updater --- */

/* Slices of training by the engine itself, and checkpoints of its state. */

enum { SOUNDNESS_IMAGES = 100 /* on which a state must have a finite loss before it is saved */ };

static const double SLICE_S = 0.05;

static const double BEST_S = 1; /* between two writes of a better and better model */

struct local_updater {
    struct updater updater;
    struct training *training;
    struct config_train train; /* by which the state is kept */
    struct checkpoint_ledger ledger;
    struct checkpoint_writer *writer; /* NULL: no train_dir, and then neither folder nor snapshot */
    struct checkpoint_state snapshot;
    char *kept_rows;      /* of the last checkpoint: the ledger's info borrows it */
    int64_t slice_steps;  /* for about SLICE_S */
    bool best_waits;      /* training->good is not on disk yet */
    int64_t went_back_to; /* after a divergence, until a checkpoint replaces those of later steps; -1 */
    double best_s;        /* when one was last written */
};

static struct local_updater *of(struct updater *updater)
{
    return (struct local_updater *)updater;
}

/* --- Checkpoints --- */

/* The outcome of the checkpoint in progress, once it is known. A failed one makes the run end with status 1. */
static void collect_saved(struct local_updater *local, bool wait)
{
    struct checkpoint_report saved;
    struct error error;
    if (!local->writer) {
        return;
    }
    enum checkpoint_outcome outcome = wait ? checkpoint_writer_wait(local->writer, &saved, &error)
                                           : checkpoint_writer_poll(local->writer, &saved, &error);
    if (outcome == CHECKPOINT_NO_NEWS) {
        return;
    }
    checkpoint_ledger_done(&local->ledger, &saved, outcome == CHECKPOINT_FAILED ? &error : NULL,
                           local->training->progress.active);
    /* Not before: if this process were killed, the next one would have nothing to go on from. */
    if (local->went_back_to >= 0 && outcome != CHECKPOINT_FAILED && (saved.targets & CHECKPOINT_MODEL)) {
        checkpoint_folder_go_back(&local->ledger.folder, local->went_back_to, saved.info.global_step);
        local->went_back_to = -1;
    }
}

/* Is the present state worth saving: does it still have a finite loss? Costs one small batch. */
static bool state_is_sound(struct training *training)
{
    struct examples few = training->dataset->sample;
    few.count = few.count < SOUNDNESS_IMAGES ? few.count : SOUNDNESS_IMAGES;
    if (!evaluate(&training->evaluation, training->engine, false, &few, &training->error)) {
        return training_fail(training);
    }
    const double loss = training->evaluation.loss;
    return isfinite(loss) || training_diverges(training, "the loss", loss, training->global_step);
}

static bool copy_state(struct local_updater *local)
{
    struct training *training = local->training;
    struct engine *engine = training->engine;
    for (int v = 0; v < STORE_VECTORS; v++) {
        float *values = local->snapshot.vectors[v];
        if (values && !engine->table->read(engine, (enum store_vector)v, 0, training->model->float_count, values,
                                           &training->error)) {
            return training_fail(training);
        }
    }
    return true;
}

/* Has the snapshot written in the background. info: what it says. */
static void submit(struct local_updater *local, int targets, struct checkpoint_info *info)
{
    const struct training *training = local->training;
    free(local->kept_rows);
    local->kept_rows = kept_rows_write(training->config, training->dataset, training->test, &local->snapshot);
    info->kept_rows = local->kept_rows;
    checkpoint_writer_submit(local->writer, targets, &local->snapshot, info);
    checkpoint_ledger_begin(&local->ledger, targets, info->global_step);
    if (targets & CHECKPOINT_BEST) {
        local->best_waits = false;
        local->best_s = clock_monotonic_s();
    }
}

/* Saves the best model so far, of an earlier step than the present state. */
static void begin_to_save_best(struct local_updater *local)
{
    const struct good_model *good = &local->training->good;
    struct checkpoint_info info = local->ledger.info;
    collect_saved(local, true);
    good_model_copy(good, &local->snapshot);
    info.global_step = good->global_step;
    info.validation_score = good->record.validation_score;
    info.has_threshold = good->record.has_threshold;
    info.threshold = good->record.threshold;
    info.temperature = good->record.temperature;
    info.interval = good->record.interval;
    info.bad_validations = 0;
    submit(local, CHECKPOINT_BEST, &info);
}

/* Starts saving the present state in the background; waits only if an earlier checkpoint is still in progress. */
static void begin_to_save(struct local_updater *local, int targets)
{
    struct training *training = local->training;
    collect_saved(local, true);
    if (!state_is_sound(training) || !copy_state(local)) {
        return;
    }
    if ((targets & CHECKPOINT_MODEL) && training->engine->table->keep) {
        training->engine->table->keep(training->engine, training->global_step);
    }
    local->ledger.info.global_step = training->global_step;
    submit(local, targets, &local->ledger.info);
}

/*
 * While the model gets better with each of many short epochs, only the last best one of a second is written. A
 * checkpoint never names a best model that is not on disk, so that a resumed run has it.
 */
static void save_what_is_due(struct local_updater *local, bool is_due, bool is_best)
{
    const double begin_s = clock_monotonic_s();
    local->best_waits |= is_best;
    const bool may_wait = local->training->good.state.memory;
    const bool best_is_due = local->best_waits && (!may_wait || is_due || begin_s - local->best_s >= BEST_S);
    if (best_is_due && !is_best) {
        begin_to_save_best(local);
    }
    const int targets = (is_due ? CHECKPOINT_MODEL : 0) | (best_is_due && is_best ? CHECKPOINT_BEST : 0);
    if (targets != 0) {
        begin_to_save(local, targets);
    }
    if (best_is_due || is_due) {
        training_charge(local->training, clock_monotonic_s() - begin_s);
    }
}

static void save(struct updater *updater, bool is_best)
{
    struct local_updater *local = of(updater);
    const bool ends = local->training->end != TRAINING_GOES_ON;
    const int64_t step = local->training->global_step, save_steps = local->ledger.supervisor.save_steps;
    if (local->writer) {
        /*
         * Checkpoints by steps must be of those steps: if the disk can't keep up, training waits for it. Those by time
         * are delayed instead.
         */
        collect_saved(local, ends || (save_steps > 0 && step % save_steps == 0));
        bool is_due = ends ? supervisor_is_unsaved(&local->ledger.supervisor, step)
                           : supervisor_should_save(&local->ledger.supervisor, step, clock_monotonic_s());
        save_what_is_due(local, is_due, is_best);
    }
    local->ledger.info.validation_score = NAN; /* the next checkpoint is of another step */
}

static void record(struct updater *updater, struct updater_record *record)
{
    struct local_updater *local = of(updater);
    collect_saved(local, true);
    checkpoint_ledger_record(&local->ledger, record);
}

/* If this process simulates workers that validate on their own rows. */
static bool gather(struct updater *updater, int64_t global_step, enum metric metric, struct evaluation *evaluation,
                   struct validators *validators)
{
    struct training *training = of(updater)->training;
    (void)global_step;
    return !training->validates_as_all || !isfinite(evaluation->loss) ||
           clients_validate(training->engine, metric, evaluation, validators, &training->error) ||
           training_fail(training);
}

static void finish(struct updater *updater)
{
    struct local_updater *local = of(updater);
    if (local->best_waits) {
        begin_to_save_best(local);
    }
    if (local->writer && local->went_back_to >= 0) {
        begin_to_save(local, CHECKPOINT_MODEL); /* or the newest would be one of those that diverge */
    }
    collect_saved(local, true); /* the last one was ordered at the end of training */
    if (local->writer && checkpoint_ledger_make_room(&local->ledger, local->training->global_step)) {
        begin_to_save(local, CHECKPOINT_MODEL);
        collect_saved(local, true);
    }
}

/* --- Where training starts --- */

static bool put_state(struct local_updater *local, const struct checkpoint_state *state)
{
    struct training *training = local->training;
    return engine_put_vectors(training->engine, state->vectors, training->model->float_count, &training->error) ||
           training_fail(training);
}

static bool put_initial_state(struct local_updater *local)
{
    struct training *training = local->training;
    const struct config *config = training->config;
    /* Uses the snapshot's memory, if there is one: it is not needed before the first checkpoint. */
    struct checkpoint_state own = {.memory = NULL}, *state = local->writer ? &local->snapshot : &own;
    char source[256];
    if (!local->writer) {
        checkpoint_state_create(&own, training->model, &local->train);
    }
    bool done = initial_state(config, state, source, sizeof source, &training->error) ? put_state(local, state)
                                                                                      : training_fail(training);
    checkpoint_state_destroy(&own);
    return done;
}

/* Loads the newest good checkpoint into the engine. *restored is false if there is none. */
static bool restore(struct local_updater *local, bool *restored)
{
    struct training *training = local->training;
    struct checkpoint_file *file = NULL;
    if (!checkpoint_folder_newest(&local->ledger.folder, &file, &training->error)) {
        return training_fail(training);
    }
    *restored = file;
    if (!file) {
        return true;
    }
    bool is_new;
    if (!initial_fits(file, training->dataset, training->config, false, &is_new, &training->error)) {
        checkpoint_close(file);
        return training_fail(training);
    }
    bool done = checkpoint_load(file, &local->snapshot, &training->error) ? put_state(local, &local->snapshot)
                                                                          : training_fail(training);
    checkpoint_ledger_restored(&local->ledger, file);
    if (is_new) {
        checkpoint_ledger_new_data(&local->ledger);
    }
    checkpoint_close(file);
    return done;
}

/* The run is at a step, and its next checkpoint says whose it is. */
static void note_run(struct local_updater *local, int64_t global_step)
{
    struct training *training = local->training;
    struct checkpoint_info *info = &local->ledger.info;
    initial_record(info, training->config, training->dataset);
    snprintf(info->config_digest, sizeof info->config_digest, "%s", training->digest);
    info->first_rate = training->config->train.learning_rate;
    training->global_step = global_step;
    training->engine->table->set_global_step(training->engine, global_step);
    supervisor_begin(&local->ledger.supervisor, &training->config->output, global_step, clock_monotonic_s());
}

static bool join(struct updater *updater, struct updater_start *start)
{
    struct local_updater *local = of(updater);
    struct training *training = local->training;
    const struct config *config = training->config;
    bool restored = false;
    if (local->writer && !restore(local, &restored)) {
        return false;
    }
    if (restored && local->ledger.info.seed != config->train.seed) {
        log_warning("%s was trained with seed %lld and continues with seed %lld: the order of the data changes",
                    local->ledger.last, (long long)local->ledger.info.seed, (long long)config->train.seed);
    }
    if (!restored && !put_initial_state(local)) {
        return false;
    }
    checkpoint_ledger_note_rate(&local->ledger, &config->train);
    note_run(local, restored ? local->ledger.info.global_step : 0);
    if (restored && training->engine->table->load_state &&
        !training->engine->table->load_state(training->engine, training->global_step, &training->error)) {
        return training_fail(training);
    }
    *start = (struct updater_start){.restored_from = restored ? local->ledger.last : NULL,
                                    .global_step = training->global_step,
                                    .record = local->ledger.info};
    return true;
}

/* --- Training --- */

static void look_for_end(struct updater *updater)
{
    struct training *training = of(updater)->training;
    if (training->global_step >= training->plan.last_step) {
        training_stop(training, TRAINING_LAST_STEP);
    }
}

static int64_t next_slice(const struct local_updater *local)
{
    const struct training *training = local->training;
    const int64_t to_due = training_steps_to_due(training);
    const int64_t to_save =
        local->writer ? supervisor_steps_to_save(&local->ledger.supervisor, training->global_step) : INT64_MAX;
    const int64_t n = to_save < to_due ? to_save : to_due;
    return local->slice_steps < n ? local->slice_steps : n;
}

static bool step(struct updater *updater)
{
    PROFILE("train");
    struct local_updater *local = of(updater);
    struct training *training = local->training;
    struct train_result done = {.finite = true};
    const double begin_s = clock_monotonic_s();
    if (!training->engine->table->train(training->engine, next_slice(local), &done, &training->error)) {
        return training_fail(training);
    }
    const double end_s = clock_monotonic_s();
    training->global_step += done.steps;
    training_account(training, &done, end_s - begin_s, end_s);
    if (!done.finite) {
        return training_diverges(training, "the loss", done.bad_loss, training->global_step);
    }
    /* Grows by doubling: the first steps are slow, and a delayed one must not set the pace. */
    int64_t wanted = (int64_t)(training->recent_steps_per_s * SLICE_S);
    wanted = wanted > 2 * local->slice_steps ? 2 * local->slice_steps : wanted;
    local->slice_steps = wanted < 1 ? 1 : wanted;
    return true;
}

static bool load_best(struct updater *updater)
{
    struct local_updater *local = of(updater);
    struct training *training = local->training;
    char path[CHECKPOINT_MAX_PATH];
    struct checkpoint_file *file;
    collect_saved(local, true);
    checkpoint_folder_name(&local->ledger.folder, CHECKPOINT_BEST, 0, path);
    const enum checkpoint_status status = checkpoint_open(&file, path, &training->error);
    if (status == CHECKPOINT_DAMAGED) { /* while the run went on */
        file_set_aside(path, training->error.text);
        log_warning("the best model is lost, and the present one, of step %lld, is used",
                    (long long)training->global_step);
        training->good.is_best = false;
        return true;
    }
    if (status != CHECKPOINT_OPENED) {
        return training_fail(training);
    }
    /* A write that failed leaves an earlier best behind. */
    if (checkpoint_file_info(file)->global_step != training->good.global_step) {
        log_warning("the best model, of step %lld, could not be saved: %s is of step %lld, and the present one is used",
                    (long long)training->good.global_step, path, (long long)checkpoint_file_info(file)->global_step);
        training->good.is_best = false;
        checkpoint_close(file);
        return true;
    }
    const bool done = checkpoint_load(file, &local->snapshot, &training->error) ? put_state(local, &local->snapshot)
                                                                                : training_fail(training);
    checkpoint_close(file);
    return done;
}

/* The best model so far is the state again, or else the one that training began with. */
static bool put_good(struct local_updater *local, const struct good_model *good)
{
    struct training *training = local->training;
    local->ledger.info = good->record;
    training->global_step = good->global_step;
    if (good->state.memory) {
        return good_model_put(good, training->engine, &training->error) || training_fail(training);
    }
    return good->is_best ? load_best(&local->updater) && good->is_best : put_initial_state(local);
}

/* What only the engine knows of a state, such as unsent parts of messages, begins anew with its parameters. */
static bool go_back(struct updater *updater, const struct good_model *good)
{
    struct local_updater *local = of(updater);
    struct training *training = local->training;
    bool is_restored = false;
    if (local->best_waits) {
        begin_to_save_best(local);
    }
    collect_saved(local, true);
    const bool has_kept = local->writer && local->ledger.last[0] != '\0';
    const bool has_later = has_kept && !good->is_best && local->ledger.last_step >= good->global_step;
    if ((has_later && !restore(local, &is_restored)) || (!is_restored && !put_good(local, good))) {
        return false;
    }
    note_run(local, is_restored ? local->ledger.info.global_step : good->global_step);
    local->ledger.info.validation_score = NAN;
    local->ledger.info.retries = good->record.retries;
    local->went_back_to = training->global_step;
    return true;
}

/* Between two steps nothing else changes the model. */
static bool hold(struct updater *updater, struct held_model *held)
{
    struct local_updater *local = of(updater);
    *held = (struct held_model){.global_step = local->training->global_step, .record = &local->ledger.info};
    return true;
}

/* The best model goes with this step's checkpoint, if there is one: save handles both. */
static void release(struct updater *updater, bool is_best)
{
    (void)updater;
    (void)is_best;
}

/* --- Create and destroy --- */

static const struct updater_table local_table = {
    .is_shared = false,
    .join = join,
    .look_for_end = look_for_end,
    .step = step,
    .save = save,
    .hold = hold,
    .release = release,
    .gather = gather,
    .finish = finish,
    .go_back = go_back,
    .load_best = load_best,
    .record = record,
};

static bool open_folder(struct local_updater *local, struct error *error)
{
    const struct training *training = local->training;
    const struct config *config = training->config;
    if (!checkpoint_folder_open(&local->ledger.folder, config->output.train_dir, &config->output, error)) {
        return false;
    }
    if (!checkpoint_writer_create(&local->writer, &local->ledger.folder, error)) {
        checkpoint_folder_close(&local->ledger.folder);
        return false;
    }
    checkpoint_state_create(&local->snapshot, training->model, &local->train);
    return true;
}

bool local_updater_create(struct updater **updater, struct training *training, struct error *error)
{
    struct local_updater *local = must_zero(1, sizeof *local, "training");
    *local = (struct local_updater){.updater = {.table = &local_table},
                                    .training = training,
                                    .train = outer_train(&training->config->train),
                                    .ledger.info = {.validation_score = NAN, .best_score = NAN},
                                    .slice_steps = 1,
                                    .best_s = -INFINITY,
                                    .went_back_to = -1};
    if (training->config->output.train_dir[0] != '\0' && !open_folder(local, error)) {
        local_updater_destroy(&local->updater);
        return false;
    }
    *updater = &local->updater;
    return true;
}

void local_updater_destroy(struct updater *updater)
{
    struct local_updater *local = of(updater);
    if (local && local->writer) {
        checkpoint_writer_destroy(local->writer);
        checkpoint_folder_close(&local->ledger.folder);
        checkpoint_state_destroy(&local->snapshot);
        free(local->kept_rows);
    }
    free(local);
}

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
