/* The checkpoints of a run, as an updater knows them, and its best model so far. */
#include "worker/checkpoints.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "observe/observe.h"
#include "ps/checkpoint/folder.h"
#include "ps/store/rounds.h"
#include "ps/store/store.h"
#include "worker/report.h"
#include "worker/updater.h"

/* --- What is known of them --- */

/* The ledger of checkpoints: the same messages and events for every writer. */

void checkpoint_ledger_restored(struct checkpoint_ledger *ledger, const struct checkpoint_file *file)
{
    ledger->info = *checkpoint_file_info(file);
    snprintf(ledger->last, sizeof ledger->last, "%s", checkpoint_path(file));
    ledger->last_step = ledger->info.global_step;
    if (!isnan(ledger->info.best_score) && !checkpoint_folder_has_best(&ledger->folder)) {
        log_warning("the next validation finds the best model anew");
        ledger->info.best_score = NAN;
        ledger->info.best_step = ledger->info.global_step;
        ledger->info.bad_validations = 0;
    }
}

void checkpoint_ledger_new_data(struct checkpoint_ledger *ledger)
{
    struct checkpoint_info *info = &ledger->info;
    info->data_since = info->global_step;
    info->best_score = NAN;
    info->best_step = info->global_step;
    info->bad_validations = 0;
}

void checkpoint_ledger_note_rate(struct checkpoint_ledger *ledger, const struct config_train *train)
{
    struct checkpoint_info *info = &ledger->info;
    const double rate = train->learning_rate;
    if (info->retries > 0 && info->first_rate > 0 && info->first_rate != rate) {
        log_info("%s had its learning rate of %g lowered %d times; %g is set now and is used as it is", ledger->last,
                 info->first_rate, info->retries, rate);
        info->retries = 0;
    }
    info->first_rate = rate;
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

bool checkpoint_ledger_make_room(struct checkpoint_ledger *ledger, int64_t global_step)
{
    const bool is_worth_it = ledger->supervisor.failed && checkpoint_folder_make_room(&ledger->folder, global_step);
    ledger->failed = ledger->failed && !is_worth_it;
    return is_worth_it;
}

void checkpoint_ledger_record(const struct checkpoint_ledger *ledger, struct updater_record *record)
{
    const bool has_checkpoint = ledger->last[0] != '\0';
    *record = (struct updater_record){.best_score = ledger->info.best_score,
                                      .best_step = ledger->info.best_step,
                                      .threshold = ledger->info.has_threshold ? ledger->info.threshold : NAN,
                                      .temperature = ledger->info.temperature,
                                      .interval = ledger->info.interval,
                                      .checkpoint_failed = ledger->failed,
                                      .last_checkpoint = has_checkpoint ? ledger->last : NULL,
                                      .last_checkpoint_step = has_checkpoint ? ledger->last_step : -1};
}

/* --- The best model --- */

/* The copy has the vectors of a checkpoint, in the same layout. */

enum { SMALL_BYTES = 8 << 20 };

bool good_model_is_small(const struct model *model, const struct config_train *train)
{
    const struct config_train kept = outer_train(train);
    size_t vectors = 0;
    for (int v = 0; v < STORE_VECTORS; v++) {
        vectors += store_has_vector(&kept, (enum store_vector)v);
    }
    return vectors * model->float_count * sizeof(float) <= SMALL_BYTES;
}

void good_model_create(struct good_model *good, const struct model *model, const struct config_train *train, bool whole)
{
    good->train = outer_train(train);
    if (!whole) {
        good->train.optimizer = OPTIMIZER_SGD; /* which has no slots */
    }
    checkpoint_state_create(&good->state, model, &good->train);
}

void good_model_destroy(struct good_model *good)
{
    checkpoint_state_destroy(&good->state);
    *good = (struct good_model){.is_there = false};
}

bool good_model_keep(struct good_model *good, struct engine *engine, const struct checkpoint_info *record,
                     int64_t global_step, bool is_best, struct error *error)
{
    for (int v = 0; v < STORE_VECTORS; v++) {
        float *values = good->state.vectors[v];
        if (values &&
            !engine->table->read(engine, (enum store_vector)v, 0, good->state.model->float_count, values, error)) {
            return false;
        }
    }
    good->record = *record;
    good->global_step = global_step;
    good->is_there = true;
    good->is_best = is_best;
    return true;
}

static bool load(struct good_model *good, struct checkpoint_file *file, struct error *error)
{
    float *averages = good->state.vectors[STORE_AVERAGES];
    if (good->train.optimizer == OPTIMIZER_SGD) { /* whatever slots the file has */
        return checkpoint_load_parameters(file, good->state.model, CHECKPOINT_RAW,
                                          good->state.vectors[STORE_PARAMETERS], NULL, error) &&
               (!averages ||
                checkpoint_load_parameters(file, good->state.model, CHECKPOINT_AVERAGED, averages, NULL, error));
    }
    return checkpoint_load(file, &good->state, error);
}

void good_model_load(struct good_model *good, const struct checkpoint_info *record, const char *train_dir)
{
    char path[CHECKPOINT_MAX_PATH];
    struct checkpoint_file *file;
    struct error error;
    if (!file_join(path, sizeof path, train_dir, CHECKPOINT_BEST_NAME, &error) || !file_exists(path) ||
        checkpoint_open(&file, path, &error) != CHECKPOINT_OPENED) {
        return;
    }
    const struct checkpoint_info *info = checkpoint_file_info(file);
    const bool in_memory = good->state.memory;
    if (info->global_step == record->best_step && info->best_score == record->best_score) {
        /* A state that could be read only in part is none. */
        good->is_there = good->is_best = !in_memory || load(good, file, &error);
        good->record = *info;
        good->global_step = info->global_step;
    }
    checkpoint_close(file);
}

void good_model_copy(const struct good_model *good, struct checkpoint_state *state)
{
    checkpoint_state_copy(state, &good->state);
}

bool good_model_put(const struct good_model *good, struct engine *engine, struct error *error)
{
    return engine_put_vectors(engine, good->state.vectors, good->state.model->float_count, error);
}
