/* Decisions only: the caller has the clock, the disk and the engine. */
#include "ps/checkpoint/supervisor.h"

#include <assert.h>
#include <math.h>

void supervisor_begin(struct supervisor *supervisor, const struct config_output *config, int64_t step, double now_s)
{
    *supervisor = (struct supervisor){
        .save_steps = config->save_steps,
        .save_secs = config->save_model_secs,
        .last_save_s = now_s,
        .last_save_step = step,
    };
}

void supervisor_retime(struct supervisor *supervisor, const struct config_output *config)
{
    supervisor->save_steps = config->save_steps;
    supervisor->save_secs = config->save_model_secs;
}

/* Has a multiple of save_steps been reached since the last checkpoint? */
static bool due_by_steps(const struct supervisor *supervisor, int64_t step)
{
    return supervisor->save_steps > 0 &&
           step / supervisor->save_steps > supervisor->last_save_step / supervisor->save_steps;
}

static bool due_by_time(const struct supervisor *supervisor, double now_s)
{
    return supervisor->save_secs > 0.0 && now_s - supervisor->last_save_s >= supervisor->save_secs;
}

bool supervisor_is_time_to_save(const struct supervisor *supervisor, int64_t step, double now_s)
{
    return !supervisor->saving && supervisor_is_unsaved(supervisor, step) && due_by_time(supervisor, now_s);
}

bool supervisor_should_save(const struct supervisor *supervisor, int64_t step, double now_s)
{
    return supervisor_is_time_to_save(supervisor, step, now_s) ||
           (!supervisor->saving && supervisor_is_unsaved(supervisor, step) && due_by_steps(supervisor, step));
}

bool supervisor_is_unsaved(const struct supervisor *supervisor, int64_t step)
{
    return supervisor->failed || step != supervisor->last_save_step;
}

void supervisor_save_began(struct supervisor *supervisor, int64_t step, double now_s)
{
    assert(!supervisor->saving);
    supervisor->saving = true;
    supervisor->failed = false;
    supervisor->last_save_step = step;
    supervisor->last_save_s = now_s;
}

void supervisor_save_ended(struct supervisor *supervisor, bool written)
{
    assert(supervisor->saving);
    supervisor->saving = false;
    supervisor->failed = !written;
}

int64_t supervisor_steps_to_save(const struct supervisor *supervisor, int64_t step)
{
    return supervisor->save_steps > 0 ? supervisor->save_steps - step % supervisor->save_steps : INT64_MAX;
}

void supervisor_retain(struct kept_checkpoint *checkpoints, int count, const struct config_output *config)
{
    double period_s = config->keep_every_n_hours * 3600.0;
    double newest_period = -INFINITY; /* one of which a checkpoint is kept permanently */
    for (int i = 0; i < count; i++) {
        double period = period_s > 0.0 ? floor(checkpoints[i].written_s / period_s) : -INFINITY;
        checkpoints[i].keep = config->max_to_keep == 0 || count - i <= config->max_to_keep || period > newest_period;
        newest_period = fmax(newest_period, period);
    }
}
