/* The ledger of checkpoints: the same messages and events for every writer. */
#include "worker/checkpoint_ledger.h"

#include <math.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "observe/observe.h"
#include "worker/report.h"

void checkpoint_ledger_restored(struct checkpoint_ledger *ledger, const struct checkpoint_file *file)
{
    ledger->info = *checkpoint_file_info(file);
    snprintf(ledger->last, sizeof ledger->last, "%s", checkpoint_path(file));
    ledger->last_step = ledger->info.global_step;
}

void checkpoint_ledger_new_data(struct checkpoint_ledger *ledger)
{
    struct checkpoint_info *info = &ledger->info;
    info->data_since = info->global_step;
    info->best_score = NAN;
    info->best_step = info->global_step;
    info->bad_validations = 0;
}

void checkpoint_ledger_begin(struct checkpoint_ledger *ledger, int targets, int64_t global_step)
{
    if (targets & CHECKPOINT_MODEL) {
        supervisor_save_began(&ledger->supervisor, global_step, clock_monotonic_s());
    }
}

static void note_written(struct checkpoint_ledger *ledger, const struct checkpoint_report *saved, bool quiet)
{
    const int64_t step = saved->info.global_step;
    for (int target = CHECKPOINT_MODEL; target <= CHECKPOINT_BEST; target *= 2) {
        if (saved->targets & target) {
            char path[CHECKPOINT_MAX_PATH];
            checkpoint_folder_name(&ledger->folder, (enum checkpoint_target)target, step, path);
            report_checkpoint(&(struct report_checkpoint){
                .path = path, .global_step = step, .is_best = target == CHECKPOINT_BEST, .quiet = quiet});
        }
    }
    if (saved->targets & CHECKPOINT_BEST) {
        char path[CHECKPOINT_MAX_PATH];
        checkpoint_folder_name(&ledger->folder, CHECKPOINT_BEST, step, path);
        observe_best_saved(path, step);
    }
    if (saved->targets & CHECKPOINT_MODEL) {
        checkpoint_folder_name(&ledger->folder, CHECKPOINT_MODEL, step, ledger->last);
        ledger->last_step = step;
        observe_saved(ledger->last, step, saved->seconds);
    }
}

void checkpoint_ledger_done(struct checkpoint_ledger *ledger, const struct checkpoint_report *saved,
                            const struct error *failure, bool quiet)
{
    if (saved->targets & CHECKPOINT_MODEL) {
        supervisor_save_ended(&ledger->supervisor, !failure);
    }
    if (!failure) {
        note_written(ledger, saved, quiet);
        return;
    }
    ledger->failed = true;
    observe_save_failed(failure->text);
    log_error("%s; training continues, and this run will end with status 1", failure->text);
}

void checkpoint_ledger_record(const struct checkpoint_ledger *ledger, struct updater_record *record)
{
    const bool has_checkpoint = ledger->last[0] != '\0';
    *record = (struct updater_record){.best_score = ledger->info.best_score,
                                      .best_step = ledger->info.best_step,
                                      .threshold = ledger->info.has_threshold ? ledger->info.threshold : NAN,
                                      .checkpoint_failed = ledger->failed,
                                      .last_checkpoint = has_checkpoint ? ledger->last : NULL,
                                      .last_checkpoint_step = has_checkpoint ? ledger->last_step : -1};
}
