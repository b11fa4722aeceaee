/*
 * Applying gradient blocks row by row: the loop for the step is selected once per block, a row costs one call.
 *
 * A row without a gradient still changes if the optimizer has momentum, L2 or averages. Exempt are rows whose slots
 * have never changed (the border pixels of the digits, which are always zero): for them a zero gradient gives back
 * exactly what is there. One byte per row records which those are.
 */
#include "ps/store/store.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

enum { STORE_ALIGN = 64 };

static size_t round_up(size_t bytes)
{
    return (bytes + STORE_ALIGN - 1) / STORE_ALIGN * STORE_ALIGN;
}

bool store_has_vector(const struct config_train *config, enum store_vector vector)
{
    switch (vector) {
    case STORE_PARAMETERS:
        return true;
    case STORE_SLOT0:
        return optimizer_slots(config->optimizer) > 0;
    case STORE_SLOT1:
        return optimizer_slots(config->optimizer) > 1;
    case STORE_AVERAGES:
        return config->ema_decay > 0.0;
    default:
        return false;
    }
}

/* Padding gets the same value, so that it stays unchanged, too. */
static void reset_slots(struct store *store)
{
    for (int slot = 0; slot < optimizer_slots(store->config->optimizer); slot++) {
        float initial = optimizer_slot_initial(store->config, slot);
        float *values = store->vectors[STORE_SLOT0 + slot];
        for (size_t i = 0; i < store->model->float_count; i++) {
            values[i] = initial;
        }
    }
}

void store_create(struct store *store, const struct model *model, const struct config_train *config)
{
    memset(store, 0, sizeof *store);
    size_t vector_bytes = round_up(model->float_count * sizeof(float));
    size_t vectors = 0;
    size_t rows = 0;
    for (int vector = 0; vector < STORE_VECTORS; vector++) {
        vectors += store_has_vector(config, (enum store_vector)vector);
    }
    for (int i = 0; i < model->variable_count; i++) {
        store->first_row[i] = rows;
        rows += (size_t)model->variables[i].rows;
    }
    size_t bytes = vectors * vector_bytes + round_up(rows);
    char *memory = must_have(memory_aligned(bytes), bytes, "parameters and optimizer slots: make model.layers smaller");
    memset(memory, 0, bytes);
    store->memory = memory;
    store->model = model;
    store->config = config;
    store->kernels = optimizer_kernels_get(config->cpu_kernels);
    for (int vector = 0; vector < STORE_VECTORS; vector++) {
        if (store_has_vector(config, (enum store_vector)vector)) {
            store->vectors[vector] = (float *)(void *)memory;
            memory += vector_bytes;
        }
    }
    store->moved = (_Atomic unsigned char *)(void *)memory;
    reset_slots(store);
}

void store_destroy(struct store *store)
{
    free(store->memory);
    memset(store, 0, sizeof *store);
}

void store_forget(struct store *store)
{
    reset_slots(store);
    store_restored(store);
    store->global_step = 0;
}

static bool row_moved(const struct store *store, const struct variable *variable, int row)
{
    for (int slot = 0; slot < optimizer_slots(store->config->optimizer); slot++) {
        float initial = optimizer_slot_initial(store->config, slot);
        for (int panel = 0; panel < variable->panels; panel++) {
            int first = variable_panel_col(variable, panel), end = variable_panel_col(variable, panel + 1);
            const float *values = store->vectors[STORE_SLOT0 + slot] + variable_at(variable, row, first);
            for (int col = first; col < end && col < variable->cols; col++) {
                /* Compares bits: an update turns a negative zero positive. */
                if (memcmp(&values[col - first], &initial, sizeof initial) != 0) {
                    return true;
                }
            }
        }
    }
    return false;
}

void store_restored(struct store *store)
{
    for (int i = 0; i < store->model->variable_count; i++) {
        const struct variable *variable = &store->model->variables[i];
        for (int row = 0; row < variable->rows; row++) {
            atomic_store_explicit(&store->moved[store->first_row[i] + (size_t)row], row_moved(store, variable, row),
                                  memory_order_relaxed);
        }
    }
}

void store_begin_step(struct store *store)
{
    updates_prepare(store->updates, store->config, store->global_step);
    for (int i = 0; i < UPDATE_KINDS; i++) {
        store->fresh_is_noop[i] = update_zero_is_noop_at_start(&store->updates[i]);
    }
}

/* `rows` rows of a block that starts at float `first`, from `row` on; gradient: of the first of them, NULL: absent. */
static struct optimizer_rows rows_of(const struct store *store, const struct gradient_block *block, size_t first,
                                     int row, int rows, const float *gradient)
{
    const struct variable *variable = &store->model->variables[block->variable];
    size_t offset = first + (size_t)row * (size_t)variable->stride;
    float *at[STORE_VECTORS];
    for (int vector = 0; vector < STORE_VECTORS; vector++) {
        float *values = store->vectors[vector];
        at[vector] = !values ? NULL : values + offset;
    }
    return (struct optimizer_rows){.rows = (size_t)rows,
                                   .cols = (size_t)block->cols,
                                   .gradient = gradient,
                                   .gradient_stride = (size_t)block->stride,
                                   .parameters = at[STORE_PARAMETERS],
                                   .slot0 = at[STORE_SLOT0],
                                   .slot1 = at[STORE_SLOT1],
                                   .average = at[STORE_AVERAGES],
                                   .stride = (size_t)variable->stride};
}

static void apply_rows(struct store *store, const struct gradient_block *block, size_t first, optimizer_loop loop,
                       int row, int rows, const float *gradient)
{
    struct optimizer_rows at = rows_of(store, block, first, row, rows, gradient);
    at.following = (size_t)(block->rows - row - rows);
    loop(&store->updates[store->model->variables[block->variable].update], &at);
}

/* Are the present rows so far apart that hardly any two of them are neighbours? */
static bool is_scattered(const struct gradient_block *block)
{
    enum { ROWS_EACH = 8 };
    return block->present && block->present_count < block->rows / ROWS_EACH;
}

/* All present rows at once, if the others are unchanged: one by one, a call for each would cost as much as a row. */
static void apply_scattered(struct store *store, const struct gradient_block *block, size_t first, optimizer_loop loop)
{
    assert(block->present_count == 0 || block->present[block->present_count - 1] < block->rows);
    struct optimizer_rows at = rows_of(store, block, first, 0, block->present_count, block->values);
    at.places = block->present;
    loop(&store->updates[store->model->variables[block->variable].update], &at);
}

/* How many neighbouring rows are present from `row` on; the next listed one has number `next`. */
static int present_run(const struct gradient_block *block, int row, int next)
{
    if (!block->present) {
        return block->rows - row;
    }
    int run = 0;
    while (next + run < block->present_count && block->present[next + run] == row + run) {
        run++;
    }
    return run;
}

void store_apply(struct store *store, const struct gradient_block *block)
{
    const struct variable *variable = &store->model->variables[block->variable];
    assert(block->row >= 0 && block->rows >= 0 && block->row + block->rows <= variable->rows);
    assert(block->col >= 0 && block->cols >= 0 && block->col + block->cols <= variable->cols);
    assert(block->col + block->cols <= variable_panel_col(variable, variable_panel(variable, block->col) + 1));
    size_t first = variable_at(variable, block->row, block->col);
    const struct update *update = &store->updates[variable->update];
    optimizer_loop loop = optimizer_loop_get(store->kernels, update, true);
    optimizer_loop absent_loop = optimizer_loop_get(store->kernels, update, false);
    bool fresh_is_noop = store->fresh_is_noop[variable->update];
    bool absent_is_noop = update_zero_is_noop(update);
    bool has_slots = store->vectors[STORE_SLOT0];
    _Atomic unsigned char *moved = store->moved + store->first_row[block->variable] + block->row;
    unsigned mode = optimizer_enter();
    int next = 0; /* index among the rows present */
    int row = 0;
    if (absent_is_noop && is_scattered(block)) {
        for (int i = 0; has_slots && i < block->present_count; i++) {
            atomic_store_explicit(&moved[block->present[i]], 1, memory_order_relaxed);
        }
        apply_scattered(store, block, first, loop);
        next = block->present_count;
        row = block->rows;
    }
    while (row < block->rows) {
        int run = present_run(block, row, next);
        if (run > 0) {
            /*
             * Threads with other columns of a row may set its byte at the same time, to the same value; a thread that
             * reads either value gets the same numbers.
             */
            for (int i = 0; has_slots && i < run; i++) {
                atomic_store_explicit(&moved[row + i], 1, memory_order_relaxed);
            }
            apply_rows(store, block, first, loop, row, run, block->values + (size_t)next * (size_t)block->stride);
            next += run;
            row += run;
            continue;
        }
        if (absent_is_noop) {
            row = next < block->present_count ? block->present[next] : block->rows;
            continue;
        }
        if (!(fresh_is_noop && atomic_load_explicit(&moved[row], memory_order_relaxed) == 0)) {
            apply_rows(store, block, first, absent_loop, row, 1, NULL);
        }
        row++;
    }
    optimizer_leave(mode);
    assert(!block->present || next == block->present_count);
}

void store_fetch(const struct store *store, const struct gradient_block *block, enum store_vector vector,
                 enum store_vector end)
{
    enum { LINE = STORE_ALIGN / sizeof(float), TO_L2 = 2 };
    const struct variable *variable = &store->model->variables[block->variable];
    size_t first = variable_at(variable, block->row, block->col);
    for (; vector < end; vector++) {
        const float *values = store->vectors[vector];
        for (int i = 0; values && i < block->present_count; i++) {
            const float *row = values + first + (size_t)block->present[i] * (size_t)variable->stride;
            for (int k = 0; k < block->cols; k += LINE) {
                __builtin_prefetch(row + k, 0, TO_L2);
            }
        }
    }
}

static void apply_block(void *context, const struct gradient_block *block)
{
    store_apply(context, block);
}

struct gradient_sink store_sink(struct store *store)
{
    return (struct gradient_sink){.block = apply_block, .context = store};
}

void store_end_step(struct store *store)
{
    store->global_step++;
}

/* --- Sums of gradients, in one fixed order: the reference for synchronous steps, whose bits must be these --- */

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
