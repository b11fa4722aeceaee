/*
 * The index of rows of a table. Numbers are copied into dense blocks. Ones are listed twice, by sample for the forward
 * pass and by input for the weights' gradient, so that a step's cost is proportional to its ones: neither this code nor
 * its users loop over all inputs.
 */
#include <stdlib.h>
#include <string.h>

#include "worker/cpu/index.h"
#include "worker/cpu/layout.h"

enum { ALIGN = 64, PITCH = 16, DIGIT_BITS = 9, DIGITS = 1 << DIGIT_BITS };

static int dense_blocks(int numbers)
{
    return (numbers + KERNEL_BLOCK - 1) / KERNEL_BLOCK;
}

int index_rows_block_count(const struct examples *like)
{
    return dense_blocks(like->numbers) + (like->codes > 0);
}

static void *take(char **at, size_t bytes)
{
    void *taken = *at;
    *at += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return taken;
}

/* Lays everything out from `memory` on and returns the bytes needed. */
static size_t layout(struct batch_index *index, const struct examples *like, int capacity, char *memory)
{
    char *at = memory;
    int blocks = dense_blocks(like->numbers);
    for (int i = 0; i < blocks; i++) {
        struct index_block *block = &index->blocks[i];
        block->first = (int)((int64_t)i * like->numbers / blocks);
        block->count = (int)((int64_t)(i + 1) * like->numbers / blocks) - block->first;
        block->pitch = round_up(block->count, PITCH);
        block->dense = true;
        block->values = take(&at, (size_t)capacity * (size_t)block->pitch * sizeof(float));
    }
    struct place_index *places = &index->places;
    size_t ones = (size_t)capacity * (size_t)like->codes, inputs = (size_t)(like->inputs - like->numbers);
    size_t most = ones < inputs ? ones : inputs;
    *places = (struct place_index){.first = like->numbers, .count = (int)inputs, .codes = like->codes};
    places->row_start = take(&at, ((size_t)capacity + 1) * sizeof(uint32_t));
    places->row_place = take(&at, ones * sizeof(int32_t));
    places->present = take(&at, most * sizeof(int32_t));
    places->column_start = take(&at, (most + 1) * sizeof(uint32_t));
    places->column_sample = take(&at, ones * sizeof(int32_t));
    places->keys = take(&at, ones * sizeof(uint64_t));
    places->sorted = take(&at, ones * sizeof(uint64_t));
    return (size_t)(at - memory);
}

bool index_rows_create(struct batch_index *index, const struct examples *like, int capacity, struct error *error)
{
    _Alignas(ALIGN) char none[1];
    *index = (struct batch_index){.capacity = capacity, .block_count = index_rows_block_count(like)};
    index->blocks = calloc((size_t)index->block_count, sizeof *index->blocks);
    size_t bytes = index->blocks ? layout(index, like, capacity, none) : 0;
    index->memory = bytes > 0 ? aligned_alloc(ALIGN, bytes) : NULL;
    if (!index->memory) {
        index_destroy(index);
        return error_set(error, "out of memory while indexing batches of %d rows: choose a smaller --batch_size",
                         capacity);
    }
    memset(index->memory, 0, bytes);
    layout(index, like, capacity, index->memory);
    return true;
}

/* Without a call: rows are short, and musl's memcpy takes longer to start than to copy one. */
static inline void copy_row(float *restrict to, const float *restrict from, int count)
{
    enum { AT_ONCE = 8 };
    int k = 0;
    for (; k + AT_ONCE <= count; k += AT_ONCE) {
        memcpy(to + k, from + k, AT_ONCE * sizeof *to);
    }
    for (; k < count; k++) {
        to[k] = from[k];
        __asm__ volatile("" ::: "memory"); /* stops the compiler from calling memcpy after all */
    }
}

static void copy_numbers(struct index_block *block, const struct examples *examples, const int32_t *indexes, int count)
{
    for (int i = 0; i < count; i++) {
        size_t row = (size_t)(indexes ? indexes[i] : i) * (size_t)examples->numbers;
        copy_row(block->values + (size_t)i * (size_t)block->pitch, examples->values + row + block->first, block->count);
    }
}

/* The ones of each sample, in the order of its codes; returns their number, each as a key: position, then sample. */
static uint32_t list_by_sample(struct place_index *places, const struct examples *examples, const int32_t *indexes,
                               int count)
{
    uint32_t ones = 0;
    for (int i = 0; i < count; i++) {
        const int32_t *row = examples->places + (size_t)(indexes ? indexes[i] : i) * (size_t)places->codes;
        places->row_start[i] = ones;
        for (int k = 0; k < places->codes; k++) {
            if (row[k] >= 0) {
                int32_t place = row[k] - places->first;
                places->row_place[ones] = place;
                places->keys[ones++] = (uint64_t)place << 32 | (uint32_t)i;
            }
        }
    }
    places->row_start[count] = ones;
    return ones;
}

/* Sorted by position; stable, so that the samples of a position stay in order. */
static void sort(struct place_index *places, uint32_t ones)
{
    for (int shift = 32; (int64_t)places->count >> (shift - 32) > 0; shift += DIGIT_BITS) {
        uint32_t at[DIGITS + 1] = {0};
        for (uint32_t i = 0; i < ones; i++) {
            at[(places->keys[i] >> shift) % DIGITS + 1]++;
        }
        for (int digit = 0; digit < DIGITS; digit++) {
            at[digit + 1] += at[digit];
        }
        for (uint32_t i = 0; i < ones; i++) {
            places->sorted[at[(places->keys[i] >> shift) % DIGITS]++] = places->keys[i];
        }
        uint64_t *keys = places->keys;
        places->keys = places->sorted;
        places->sorted = keys;
    }
}

static void list_by_place(struct place_index *places, uint32_t ones)
{
    int present = 0;
    for (uint32_t i = 0; i < ones; i++) {
        int32_t place = (int32_t)(places->keys[i] >> 32);
        if (present == 0 || places->present[present - 1] != place) {
            places->column_start[present] = i;
            places->present[present++] = place;
        }
        places->column_sample[i] = (int32_t)(uint32_t)places->keys[i];
    }
    places->column_start[present] = ones;
    places->present_count = present;
}

void index_rows_build(struct batch_index *index, int number, const struct examples *examples, const int32_t *indexes,
                      int count)
{
    if (!index_is_places(index, number)) {
        copy_numbers(&index->blocks[number], examples, indexes, count);
        return;
    }
    uint32_t ones = list_by_sample(&index->places, examples, indexes, count);
    sort(&index->places, ones);
    list_by_place(&index->places, ones);
}
