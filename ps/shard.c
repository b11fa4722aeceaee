/*
 * Creating a shard, and writing its vectors as the chief sends them: the shard is closed meanwhile, and everything
 * written is checked before it opens.
 */
#include "ps/shard.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/finite.h"
#include "base/memory.h"
#include "ps/shard/internal.h"
#include "ps/store/rounds.h"

/* --- Memory --- */

/* A ps's floats, and the bytes of each of its arrays. */
struct layout_plan {
    struct span spans[PLACEMENT_MAX_SPANS];
    int span_count;
    size_t floats, blocks;
    bool has[STORE_PS_VECTORS];
    bool synchronous;
    int vectors, workers;
    size_t vector_bytes, known_bytes, present_bytes, range_bytes, version_bytes, block_bytes, stage_bytes;
    size_t aggregate_bytes, buffer_bytes, sent_log_bytes;
    size_t total;
};

static void plan_make(struct layout_plan *plan, const struct model *model, const struct config *config, int ps)
{
    memset(plan, 0, sizeof *plan);
    plan->span_count =
        placement_spans(model, config->cluster.placement, config->cluster.ps_hosts.count, ps, plan->spans);
    for (int i = 0; i < plan->span_count; i++) {
        plan->floats += plan->spans[i].count;
    }
    plan->blocks = shard_cut(model, plan->spans, plan->span_count, NULL);
    const struct config_train train = outer_train(&config->train);
    for (int vector = 0; vector < STORE_PS_VECTORS; vector++) {
        plan->has[vector] = vector == STORE_SENT ? sent_model_is_kept(&config->cluster)
                                                 : store_has_vector(&train, (enum store_vector)vector);
        plan->vectors += plan->has[vector];
    }
    plan->workers = config_worker_room(&config->cluster);
    plan->vector_bytes = shard_round_up(plan->floats * sizeof(float));
    plan->present_bytes = shard_round_up(plan->blocks);
    plan->range_bytes = shard_round_up(plan->blocks * RANGE_BYTES);
    plan->version_bytes = shard_round_up(plan->blocks * sizeof(uint64_t));
    plan->block_bytes = shard_round_up(plan->blocks * sizeof(struct shard_block));
    plan->stage_bytes = shard_round_up((size_t)plan->workers * sizeof(struct stage));
    plan->synchronous = config->cluster.issync;
    plan->aggregate_bytes =
        plan->synchronous ? shard_round_up(aggregate_memory(plan->floats, plan->blocks, plan->workers)) : 0;
    plan->buffer_bytes = config->train.buffer_size > 0 ? plan->vector_bytes + plan->present_bytes : 0;
    plan->sent_log_bytes = plan->has[STORE_SENT] ? shard_round_up(shard_sent_memory(plan->floats)) : 0;
    plan->known_bytes =
        config->cluster.wire_dtype != WIRE_FLOAT32 ? shard_round_up(plan->floats * sizeof(uint16_t)) : 0;
    size_t per_worker =
        plan->vector_bytes * (plan->synchronous ? 2 : 1) + plan->known_bytes + plan->present_bytes + plan->range_bytes;
    plan->total = plan->vector_bytes * 2 * (size_t)plan->vectors + plan->block_bytes + plan->version_bytes +
                  plan->present_bytes + plan->stage_bytes + plan->buffer_bytes + plan->aggregate_bytes +
                  plan->sent_log_bytes + (size_t)plan->workers * per_worker;
}

size_t shard_memory(const struct model *model, const struct config *config, int ps)
{
    struct layout_plan plan;
    plan_make(&plan, model, config, ps);
    size_t orders = config->output.save_steps > 0 ? SHARD_ORDERS_KEPT * plan.vector_bytes * (size_t)plan.vectors : 0;
    return plan.total + SHARD_ALIGN + sizeof(struct shard) + orders;
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

static void lay_out(struct shard *shard, const struct layout_plan *plan)
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
    for (int vector = 0; vector < STORE_PS_VECTORS; vector++) {
        if (plan->has[vector]) {
            shard->vectors[vector] = carve(&memory, plan->vector_bytes);
            shard->copies[0][vector] = carve(&memory, plan->vector_bytes);
        }
    }
    shard->blocks = carve(&memory, plan->block_bytes);
    shard->versions = carve(&memory, plan->version_bytes);
    shard->moved = carve(&memory, plan->present_bytes);
    shard->stages = carve(&memory, plan->stage_bytes);
    if (plan->buffer_bytes > 0) {
        shard->buffer.mean = carve(&memory, plan->vector_bytes);
        shard->buffer.present = carve(&memory, plan->present_bytes);
    }
    for (int i = 0; i < plan->workers; i++) {
        shard->stages[i].shard = shard;
        shard->stages[i].values = carve(&memory, plan->vector_bytes);
        shard->stages[i].answer = plan->synchronous ? carve(&memory, plan->vector_bytes) : shard->stages[i].values;
        shard->stages[i].known = plan->known_bytes > 0 ? carve(&memory, plan->known_bytes) : NULL;
        shard->stages[i].present = carve(&memory, plan->present_bytes);
        shard->stages[i].ranges = carve(&memory, plan->range_bytes);
    }
}

bool shard_create(struct shard **result, const struct model *model, const struct config *config, int ps,
                  struct error *error)
{
    struct layout_plan plan;
    plan_make(&plan, model, config, ps);
    if (plan.floats > UINT32_MAX) {
        return error_set(error, "ps %d would hold %zu floats, more than a message can name (%lu): use more ps", ps,
                         plan.floats, (unsigned long)UINT32_MAX);
    }
    struct shard *shard = must_align(sizeof *shard, "a shard");
    memset(shard, 0, sizeof *shard);
    shard->model = model;
    shard->train = outer_train(&config->train);
    shard->rounds = config->train;
    shard->has_rounds = config_has_rounds(&config->train);
    shard->weighs_examples = config_has_rounds(&config->train) && config->train.round_weights == WEIGHTS_BY_EXAMPLES;
    shard->buffer.size = config->train.buffer_size;
    shard->schedule = schedule_create(&config->train);
    shard->wire_dtype = config->cluster.wire_dtype != WIRE_FLOAT32 ? DTYPE_BFLOAT16 : DTYPE_FLOAT32;
    shard->kernels = optimizer_kernels_get(config->train.cpu_kernels);
    /* Zero pages from the system: what is never used, such as a snapshot or a stage, takes no memory. */
    shard->memory = must_zero(1, plan.total + SHARD_ALIGN,
                              "parameters, optimizer slots, snapshot and workers' pushes: use more ps, or make "
                              "model.layers smaller");
    lay_out(shard, &plan);
    shard_cut(model, shard->spans, shard->span_count, shard->blocks);
    divide_into_stripes(shard);
    char *end = (char *)shard_round_up((size_t)shard->memory) + plan.total;
    if (plan.synchronous) {
        aggregate_create(shard, end - plan.aggregate_bytes);
    }
    if (plan.has[STORE_SENT]) {
        shard_sent_create(shard, &config->cluster, end - plan.aggregate_bytes - plan.sent_log_bytes);
    }
    pthread_mutex_init(&shard->snapshot_lock, NULL);
    atomic_init(&shard->closed, true);
    *result = shard;
    return true;
}

void shard_destroy(struct shard *shard)
{
    if (!shard) {
        return;
    }
    for (int i = 0; i < shard->stripe_count; i++) {
        pthread_mutex_destroy(&shard->stripes[i].lock);
    }
    pthread_mutex_destroy(&shard->snapshot_lock);
    aggregate_destroy(shard);
    schedule_destroy(shard->schedule);
    free(shard->order_memory);
    free(shard->memory);
    free(shard);
}

/* --- Restoring --- */

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

void shard_set_retries(struct shard *shard, int retries)
{
    schedule_set_retries(shard->schedule, retries);
}

int shard_retries(struct shard *shard)
{
    return schedule_retries(shard->schedule);
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
