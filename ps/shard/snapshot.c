/* The state of one step, kept while training goes on: stripe by stripe, by whoever takes that step. */
#include <assert.h>
#include <string.h>

#include "ps/shard/internal.h"

void shard_save_stripe(struct shard *shard, const struct stripe *stripe)
{
    if (stripe->first_block == stripe->end_block) {
        return;
    }
    /* From here to where the next stripe begins, so that padding is copied as well. */
    size_t from = shard->blocks[stripe->first_block].local;
    size_t to = stripe->end_block < shard->block_count ? shard->blocks[stripe->end_block].local : shard->floats;
    for (int vector = 0; vector < STORE_VECTORS; vector++) {
        if (shard->vectors[vector] != NULL) {
            memcpy(shard->saved[vector] + from, shard->vectors[vector] + from, (to - from) * sizeof(float));
        }
    }
}

void shard_snapshot_done(struct shard *shard, uint64_t number)
{
    pthread_mutex_lock(&shard->snapshot_lock);
    if (shard->snapshot.number == number) {
        shard->snapshot.progress = SNAPSHOT_READY;
    }
    pthread_mutex_unlock(&shard->snapshot_lock);
}

void shard_join_snapshot(struct shard *shard, struct block_walk *walk)
{
    pthread_mutex_lock(&shard->snapshot_lock);
    struct snapshot *snapshot = &shard->snapshot;
    if (snapshot->number != 0 && snapshot->progress == SNAPSHOT_ARMED && snapshot->at_step == walk->global_step) {
        snapshot->progress = SNAPSHOT_BEGUN;
        walk->saves = true;
        walk->snapshot = snapshot->number;
    }
    pthread_mutex_unlock(&shard->snapshot_lock);
}

/* Decides what a request for a snapshot comes to, with the first stripe locked; true: to be taken now. */
static bool begin_snapshot(struct shard *shard, uint64_t number, int64_t at_step, enum snapshot_state *state)
{
    struct snapshot *snapshot = &shard->snapshot;
    if (snapshot->number == number && snapshot->progress != SNAPSHOT_ARMED) {
        *state = snapshot->progress == SNAPSHOT_READY ? SNAPSHOT_TAKEN : SNAPSHOT_PENDING;
        return false;
    }
    if (at_step >= 0 && at_step < shard->global_step) {
        *state = SNAPSHOT_PASSED;
        return false;
    }
    bool now = at_step < 0 || at_step == shard->global_step;
    *snapshot = (struct snapshot){
        .number = number,
        .at_step = now ? shard->global_step : at_step,
        .progress = now ? SNAPSHOT_BEGUN : SNAPSHOT_ARMED,
    };
    *state = now ? SNAPSHOT_TAKEN : SNAPSHOT_PENDING;
    return now;
}

enum snapshot_state shard_snapshot(struct shard *shard, uint64_t number, int64_t at_step, int64_t *global_step)
{
    enum snapshot_state state;
    assert(number != 0);
    if (!shard_walk_enter_any(shard)) {
        return SNAPSHOT_CLOSED;
    }
    struct block_walk walk = {.version = shard->version, .global_step = shard->global_step, .snapshot = number};
    pthread_mutex_lock(&shard->snapshot_lock);
    walk.saves = begin_snapshot(shard, number, at_step, &state);
    *global_step = shard->snapshot.at_step;
    pthread_mutex_unlock(&shard->snapshot_lock);
    if (!walk.saves) {
        pthread_mutex_unlock(&shard->stripes[0].lock);
        return state;
    }
    for (int k = 0; k < shard->stripe_count; k++) {
        shard_save_stripe(shard, &shard->stripes[k]);
        shard_walk_on(shard, k, &walk, walk.global_step);
    }
    return state;
}

void shard_release(struct shard *shard, uint64_t number)
{
    pthread_mutex_lock(&shard->snapshot_lock);
    if (shard->snapshot.number == number) {
        memset(&shard->snapshot, 0, sizeof shard->snapshot);
    }
    pthread_mutex_unlock(&shard->snapshot_lock);
}

bool shard_snapshot_values(struct shard *shard, uint64_t number, enum store_vector vector, struct range range,
                           const float **values, int64_t *global_step, struct error *error)
{
    size_t local;
    if (vector >= STORE_VECTORS || shard->saved[vector] == NULL) {
        return error_set(error, "optimizer %s keeps no vector %d here", config_optimizer_name(shard->train.optimizer),
                         (int)vector);
    }
    pthread_mutex_lock(&shard->snapshot_lock);
    bool ready = shard->snapshot.number == number && shard->snapshot.progress == SNAPSHOT_READY;
    *global_step = shard->snapshot.at_step;
    pthread_mutex_unlock(&shard->snapshot_lock);
    if (!ready) {
        return error_set(error, "there is no snapshot %llu", (unsigned long long)number);
    }
    if (!shard_locate(shard, range, &local, error)) {
        return false;
    }
    *values = shard->saved[vector] + local;
    return true;
}
