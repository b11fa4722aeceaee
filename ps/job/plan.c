/* Epoch e ends with the first step after which e x epoch_batches batches have been drawn: steps are not split. */
#include "ps/job/plan.h"

#include <assert.h>
#include <math.h>

static int64_t divide_up(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

static void make(struct plan *plan, const struct config *config, int64_t epoch_batches, int64_t batches_per_step)
{
    assert(epoch_batches > 0 && batches_per_step > 0);
    *plan = (struct plan){
        .epoch_batches = epoch_batches,
        .batches_per_step = batches_per_step,
        .last_step = config->train.train_steps > 0 ? config->train.train_steps : INT64_MAX,
        .log_steps = config->output.log_steps,
        .validate_steps = config->output.validate_steps,
    };
    if (config->train.epochs > 0) {
        /* 0.1 epochs of 10 batches is one step, although 0.1 is a little more than a tenth. */
        double steps = config->train.epochs * (double)epoch_batches / (double)plan->batches_per_step;
        double last = ceil(steps - 1e-9 * steps);
        if (last < (double)plan->last_step) {
            plan->last_step = (int64_t)last;
        }
    }
}

void plan_begin(struct plan *plan, const struct config *config, int64_t epoch_batches)
{
    make(plan, config, epoch_batches, config->train.micro_batches);
}

void plan_begin_rounds(struct plan *plan, const struct config *config, int64_t epoch_batches, int sharers, int replicas)
{
    const int64_t own = divide_up(epoch_batches, sharers);
    make(plan, config, epoch_batches, replicas * round_batches(&config->train, own));
}

void plan_begin_job(struct plan *plan, const struct config *config, int64_t epoch_batches)
{
    const struct config_cluster *cluster = &config->cluster;
    const int workers = cluster->worker_hosts.count;
    int wanted = cluster->replicas_to_aggregate > 0 ? cluster->replicas_to_aggregate
                                                    : round_share(config->train.participation, workers);
    const bool divided = config->data.data_sharding == SHARDING_DISJOINT && workers > 0;
    const int alone = config->train.buffer_size > 0 ? config->train.buffer_size : 1;
    plan_begin_rounds(plan, config, epoch_batches, divided ? workers : 1, cluster->issync ? wanted : alone);
}

int64_t plan_epoch_end(const struct plan *plan, int64_t epoch)
{
    return divide_up(epoch * plan->epoch_batches, plan->batches_per_step);
}

int64_t plan_epoch(const struct plan *plan, int64_t step)
{
    return step < 1 ? 1 : (step - 1) * plan->batches_per_step / plan->epoch_batches + 1;
}

/* The number of multiples of `every` reached by then. */
static int64_t times_due(int64_t step, int64_t every)
{
    return every > 0 ? step / every : 0;
}

bool plan_log_due(const struct plan *plan, int64_t before, int64_t step)
{
    return times_due(step, plan->log_steps) > times_due(before, plan->log_steps);
}

static int64_t validations_due(const struct plan *plan, int64_t step)
{
    return plan->validate_steps > 0 ? times_due(step, plan->validate_steps)
                                    : step * plan->batches_per_step / plan->epoch_batches;
}

bool plan_validation_due(const struct plan *plan, int64_t before, int64_t step)
{
    return validations_due(plan, step) > validations_due(plan, before);
}

int64_t plan_steps_to_due(const struct plan *plan, int64_t step)
{
    assert(step < plan->last_step);
    int64_t next = plan->last_step;
    int64_t candidates[2] = {INT64_MAX, INT64_MAX};
    if (plan->log_steps > 0) {
        candidates[0] = (step / plan->log_steps + 1) * plan->log_steps;
    }
    if (plan->validate_steps > 0) {
        candidates[1] = (step / plan->validate_steps + 1) * plan->validate_steps;
    } else {
        candidates[1] = plan_epoch_end(plan, plan_epoch(plan, step + 1));
    }
    for (int i = 0; i < 2; i++) {
        next = candidates[i] < next ? candidates[i] : next;
    }
    return next - step;
}
