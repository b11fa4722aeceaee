/*
 * Which floats a shard holds, and where: its blocks and stripes.
 *
 * All of a shard's vectors, its snapshots and the workers' stages share one layout: the spans one after another,
 * padding included, so that one offset ("local") serves them all.
 */
#include "ps/shard/internal.h"

/* How a variable is divided: blocks of several whole rows, or several blocks per row. */
struct layout_cut {
    int rows;
    int cols;
};

static struct layout_cut cut_of(const struct variable *variable)
{
    if (variable->stride * 2 <= SHARD_BLOCK && variable->rows > 1) {
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
                .update = (uint8_t)variable->update,
            };
        }
    }
    return count;
}

size_t shard_cut(const struct model *model, const struct span *spans, int span_count, struct shard_block *blocks)
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
