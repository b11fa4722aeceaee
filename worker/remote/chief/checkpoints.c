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
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/condition.h"
#include "base/finite.h"
#include "base/log.h"
#include "base/profile.h"
#include "worker/kept_rows.h"
#include "worker/remote/chief/internal.h"
#include "worker/remote/chief/transfer.h"

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
    char *kept_rows = kept_rows_tell(chief->options.config, chief->options.dataset, chief->options.test, &chief->state);
    info->kept_rows = kept_rows;
    const bool written = checkpoint_folder_save(&chief->ledger.folder, targets, &chief->state, info, &error);
    free(kept_rows);
    info->kept_rows = NULL;
    saved.seconds = clock_monotonic_s() - began_s;
    checkpoint_ledger_done(&chief->ledger, &saved, written ? NULL : &error, false);
    return written;
}

void chief_save_taken(struct chief *chief, int64_t global_step)
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
    for (int i = 0; i < SNAPSHOT_TRIES && end == EXCHANGE_REJOIN; i++) {
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
        if (end == EXCHANGE_REJOIN && chief->shards.broken && clock_monotonic_s() < deadline_s) {
            i--; /* a broken connection says nothing about the snapshot */
        }
    }
    return end;
}

/* Takes the state of one step, now or soon. Locked. which: as for transfer_read. */
static enum exchange_result take_now(struct chief *chief, unsigned which, int64_t *global_step, struct error *error)
{
    return take(chief, which, false, SNAPSHOT_WAIT_MS, global_step, error);
}

enum exchange_result chief_take_last(struct chief *chief, int64_t *global_step, struct error *error)
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

bool chief_state_to_engine(struct chief *chief, struct error *error)
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
    unsigned which = chief->has_folder ? ~(1u << STORE_SENT) : 1u << STORE_PARAMETERS | 1u << STORE_AVERAGES;
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
                    "every ps had been told to keep them",
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

void chief_order_ahead(struct chief *chief, int64_t step)
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

void chief_collect_last(struct chief *chief)
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

void chief_wake(struct chief *chief)
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

void chief_start_saving(struct chief *chief)
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

void chief_stop_saving(struct chief *chief)
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

void chief_retime(struct chief *chief, const struct config_output *output, const struct plan *plan)
{
    chief_lock(chief);
    const bool other_steps = chief->output.save_steps != output->save_steps;
    if (other_steps) {
        collect_taken(chief);
        drop_orders(chief);
    }
    chief->plan = *plan;
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
