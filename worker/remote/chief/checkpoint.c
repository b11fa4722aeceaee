/* What was taken of the shards, on its way into train_dir. */
#include <math.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "worker/remote/chief/internal.h"
#include "worker/report.h"

bool chief_state_is_finite(const struct chief *chief)
{
    for (int v = 0; v < STORE_VECTORS; v++) {
        const float *values = chief->state.vectors[v];
        for (size_t i = 0; values && i < chief->options.model->float_count; i++) {
            if (!isfinite(values[i])) {
                return false;
            }
        }
    }
    return true;
}

void chief_write_checkpoint(struct chief *chief, int targets, int64_t global_step)
{
    struct error error;
    struct checkpoint_info info = chief->info;
    const struct hello_identity *now = identity_hello(chief->options.identity);
    char path[CHECKPOINT_MAX_PATH];
    info.global_step = global_step;
    info.fleet_version = (int64_t)now->fleet_version;
    snprintf(info.config_digest, sizeof info.config_digest, "%s", now->digest);
    if (targets & CHECKPOINT_MODEL) {
        supervisor_save_began(&chief->supervisor, global_step, clock_monotonic_s());
    }
    bool written = checkpoint_folder_save(&chief->folder, targets, &chief->state, &info, &error);
    if (targets & CHECKPOINT_MODEL) {
        supervisor_save_ended(&chief->supervisor, written);
    }
    if (!written) {
        chief->checkpoint_failed = true;
        log_error("%s; training goes on, and this run will end with status 1", error.text);
        return;
    }
    for (int target = CHECKPOINT_MODEL; target <= CHECKPOINT_BEST; target *= 2) {
        if (targets & target) {
            checkpoint_folder_name(&chief->folder, (enum checkpoint_target)target, global_step, path);
            report_checkpoint(&(struct report_checkpoint){
                .path = path, .global_step = global_step, .is_best = target == CHECKPOINT_BEST});
        }
    }
    if (targets & CHECKPOINT_MODEL) {
        checkpoint_folder_name(&chief->folder, CHECKPOINT_MODEL, global_step, chief->last_checkpoint);
    }
}

void chief_save_taken(struct chief *chief, int64_t global_step)
{
    if (chief_state_is_finite(chief)) {
        chief_write_checkpoint(chief, CHECKPOINT_MODEL, global_step);
    } else {
        log_warning("the model is not finite any more at step %lld: it is not saved", (long long)global_step);
    }
}
