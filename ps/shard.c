/*
 * Asynchronous pushes: stages, the pass through the stripes, applying, answers.
 *
 * An answer is packed into the stage that the gradient came in: the packed data never reaches beyond the block just
 * applied, because packing leaves unchanged blocks out and adds nothing.
 */
#include <assert.h>
#include <string.h>

#include "base/copy.h"
#include "base/finite.h"
#include "base/profile.h"
#include "ps/store/bfloat16.h"
#include "ps/store/outer.h"
#include "ps/shard/internal.h"

/* --- Passing through the stripes --- */

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

void shard_now(struct shard *shard, uint64_t *version, int64_t *global_step)
{
    struct stripe *last = &shard->stripes[shard->stripe_count - 1];
    pthread_mutex_lock(&last->lock);
    if (version) {
        *version = shard->done_version;
    }
    if (global_step) {
        *global_step = shard->done_step;
    }
    pthread_mutex_unlock(&last->lock);
}

/* --- Stages --- */

/* The first block that ends after `local`. */
static size_t block_after(const struct shard *shard, size_t local)
{
    size_t low = 0;
    size_t high = shard->block_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (shard->blocks[middle].local + block_extent(&shard->blocks[middle]) <= local) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

struct stage *shard_stage(struct shard *shard, int worker)
{
    assert(worker >= 0 && worker < shard->worker_count);
    return &shard->stages[worker];
}

void stage_begin(struct stage *stage)
{
    memset(stage->present, 0, stage->shard->block_count);
    stage->not_finite = false;
}

bool stage_claim(struct stage *stage, struct range range, float **values, struct error *error)
{
    const struct shard *shard = stage->shard;
    size_t local;
    if (!shard_locate(shard, range, &local, error)) {
        return false;
    }
    size_t end = local + range.count;
    for (size_t i = block_after(shard, local); i < shard->block_count && shard->blocks[i].local < end; i++) {
        const struct shard_block *block = &shard->blocks[i];
        size_t extent = block_extent(block);
        if (!stage->present[i] && (block->local < local || block->local + extent > end)) {
            memset(stage->values + block->local, 0, extent * sizeof(float));
        }
        stage->present[i] = 1;
    }
    *values = stage->values + local;
    return true;
}

bool stage_scatter(struct stage *stage, struct range range, const uint16_t *places, const float *values, size_t count,
                   struct error *error)
{
    const struct shard *shard = stage->shard;
    size_t local;
    if (!shard_locate(shard, range, &local, error)) {
        return false;
    }
    size_t i = block_after(shard, local);
    for (size_t k = 0; k < count; k++) {
        const size_t at = local + places[k];
        while (i < shard->block_count && shard->blocks[i].local + block_extent(&shard->blocks[i]) <= at) {
            i++;
        }
        if (i == shard->block_count || shard->blocks[i].local > at) {
            continue; /* padding */
        }
        if (!stage->present[i]) {
            memset(stage->values + shard->blocks[i].local, 0, block_extent(&shard->blocks[i]) * sizeof(float));
            stage->present[i] = 1;
        }
        stage->values[at] = values[k];
    }
    return true;
}

void stage_weigh(struct stage *stage, uint32_t examples)
{
    const struct shard *shard = stage->shard;
    stage->examples = examples;
    stage->squares = 0;
    for (size_t i = 0; shard->rounds.clip_difference_norm > 0 && i < shard->block_count; i++) {
        const struct shard_block *block = &shard->blocks[i];
        for (int row = 0; stage->present[i] && row < block->rows; row++) {
            stage->squares = outer_squares(
                stage->squares, stage->values + block->local + (size_t)row * (size_t)block->stride, block->cols);
        }
    }
}

void stage_check(struct stage *stage, const float *values, size_t count)
{
    stage->not_finite = stage->not_finite || !all_finite(values, count);
}

void stage_age(struct stage *stage, uint32_t staleness)
{
    stage->staleness = staleness;
}

bool stage_is_finite(const struct stage *stage)
{
    return !stage->not_finite;
}

/* --- Answers --- */

size_t shard_pack_range(struct changes *changes, uint8_t *ranges, size_t *packed_local, const struct shard_block *block)
{
    struct range last = {block->first, 0};
    size_t gap = 0;
    if (changes->range_count > 0 && *packed_local <= block->local && block->local - *packed_local <= PADDING_PACKED) {
        struct ranges packed = {ranges, changes->range_count};
        last = range_get(&packed, changes->range_count - 1);
        gap = block->local - *packed_local;
    }
    if (last.first + last.count + gap != block->first) { /* another span starts */
        last = (struct range){block->first, 0};
        gap = 0;
    }
    changes->range_count += last.count == 0;
    size_t count = gap + block_extent(block);
    changes->value_count += count;
    last.count += (uint32_t)count;
    *packed_local = block->local - gap + count;
    range_put(ranges, changes->range_count - 1, last);
    return gap;
}

void shard_pack_values(void *values, uint64_t at, enum dtype dtype, const float *from, size_t count)
{
    if (dtype == DTYPE_FLOAT32) {
        copy_bytes((float *)values + at, from, count * sizeof *from);
    } else {
        bfloat16_from_floats((uint16_t *)values + at, from, count);
    }
}

static void pack_begin(struct stage *stage, enum dtype dtype)
{
    stage->changes = (struct changes){.dtype = dtype, .ranges = stage->ranges, .values = stage->answer};
}

static void pack_block(struct stage *stage, enum store_vector vector, const struct shard_block *block)
{
    struct changes *changes = &stage->changes;
    size_t gap = shard_pack_range(changes, stage->ranges, &stage->packed_local, block);
    size_t count = gap + block_extent(block);
    shard_pack_values(stage->answer, changes->value_count - count, changes->dtype,
                      stage->shard->vectors[vector] + block->local - gap, count);
}

static void pack_end(struct stage *stage, uint64_t version, int64_t global_step, struct changes *changes)
{
    stage->changes.version = version;
    stage->changes.global_step = global_step;
    *changes = stage->changes;
}

bool stage_remembers(const struct stage *stage)
{
    return stage->known;
}

bool stage_is_known_to(const struct stage *stage, uint64_t connection)
{
    return stage->known_to == connection;
}

size_t stage_tell(struct stage *stage, uint64_t connection, const struct ranges *ranges, const uint16_t *halves,
                  bool in_full, uint8_t *encoded)
{
    size_t bytes = 0;
    stage->known_to = connection;
    for (uint32_t i = 0; i < ranges->count; i++) {
        struct range range = range_get(ranges, i);
        struct error error;
        size_t local;
        bool held = shard_locate(stage->shard, range, &local, &error);
        assert(held);
        bytes += held ? bfloat16_tell(encoded + bytes, stage->known + local, halves, range.count, in_full) : 0;
        halves += range.count;
    }
    return bytes;
}

/* --- Applying --- */

void shard_step_prepare(const struct shard *shard, int64_t global_step, struct step *step)
{
    schedule_prepare(shard->schedule, &step->update[1], global_step);
    step->update[0] = step->update[1];
    update_spare_biases(&step->update[0]);
    step->has_slots = shard->vectors[STORE_SLOT0];
    for (int i = 0; i < 2; i++) {
        step->loop[i] = optimizer_loop_get(shard->kernels, &step->update[i], true);
        step->absent_loop[i] = optimizer_loop_get(shard->kernels, &step->update[i], false);
        step->absent_is_noop[i] = update_zero_is_noop(&step->update[i]);
        step->fresh_is_noop[i] = update_zero_is_noop_at_start(&step->update[i]);
    }
}

static inline float *at(float *values, size_t offset)
{
    return !values ? NULL : values + offset;
}

void shard_move_block(struct shard *shard, const struct step *step, size_t i, const float *gradient)
{
    const struct shard_block *block = &shard->blocks[i];
    optimizer_loop loop = gradient ? step->loop[block->is_weights] : step->absent_loop[block->is_weights];
    loop(&step->update[block->is_weights],
         &(struct optimizer_rows){.rows = (size_t)block->rows,
                                  .cols = block->cols,
                                  .gradient = gradient ? gradient + block->local : NULL,
                                  .gradient_stride = (size_t)block->stride,
                                  .parameters = shard->vectors[STORE_PARAMETERS] + block->local,
                                  .slot0 = at(shard->vectors[STORE_SLOT0], block->local),
                                  .slot1 = at(shard->vectors[STORE_SLOT1], block->local),
                                  .average = at(shard->vectors[STORE_AVERAGES], block->local),
                                  .stride = (size_t)block->stride});
    shard->moved[i] |= gradient && step->has_slots;
}

/* True if the block changed. gradient: as for shard_move_block. */
static bool apply_block(struct shard *shard, const struct step *step, size_t i, const float *gradient)
{
    if (!gradient && block_rests(shard, step, i)) {
        return false;
    }
    shard_move_block(shard, step, i, gradient);
    return true;
}

/* The gradient of the push's step: its own, or the gathered one. NULL: the block is absent. */
static const float *gradient_of(const struct shard *shard, const struct buffer_turn *turn, const struct stage *stage,
                                size_t i)
{
    const unsigned char *present = turn->gathers ? shard->buffer.present : stage->present;
    return !present[i] ? NULL : turn->gathers ? shard->buffer.mean : stage->values;
}

bool shard_apply(struct shard *shard, uint32_t generation, struct stage *stage, uint64_t base_version, enum dtype dtype,
                 struct changes *changes)
{
    PROFILE("apply");
    struct step step;
    if (!shard_walk_enter(shard, generation)) {
        return false;
    }
    const struct buffer_turn turn = buffer_take(shard, stage);
    const int steps = turn.makes_step;
    shard->version += (uint64_t)steps;
    struct block_walk walk = {.version = shard->version, .global_step = shard->global_step};
    shard->global_step += steps;
    if (turn.makes_step) {
        shard_step_prepare(shard, walk.global_step, &step);
        shard_join_snapshots(shard, &walk);
    }
    pack_begin(stage, dtype);
    unsigned mode = optimizer_enter();
    for (int k = 0; k < shard->stripe_count; k++) {
        const struct stripe *stripe = &shard->stripes[k];
        shard_save_stripe(shard, stripe, &walk);
        buffer_gather(shard, &turn, stage, stripe);
        for (size_t i = stripe->first_block; i < stripe->end_block; i++) {
            if (turn.makes_step && apply_block(shard, &step, i, gradient_of(shard, &turn, stage, i))) {
                shard->versions[i] = walk.version;
            }
            if (shard->versions[i] > base_version) {
                pack_block(stage, STORE_PARAMETERS, &shard->blocks[i]);
            }
        }
        shard_walk_on(shard, k, &walk, walk.global_step + steps);
    }
    optimizer_leave(mode);
    pack_end(stage, walk.version, walk.global_step + steps, changes);
    return true;
}

bool shard_tells(const struct shard *shard)
{
    return shard->sent_log;
}

bool shard_changes(struct shard *shard, uint32_t generation, struct stage *stage, uint64_t since_version,
                   enum dtype dtype, struct changes *changes)
{
    const bool tells = dtype_is_packed(dtype);
    const enum store_vector vector = tells ? STORE_SENT : STORE_PARAMETERS;
    assert(!tells || shard->sent_log);
    if (!shard_walk_enter(shard, generation)) {
        return false;
    }
    if (tells && shard_sent_since(shard, stage, since_version, changes)) {
        pthread_mutex_unlock(&shard->stripes[0].lock);
        return true;
    }
    since_version = tells ? 0 : since_version;
    dtype = tells ? DTYPE_FLOAT32 : dtype;
    struct block_walk walk = {.version = shard->version, .global_step = shard->global_step};
    pack_begin(stage, dtype);
    for (int k = 0; k < shard->stripe_count; k++) {
        for (size_t i = shard->stripes[k].first_block; i < shard->stripes[k].end_block; i++) {
            if (shard->versions[i] > since_version) {
                pack_block(stage, vector, &shard->blocks[i]);
            }
        }
        shard_walk_on(shard, k, &walk, walk.global_step);
    }
    pack_end(stage, walk.version, walk.global_step, changes);
    return true;
}

bool shard_read(struct shard *shard, enum store_vector vector, struct range range, float *values, struct error *error)
{
    size_t local;
    if (!shard_check_vector(shard, vector, error) || !shard_locate(shard, range, &local, error)) {
        return false;
    }
    size_t end = local + range.count;
    for (int k = 0; k < shard->stripe_count; k++) {
        struct stripe *stripe = &shard->stripes[k];
        size_t from = shard->blocks[stripe->first_block].local;
        size_t to = stripe->end_block < shard->block_count ? shard->blocks[stripe->end_block].local : shard->floats;
        from = from > local ? from : local;
        to = to < end ? to : end;
        if (from >= to) {
            continue;
        }
        pthread_mutex_lock(&stripe->lock);
        bool closed = atomic_load(&shard->closed);
        if (!closed) {
            memcpy(values + (from - local), shard->vectors[vector] + from, (to - from) * sizeof(float));
        }
        pthread_mutex_unlock(&stripe->lock);
        if (closed) {
            return error_set(error, "the parameters are being restored");
        }
    }
    return true;
}
