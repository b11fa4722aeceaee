/* A snapshot of the shards, held in the engine for as long as it takes to evaluate it. */
#include "worker/remote/chief/internal.h"

#include <math.h>

bool chief_state_to_engine(struct chief *chief, struct error *error)
{
    const bool averaged = chief->options.config->train.ema_decay > 0;
    float *const *all = chief->state.vectors;
    float *const wanted[STORE_VECTORS] = {
        [STORE_PARAMETERS] = all[STORE_PARAMETERS], [STORE_AVERAGES] = averaged ? all[STORE_AVERAGES] : NULL};
    return engine_put_vectors(chief->options.engine, wanted, chief->options.model->float_count, error);
}

enum chief_hold_result chief_hold(struct chief *chief, int64_t *global_step, struct checkpoint_info **record,
                                  struct error *error)
{
    /* All of it if it may turn out to be the best, and so worth keeping. */
    unsigned which = chief->has_folder ? ~(1u << STORE_TOLD) : 1u << STORE_PARAMETERS | 1u << STORE_AVERAGES;
    enum chief_hold_result result = CHIEF_NOT_NOW;
    chief_lock(chief);
    if (chief_take_now(chief, which, false, &chief->held_step, error) == EXCHANGE_OK) {
        result = chief_state_to_engine(chief, error) ? CHIEF_HELD : CHIEF_HOLD_FAILED;
    }
    if (result != CHIEF_HELD) {
        pthread_mutex_unlock(&chief->mutex);
        return result;
    }
    *global_step = chief->held_step;
    *record = &chief->ledger.info;
    return CHIEF_HELD;
}

void chief_release(struct chief *chief, bool is_best)
{
    if (is_best && chief->has_folder) {
        chief_write_checkpoint(chief, CHECKPOINT_BEST, chief->held_step);
    }
    chief->ledger.info.validation_score = NAN; /* of the next checkpoint, which is of another step */
    pthread_mutex_unlock(&chief->mutex);
}
