/* Worker 0: brings a model into the shards, saves their state, lends it for validations, and ends the job. */
#include "worker/remote/chief.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/finite.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/process/signals.h"
#include "base/profile.h"
#include "base/threads.h"
#include "net/handshake.h"
#include "ps/rollout/history.h"
#include "ps/shard.h"
#include "ps/store/codec.h"
#include "ps/store/rounds.h"
#include "worker/checkpoints.h"
#include "worker/evaluation/kept_rows.h"
#include "worker/initial.h"
#include "worker/remote/exchange/outbox.h"
#include "worker/remote/exchange/requests.h"
#include "worker/remote/transfer.h"

/* A checkpoint by steps that was announced to the shards. */
struct order {
    uint64_t number; /* of the snapshot */
    int64_t step;
};

struct chief {
    struct chief_options options;
    struct push_pull shards;
    struct config_train train; /* which checkpoints to keep */
    struct checkpoint_state state;
    struct checkpoint_state best;     /* the best so far; memory NULL: only the folder has it */
    float *sent_model;                /* [float_count]: the state's STORE_SENT; NULL: it has none */
    struct residual_files sent_files; /* their files, one per checkpoint */
    struct config_output output;      /* when to save and what to keep. Locked */
    struct plan plan;                 /* locked, too */
    struct checkpoint_ledger ledger;  /* its folder's ledger; only with a train_dir */
    bool has_folder;
    int64_t held_step;   /* of the state while it is held for a validation */
    uint32_t generation; /* the last written or found */
    uint64_t snapshots;  /* taken so far, plus a random number, to differ from an earlier chief's */
    pthread_mutex_t mutex;
    pthread_t thread;
    bool saves; /* the thread is running */
    atomic_bool end;
    atomic_int waiting; /* threads that want the mutex, except the saving thread */

    atomic_bool holds;                 /* no checkpoints: a rollout may go back to the last one */
    struct order orders[SHARD_ORDERS]; /* [order_count], by step. Locked, like all that follow up to caution */
    int order_count;
    int64_t ordered;           /* step of the last order; -1: none */
    double asked_s;            /* when the first of them was last asked for; -INFINITY: never */
    int caution, last_caution; /* checkpoints to save before training may be held again */

    atomic_llong global_step; /* of this worker */
    atomic_llong wake_step;   /* at which to wake the saving thread */
    pthread_mutex_t wake_mutex;
    pthread_cond_t wake;
    bool woken;    /* guarded by wake_mutex */
    double rate_s; /* when the step was last looked at */
    int64_t rate_step;
    double steps_per_s;
};

/* For any thread but the saving thread, which gives way. */
static inline void chief_lock(struct chief *chief)
{
    atomic_fetch_add(&chief->waiting, 1);
    pthread_mutex_lock(&chief->mutex);
    atomic_fetch_sub(&chief->waiting, 1);
}

/* --- Checkpoints --- */

/*
 * Checkpoints of the shards' state: taken of one step on every shard, read into the chief's copy, written into
 * train_dir. Those by time, at the end of a run, and for a rollout are of the current state; those by steps are of
 * exactly those steps.
 *
 * Training does not stop for checkpoints by steps unless the disk can't keep up. Shards learn of several steps ahead
 * (orders), keep a copy as they reach each, and hold training at the last one until the first has been read
 * (ps/shard.h). So the order of operations matters: the next order is placed before the first is released, and the
 * first orders are placed before any worker may train. Then no step that is due can be missed, however fast training
 * is.
 */

enum {
    SNAPSHOT_TRIES = 6,
    SNAPSHOT_WAIT_MS = 250,  /* for a step that is about to come, or that some shards have reached */
    ROLLOUT_WAIT_MS = 2000,  /* the same for a rollout, which is given up if this fails */
    SNAPSHOT_TIMEOUT_S = 60, /* over connections that break */
    CAUTION = 64,            /* checkpoints to save after one was lost, before training may be held again */
    MOST_CAUTION = 1 << 20,
};

static const double MOMENT_S = 0.02; /* for all shards to learn of a snapshot, if nothing delays them */
static const double LOOK_S = 0.02;   /* how often the saving thread looks at clock and step */
static const double RATE_S = 0.2;    /* the shortest time over which steps per second are measured */
static const double AHEAD_S = 0.3;   /* an ordered step this close is asked for at every look... */
static const double ASK_S = 0.25;    /* ...any other this often: this worker may be far behind the others */

/* --- Writing --- */

static bool chief_state_is_finite(const struct chief *chief)
{
    for (int v = 0; v < STORE_VECTORS; v++) {
        const float *values = chief->state.vectors[v];
        if (values && !all_finite(values, chief->options.model->float_count)) {
            return false;
        }
    }
    return true;
}

/* Written before the checkpoint itself, so that a process that continues from that finds it. */
static void keep_sent_model(struct chief *chief, int64_t global_step)
{
    struct error error;
    if (chief->sent_model && !residual_files_save(&chief->sent_files, global_step, chief->sent_model, &error)) {
        log_warning("the sent model is not saved: %s", error.text);
    }
}

/* Writes the state that was taken. targets: as for checkpoint_folder_save. A failure is logged and recorded. Locked. */
static bool write_checkpoint(struct chief *chief, int targets, int64_t global_step)
{
    struct error error;
    struct checkpoint_report saved = {.info = chief->ledger.info, .targets = targets};
    struct checkpoint_info *info = &saved.info;
    const struct hello_identity *now = identity_hello(chief->options.identity);
    info->global_step = global_step;
    info->fleet_version = (int64_t)now->fleet_version;
    snprintf(info->config_digest, sizeof info->config_digest, "%s", now->digest);
    checkpoint_ledger_begin(&chief->ledger, targets, global_step);
    if (targets & CHECKPOINT_MODEL) {
        keep_sent_model(chief, global_step);
    }
    const double began_s = clock_monotonic_s();
    char *kept_rows =
        kept_rows_write(chief->options.config, chief->options.dataset, chief->options.test, &chief->state);
    info->kept_rows = kept_rows;
    const bool written = checkpoint_folder_save(&chief->ledger.folder, targets, &chief->state, info, &error);
    free(kept_rows);
    info->kept_rows = NULL;
    saved.seconds = clock_monotonic_s() - began_s;
    checkpoint_ledger_done(&chief->ledger, &saved, written ? NULL : &error, false);
    return written;
}

/* Saves the state that was taken, unless it has been saved. Locked. */
static void chief_save_taken(struct chief *chief, int64_t global_step)
{
    if (chief_state_is_finite(chief)) {
        write_checkpoint(chief, CHECKPOINT_MODEL, global_step);
    } else {
        log_warning("the model is no longer finite at step %lld and is not saved", (long long)global_step);
    }
}

/* --- The current state --- */

/*
 * If several shards are not at the same step, they agree on one slightly ahead, or on the last step, where all of them
 * stop. If steps are ordered, they also stop at the last of those, since no order is read while this holds the lock.
 */
static int64_t step_to_agree_on(const struct chief *chief, int64_t seen, int try)
{
    const int buffer_size = chief->options.config->train.buffer_size, pushes = buffer_size > 0 ? buffer_size : 1;
    const int64_t under_way = chief->options.config->cluster.worker_hosts.count / pushes;
    int64_t now = atomic_load(&chief->global_step), in_a_moment = (int64_t)(chief->steps_per_s * MOMENT_S);
    int64_t from = now > seen ? now : seen, last = chief->plan.last_step;
    int64_t ahead = from + (2 + under_way + in_a_moment) * try;
    if (chief->order_count > SHARD_ORDERS_KEPT && chief->orders[chief->order_count - 1].step >= from) {
        int64_t stop = chief->orders[chief->order_count - 1].step;
        last = stop < last ? stop : last;
    }
    return ahead < last ? ahead : last;
}

/*
 * Anything but EXCHANGE_OK leaves the state a mixture; EXCHANGE_REJOIN: some shard has lost its state, or they did not
 * reach one step in time. The last try takes the current state, in case training stands still; stopped: it does.
 */
static enum exchange_result take(struct chief *chief, unsigned which, bool stopped, uint32_t wait_ms,
                                 int64_t *global_step, struct error *error)
{
    enum exchange_result end = EXCHANGE_REJOIN;
    PROFILE("take snapshot");
    const double deadline_s = clock_monotonic_s() + SNAPSHOT_TIMEOUT_S;
    int64_t seen = 0; /* on some shard: this worker may be far behind the others' steps */
    for (int i = 0; i < SNAPSHOT_TRIES && end == EXCHANGE_REJOIN;) {
        struct snapshot_answer answer;
        bool last = i + 1 == SNAPSHOT_TRIES;
        int64_t at_step = i > 0 && !last ? step_to_agree_on(chief, seen, i) : -1;
        uint64_t number = ++chief->snapshots;
        chief->shards.broken = false;
        end = transfer_snapshot(&chief->shards, number, at_step, wait_ms, &answer, error);
        seen = end == EXCHANGE_OK && answer.global_step > seen ? answer.global_step : seen;
        if (end == EXCHANGE_OK && (!answer.taken || (!answer.same && !(last && stopped)))) {
            end = EXCHANGE_REJOIN;
        } else if (end == EXCHANGE_OK) {
            *global_step = answer.global_step;
            end = transfer_read(&chief->shards, number, which, &chief->state, error);
        }
        /* A broken connection says nothing about the snapshot: then the same try is repeated. */
        i += end != EXCHANGE_REJOIN || !chief->shards.broken || clock_monotonic_s() >= deadline_s;
    }
    return end;
}

/* Takes the state of one step, now or soon. Locked. which: as for transfer_read. */
static enum exchange_result take_now(struct chief *chief, unsigned which, int64_t *global_step, struct error *error)
{
    return take(chief, which, false, SNAPSHOT_WAIT_MS, global_step, error);
}

/*
 * Takes the state of all shards after training has ended. Locked. They may be at different steps: a killed worker may
 * have pushed to only some of them. Anything but EXCHANGE_OK leaves the state a mixture; EXCHANGE_REJOIN: some shard
 * has lost its state.
 */
static enum exchange_result chief_take_last(struct chief *chief, int64_t *global_step, struct error *error)
{
    return take(chief, ~0u, true, SNAPSHOT_WAIT_MS, global_step, error);
}

/* Saves the state of whatever step the shards are at. Locked. */
static void save_now(struct chief *chief)
{
    struct error error;
    int64_t step;
    if (take_now(chief, ~0u, &step, &error) == EXCHANGE_OK) {
        chief_save_taken(chief, step);
    }
}

/* --- A snapshot held in the engine, for as long as it takes to evaluate it --- */

/* Loads what evaluation needs of the state that was taken into the engine. Locked. */
static bool chief_state_to_engine(struct chief *chief, struct error *error)
{
    const bool averaged = chief->options.config->train.ema_decay > 0;
    float *const *all = chief->state.vectors;
    float *const wanted[STORE_VECTORS] = {
        [STORE_PARAMETERS] = all[STORE_PARAMETERS], [STORE_AVERAGES] = averaged ? all[STORE_AVERAGES] : NULL};
    return engine_put_vectors(chief->options.engine, wanted, chief->options.model->float_count, error);
}

enum chief_hold_result chief_hold(struct chief *chief, int64_t *global_step, struct checkpoint_info **record,
                                  struct error *error)
{
    /* All of it if it may be the best so far, and so worth keeping. */
    const bool is_kept = chief->has_folder || chief->best.memory;
    unsigned which = is_kept ? ~(1u << STORE_SENT) : 1u << STORE_PARAMETERS | 1u << STORE_AVERAGES;
    enum chief_hold_result result = CHIEF_NOT_NOW;
    chief_lock(chief);
    if (take_now(chief, which, &chief->held_step, error) == EXCHANGE_OK) {
        result = chief_state_to_engine(chief, error) ? CHIEF_HELD : CHIEF_HOLD_FAILED;
    }
    if (result != CHIEF_HELD) {
        pthread_mutex_unlock(&chief->mutex);
        return result;
    }
    *global_step = chief->held_step;
    *record = &chief->ledger.info;
    return CHIEF_HELD;
}

void chief_release(struct chief *chief, bool is_best)
{
    if (is_best && chief->has_folder) {
        write_checkpoint(chief, CHECKPOINT_BEST, chief->held_step);
    } else if (is_best && chief->best.memory) {
        checkpoint_state_copy(&chief->best, &chief->state);
    }
    chief->ledger.info.validation_score = NAN; /* the next checkpoint is of another step */
    pthread_mutex_unlock(&chief->mutex);
}

/* --- Orders; all locked --- */

/* The next step to save after this one; -1: none before the last, which gets its own checkpoint. */
static int64_t next_to_save(const struct chief *chief, int64_t step)
{
    int64_t left = supervisor_steps_to_save(&chief->ledger.supervisor, step);
    return left < chief->plan.last_step - step ? step + left : -1;
}

/* Warns if checkpoints between the last order and this one were skipped. */
static void note_ordered(struct chief *chief, int64_t step)
{
    int64_t first = chief->ordered + chief->ledger.supervisor.save_steps;
    if (chief->ordered >= 0 && first < step) {
        log_warning("no checkpoint of step %lld, nor of any other before step %lld: training was past them before "
                    "every ps had the order to keep them",
                    (long long)first, (long long)step);
    }
    chief->ordered = step;
}

/*
 * Places the next order after a step. Once in the list, it is repeated until all shards know it. If some shard is
 * already past it, it is not listed, and *after is that shard's step.
 */
static enum exchange_result place_next(struct chief *chief, int64_t *after)
{
    struct error error;
    enum order_state state = ORDER_PENDING;
    const struct order order = {.number = SNAPSHOT_ORDER | ++chief->snapshots, .step = next_to_save(chief, *after)};
    if (order.step < 0) {
        return EXCHANGE_STOPPED;
    }
    enum exchange_result end = transfer_order(&chief->shards, order.number, order.step, 0, &state, &error);
    note_ordered(chief, order.step);
    if (end == EXCHANGE_OK && state == ORDER_LOST) {
        log_warning("no checkpoint of step %lld: %s", (long long)order.step, error.text);
        transfer_release(&chief->shards, order.number);
        return transfer_newest_step(&chief->shards, after, &error);
    }
    chief->orders[chief->order_count++] = order;
    return end;
}

/* Fills the list up to `wanted`, after its last or `step`, which some shard has at least reached; -1: not known. */
static void order_up_to(struct chief *chief, int wanted, int64_t step)
{
    struct error error;
    enum exchange_result end = EXCHANGE_OK;
    const bool known = step >= 0 || chief->order_count > 0;
    if (!chief->has_folder || atomic_load(&chief->holds) || chief->order_count >= wanted) {
        return;
    }
    if (!known && next_to_save(chief, atomic_load(&chief->global_step)) >= 0) {
        end = transfer_newest_step(&chief->shards, &step, &error);
    } else if (!known) {
        return;
    }
    for (int tries = 0; end == EXCHANGE_OK && chief->order_count < wanted && tries < 2 * SHARD_ORDERS; tries++) {
        int64_t last = chief->order_count > 0 ? chief->orders[chief->order_count - 1].step : -1;
        step = last > step ? last : step;
        end = place_next(chief, &step);
    }
}

/* One more than the shards have room for, so that training can be held at one; unless holding has failed lately. */
static int orders_wanted(const struct chief *chief)
{
    return SHARD_ORDERS_KEPT + (chief->caution == 0);
}

/*
 * Tells the shards of the next checkpoints by steps, if there are any. Locked. step: a lower bound of where they are;
 * -1: not known.
 */
static void chief_order_ahead(struct chief *chief, int64_t step)
{
    order_up_to(chief, orders_wanted(chief), step);
}

static void remove_first(struct chief *chief)
{
    chief->order_count--;
    chief->asked_s = -INFINITY; /* shards may have come to the next one long ago, and hold training for it */
    memmove(chief->orders, chief->orders + 1, (size_t)chief->order_count * sizeof chief->orders[0]);
}

/*
 * An order's step passed although the shards knew of it in time: they waited for a lease, and nothing was read. For
 * some checkpoints training is not held again, at first for few: the disk may be too slow, or a killed worker pushed to
 * only some of the shards, so that they are never at one step while some hold training.
 */
static void lose_first(struct chief *chief, const char *why)
{
    log_warning("no checkpoint of step %lld: %s", (long long)chief->orders[0].step, why);
    transfer_release(&chief->shards, chief->orders[0].number);
    remove_first(chief);
    chief->last_caution = chief->last_caution == 0 ? CAUTION : chief->last_caution * 2;
    chief->last_caution = chief->last_caution < MOST_CAUTION ? chief->last_caution : MOST_CAUTION;
    chief->caution = chief->last_caution;
}

enum collected { COLLECTED, NOT_YET, LOST, TROUBLE };

/* Reads and saves the first order once all shards have it. */
static enum collected collect_first(struct chief *chief, uint32_t wait_ms)
{
    PROFILE("take snapshot");
    struct error error;
    enum order_state state;
    const struct order order = chief->orders[0];
    chief->asked_s = clock_monotonic_s();
    if (transfer_order(&chief->shards, order.number, order.step, wait_ms, &state, &error) != EXCHANGE_OK) {
        return TROUBLE;
    }
    if (state == ORDER_LOST) {
        lose_first(chief, error.text);
        return LOST;
    }
    if (state == ORDER_PENDING) {
        return NOT_YET;
    }
    order_up_to(chief, orders_wanted(chief) + 1, order.step); /* before this one is released */
    if (transfer_read(&chief->shards, order.number, ~0u, &chief->state, &error) != EXCHANGE_OK) {
        return TROUBLE; /* it can still be read, unless its shard lost everything */
    }
    remove_first(chief);
    chief->caution -= chief->caution > 0;
    if (supervisor_is_unsaved(&chief->ledger.supervisor, order.step)) {
        chief_save_taken(chief, order.step);
    }
    return COLLECTED;
}

/* Saves what the shards have kept so far. */
static void collect_taken(struct chief *chief)
{
    for (int i = chief->order_count; i > 0 && chief->order_count > 0 && collect_first(chief, 0) == COLLECTED; i--) {
    }
}

static void drop_orders(struct chief *chief)
{
    for (int i = 0; i < chief->order_count; i++) {
        transfer_release(&chief->shards, chief->orders[i].number);
    }
    chief->order_count = 0;
    chief->ordered = -1;
}

/* Training is over, at least for this chief: reads and saves the orders due by now, and forgets the rest. Locked. */
static void chief_collect_last(struct chief *chief)
{
    struct error error;
    int64_t step;
    enum collected collected = COLLECTED;
    if (chief->order_count == 0 || transfer_newest_step(&chief->shards, &step, &error) != EXCHANGE_OK) {
        return;
    }
    while (collected != TROUBLE && chief->order_count > 0 && chief->orders[0].step <= step) {
        collected = collect_first(chief, SNAPSHOT_WAIT_MS);
        if (collected == NOT_YET) {
            lose_first(chief, "some ps has not come to it, for a worker was lost in the middle of a push");
        }
    }
    drop_orders(chief);
}

/* --- The saving thread --- */

static void measure_rate(struct chief *chief, int64_t step)
{
    double now_s = clock_monotonic_s(), seconds = now_s - chief->rate_s;
    if (seconds >= RATE_S) {
        chief->steps_per_s = (double)(step - chief->rate_step) / seconds;
        chief->rate_step = step;
        chief->rate_s = now_s;
    }
}

static bool is_near(const struct chief *chief, int64_t step)
{
    return (double)(chief->orders[0].step - step) <= 2 + AHEAD_S * chief->steps_per_s ||
           clock_monotonic_s() - chief->asked_s >= ASK_S;
}

/* True if there may be more. */
static bool save_what_is_due(struct chief *chief, int64_t step)
{
    bool more = false;
    if (atomic_load(&chief->holds) || step >= chief->plan.last_step) {
        return false; /* the end is near, and saves its own checkpoint */
    }
    chief_order_ahead(chief, -1);
    if (chief->order_count > 0 && is_near(chief, step)) {
        enum collected collected = collect_first(chief, 0);
        more = collected == COLLECTED || collected == LOST;
    }
    if (supervisor_is_time_to_save(&chief->ledger.supervisor, step, clock_monotonic_s())) {
        collect_taken(chief);
        save_now(chief);
    }
    return more;
}

/* The saving thread: starts unless it runs, is woken, and ends. Unlocked. */
static void chief_wake(struct chief *chief)
{
    pthread_mutex_lock(&chief->wake_mutex);
    chief->woken = true;
    pthread_cond_signal(&chief->wake);
    pthread_mutex_unlock(&chief->wake_mutex);
}

/* Waits until this worker reaches the first ordered step, but at most until the next look. */
static void rest(struct chief *chief)
{
    pthread_mutex_lock(&chief->wake_mutex);
    if (!chief->woken) {
        condition_wait_for(&chief->wake, &chief->wake_mutex, LOOK_S);
    }
    chief->woken = false;
    pthread_mutex_unlock(&chief->wake_mutex);
}

static void *save_on(void *context)
{
    struct chief *chief = context;
    profile_thread("checkpoints");
    while (!atomic_load(&chief->end)) {
        int64_t step = atomic_load(&chief->global_step);
        pthread_mutex_lock(&chief->mutex);
        measure_rate(chief, step);
        bool more = save_what_is_due(chief, step);
        int64_t next = chief->order_count > 0 ? chief->orders[0].step : INT64_MAX;
        pthread_mutex_unlock(&chief->mutex);
        atomic_store(&chief->wake_step, next > step ? next : INT64_MAX);
        if (!more && !(next > step && atomic_load(&chief->global_step) >= next)) {
            rest(chief);
        }
        /* A mutex is not fair: a validation would wait until there is nothing left to save. */
        while (atomic_load(&chief->waiting) > 0 && !atomic_load(&chief->end)) {
            clock_pause(clock_monotonic_s() + 1e-3);
        }
    }
    return NULL;
}

static void chief_start_saving(struct chief *chief)
{
    if (chief->has_folder && !chief->saves) {
        chief->saves = pthread_create(&chief->thread, NULL, save_on, chief) == 0;
        if (!chief->saves) {
            log_warning("the thread that saves checkpoints cannot start: only the last checkpoint will be kept");
            chief_lock(chief);
            drop_orders(chief); /* no one would read them */
            pthread_mutex_unlock(&chief->mutex);
        }
    }
}

static void chief_stop_saving(struct chief *chief)
{
    if (chief->saves) {
        atomic_store(&chief->end, true);
        chief_wake(chief);
        pthread_join(chief->thread, NULL);
        chief->saves = false;
        atomic_store(&chief->end, false); /* cleared for a later start */
    }
}

/* --- Rollouts --- */

/* Takes and saves the checkpoint to go back to. Locked. */
static bool save_to_go_back(struct chief *chief, struct error *error)
{
    int64_t step;
    if (take(chief, ~0u, false, ROLLOUT_WAIT_MS, &step, error) != EXCHANGE_OK) {
        return false;
    }
    if (!chief_state_is_finite(chief)) {
        return error_set(error, "the model is not finite at step %lld", (long long)step);
    }
    return write_checkpoint(chief, CHECKPOINT_MODEL, step) ||
           error_set(error, "the checkpoint to go back to could not be written");
}

bool chief_checkpoint(struct chief *chief, struct error *error)
{
    if (!chief->has_folder) {
        return error_set(error, "worker 0 has no train_dir, so there would be no checkpoint to go back to: give it one "
                                "by --train_dir");
    }
    chief_lock(chief);
    collect_taken(chief);
    bool done = save_to_go_back(chief, error);
    atomic_store(&chief->holds, done);
    if (done) {
        drop_orders(chief); /* none is read for a while, and training must not wait for that */
    }
    pthread_mutex_unlock(&chief->mutex);
    return done;
}

/* Without the lock: a restore holds it, perhaps while it waits for a version that only the caller can adopt. */
void chief_settle(struct chief *chief)
{
    atomic_store(&chief->holds, false);
}

void chief_reschedule(struct chief *chief, const struct config_output *output, const struct plan *plan)
{
    chief_lock(chief);
    const bool other_steps = chief->output.save_steps != output->save_steps;
    if (other_steps) {
        collect_taken(chief);
        drop_orders(chief);
    }
    chief->plan = *plan;
    chief->ledger.info.retries = chief->options.config->train.retries;
    chief->ledger.info.first_rate = chief->options.config->train.learning_rate;
    chief->output.save_steps = output->save_steps;
    chief->output.save_model_secs = output->save_model_secs;
    chief->output.max_to_keep = output->max_to_keep;
    chief->output.keep_every_n_hours = output->keep_every_n_hours;
    supervisor_retime(&chief->ledger.supervisor, &chief->output);
    if (other_steps) {
        chief_order_ahead(chief, -1);
    }
    pthread_mutex_unlock(&chief->mutex);
}

/* --- Restoring --- */

/*
 * How the model gets into the shards: if not all of them hold it, it is written again as a new generation, from the
 * newest good checkpoint or as a new model.
 */

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
    checkpoint_ledger_note_rate(&chief->ledger, &config->train);
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
    *text = known ? must_copy(known) : NULL;
    checkpoint_close(file);
    return true;
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
static bool load_sent_model(struct chief *chief, struct error *error)
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

/* Begins a generation with the state that was found, or taken. */
static enum exchange_result write_state(struct chief *chief, uint32_t generation, const char *source,
                                        struct chief_start *start, struct error *error)
{
    if (!load_sent_model(chief, error)) {
        return EXCHANGE_FAILED;
    }
    start->global_step = chief->ledger.info.global_step;
    start->restored_from = chief->ledger.last[0] != '\0' ? chief->ledger.last : NULL;
    chief->generation = generation;
    if (generation > 1) {
        log_info("generation %u of the model begins at step %lld, %s", generation, (long long)start->global_step,
                 source);
    }
    struct transfer_place place = {.global_step = start->global_step,
                                   .epoch_batches = chief->plan.epoch_batches,
                                   .retries = chief->ledger.info.retries};
    enum exchange_result end = transfer_restore(&chief->shards, generation, &chief->state, source, error);
    if (end != EXCHANGE_OK) {
        return end;
    }
    chief->order_count = 0; /* the shards have forgotten them */
    begin_supervising(chief, start->global_step);
    chief_order_ahead(chief, start->global_step); /* now, before any shard can be past any of them */
    return transfer_end_restore(&chief->shards, &place, error);
}

static enum exchange_result write_shards(struct chief *chief, uint32_t generation, struct chief_start *start,
                                         struct error *error)
{
    char source[256] = "";
    return find_state(chief, true, source, sizeof source, error) ? write_state(chief, generation, source, start, error)
                                                                 : EXCHANGE_FAILED;
}

/* The shards may be of later steps than the newest checkpoint, and the best model too. */
static void load_best(struct chief *chief, int64_t global_step)
{
    struct checkpoint_info *info = &chief->ledger.info;
    struct checkpoint_file *file;
    struct error ignored; /* then the newest checkpoint's is the best that is known */
    char path[CHECKPOINT_MAX_PATH];
    if (!chief->has_folder) {
        return;
    }
    checkpoint_folder_name(&chief->ledger.folder, CHECKPOINT_BEST, 0, path);
    if (!file_exists(path) || checkpoint_open(&file, path, &ignored) != CHECKPOINT_OPENED) {
        return;
    }
    const struct checkpoint_info *best = checkpoint_file_info(file);
    if (!isnan(best->best_score) && best->global_step <= global_step && best->data_since == info->data_since &&
        (isnan(info->best_score) || best->best_step > info->best_step)) {
        info->metric = best->metric;
        info->best_score = best->best_score;
        info->best_loss = best->best_loss;
        info->best_step = best->best_step;
        info->bad_validations = 0;
    }
    checkpoint_close(file);
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
    end = end == EXCHANGE_OK ? preprocessing_publish(&chief->shards, dataset, error) : end;
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
    chief->ledger.info.retries = status[0].retries;
    load_best(chief, start->global_step);
    begin_supervising(chief, chief->ledger.info.global_step);
    chief_order_ahead(chief, start->global_step);
    return EXCHANGE_OK;
}

enum exchange_result chief_begin(struct chief *chief, struct chief_start *start, struct error *error)
{
    struct shard_status *status = must_zero((size_t)chief->shards.count, sizeof *status, "the chief");
    enum exchange_result end = EXCHANGE_FAILED;
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
    struct shard_status *status = must_zero((size_t)chief->shards.count, sizeof *status, "the chief");
    struct chief_start start = {0};
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

/* The best model so far: as train_dir has it, or its parameters; before any, where training began. */
static bool load_good(struct chief *chief, const struct good_model *good, char *source, size_t size,
                      struct error *error)
{
    struct checkpoint_info *info = &chief->ledger.info;
    struct checkpoint_file *file;
    char path[CHECKPOINT_MAX_PATH];
    if (chief->has_folder && good->is_best) {
        checkpoint_folder_name(&chief->ledger.folder, CHECKPOINT_BEST, 0, path);
        if (checkpoint_open(&file, path, error) != CHECKPOINT_OPENED) {
            return false;
        }
        const bool done = load_state(chief, file, error);
        snprintf(source, size, "back at %.200s", path);
        info->global_step = checkpoint_file_info(file)->global_step;
        checkpoint_close(file);
        return done;
    }
    if (!find_state(chief, true, source, size, error)) {
        return false;
    }
    if (good->is_best) { /* no folder has it */
        if (chief->best.memory) {
            checkpoint_state_copy(&chief->state, &chief->best);
        } else {
            good_model_copy(good, &chief->state); /* too large a model to keep its slots, too */
        }
        snprintf(source, size, "back at the best model");
        info->global_step = good->global_step;
    }
    return true;
}

/* The newest checkpoint is where training goes on from, at the lower rate, even if this process ends here. */
static enum exchange_result go_back(struct chief *chief, const struct good_model *good, struct chief_start *start,
                                    struct error *error)
{
    struct shard_status *status = must_zero((size_t)chief->shards.count, sizeof *status, "the chief");
    struct checkpoint_info *info = &chief->ledger.info;
    char source[256] = "";
    uint32_t newest = 0;
    int64_t step;
    enum exchange_result end = transfer_status(&chief->shards, status, error);
    is_whole(chief, status, &newest, &step);
    free(status);
    if (end != EXCHANGE_OK || !load_good(chief, good, source, sizeof source, error)) {
        return end != EXCHANGE_OK ? end : EXCHANGE_FAILED;
    }
    info->validation_score = NAN;
    info->bad_validations = 0;
    info->retries = good->record.retries;
    if (chief->has_folder && !write_checkpoint(chief, CHECKPOINT_MODEL, info->global_step)) {
        log_warning("checkpoints of later steps than %lld, to which training goes back, stay the newest: a job that is "
                    "started again before the next one is saved resumes from them",
                    (long long)info->global_step);
    } else if (chief->has_folder) {
        checkpoint_folder_go_back(&chief->ledger.folder, info->global_step, info->global_step);
    }
    return write_state(chief, next_generation(chief, newest), source, start, error);
}

enum exchange_result chief_go_back(struct chief *chief, const struct good_model *good, int64_t *global_step,
                                   struct error *error)
{
    struct chief_start start = {.global_step = good->global_step};
    chief_lock(chief);
    const enum exchange_result end = go_back(chief, good, &start, error);
    if (end == EXCHANGE_OK) {
        atomic_store(&chief->global_step, start.global_step);
        *global_step = start.global_step;
    }
    pthread_mutex_unlock(&chief->mutex);
    return end;
}

/* --- Start and end --- */

enum { END_S = 10 /* time to reach a ps whose link breaks as the job ends */ };

static void create_locks(struct chief *chief)
{
    pthread_mutex_init(&chief->mutex, NULL);
    pthread_mutex_init(&chief->wake_mutex, NULL);
    condition_create(&chief->wake);
}

/* The sent model is not part of the model: it lies beside the checkpoints (ps/store/codec.h). */
static void create_sent_model(struct chief *chief, const struct config *config)
{
    const size_t floats = chief->options.model->float_count;
    if (!sent_model_is_kept(&config->cluster) || config->output.train_dir[0] == '\0') {
        return;
    }
    chief->sent_model = must_zero(floats, sizeof *chief->sent_model, "the sent model");
    chief->state.vectors[STORE_SENT] = chief->sent_model;
    chief->sent_files =
        (struct residual_files){config->output.train_dir, RESIDUAL_FILES_SENT, floats, config->output.save_steps};
}

bool chief_create(struct chief **out, const struct chief_options *options, struct error *error)
{
    const struct config *config = options->config;
    struct chief *chief = must_zero(1, sizeof *chief, "the chief");
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
    checkpoint_state_create(&chief->state, options->model, &chief->train);
    if (config->output.train_dir[0] == '\0' && good_model_is_small(options->model, &config->train)) {
        checkpoint_state_create(&chief->best, options->model, &chief->train);
    }
    create_sent_model(chief, config);
    bool done = push_pull_create(&chief->shards, &exchange, error);
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
        checkpoint_state_destroy(&chief->best);
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
        if (checkpoint_ledger_make_room(&chief->ledger, *global_step)) {
            chief_save_taken(chief, *global_step);
        }
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
