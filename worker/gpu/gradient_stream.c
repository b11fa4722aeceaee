/* Passes on only whole rows, because a sink takes rows; a partial row waits for the next floats. */
#include "worker/gpu/gradient_stream.h"

/* Number of a variable's rows that are complete within `floats` leading floats. */
static int whole_rows(const struct variable *variable, size_t floats)
{
    size_t width = (size_t)variable->cols, stride = (size_t)variable->stride;
    if (floats < variable->offset + width) {
        return 0;
    }
    size_t rows = (floats - variable->offset - width) / stride + 1;
    return rows < (size_t)variable->rows ? (int)rows : variable->rows;
}

void gradient_stream_grown(void *context, size_t floats)
{
    struct gradient_stream *feed = context;
    while (feed->variable < feed->model->variable_count) {
        const struct variable *variable = &feed->model->variables[feed->variable];
        int rows = whole_rows(variable, floats);
        if (rows > feed->row) {
            struct gradient_block block = {.variable = feed->variable,
                                           .row = feed->row,
                                           .rows = rows - feed->row,
                                           .cols = variable->cols,
                                           .values = feed->gradient + variable->offset +
                                                     (size_t)feed->row * (size_t)variable->stride,
                                           .stride = variable->stride};
            feed->sink->block(feed->sink->context, &block);
            feed->row = rows;
        }
        if (feed->row < variable->rows) {
            return;
        }
        feed->variable++;
        feed->row = 0;
    }
}

/* Passes on the rows of a block from `first` on, one by one; listed rows count from the block's first. */
static void pass_rows(const struct gradient_stream *feed, const struct gradient_block *block, int first)
{
    static const int32_t nothing[1];
    int next = 0; /* index among the rows that values contains */
    for (int row = 0; row < block->rows; row++) {
        bool present = !block->present || (next < block->present_count && block->present[next] == row);
        if (row >= first) {
            struct gradient_block one = *block;
            one.row = block->row + row;
            one.rows = 1;
            one.present = present ? NULL : nothing;
            one.present_count = 0;
            one.values = block->values + (present ? (size_t)next * (size_t)block->stride : 0);
            feed->sink->block(feed->sink->context, &one);
        }
        next += present;
    }
}

static void pass_on(void *context, const struct gradient_block *block)
{
    const struct gradient_stream *feed = context;
    if (block->variable < feed->variable) {
        return;
    }
    if (block->variable == feed->variable && block->row < feed->row) {
        pass_rows(feed, block, feed->row - block->row);
        return;
    }
    feed->sink->block(feed->sink->context, block);
}

struct gradient_sink gradient_stream_rest(struct gradient_stream *feed)
{
    return (struct gradient_sink){.block = pass_on, .context = feed};
}
