/*
 * How the model gets into the shards: if not all of them hold it, it is written again as a new generation, from the
 * newest good checkpoint or as a new model.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/process/signals.h"
#include "ps/rollout/history.h"
#include "worker/data/table/schema.h"
#include "worker/initial.h"
#include "worker/remote/chief/internal.h"
#include "worker/remote/chief/transfer.h"
#include "worker/remote/exchange/preprocessing.h"

/* A checkpoint that a rollout starts from or goes back to is restored as far as it fits. */
static bool load_state(struct chief *chief, struct checkpoint_file *file, struct error *error)
{
    const struct config *config = chief->options.config;
    char lost[512];
    bool may_lose = false;
    if (checkpoint_load(file, &chief->state, error)) {
        return true;
    }
    if (!lineage_adopts(config, checkpoint_file_info(file)->config_digest, &may_lose)) {
        return false;
    }
    if (!initial_load_fitting(file, config, &chief->state, lost, sizeof lost, error)) {
        return false;
    }
    if (lost[0] != '\0' && !may_lose) {
        return error_set(error, "%.200s: this config would lose %.500s", checkpoint_path(file), lost);
    }
    log_info("%s is used as far as it fits%s%s", checkpoint_path(file), lost[0] != '\0' ? "; dropped: " : "", lost);
    return true;
}

/*
 * Loads the newest good checkpoint, or makes a new model; source: in words. load: the state too, not only the counters.
 */
static bool find_state(struct chief *chief, bool load, char *source, size_t size, struct error *error)
{
    const struct config *config = chief->options.config;
    struct checkpoint_file *file = NULL;
    if (chief->has_folder && !checkpoint_folder_newest(&chief->ledger.folder, &file, error)) {
        return false;
    }
    bool done = true;
    if (file) {
        bool is_new, may_lose;
        const bool adopts = lineage_adopts(config, checkpoint_file_info(file)->config_digest, &may_lose);
        done = initial_fits(file, chief->options.dataset, config, adopts, &is_new, error) &&
               (!load || load_state(chief, file, error));
        checkpoint_ledger_restored(&chief->ledger, file);
        if (is_new) {
            checkpoint_ledger_new_data(&chief->ledger);
        }
        snprintf(source, size, "restored from %.200s", chief->ledger.last);
        checkpoint_close(file);
    } else if (load) {
        chief->ledger.info.global_step = 0;
        done = initial_state(config, &chief->state, source, size, error);
    }
    initial_record(&chief->ledger.info, config, chief->options.dataset);
    memcpy(chief->ledger.info.config_digest, chief->options.identity->digest, sizeof chief->ledger.info.config_digest);
    return done;
}

bool chief_preprocessing(char **text, const struct config *config, struct error *error)
{
    struct checkpoint_file *file = NULL;
    *text = NULL;
    if (config->output.train_dir[0] == '\0' || !file_exists(config->output.train_dir)) {
        return true;
    }
    if (!checkpoint_folder_find(config->output.train_dir, &file, error)) {
        return false;
    }
    const char *known = file ? checkpoint_file_info(file)->preprocessing : NULL;
    *text = known ? strdup(known) : NULL;
    checkpoint_close(file);
    return !known || *text || error_set(error, "out of memory for the preprocessing");
}

/* Do all shards hold the model, of one generation? newest: the latest generation that any of them knows. */
static bool is_whole(const struct chief *chief, const struct shard_status *status, uint32_t *newest, int64_t *step)
{
    bool whole = true;
    *newest = 0;
    *step = 0;
    for (int i = 0; i < chief->shards.count; i++) {
        *newest = generation_is_later(status[i].generation, *newest) ? status[i].generation : *newest;
        *step = status[i].global_step > *step ? status[i].global_step : *step;
        whole = whole && status[i].ready && !status[i].over && status[i].generation == status[0].generation;
    }
    return whole;
}

/* Later than whatever all ps have forgotten, so that pushes of a lost generation are not taken for the new one's. */
static uint32_t next_generation(const struct chief *chief, uint32_t newest)
{
    return generation_after(generation_is_later(newest, chief->generation) ? newest : chief->generation);
}

/* Steps to save are counted from `saved` on. Locked. */
static void begin_supervising(struct chief *chief, int64_t saved)
{
    supervisor_begin(&chief->ledger.supervisor, &chief->output, saved, clock_monotonic_s());
    chief->ordered = -1;
}

/* Loads the sent model of that step; without it workers are sent the complete model. */
static bool recall_sent_model(struct chief *chief, struct error *error)
{
    const int64_t step = chief->ledger.info.global_step;
    int64_t found = -1;
    if (!chief->sent_model) {
        return true;
    }
    if (chief->has_folder && !residual_files_load(&chief->sent_files, step, chief->sent_model, &found, error)) {
        return false;
    }
    if (found != step) {
        memcpy(chief->sent_model, chief->state.vectors[STORE_PARAMETERS],
               chief->sent_files.count * sizeof *chief->sent_model);
    }
    if (found != step && step > 0) {
        log_warning("the sent model of step %lld is missing: workers are sent the complete model", (long long)step);
    }
    return true;
}

static enum exchange_result write_shards(struct chief *chief, uint32_t generation, struct chief_start *start,
                                         struct error *error)
{
    char source[256] = "";
    if (!find_state(chief, true, source, sizeof source, error) || !recall_sent_model(chief, error)) {
        return EXCHANGE_FAILED;
    }
    start->global_step = chief->ledger.info.global_step;
    start->restored_from = chief->ledger.last[0] != '\0' ? chief->ledger.last : NULL;
    chief->generation = generation;
    if (generation > 1) {
        log_info("generation %u of the model begins at step %lld, %s", generation, (long long)start->global_step,
                 source);
    }
    struct transfer_place place = {.global_step = start->global_step, .epoch_batches = chief->plan.epoch_batches};
    enum exchange_result end = transfer_restore(&chief->shards, generation, &chief->state, source, error);
    if (end != EXCHANGE_OK) {
        return end;
    }
    chief->order_count = 0; /* the shards have forgotten them */
    begin_supervising(chief, start->global_step);
    chief_order_ahead(chief, start->global_step); /* now, before any shard can be past any of them */
    return transfer_end_restore(&chief->shards, &place, error);
}

static enum exchange_result begin_once(struct chief *chief, struct shard_status *status, struct chief_start *start,
                                       struct error *error)
{
    const struct dataset *dataset = chief->options.dataset;
    uint32_t newest = 0;
    char source[256];
    *start = (struct chief_start){.resumed = false};
    enum exchange_result end = transfer_status(&chief->shards, status, error);
    if (end == EXCHANGE_OK) {
        start->resumed = is_whole(chief, status, &newest, &start->global_step);
        end = start->resumed ? preprocessing_check(&chief->shards, dataset, error) : end;
    }
    end = end == EXCHANGE_OK ? preprocessing_tell(&chief->shards, dataset, error) : end;
    if (end != EXCHANGE_OK) {
        return end;
    }
    if (!start->resumed) {
        return write_shards(chief, next_generation(chief, newest), start, error);
    }
    chief->order_count = newest == chief->generation ? chief->order_count : 0;
    chief->shards.generation = chief->generation = newest;
    if (!find_state(chief, false, source, sizeof source, error)) {
        return EXCHANGE_FAILED;
    }
    begin_supervising(chief, chief->ledger.info.global_step);
    chief_order_ahead(chief, start->global_step);
    return EXCHANGE_OK;
}

enum exchange_result chief_begin(struct chief *chief, struct chief_start *start, struct error *error)
{
    struct shard_status *status = calloc((size_t)chief->shards.count, sizeof *status);
    enum exchange_result end = EXCHANGE_FAILED;
    if (!status) {
        error_set(error, "out of memory for the chief");
        return end;
    }
    chief_lock(chief);
    do {
        end = begin_once(chief, status, start, error);
    } while (end == EXCHANGE_REJOIN && signals_pending() == 0);
    free(status);
    if (end == EXCHANGE_OK) {
        atomic_store(&chief->global_step, start->global_step);
        start->record = chief->ledger.info;
    }
    pthread_mutex_unlock(&chief->mutex);
    if (end == EXCHANGE_OK) {
        chief_start_saving(chief);
    }
    return end == EXCHANGE_REJOIN ? EXCHANGE_STOPPED : end;
}

bool chief_restore(struct chief *chief, struct error *error)
{
    struct shard_status *status = calloc((size_t)chief->shards.count, sizeof *status);
    struct chief_start start = {0};
    if (!status) {
        return error_set(error, "out of memory for the chief");
    }
    chief_lock(chief);
    enum exchange_result end = transfer_status(&chief->shards, status, error);
    if (end == EXCHANGE_OK) {
        uint32_t newest;
        int64_t step;
        is_whole(chief, status, &newest, &step);
        end = write_shards(chief, next_generation(chief, newest), &start, error);
    }
    if (end == EXCHANGE_OK) {
        atomic_store(&chief->global_step, start.global_step);
        atomic_store(&chief->holds, false);
    }
    pthread_mutex_unlock(&chief->mutex);
    free(status);
    return end == EXCHANGE_OK || (end == EXCHANGE_FAILED ? false : error_set(error, "some ps is missing"));
}
