/*
 * The mean of several gradients, in one fixed order: the reference for synchronous steps, whose bits must be these.
 */
#include "ps/store/collect.h"

#include <assert.h>
#include <string.h>

static void add_row(const struct collector *collector, int n, const float *restrict gradient, float *restrict sum)
{
    float weight = collector->weight;
    if (collector->first) {
        for (int i = 0; i < n; i++) {
            sum[i] = weight * gradient[i];
        }
    } else {
        for (int i = 0; i < n; i++) {
            sum[i] += weight * gradient[i];
        }
    }
}

static void collect(void *context, const struct gradient_block *block)
{
    const struct collector *collector = context;
    const struct variable *variable = &collector->model->variables[block->variable];
    assert(block->row >= 0 && block->rows >= 0 && block->row + block->rows <= variable->rows);
    assert(block->col >= 0 && block->cols >= 0 && block->col + block->cols <= variable->cols);
    float *sum = collector->sum + variable->offset + (size_t)block->row * (size_t)variable->stride + (size_t)block->col;
    const float *values = block->values;
    int next = 0;
    for (int row = 0; row < block->rows; row++, sum += variable->stride) {
        bool present = !block->present || (next < block->present_count && block->present[next] == row);
        if (present) {
            add_row(collector, block->cols, values, sum);
            values += block->stride;
            next++;
        } else if (collector->first) {
            memset(sum, 0, (size_t)block->cols * sizeof *sum);
        }
    }
}

struct gradient_sink collector_sink(struct collector *collector)
{
    return (struct gradient_sink){.block = collect, .context = collector};
}
