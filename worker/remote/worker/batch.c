/* Batches: from images in memory, from files, or from the chief. */
#include "ps/job/plan.h"
#include "worker/data/streaming/streaming.h"
#include "worker/remote/worker/internal.h"

bool worker_take_share(struct remote_worker *worker, struct error *error)
{
    const struct config *config = &worker->config;
    const struct examples *all = &worker->dataset.train;
    int workers = config->cluster.worker_hosts.count, index = config->cluster.task_index;
    worker->share = *all;
    if (config->data.data_sharding == SHARDING_DISJOINT) {
        int first = (int)((int64_t)all->count * index / workers);
        int end = (int)((int64_t)all->count * (index + 1) / workers);
        if (end - first < 1) {
            return error_set(error, "data.data_sharding disjoint: %d images are too few for %d workers", all->count,
                             workers);
        }
        worker->share = examples_part(all, first, end - first);
        if (worker->dataset.streaming) {
            streaming_take_share(worker->dataset.streaming, first, end - first);
        }
    }
    const struct sampler sampler = {.seed = (uint64_t)config->train.seed,
                                    .task = (uint32_t)index,
                                    .examples = (uint32_t)worker->share.count,
                                    .batch_size = (uint32_t)config->train.batch_size};
    return batch_source_create(&worker->source, &worker->share, worker->dataset.streaming, &sampler, error);
}

/*
 * In synchronous training what a worker draws is a function of the step, as it is for local training's micro-batches: a
 * worker that comes late or returns draws what it would have drawn if it had been there.
 */
static int64_t next_draw(const struct remote_worker *worker, int64_t number)
{
    return worker->config.cluster.issync ? worker->training.global_step * worker_step_batches(worker) + number
                                         : worker->first_draw + worker->training.local_step + number;
}

int64_t worker_step_batches(const struct remote_worker *worker)
{
    return round_batches(&worker->config.train, sampler_epoch_batches(&worker->source.sampler));
}

int64_t worker_fair_draws(const struct remote_worker *worker)
{
    const int64_t size = worker->config.train.buffer_size, pushes = size > 0 ? size : 1; /* of a step */
    const int64_t own = worker->training.global_step * pushes / worker->config.cluster.worker_hosts.count;
    return own * worker_step_batches(worker);
}

bool worker_draw(struct remote_worker *worker, int64_t number, struct batch *batch)
{
    const uint32_t task = worker->source.sampler.task;
    const int64_t step = next_draw(worker, number);
    struct error *error = &worker->training.error;
    if (!worker->fetcher) {
        return batch_source_draw(&worker->source, task, step, batch, error) || training_fail(&worker->training);
    }
    const bool good = worker_take_end(worker, batch_fetcher_take(worker->fetcher, step, batch, error));
    batch->task = task;
    batch->step = step;
    return good;
}
