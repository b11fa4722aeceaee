/*
 * Which floats a shard holds, and where: its blocks, stripes and stages.
 *
 * All of a shard's vectors, its snapshots and the workers' stages share one layout: the spans one after another,
 * padding included, so that one offset ("local") serves them all.
 */
#include <stdlib.h>
#include <string.h>

#include "ps/shard/internal.h"
#include "ps/store/outer.h"

/* How a variable is divided: blocks of several whole rows, or several blocks per row. */
struct layout_cut {
    int rows;
    int cols;
};

static struct layout_cut cut_of(const struct variable *variable)
{
    if (variable->stride * 2 <= SHARD_BLOCK) {
        return (struct layout_cut){SHARD_BLOCK / variable->stride, variable->cols};
    }
    int pieces = (variable->cols + SHARD_BLOCK - 1) / SHARD_BLOCK;
    int cols = (variable->cols + pieces - 1) / pieces;
    return (struct layout_cut){1, (cols + MODEL_ROW_ALIGN - 1) / MODEL_ROW_ALIGN * MODEL_ROW_ALIGN};
}

/* The blocks of rows [row, end) of a variable, appended at blocks[count]; blocks NULL: only counts. */
static size_t cut_rows(const struct variable *variable, int row, int end, size_t local, struct shard_block *blocks,
                       size_t count)
{
    struct layout_cut cut = cut_of(variable);
    size_t stride = (size_t)variable->stride;
    for (int r = row; r < end; r += cut.rows) {
        for (int c = 0; c < variable->cols; c += cut.cols, count++) {
            if (!blocks) {
                continue;
            }
            blocks[count] = (struct shard_block){
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

static size_t cut_spans(const struct model *model, const struct span *spans, int span_count, struct shard_block *blocks)
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
    plan->blocks = cut_spans(model, plan->spans, plan->span_count, NULL);
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
    struct shard *shard = aligned_alloc(SHARD_ALIGN, shard_round_up(sizeof *shard));
    /* Zero pages from the system: what is never used, such as a snapshot or a stage, takes no memory. */
    void *memory = calloc(1, plan.total + SHARD_ALIGN);
    struct schedule *schedule = schedule_create(&config->train);
    if (!shard || !memory || !schedule) {
        schedule_destroy(schedule);
        free(shard);
        free(memory);
        return error_set(error,
                         "out of memory for %zu MiB of parameters, optimizer slots, snapshot and %d workers' "
                         "pushes: use more ps, or make model.layers smaller",
                         plan.total >> 20, plan.workers);
    }
    memset(shard, 0, sizeof *shard);
    shard->model = model;
    shard->train = outer_train(&config->train);
    shard->rounds = config->train;
    shard->has_rounds = config_has_rounds(&config->train);
    shard->weighs_examples = config_has_rounds(&config->train) && config->train.round_weights == WEIGHTS_BY_EXAMPLES;
    shard->buffer.size = config->train.buffer_size;
    shard->schedule = schedule;
    shard->wire_dtype = config->cluster.wire_dtype != WIRE_FLOAT32 ? DTYPE_BFLOAT16 : DTYPE_FLOAT32;
    shard->kernels = optimizer_kernels_get(config->train.cpu_kernels);
    shard->memory = memory;
    lay_out(shard, &plan);
    cut_spans(model, shard->spans, shard->span_count, shard->blocks);
    divide_into_stripes(shard);
    char *end = (char *)shard_round_up((size_t)memory) + plan.total;
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
    return shard->vectors[vector];
}

bool shard_check_vector(const struct shard *shard, enum store_vector vector, struct error *error)
{
    return (vector < STORE_PS_VECTORS && shard->vectors[vector]) ||
           error_set(error, "optimizer %s keeps no vector %d here", config_optimizer_name(shard->train.optimizer),
                     (int)vector);
}

bool shard_locate(const struct shard *shard, struct range range, size_t *local, struct error *error)
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
