/* Starts and ends the chief; its work in between is in worker/remote/chief/. */
#include "worker/remote/chief.h"

#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/condition.h"
#include "net/handshake.h"
#include "ps/rollout/history.h"
#include "ps/store/rounds.h"
#include "ps/store/codec.h"
#include "worker/remote/chief/internal.h"
#include "worker/remote/chief/transfer.h"

enum { END_S = 10 /* time to reach a ps whose link breaks as the job ends */ };

static void create_locks(struct chief *chief)
{
    pthread_mutex_init(&chief->mutex, NULL);
    pthread_mutex_init(&chief->wake_mutex, NULL);
    condition_create(&chief->wake);
}

/* The sent model is not part of the model: it lies beside the checkpoints (ps/store/codec.h). */
static bool create_sent_model(struct chief *chief, const struct config *config, struct error *error)
{
    const size_t floats = chief->options.model->float_count;
    if (!sent_model_is_kept(&config->cluster) || config->output.train_dir[0] == '\0') {
        return true;
    }
    chief->sent_model = calloc(floats, sizeof *chief->sent_model);
    chief->state.vectors[STORE_SENT] = chief->sent_model;
    chief->sent_files =
        (struct residual_files){config->output.train_dir, RESIDUAL_FILES_SENT, floats, config->output.save_steps};
    return chief->sent_model || error_set(error, "out of memory for the sent model");
}

bool chief_create(struct chief **out, const struct chief_options *options, struct error *error)
{
    const struct config *config = options->config;
    struct chief *chief = calloc(1, sizeof *chief);
    if (!chief) {
        return error_set(error, "out of memory for the chief");
    }
    chief->options = *options;
    chief->output = config->output;
    chief->train = outer_train(&config->train);
    chief->plan = *options->plan;
    chief->ledger.info = (struct checkpoint_info){.validation_score = NAN, .best_score = NAN};
    atomic_init(&chief->holds, lineage_is_fresh(config));
    chief->snapshots = handshake_new_incarnation() >> 1;
    chief->ordered = -1;
    atomic_init(&chief->wake_step, INT64_MAX);
    create_locks(chief);
    struct push_pull_options exchange = {.config = config,
                                         .model = options->model,
                                         .engine = options->engine,
                                         .identity = options->identity,
                                         .traffic = options->traffic,
                                         .given_up = options->given_up,
                                         .context = options->context};
    bool done = push_pull_create(&chief->shards, &exchange, error) &&
                checkpoint_state_create(&chief->state, options->model, &chief->train, error) &&
                create_sent_model(chief, config, error);
    if (done && config->output.train_dir[0] != '\0') {
        chief->has_folder = done =
            checkpoint_folder_open(&chief->ledger.folder, config->output.train_dir, &chief->output, error);
    }
    if (!done) {
        chief_destroy(chief);
        return false;
    }
    *out = chief;
    return true;
}

void chief_destroy(struct chief *chief)
{
    if (chief) {
        chief_stop_saving(chief);
        push_pull_destroy(&chief->shards);
        checkpoint_state_destroy(&chief->state);
        free(chief->sent_model);
        if (chief->has_folder) {
            checkpoint_folder_close(&chief->ledger.folder);
        }
        pthread_cond_destroy(&chief->wake);
        pthread_mutex_destroy(&chief->wake_mutex);
        pthread_mutex_destroy(&chief->mutex);
        free(chief);
    }
}

void chief_note_step(struct chief *chief, int64_t global_step)
{
    atomic_store(&chief->global_step, global_step);
    if (global_step >= atomic_load(&chief->wake_step)) {
        atomic_store(&chief->wake_step, INT64_MAX); /* once is enough */
        chief_wake(chief);
    }
}

/* --- The end --- */

/* Leaves the chief locked. */
static enum exchange_result save_last(struct chief *chief, int64_t *global_step, struct error *error)
{
    chief_stop_saving(chief);
    chief_lock(chief);
    chief_collect_last(chief);
    const enum exchange_result end = chief_take_last(chief, global_step, error);
    if (end == EXCHANGE_OK && chief->has_folder && supervisor_is_unsaved(&chief->ledger.supervisor, *global_step)) {
        chief_save_taken(chief, *global_step);
    }
    return end;
}

enum exchange_result chief_save_last(struct chief *chief, int64_t *global_step, struct error *error)
{
    const enum exchange_result end = save_last(chief, global_step, error);
    pthread_mutex_unlock(&chief->mutex);
    return end;
}

enum exchange_result chief_finish(struct chief *chief, int64_t *global_step, struct error *error)
{
    enum exchange_result end = save_last(chief, global_step, error);
    if (end == EXCHANGE_OK && !chief_state_to_engine(chief, error)) {
        end = EXCHANGE_FAILED;
    }
    pthread_mutex_unlock(&chief->mutex);
    return end;
}

bool chief_end_job(struct chief *chief, bool failed, double test_accuracy, const char *why, struct error *error)
{
    struct message_end_job message = {.job_state = failed ? JOB_FAILED : JOB_DONE,
                                      .global_step = atomic_load(&chief->global_step),
                                      .test_accuracy = (float)test_accuracy,
                                      .message = why};
    chief_lock(chief);
    bool notified = transfer_end_job(&chief->shards, &message, clock_monotonic_s() + END_S, error);
    pthread_mutex_unlock(&chief->mutex);
    return notified;
}

void chief_record(struct chief *chief, struct updater_record *record)
{
    chief_lock(chief);
    checkpoint_ledger_record(&chief->ledger, record);
    pthread_mutex_unlock(&chief->mutex);
}
