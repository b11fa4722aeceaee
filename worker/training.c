/*
 * The loop: join, then take a step, do what is due at it, check whether to stop, check whether to save. Every decision
 * is a function of the step (ps/job/plan.h), of the checkpointed counters (struct checkpoint_info) or of the clock; the
 * clock only ever decides when to save.
 */
#include "worker/training.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>

#include "base/cli/command.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/process/signals.h"
#include "base/profile.h"
#include "base/random/sampler.h"
#include "observe/observe.h"
#include "ps/store/optimizer.h"
#include "worker/observed.h"
#include "worker/report.h"

enum { WARM_UP_STEPS = 100 /* not counted in steps_per_s: caches, clocks and page tables settle */ };

static const double PACE_S = 0.1; /* of steps in one call, with max_steps_per_s */

/* What is left of train.time_limit for the end of a run: how fast a checkpoint is written, and how much is spared. */
static const double SAVED_PER_S = 1e8, SPARED_S = 0.1, SPARED = 1.25;

static const double RATE_WEIGHT = 0.2; /* weight of the latest steps in the progress line's rate */

static struct tally tally_begin(const struct training *training, double now_s)
{
    return (struct tally){.begun_s = now_s, .begun_step = training->global_step};
}

/* --- Ends --- */

bool training_stop(struct training *training, enum training_end end)
{
    if (training->end == TRAINING_GOES_ON) {
        training->end = end;
    }
    return false;
}

bool training_fail(struct training *training)
{
    training->end = TRAINING_FAILED;
    return false;
}

/* By the divergences in the record: a resumed run continues at the same rate. */
static void lower_rate(struct training *training, int retries)
{
    training->good.record.retries = retries;
    training->config->train.retries = retries;
}

/* With all retries used up: the best model is the state again, which the updater saves in the place of later ones. */
static bool give_up(struct training *training)
{
    const struct updater_table *table = training->updater->table;
    const struct good_model *good = &training->good;
    return table->go_back && good->is_there && good->is_best && good->record.retries > 0 &&
           table->go_back(training->updater, good);
}

/* False: it can't, or not any more, or has failed. */
static bool go_back(struct training *training, const char *what, double loss, int64_t step)
{
    const struct updater_table *table = training->updater->table;
    struct good_model *good = &training->good;
    const struct config_train *train = &training->config->train;
    const double rate = schedule_learning_rate(train, step);
    if (!table->go_back || !good->is_there || good->record.retries >= train->divergence_retries) {
        return false;
    }
    good->record.retries++;
    if (!table->go_back(training->updater, good)) {
        good->record.retries--;
        return false;
    }
    lower_rate(training, good->record.retries);
    log_warning("%s is %g after step %lld at learning rate %g: training goes back to step %lld and continues at %g "
                "times that rate (%d of at most %d times)",
                what, report_number(loss), (long long)step, rate, (long long)training->global_step, RETRY_RATE,
                good->record.retries, train->divergence_retries);
    training->end = table->is_shared ? TRAINING_REJOINS : TRAINING_GOES_ON;
    training->since_report = training->since_summary = tally_begin(training, clock_monotonic_s());
    return true;
}

bool training_diverges(struct training *training, const char *what, double loss, int64_t step)
{
    const struct config_train *train = &training->config->train;
    const double rate = schedule_learning_rate(train, step);
    char kept[CHECKPOINT_MAX_PATH + 64] = "there is no checkpoint from before", often[48] = "";
    struct updater_record record;
    const bool had_failed = training->end == TRAINING_FAILED;
    if (go_back(training, what, loss, step) || (!had_failed && training->end == TRAINING_FAILED)) {
        return false; /* it goes on, or failed for another reason */
    }
    const bool is_best = !had_failed && give_up(training);
    training->updater->table->record(training->updater, &record); /* the current one may be the last good one */
    if (is_best && record.last_checkpoint) {
        snprintf(kept, sizeof kept, "the newest checkpoint is of the best model, at step %lld",
                 (long long)training->global_step);
    } else if (record.last_checkpoint) {
        snprintf(kept, sizeof kept, "the last good checkpoint is %s", record.last_checkpoint);
    }
    if (training->good.record.retries > 0) {
        snprintf(often, sizeof often, ", which was lowered %d times", training->good.record.retries);
    }
    error_set(&training->error,
              "%s is %g after step %lld at learning rate %g%s: training stops here and saves nothing of it; %s; lower "
              "--learning_rate of optimizer %s%s and start again",
              what, report_number(loss), (long long)step, rate, often, kept, config_optimizer_name(train->optimizer),
              train->optimizer == OPTIMIZER_ADAM ? "" : ", or choose --optimizer=adam,");
    training->has_diverged = true;
    return training_fail(training);
}

static bool is_of_metric(const struct training *training, const struct checkpoint_info *record)
{
    return training->metric == (record->metric == METRIC_AUTO ? METRIC_ACCURACY : record->metric);
}

/* Has the run ended because of its validations? A restored run may have, before its first step. */
static void judge_record(struct training *training, const struct checkpoint_info *record)
{
    const struct config_train *train = &training->config->train;
    const double target = train->target_metric > 0 ? train->target_metric : train->target_accuracy;
    if (!is_of_metric(training, record)) {
        return; /* found by another best_metric: the next validation starts over */
    }
    if (target > 0 && !isnan(record->best_score) &&
        (metric_rises(training->metric) ? record->best_score >= target : record->best_score <= target)) {
        training_stop(training, TRAINING_TARGET);
    }
    if (training->patience > 0 && record->bad_validations >= training->patience) {
        training_stop(training, TRAINING_PATIENCE);
    }
}

/* How long it takes to validate, test and save the model: by what was measured or, before that, as long as training. */
static double closing_s(const struct training *training)
{
    const struct tally *all = &training->all;
    const double images = (double)training->dataset->validation.count + (double)training->test->count;
    const double image_s =
        training->evaluation_s > 0 ? training->evaluation_s : all->seconds / fmax(1, (double)all->images);
    const size_t bytes = training->model->float_count * sizeof(float) * STORE_VECTORS;
    const double saving_s = training->config->output.train_dir[0] != '\0' ? (double)bytes / SAVED_PER_S : 0;
    return fmin(SPARED * (images * image_s + saving_s), training->config->train.time_limit / 2);
}

/* Would another step, or as many as an engine takes in one call, be too late? At least one is always taken. */
static bool is_time_up(const struct training *training)
{
    const double limit_s = training->config->train.time_limit;
    if (limit_s == 0 || !training->test || training->local_step == 0) {
        return false;
    }
    const double next_s = fmax(SPARED_S, 1 / fmax(training->recent_steps_per_s, 1e-9)) + SPARED_S;
    return clock_monotonic_s() - training->begun_s + next_s + closing_s(training) >= limit_s;
}

static void look_for_end(struct training *training)
{
    if (signals_pending() != 0) {
        training_stop(training, TRAINING_INTERRUPTED);
        return;
    }
    training->updater->table->look_for_end(training->updater);
    if (training->end == TRAINING_GOES_ON && is_time_up(training)) {
        training_stop(training, TRAINING_TIME);
    }
}

/* --- The plan --- */

/* Is it a validation of several workers' rows? */
static bool validates_together(const struct training *training)
{
    return training->validates_as_all || config_validates_together(training->config);
}

/* Is there anything to validate on, here or on other workers? */
static bool has_validation(const struct training *training)
{
    return training->dataset->validation.count > 0 || validates_together(training);
}

/* Intervals are around numbers. */
static bool check_interval(const struct training *training, enum loss_kind loss, struct error *error)
{
    const double interval = training->config->train.interval;
    const int targets = training->dataset->train.targets;
    if (interval == 0) {
        return true;
    }
    if (!loss_is_of_numbers(loss)) {
        return error_set(error,
                         "train.interval=%g is for targets that are numbers, and the data have classes to learn: "
                         "remove it",
                         interval);
    }
    return targets <= INTERVAL_MOST_TARGETS ||
           error_set(error, "train.interval=%g: there are %d targets, and at most %d may have intervals: remove it",
                     interval, targets, INTERVAL_MOST_TARGETS);
}

bool training_check_data(const struct training *training, struct error *error)
{
    const struct config_train *train = &training->config->train;
    const int targets = training->dataset->train.targets;
    const enum loss_kind loss = evaluation_loss(train, targets);
    const enum metric metric = evaluation_best_metric(train, targets);
    if ((loss == LOSS_SOFTMAX) != (targets == 0)) {
        return error_set(error, "train.loss %s does not fit the data, which have %s to learn: set it to %s",
                         config_loss_name(loss), targets > 0 ? "numbers" : "classes",
                         targets > 0 ? "auto or mse, say" : "auto or softmax");
    }
    if (!metric_applies(metric, loss)) {
        return error_set(error, "train.best_metric %s is not defined for loss %s", config_metric_name(metric),
                         config_loss_name(loss));
    }
    const bool is_binary =
        loss == LOSS_SOFTMAX ? training->dataset->train.classes == 2 : loss == LOSS_SIGMOID && targets == 1;
    if (train->threshold > 0 && train->threshold != 0.5 && !is_binary) {
        return error_set(error,
                         "train.threshold=%g is between two classes, and the data have %d %s to learn: remove it",
                         train->threshold, targets > 0 ? targets : training->dataset->train.classes,
                         targets > 0 ? "targets" : "classes");
    }
    if (!check_interval(training, loss, error)) {
        return false;
    }
    /* A size of 0 would have been refused with the config. */
    return (train->target_accuracy == 0 && train->target_metric == 0 && train->patience == 0) ||
           has_validation(training) ||
           error_set(
               error,
               "train.target_metric, target_accuracy and patience are measured on the validation examples, and of "
               "%d examples (data.validation_size=auto) none are held out: set --validation_size to 1 or more",
               training->dataset->train.count);
}

/*
 * Patience that nobody set is of epochs: with shorter intervals it is more validations, and without any it is none. A
 * rollout may change the config's, so it is worked out again with each plan.
 */
static int scaled_patience(const struct training *training)
{
    const struct config *config = training->config;
    const int64_t every = config->output.validate_steps, epoch = plan_epoch_end(&training->plan, 1);
    const int patience = config->train.patience;
    if (!config_is_of_table(config) || !config_was_chosen(config, "train", "patience")) {
        return patience;
    }
    if (!has_validation(training)) {
        return 0;
    }
    const int64_t in_epoch = every > 0 && epoch > every ? epoch / every : 1; /* validations */
    return in_epoch < INT_MAX / (patience > 0 ? patience : 1) ? (int)(patience * in_epoch) : INT_MAX;
}

/* A length that nobody set is one of training on the present data, however long it was trained on others. */
static void extend_plan(struct training *training)
{
    const struct config *config = training->config;
    const char *bound = config->train.epochs > 0 ? "epochs" : "train_steps";
    struct plan *plan = &training->plan;
    if (!training->updater->table->is_shared && config_was_chosen(config, "train", bound) &&
        plan->last_step < INT64_MAX - training->data_since) {
        plan->last_step += training->data_since;
    }
}

void training_plan(struct training *training)
{
    struct config *config = training->config;
    dataset_choose_metric(config, training->dataset);
    training->metric = evaluation_best_metric(&config->train, training->dataset->train.targets);
    struct sampler whole = {.examples = (uint32_t)training->dataset->train.count,
                            .batch_size = (uint32_t)config->train.batch_size};
    const int64_t epoch_batches = sampler_epoch_batches(&whole);
    if (training->updater->table->is_shared) {
        plan_begin_job(&training->plan, config, epoch_batches);
    } else if (config_has_rounds(&config->train)) {
        plan_begin_rounds(&training->plan, config, epoch_batches, training->sharers, training->replicas);
    } else {
        plan_begin(&training->plan, config, epoch_batches);
    }
    if (config->train.lr_decay_steps == 0) {
        config->train.lr_decay_steps = plan_epoch_end(&training->plan, 1);
    }
    extend_plan(training);
    training->patience = scaled_patience(training);
}

static bool open_summary(struct training *training, struct error *error)
{
    return summary_open(&training->summary,
                        &(struct summary_options){.config = training->config,
                                                  .model = training->model,
                                                  .engine = training->engine,
                                                  .dataset = training->dataset,
                                                  .digest = training->digest,
                                                  .global_step = training->global_step},
                        error);
}

void training_retime(struct training *training)
{
    struct error error;
    training_plan(training);
    if (training->summary) {
        summary_reschedule(training->summary, &training->config->output);
    } else if (training->test && !open_summary(training, &error)) {
        log_warning("%s; training continues without summaries", error.text);
    }
}

int64_t training_steps_to_due(const struct training *training)
{
    int64_t n = plan_steps_to_due(&training->plan, training->global_step);
    const int64_t to_summary = summary_steps_to_due(training->summary, training->global_step);
    const int64_t to_warm = WARM_UP_STEPS - training->local_step;
    n = to_summary < n ? to_summary : n;
    if (training->config->train.max_steps_per_s > 0) {
        const double at_once = fmin(fmax(training->config->train.max_steps_per_s * PACE_S, 1), 1e9);
        n = (int64_t)at_once < n ? (int64_t)at_once : n;
    }
    return to_warm > 0 && to_warm < n ? to_warm : n;
}

/* --- Tallies --- */

static void tally_add(struct tally *tally, const struct train_result *done, double seconds)
{
    tally->steps += done->steps;
    tally->images += done->images;
    tally->correct += done->correct;
    tally->loss_sum += done->loss_sum;
    tally->seconds += seconds;
}

void training_account(struct training *training, const struct train_result *done, double seconds, double now_s)
{
    if (training->local_step >= WARM_UP_STEPS) {
        tally_add(&training->warm, done, seconds);
    }
    tally_add(&training->all, done, seconds);
    tally_add(&training->since_report, done, seconds);
    tally_add(&training->since_summary, done, seconds);
    const int64_t before = training->local_step;
    training->local_step += done->steps;
    if (before < WARM_UP_STEPS && training->local_step >= WARM_UP_STEPS) {
        training->warm = tally_begin(training, now_s);
    }
    if (done->steps > 0) {
        const double rate = (double)done->steps / fmax(seconds, 1e-9);
        training->recent_steps_per_s +=
            (training->recent_steps_per_s > 0 ? RATE_WEIGHT : 1) * (rate - training->recent_steps_per_s);
        training->recent_loss = done->loss_sum / (double)done->steps;
        observed_steps(training->config, &training->plan, training->global_step, training->local_step, done, seconds);
    }
}

void training_charge(struct training *training, double seconds)
{
    training->all.seconds += seconds;
    if (training->warm.steps > 0) {
        training->warm.seconds += seconds;
    }
}

/*
 * Steps of the whole job per second. Others continue while this process validates or saves, so with them the clock
 * counts; a single process is measured by its training time.
 */
static double job_rate(const struct training *training, const struct tally *tally, double now_s, int64_t step)
{
    return training->updater->table->is_shared ? (double)(step - tally->begun_step) / fmax(now_s - tally->begun_s, 1e-9)
                                               : (double)tally->steps / fmax(tally->seconds, 1e-9);
}

/* --- What is due at a step --- */

static void report_progress(struct training *training)
{
    const struct tally *tally = &training->since_report;
    const struct config_train *train = &training->config->train;
    if (!training->progress.active && tally->steps > 0) {
        report_step(&(struct report_step){
            .worker = training->config->cluster.task_index,
            .epoch = plan_epoch(&training->plan, training->global_step),
            .global_step = training->global_step,
            .local_step = training->local_step,
            .loss = tally->loss_sum / (double)tally->steps,
            .learning_rate = schedule_learning_rate(train, training->global_step - 1),
            .ms_per_batch = 1e3 * tally->seconds / (double)(tally->steps * train->micro_batches),
            .examples_per_s = (double)tally->images / fmax(tally->seconds, 1e-9),
        });
    }
    training->since_report = tally_begin(training, clock_monotonic_s());
}

static void summarise_if_due(struct training *training, int64_t before)
{
    const struct updater_table *table = training->updater->table;
    const struct tally *tally = &training->since_summary;
    const double now_s = training->summary ? clock_monotonic_s() : 0;
    if (tally->steps == 0 || !summary_is_due(training->summary, before, training->global_step, now_s)) {
        return;
    }
    struct summary_cluster cluster;
    const double steps = (double)tally->steps, seconds = fmax(tally->seconds, 1e-9);
    if (table->summarise) {
        table->summarise(training->updater, tally->steps, &cluster);
    }
    summary_write(
        training->summary,
        &(struct summary_step){
            .global_step = training->global_step,
            .cross_entropy = tally->loss_sum / steps,
            .accuracy = training->evaluation.regression ? NAN : (double)tally->correct / fmax(1, (double)tally->images),
            .steps_per_s = job_rate(training, tally, now_s, training->global_step),
            .examples_per_s = (double)tally->images / seconds,
            .seconds_per_batch = seconds / (steps * training->config->train.micro_batches),
            .cluster = table->summarise ? &cluster : NULL,
        });
    const double end_s = clock_monotonic_s();
    training->since_summary = tally_begin(training, end_s);
    training_charge(training, end_s - now_s);
}

/* What the progress line shows: an accuracy, or nothing. */
static double shown_score(const struct checkpoint_info *record)
{
    bool is_accuracy = record->metric == METRIC_AUTO || record->metric == METRIC_ACCURACY;
    return is_accuracy && !isnan(record->validation_score) ? record->validation_score : -1;
}

/* What turns outputs into answers; a threshold that is set is in the record already (initial_record). */
static void note_decision(struct training *training, struct checkpoint_info *record,
                          const struct validators *validators, bool is_best)
{
    struct evaluation *evaluation = &training->evaluation;
    const bool is_here = validators->count == 0; /* all that was evaluated */
    record->temperature = is_here ? evaluation_temperature(evaluation, &training->dataset->validation, is_best) : 0;
    record->interval = (struct interval){.coverage = 0};
    if (is_here && !evaluation_interval(evaluation, &training->dataset->validation, &record->interval) &&
        !training->lacks_interval) {
        log_warning("%d validation rows are too few for an interval of %g, or too many to keep; change "
                    "--validation_size",
                    training->dataset->validation.count, training->config->train.interval);
        training->lacks_interval = true;
    }
    if (!evaluation_finds_threshold(evaluation)) {
        return;
    }
    record->has_threshold = !isnan(evaluation->threshold);
    record->threshold = record->has_threshold ? evaluation->threshold : 0;
}

/* Of equal scores, as small validation sets have them, the one with the lower loss is better. */
static bool is_better(enum metric metric, double score, double loss, const struct checkpoint_info *record)
{
    return isnan(record->best_score) ||
           (metric_rises(metric) ? score > record->best_score : score < record->best_score) ||
           (score == record->best_score && loss < record->best_loss);
}

/* Records the evaluation's results; true if it is the best so far. */
static bool note_validation(struct training *training, const struct held_model *held,
                            const struct validators *validators)
{
    const struct evaluation *evaluation = &training->evaluation;
    struct checkpoint_info *record = held->record;
    const double score = evaluation_metric(evaluation, training->metric);
    if (!is_of_metric(training, record)) {
        record->best_score = NAN;
        record->bad_validations = 0;
    }
    record->metric = training->metric;
    record->validation_score = score;
    const bool is_best = !isnan(score) && is_better(training->metric, score, evaluation->loss, record);
    note_decision(training, record, validators, is_best);
    if (is_best) {
        record->best_score = record->validation_score;
        record->best_loss = evaluation->loss;
        record->best_step = held->global_step;
    }
    training->validated_step = held->global_step;
    /* One that only the clock made due does not count against patience in a run that goes on later. */
    record->bad_validations = is_best ? 0 : record->bad_validations + (training->end == TRAINING_TIME ? 0 : 1);
    training->shown_validation = shown_score(record);
    summary_validation(training->summary, held->global_step, evaluation, validators);
    report_validation(&(struct report_validation){
        .worker = training->config->cluster.task_index,
        .epoch = plan_epoch(&training->plan, held->global_step),
        .global_step = held->global_step,
        .evaluation = evaluation,
        .metric = training->metric,
        .best_score = record->best_score,
        .best_step = record->best_step,
        .validators = validators,
        .quiet = training->progress.active,
    });
    observed_validation(evaluation, training->metric, held);
    observed_model(evaluation, training->engine, training->model, &training->dataset->validation,
                   training->dataset->schema, held->global_step);
    judge_record(training, record);
    return is_best;
}

static bool evaluate_on(struct training *training, const struct examples *examples)
{
    const bool averaged = training->config->train.ema_decay > 0;
    const double begin_s = clock_monotonic_s();
    if (!evaluate(&training->evaluation, training->engine, averaged, examples, &training->error)) {
        return training_fail(training);
    }
    training->evaluation_s = (clock_monotonic_s() - begin_s) / fmax(1, (double)examples->count);
    return true;
}

/* On the validation examples, including other workers' if they have their own. */
static bool evaluate_held(struct training *training, const struct held_model *held, struct validators *validators)
{
    const struct updater_table *table = training->updater->table;
    *validators = (struct validators){.count = 0};
    training->evaluation.temperature = 0;
    training->evaluation.interval.coverage = 0;
    return evaluate_on(training, &training->dataset->validation) &&
           (!table->gather ||
            table->gather(training->updater, held->global_step, training->metric, &training->evaluation, validators));
}

/* Of a model in the engine. */
static bool keep_good(struct training *training, const struct checkpoint_info *record, int64_t step, bool is_best)
{
    return !training->keeps_best ||
           good_model_keep(&training->good, training->engine, record, step, is_best, &training->error);
}

/* True if the model is the best so far. */
static bool validate(struct training *training)
{
    PROFILE("validate");
    const struct updater_table *table = training->updater->table;
    struct held_model held;
    struct validators validators;
    if (!table->hold(training->updater, &held)) {
        return false; /* the next validation is near */
    }
    observe_state(BOARD_VALIDATING);
    const bool done = evaluate_held(training, &held, &validators);
    const bool is_finite = done && isfinite(training->evaluation.loss);
    const bool is_best = is_finite && training->evaluation.images > 0 && note_validation(training, &held, &validators);
    const bool is_kept = !is_best || keep_good(training, held.record, held.global_step, true);
    table->release(training->updater, is_best);
    if (!is_kept) {
        return training_fail(training);
    }
    if (done && !is_finite) {
        training_diverges(training, "the validation loss", training->evaluation.loss, held.global_step);
    }
    return is_best;
}

/*
 * The last model gets its own threshold and temperature, though no validation is due: that would count for the best
 * score, which a later continuation of the run must not notice.
 */
static void find_last_decision(struct training *training)
{
    const struct updater_table *table = training->updater->table;
    struct held_model held;
    struct validators validators;
    const bool is_wanted = evaluation_finds_threshold(&training->evaluation) || training->evaluation.kept;
    if (is_wanted && table->hold(training->updater, &held)) {
        if (evaluate_held(training, &held, &validators)) {
            note_decision(training, held.record, &validators, false);
        }
        table->release(training->updater, false);
    }
}

/* At the end that time_limit sets, wherever it falls: the last model may be the best. */
static bool validate_last(struct training *training, bool is_best)
{
    const bool is_due = has_validation(training) && training->validated_step != training->global_step;
    return is_due ? validate(training) : is_best;
}

/* After steps that led on from global step `before`. Returns true if a validation was the best so far. */
static bool do_what_is_due(struct training *training, int64_t before)
{
    const struct plan *plan = &training->plan;
    const int64_t step = training->global_step;
    if (plan_log_due(plan, before, step)) {
        report_progress(training);
    }
    summarise_if_due(training, before);
    if (!training->test || !has_validation(training)) {
        return false;
    }
    if (plan_validation_due(plan, before, step)) {
        return validate(training);
    }
    if (step >= plan->last_step) {
        find_last_decision(training);
    }
    return false;
}

static void show_progress(struct training *training)
{
    const double limit = training->config->train.max_steps_per_s;
    const double rate = training->recent_steps_per_s;
    if (training->progress.active) {
        progress_update(&training->progress, &(struct progress_view){
                                                 .step = training->global_step,
                                                 .last_step = training->plan.last_step,
                                                 .steps_per_s = limit > 0 ? fmin(limit, rate) : rate,
                                                 .loss = training->recent_loss,
                                                 .validation = training->shown_validation,
                                             });
    }
}

/*
 * With max_steps_per_s: waits until the next step is due. Lost time is not made up, or a pause for a checkpoint would
 * be followed by the very burst that the limit should prevent.
 */
static void keep_pace(struct training *training, int64_t steps)
{
    const double limit = training->config->train.max_steps_per_s;
    const double begin_s = clock_monotonic_s();
    if (limit == 0 || steps == 0) {
        return;
    }
    PROFILE("pace");
    training->next_step_s = fmax(training->next_step_s, begin_s - (double)steps / limit) + (double)steps / limit;
    for (double now_s = begin_s; now_s < training->next_step_s && training->end == TRAINING_GOES_ON;) {
        clock_pause(training->next_step_s);
        look_for_end(training);
        now_s = clock_monotonic_s();
    }
    const double waited_s = clock_monotonic_s() - begin_s;
    training_charge(training, waited_s);
    training->since_report.seconds += waited_s;
    training->since_summary.seconds += waited_s;
}

/* --- Join, train, finish --- */

static double epochs_of(const struct training *training, int64_t steps)
{
    const struct plan *plan = &training->plan;
    return (double)steps * (double)plan->batches_per_step / (double)plan->epoch_batches;
}

static void report_begin(const struct training *training, const struct updater_start *start)
{
    char text[256];
    training->engine->table->describe(training->engine, text, sizeof text);
    report_start(&(struct report_start){
        .config = training->config,
        .model = training->model,
        .data = training->dataset->description,
        .engine = text,
        .digest = training->digest,
        .restored_from = start->restored_from,
        .global_step = start->global_step,
        .last_step = training->plan.last_step,
        .epochs = epochs_of(training, training->plan.last_step),
        .metric = training->metric,
        .patience = training->patience,
        .keeps_nothing = !training->test,
    });
}

/* For the validation, the test, and checking whether a state is sound. */
static void create_evaluation(struct training *training)
{
    const struct dataset *dataset = training->dataset;
    const struct model *model = training->model;
    int rows = dataset->sample.count;
    rows = dataset->validation.count > rows ? dataset->validation.count : rows;
    rows = training->test && training->test->count > rows ? training->test->count : rows;
    const bool has_interval = training->config->train.interval > 0;
    const struct evaluation_options options = {
        .train = &training->config->train,
        .outputs = model->widths[model->layer_count],
        .rows = examples_are_rows(&dataset->train) ? rows : 0,
        .targets = dataset->train.targets,
        .schema = dataset->schema,
        .class_names = dataset->class_names,
        .calibrated = training->config->train.calibration == CALIBRATION_TEMPERATURE || has_interval
                          ? dataset->validation.count
                          : 0,
        .bins = examples_are_rows(&dataset->train) && validates_together(training)};
    evaluation_create(&training->evaluation, &options);
}

static bool begin(struct training *training, const struct updater_start *start)
{
    training->begun = true;
    training->all = training->since_report;
    create_evaluation(training);
    const struct updater_table *table = training->updater->table;
    const struct config *config = training->config;
    const bool in_memory = !table->load_best || config->output.train_dir[0] == '\0' ||
                           good_model_is_small(training->model, &config->train);
    if (training->keeps_best && in_memory) {
        good_model_create(&training->good, training->model, &config->train, !table->is_shared);
    }
    report_begin(training, start);
    return !training->test || open_summary(training, &training->error) || training_fail(training);
}

/* The best so far was found by another best_metric, and a score of that one means nothing here. */
static void forget_best(struct training *training)
{
    const struct updater_table *table = training->updater->table;
    struct held_model held;
    training->good.is_best = false;
    if (!table->is_shared && table->hold(training->updater, &held)) {
        held.record->best_score = NAN;
        held.record->bad_validations = 0;
        held.record->metric = training->metric;
        table->release(training->updater, false);
    }
}

/* The first model to go back to, and the best one if an earlier process found it. */
static bool begin_from(struct training *training, const struct updater_start *start)
{
    const struct updater_table *table = training->updater->table;
    if (training->good.global_step != start->record.best_step || isnan(start->record.best_score)) {
        training->good.is_best = false; /* of steps that were lost */
    }
    if (table->go_back && !training->good.is_best && !keep_good(training, &start->record, start->global_step, false)) {
        return training_fail(training);
    }
    const bool has_best = !isnan(start->record.best_score) || start->record.bad_validations > 0;
    if (has_best && !is_of_metric(training, &start->record)) {
        forget_best(training);
    } else if (training->keeps_best && training->config->output.train_dir[0] != '\0' &&
               !isnan(start->record.best_score)) {
        good_model_load(&training->good, &start->record, training->config->output.train_dir);
    }
    if (table->go_back) {
        lower_rate(training, start->record.retries);
    }
    return true;
}

static bool join(struct training *training)
{
    struct updater_start start = {.record = {.validation_score = NAN, .best_score = NAN}};
    if (!training->updater->table->join(training->updater, &start)) {
        return false;
    }
    if (start.record.data_since != training->data_since) {
        training->data_since = start.record.data_since;
        training_plan(training);
    }
    training->since_report = training->since_summary = tally_begin(training, clock_monotonic_s());
    training->shown_validation = shown_score(&start.record);
    if (training->updater->table->go_back) {
        lower_rate(training, start.record.retries); /* before anything reports it */
    }
    if ((!training->begun && !begin(training, &start)) || !begin_from(training, &start)) {
        return false;
    }
    observed_start(training->config, training->dataset->description, training->digest, training->engine,
                   &training->plan, training->metric, &start);
    judge_record(training, &start.record);
    return true;
}

static bool is_in_order(const struct training *training)
{
    return training->end != TRAINING_REJOINS && training->end != TRAINING_LEAVES && training->end != TRAINING_FAILED;
}

static void train(struct training *training)
{
    const struct updater_table *table = training->updater->table;
    bool is_best = false;
    for (;;) {
        look_for_end(training);
        if (training->end == TRAINING_TIME) {
            is_best = validate_last(training, is_best);
        }
        if (table->save && training->end != TRAINING_FAILED) { /* a failed state is never saved */
            table->save(training->updater, is_best);
        }
        if (training->end != TRAINING_GOES_ON) {
            break;
        }
        const int64_t before = training->global_step;
        const int64_t done_before = training->local_step;
        is_best = table->step(training->updater) && do_what_is_due(training, before);
        show_progress(training);
        keep_pace(training, training->local_step - done_before);
    }
    training->ended_s = clock_monotonic_s();
    training->ended_step = training->global_step;
    if (is_in_order(training)) {
        if (table->settle) {
            table->settle(training->updater);
        }
        if (training->plan.log_steps > 0) {
            report_progress(training);
        }
    }
}

static void describe_end(const struct training *training, char *text, size_t size)
{
    const struct config_train *train = &training->config->train;
    if (training->end == TRAINING_TARGET) {
        snprintf(text, size, "validation %s %g reached", config_metric_name(training->metric),
                 train->target_metric > 0 ? train->target_metric : train->target_accuracy);
    } else if (training->end == TRAINING_PATIENCE) {
        snprintf(text, size, "no better validation %d times in a row", training->patience);
    } else if (training->end == TRAINING_TIME) {
        const int64_t epochs = (int64_t)epochs_of(training, training->global_step);
        snprintf(text, size, epochs > 0 ? "stopped by time_limit after epoch %lld" : "stopped by time_limit in epoch 1",
                 (long long)epochs);
    } else {
        snprintf(text, size, training->local_step == 0 ? "nothing left to train" : "last step reached");
    }
}

/* The best model, unless there is none, or the newest is wanted. */
static bool tests_best(const struct training *training)
{
    return training->good.is_best && training->config->train.final_test == FINAL_TEST_BEST;
}

static void report_end(const struct training *training, const struct updater_record *record, const char *reason)
{
    const struct tally *tally = training->warm.steps > 0 ? &training->warm : &training->all;
    const double job_steps_per_s = job_rate(training, tally, training->ended_s, training->ended_step);
    report_done(&(struct report_done){
        .test = training->test->count > 0 ? &training->evaluation : NULL,
        .reason = reason,
        .steps = training->global_step,
        .local_steps = training->local_step,
        .epochs = epochs_of(training, training->global_step),
        .steps_per_s = tally->seconds > 0 ? (double)tally->steps / tally->seconds : 0,
        .global_steps_per_s = training->updater->table->is_shared ? job_steps_per_s : 0,
        .seconds = clock_monotonic_s() - training->begun_s,
        .metric = training->metric,
        .best_score = record->best_score,
        .best_step = record->best_step,
        .tests_best = tests_best(training),
    });
}

/* Brings the model to be tested into the engine, which has the last one. */
static bool take_tested(struct training *training, const struct updater_record *record)
{
    const struct good_model *good = &training->good;
    training->evaluation.decision = record->threshold;
    training->evaluation.temperature = record->temperature;
    training->evaluation.interval = record->interval;
    if (!tests_best(training)) {
        return true;
    }
    const double threshold = good->record.has_threshold ? good->record.threshold : NAN;
    const double temperature = good->record.temperature;
    const struct interval interval = good->record.interval;
    if (!good->state.memory && !training->updater->table->load_best(training->updater)) {
        return false;
    }
    if (!tests_best(training)) {
        return true; /* it is not on disk */
    }
    training->evaluation.decision = threshold;
    training->evaluation.temperature = temperature;
    training->evaluation.interval = interval;
    return !good->state.memory || good_model_put(good, training->engine, &training->error) || training_fail(training);
}

static bool test(struct training *training, const struct updater_record *record)
{
    const struct updater_table *table = training->updater->table;
    char reason[128];
    const bool is_tested = training->test->count > 0; /* else all rows are for training */
    if (is_tested && !(take_tested(training, record) && evaluate_on(training, training->test))) {
        return false;
    }
    const struct evaluation *evaluation = &training->evaluation;
    const double accuracy = !is_tested || evaluation->regression ? NAN : evaluation_accuracy(evaluation);
    describe_end(training, reason, sizeof reason);
    if (is_tested) {
        summary_test(training->summary, training->global_step, evaluation);
        observed_test(evaluation, training->metric, training->global_step);
    }
    if (table->conclude) {
        table->conclude(training->updater, false, accuracy, reason);
    }
    report_end(training, record, reason);
    return true;
}

static int fail(struct training *training)
{
    const struct updater_table *table = training->updater->table;
    log_error("%s", training->error.text);
    observe_failure(training->error.text);
    if (table->conclude) {
        table->conclude(training->updater, true, NAN, training->error.text);
    }
    return COMMAND_FAILED;
}

static int interrupted(const struct training *training, const struct updater_record *record)
{
    const int number = signals_pending();
    const bool is_kept = record->last_checkpoint && record->last_checkpoint_step == training->global_step;
    report_interrupted(signals_name(number), training->global_step, is_kept ? record->last_checkpoint : NULL);
    return record->checkpoint_failed ? COMMAND_FAILED : signals_exit_status(number);
}

/* The consequences of the end of training. True: it continues, after joining again. */
static bool finish(struct training *training, int *status)
{
    const struct updater_table *table = training->updater->table;
    struct updater_record record;
    if (training->end != TRAINING_REJOINS) {
        table->finish(training->updater);
    }
    if (training->end == TRAINING_REJOINS) {
        training->end = TRAINING_GOES_ON;
        return true;
    }
    progress_end(&training->progress);
    switch (training->end) {
    case TRAINING_LAST_STEP:
    case TRAINING_TARGET:
    case TRAINING_PATIENCE:
    case TRAINING_TIME:
        table->record(training->updater, &record);
        *status = !test(training, &record) ? fail(training) : record.checkpoint_failed ? COMMAND_FAILED : COMMAND_DONE;
        break;
    case TRAINING_INTERRUPTED:
        table->record(training->updater, &record);
        *status = interrupted(training, &record);
        break;
    case TRAINING_BY_OTHERS:
        *status = COMMAND_DONE;
        break;
    case TRAINING_LEAVES:
        *status = training->leave_status;
        break;
    case TRAINING_GOES_ON:
    case TRAINING_REJOINS:
    case TRAINING_FAILED:
        *status = fail(training);
        break;
    }
    return false;
}

int training_run(struct training *training)
{
    const struct config_output *output = &training->config->output;
    int status = COMMAND_FAILED;
    const bool has_line = output->progress && output->log_format == LOG_TEXT;
    progress_begin(&training->progress, has_line && !training->updater->table->is_shared);
    for (;;) {
        if (join(training)) {
            train(training);
        }
        if (!finish(training, &status)) {
            break;
        }
    }
    summary_close(training->summary, status == COMMAND_DONE, training->end == TRAINING_INTERRUPTED);
    evaluation_destroy(&training->evaluation);
    good_model_destroy(&training->good);
    return status;
}
