/* Cuts between rows, found by walking the model's few variables; nothing here grows with the model. */
#include "ps/store/placement.h"

#include <assert.h>
#include <stdbool.h>

/* The row boundary nearest to `position`; of two, the first. */
static size_t nearest_row(const struct model *model, size_t position)
{
    for (int i = 0; i < model->variable_count; i++) {
        const struct variable *variable = &model->variables[i];
        size_t stride = (size_t)variable->stride;
        size_t end = variable->offset + (size_t)variable->rows * stride;
        if (position < end) {
            size_t rows = (position - variable->offset + (stride - 1) / 2) / stride;
            return variable->offset + rows * stride;
        }
    }
    return model->float_count;
}

/* floor(total x part / parts) without overflow for any model that fits into memory. */
static size_t share(size_t total, size_t part, size_t parts)
{
    return total / parts * part + total % parts * part / parts;
}

static int ranges_spans(const struct model *model, int ps_count, int ps, struct span spans[PLACEMENT_MAX_SPANS])
{
    size_t first = nearest_row(model, share(model->float_count, (size_t)ps, (size_t)ps_count));
    size_t end = nearest_row(model, share(model->float_count, (size_t)ps + 1, (size_t)ps_count));
    spans[0] = (struct span){first, end - first};
    return end > first ? 1 : 0;
}

/* The ps with the fewest floats; counts: [ps_count]. */
static int least_loaded(const size_t *counts, int ps_count)
{
    int least = 0;
    for (int i = 1; i < ps_count; i++) {
        least = counts[i] < counts[least] ? i : least;
    }
    return least;
}

static int variable_spans(const struct model *model, bool greedy, int ps_count, int ps,
                          struct span spans[PLACEMENT_MAX_SPANS])
{
    size_t counts[CONFIG_MAX_HOSTS] = {0};
    int span_count = 0;
    for (int i = 0; i < model->variable_count; i++) {
        const struct variable *variable = &model->variables[i];
        size_t count = (size_t)variable->rows * (size_t)variable->stride;
        int home = greedy ? least_loaded(counts, ps_count) : i % ps_count;
        counts[home] += count;
        if (home != ps) {
            continue;
        }
        struct span *last = span_count > 0 ? &spans[span_count - 1] : NULL;
        if (last && last->first + last->count == variable->offset) {
            last->count += count;
        } else {
            spans[span_count++] = (struct span){variable->offset, count};
        }
    }
    return span_count;
}

int placement_spans(const struct model *model, enum placement_policy policy, int ps_count, int ps,
                    struct span spans[PLACEMENT_MAX_SPANS])
{
    assert(ps_count > 0 && ps_count <= CONFIG_MAX_HOSTS && ps >= 0 && ps < ps_count);
    if (policy == PLACEMENT_RANGES) {
        return ranges_spans(model, ps_count, ps, spans);
    }
    return variable_spans(model, policy == PLACEMENT_GREEDY, ps_count, ps, spans);
}

int placement_first(const struct model *model, enum placement_policy policy, int ps_count)
{
    struct span spans[PLACEMENT_MAX_SPANS];
    int ps = 0;
    while (ps < ps_count && placement_spans(model, policy, ps_count, ps, spans) == 0) {
        ps++;
    }
    return ps < ps_count ? ps : 0;
}
