/*
 * Validation on each worker's own rows: all evaluate the model of one step, which they have anyway, and the chief adds
 * up the results.
 */
#include <math.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/profile.h"
#include "worker/evaluation_part.h"
#include "worker/metrics.h"
#include "worker/remote/exchange/validations.h"
#include "worker/remote/worker/internal.h"
#include "worker/validation_sum.h"

struct own_rows_validation {
    uint8_t *bytes;            /* the report */
    struct validation_sum sum; /* the chief's */
    bool has_warned;
};

void worker_destroy_validation(struct remote_worker *worker)
{
    struct own_rows_validation *validation = worker->validation;
    if (validation) {
        free(validation->bytes);
        validation_sum_destroy(&validation->sum);
        free(validation);
        worker->validation = NULL;
    }
}

/* After an evaluation, whose size is known. */
static bool create(struct remote_worker *worker)
{
    const struct evaluation *evaluation = &worker->training.evaluation;
    if (worker->validation) {
        return true;
    }
    struct own_rows_validation *validation = calloc(1, sizeof *validation);
    if (!validation) {
        return error_set(&worker->training.error, "out of memory for validations");
    }
    worker->validation = validation;
    if (worker->chief) {
        return validation_sum_create(&validation->sum, evaluation, config_worker_room(&worker->config.cluster) + 1,
                                     &worker->training.error);
    }
    validation->bytes = malloc(evaluation_part_room(evaluation));
    return validation->bytes || error_set(&worker->training.error, "out of memory for validations");
}

static struct own_validation what_was_found(const struct remote_worker *worker, const struct evaluation *evaluation,
                                            int64_t step)
{
    const enum metric metric = worker->training.metric;
    return (struct own_validation){.step = step,
                                   .examples = evaluation->images,
                                   .score = evaluation->images > 0 ? evaluation_metric(evaluation, metric) : NAN,
                                   .rises = metric_rises(metric)};
}

/* For a worker that reports: failing to report does not end training. */
static bool tell(struct remote_worker *worker)
{
    struct own_rows_validation *validation = worker->validation;
    struct training *training = &worker->training;
    const struct own_validation own = what_was_found(worker, &training->evaluation, training->global_step);
    size_t size = evaluation_part_write(&training->evaluation, validation->bytes);
    if (size > VALIDATIONS_BYTES && !validation->has_warned) {
        validation->has_warned = true;
        log_warning("a validation takes %zu bytes, but a message holds %d: only its score is sent to worker 0", size,
                    VALIDATIONS_BYTES);
    }
    size = size > VALIDATIONS_BYTES ? 0 : size;
    const enum exchange_result end =
        validations_tell(&worker->exchange, &own, validation->bytes, size, &training->error);
    if (end == EXCHANGE_FAILED) {
        log_warning("a validation was not accepted: %s", training->error.text);
        return true;
    }
    return worker_take_end(worker, end);
}

bool worker_validate_if_due(struct remote_worker *worker, int64_t before)
{
    struct training *training = &worker->training;
    const struct plan *plan = &training->plan;
    const int64_t step = training->global_step;
    const bool is_due = step > before && (plan_validation_due(plan, before, step) || step >= plan->last_step);
    if (worker->chief || !is_due || !config_validates_together(&worker->config)) {
        return true;
    }
    PROFILE("validate");
    if (!create(worker) ||
        !evaluate(&training->evaluation, training->engine, false, &worker->dataset.validation, &training->error)) {
        return training_fail(training);
    }
    return tell(worker);
}

/* --- The chief --- */

/* The chief's own counts, before others are added. */
static void begin(void *context)
{
    struct own_rows_validation *validation = context;
    validation_sum_again(&validation->sum);
}

static void take(void *context, int worker, int64_t examples, double score, const uint8_t *bytes, size_t size)
{
    struct own_rows_validation *validation = context;
    const struct worker_score told = {worker, examples, score};
    struct error error = {"only its score is known"};
    const bool counts = size > 0 && validation_sum_add(&validation->sum, &told, bytes, size, &error);
    if (!counts && !validation->has_warned) {
        validation->has_warned = true;
        log_warning("the validation of worker %d does not count: %s", worker, error.text);
    }
}

bool worker_gather(struct updater *updater, int64_t global_step, enum metric metric, struct evaluation *evaluation,
                   struct validators *validators)
{
    struct remote_worker *worker = (struct remote_worker *)updater;
    struct training *training = &worker->training;
    const double deadline_s = worker->config.train.round_deadline_secs, lease_s = worker->config.cluster.lease_secs;
    *validators = (struct validators){.count = 0};
    if (!config_validates_together(&worker->config) || !isfinite(evaluation->loss)) {
        return true;
    }
    if (!create(worker)) {
        return training_fail(training);
    }
    struct own_rows_validation *validation = worker->validation;
    const struct own_validation own = what_was_found(worker, evaluation, global_step);
    validation_sum_begin(&validation->sum, evaluation, metric);
    const struct validations_taker taker = {begin, take, validation};
    const enum exchange_result end =
        validations_gather(&worker->exchange, &own, deadline_s > 0 ? fmin(deadline_s, lease_s) : lease_s, &taker,
                           &validators->missing, &training->error);
    validation_sum_end(&validation->sum, metric, validators);
    if (end == EXCHANGE_FAILED) {
        log_warning("the other workers' validations are missing: %s", training->error.text);
        return true;
    }
    return worker_take_end(worker, end);
}
