/*
 * The training loop with an updater that does what its test says, on the test's own clock. Whatever the loop asks of
 * the updater, logs, shows, or writes into summaries becomes a line of the story.
 */
#ifndef TESTS_WORKER_LOOP_H
#define TESTS_WORKER_LOOP_H

#include "tests/check.h"
#include "worker/training.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/process/signals.h"
#include "observe/observe.h"
#include "tests/worker/remote/story.h"
#include "worker/observed.h"
#include "worker/report.h"

enum { LOOP_NEVER = -1, LOOP_BATCHES = 4 /* per epoch */ };

/* Results of the next evaluations; the last one repeats. */
struct loop_found {
    int correct, images;
    double loss, f1;
    double threshold; /* NaN: none */
};

static struct loop {
    struct config config;
    struct model model;
    struct dataset dataset;
    struct examples test;
    struct engine engine;
    struct engine_table engine_table;
    struct updater updater;
    struct updater_table table;
    struct training training;
    struct updater_start start;
    struct updater_record record;
    struct checkpoint_info info; /* of the held model */

    double now_s;
    double step_s;      /* duration of a step */
    double pause_s;     /* duration of a save, a summary, a validation */
    int64_t stride;     /* of the global step, because others take steps, too */
    double failure_s;   /* duration of a failing step */
    int64_t fails_at;   /* from this step on a step fails once, as `ends` says */
    int64_t signal_at;  /* global step at which a signal arrives */
    double signal_at_s; /* likewise by the clock */
    enum training_end ends;
    enum training_end end_at_finish; /* TRAINING_GOES_ON: unchanged */
    bool no_model;                   /* none can be held just now */
    bool gathers_nothing;
    bool has_terminal, has_summary, no_summary, finds_threshold, engine_fails;
    int64_t summary_steps;
    struct loop_found found[8];
    int evaluations;
    int signal;
} loop;

/* --- The clock, and signals --- */

double __wrap_clock_monotonic_s(void);
void __wrap_clock_pause(double until_s);
int __wrap_signals_pending(void);

double __wrap_clock_monotonic_s(void)
{
    return loop.now_s;
}

/* At most a tenth of a second, as documented. */
void __wrap_clock_pause(double until_s)
{
    const double left_s = fmin(fmax(until_s - loop.now_s, 0), 0.1);
    tell("pause %.3f\n", left_s);
    loop.now_s += left_s;
}

int __wrap_signals_pending(void)
{
    const bool at_step = loop.signal_at >= 0 && loop.training.global_step >= loop.signal_at;
    return at_step || (loop.signal_at_s > 0 && loop.now_s >= loop.signal_at_s) ? SIGTERM : 0;
}

/* --- The updater --- */

static inline bool loop_join(struct updater *updater, struct updater_start *start)
{
    assert_ptr_equal(updater, &loop.updater);
    assert_true(isnan(start->record.best_score) && isnan(start->record.validation_score));
    tell("join\n");
    if (loop.ends == TRAINING_LEAVES && loop.fails_at == LOOP_NEVER) {
        loop.training.leave_status = 7;
        return training_stop(&loop.training, TRAINING_LEAVES);
    }
    *start = loop.start;
    loop.training.global_step = start->global_step;
    return true;
}

static inline void loop_look_for_end(struct updater *updater)
{
    if (loop.training.global_step >= loop.training.plan.last_step) {
        training_stop(&loop.training, TRAINING_LAST_STEP);
    }
}

/* Step s has a loss of s, and s correct examples. */
static inline bool loop_step(struct updater *updater)
{
    if (loop.fails_at >= 0 && loop.training.global_step >= loop.fails_at) {
        loop.fails_at = LOOP_NEVER;
        loop.now_s += loop.failure_s;
        error_set(&loop.training.error, "the step failed");
        return loop.ends == TRAINING_GOES_ON ? false : training_stop(&loop.training, loop.ends);
    }
    loop.training.global_step += loop.stride;
    loop.now_s += loop.step_s;
    const int64_t step = loop.training.global_step;
    const struct train_result done = {
        .steps = 1, .images = 10, .correct = step, .loss_sum = (double)step, .finite = true};
    training_account(&loop.training, &done, loop.step_s, loop.now_s);
    tell("step %lld\n", (long long)step);
    return true;
}

static inline void loop_save(struct updater *updater, bool is_best)
{
    tell("save%s\n", is_best ? " the best" : "");
}

static inline bool loop_hold(struct updater *updater, struct held_model *held)
{
    tell("hold%s\n", loop.no_model ? ": not now" : "");
    *held = (struct held_model){loop.training.global_step, &loop.info};
    return !loop.no_model;
}

static inline void loop_release(struct updater *updater, bool is_best)
{
    tell("release%s\n", is_best ? " the best" : "");
}

static inline bool loop_gather(struct updater *updater, int64_t global_step, enum metric metric,
                               struct evaluation *evaluation, struct validators *validators)
{
    assert_ptr_equal(evaluation, &loop.training.evaluation);
    assert_int_equal(validators->count, 0);
    tell("gather at %lld, %s\n", (long long)global_step, config_metric_name(metric));
    evaluation->images += 10;
    validators->count = 3;
    return !loop.gathers_nothing || training_stop(&loop.training, TRAINING_BY_OTHERS);
}

static inline void loop_summarise(struct updater *updater, int64_t steps, struct summary_cluster *cluster)
{
    *cluster = (struct summary_cluster){.staleness = (double)steps};
}

static inline void loop_settle(struct updater *updater)
{
    tell("settle\n");
}

static inline void loop_finish(struct updater *updater)
{
    tell("finish\n");
    if (loop.end_at_finish != TRAINING_GOES_ON) {
        loop.training.end = loop.end_at_finish;
        loop.end_at_finish = TRAINING_GOES_ON;
    }
}

static inline void loop_conclude(struct updater *updater, bool failed, double test_accuracy, const char *why)
{
    tell("conclude%s, %g: %s\n", failed ? " as failed" : "", fabs(test_accuracy), why);
}

static inline void loop_record(struct updater *updater, struct updater_record *record)
{
    *record = loop.record;
}

static inline void loop_describe(const struct engine *engine, char *text, size_t size)
{
    assert_ptr_equal(engine, &loop.engine);
    snprintf(text, size, "an engine");
}

/* --- Evaluations --- */

void __real_evaluation_create(struct evaluation *evaluation, const struct evaluation_options *options);
void __wrap_evaluation_create(struct evaluation *evaluation, const struct evaluation_options *options);
void __real_evaluation_destroy(struct evaluation *evaluation);
void __wrap_evaluation_destroy(struct evaluation *evaluation);
bool __wrap_evaluation_finds_threshold(const struct evaluation *evaluation);
bool __wrap_evaluate(struct evaluation *evaluation, struct engine *engine, bool averaged,
                     const struct examples *examples, struct error *error);

void __wrap_evaluation_create(struct evaluation *evaluation, const struct evaluation_options *options)
{
    assert_ptr_equal(options->train, &loop.config.train);
    assert_ptr_equal(options->schema, loop.dataset.schema);
    tell("evaluation of %d outputs, %d rows, %d targets%s\n", options->outputs, options->rows, options->targets,
         options->bins ? ", in bins" : "");
    __real_evaluation_create(evaluation, options);
}

void __wrap_evaluation_destroy(struct evaluation *evaluation)
{
    tell("evaluation is gone\n");
    __real_evaluation_destroy(evaluation);
}

bool __wrap_evaluation_finds_threshold(const struct evaluation *evaluation)
{
    assert_ptr_equal(evaluation, &loop.training.evaluation);
    return loop.finds_threshold;
}

bool __wrap_evaluate(struct evaluation *evaluation, struct engine *engine, bool averaged,
                     const struct examples *examples, struct error *error)
{
    const struct loop_found *found = &loop.found[loop.evaluations];
    assert_ptr_equal(engine, &loop.engine);
    assert_true(examples == &loop.test || examples == &loop.dataset.validation);
    tell("evaluate%s%s\n", examples == &loop.test ? " the test set" : "", averaged ? " on averages" : "");
    loop.evaluations += loop.found[loop.evaluations + 1].images > 0;
    evaluation->images = found->images;
    evaluation->correct = found->correct;
    evaluation->loss = found->loss;
    evaluation->threshold = found->threshold;
    evaluation->metrics[METRIC_F1] = found->f1;
    loop.now_s += loop.pause_s;
    return !loop.engine_fails || error_set(error, "the engine failed");
}

/* --- Output --- */

void __wrap_report_start(const struct report_start *start);
void __wrap_report_step(const struct report_step *step);
void __wrap_report_validation(const struct report_validation *validation);
void __wrap_report_interrupted(const char *signal, int64_t global_step, const char *checkpoint);
void __wrap_report_done(const struct report_done *done);
bool __wrap_summary_open(struct summary **summary, const struct summary_options *options, struct error *error);
void __wrap_summary_reschedule(struct summary *summary, const struct config_output *output);
bool __wrap_summary_is_due(const struct summary *summary, int64_t before, int64_t step, double now_s);
int64_t __wrap_summary_steps_to_due(const struct summary *summary, int64_t step);
void __wrap_summary_write(struct summary *summary, const struct summary_step *step);
void __wrap_summary_validation(struct summary *summary, int64_t global_step, const struct evaluation *evaluation,
                               const struct validators *validators);
void __wrap_summary_test(struct summary *summary, int64_t global_step, const struct evaluation *evaluation);
void __wrap_summary_close(struct summary *summary, bool succeeded, bool interrupted);
void __wrap_observed_start(const struct config *config, const char *data, const char *digest, struct engine *engine,
                           const struct plan *plan, enum metric metric, const struct updater_start *start);
void __wrap_observed_steps(const struct config *config, const struct plan *plan, int64_t global_step,
                           int64_t local_step, const struct train_result *done, double seconds);
void __wrap_observed_validation(const struct evaluation *evaluation, enum metric metric, const struct held_model *held);
void __wrap_observed_model(const struct evaluation *evaluation, struct engine *engine, const struct model *model,
                           const struct examples *examples, const struct schema *schema, int64_t global_step);
void __wrap_observe_state(enum board_state state);
void __wrap_observed_test(const struct evaluation *evaluation, enum metric metric, int64_t global_step);
void __wrap_progress_begin(struct progress *progress, bool wanted);
void __wrap_progress_update(struct progress *progress, const struct progress_view *view);
void __wrap_progress_end(struct progress *progress);

void __wrap_report_start(const struct report_start *start)
{
    assert_ptr_equal(start->config, &loop.config);
    assert_ptr_equal(start->model, &loop.model);
    assert_string_equal(start->data, "some data");
    assert_string_equal(start->digest, "digest");
    tell("start at %lld of %lld with %s%s%s%s\n", (long long)start->global_step, (long long)start->last_step,
         start->engine, start->restored_from ? ", from " : "", start->restored_from ? start->restored_from : "",
         start->keeps_nothing ? ", keeps nothing" : "");
}

void __wrap_report_step(const struct report_step *step)
{
    tell("log: worker %d, epoch %lld, step %lld, own %lld, loss %g, rate %g, %g ms, %g/s\n", step->worker,
         (long long)step->epoch, (long long)step->global_step, (long long)step->local_step, step->loss,
         step->learning_rate, step->ms_per_batch, step->examples_per_s);
}

void __wrap_report_validation(const struct report_validation *validation)
{
    assert_ptr_equal(validation->evaluation, &loop.training.evaluation);
    tell("validation: worker %d, epoch %lld, step %lld, %s, best %g at %lld, %d validators%s\n", validation->worker,
         (long long)validation->epoch, (long long)validation->global_step, config_metric_name(validation->metric),
         validation->best_score, (long long)validation->best_step, validation->validators->count,
         validation->quiet ? ", quiet" : "");
}

void __wrap_report_interrupted(const char *signal, int64_t global_step, const char *checkpoint)
{
    tell("interrupted by %s at %lld, %s\n", signal, (long long)global_step, checkpoint ? checkpoint : "unsaved");
}

void __wrap_report_done(const struct report_done *done)
{
    assert_ptr_equal(done->test, &loop.training.evaluation);
    tell("done: %s, %lld steps, %lld own, %g epochs, %g/s, %g/s of all, %g s, %s, best %g at %lld\n", done->reason,
         (long long)done->steps, (long long)done->local_steps, done->epochs, done->steps_per_s,
         done->global_steps_per_s, done->seconds, config_metric_name(done->metric), done->best_score,
         (long long)done->best_step);
}

/* Any address but NULL, with nothing that the loop could read. */
static inline struct summary *loop_summary(void)
{
    return (struct summary *)&loop.summary_steps;
}

bool __wrap_summary_open(struct summary **summary, const struct summary_options *options, struct error *error)
{
    assert_ptr_equal(options->config, &loop.config);
    assert_ptr_equal(options->model, &loop.model);
    assert_ptr_equal(options->engine, &loop.engine);
    assert_ptr_equal(options->dataset, &loop.dataset);
    assert_string_equal(options->digest, "digest");
    tell("summaries from %lld on\n", (long long)options->global_step);
    *summary = loop.has_summary ? loop_summary() : NULL;
    return !loop.no_summary || error_set(error, "no summaries");
}

void __wrap_summary_reschedule(struct summary *summary, const struct config_output *output)
{
    assert_ptr_equal(summary, loop_summary());
    assert_ptr_equal(output, &loop.config.output);
    tell("summaries are retimed\n");
}

bool __wrap_summary_is_due(const struct summary *summary, int64_t before, int64_t step, double now_s)
{
    assert_true(!summary || now_s == loop.now_s);
    assert_int_equal(step, loop.training.global_step);
    return summary && step / loop.summary_steps > before / loop.summary_steps;
}

int64_t __wrap_summary_steps_to_due(const struct summary *summary, int64_t step)
{
    return summary ? loop.summary_steps - step % loop.summary_steps : INT64_MAX;
}

void __wrap_summary_write(struct summary *summary, const struct summary_step *step)
{
    assert_ptr_equal(summary, loop_summary());
    tell("summary of %lld: loss %g, accuracy %g, %g steps/s, %g/s, %g s, staleness %g\n", (long long)step->global_step,
         step->cross_entropy, fabs(step->accuracy), step->steps_per_s, step->examples_per_s, step->seconds_per_batch,
         step->cluster ? step->cluster->staleness : -1);
    loop.now_s += loop.pause_s;
}

void __wrap_summary_validation(struct summary *summary, int64_t global_step, const struct evaluation *evaluation,
                               const struct validators *validators)
{
    assert_ptr_equal(summary, loop.training.summary);
    assert_ptr_equal(evaluation, &loop.training.evaluation);
    tell("summary of the validation at %lld, %d validators\n", (long long)global_step, validators->count);
}

void __wrap_summary_test(struct summary *summary, int64_t global_step, const struct evaluation *evaluation)
{
    assert_ptr_equal(summary, loop.training.summary);
    assert_ptr_equal(evaluation, &loop.training.evaluation);
    tell("summary of the test at %lld, decided by %g\n", (long long)global_step, fabs(evaluation->decision));
}

void __wrap_summary_close(struct summary *summary, bool succeeded, bool interrupted)
{
    assert_ptr_equal(summary, loop.training.summary);
    tell("summaries end %s\n", succeeded ? "well" : interrupted ? "early" : "badly");
}

void __wrap_observed_start(const struct config *config, const char *data, const char *digest, struct engine *engine,
                           const struct plan *plan, enum metric metric, const struct updater_start *start)
{
    assert_ptr_equal(config, &loop.config);
    assert_ptr_equal(plan, &loop.training.plan);
    assert_ptr_equal(engine, &loop.engine);
    assert_string_equal(digest, "digest");
    assert_ptr_equal(data, loop.dataset.description);
    tell("observed from %lld on, %s\n", (long long)start->global_step, config_metric_name(metric));
}

void __wrap_observed_steps(const struct config *config, const struct plan *plan, int64_t global_step,
                           int64_t local_step, const struct train_result *done, double seconds)
{
    assert_ptr_equal(config, &loop.config);
    assert_ptr_equal(plan, &loop.training.plan);
    tell("observed step %lld, own %lld, %lld steps in %g s\n", (long long)global_step, (long long)local_step,
         (long long)done->steps, seconds);
}

void __wrap_observed_validation(const struct evaluation *evaluation, enum metric metric, const struct held_model *held)
{
    assert_ptr_equal(evaluation, &loop.training.evaluation);
    tell("observed validation at %lld, %s\n", (long long)held->global_step, config_metric_name(metric));
}

void __wrap_observed_model(const struct evaluation *evaluation, struct engine *engine, const struct model *model,
                           const struct examples *examples, const struct schema *schema, int64_t global_step)
{
    assert_ptr_equal(evaluation, &loop.training.evaluation);
    assert_ptr_equal(engine, &loop.engine);
    assert_ptr_equal(model, &loop.model);
    assert_ptr_equal(examples, &loop.dataset.validation);
    assert_ptr_equal(schema, loop.dataset.schema);
    assert_true(global_step > 0);
    tell("observed model\n");
}

void __wrap_observed_test(const struct evaluation *evaluation, enum metric metric, int64_t global_step)
{
    assert_ptr_equal(evaluation, &loop.training.evaluation);
    tell("observed test at %lld, %s\n", (long long)global_step, config_metric_name(metric));
}

void __wrap_observe_state(enum board_state state)
{
    assert_int_equal(state, BOARD_VALIDATING);
    tell("it validates\n");
}

void __wrap_progress_begin(struct progress *progress, bool wanted)
{
    progress->active = wanted && loop.has_terminal;
    tell("progress%s\n", wanted ? "" : " is not wanted");
}

void __wrap_progress_update(struct progress *progress, const struct progress_view *view)
{
    assert_true(progress->active);
    tell("progress: %lld of %lld, %g/s, loss %g, validation %g\n", (long long)view->step, (long long)view->last_step,
         view->steps_per_s, view->loss, view->validation);
}

void __wrap_progress_end(struct progress *progress)
{
    tell("progress ends%s\n", progress->active ? " on a terminal" : "");
}

/* --- A run --- */

/* A chief alone, with six steps to take; nothing is due before the end. */
static inline int loop_set_up(void **state)
{
    memset(&loop, 0, sizeof loop);
    told();
    config_defaults(&loop.config);
    loop.config.model.layer_count = 2;
    loop.config.model.layers[0] = 4;
    loop.config.model.layers[1] = 3;
    loop.config.train.train_steps = 6;
    loop.config.train.epochs = 0;
    loop.config.train.batch_size = 10;
    loop.config.train.learning_rate = 0.5;
    loop.config.train.lr_decay = 0.5;
    loop.config.train.lr_decay_steps = 1;
    loop.config.train.ema_decay = 0;
    loop.config.output.log_steps = 0;
    loop.config.output.validate_steps = 100;
    loop.config.output.progress = false;
    loop.config.cluster.task_index = 5;
    model_layout(&loop.model, &loop.config.model);
    loop.dataset.train = (struct examples){.count = 10 * LOOP_BATCHES, .height = 2, .width = 2, .classes = 3};
    loop.dataset.validation = (struct examples){.count = 20, .height = 2, .width = 2, .classes = 3};
    strcpy(loop.dataset.description, "some data");
    loop.test.count = 30;
    loop.engine_table = (struct engine_table){.name = "fake", .describe = loop_describe};
    loop.engine.table = &loop.engine_table;
    loop.table = (struct updater_table){.join = loop_join,
                                        .look_for_end = loop_look_for_end,
                                        .step = loop_step,
                                        .save = loop_save,
                                        .hold = loop_hold,
                                        .release = loop_release,
                                        .settle = loop_settle,
                                        .finish = loop_finish,
                                        .conclude = loop_conclude,
                                        .record = loop_record};
    loop.updater.table = &loop.table;
    loop.training = (struct training){.updater = &loop.updater,
                                      .config = &loop.config,
                                      .model = &loop.model,
                                      .dataset = &loop.dataset,
                                      .engine = &loop.engine,
                                      .test = &loop.test,
                                      .digest = "digest",
                                      .begun_s = 90,
                                      .sharers = 1,
                                      .replicas = 1};
    loop.start.record = loop.info = (struct checkpoint_info){.validation_score = NAN, .best_score = NAN};
    loop.record = (struct updater_record){.best_score = NAN, .threshold = NAN};
    loop.now_s = 100;
    loop.step_s = 0.25;
    loop.stride = 1;
    loop.fails_at = loop.signal_at = LOOP_NEVER;
    loop.summary_steps = 2;
    loop.found[0] = (struct loop_found){.correct = 10, .images = 20, .loss = 1, .threshold = NAN};
    log_setup(LOG_TEXT, LOG_WARNING);
    return 0;
}

static inline int loop_tear_down(void **state)
{
    config_free(&loop.config);
    return 0;
}

/* Only what the loop does between its start and its end, and the end; without the observer's lines. */
static inline int loop_run(const char **story_of_it)
{
    static char kept[64 * 1024];
    training_plan(&loop.training);
    const int status = training_run(&loop.training);
    char *to = kept;
    for (const char *line = told(); *line != '\0';) {
        const size_t size = strcspn(line, "\n") + 1;
        if (strncmp(line, "observed step", strlen("observed step")) != 0) {
            memcpy(to, line, size);
            to += size;
        }
        line += size;
    }
    *to = '\0';
    *story_of_it = kept;
    return status;
}

#endif
