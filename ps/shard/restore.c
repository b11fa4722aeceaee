/*
 * Vectors as the chief writes them: the shard is closed meanwhile, and everything written is checked before it opens.
 */
#include <assert.h>
#include <string.h>

#include "base/finite.h"
#include "ps/shard/internal.h"

static void fill(float *values, size_t count, float value)
{
    for (size_t i = 0; i < count; i++) {
        values[i] = value;
    }
}

void shard_begin_write(struct shard *shard, uint32_t generation)
{
    pthread_mutex_lock(&shard->stripes[0].lock);
    schedule_settle(shard->schedule, shard->global_step);
    shard->generation = generation;
    atomic_store(&shard->closed, true);
    shard->global_step = 0;
    buffer_forget(&shard->buffer);
    for (int i = 0; i < shard->stripe_count; i++) {
        shard_walk_on(shard, i, &(struct block_walk){0}, 0);
    }
    shard_forget_snapshots(shard);
    for (int vector = 0; vector < STORE_PS_VECTORS; vector++) {
        shard->written[vector] = shard->written_to[vector] = 0;
        if (shard->vectors[vector]) {
            bool is_slot = vector == STORE_SLOT0 || vector == STORE_SLOT1;
            fill(shard->vectors[vector], shard->floats,
                 is_slot ? optimizer_slot_initial(&shard->train, vector - STORE_SLOT0) : 0.0f);
        }
    }
}

bool shard_claim_write(struct shard *shard, enum store_vector vector, struct range range, float **values,
                       struct error *error)
{
    size_t local;
    assert(atomic_load(&shard->closed));
    if (!shard_check_vector(shard, vector, error) || !shard_locate(shard, range, &local, error)) {
        return false;
    }
    *values = shard->vectors[vector] + local;
    return true;
}

/* Counts the model's floats in [from, to) of the shard, without the padding between them. */
static size_t count_real(const struct shard *shard, size_t from, size_t to)
{
    size_t real = 0;
    for (size_t i = 0; i < shard->block_count; i++) {
        const struct shard_block *block = &shard->blocks[i];
        size_t begin = block->local;
        if (begin >= to || begin + (size_t)block->rows * (size_t)block->stride <= from) {
            continue;
        }
        for (int row = 0; row < block->rows; row++, begin += (size_t)block->stride) {
            const size_t first = begin > from ? begin : from, end = begin + block->cols < to ? begin + block->cols : to;
            real += end > first ? end - first : 0;
        }
    }
    return real;
}

void shard_wrote(struct shard *shard, enum store_vector vector, struct range range)
{
    struct error error;
    size_t local = 0;
    size_t *to = &shard->written_to[vector];
    shard_locate(shard, range, &local, &error); /* it was claimed */
    const size_t end = local + range.count;
    if (end > *to) {
        shard->written[vector] += count_real(shard, local > *to ? local : *to, end);
        *to = end;
    }
}

/* Finds slots of a block whose bits differ from their initial ones: an update turns a negative zero positive. */
static bool slots_moved(const struct shard *shard, const struct shard_block *block)
{
    for (int slot = 0; slot < optimizer_slots(shard->train.optimizer); slot++) {
        float initial = optimizer_slot_initial(&shard->train, slot);
        const float *values = shard->vectors[STORE_SLOT0 + slot] + block->local;
        for (int row = 0; row < block->rows; row++, values += block->stride) {
            for (int col = 0; col < block->cols; col++) {
                if (memcmp(&values[col], &initial, sizeof initial) != 0) {
                    return true;
                }
            }
        }
    }
    return false;
}

/* Whatever was written there: loops over padding must only ever see its initial value. */
static void reset_padding(struct shard *shard, int vector, const struct shard_block *block, size_t end)
{
    bool is_slot = vector == STORE_SLOT0 || vector == STORE_SLOT1;
    float value = is_slot ? optimizer_slot_initial(&shard->train, vector - STORE_SLOT0) : 0.0f;
    for (int row = 0; row < block->rows; row++) {
        size_t from = block->local + (size_t)row * (size_t)block->stride + block->cols;
        size_t to = row + 1 < block->rows ? block->local + ((size_t)row + 1) * (size_t)block->stride : end;
        fill(shard->vectors[vector] + from, to - from, value);
    }
}

static bool check_written(struct shard *shard, struct error *error)
{
    size_t real = 0;
    for (size_t i = 0; i < shard->block_count; i++) {
        real += (size_t)shard->blocks[i].rows * shard->blocks[i].cols;
    }
    if (shard->written[STORE_PARAMETERS] < real) {
        return error_set(error, "only %zu of this shard's %zu parameters were written",
                         shard->written[STORE_PARAMETERS], real);
    }
    for (int vector = 0; vector < STORE_PS_VECTORS; vector++) {
        if (shard->vectors[vector] && !all_finite(shard->vectors[vector], shard->floats)) {
            return error_set(error, "vector %d was written with a value that is not finite", vector);
        }
    }
    return true;
}

bool shard_end_write(struct shard *shard, int64_t global_step, int64_t epoch_steps, struct error *error)
{
    assert(atomic_load(&shard->closed));
    if (!check_written(shard, error)) {
        return false;
    }
    if (!schedule_begin(shard->schedule, epoch_steps)) {
        return error_set(error, "the learning rate decays by epochs, and the number of steps in one is not known");
    }
    float *averages = shard->vectors[STORE_AVERAGES];
    if (averages && shard->written[STORE_AVERAGES] == 0) {
        memcpy(averages, shard->vectors[STORE_PARAMETERS], shard->floats * sizeof(float));
    }
    if (shard->sent_log && shard->written[STORE_SENT] == 0) {
        memcpy(shard->vectors[STORE_SENT], shard->vectors[STORE_PARAMETERS], shard->floats * sizeof(float));
    }
    for (size_t i = 0; i < shard->block_count; i++) {
        size_t end = i + 1 < shard->block_count ? shard->blocks[i + 1].local : shard->floats;
        for (int vector = 0; vector < STORE_PS_VECTORS; vector++) {
            if (shard->vectors[vector]) {
                reset_padding(shard, vector, &shard->blocks[i], end);
            }
        }
        shard->versions[i] = 1;
        shard->moved[i] = slots_moved(shard, &shard->blocks[i]);
    }
    pthread_mutex_lock(&shard->stripes[0].lock);
    shard->version = 1;
    shard->global_step = global_step;
    if (shard->sent_log) {
        shard_sent_forget(shard);
    }
    shard_snapshots_from(shard, global_step);
    for (int i = 0; i < shard->stripe_count; i++) {
        if (i + 1 == shard->stripe_count) {
            atomic_store(&shard->closed, false);
        }
        shard_walk_on(shard, i, &(struct block_walk){.version = 1}, global_step);
    }
    return true;
}
