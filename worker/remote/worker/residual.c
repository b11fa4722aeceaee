/*
 * The residual of packed gradients, in files: saved at the steps of checkpoints, after each round (rounds take much
 * longer), and when this process ends.
 *
 * In synchronous training it is saved before the push that makes such a step: whichever checkpoint of it exists, the
 * files of all workers are there, and training continues from it with the same bits.
 */
#include <string.h>

#include "base/log.h"
#include "worker/remote/worker/internal.h"

static struct outbox_residual *residual_of(struct remote_worker *worker)
{
    return worker->pipeline ? pipeline_outbox(worker->pipeline)->residual : worker->outbox.residual;
}

static bool is_kept(struct remote_worker *worker)
{
    return residual_of(worker) && worker->residual_files.folder[0] != '\0';
}

bool worker_recall_residual(struct remote_worker *worker, struct error *error)
{
    struct outbox_residual *residual = residual_of(worker);
    const int64_t step = worker->training.global_step;
    int64_t found = -1;
    if (!residual || worker->residual_of == worker->exchange.generation) {
        return true; /* this process still has it */
    }
    worker->residual_of = worker->exchange.generation;
    if (is_kept(worker) && !residual_files_load(&worker->residual_files, step, residual->now, &found, error)) {
        return false;
    }
    if (found < 0) {
        memset(residual->now, 0, worker->model.float_count * sizeof *residual->now);
    } else {
        log_info("continues at step %lld with the unsent parts of pushes at step %lld", (long long)step,
                 (long long)found);
    }
    return true;
}

void worker_keep_residual(struct remote_worker *worker, int64_t step)
{
    struct error error;
    if (is_kept(worker) && !residual_files_save(&worker->residual_files, step, residual_of(worker)->now, &error)) {
        log_warning("the unsent parts of pushes are not saved: %s", error.text);
    }
}

void worker_keep_residual_if_due(struct remote_worker *worker, int64_t before, int64_t step)
{
    const int64_t every = worker->config.output.save_steps;
    if (worker->local || (every > 0 && before / every != step / every)) {
        worker_keep_residual(worker, step);
    }
}
