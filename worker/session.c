/*
 * The loop is: train a slice, account for it, do what is due at the step it ended at, see whether to stop, see whether
 * to save. Everything that decides is a function of the step (ps/job/plan.h), of the checkpointed counters (struct
 * checkpoint_info) or of the clock; the clock only ever decides when to save.
 */
#include "worker/session.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/profile.h"
#include "base/progress.h"
#include "base/signals.h"
#include "ps/checkpoint.h"
#include "ps/checkpoint_writer.h"
#include "ps/job/plan.h"
#include "ps/supervisor.h"
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

struct session {
    struct session_options options;
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
    struct tally all, warm;  /* of this session; warm: after WARM_UP_STEPS */
    double recent_steps_per_s, recent_loss, shown_validation;
    bool stop;
    struct session_result result;
};

static bool averaged(const struct session *session)
{
    return session->options.config->train.ema_decay > 0;
}

static bool has_validation(const struct session *session)
{
    return session->options.dataset->validation.count > 0;
}

static void stop(struct session *session, enum session_end end)
{
    if (!session->stop) { /* the first reason counts */
        session->stop = true;
        session->result.end = end;
    }
}

/* Stops for good; what is wrong has been put into error. */
static void fail(struct session *session, const struct error *error)
{
    log_error("%s", error->text);
    session->stop = true;
    session->result.end = SESSION_FAILED;
}

/* Counters of the run as they stand in the checkpoint: has it ended by them already? */
static void check_ended(struct session *session)
{
    const struct config_train *train = &session->options.config->train;
    if (train->target_accuracy > 0 && session->info.best_accuracy >= train->target_accuracy) {
        stop(session, SESSION_TARGET);
    }
    if (train->patience > 0 && session->info.bad_validations >= train->patience) {
        stop(session, SESSION_PATIENCE);
    }
    if (session->step >= session->plan.last_step) {
        stop(session, SESSION_LAST_STEP);
    }
}

/* ---- Checkpoints ---- */

/* The outcome of the checkpoint under way, once it is known; what could not be written makes the run end with status 1. */
static void collect_saved(struct session *session, bool wait)
{
    struct checkpoint_report saved;
    struct error error;
    if (!session->writer) {
        return;
    }
    enum checkpoint_outcome outcome = wait ? checkpoint_writer_wait(session->writer, &saved, &error)
                                           : checkpoint_writer_poll(session->writer, &saved, &error);
    if (outcome == CHECKPOINT_NO_NEWS) {
        return;
    }
    if (saved.targets & CHECKPOINT_MODEL) {
        supervisor_save_ended(&session->supervisor, outcome == CHECKPOINT_WRITTEN);
    }
    if (outcome == CHECKPOINT_FAILED) {
        session->result.checkpoint_failed = true;
        log_error("%s; training goes on, and this run will end with status 1", error.text);
        return;
    }
    char path[CHECKPOINT_MAX_PATH];
    for (int target = CHECKPOINT_MODEL; target <= CHECKPOINT_BEST; target *= 2) {
        if (saved.targets & target) {
            checkpoint_folder_name(&session->folder, (enum checkpoint_target)target, saved.info.global_step, path);
            report_checkpoint(&(struct report_checkpoint){.path = path,
                                                          .global_step = saved.info.global_step,
                                                          .is_best = target == CHECKPOINT_BEST,
                                                          .quiet = session->progress.active});
        }
    }
    if (saved.targets & CHECKPOINT_MODEL) {
        checkpoint_folder_name(&session->folder, CHECKPOINT_MODEL, saved.info.global_step, session->last_checkpoint);
        session->last_checkpoint_step = saved.info.global_step;
    }
}

static void fail_not_finite(struct session *session, const char *what, double value)
{
    char kept[CHECKPOINT_MAX_PATH + 64];
    collect_saved(session, true); /* the one under way may be the last good one */
    double rate = schedule_learning_rate(&session->options.config->train, session->step);
    if (session->last_checkpoint[0] != '\0') {
        snprintf(kept, sizeof kept, "the last good checkpoint is %s", session->last_checkpoint);
    } else {
        snprintf(kept, sizeof kept, "there is no checkpoint from before");
    }
    struct error error;
    error_set(&error,
              "%s is %g after step %lld at learning rate %g: training stops here and saves nothing of it; %s; "
              "lower --learning_rate and start again",
              what, report_number(value), (long long)session->step, rate, kept);
    fail(session, &error);
}

/* Is the present state worth keeping: does it still have a finite loss? Costs one small batch. */
static bool state_is_sound(struct session *session, double *loss, struct error *error)
{
    struct examples few = session->options.dataset->sample;
    few.count = few.count < SOUNDNESS_IMAGES ? few.count : SOUNDNESS_IMAGES;
    if (!evaluate(&session->evaluation, session->options.engine, false, &few, error)) {
        return false;
    }
    *loss = session->evaluation.loss;
    return true;
}

static bool copy_state(struct session *session, struct checkpoint_state *state, struct error *error)
{
    struct engine *engine = session->options.engine;
    for (int v = 0; v < STORE_VECTORS; v++) {
        if (state->vectors[v] && !engine->table->read(engine, (enum store_vector)v, 0,
                                                      session->options.model->float_count, state->vectors[v], error)) {
            return false;
        }
    }
    return true;
}

static bool put_state(struct session *session, struct error *error)
{
    struct engine *engine = session->options.engine;
    const struct checkpoint_state *state = &session->snapshot;
    for (int v = 0; v < STORE_VECTORS; v++) {
        if (state->vectors[v] && !engine->table->write(engine, (enum store_vector)v, 0,
                                                       session->options.model->float_count, state->vectors[v], error)) {
            return false;
        }
    }
    return true;
}

/* Time that is not the engine's counts in the rate of steps all the same. */
static void charge(struct session *session, double seconds)
{
    session->all.seconds += seconds;
    if (session->warm.steps > 0) {
        session->warm.seconds += seconds;
    }
}

/* Begins to save the present state in the background; waits only if an earlier checkpoint is still under way. */
static void save(struct session *session, int targets)
{
    struct error error;
    double begin_s = clock_monotonic_s(), loss = 0;
    collect_saved(session, true);
    if (!state_is_sound(session, &loss, &error)) {
        fail(session, &error);
        return;
    }
    if (!isfinite(loss)) {
        fail_not_finite(session, "the loss", loss);
        return;
    }
    if (!copy_state(session, &session->snapshot, &error)) {
        fail(session, &error);
        return;
    }
    session->info.global_step = session->step;
    checkpoint_writer_submit(session->writer, targets, &session->snapshot, &session->info);
    if (targets & CHECKPOINT_MODEL) {
        supervisor_save_began(&session->supervisor, session->step, clock_monotonic_s());
    }
    charge(session, clock_monotonic_s() - begin_s);
}

/* ---- What is due at a step ---- */

static void report_progress(struct session *session)
{
    struct tally *tally = &session->since_report;
    if (!session->progress.active && tally->steps > 0) {
        report_step(&(struct report_step){
            .worker = session->options.config->cluster.task_index,
            .epoch = plan_epoch(&session->plan, session->step),
            .global_step = session->step,
            .local_step = session->step - session->first_step,
            .loss = tally->loss_sum / (double)tally->steps,
            .learning_rate = schedule_learning_rate(&session->options.config->train, session->step - 1),
            .ms_per_batch = 1e3 * tally->seconds / (double)(tally->steps * session->plan.batches_per_step),
            .examples_per_s = (double)tally->images / tally->seconds,
        });
    }
    *tally = (struct tally){0};
}

/* Measures the validation set; returns true if it never was better. */
static bool validate(struct session *session)
{
    PROFILE("validate");
    struct error error;
    struct evaluation *evaluation = &session->evaluation;
    struct checkpoint_info *info = &session->info;
    if (!evaluate(evaluation, session->options.engine, averaged(session), &session->options.dataset->validation,
                  &error)) {
        fail(session, &error);
        return false;
    }
    if (!isfinite(evaluation->loss)) {
        fail_not_finite(session, "the validation loss", evaluation->loss);
        return false;
    }
    info->validation_accuracy = evaluation_accuracy(evaluation);
    bool is_best = info->validation_accuracy > info->best_accuracy;
    if (is_best) {
        info->best_accuracy = info->validation_accuracy;
        info->best_step = session->step;
    }
    session->shown_validation = info->validation_accuracy;
    summary_validation(session->summary, session->step, info->validation_accuracy, evaluation->loss);
    info->bad_validations = is_best ? 0 : info->bad_validations + 1;
    report_validation(&(struct report_validation){
        .worker = session->options.config->cluster.task_index,
        .epoch = plan_epoch(&session->plan, session->step),
        .global_step = session->step,
        .accuracy = info->validation_accuracy,
        .loss = evaluation->loss,
        .best_accuracy = info->best_accuracy,
        .best_step = info->best_step,
        .quiet = session->progress.active,
    });
    return is_best;
}

static void summarise_if_due(struct session *session)
{
    struct tally *tally = &session->since_summary;
    double begin_s = clock_monotonic_s();
    bool is_due = summary_is_due(session->summary, session->summary_step, session->step, begin_s);
    session->summary_step = session->step;
    if (!is_due || tally->steps == 0) {
        return;
    }
    double seconds = fmax(tally->seconds, 1e-9);
    summary_write(session->summary,
                  &(struct summary_step){
                      .global_step = session->step,
                      .cross_entropy = tally->loss_sum / (double)tally->steps,
                      .accuracy = (double)tally->correct / (double)(tally->images > 0 ? tally->images : 1),
                      .steps_per_s = (double)tally->steps / seconds,
                      .examples_per_s = (double)tally->images / seconds,
                      .seconds_per_batch = seconds / (double)(tally->steps * session->plan.batches_per_step),
                  });
    *tally = (struct tally){0};
    charge(session, clock_monotonic_s() - begin_s);
}

/* What the step calls for; returns true if its validation was the best so far. */
static bool log_and_validate(struct session *session)
{
    session->info.validation_accuracy = -1;
    if (plan_log_due(&session->plan, session->step)) {
        report_progress(session);
    }
    summarise_if_due(session);
    return has_validation(session) && plan_validation_due(&session->plan, session->step) && validate(session);
}

static void leave_if_asked(struct session *session)
{
    if (signals_pending() != 0) {
        session->result.signal = signals_pending();
        stop(session, SESSION_INTERRUPTED);
    }
}

static void save_if_due(struct session *session, bool is_best)
{
    if (!session->writer) {
        return;
    }
    /* Checkpoints by steps are promised for those steps: should the disk not keep up, training waits for it. Those by
     * time are put off instead. */
    int64_t save_steps = session->supervisor.save_steps;
    collect_saved(session, session->stop || (save_steps > 0 && session->step % save_steps == 0));
    bool is_due = session->stop ? supervisor_is_unsaved(&session->supervisor, session->step)
                                : supervisor_should_save(&session->supervisor, session->step, clock_monotonic_s());
    int targets = (is_due ? CHECKPOINT_MODEL : 0) | (is_best ? CHECKPOINT_BEST : 0);
    if (targets != 0) {
        save(session, targets);
    }
}

/* ---- Training ---- */

static int64_t next_slice(const struct session *session)
{
    int64_t n = plan_steps_to_due(&session->plan, session->step);
    int64_t to_save = session->writer ? supervisor_steps_to_save(&session->supervisor, session->step) : INT64_MAX;
    int64_t warm = session->first_step + WARM_UP_STEPS;
    int64_t to_summary = summary_steps_to_due(session->summary, session->step);
    n = to_save < n ? to_save : n;
    n = to_summary < n ? to_summary : n;
    n = session->slice_steps < n ? session->slice_steps : n;
    return session->step < warm && warm - session->step < n ? warm - session->step : n;
}

static void tally_add(struct tally *tally, const struct train_result *done, double seconds)
{
    tally->steps += done->steps;
    tally->images += done->images;
    tally->correct += done->correct;
    tally->loss_sum += done->loss_sum;
    tally->seconds += seconds;
}

static void account(struct session *session, const struct train_result *done, double seconds)
{
    if (session->step - session->first_step >= WARM_UP_STEPS) {
        tally_add(&session->warm, done, seconds);
    }
    tally_add(&session->all, done, seconds);
    tally_add(&session->since_report, done, seconds);
    tally_add(&session->since_summary, done, seconds);
    session->step += done->steps;
    if (done->steps == 0) {
        return;
    }
    double rate = (double)done->steps / fmax(seconds, 1e-9);
    session->recent_steps_per_s +=
        (session->recent_steps_per_s > 0 ? RATE_WEIGHT : 1) * (rate - session->recent_steps_per_s);
    session->recent_loss = done->loss_sum / (double)done->steps;
    /* Grows by doubling: the first steps are slow, and one that was held up must not set the pace. */
    int64_t wanted = (int64_t)(session->recent_steps_per_s * SLICE_S);
    wanted = wanted > 2 * session->slice_steps ? 2 * session->slice_steps : wanted;
    session->slice_steps = wanted < 1 ? 1 : wanted;
}

static void train_slice(struct session *session)
{
    PROFILE("train");
    struct error error;
    struct train_result done = {.finite = true};
    struct engine *engine = session->options.engine;
    int64_t n = next_slice(session);
    double begin_s = clock_monotonic_s();
    if (!engine->table->train(engine, n, &done, &error)) {
        fail(session, &error);
        return;
    }
    account(session, &done, clock_monotonic_s() - begin_s);
    if (!done.finite) {
        fail_not_finite(session, "the loss", done.bad_loss);
        return;
    }
    progress_update(&session->progress, &(struct progress_view){
                                            .step = session->step,
                                            .last_step = session->plan.last_step,
                                            .steps_per_s = session->recent_steps_per_s,
                                            .loss = session->recent_loss,
                                            .validation = session->shown_validation,
                                        });
}

static void fill_result(struct session *session)
{
    struct session_result *result = &session->result;
    const struct tally *tally = session->warm.steps > 0 ? &session->warm : &session->all;
    result->global_step = session->step;
    result->local_steps = session->step - session->first_step;
    result->epochs =
        (double)session->step * (double)session->plan.batches_per_step / (double)session->plan.epoch_batches;
    result->steps_per_s = tally->seconds > 0 ? (double)tally->steps / tally->seconds : 0;
    result->best_accuracy = session->info.best_accuracy;
    result->best_step = session->info.best_step;
    bool has_checkpoint = session->last_checkpoint[0] != '\0';
    result->last_checkpoint = has_checkpoint ? session->last_checkpoint : NULL;
    result->last_checkpoint_step = has_checkpoint ? session->last_checkpoint_step : -1;
}

void session_run(struct session *session, struct session_result *result)
{
    const struct config_output *output = &session->options.config->output;
    progress_begin(&session->progress, output->progress && output->log_format == LOG_TEXT);
    check_ended(session); /* a restored run may have nothing left to do */
    leave_if_asked(session);
    if (session->result.end == SESSION_INTERRUPTED) {
        save_if_due(session, false);
    }
    while (!session->stop) {
        train_slice(session);
        bool is_best = !session->stop && log_and_validate(session);
        if (session->stop) {
            break; /* it failed: nothing of this is saved */
        }
        check_ended(session);
        leave_if_asked(session);
        save_if_due(session, is_best);
    }
    if (session->result.end != SESSION_FAILED && session->plan.log_steps > 0) {
        report_progress(session);
    }
    collect_saved(session, true);
    progress_end(&session->progress);
    fill_result(session);
    *result = session->result;
}

/* ---- Beginning and end ---- */

/* A new model, by its initializer and seed; slots begin as the optimizer says. */
static bool initialise(struct session *session, struct error *error)
{
    const struct session_options *options = &session->options;
    const struct engine_table *table = options->engine->table;
    size_t floats = options->model->float_count;
    /* Where there is a snapshot it serves: nobody needs it before the first checkpoint. */
    float *memory = NULL, *values = session->snapshot.vectors[STORE_PARAMETERS];
    if (!values && !(values = memory = malloc(floats * sizeof *values))) {
        return error_set(error, "not enough memory for %zu initial parameters", floats);
    }
    char source[256];
    bool done = initial_parameters(options->config, options->model, values, source, sizeof source, error) &&
                table->write(options->engine, STORE_PARAMETERS, 0, floats, values, error) &&
                (!averaged(session) || table->write(options->engine, STORE_AVERAGES, 0, floats, values, error));
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
static bool open_folder(struct session *session, bool *restored, struct error *error)
{
    const struct session_options *options = &session->options;
    const struct config *config = options->config;
    struct checkpoint_file *file = NULL;
    if (!checkpoint_folder_open(&session->folder, config->output.train_dir, &config->output, error)) {
        return false;
    }
    if (!checkpoint_writer_create(&session->writer, &session->folder, error)) {
        checkpoint_folder_close(&session->folder);
        return false;
    }
    if (!checkpoint_state_create(&session->snapshot, options->model, &config->train, error) ||
        !checkpoint_folder_newest(&session->folder, &file, error)) {
        return false;
    }
    *restored = file != NULL;
    bool done = !file || (checkpoint_load(file, &session->snapshot, error) && put_state(session, error));
    if (file && done) {
        session->info = *checkpoint_file_info(file);
        snprintf(session->last_checkpoint, sizeof session->last_checkpoint, "%s", checkpoint_path(file));
        session->last_checkpoint_step = session->info.global_step;
    }
    checkpoint_close(file);
    return done;
}

static void tell_start(const struct session *session, bool restored)
{
    char text[256];
    session->options.engine->table->describe(session->options.engine, text, sizeof text);
    report_start(&(struct report_start){
        .config = session->options.config,
        .model = session->options.model,
        .data = session->options.dataset->description,
        .engine = text,
        .digest = session->digest,
        .restored_from = restored ? session->last_checkpoint : NULL,
        .global_step = session->step,
        .last_step = session->plan.last_step,
    });
}

static bool begin(struct session *session, struct error *error)
{
    const struct config *config = session->options.config;
    bool restored = false;
    if ((config->train.target_accuracy > 0 || config->train.patience > 0) && !has_validation(session)) {
        return error_set(error, "train.target_accuracy and train.patience are measured on the validation images, and "
                                "data.validation_size is 0: set it to 5000, say");
    }
    if (!config_digest(config, session->digest, error) ||
        !evaluation_create(&session->evaluation, session->options.model->widths[session->options.model->layer_count],
                           error)) {
        return false;
    }
    if (config->output.train_dir[0] != '\0' && !open_folder(session, &restored, error)) {
        return false;
    }
    if (restored && session->info.seed != config->train.seed) {
        log_warning("%s was trained with seed %lld, and goes on with seed %lld: the order of the data changes",
                    session->last_checkpoint, (long long)session->info.seed, (long long)config->train.seed);
    }
    if (!restored && !initialise(session, error)) {
        return false;
    }
    session->info.seed = config->train.seed; /* what it says from here on is about this run */
    session->info.fleet_version = config->fleet.version;
    memcpy(session->info.config_digest, session->digest, sizeof session->digest);
    session->first_step = session->step = restored ? session->info.global_step : 0;
    session->shown_validation = session->info.validation_accuracy;
    session->options.engine->table->set_global_step(session->options.engine, session->step);
    supervisor_begin(&session->supervisor, &config->output, session->step, clock_monotonic_s());
    tell_start(session, restored);
    session->summary_step = session->step;
    return summary_open(&session->summary,
                        &(struct summary_options){.config = config,
                                                  .model = session->options.model,
                                                  .engine = session->options.engine,
                                                  .dataset = session->options.dataset,
                                                  .digest = session->digest,
                                                  .global_step = session->step},
                        error);
}

bool session_open(struct session **session, const struct session_options *options, struct error *error)
{
    struct session *opened = calloc(1, sizeof *opened);
    if (!opened) {
        return error_set(error, "not enough memory for a training session");
    }
    opened->options = *options;
    opened->slice_steps = 1;
    opened->info = (struct checkpoint_info){.validation_accuracy = -1, .best_accuracy = -1};
    plan_begin(&opened->plan, options->config, options->epoch_batches);
    if (!begin(opened, error)) {
        session_close(opened);
        return false;
    }
    *session = opened;
    return true;
}

void session_tested(struct session *session, double accuracy)
{
    summary_test(session->summary, session->step, accuracy);
}

void session_close(struct session *session)
{
    if (session) {
        summary_close(session->summary, session->stop && session->result.end != SESSION_FAILED);
        if (session->writer) {
            checkpoint_writer_destroy(session->writer);
            checkpoint_folder_close(&session->folder);
            checkpoint_state_destroy(&session->snapshot);
        }
        evaluation_destroy(&session->evaluation);
        free(session);
    }
}
