/* Validations of the shards' state, and what follows from them. */
#include <math.h>

#include "base/profile.h"
#include "worker/remote/chief/internal.h"
#include "worker/report.h"

static bool averaged(const struct chief *chief)
{
    return chief->options.config->train.ema_decay > 0;
}

bool chief_state_to_engine(struct chief *chief, struct error *error)
{
    struct engine *engine = chief->options.engine;
    size_t floats = chief->options.model->float_count;
    return engine->table->write(engine, STORE_PARAMETERS, 0, floats, chief->state.vectors[STORE_PARAMETERS], error) &&
           (!averaged(chief) ||
            engine->table->write(engine, STORE_AVERAGES, 0, floats, chief->state.vectors[STORE_AVERAGES], error));
}

enum chief_verdict chief_verdict(const struct chief *chief)
{
    const struct config_train *train = &chief->options.config->train;
    if (train->target_accuracy > 0 && chief->info.best_accuracy >= train->target_accuracy) {
        return CHIEF_TARGET;
    }
    return train->patience > 0 && chief->info.bad_validations >= train->patience ? CHIEF_PATIENCE : CHIEF_GO_ON;
}

static enum chief_verdict judge(struct chief *chief, int64_t step, struct error *error)
{
    PROFILE("validate");
    struct evaluation *evaluation = &chief->evaluation;
    struct checkpoint_info *info = &chief->info;
    if (!evaluate(evaluation, chief->options.engine, averaged(chief), &chief->options.dataset->validation, error)) {
        return CHIEF_FAILED;
    }
    if (!isfinite(evaluation->loss)) {
        error_set(error,
                  "the validation loss is %g at step %lld: training stops here; lower --learning_rate and start again",
                  report_number(evaluation->loss), (long long)step);
        return CHIEF_FAILED;
    }
    info->validation_accuracy = evaluation_accuracy(evaluation);
    bool is_best = info->validation_accuracy > info->best_accuracy;
    if (is_best) {
        info->best_accuracy = info->validation_accuracy;
        info->best_step = step;
    }
    info->bad_validations = is_best ? 0 : info->bad_validations + 1;
    report_validation(&(struct report_validation){.epoch = plan_epoch(&chief->plan, step),
                                                  .global_step = step,
                                                  .accuracy = info->validation_accuracy,
                                                  .loss = evaluation->loss,
                                                  .best_accuracy = info->best_accuracy,
                                                  .best_step = info->best_step});
    summary_validation(chief->summary, step, info->validation_accuracy, evaluation->loss);
    if (is_best && chief->has_folder) {
        chief_write_checkpoint(chief, CHECKPOINT_BEST, step);
    }
    info->validation_accuracy = -1; /* of the next checkpoint, which is of another step */
    return chief_verdict(chief);
}

enum chief_verdict chief_validate(struct chief *chief, struct error *error)
{
    enum chief_verdict verdict = CHIEF_GO_ON;
    int64_t step = 0;
    unsigned which = chief->has_folder ? ~0u : 1u << STORE_PARAMETERS | 1u << STORE_AVERAGES;
    chief_lock(chief);
    /* Shards that can't be read now will be waited for by the next push; the next validation is not far. */
    if (chief_take_now(chief, which, false, &step, error) == PUSH_PULL_DONE) {
        verdict = chief_state_to_engine(chief, error) ? judge(chief, step, error) : CHIEF_FAILED;
    }
    pthread_mutex_unlock(&chief->mutex);
    return verdict;
}
