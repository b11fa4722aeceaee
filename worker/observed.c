/* From the loop's state to the numbers of a board. */
#include "worker/observed.h"

#include <math.h>
#include <stdio.h>

#include "observe/observe.h"
#include "ps/store/optimizer.h"
#include "worker/metrics.h"

void observed_start(const struct config *config, const char *digest, struct engine *engine, const struct plan *plan,
                    enum metric metric, const struct updater_start *start)
{
    const bool has_best = start->record.metric == METRIC_AUTO || start->record.metric == metric;
    char text[BOARD_TEXT];
    if (!observe_is_on()) {
        return;
    }
    engine->table->describe(engine, text, sizeof text);
    observe_run(&(struct observe_start_of_run){
        .engine = text,
        .digest = digest,
        .metric = config_metric_name(metric),
        .metric_rises = metric_rises(metric),
        .layers = config->model.layers,
        .layer_count = config->model.layer_count,
        .global_step = start->global_step,
        .last_step = plan->last_step == INT64_MAX ? -1 : plan->last_step,
        .config_version = config->fleet.version,
        .best_value = has_best ? start->record.best_score : (double)NAN,
        .best_step = start->record.best_step,
        .restored_from = start->restored_from,
    });
}

void observed_steps(const struct config *config, const struct plan *plan, int64_t global_step, int64_t local_step,
                    const struct train_result *done, double seconds)
{
    const struct config_train *train = &config->train;
    if (!observe_is_on()) {
        return;
    }
    const double batches = (double)global_step * (double)plan->batches_per_step;
    observe_steps(&(struct observe_steps){
        .global_step = global_step,
        .local_step = local_step,
        .steps = done->steps,
        .examples = done->images,
        .seconds = seconds,
        .loss_sum = done->loss_sum,
        .epoch = batches / (double)plan->epoch_batches,
        .learning_rate = schedule_learning_rate(train, global_step > 0 ? global_step - 1 : 0),
        .run_examples = (int64_t)(batches * train->batch_size),
    });
}

void observed_validation(const struct evaluation *evaluation, enum metric metric, const struct held_model *held)
{
    struct board_metric metrics[BOARD_METRICS] = {{.value = 0}};
    int count = 0;
    if (!observe_is_on()) {
        return;
    }
    for (int i = 0; i < METRICS && count < BOARD_METRICS; i++) {
        /* The one that decides comes first. */
        const enum metric each = (enum metric)(((int)metric + i) % METRICS);
        const double value = each == METRIC_AUTO || !metric_applies(each, evaluation->loss_kind)
                                 ? (double)NAN
                                 : evaluation_metric(evaluation, each);
        if (!isnan(value)) {
            snprintf(metrics[count].name, sizeof metrics[count].name, "%s", config_metric_name(each));
            metrics[count++].value = value;
        }
    }
    observe_validation(&(struct observe_validation){.global_step = held->global_step,
                                                    .metrics = metrics,
                                                    .metric_count = count,
                                                    .best_value = held->record->best_score,
                                                    .best_step = held->record->best_step});
}
