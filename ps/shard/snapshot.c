/*
 * Passing through the stripes, and the state of one step that passes keep while training continues: stripe by stripe,
 * by the thread that leaves that step.
 *
 * Orders keep every due step, however fast training is: the chief orders one step more than there are copies, and
 * orders the next before it releases one that it has read. So while the copies are full there is always an order whose
 * step must wait, and no step that must be kept can pass before the chief has said so.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "net/message.h"
#include "ps/shard/internal.h"

static bool is_order(uint64_t number)
{
    return (number & SNAPSHOT_ORDER) != 0;
}

/* --- Locked: by snapshot_lock --- */

/* Call it after every change of the table. */
static void update_armed(struct shard *shard)
{
    bool armed = false;
    for (int i = 0; i < SHARD_SNAPSHOTS; i++) {
        armed = armed || (shard->snapshots[i].number != 0 && shard->snapshots[i].progress == SNAPSHOT_ARMED);
    }
    atomic_store(&shard->armed, armed);
}

static struct snapshot *find(struct shard *shard, uint64_t number)
{
    for (int i = 0; i < SHARD_SNAPSHOTS; i++) {
        if (shard->snapshots[i].number == number) {
            return &shard->snapshots[i];
        }
    }
    return NULL;
}

/*
 * The entry for a new one. If there are too many orders, that of the earliest step is dropped: the chief must have lost
 * it.
 */
static struct snapshot *place(struct shard *shard, uint64_t number)
{
    struct snapshot *snapshot = &shard->snapshots[0];
    if (is_order(number)) {
        snapshot = &shard->snapshots[1];
        for (int i = 1; i < SHARD_SNAPSHOTS && snapshot->number != 0; i++) {
            const struct snapshot *other = &shard->snapshots[i];
            if (other->number == 0 || other->at_step < snapshot->at_step) {
                snapshot = &shard->snapshots[i];
            }
        }
    }
    *snapshot = (struct snapshot){.number = number};
    return snapshot;
}

/* Memory for orders is allocated with the first one: most jobs never order anything. */
static bool need_order_memory(struct shard *shard)
{
    size_t bytes = shard_round_up(shard->floats * sizeof(float)), vectors = 0;
    if (shard->order_memory) {
        return true;
    }
    for (int vector = 0; vector < STORE_PS_VECTORS; vector++) {
        vectors += !!shard->vectors[vector];
    }
    shard->order_memory = calloc(1, SHARD_ORDERS_KEPT * vectors * bytes + SHARD_ALIGN);
    char *at = shard->order_memory;
    if (!at) {
        return false;
    }
    at += (SHARD_ALIGN - (uintptr_t)at % SHARD_ALIGN) % SHARD_ALIGN;
    for (int copy = 1; copy < SHARD_COPIES; copy++) {
        for (int vector = 0; vector < STORE_PS_VECTORS; vector++) {
            if (shard->vectors[vector]) {
                shard->copies[copy][vector] = (float *)(void *)at;
                at += bytes;
            }
        }
    }
    return true;
}

/* A copy that this snapshot may be written to; -1: none is free. */
static int free_copy(const struct shard *shard, const struct snapshot *snapshot)
{
    bool used[SHARD_COPIES] = {false};
    if (!is_order(snapshot->number)) {
        return 0;
    }
    for (int i = 1; i < SHARD_SNAPSHOTS; i++) {
        const struct snapshot *other = &shard->snapshots[i];
        if (other->number != 0 && other->progress != SNAPSHOT_ARMED) {
            used[other->copy] = true;
        }
    }
    for (int copy = 1; copy < SHARD_COPIES; copy++) {
        if (!used[copy]) {
            return copy;
        }
    }
    return -1;
}

/* From now on passes write it; false: there is no copy for it. */
static bool begin(struct shard *shard, struct snapshot *snapshot, struct block_walk *walk)
{
    int copy = free_copy(shard, snapshot);
    if (copy < 0) {
        return false;
    }
    snapshot->progress = SNAPSHOT_BEGUN;
    snapshot->copy = copy;
    walk->copies[walk->saves++] = (struct walk_copy){snapshot->number, copy};
    return true;
}

/* --- Passing through the stripes --- */

void shard_save_stripe(struct shard *shard, const struct stripe *stripe, const struct block_walk *walk)
{
    if (walk->saves == 0 || stripe->first_block == stripe->end_block) {
        return;
    }
    /* Up to the start of the next stripe, so that padding is copied as well. */
    size_t from = shard->blocks[stripe->first_block].local;
    size_t to = stripe->end_block < shard->block_count ? shard->blocks[stripe->end_block].local : shard->floats;
    for (int i = 0; i < walk->saves; i++) {
        for (int vector = 0; vector < STORE_PS_VECTORS; vector++) {
            if (shard->vectors[vector]) {
                memcpy(shard->copies[walk->copies[i].copy][vector] + from, shard->vectors[vector] + from,
                       (to - from) * sizeof(float));
            }
        }
    }
}

/* By number: a snapshot released or replaced meanwhile is not ready, though the pass went on writing it. */
void shard_snapshots_done(struct shard *shard, const struct block_walk *walk)
{
    if (walk->saves == 0) {
        return;
    }
    pthread_mutex_lock(&shard->snapshot_lock);
    for (int i = 0; i < walk->saves; i++) {
        struct snapshot *snapshot = find(shard, walk->copies[i].number);
        if (snapshot) {
            snapshot->progress = SNAPSHOT_READY;
        }
    }
    pthread_mutex_unlock(&shard->snapshot_lock);
}

void shard_join_snapshots(struct shard *shard, struct block_walk *walk)
{
    if (!atomic_load_explicit(&shard->armed, memory_order_relaxed)) {
        return; /* it is armed with the first stripe locked, as now: nothing is missed */
    }
    pthread_mutex_lock(&shard->snapshot_lock);
    for (int i = 0; i < SHARD_SNAPSHOTS; i++) {
        struct snapshot *snapshot = &shard->snapshots[i];
        if (snapshot->number != 0 && snapshot->progress == SNAPSHOT_ARMED && snapshot->at_step == walk->global_step &&
            !begin(shard, snapshot, walk)) {
            snapshot->number = 0; /* its step is over */
        }
    }
    update_armed(shard);
    pthread_mutex_unlock(&shard->snapshot_lock);
}

/* Whatever its generation. */
static bool shard_walk_enter_any(struct shard *shard)
{
    pthread_mutex_lock(&shard->stripes[0].lock);
    if (!atomic_load_explicit(&shard->closed, memory_order_relaxed)) {
        return true;
    }
    pthread_mutex_unlock(&shard->stripes[0].lock);
    return false;
}

bool shard_walk_enter(struct shard *shard, uint32_t generation)
{
    if (!shard_walk_enter_any(shard)) {
        return false;
    }
    if (shard->generation == generation) {
        return true;
    }
    pthread_mutex_unlock(&shard->stripes[0].lock);
    return false;
}

void shard_walk_on(struct shard *shard, int i, const struct block_walk *walk, int64_t global_step)
{
    if (i + 1 < shard->stripe_count) {
        pthread_mutex_lock(&shard->stripes[i + 1].lock);
    } else {
        shard->done_version = walk->version;
        shard->done_step = global_step;
        shard_snapshots_done(shard, walk);
    }
    pthread_mutex_unlock(&shard->stripes[i].lock);
}

/* --- The chief's requests --- */

/*
 * The result of a request, with the first stripe and the snapshots locked. If it must be taken now, a pass writes it.
 */
static enum snapshot_state answer(struct shard *shard, uint64_t number, int64_t at_step, bool closed,
                                  struct block_walk *walk)
{
    struct snapshot *snapshot = find(shard, number);
    if (snapshot && snapshot->progress != SNAPSHOT_ARMED) {
        return snapshot->progress == SNAPSHOT_READY ? SNAPSHOT_TAKEN : SNAPSHOT_PENDING;
    }
    if (closed && !is_order(number)) {
        return SNAPSHOT_CLOSED;
    }
    if (at_step >= 0 && at_step < shard->global_step) {
        return SNAPSHOT_PASSED;
    }
    if (is_order(number) && !need_order_memory(shard)) {
        return SNAPSHOT_NO_MEMORY;
    }
    bool now = !closed && (at_step < 0 || at_step == shard->global_step);
    snapshot = snapshot ? snapshot : place(shard, number);
    snapshot->at_step = now ? shard->global_step : at_step;
    snapshot->progress = SNAPSHOT_ARMED;
    return !now || !begin(shard, snapshot, walk) ? SNAPSHOT_PENDING : SNAPSHOT_TAKEN;
}

enum snapshot_state shard_snapshot(struct shard *shard, uint64_t number, int64_t at_step, int64_t *global_step)
{
    assert(number != 0 && (at_step >= 0 || !is_order(number)));
    pthread_mutex_lock(&shard->stripes[0].lock);
    struct block_walk walk = {.version = shard->version, .global_step = shard->global_step};
    pthread_mutex_lock(&shard->snapshot_lock);
    enum snapshot_state state = answer(shard, number, at_step, atomic_load(&shard->closed), &walk);
    const struct snapshot *snapshot = find(shard, number);
    *global_step = snapshot ? snapshot->at_step : -1;
    update_armed(shard);
    pthread_mutex_unlock(&shard->snapshot_lock);
    if (walk.saves == 0) {
        pthread_mutex_unlock(&shard->stripes[0].lock);
        return state;
    }
    for (int k = 0; k < shard->stripe_count; k++) {
        shard_save_stripe(shard, &shard->stripes[k], &walk);
        shard_walk_on(shard, k, &walk, walk.global_step);
    }
    return state;
}

static void drop(struct shard *shard, bool (*is_meant)(const struct snapshot *snapshot, int64_t argument),
                 int64_t argument)
{
    pthread_mutex_lock(&shard->snapshot_lock);
    for (int i = 0; i < SHARD_SNAPSHOTS; i++) {
        if (is_meant(&shard->snapshots[i], argument)) {
            shard->snapshots[i].number = 0;
        }
    }
    update_armed(shard);
    pthread_mutex_unlock(&shard->snapshot_lock);
}

static bool has_number(const struct snapshot *snapshot, int64_t number)
{
    return snapshot->number == (uint64_t)number;
}

static bool is_ordered_at(const struct snapshot *snapshot, int64_t step)
{
    return is_order(snapshot->number) && snapshot->progress == SNAPSHOT_ARMED && snapshot->at_step == step;
}

static bool is_before(const struct snapshot *snapshot, int64_t step)
{
    return snapshot->at_step < step;
}

static bool is_any(const struct snapshot *snapshot, int64_t unused)
{
    (void)unused;
    return snapshot->number != 0;
}

void shard_release(struct shard *shard, uint64_t number)
{
    drop(shard, has_number, (int64_t)number);
}

void shard_skip_order(struct shard *shard, int64_t step)
{
    drop(shard, is_ordered_at, step);
}

void shard_forget_snapshots(struct shard *shard)
{
    drop(shard, is_any, 0);
}

void shard_snapshots_from(struct shard *shard, int64_t global_step)
{
    drop(shard, is_before, global_step);
}

bool shard_must_wait(struct shard *shard, int64_t step)
{
    int before = 0;
    bool ordered = false;
    if (!atomic_load_explicit(&shard->armed, memory_order_relaxed)) {
        return false;
    }
    pthread_mutex_lock(&shard->snapshot_lock);
    for (int i = 1; i < SHARD_SNAPSHOTS; i++) {
        const struct snapshot *order = &shard->snapshots[i];
        before += order->number != 0 && order->at_step < step;
        ordered = ordered || is_ordered_at(order, step);
    }
    pthread_mutex_unlock(&shard->snapshot_lock);
    return ordered && before >= SHARD_ORDERS_KEPT;
}

bool shard_snapshot_values(struct shard *shard, uint64_t number, enum store_vector vector, struct range range,
                           const float **values, int64_t *global_step, struct error *error)
{
    size_t local;
    if (!shard_check_vector(shard, vector, error)) {
        return false;
    }
    pthread_mutex_lock(&shard->snapshot_lock);
    const struct snapshot *snapshot = find(shard, number);
    bool ready = snapshot && snapshot->number != 0 && snapshot->progress == SNAPSHOT_READY;
    int copy = ready ? snapshot->copy : 0;
    *global_step = ready ? snapshot->at_step : -1;
    pthread_mutex_unlock(&shard->snapshot_lock);
    if (!ready) {
        return error_set(error, "there is no snapshot %llu", (unsigned long long)number);
    }
    if (!shard_locate(shard, range, &local, error)) {
        return false;
    }
    *values = shard->copies[copy][vector] + local;
    return true;
}
