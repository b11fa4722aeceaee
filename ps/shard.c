/*
 * Blocks, stripes, stages.
 *
 * All of a shard's vectors, its snapshot and the workers' stages share one layout: the spans one after another, padding
 * included, so that one offset ("local") serves them all. An answer is packed into the stage that the gradient came in:
 * what is packed never reaches beyond the block just applied, since packing leaves unchanged blocks out and adds nothing.
 */
#include "ps/shard/inside.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/copy.h"
#include "base/profile.h"
#include "ps/bfloat16.h"

/* --- Layout ------------------------------------------------------------------------------------------------------------ */

/* How a variable is cut: blocks of several whole rows, or several blocks to a row. */
struct cut {
    int rows;
    int cols;
};

static struct cut cut_of(const struct variable *variable)
{
    if (variable->stride * 2 <= SHARD_BLOCK && variable->rows > 1) {
        return (struct cut){SHARD_BLOCK / variable->stride, variable->cols};
    }
    int pieces = (variable->cols + SHARD_BLOCK - 1) / SHARD_BLOCK;
    int cols = (variable->cols + pieces - 1) / pieces;
    return (struct cut){1, (cols + MODEL_ROW_ALIGN - 1) / MODEL_ROW_ALIGN * MODEL_ROW_ALIGN};
}

/* The blocks of rows [row, end) of a variable, appended at blocks[count]; blocks NULL: only counts. */
static size_t cut_rows(const struct variable *variable, int row, int end, size_t local, struct block *blocks,
                       size_t count)
{
    struct cut cut = cut_of(variable);
    size_t stride = (size_t)variable->stride;
    for (int r = row; r < end; r += cut.rows) {
        for (int c = 0; c < variable->cols; c += cut.cols, count++) {
            if (blocks == NULL) {
                continue;
            }
            blocks[count] = (struct block){
                .first = variable->offset + (size_t)r * stride + (size_t)c,
                .local = local + (size_t)(r - row) * stride + (size_t)c,
                .stride = variable->stride,
                .rows = (uint16_t)(end - r < cut.rows ? end - r : cut.rows),
                .cols = (uint16_t)(variable->cols - c < cut.cols ? variable->cols - c : cut.cols),
                .is_weights = variable->is_weights,
            };
        }
    }
    return count;
}

static size_t cut_spans(const struct model *model, const struct span *spans, int span_count, struct block *blocks)
{
    size_t count = 0;
    size_t local = 0;
    for (int i = 0; i < span_count; i++) {
        size_t end = spans[i].first + spans[i].count;
        for (int k = 0; k < model->variable_count; k++) {
            const struct variable *variable = &model->variables[k];
            size_t stride = (size_t)variable->stride;
            size_t variable_end = variable->offset + (size_t)variable->rows * stride;
            size_t from = spans[i].first > variable->offset ? spans[i].first : variable->offset;
            size_t to = end < variable_end ? end : variable_end;
            if (from < to) {
                count = cut_rows(variable, (int)((from - variable->offset) / stride),
                                 (int)((to - variable->offset) / stride), local + from - spans[i].first, blocks, count);
            }
        }
        local += spans[i].count;
    }
    return count;
}

/* What a ps holds, and the bytes of each of its arrays. */
struct plan {
    struct span spans[PLACEMENT_MAX_SPANS];
    int span_count;
    size_t floats, blocks;
    bool has[STORE_VECTORS];
    bool synchronous;
    int vectors, workers;
    size_t vector_bytes, present_bytes, range_bytes, version_bytes, block_bytes, stage_bytes;
    size_t aggregate_bytes;
    size_t total;
};

static void plan_make(struct plan *plan, const struct model *model, const struct config *config, int ps)
{
    memset(plan, 0, sizeof *plan);
    plan->span_count =
        placement_spans(model, config->cluster.placement, config->cluster.ps_hosts.count, ps, plan->spans);
    for (int i = 0; i < plan->span_count; i++) {
        plan->floats += plan->spans[i].count;
    }
    plan->blocks = cut_spans(model, plan->spans, plan->span_count, NULL);
    plan->has[STORE_PARAMETERS] = true;
    plan->has[STORE_SLOT0] = optimizer_slots(config->train.optimizer) > 0;
    plan->has[STORE_SLOT1] = optimizer_slots(config->train.optimizer) > 1;
    plan->has[STORE_AVERAGES] = config->train.ema_decay > 0.0;
    for (int vector = 0; vector < STORE_VECTORS; vector++) {
        plan->vectors += plan->has[vector];
    }
    plan->workers = config_worker_room(&config->cluster);
    plan->vector_bytes = shard_round_up(plan->floats * sizeof(float));
    plan->present_bytes = shard_round_up(plan->blocks);
    plan->range_bytes = shard_round_up(plan->blocks * RANGE_BYTES);
    plan->version_bytes = shard_round_up(plan->blocks * sizeof(uint64_t));
    plan->block_bytes = shard_round_up(plan->blocks * sizeof(struct block));
    plan->stage_bytes = shard_round_up((size_t)plan->workers * sizeof(struct stage));
    plan->synchronous = config->cluster.issync;
    plan->aggregate_bytes = plan->synchronous ? shard_round_up(aggregate_memory(plan->floats, plan->blocks)) : 0;
    size_t per_worker = plan->vector_bytes * (plan->synchronous ? 2 : 1) + plan->present_bytes + plan->range_bytes;
    plan->total = plan->vector_bytes * 2 * (size_t)plan->vectors + plan->block_bytes + plan->version_bytes +
                  plan->present_bytes + plan->stage_bytes + plan->aggregate_bytes + (size_t)plan->workers * per_worker;
}

size_t shard_memory(const struct model *model, const struct config *config, int ps)
{
    struct plan plan;
    plan_make(&plan, model, config, ps);
    return plan.total + SHARD_ALIGN + sizeof(struct shard);
}

static void *carve(char **memory, size_t bytes)
{
    void *part = *memory;
    *memory += bytes;
    return part;
}

static void divide_into_stripes(struct shard *shard)
{
    size_t wanted = shard->floats / STRIPE_FLOATS;
    shard->stripe_count = wanted < 1 ? 1 : wanted > MAX_STRIPES ? MAX_STRIPES : (int)wanted;
    for (int i = 0; i < shard->stripe_count; i++) {
        size_t count = (size_t)shard->stripe_count;
        shard->stripes[i].first_block = shard->block_count * (size_t)i / count;
        shard->stripes[i].end_block = shard->block_count * ((size_t)i + 1) / count;
        pthread_mutex_init(&shard->stripes[i].lock, NULL);
    }
}

static void lay_out(struct shard *shard, const struct plan *plan)
{
    char *memory = (char *)shard_round_up((size_t)shard->memory);
    memcpy(shard->spans, plan->spans, sizeof shard->spans);
    shard->span_count = plan->span_count;
    shard->floats = plan->floats;
    shard->block_count = plan->blocks;
    shard->worker_count = plan->workers;
    size_t local = 0;
    for (int i = 0; i < plan->span_count; i++) {
        shard->span_locals[i] = local;
        local += plan->spans[i].count;
    }
    for (int vector = 0; vector < STORE_VECTORS; vector++) {
        if (plan->has[vector]) {
            shard->vectors[vector] = carve(&memory, plan->vector_bytes);
            shard->saved[vector] = carve(&memory, plan->vector_bytes);
        }
    }
    shard->blocks = carve(&memory, plan->block_bytes);
    shard->versions = carve(&memory, plan->version_bytes);
    shard->moved = carve(&memory, plan->present_bytes);
    shard->stages = carve(&memory, plan->stage_bytes);
    for (int i = 0; i < plan->workers; i++) {
        shard->stages[i].shard = shard;
        shard->stages[i].values = carve(&memory, plan->vector_bytes);
        shard->stages[i].answer = plan->synchronous ? carve(&memory, plan->vector_bytes) : shard->stages[i].values;
        shard->stages[i].present = carve(&memory, plan->present_bytes);
        shard->stages[i].ranges = carve(&memory, plan->range_bytes);
    }
}

bool shard_create(struct shard **result, const struct model *model, const struct config *config, int ps,
                  struct error *error)
{
    struct plan plan;
    plan_make(&plan, model, config, ps);
    if (plan.floats > UINT32_MAX) {
        return error_set(error, "ps %d would hold %zu floats, more than a message can name (%lu): use more ps", ps,
                         plan.floats, (unsigned long)UINT32_MAX);
    }
    struct shard *shard = aligned_alloc(SHARD_ALIGN, shard_round_up(sizeof *shard));
    /* Zero pages from the system: what is never used, a snapshot or a stage, takes no memory. */
    void *memory = calloc(1, plan.total + SHARD_ALIGN);
    struct schedule *schedule = schedule_create(&config->train);
    if (shard == NULL || memory == NULL || schedule == NULL) {
        schedule_destroy(schedule);
        free(shard);
        free(memory);
        return error_set(error,
                         "no memory for %zu MiB of parameters, optimizer slots, snapshot and %d workers' "
                         "pushes: use more ps, or make model.layers smaller",
                         plan.total >> 20, plan.workers);
    }
    memset(shard, 0, sizeof *shard);
    shard->model = model;
    shard->train = config->train;
    shard->schedule = schedule;
    shard->config_decay_steps = config->train.lr_decay_steps;
    shard->wire_dtype = config->cluster.wire_dtype == WIRE_BFLOAT16 ? DTYPE_BFLOAT16 : DTYPE_FLOAT32;
    shard->kernels = optimizer_kernels_get(config->train.cpu_kernels);
    shard->memory = memory;
    lay_out(shard, &plan);
    cut_spans(model, shard->spans, shard->span_count, shard->blocks);
    divide_into_stripes(shard);
    if (plan.synchronous) {
        aggregate_create(shard, (char *)shard_round_up((size_t)memory) + plan.total - plan.aggregate_bytes);
    }
    pthread_mutex_init(&shard->snapshot_lock, NULL);
    atomic_init(&shard->closed, true);
    *result = shard;
    return true;
}

void shard_destroy(struct shard *shard)
{
    if (shard == NULL) {
        return;
    }
    for (int i = 0; i < shard->stripe_count; i++) {
        pthread_mutex_destroy(&shard->stripes[i].lock);
    }
    pthread_mutex_destroy(&shard->snapshot_lock);
    aggregate_destroy(shard);
    schedule_destroy(shard->schedule);
    free(shard->memory);
    free(shard);
}

int shard_spans(const struct shard *shard, const struct span **spans)
{
    *spans = shard->spans;
    return shard->span_count;
}

size_t shard_floats(const struct shard *shard)
{
    return shard->floats;
}

bool shard_has(const struct shard *shard, enum store_vector vector)
{
    return shard->vectors[vector] != NULL;
}

/* Where a range lies in the shard's vectors; false if it is not held here as a whole. */
static bool locate(const struct shard *shard, struct range range, size_t *local, struct error *error)
{
    for (int i = 0; i < shard->span_count; i++) {
        const struct span *span = &shard->spans[i];
        if (range.first >= span->first && range.first - span->first < span->count) {
            size_t offset = (size_t)range.first - span->first;
            if (range.count > 0 && range.count <= span->count - offset) {
                *local = shard->span_locals[i] + offset;
                return true;
            }
        }
    }
    return error_set(error, "floats %llu to %llu are not all held here", (unsigned long long)range.first,
                     (unsigned long long)range.first + range.count - 1);
}

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

/* --- Passing through the stripes --------------------------------------------------------------------------------------- */

/* Takes the first stripe's lock, unless the shard is closed. */
static bool walk_enter(struct shard *shard)
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
    if (!walk_enter(shard)) {
        return false;
    }
    if (shard->generation == generation) {
        return true;
    }
    pthread_mutex_unlock(&shard->stripes[0].lock);
    return false;
}

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

/* Goes on from stripe i to the next one, or comes out at the end. */
static void walk_on(struct shard *shard, int i, const struct walk *walk, int64_t global_step)
{
    if (i + 1 < shard->stripe_count) {
        pthread_mutex_lock(&shard->stripes[i + 1].lock);
    } else {
        shard->done_version = walk->version;
        shard->done_step = global_step;
        if (walk->saves) {
            shard_snapshot_done(shard, walk->snapshot);
        }
    }
    pthread_mutex_unlock(&shard->stripes[i].lock);
}

void shard_now(struct shard *shard, uint64_t *version, int64_t *global_step)
{
    struct stripe *last = &shard->stripes[shard->stripe_count - 1];
    pthread_mutex_lock(&last->lock);
    if (version != NULL) {
        *version = shard->done_version;
    }
    if (global_step != NULL) {
        *global_step = shard->done_step;
    }
    pthread_mutex_unlock(&last->lock);
}

/* --- Restoring --------------------------------------------------------------------------------------------------------- */

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
    shard->version = 0;
    for (int i = 0; i < shard->stripe_count; i++) {
        walk_on(shard, i, &(struct walk){0}, 0);
    }
    pthread_mutex_lock(&shard->snapshot_lock);
    memset(&shard->snapshot, 0, sizeof shard->snapshot);
    pthread_mutex_unlock(&shard->snapshot_lock);
    for (int vector = 0; vector < STORE_VECTORS; vector++) {
        shard->claimed[vector] = 0;
        if (shard->vectors[vector] != NULL) {
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
    if (vector >= STORE_VECTORS || shard->vectors[vector] == NULL) {
        return error_set(error, "optimizer %s keeps no vector %d here", config_optimizer_name(shard->train.optimizer),
                         (int)vector);
    }
    if (!locate(shard, range, &local, error)) {
        return false;
    }
    shard->claimed[vector] += range.count;
    *values = shard->vectors[vector] + local;
    return true;
}

/* Not 0 if one of them is NaN or infinite. Written so that it becomes a handful of vector instructions. */
static uint32_t find_not_finite(const float *values, size_t count)
{
    uint32_t found = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        found |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return found;
}

/* Slots of a block that hold other bits than they begin with: an update makes a negative zero positive. */
static bool slots_moved(const struct shard *shard, const struct block *block)
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

/* Whatever was written there: no loop over padding may ever see anything but what it began with. */
static void reset_padding(struct shard *shard, int vector, const struct block *block, size_t end)
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
    if (shard->claimed[STORE_PARAMETERS] < real) {
        return error_set(error, "only %zu of this shard's %zu parameters were written",
                         shard->claimed[STORE_PARAMETERS], real);
    }
    for (int vector = 0; vector < STORE_VECTORS; vector++) {
        if (shard->vectors[vector] != NULL && find_not_finite(shard->vectors[vector], shard->floats) != 0) {
            return error_set(error, "vector %d as it was written holds a value that is not finite", vector);
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
    shard->train.lr_decay_steps = shard->config_decay_steps > 0 ? shard->config_decay_steps : epoch_steps;
    if (shard->train.lr_decay != 1.0 && shard->train.lr_decay_steps <= 0) {
        return error_set(error, "the learning rate decays by epochs, and the steps of one are not known");
    }
    schedule_begin(shard->schedule, &shard->train, epoch_steps);
    float *averages = shard->vectors[STORE_AVERAGES];
    if (averages != NULL && shard->claimed[STORE_AVERAGES] == 0) {
        memcpy(averages, shard->vectors[STORE_PARAMETERS], shard->floats * sizeof(float));
    }
    for (size_t i = 0; i < shard->block_count; i++) {
        size_t end = i + 1 < shard->block_count ? shard->blocks[i + 1].local : shard->floats;
        for (int vector = 0; vector < STORE_VECTORS; vector++) {
            if (shard->vectors[vector] != NULL) {
                reset_padding(shard, vector, &shard->blocks[i], end);
            }
        }
        shard->versions[i] = 1;
        shard->moved[i] = slots_moved(shard, &shard->blocks[i]);
    }
    pthread_mutex_lock(&shard->stripes[0].lock);
    shard->version = 1;
    shard->global_step = global_step;
    for (int i = 0; i < shard->stripe_count; i++) {
        if (i + 1 == shard->stripe_count) {
            atomic_store(&shard->closed, false);
        }
        walk_on(shard, i, &(struct walk){.version = 1}, global_step);
    }
    return true;
}

/* --- Stages ------------------------------------------------------------------------------------------------------------ */

struct stage *shard_stage(struct shard *shard, int worker)
{
    assert(worker >= 0 && worker < shard->worker_count);
    return &shard->stages[worker];
}

void stage_begin(struct stage *stage)
{
    memset(stage->present, 0, stage->shard->block_count);
    stage->not_finite = 0;
}

bool stage_claim(struct stage *stage, struct range range, float **values, struct error *error)
{
    const struct shard *shard = stage->shard;
    size_t local;
    if (!locate(shard, range, &local, error)) {
        return false;
    }
    size_t end = local + range.count;
    for (size_t i = block_after(shard, local); i < shard->block_count && shard->blocks[i].local < end; i++) {
        const struct block *block = &shard->blocks[i];
        size_t extent = block_extent(block);
        if (!stage->present[i] && (block->local < local || block->local + extent > end)) {
            memset(stage->values + block->local, 0, extent * sizeof(float));
        }
        stage->present[i] = 1;
    }
    *values = stage->values + local;
    return true;
}

void stage_check(struct stage *stage, const float *values, size_t count)
{
    stage->not_finite |= find_not_finite(values, count);
}

bool stage_is_finite(const struct stage *stage)
{
    return stage->not_finite == 0;
}

/* --- Answers ----------------------------------------------------------------------------------------------------------- */

size_t shard_pack_range(struct changes *changes, uint8_t *ranges, size_t *packed_local, const struct block *block)
{
    struct range last = {block->first, 0};
    size_t gap = 0;
    if (changes->range_count > 0 && *packed_local <= block->local && block->local - *packed_local <= PADDING_PACKED) {
        struct ranges packed = {ranges, changes->range_count};
        last = range_get(&packed, changes->range_count - 1);
        gap = block->local - *packed_local;
    }
    if (last.first + last.count + gap != block->first) { /* another span begins */
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

static void pack_block(struct stage *stage, const struct block *block)
{
    struct changes *changes = &stage->changes;
    size_t gap = shard_pack_range(changes, stage->ranges, &stage->packed_local, block);
    size_t count = gap + block_extent(block);
    shard_pack_values(stage->answer, changes->value_count - count, changes->dtype,
                      stage->shard->vectors[STORE_PARAMETERS] + block->local - gap, count);
}

static void pack_end(struct stage *stage, uint64_t version, int64_t global_step, struct changes *changes)
{
    stage->changes.version = version;
    stage->changes.global_step = global_step;
    *changes = stage->changes;
}

/* --- Applying ---------------------------------------------------------------------------------------------------------- */

void shard_step_prepare(const struct shard *shard, int64_t global_step, struct step *step)
{
    schedule_prepare(shard->schedule, &step->update[1], global_step);
    step->update[0] = step->update[1];
    update_spare_biases(&step->update[0]);
    step->has_slots = shard->vectors[STORE_SLOT0] != NULL;
    for (int i = 0; i < 2; i++) {
        step->loop[i] = optimizer_loop_get(shard->kernels, &step->update[i], true);
        step->absent_loop[i] = optimizer_loop_get(shard->kernels, &step->update[i], false);
        step->absent_is_noop[i] = update_zero_is_noop(&step->update[i]);
        step->fresh_is_noop[i] = update_zero_is_noop_at_start(&step->update[i]);
    }
}

static inline float *at(float *values, size_t offset)
{
    return values == NULL ? NULL : values + offset;
}

void shard_move_block(struct shard *shard, const struct step *step, size_t i, const float *gradient)
{
    const struct block *block = &shard->blocks[i];
    optimizer_loop loop = gradient != NULL ? step->loop[block->is_weights] : step->absent_loop[block->is_weights];
    loop(&step->update[block->is_weights],
         &(struct optimizer_rows){.rows = (size_t)block->rows,
                                  .cols = block->cols,
                                  .gradient = gradient != NULL ? gradient + block->local : NULL,
                                  .gradient_stride = (size_t)block->stride,
                                  .parameters = shard->vectors[STORE_PARAMETERS] + block->local,
                                  .slot0 = at(shard->vectors[STORE_SLOT0], block->local),
                                  .slot1 = at(shard->vectors[STORE_SLOT1], block->local),
                                  .average = at(shard->vectors[STORE_AVERAGES], block->local),
                                  .stride = (size_t)block->stride});
    shard->moved[i] |= gradient != NULL && step->has_slots;
}

/* True if the block changed. */
static bool apply_block(struct shard *shard, const struct step *step, size_t i, const struct stage *stage)
{
    if (!stage->present[i] && block_rests(shard, step, i)) {
        return false;
    }
    shard_move_block(shard, step, i, stage->present[i] ? stage->values : NULL);
    return true;
}

void shard_join_snapshot(struct shard *shard, struct walk *walk)
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

bool shard_apply(struct shard *shard, uint32_t generation, struct stage *stage, uint64_t base_version, enum dtype dtype,
                 struct changes *changes)
{
    PROFILE("apply");
    struct step step;
    if (!shard_walk_enter(shard, generation)) {
        return false;
    }
    struct walk walk = {.version = ++shard->version, .global_step = shard->global_step++};
    shard_step_prepare(shard, walk.global_step, &step);
    shard_join_snapshot(shard, &walk);
    pack_begin(stage, dtype);
    unsigned mode = optimizer_enter();
    for (int k = 0; k < shard->stripe_count; k++) {
        const struct stripe *stripe = &shard->stripes[k];
        if (walk.saves) {
            shard_save_stripe(shard, stripe);
        }
        for (size_t i = stripe->first_block; i < stripe->end_block; i++) {
            if (apply_block(shard, &step, i, stage)) {
                shard->versions[i] = walk.version;
            }
            if (shard->versions[i] > base_version) {
                pack_block(stage, &shard->blocks[i]);
            }
        }
        walk_on(shard, k, &walk, walk.global_step + 1);
    }
    optimizer_leave(mode);
    pack_end(stage, walk.version, walk.global_step + 1, changes);
    return true;
}

bool shard_changes(struct shard *shard, uint32_t generation, struct stage *stage, uint64_t since_version,
                   enum dtype dtype, struct changes *changes)
{
    if (!shard_walk_enter(shard, generation)) {
        return false;
    }
    struct walk walk = {.version = shard->version, .global_step = shard->global_step};
    pack_begin(stage, dtype);
    for (int k = 0; k < shard->stripe_count; k++) {
        for (size_t i = shard->stripes[k].first_block; i < shard->stripes[k].end_block; i++) {
            if (shard->versions[i] > since_version) {
                pack_block(stage, &shard->blocks[i]);
            }
        }
        walk_on(shard, k, &walk, walk.global_step);
    }
    pack_end(stage, walk.version, walk.global_step, changes);
    return true;
}

bool shard_read(struct shard *shard, enum store_vector vector, struct range range, float *values, struct error *error)
{
    size_t local;
    if (vector >= STORE_VECTORS || shard->vectors[vector] == NULL) {
        return error_set(error, "optimizer %s keeps no vector %d here", config_optimizer_name(shard->train.optimizer),
                         (int)vector);
    }
    if (!locate(shard, range, &local, error)) {
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

/* --- Snapshots --------------------------------------------------------------------------------------------------------- */

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
    if (!walk_enter(shard)) {
        return SNAPSHOT_CLOSED;
    }
    struct walk walk = {.version = shard->version, .global_step = shard->global_step, .snapshot = number};
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
        walk_on(shard, k, &walk, walk.global_step);
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
    if (!locate(shard, range, &local, error)) {
        return false;
    }
    *values = shard->saved[vector] + local;
    return true;
}
