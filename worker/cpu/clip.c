/*
 * Squares are summed by row, and every thread adds up the rows' sums in the same order, so that the scale, and with it
 * every bit of the update, does not depend on the number of threads.
 */
#include "worker/cpu/clip.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/memory.h"

void clip_create(struct clip *clip, const struct model *model, double limit)
{
    *clip = (struct clip){.model = model, .limit = limit};
    if (limit == 0.0) {
        return;
    }
    size_t rows = 0;
    for (int v = 0; v < model->variable_count; v++) {
        rows += (size_t)model->variables[v].rows;
    }
    clip->gradient = must_zero(model->float_count, sizeof *clip->gradient, "the gradient to clip: use --clip_norm=0");
    clip->squares = must_zero(rows, sizeof *clip->squares, "the gradient to clip: use --clip_norm=0");
    clip->collector = (struct collector){.model = model, .sum = clip->gradient, .weight = 1.0f, .first = true};
}

void clip_destroy(struct clip *clip)
{
    free(clip->gradient);
    free(clip->squares);
    *clip = (struct clip){0};
}

struct gradient_sink clip_sink(struct clip *clip)
{
    return collector_sink(&clip->collector);
}

static int share(int rows, int thread, int threads)
{
    return (int)((int64_t)rows * thread / threads);
}

static float *row_at(const struct clip *clip, const struct variable *variable, int row)
{
    return clip->gradient + variable->offset + (size_t)row * (size_t)variable->stride;
}

void clip_measure(struct clip *clip, int thread, int threads)
{
    double *squares = clip->squares;
    for (int v = 0; v < clip->model->variable_count; v++) {
        const struct variable *variable = &clip->model->variables[v];
        for (int row = share(variable->rows, thread, threads); row < share(variable->rows, thread + 1, threads);
             row++) {
            const float *values = row_at(clip, variable, row);
            double sum = 0.0;
            for (int i = 0; i < variable->cols; i++) {
                sum += (double)values[i] * (double)values[i];
            }
            squares[row] = sum;
        }
        squares += variable->rows;
    }
}

/* The gradient's scale. Every thread computes it, in the same order. */
static float factor(const struct clip *clip)
{
    double sum = 0.0;
    const double *squares = clip->squares;
    for (int v = 0; v < clip->model->variable_count; v++) {
        for (int row = 0; row < clip->model->variables[v].rows; row++) {
            sum += *squares++;
        }
    }
    double norm = sqrt(sum);
    return norm <= clip->limit ? 1.0f : (float)(clip->limit / norm);
}

/* Rows [row, end) that are all zero, or all nonzero. */
static void hand_run(struct clip *clip, int v, int row, int end, bool zero, float by, const struct gradient_sink *sink)
{
    static const int32_t none[1];
    const struct variable *variable = &clip->model->variables[v];
    for (int i = row; i < end && !zero && by != 1.0f; i++) {
        float *values = row_at(clip, variable, i);
        for (int k = 0; k < variable->cols; k++) {
            values[k] *= by;
        }
    }
    struct gradient_block block = {.variable = v,
                                   .row = row,
                                   .rows = end - row,
                                   .cols = variable->cols,
                                   .values = row_at(clip, variable, row),
                                   .stride = variable->stride,
                                   .present = zero ? none : NULL};
    sink->block(sink->context, &block);
}

void clip_hand_on(struct clip *clip, int thread, int threads, const struct gradient_sink *sink)
{
    float by = factor(clip);
    const double *squares = clip->squares;
    for (int v = 0; v < clip->model->variable_count; v++) {
        int rows = clip->model->variables[v].rows;
        int end = share(rows, thread + 1, threads);
        for (int row = share(rows, thread, threads); row < end;) {
            int first = row;
            bool zero = squares[row] == 0.0;
            while (row < end && (squares[row] == 0.0) == zero) {
                row++;
            }
            hand_run(clip, v, first, row, zero, by, sink);
        }
        squares += rows;
    }
}
