/*
 * What packed gradients leave behind, in files: kept at the steps of checkpoints, after each round, which takes so much
 * longer, and when this process leaves.
 *
 * In synchronous training it is kept before the push that makes such a step: whichever checkpoint there is of it, the
 * files of all workers are there, and training goes on from it with the same bits.
 */
#include <string.h>

#include "base/log.h"
#include "worker/remote/worker/internal.h"

static struct outbox_rest *rest_of(struct remote_worker *worker)
{
    return worker->pipeline ? pipeline_outbox(worker->pipeline)->rest : worker->outbox.rest;
}

static bool is_kept(struct remote_worker *worker)
{
    return rest_of(worker) && worker->left_over.folder[0] != '\0';
}

bool worker_recall_rest(struct remote_worker *worker, struct error *error)
{
    struct outbox_rest *rest = rest_of(worker);
    const int64_t step = worker->training.global_step;
    int64_t found = -1;
    if (!rest || worker->left_over_of == worker->exchange.generation) {
        return true; /* this process has it still */
    }
    worker->left_over_of = worker->exchange.generation;
    if (is_kept(worker) && !left_over_load(&worker->left_over, step, rest->now, &found, error)) {
        return false;
    }
    if (found < 0) {
        memset(rest->now, 0, worker->model.float_count * sizeof *rest->now);
    } else {
        log_info("continues at step %lld with the unsent parts of pushes at step %lld", (long long)step,
                 (long long)found);
    }
    return true;
}

void worker_keep_rest(struct remote_worker *worker, int64_t step)
{
    struct error error;
    if (is_kept(worker) && !left_over_save(&worker->left_over, step, rest_of(worker)->now, &error)) {
        log_warning("the unsent parts of pushes are not saved: %s", error.text);
    }
}

void worker_keep_rest_if_due(struct remote_worker *worker, int64_t before, int64_t step)
{
    const int64_t every = worker->config.output.save_steps;
    if (worker->local || (every > 0 && before / every != step / every)) {
        worker_keep_rest(worker, step);
    }
}
