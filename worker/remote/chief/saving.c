/* The thread that saves: by time and by steps, unless a rollout holds checkpoints back; and what a rollout wants of it. */
#include "base/clock.h"
#include "base/log.h"
#include "base/profile.h"
#include "worker/remote/chief/internal.h"
#include "worker/remote/shard_link.h"

static const double LOOK_S = 0.02; /* the saving thread looks at clock and step so often */
static const double RATE_S = 0.2;  /* steps per second are measured over so long, at least */

static void measure_rate(struct chief *chief, int64_t step)
{
    double now_s = clock_monotonic_s(), seconds = now_s - chief->rate_s;
    if (seconds >= RATE_S) {
        chief->steps_per_s = (double)(step - chief->rate_step) / seconds;
        chief->rate_step = step;
        chief->rate_s = now_s;
    }
}

/* Saves what is there, of whatever step. Locked. */
static void save_now(struct chief *chief)
{
    struct error error;
    int64_t step;
    if (chief_take_now(chief, ~0u, false, &step, &error) == PUSH_PULL_DONE) {
        chief_save_taken(chief, step);
    }
}

static void save_what_is_due(struct chief *chief, int64_t step)
{
    if (chief->holds || step >= chief->plan.last_step) {
        return; /* the end is at hand, and has a checkpoint of its own */
    }
    if (chief->order.number == 0) {
        chief_order_next(chief);
    } else if (step >= chief->order.step && !chief_collect_order(chief)) {
        save_now(chief); /* steps that follow one another so fast can't be had one by one */
    }
    if (supervisor_is_time_to_save(&chief->supervisor, step, clock_monotonic_s())) {
        chief_settle_order(chief);
        save_now(chief);
    }
}

static void *save_on(void *context)
{
    struct chief *chief = context;
    profile_thread("checkpoints");
    while (!atomic_load(&chief->end)) {
        int64_t step = atomic_load(&chief->global_step);
        pthread_mutex_lock(&chief->mutex);
        measure_rate(chief, step);
        save_what_is_due(chief, step);
        pthread_mutex_unlock(&chief->mutex);
        shard_link_pause(clock_monotonic_s() + LOOK_S);
    }
    return NULL;
}

void chief_start_saving(struct chief *chief)
{
    if (chief->has_folder && !chief->saves) {
        chief->saves = pthread_create(&chief->thread, NULL, save_on, chief) == 0;
        if (!chief->saves) {
            log_warning("no thread to save checkpoints: only the last one will be kept");
        }
    }
}

void chief_stop_saving(struct chief *chief)
{
    if (chief->saves) {
        atomic_store(&chief->end, true);
        pthread_join(chief->thread, NULL);
        chief->saves = false;
        atomic_store(&chief->end, false); /* it begins anew if training does */
    }
}

/* ---- Rollouts ---- */

bool chief_checkpoint(struct chief *chief, struct error *error)
{
    int64_t step;
    bool done = false;
    if (!chief->has_folder) {
        return error_set(error, "worker 0 has no train_dir, so there would be no checkpoint to go back to: give it one "
                                "by --train_dir");
    }
    pthread_mutex_lock(&chief->mutex);
    chief_settle_order(chief);
    if (chief_take_now(chief, ~0u, false, &step, error) == PUSH_PULL_DONE) {
        done =
            chief_state_is_finite(chief) || error_set(error, "the model is not finite at step %lld", (long long)step);
        bool failed = chief->checkpoint_failed;
        if (done) {
            chief->checkpoint_failed = false;
            chief_write_checkpoint(chief, CHECKPOINT_MODEL, step);
            done = !chief->checkpoint_failed || error_set(error, "the checkpoint to go back to could not be written");
        }
        chief->checkpoint_failed |= failed;
    }
    chief->holds = done;
    chief->order.number = 0;
    pthread_mutex_unlock(&chief->mutex);
    return done;
}

void chief_settle(struct chief *chief)
{
    pthread_mutex_lock(&chief->mutex);
    chief->holds = false;
    pthread_mutex_unlock(&chief->mutex);
}

void chief_retime(struct chief *chief, const struct config_output *output, const struct plan *plan)
{
    pthread_mutex_lock(&chief->mutex);
    chief->plan = *plan;
    chief->output.save_steps = output->save_steps;
    chief->output.save_model_secs = output->save_model_secs;
    chief->output.max_to_keep = output->max_to_keep;
    chief->output.keep_every_n_hours = output->keep_every_n_hours;
    supervisor_retime(&chief->supervisor, &chief->output);
    chief->order.number = 0;
    chief->ordered = -1;
    pthread_mutex_unlock(&chief->mutex);
}
