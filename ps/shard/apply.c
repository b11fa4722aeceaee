/*
 * Stages, asynchronous pushes, and answers.
 *
 * An answer is packed into the stage that the gradient came in: the packed data never reaches beyond the block just
 * applied, because packing leaves unchanged blocks out and adds nothing.
 *
 * With packed answers (ps/store/codec.h) the differences from what the workers were sent before are packed once
 * for all of them after each synchronous step, in a log of the last steps. The log takes no more memory than the sent
 * model: a worker whose version is no longer in it gets the whole sent model. It is guarded by the stripes' locks, all
 * of which a synchronous step holds: a thread that holds the first sees no step in progress.
 */
#include <assert.h>
#include <string.h>

#include "base/copy.h"
#include "base/finite.h"
#include "base/profile.h"
#include "ps/shard/internal.h"
#include "ps/store/codec.h"
#include "ps/store/rounds.h"

enum { SENT_VERSIONS = 256 /* in the log, at most */ };

struct sent_log {
    struct sent_packer packer;
    uint8_t *log; /* [capacity]: pieces, version after version, the oldest first */
    size_t capacity, used;
    struct sent_version {
        uint64_t version; /* the version that these pieces lead to, from the one before it */
        size_t at;        /* offset in the log */
    } versions[SENT_VERSIONS];
    int count;
};

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

void stage_set_weight(struct stage *stage, uint32_t examples)
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

void stage_set_staleness(struct stage *stage, uint32_t staleness)
{
    stage->staleness = staleness;
}

bool stage_is_finite(const struct stage *stage)
{
    return !stage->not_finite;
}

/* --- The log of packed answers --- */

size_t shard_sent_memory(size_t floats)
{
    return shard_round_up(sizeof(struct sent_log)) + 2 * shard_round_up(floats * sizeof(float));
}

/* Not counting padding. */
static size_t count_floats(const struct shard *shard)
{
    size_t floats = 0;
    for (size_t i = 0; i < shard->block_count; i++) {
        floats += (size_t)shard->blocks[i].rows * shard->blocks[i].cols;
    }
    return floats;
}

void shard_sent_create(struct shard *shard, const struct config_cluster *cluster, void *memory)
{
    const size_t bytes = shard_round_up(shard->floats * sizeof(float));
    struct sent_log *sent = memory;
    float *left = (float *)(void *)((char *)memory + shard_round_up(sizeof *sent));
    sent_packer_begin(&sent->packer, cluster, count_floats(shard), left);
    sent->log = (uint8_t *)left + bytes;
    sent->capacity = shard->floats * sizeof(float);
    shard->sent_log = sent;
}

void shard_sent_forget(struct shard *shard)
{
    shard->sent_log->used = 0;
    shard->sent_log->count = 0;
}

static void drop_oldest(struct sent_log *sent)
{
    const size_t end = sent->count > 1 ? sent->versions[1].at : sent->used;
    memmove(sent->log, sent->log + end, sent->used - end);
    sent->used -= end;
    sent->count--;
    for (int i = 0; i < sent->count; i++) {
        sent->versions[i] = (struct sent_version){sent->versions[i + 1].version, sent->versions[i + 1].at - end};
    }
}

static void begin_version(struct sent_log *sent, uint64_t version)
{
    if (sent->count == SENT_VERSIONS) {
        drop_oldest(sent);
    }
    sent->versions[sent->count++] = (struct sent_version){version, sent->used};
}

/*
 * Appends a piece of the newest version. Older ones are dropped; if only this one is left, it is dropped too (count 0).
 */
static void append(void *context, struct range range, const uint8_t *piece, size_t size)
{
    struct sent_log *sent = context;
    if (sent->count == 0) {
        return;
    }
    const size_t bytes = SENT_HEAD + size;
    while (sent->count > 0 && sent->used + bytes > sent->capacity) {
        drop_oldest(sent);
    }
    if (sent->count > 0) {
        range_put(sent->log + sent->used, 0, range);
        memcpy(sent->log + sent->used + RANGE_BYTES, &(uint32_t){(uint32_t)size}, sizeof(uint32_t));
        memcpy(sent->log + sent->used + SENT_HEAD, piece, size);
        sent->used += bytes;
    }
}

void shard_sent_step(struct shard *shard, uint64_t version)
{
    PROFILE("answer");
    struct sent_log *sent = shard->sent_log;
    const struct sent_sink sink = {append, sent};
    begin_version(sent, version);
    sent_packer_pack(&sent->packer, shard->vectors[STORE_PARAMETERS], shard->vectors[STORE_SENT], shard->spans,
                     shard->span_count, &sink);
}

struct sent_piece sent_piece_at(const uint8_t *bytes)
{
    const struct ranges ranges = {bytes, 1};
    struct sent_piece piece = {.range = range_get(&ranges, 0), .bytes = bytes + SENT_HEAD};
    memcpy(&piece.size, bytes + RANGE_BYTES, sizeof piece.size);
    return piece;
}

/* Where in the log the part starts that a worker with this version lacks; false: it is not all there. */
static bool find(const struct sent_log *sent, uint64_t since_version, uint64_t version, size_t *from)
{
    *from = sent->used;
    if (since_version == version) {
        return true;
    }
    for (int i = 0; i < sent->count; i++) {
        if (sent->versions[i].version == since_version + 1) {
            *from = sent->versions[i].at;
            return true;
        }
    }
    return false;
}

/*
 * First stripe locked: the changes since that version as they were sent; ranges are among the values (sent_piece_at).
 * False: they are no longer kept, and the sent model must be sent as a whole.
 */
static bool find_sent(struct shard *shard, struct stage *stage, uint64_t since_version, struct changes *changes)
{
    const struct sent_log *sent = shard->sent_log;
    size_t from;
    if (!find(sent, since_version, shard->version, &from)) {
        return false;
    }
    copy_bytes(stage->answer, sent->log + from, sent->used - from);
    *changes = (struct changes){.version = shard->version,
                                .global_step = shard->global_step,
                                .dtype = sent->packer.dtype,
                                .values = stage->answer,
                                .value_count = sent->used - from};
    return true;
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

bool stage_keeps_known(const struct stage *stage)
{
    return stage->known;
}

bool stage_is_known_to(const struct stage *stage, uint64_t connection)
{
    return stage->known_to == connection;
}

size_t stage_encode_delta(struct stage *stage, uint64_t connection, const struct ranges *ranges, const uint16_t *halves,
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
        bytes += held ? bfloat16_encode_delta(encoded + bytes, stage->known + local, halves, range.count, in_full) : 0;
        halves += range.count;
    }
    return bytes;
}

/* --- Applying --- */

void shard_step_prepare(const struct shard *shard, int64_t global_step, struct step *step)
{
    schedule_prepare(shard->schedule, step->updates, global_step);
    step->has_slots = shard->vectors[STORE_SLOT0];
    for (int i = 0; i < UPDATE_KINDS; i++) {
        step->loop[i] = optimizer_loop_get(shard->kernels, &step->updates[i], true);
        step->absent_loop[i] = optimizer_loop_get(shard->kernels, &step->updates[i], false);
        step->absent_is_noop[i] = update_zero_is_noop(&step->updates[i]);
        step->fresh_is_noop[i] = update_zero_is_noop_at_start(&step->updates[i]);
    }
}

static inline float *at(float *values, size_t offset)
{
    return !values ? NULL : values + offset;
}

void shard_move_block(struct shard *shard, const struct step *step, size_t i, const float *gradient)
{
    const struct shard_block *block = &shard->blocks[i];
    optimizer_loop loop = gradient ? step->loop[block->update] : step->absent_loop[block->update];
    loop(&step->updates[block->update],
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
    if (!gradient && block_is_unchanged(shard, step, i)) {
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

bool shard_compresses_answers(const struct shard *shard)
{
    return shard->sent_log;
}

bool shard_changes(struct shard *shard, uint32_t generation, struct stage *stage, uint64_t since_version,
                   enum dtype dtype, struct changes *changes)
{
    const bool is_packed = dtype_is_packed(dtype);
    const enum store_vector vector = is_packed ? STORE_SENT : STORE_PARAMETERS;
    assert(!is_packed || shard->sent_log);
    if (!shard_walk_enter(shard, generation)) {
        return false;
    }
    if (is_packed && find_sent(shard, stage, since_version, changes)) {
        pthread_mutex_unlock(&shard->stripes[0].lock);
        return true;
    }
    since_version = is_packed ? 0 : since_version;
    dtype = is_packed ? DTYPE_FLOAT32 : dtype;
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
