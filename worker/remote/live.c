#include "worker/remote/live.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

#include "ps/rollout/agent.h"

static const float NO_LOSS = -1.0f;

struct live {
    struct chief *chief; /* NULL: not worker 0 */
    struct agent *agent;
    pthread_mutex_t lock;       /* of what follows */
    const struct config *which; /* that is to be taken up; only to tell one from another */
    bool wanted, taken;         /* it waits for its step; it was taken up */
    struct config_train train;
    int64_t log_steps, step;
    float loss; /* as in the message `report` */
};

static enum keeper_switch switch_to(void *context, const struct config *config, int64_t step)
{
    struct live *live = context;
    pthread_mutex_lock(&live->lock);
    if (live->which != config || live->step != step) {
        live->which = config;
        live->wanted = true;
        live->taken = false;
        live->train = config->train;
        live->log_steps = config->output.log_steps;
        live->step = step;
    }
    bool taken = live->taken;
    live->which = taken ? NULL : live->which;
    pthread_mutex_unlock(&live->lock);
    return taken ? SWITCH_DONE : SWITCH_PENDING;
}

static bool prepare(void *context, struct error *error)
{
    return chief_checkpoint(((struct live *)context)->chief, error);
}

static bool restore(void *context, struct error *error)
{
    return chief_restore(((struct live *)context)->chief, error);
}

static void settle(void *context)
{
    chief_settle(((struct live *)context)->chief);
}

static float last_loss(void *context)
{
    struct live *live = context;
    pthread_mutex_lock(&live->lock);
    float loss = live->loss;
    pthread_mutex_unlock(&live->lock);
    return loss;
}

bool live_create(struct live **out, const struct config *config, struct self *self, struct chief *chief,
                 struct error *error)
{
    struct live *live = calloc(1, sizeof *live);
    if (!live) {
        return error_set(error, "out of memory");
    }
    live->chief = chief;
    live->loss = NO_LOSS;
    pthread_mutex_init(&live->lock, NULL);
    const struct agent_options options = {.config = config,
                                          .self = self,
                                          .who = {MEMBER_WORKER, config->cluster.task_index},
                                          .host = {.context = live,
                                                   .prepare = chief ? prepare : NULL,
                                                   .switch_to = switch_to,
                                                   .restore = chief ? restore : NULL,
                                                   .settle = chief ? settle : NULL},
                                          .loss = last_loss,
                                          .context = live};
    if (!agent_create(&live->agent, &options, error)) {
        live_destroy(live);
        return false;
    }
    *out = live;
    return true;
}

void live_destroy(struct live *live)
{
    if (live) {
        agent_destroy(live->agent);
        pthread_mutex_destroy(&live->lock);
        free(live);
    }
}

/* What the shards apply stands here for log lines and the loss's L2 term. */
static void take_up(const struct live *live, struct config *config, struct plan *plan)
{
    const struct config_train *train = &live->train;
    config->train.learning_rate = train->learning_rate;
    config->train.lr_decay = train->lr_decay;
    config->train.lr_decay_steps = train->lr_decay_steps > 0 ? train->lr_decay_steps : plan_epoch_end(plan, 1);
    config->train.lr_staircase = train->lr_staircase;
    config->train.l2 = train->l2;
    config->output.log_steps = plan->log_steps = live->log_steps;
}

void live_look(struct live *live, struct config *config, struct plan *plan, int64_t global_step, float loss,
               bool finite)
{
    pthread_mutex_lock(&live->lock);
    live->loss = finite ? loss : NAN;
    if (live->wanted && global_step >= live->step) {
        take_up(live, config, plan);
        live->wanted = false;
        live->taken = true;
    }
    pthread_mutex_unlock(&live->lock);
}

bool live_is_rolling(struct live *live)
{
    return agent_is_rolling(live->agent);
}
