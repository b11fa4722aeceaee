/*
 * What a rollout means to a worker; the host of its agent (ps/rollout/participant.h). The agent's thread passes a live
 * change to the training thread, which adopts it between two steps. Any other change is a restart, during which links
 * are held, so that a returning fleet does not spend its first seconds on handshakes that are refused.
 */
#include "worker/remote/live_config.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include <sodium.h>

#include "base/clock.h"
#include "base/config/keys.h"
#include "base/memory.h"
#include "base/process/restart.h"
#include "base/process/signals.h"
#include "ps/rollout/participant.h"
#include "ps/rollout/history.h"
#include "ps/store/codec.h"
#include "ps/store/model.h"
#include "ps/store/optimizer.h"
#include "ps/store/rounds.h"

enum { LEAVE_S = 15 };

/* Links are held at most this long; then it is better to try, and to report why that fails. */
static const double HELD_S = 20;
static const double START_S = 0.02, MOST_START_S = 2;
static const double HANDSHAKES_S = 0.01; /* per worker of the job */

static const float NO_LOSS = -1.0f;

struct live_config {
    struct chief *chief; /* NULL: not worker 0 */
    const struct config *config;
    const struct config_model *model; /* with what follows from the data */
    struct traffic *traffic;
    struct agent *agent;
    bool links_released; /* links are no longer held; used only by the agent's thread */
    atomic_bool joined;
    atomic_int end;             /* enum live_config_end */
    pthread_mutex_t lock;       /* guards what follows */
    const struct config *which; /* the one to adopt; only its identity matters */
    bool wanted, taken;         /* it waits for its step; it was adopted */
    struct config next;         /* only its live keys are valid */
    bool chooses_patience;      /* it leaves patience "auto" */
    int64_t step;
    float loss; /* as in the message `report` */
};

static enum participant_switch switch_to(void *context, const struct config *config, int64_t step)
{
    struct live_config *live = context;
    pthread_mutex_lock(&live->lock);
    if (live->which != config || live->step != step) {
        live->which = config;
        live->wanted = true;
        live->taken = false;
        config_take_live(&live->next, config);
        live->chooses_patience = config_was_chosen(config, "train", "patience");
        live->step = step;
    }
    /* Going back does not wait for a step: the training thread may be waiting for a member that goes back. */
    bool taken = live->taken || step == 0;
    live->which = taken ? NULL : live->which;
    pthread_mutex_unlock(&live->lock);
    return taken ? SWITCH_DONE : SWITCH_PENDING;
}

static bool save(void *context, struct error *error)
{
    return chief_checkpoint(((struct live_config *)context)->chief, error);
}

static bool restore(void *context, struct error *error)
{
    return chief_restore(((struct live_config *)context)->chief, error);
}

static void settle(void *context)
{
    chief_settle(((struct live_config *)context)->chief);
}

/* --- Restarting --- */

/*
 * Parameters and gradients, each as computed, as sent and as received; the parameters known to the ps, if differences
 * are sent (worker/remote/exchange/push_pull.h); and a batch's activations, forward and backward. An estimate, to
 * exclude machines that are far too small.
 */
static uint64_t memory_wanted(const struct config *then, const struct model *model)
{
    uint64_t units = 0, floats = model->float_count;
    for (int i = 0; i < then->model.layer_count; i++) {
        units += (uint64_t)then->model.layers[i];
    }
    const uint64_t known = then->cluster.wire_dtype != WIRE_FLOAT32 ? sizeof(uint16_t) * floats : 0;
    const uint64_t sent = sent_model_is_kept(&then->cluster) ? sizeof(float) * floats : 0;
    return sizeof(float) * (6 * floats + 3 * units * (uint64_t)then->train.batch_size) + known + sent;
}

static bool check_disk(const struct config *then, const struct model *model, struct error *error)
{
    struct statvfs disk;
    const uint64_t vectors =
        1 + (uint64_t)optimizer_slots(outer_train(&then->train).optimizer) + (then->train.ema_decay > 0);
    const uint64_t wanted = 2 * vectors * model->float_count * sizeof(float);
    if (statvfs(then->output.train_dir, &disk) != 0) {
        return true; /* the chief itself reports if it can't write there */
    }
    const uint64_t there = (uint64_t)disk.f_bavail * disk.f_frsize;
    return wanted <= there ||
           error_set(error, "%s: two checkpoints would take %llu MiB there, but %llu are left", then->output.train_dir,
                     (unsigned long long)(wanted >> 20), (unsigned long long)(there >> 20));
}

static bool check(void *context, const struct config *then, struct error *error)
{
    const struct live_config *live = context;
    struct config fitted = *then;
    struct model model;
    uint64_t there;
    fitted.model = model_with_ends(&then->model, live->model);
    model_layout(&model, &fitted.model);
    const uint64_t wanted = memory_wanted(&fitted, &model);
    if (memory_for_this_process(&there) && wanted > there) {
        return error_set(error, "it would need about %llu MiB of memory here, but there are %llu",
                         (unsigned long long)(wanted >> 20), (unsigned long long)(there >> 20));
    }
    return !live->chief || check_disk(then, &model, error);
}

static bool gives_up(void *context)
{
    (void)context;
    return signals_pending() != 0;
}

static bool try_out(void *context, const struct config *then, bool may_lose, struct error *error)
{
    const struct live_config *live = context;
    struct config fitted = *then;
    fitted.model = model_with_ends(&then->model, live->model);
    return trial_run(&fitted, live->config->output.train_dir, may_lose, gives_up, NULL, error);
}

static bool is_ready(void *context)
{
    return atomic_load(&((struct live_config *)context)->joined);
}

static void leave(void *context, bool for_good)
{
    struct live_config *live = context;
    restart_within(LEAVE_S);
    atomic_store(&live->end, for_good ? LIVE_LEAVES : LIVE_RESTARTS);
}

static float last_loss(void *context)
{
    struct live_config *live = context;
    pthread_mutex_lock(&live->lock);
    float loss = live->loss;
    pthread_mutex_unlock(&live->lock);
    return loss;
}

/* On a shared machine worker 0 should start first, since all others wait for it. */
static void let_chief_pass(const struct config *config)
{
    const double most_s = fmin(MOST_START_S, START_S * (double)config->cluster.worker_hosts.count);
    signals_pause(clock_monotonic_s() + most_s * (double)randombytes_uniform(1000) / 1000.0);
}

/* Only during a rollout of the whole job, or soon after: otherwise members of both versions may connect. */
void live_config_hold(struct traffic *traffic, const struct config *config)
{
    struct lineage lineage;
    if (lineage_read(config, &lineage) && lineage.kind == ROLLOUT_JOB &&
        ((uint64_t)config->fleet.version == lineage.target || (uint64_t)config->fleet.version == lineage.fallback)) {
        if (config->cluster.task_index > 0) {
            let_chief_pass(config);
        }
        atomic_store(&traffic->held_until_s, clock_monotonic_s() + HELD_S);
    }
}

/*
 * Worker 0 joins first, because it brings the model, without which nothing can start. Then the others join, each after
 * its own delay: a ps busy with handshakes serves nobody else.
 */
static void heard(void *context, uint64_t version, bool has_model)
{
    struct live_config *live = context;
    const struct config_cluster *cluster = &live->config->cluster;
    if (live->links_released || version != (uint64_t)live->config->fleet.version || (!live->chief && !has_model)) {
        return;
    }
    const double most_s = HANDSHAKES_S * (double)cluster->worker_hosts.count;
    const double after_s = live->chief ? 0 : most_s * (double)randombytes_uniform(1000) / 1000.0;
    const double until_s = clock_monotonic_s() + after_s;
    live->links_released = true;
    if (until_s < atomic_load(&live->traffic->held_until_s)) {
        atomic_store(&live->traffic->held_until_s, until_s);
    }
}

bool live_config_create(struct live_config **out, const struct config *config, const struct config_model *model,
                        struct identity *identity, struct chief *chief, struct traffic *traffic, struct error *error)
{
    struct live_config *live = must_zero(1, sizeof *live, "rollouts");
    live->chief = chief;
    live->traffic = traffic;
    live->config = config;
    live->model = model;
    live->loss = NO_LOSS;
    pthread_mutex_init(&live->lock, NULL);
    const struct agent_options options = {.config = config,
                                          .identity = identity,
                                          .who = {MEMBER_WORKER, config->cluster.task_index},
                                          .host = {.context = live,
                                                   .check = check,
                                                   .save = chief ? save : NULL,
                                                   .try_out = chief ? try_out : NULL,
                                                   .ready = is_ready,
                                                   .leave = leave,
                                                   .switch_to = switch_to,
                                                   .restore = chief ? restore : NULL,
                                                   .settle = chief ? settle : NULL},
                                          .loss = last_loss,
                                          .heard = heard,
                                          .context = live};
    if (!agent_create(&live->agent, &options, error)) {
        live_config_destroy(live);
        return false;
    }
    *out = live;
    return true;
}

void live_config_destroy(struct live_config *live)
{
    if (live) {
        agent_destroy(live->agent);
        pthread_mutex_destroy(&live->lock);
        free(live);
    }
}

bool live_config_look(struct live_config *live, struct config *config, int64_t global_step, float loss, bool finite)
{
    pthread_mutex_lock(&live->lock);
    live->loss = finite ? loss : NAN;
    const bool due = live->wanted && global_step >= live->step;
    if (due) {
        config_take_live(config, &live->next);
        config_note_chosen(config, "train", "patience", live->chooses_patience);
        live->wanted = false;
        live->taken = true;
    }
    pthread_mutex_unlock(&live->lock);
    return due;
}

bool live_config_is_rolling(struct live_config *live)
{
    return agent_is_rolling(live->agent);
}

static void note_joined(struct live_config *live, bool joined)
{
    if (live) {
        /* A loss from before a restore says nothing about the restored model; ps 0 must not compare it. */
        pthread_mutex_lock(&live->lock);
        live->loss = NO_LOSS;
        pthread_mutex_unlock(&live->lock);
        atomic_store(&live->joined, joined);
    }
}

void live_config_note_joining(struct live_config *live)
{
    note_joined(live, false);
}

void live_config_note_joined(struct live_config *live)
{
    note_joined(live, true);
}

enum live_config_end live_config_end(struct live_config *live)
{
    return live ? (enum live_config_end)atomic_load_explicit(&live->end, memory_order_relaxed) : LIVE_STAYS;
}

void live_config_show(struct live_config *live, struct board_rollout *shown)
{
    if (live) {
        agent_show(live->agent, shown);
    }
}

void live_config_drift(struct live_config *live, char message[256])
{
    char drift[CONFIG_DRIFT_TEXT];
    const size_t used = strlen(message);
    if (live) {
        agent_drift(live->agent, drift);
        snprintf(message + used, 256 - used, "%s%.250s", used > 0 && drift[0] != '\0' ? "; " : "", drift);
    }
}

bool live_config_knows(struct live_config *live, const char *digest)
{
    return agent_knows(live->agent, digest);
}
