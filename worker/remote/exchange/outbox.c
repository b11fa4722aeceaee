/*
 * Rows are few and long, or many and short. Those that follow one another are sent as one run where the padding between
 * them costs less than a range of its own would (its bytes, and its handling on both sides).
 */
#include "worker/remote/exchange/outbox.h"

#include <stdlib.h>
#include <string.h>

#include "base/copy.h"
#include "ps/store/bfloat16.h"

enum {
    PADDING_SENT = 32,      /* floats between two rows that are still sent along */
    RUN_FLOATS = 64 * 1024, /* longest run, about */
};

static size_t round_up(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

bool outbox_create(struct outbox *outbox, const struct model *model, enum dtype dtype, const struct outbox *remainders,
                   struct error *error)
{
    *outbox = (struct outbox){.model = model, .dtype = dtype};
    for (int i = 0; i < model->variable_count; i++) {
        outbox->first_row[i] = outbox->rows;
        outbox->rows += (size_t)model->variables[i].rows;
    }
    bool lent = dtype == DTYPE_BFLOAT16 && remainders;
    size_t floats = lent ? 0 : round_up(model->float_count * sizeof(float));
    size_t halves = dtype == DTYPE_BFLOAT16 ? round_up(model->float_count * sizeof(uint16_t)) : 0;
    size_t size = floats + halves + round_up(outbox->rows);
    uint8_t *memory = aligned_alloc(64, size);
    if (!memory) {
        return error_set(error, "out of memory for the gradient of %zu floats", model->float_count);
    }
    memset(memory, 0, size); /* padding is sent along, and stays zero */
    outbox->memory = memory;
    if (dtype == DTYPE_BFLOAT16) {
        outbox->remainders = lent ? remainders->remainders : (float *)(void *)memory;
        outbox->halves = (uint16_t *)(void *)(memory + floats);
    } else {
        outbox->values = (float *)(void *)memory;
    }
    outbox->present = (_Atomic unsigned char *)(memory + floats + halves);
    return true;
}

void outbox_destroy(struct outbox *outbox)
{
    free(outbox->memory);
    memset(outbox, 0, sizeof *outbox);
}

void outbox_begin(struct outbox *outbox)
{
    for (size_t i = 0; i < outbox->rows; i++) {
        atomic_store_explicit(&outbox->present[i], 0, memory_order_relaxed);
    }
}

/* Whatever its sign, a zero is a zero. */
static bool has_float(const float *values, int n)
{
    uint32_t any = 0;
    for (int i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        any |= bits << 1;
    }
    return any != 0;
}

/*
 * One row of a block. Its columns may come in several blocks, one of them zero: the row is present once one is not, and
 * then its other columns must be right as well, so zeros are stored too.
 */
static void take_row(struct outbox *outbox, const struct gradient_block *block, int row, const float *values)
{
    const struct variable *variable = &outbox->model->variables[block->variable];
    size_t offset = variable->offset + (size_t)row * (size_t)variable->stride + (size_t)block->col;
    bool some;
    if (outbox->dtype == DTYPE_BFLOAT16) {
        some = bfloat16_feed_back(outbox->halves + offset, outbox->remainders + offset, values, (size_t)block->cols);
    } else {
        copy_bytes(outbox->values + offset, values, (size_t)block->cols * sizeof *values);
        /* Rows are listed if they have a pixel that is not zero, and then are hardly ever zero themselves. */
        some = block->present || has_float(values, block->cols);
    }
    if (some) {
        atomic_store_explicit(&outbox->present[outbox->first_row[block->variable] + (size_t)row], 1,
                              memory_order_relaxed);
    }
}

/* Blocks are strips: rows too short for the processor to see where the next one lies, long gone from its caches. */
static void prefetch_row(const struct outbox *outbox, const struct gradient_block *block, int k, int count)
{
    enum { LINE = 64 };
    if (k >= count) {
        return;
    }
    const struct variable *variable = &outbox->model->variables[block->variable];
    int row = block->row + (block->present ? block->present[k] : k);
    size_t offset = variable->offset + (size_t)row * (size_t)variable->stride + (size_t)block->col;
    const float *floats = outbox->dtype == DTYPE_BFLOAT16 ? outbox->remainders : outbox->values;
    for (size_t i = 0; i < (size_t)block->cols * sizeof *floats; i += LINE) {
        __builtin_prefetch((const char *)(floats + offset) + i, 1);
    }
    for (size_t i = 0; outbox->halves && i < (size_t)block->cols * sizeof *outbox->halves; i += LINE) {
        __builtin_prefetch((const char *)(outbox->halves + offset) + i, 1);
    }
}

static void take_block(void *context, const struct gradient_block *block)
{
    enum { AHEAD = 2 };
    struct outbox *outbox = context;
    int count = block->present ? block->present_count : block->rows;
    for (int k = 0; k < count; k++) {
        prefetch_row(outbox, block, k + AHEAD, count);
        int row = block->row + (block->present ? block->present[k] : k);
        take_row(outbox, block, row, block->values + (size_t)k * (size_t)block->stride);
    }
}

struct gradient_sink outbox_sink(struct outbox *outbox)
{
    return (struct gradient_sink){.block = take_block, .context = outbox};
}

/* --- Runs --- */

struct outbox_cursor outbox_open(const struct outbox *outbox, const struct span *spans, int span_count)
{
    return (struct outbox_cursor){.outbox = outbox, .spans = spans, .span_count = span_count};
}

/* The span that holds this float as well as all of its row; NULL if it is another ps's. */
static const struct span *span_of(const struct outbox_cursor *cursor, size_t first)
{
    for (int i = 0; i < cursor->span_count; i++) {
        const struct span *span = &cursor->spans[i];
        if (first >= span->first && first - span->first < span->count) {
            return span;
        }
    }
    return NULL;
}

static bool is_present(const struct outbox *outbox, int variable, int row)
{
    return atomic_load_explicit(&outbox->present[outbox->first_row[variable] + (size_t)row], memory_order_relaxed);
}

bool outbox_next(struct outbox_cursor *cursor, struct range *range, const void **floats)
{
    const struct outbox *outbox = cursor->outbox;
    for (; cursor->variable < outbox->model->variable_count; cursor->variable++, cursor->row = 0) {
        const struct variable *variable = &outbox->model->variables[cursor->variable];
        size_t stride = (size_t)variable->stride;
        for (; cursor->row < variable->rows; cursor->row++) {
            size_t first = variable->offset + (size_t)cursor->row * stride;
            const struct span *span = span_of(cursor, first);
            if (!span || !is_present(outbox, cursor->variable, cursor->row)) {
                continue;
            }
            size_t end = first + (size_t)variable->cols;
            cursor->row++;
            while (variable->stride - variable->cols <= PADDING_SENT && cursor->row < variable->rows &&
                   end - first < RUN_FLOATS && end + stride <= span->first + span->count &&
                   is_present(outbox, cursor->variable, cursor->row)) {
                end += stride;
                cursor->row++;
            }
            *range = (struct range){first, (uint32_t)(end - first)};
            *floats = outbox->dtype == DTYPE_BFLOAT16 ? (const void *)(outbox->halves + first)
                                                      : (const void *)(outbox->values + first);
            return true;
        }
    }
    return false;
}
