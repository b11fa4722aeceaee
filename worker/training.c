/*
 * The loop is: train a slice, account for it, do what is due at the step it ended at, see whether to stop, see whether
 * to save. Everything that decides is a function of the step (ps/job/plan.h), of the checkpointed counters (struct
 * checkpoint_info) or of the clock; the clock only ever decides when to save.
 */
#include "worker/training.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/profile.h"
#include "base/progress.h"
#include "base/process/signals.h"
#include "ps/checkpoint/checkpoint.h"
#include "ps/checkpoint/writer.h"
#include "ps/job/plan.h"
#include "ps/checkpoint/supervisor.h"
#include "worker/evaluate.h"
#include "worker/initial.h"
#include "worker/report.h"
#include "worker/summary/summary.h"

enum {
    WARM_UP_STEPS = 100,    /* not counted in steps_per_s: caches, clocks and page tables settle */
    SOUNDNESS_IMAGES = 100, /* that a state must have a finite loss on before it is saved */
};

static const double SLICE_S = 0.05;
static const double RATE_WEIGHT = 0.2; /* of the latest slice in the rate that the progress line shows */

/* Steps and seconds of some stretch of training. */
struct tally {
    int64_t steps, images, correct;
    double loss_sum;
    double seconds;
};

struct training {
    struct training_options options;
    struct plan plan;
    struct supervisor supervisor;
    struct checkpoint_folder folder; /* these four: only with a train_dir, and then writer is not NULL */
    struct checkpoint_writer *writer;
    struct checkpoint_state snapshot;
    char last_checkpoint[CHECKPOINT_MAX_PATH]; /* "": none yet */
    int64_t last_checkpoint_step;
    char digest[CONFIG_DIGEST_HEX + 1];
    struct checkpoint_info info; /* what the next checkpoint says */
    struct evaluation evaluation;
    struct progress progress;
    int64_t first_step, step;
    int64_t slice_steps; /* about SLICE_S long */
    struct tally since_report, since_summary;
    struct summary *summary; /* NULL: none wanted */
    int64_t summary_step;    /* when it was last seen whether one is due */
    struct tally all, warm;  /* of this training; warm: after WARM_UP_STEPS */
    double recent_steps_per_s, recent_loss, shown_validation;
    bool stop;
    struct training_result result;
};

static bool averaged(const struct training *training)
{
    return training->options.config->train.ema_decay > 0;
}

static bool has_validation(const struct training *training)
{
    return training->options.dataset->validation.count > 0;
}

static void stop(struct training *training, enum training_end end)
{
    if (!training->stop) { /* the first reason counts */
        training->stop = true;
        training->result.end = end;
    }
}

/* Stops for good; what is wrong has been put into error. */
static void fail(struct training *training, const struct error *error)
{
    log_error("%s", error->text);
    training->stop = true;
    training->result.end = TRAINING_FAILED;
}

/* Counters of the run as they stand in the checkpoint: has it ended by them already? */
static void check_ended(struct training *training)
{
    const struct config_train *train = &training->options.config->train;
    if (train->target_accuracy > 0 && training->info.best_accuracy >= train->target_accuracy) {
        stop(training, TRAINING_TARGET);
    }
    if (train->patience > 0 && training->info.bad_validations >= train->patience) {
        stop(training, TRAINING_PATIENCE);
    }
    if (training->step >= training->plan.last_step) {
        stop(training, TRAINING_LAST_STEP);
    }
}

/* ---- Checkpoints ---- */

/* The outcome of the checkpoint under way, once it is known; what could not be written makes the run end with status 1. */
static void collect_saved(struct training *training, bool wait)
{
    struct checkpoint_report saved;
    struct error error;
    if (!training->writer) {
        return;
    }
    enum checkpoint_outcome outcome = wait ? checkpoint_writer_wait(training->writer, &saved, &error)
                                           : checkpoint_writer_poll(training->writer, &saved, &error);
    if (outcome == CHECKPOINT_NO_NEWS) {
        return;
    }
    if (saved.targets & CHECKPOINT_MODEL) {
        supervisor_save_ended(&training->supervisor, outcome == CHECKPOINT_WRITTEN);
    }
    if (outcome == CHECKPOINT_FAILED) {
        training->result.checkpoint_failed = true;
        log_error("%s; training goes on, and this run will end with status 1", error.text);
        return;
    }
    char path[CHECKPOINT_MAX_PATH];
    for (int target = CHECKPOINT_MODEL; target <= CHECKPOINT_BEST; target *= 2) {
        if (saved.targets & target) {
            checkpoint_folder_name(&training->folder, (enum checkpoint_target)target, saved.info.global_step, path);
            report_checkpoint(&(struct report_checkpoint){.path = path,
                                                          .global_step = saved.info.global_step,
                                                          .is_best = target == CHECKPOINT_BEST,
                                                          .quiet = training->progress.active});
        }
    }
    if (saved.targets & CHECKPOINT_MODEL) {
        checkpoint_folder_name(&training->folder, CHECKPOINT_MODEL, saved.info.global_step, training->last_checkpoint);
        training->last_checkpoint_step = saved.info.global_step;
    }
}

static void fail_not_finite(struct training *training, const char *what, double value)
{
    char kept[CHECKPOINT_MAX_PATH + 64];
    collect_saved(training, true); /* the one under way may be the last good one */
    double rate = schedule_learning_rate(&training->options.config->train, training->step);
    if (training->last_checkpoint[0] != '\0') {
        snprintf(kept, sizeof kept, "the last good checkpoint is %s", training->last_checkpoint);
    } else {
        snprintf(kept, sizeof kept, "there is no checkpoint from before");
    }
    struct error error;
    error_set(&error,
              "%s is %g after step %lld at learning rate %g: training stops here and saves nothing of it; %s; "
              "lower --learning_rate and start again",
              what, report_number(value), (long long)training->step, rate, kept);
    fail(training, &error);
}

/* Is the present state worth keeping: does it still have a finite loss? Costs one small batch. */
static bool state_is_sound(struct training *training, double *loss, struct error *error)
{
    struct examples few = training->options.dataset->sample;
    few.count = few.count < SOUNDNESS_IMAGES ? few.count : SOUNDNESS_IMAGES;
    if (!evaluate(&training->evaluation, training->options.engine, false, &few, error)) {
        return false;
    }
    *loss = training->evaluation.loss;
    return true;
}

static bool copy_state(struct training *training, struct checkpoint_state *state, struct error *error)
{
    struct engine *engine = training->options.engine;
    for (int v = 0; v < STORE_VECTORS; v++) {
        if (state->vectors[v] && !engine->table->read(engine, (enum store_vector)v, 0,
                                                      training->options.model->float_count, state->vectors[v], error)) {
            return false;
        }
    }
    return true;
}

static bool put_state(struct training *training, struct error *error)
{
    struct engine *engine = training->options.engine;
    const struct checkpoint_state *state = &training->snapshot;
    for (int v = 0; v < STORE_VECTORS; v++) {
        if (state->vectors[v] &&
            !engine->table->write(engine, (enum store_vector)v, 0, training->options.model->float_count,
                                  state->vectors[v], error)) {
            return false;
        }
    }
    return true;
}

/* Time that is not the engine's counts in the rate of steps all the same. */
static void charge(struct training *training, double seconds)
{
    training->all.seconds += seconds;
    if (training->warm.steps > 0) {
        training->warm.seconds += seconds;
    }
}

/* Begins to save the present state in the background; waits only if an earlier checkpoint is still under way. */
static void save(struct training *training, int targets)
{
    struct error error;
    double begin_s = clock_monotonic_s(), loss = 0;
    collect_saved(training, true);
    if (!state_is_sound(training, &loss, &error)) {
        fail(training, &error);
        return;
    }
    if (!isfinite(loss)) {
        fail_not_finite(training, "the loss", loss);
        return;
    }
    if (!copy_state(training, &training->snapshot, &error)) {
        fail(training, &error);
        return;
    }
    training->info.global_step = training->step;
    checkpoint_writer_submit(training->writer, targets, &training->snapshot, &training->info);
    if (targets & CHECKPOINT_MODEL) {
        supervisor_save_began(&training->supervisor, training->step, clock_monotonic_s());
    }
    charge(training, clock_monotonic_s() - begin_s);
}

/* ---- What is due at a step ---- */

static void report_progress(struct training *training)
{
    struct tally *tally = &training->since_report;
    if (!training->progress.active && tally->steps > 0) {
        report_step(&(struct report_step){
            .worker = training->options.config->cluster.task_index,
            .epoch = plan_epoch(&training->plan, training->step),
            .global_step = training->step,
            .local_step = training->step - training->first_step,
            .loss = tally->loss_sum / (double)tally->steps,
            .learning_rate = schedule_learning_rate(&training->options.config->train, training->step - 1),
            .ms_per_batch = 1e3 * tally->seconds / (double)(tally->steps * training->plan.batches_per_step),
            .examples_per_s = (double)tally->images / tally->seconds,
        });
    }
    *tally = (struct tally){0};
}

/* Measures the validation set; returns true if it never was better. */
static bool validate(struct training *training)
{
    PROFILE("validate");
    struct error error;
    struct evaluation *evaluation = &training->evaluation;
    struct checkpoint_info *info = &training->info;
    if (!evaluate(evaluation, training->options.engine, averaged(training), &training->options.dataset->validation,
                  &error)) {
        fail(training, &error);
        return false;
    }
    if (!isfinite(evaluation->loss)) {
        fail_not_finite(training, "the validation loss", evaluation->loss);
        return false;
    }
    info->validation_accuracy = evaluation_accuracy(evaluation);
    bool is_best = info->validation_accuracy > info->best_accuracy;
    if (is_best) {
        info->best_accuracy = info->validation_accuracy;
        info->best_step = training->step;
    }
    training->shown_validation = info->validation_accuracy;
    summary_validation(training->summary, training->step, info->validation_accuracy, evaluation->loss);
    info->bad_validations = is_best ? 0 : info->bad_validations + 1;
    report_validation(&(struct report_validation){
        .worker = training->options.config->cluster.task_index,
        .epoch = plan_epoch(&training->plan, training->step),
        .global_step = training->step,
        .accuracy = info->validation_accuracy,
        .loss = evaluation->loss,
        .best_accuracy = info->best_accuracy,
        .best_step = info->best_step,
        .quiet = training->progress.active,
    });
    return is_best;
}

static void summarise_if_due(struct training *training)
{
    struct tally *tally = &training->since_summary;
    double begin_s = clock_monotonic_s();
    bool is_due = summary_is_due(training->summary, training->summary_step, training->step, begin_s);
    training->summary_step = training->step;
    if (!is_due || tally->steps == 0) {
        return;
    }
    double seconds = fmax(tally->seconds, 1e-9);
    summary_write(training->summary,
                  &(struct summary_step){
                      .global_step = training->step,
                      .cross_entropy = tally->loss_sum / (double)tally->steps,
                      .accuracy = (double)tally->correct / (double)(tally->images > 0 ? tally->images : 1),
                      .steps_per_s = (double)tally->steps / seconds,
                      .examples_per_s = (double)tally->images / seconds,
                      .seconds_per_batch = seconds / (double)(tally->steps * training->plan.batches_per_step),
                  });
    *tally = (struct tally){0};
    charge(training, clock_monotonic_s() - begin_s);
}

/* What the step calls for; returns true if its validation was the best so far. */
static bool log_and_validate(struct training *training)
{
    training->info.validation_accuracy = -1;
    if (plan_log_due(&training->plan, training->step)) {
        report_progress(training);
    }
    summarise_if_due(training);
    return has_validation(training) && plan_validation_due(&training->plan, training->step) && validate(training);
}

static void leave_if_asked(struct training *training)
{
    if (signals_pending() != 0) {
        training->result.signal = signals_pending();
        stop(training, TRAINING_INTERRUPTED);
    }
}

static void save_if_due(struct training *training, bool is_best)
{
    if (!training->writer) {
        return;
    }
    /* Checkpoints by steps are promised for those steps: should the disk not keep up, training waits for it. Those by
     * time are put off instead. */
    int64_t save_steps = training->supervisor.save_steps;
    collect_saved(training, training->stop || (save_steps > 0 && training->step % save_steps == 0));
    bool is_due = training->stop ? supervisor_is_unsaved(&training->supervisor, training->step)
                                 : supervisor_should_save(&training->supervisor, training->step, clock_monotonic_s());
    int targets = (is_due ? CHECKPOINT_MODEL : 0) | (is_best ? CHECKPOINT_BEST : 0);
    if (targets != 0) {
        save(training, targets);
    }
}

/* ---- Training ---- */

static int64_t next_slice(const struct training *training)
{
    int64_t n = plan_steps_to_due(&training->plan, training->step);
    int64_t to_save = training->writer ? supervisor_steps_to_save(&training->supervisor, training->step) : INT64_MAX;
    int64_t warm = training->first_step + WARM_UP_STEPS;
    int64_t to_summary = summary_steps_to_due(training->summary, training->step);
    n = to_save < n ? to_save : n;
    n = to_summary < n ? to_summary : n;
    n = training->slice_steps < n ? training->slice_steps : n;
    return training->step < warm && warm - training->step < n ? warm - training->step : n;
}

static void tally_add(struct tally *tally, const struct train_result *done, double seconds)
{
    tally->steps += done->steps;
    tally->images += done->images;
    tally->correct += done->correct;
    tally->loss_sum += done->loss_sum;
    tally->seconds += seconds;
}

static void account(struct training *training, const struct train_result *done, double seconds)
{
    if (training->step - training->first_step >= WARM_UP_STEPS) {
        tally_add(&training->warm, done, seconds);
    }
    tally_add(&training->all, done, seconds);
    tally_add(&training->since_report, done, seconds);
    tally_add(&training->since_summary, done, seconds);
    training->step += done->steps;
    if (done->steps == 0) {
        return;
    }
    double rate = (double)done->steps / fmax(seconds, 1e-9);
    training->recent_steps_per_s +=
        (training->recent_steps_per_s > 0 ? RATE_WEIGHT : 1) * (rate - training->recent_steps_per_s);
    training->recent_loss = done->loss_sum / (double)done->steps;
    /* Grows by doubling: the first steps are slow, and one that was held up must not set the pace. */
    int64_t wanted = (int64_t)(training->recent_steps_per_s * SLICE_S);
    wanted = wanted > 2 * training->slice_steps ? 2 * training->slice_steps : wanted;
    training->slice_steps = wanted < 1 ? 1 : wanted;
}

static void train_slice(struct training *training)
{
    PROFILE("train");
    struct error error;
    struct train_result done = {.finite = true};
    struct engine *engine = training->options.engine;
    int64_t n = next_slice(training);
    double begin_s = clock_monotonic_s();
    if (!engine->table->train(engine, n, &done, &error)) {
        fail(training, &error);
        return;
    }
    account(training, &done, clock_monotonic_s() - begin_s);
    if (!done.finite) {
        fail_not_finite(training, "the loss", done.bad_loss);
        return;
    }
    progress_update(&training->progress, &(struct progress_view){
                                             .step = training->step,
                                             .last_step = training->plan.last_step,
                                             .steps_per_s = training->recent_steps_per_s,
                                             .loss = training->recent_loss,
                                             .validation = training->shown_validation,
                                         });
}

static void fill_result(struct training *training)
{
    struct training_result *result = &training->result;
    const struct tally *tally = training->warm.steps > 0 ? &training->warm : &training->all;
    result->global_step = training->step;
    result->local_steps = training->step - training->first_step;
    result->epochs =
        (double)training->step * (double)training->plan.batches_per_step / (double)training->plan.epoch_batches;
    result->steps_per_s = tally->seconds > 0 ? (double)tally->steps / tally->seconds : 0;
    result->best_accuracy = training->info.best_accuracy;
    result->best_step = training->info.best_step;
    bool has_checkpoint = training->last_checkpoint[0] != '\0';
    result->last_checkpoint = has_checkpoint ? training->last_checkpoint : NULL;
    result->last_checkpoint_step = has_checkpoint ? training->last_checkpoint_step : -1;
}

void training_run(struct training *training, struct training_result *result)
{
    const struct config_output *output = &training->options.config->output;
    progress_begin(&training->progress, output->progress && output->log_format == LOG_TEXT);
    check_ended(training); /* a restored run may have nothing left to do */
    leave_if_asked(training);
    if (training->result.end == TRAINING_INTERRUPTED) {
        save_if_due(training, false);
    }
    while (!training->stop) {
        train_slice(training);
        bool is_best = !training->stop && log_and_validate(training);
        if (training->stop) {
            break; /* it failed: nothing of this is saved */
        }
        check_ended(training);
        leave_if_asked(training);
        save_if_due(training, is_best);
    }
    if (training->result.end != TRAINING_FAILED && training->plan.log_steps > 0) {
        report_progress(training);
    }
    collect_saved(training, true);
    progress_end(&training->progress);
    fill_result(training);
    *result = training->result;
}

/* ---- Beginning and end ---- */

/* A new model, by its initializer and seed; slots begin as the optimizer says. */
static bool initialise(struct training *training, struct error *error)
{
    const struct training_options *options = &training->options;
    const struct engine_table *table = options->engine->table;
    size_t floats = options->model->float_count;
    /* Where there is a snapshot it serves: nobody needs it before the first checkpoint. */
    float *memory = NULL, *values = training->snapshot.vectors[STORE_PARAMETERS];
    if (!values && !(values = memory = malloc(floats * sizeof *values))) {
        return error_set(error, "not enough memory for %zu initial parameters", floats);
    }
    char source[256];
    bool done = initial_parameters(options->config, options->model, values, source, sizeof source, error) &&
                table->write(options->engine, STORE_PARAMETERS, 0, floats, values, error) &&
                (!averaged(training) || table->write(options->engine, STORE_AVERAGES, 0, floats, values, error));
    for (int slot = 0; done && slot < optimizer_slots(options->config->train.optimizer); slot++) {
        float initial = optimizer_slot_initial(&options->config->train, slot);
        for (size_t i = 0; i < floats; i++) {
            values[i] = initial;
        }
        done = table->write(options->engine, (enum store_vector)(STORE_SLOT0 + slot), 0, floats, values, error);
    }
    free(memory);
    return done;
}

/* Opens train_dir; the engine gets what the newest good checkpoint in it holds. *restored is false if there is none. */
static bool open_folder(struct training *training, bool *restored, struct error *error)
{
    const struct training_options *options = &training->options;
    const struct config *config = options->config;
    struct checkpoint_file *file = NULL;
    if (!checkpoint_folder_open(&training->folder, config->output.train_dir, &config->output, error)) {
        return false;
    }
    if (!checkpoint_writer_create(&training->writer, &training->folder, error)) {
        checkpoint_folder_close(&training->folder);
        return false;
    }
    if (!checkpoint_state_create(&training->snapshot, options->model, &config->train, error) ||
        !checkpoint_folder_newest(&training->folder, &file, error)) {
        return false;
    }
    *restored = file != NULL;
    bool done = !file || (checkpoint_load(file, &training->snapshot, error) && put_state(training, error));
    if (file && done) {
        training->info = *checkpoint_file_info(file);
        snprintf(training->last_checkpoint, sizeof training->last_checkpoint, "%s", checkpoint_path(file));
        training->last_checkpoint_step = training->info.global_step;
    }
    checkpoint_close(file);
    return done;
}

static void tell_start(const struct training *training, bool restored)
{
    char text[256];
    training->options.engine->table->describe(training->options.engine, text, sizeof text);
    report_start(&(struct report_start){
        .config = training->options.config,
        .model = training->options.model,
        .data = training->options.dataset->description,
        .engine = text,
        .digest = training->digest,
        .restored_from = restored ? training->last_checkpoint : NULL,
        .global_step = training->step,
        .last_step = training->plan.last_step,
    });
}

static bool begin(struct training *training, struct error *error)
{
    const struct config *config = training->options.config;
    bool restored = false;
    if ((config->train.target_accuracy > 0 || config->train.patience > 0) && !has_validation(training)) {
        return error_set(error, "train.target_accuracy and train.patience are measured on the validation images, and "
                                "data.validation_size is 0: set it to 5000, say");
    }
    if (!config_digest(config, training->digest, error) ||
        !evaluation_create(&training->evaluation, training->options.model->widths[training->options.model->layer_count],
                           error)) {
        return false;
    }
    if (config->output.train_dir[0] != '\0' && !open_folder(training, &restored, error)) {
        return false;
    }
    if (restored && training->info.seed != config->train.seed) {
        log_warning("%s was trained with seed %lld, and goes on with seed %lld: the order of the data changes",
                    training->last_checkpoint, (long long)training->info.seed, (long long)config->train.seed);
    }
    if (!restored && !initialise(training, error)) {
        return false;
    }
    training->info.seed = config->train.seed; /* what it says from here on is about this run */
    training->info.fleet_version = config->fleet.version;
    memcpy(training->info.config_digest, training->digest, sizeof training->digest);
    training->first_step = training->step = restored ? training->info.global_step : 0;
    training->shown_validation = training->info.validation_accuracy;
    training->options.engine->table->set_global_step(training->options.engine, training->step);
    supervisor_begin(&training->supervisor, &config->output, training->step, clock_monotonic_s());
    tell_start(training, restored);
    training->summary_step = training->step;
    return summary_open(&training->summary,
                        &(struct summary_options){.config = config,
                                                  .model = training->options.model,
                                                  .engine = training->options.engine,
                                                  .dataset = training->options.dataset,
                                                  .digest = training->digest,
                                                  .global_step = training->step},
                        error);
}

bool training_open(struct training **training, const struct training_options *options, struct error *error)
{
    struct training *opened = calloc(1, sizeof *opened);
    if (!opened) {
        return error_set(error, "not enough memory for a training training");
    }
    opened->options = *options;
    opened->slice_steps = 1;
    opened->info = (struct checkpoint_info){.validation_accuracy = -1, .best_accuracy = -1};
    plan_begin(&opened->plan, options->config, options->epoch_batches);
    if (!begin(opened, error)) {
        training_close(opened);
        return false;
    }
    *training = opened;
    return true;
}

void training_tested(struct training *training, double accuracy)
{
    summary_test(training->summary, training->step, accuracy);
}

void training_close(struct training *training)
{
    if (training) {
        summary_close(training->summary, training->stop && training->result.end != TRAINING_FAILED);
        if (training->writer) {
            checkpoint_writer_destroy(training->writer);
            checkpoint_folder_close(&training->folder);
            checkpoint_state_destroy(&training->snapshot);
        }
        evaluation_destroy(&training->evaluation);
        free(training);
    }
}
