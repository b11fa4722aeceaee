/* Indexes of the nonzero inputs of a batch, of images and of rows. */
#include "worker/cpu/engine.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

#define INDEXED "the index of a batch: choose a smaller --batch_size"

/* --- Images --- */

/*
 * Skipping zero pixels pays only if finding them is cheap: bytes are gathered, transposed and compressed 16 at a time,
 * block by block, so that threads can share the work.
 */

enum { ALIGN = 64, GROUP = 16 /* pixels: what the byte kernels work on */ };

static size_t align_up(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* Blocks of nearly equal size, an even number of them if more than one, to divide well between two threads. */
int index_block_count(int pixels)
{
    int groups = (pixels + GROUP - 1) / GROUP;
    int blocks = (groups * GROUP + KERNEL_BLOCK - 1) / KERNEL_BLOCK;
    return blocks > 1 && blocks % 2 != 0 && blocks < groups ? blocks + 1 : blocks;
}

static int block_first(int pixels, int blocks, int block)
{
    int groups = (pixels + GROUP - 1) / GROUP;
    int first = (int)((int64_t)block * groups / blocks) * GROUP;
    return first < pixels ? first : pixels;
}

/* Capacity for entries of a sparse block, plus what `compress` may write beyond them. */
static size_t block_entries(const struct kernels *kernels, int pitch, int capacity)
{
    size_t pairs = (size_t)capacity / 2 + (size_t)chunk_count(capacity) * ((size_t)pitch / 2 + 1);
    return (size_t)(kernels->dense_from * (float)pitch * (float)capacity) + 3 * (KERNEL_ENTRIES - 1) * pairs +
           KERNEL_SLACK;
}

/* The size of a block's sparse entries in each form. */
struct entry_bytes {
    size_t offsets, values, packed;
};

static struct entry_bytes bytes_of(size_t entries, bool divided)
{
    return (struct entry_bytes){.offsets = align_up(entries * sizeof(uint32_t)),
                                .values = align_up(2 * entries * sizeof(float)),
                                .packed = divided ? align_up(entries * sizeof(uint32_t)) : 0};
}

/* Offsets and values of rows and columns, from `at` on. */
static void lay_entries(struct index_block *block, const struct entry_bytes *bytes, char *at)
{
    block->row_value = (float *)(void *)at;
    block->column_value = (float *)(void *)(at + bytes->values);
    block->row_offset = (uint32_t *)(void *)(at + 2 * bytes->values);
    block->column_offset = (uint32_t *)(void *)(at + 2 * bytes->values + bytes->offsets);
}

/*
 * Lays out one block from *memory (NULL: only counts) and advances it. divided: the pairs' entries come in parts,
 * packed; packed: only in that form.
 */
static void block_layout(struct index_block *block, bool divided, bool packed, int capacity, size_t *bytes,
                         char *memory)
{
    const struct entry_bytes each = bytes_of(block->capacity, divided);
    size_t chunks = (size_t)chunk_count(capacity);
    size_t starts[] = {align_up(chunks * (KERNEL_CHUNK / 2 + 1) * sizeof(uint32_t)),
                       align_up(chunks * (KERNEL_BLOCK / 2 + 1) * sizeof(uint32_t)),
                       align_up(chunks * (KERNEL_CHUNK / 2)), align_up(chunks * (KERNEL_BLOCK / 2))};
    size_t parts[] = {divided ? align_up(chunks * (KERNEL_CHUNK / 2) * sizeof(struct parts)) : 0,
                      divided ? align_up(chunks * (KERNEL_BLOCK / 2) * sizeof(struct parts)) : 0};
    size_t sparse = packed ? 0 : 2 * (each.offsets + each.values);
    size_t dense = align_up((size_t)capacity * (size_t)block->pitch * sizeof(float));
    if (memory) {
        char *at = memory + *bytes;
        block->row_start = (uint32_t *)(void *)at;
        block->column_start = (uint32_t *)(void *)(at + starts[0]);
        at += starts[0] + starts[1];
        block->row_order = (uint8_t *)at;
        block->column_order = (uint8_t *)at + starts[2];
        at += starts[2] + starts[3];
        block->row_parts = divided ? (struct parts *)(void *)at : NULL;
        block->column_parts = divided ? (struct parts *)(void *)(at + parts[0]) : NULL;
        at += parts[0] + parts[1];
        block->row_packed = divided ? (uint32_t *)(void *)at : NULL;
        block->column_packed = divided ? (uint32_t *)(void *)(at + each.packed) : NULL;
        at += 2 * each.packed;
        block->values = (float *)(void *)at;
        if (!packed) {
            lay_entries(block, &each, at);
        }
    }
    *bytes += starts[0] + starts[1] + starts[2] + starts[3] + parts[0] + parts[1] + 2 * each.packed +
              (sparse > dense ? sparse : dense);
}

void index_create(struct batch_index *index, const struct kernels *kernels, int pixels, int capacity, int row_stride,
                  int column_stride, bool shared)
{
    /* Where only pixels are indexed, for few outputs, dividing costs more than it saves. */
    const bool divided = kernels->pack_parts && row_stride > 0;
    *index = (struct batch_index){.capacity = capacity,
                                  .row_stride = row_stride,
                                  .column_stride = column_stride,
                                  .packed = divided && shared && capacity <= KERNEL_CHUNK,
                                  .block_count = index_block_count(pixels)};
    index->blocks = must_zero((size_t)index->block_count, sizeof *index->blocks, INDEXED);
    size_t bytes = 0;
    for (int i = 0; i < index->block_count; i++) {
        struct index_block *block = &index->blocks[i];
        block->first = block_first(pixels, index->block_count, i);
        block->count = block_first(pixels, index->block_count, i + 1) - block->first;
        block->pitch = round_up(block->count, GROUP);
        block->capacity = block_entries(kernels, block->pitch, capacity);
        block_layout(block, divided, index->packed, capacity, &bytes, NULL);
    }
    index->memory = must_align(bytes, INDEXED);
    bytes = 0;
    for (int i = 0; i < index->block_count; i++) {
        block_layout(&index->blocks[i], divided, index->packed, capacity, &bytes, index->memory);
    }
}

void index_view_create(struct batch_index *view, const struct batch_index *index)
{
    assert(index->packed);
    *view = *index;
    size_t bytes = 0, blocks = (size_t)index->block_count;
    for (int i = 0; i < index->block_count; i++) {
        const struct entry_bytes each = bytes_of(index->blocks[i].capacity, true);
        bytes += 2 * (each.offsets + each.values);
    }
    view->memory = must_align(bytes, INDEXED);
    view->blocks = must_alloc(blocks * sizeof *view->blocks, INDEXED);
    char *at = view->memory;
    for (int i = 0; i < index->block_count; i++) {
        const struct entry_bytes each = bytes_of(index->blocks[i].capacity, true);
        view->blocks[i] = index->blocks[i];
        lay_entries(&view->blocks[i], &each, at);
        at += 2 * (each.offsets + each.values);
    }
}

static void unpack(struct index_block *block, const struct batch_index *index, const struct kernels *kernels)
{
    kernels->unpack((int)block->row_entries, index->row_stride * (int)sizeof(float), block->row_packed,
                    block->row_offset, block->row_value);
    kernels->unpack((int)block->column_entries, index->column_stride * (int)sizeof(float), block->column_packed,
                    block->column_offset, block->column_value);
}

void index_view_take(struct batch_index *view, const struct batch_index *index, const struct kernels *kernels)
{
    for (int i = 0; i < index->block_count; i++) {
        struct index_block *block = &view->blocks[i], own = *block;
        *block = index->blocks[i];
        block->row_offset = own.row_offset;
        block->row_value = own.row_value;
        block->column_offset = own.column_offset;
        block->column_value = own.column_value;
        if (!block->dense) {
            unpack(block, index, kernels);
        }
    }
}

void index_destroy(struct batch_index *index)
{
    free(index->blocks);
    free(index->memory);
    memset(index, 0, sizeof *index);
}

void index_scratch_create(struct index_scratch *scratch, int capacity)
{
    size_t bytes = (size_t)chunk_count(capacity) * KERNEL_CHUNK * KERNEL_BLOCK;
    size_t transposed = (size_t)KERNEL_BLOCK * KERNEL_CHUNK;
    scratch->memory = must_align(align_up(bytes) + align_up(transposed), INDEXED);
    scratch->bytes = scratch->memory;
    scratch->transposed = scratch->bytes + align_up(bytes);
}

void index_scratch_destroy(struct index_scratch *scratch)
{
    free(scratch->memory);
    memset(scratch, 0, sizeof *scratch);
}

/*
 * Copies the block's part of each image: rows of pitch bytes, KERNEL_CHUNK rows per chunk, padding rows zero. Records
 * which pixels are present; returns the number of nonzero bytes.
 */
static int64_t gather(struct index_block *block, const struct kernels *kernels, uint8_t *bytes, const uint8_t *images,
                      int pixels, const int32_t *indexes, int count)
{
    _Alignas(ALIGN) uint8_t seen[KERNEL_BLOCK] = {0};
    size_t pitch = (size_t)block->pitch;
    int64_t set = 0;
    for (int chunk = 0; chunk < chunk_count(count); chunk++) {
        int first = chunk_first(count, chunk);
        int samples = chunk_first(count, chunk + 1) - first;
        uint8_t *to = bytes + (size_t)chunk * KERNEL_CHUNK * pitch;
        const uint8_t *from = images + (indexes ? 0 : (size_t)first * (size_t)pixels) + block->first;
        if (block->count == block->pitch) {
            set += kernels->gather(samples, block->pitch, from, (size_t)pixels, indexes ? indexes + first : NULL, to,
                                   seen);
        } else {
            /* The last pixels of images whose size is not a multiple of 16. */
            for (int i = 0; i < samples; i++) {
                size_t image = (size_t)(indexes ? indexes[first + i] : i);
                memcpy(to + (size_t)i * pitch, from + image * (size_t)pixels, (size_t)block->count);
                memset(to + (size_t)i * pitch + block->count, 0, pitch - (size_t)block->count);
            }
            set += kernels->gather(samples, block->pitch, to, pitch, NULL, to, seen);
        }
        memset(to + (size_t)samples * pitch, 0, (size_t)(round_up(samples, GROUP) - samples) * pitch);
    }
    block->present_count = 0;
    for (int i = 0; i < block->count; i++) {
        block->present[block->present_count] = i;
        block->present_count += seen[i] != 0;
    }
    block->present[block->present_count] = 0; /* partner of a last, unpaired pixel */
    return set;
}

static void build_dense(struct index_block *block, const struct kernels *kernels, const uint8_t *bytes, int count)
{
    for (int chunk = 0; chunk < chunk_count(count); chunk++) {
        int first = chunk_first(count, chunk);
        int end = chunk_first(count, chunk + 1);
        kernels->scale((end - first) * block->pitch, bytes + (size_t)chunk * KERNEL_CHUNK * (size_t)block->pitch,
                       block->values + (size_t)first * (size_t)block->pitch);
    }
}

/* Counting sort of pairs 0 .. count - 1 by their number of entries. */
static void order_pairs(int count, const uint32_t *start, uint8_t *order)
{
    enum { LENGTHS = (KERNEL_CHUNK > KERNEL_BLOCK ? KERNEL_CHUNK : KERNEL_BLOCK) / KERNEL_ENTRIES + 2 };
    uint8_t place[LENGTHS] = {0};
    for (int i = 0; i < count; i++) {
        place[(start[i + 1] - start[i]) / KERNEL_ENTRIES + 1]++;
    }
    for (int i = 1; i < LENGTHS; i++) {
        place[i] = (uint8_t)(place[i] + place[i - 1]);
    }
    for (int i = 0; i < count; i++) {
        order[place[(start[i + 1] - start[i]) / KERNEL_ENTRIES]++] = (uint8_t)i;
    }
}

/* The missing partner of an odd sample or pixel. */
static const uint8_t nothing[KERNEL_CHUNK > KERNEL_BLOCK ? KERNEL_CHUNK : KERNEL_BLOCK];

/* Where a pair's entries go. */
struct entries {
    uint32_t *offset;
    float *value;
    uint32_t *packed; /* NULL: directly to the other two */
};

/* Appends a pair's entries after the first `at`, and returns the new number. */
static uint32_t compress(const struct kernels *kernels, int count, const uint8_t *const rows[2], int stride,
                         const struct entries *entries, struct parts *parts, uint32_t at)
{
    return at + (uint32_t)(entries->packed ? kernels->pack_parts(count, rows[0], rows[1], entries->packed + at, parts)
                                           : kernels->compress(count, rows[0], rows[1], stride, entries->offset + at,
                                                               entries->value + 2 * (size_t)at));
}

/* Indexes the pairs of samples of one chunk; their entries follow the first `entries`. Returns the new number. */
static uint32_t build_rows(struct index_block *block, const struct kernels *kernels, const uint8_t *bytes, int chunk,
                           int samples, int stride, uint32_t entries)
{
    uint32_t *start = block->row_start + (size_t)chunk * (KERNEL_CHUNK / 2 + 1);
    struct parts *parts = block->row_parts ? block->row_parts + (size_t)chunk * (KERNEL_CHUNK / 2) : NULL;
    const struct entries to = {block->row_offset, block->row_value, block->row_packed};
    int pair = 0;
    for (int i = 0; i < samples; i += 2, pair++, bytes += 2 * block->pitch) {
        const uint8_t *const rows[] = {bytes, i + 1 < samples ? bytes + block->pitch : nothing};
        start[pair] = entries;
        entries = compress(kernels, block->pitch, rows, stride, &to, parts ? parts + pair : NULL, entries);
    }
    start[pair] = entries;
    order_pairs(pair, start, block->row_order + (size_t)chunk * (KERNEL_CHUNK / 2));
    return entries;
}

/* The pairs of pixels, likewise; bytes: the chunk, transposed, in rows of `samples` rounded up. */
static uint32_t build_columns(struct index_block *block, const struct kernels *kernels, const uint8_t *bytes, int chunk,
                              int samples, int stride, uint32_t entries)
{
    uint32_t *start = block->column_start + (size_t)chunk * (KERNEL_BLOCK / 2 + 1);
    struct parts *parts = block->column_parts ? block->column_parts + (size_t)chunk * (KERNEL_BLOCK / 2) : NULL;
    const struct entries to = {block->column_offset, block->column_value, block->column_packed};
    int pair = 0;
    for (int i = 0; i < block->present_count; i += 2, pair++) {
        const uint8_t *const rows[] = {bytes + block->present[i] * samples,
                                       i + 1 < block->present_count ? bytes + block->present[i + 1] * samples
                                                                    : nothing};
        start[pair] = entries;
        entries = compress(kernels, samples, rows, stride, &to, parts ? parts + pair : NULL, entries);
    }
    start[pair] = entries;
    order_pairs(pair, start, block->column_order + (size_t)chunk * (KERNEL_BLOCK / 2));
    return entries;
}

static void build_sparse(const struct batch_index *index, struct index_block *block, const struct kernels *kernels,
                         struct index_scratch *scratch, int count)
{
    uint32_t rows = 0;
    uint32_t columns = 0;
    for (int chunk = 0; chunk < chunk_count(count); chunk++) {
        int samples = chunk_first(count, chunk + 1) - chunk_first(count, chunk);
        int padded = round_up(samples, GROUP);
        const uint8_t *bytes = scratch->bytes + (size_t)chunk * KERNEL_CHUNK * (size_t)block->pitch;
        if (index->row_stride > 0) {
            rows = build_rows(block, kernels, bytes, chunk, samples, index->row_stride * (int)sizeof(float), rows);
        }
        kernels->transpose_bytes(padded, block->pitch, bytes, scratch->transposed);
        columns = build_columns(block, kernels, scratch->transposed, chunk, padded,
                                index->column_stride * (int)sizeof(float), columns);
    }
    block->row_entries = rows;
    block->column_entries = columns;
    if (block->row_packed && !index->packed) {
        unpack(block, index, kernels);
    }
}

void index_build(struct batch_index *index, int number, const struct kernels *kernels, struct index_scratch *scratch,
                 const uint8_t *images, int pixels, const int32_t *indexes, int count)
{
    struct index_block *block = &index->blocks[number];
    int64_t set = gather(block, kernels, scratch->bytes, images, pixels, indexes, count);
    block->dense = (float)set > kernels->dense_from * (float)block->count * (float)count;
    if (block->dense) {
        build_dense(block, kernels, scratch->bytes, count);
    } else {
        build_sparse(index, block, kernels, scratch, count);
    }
}

/* --- Rows --- */

/*
 * The index of rows of a table. Numbers are copied into dense blocks. Ones are listed twice, by sample for the forward
 * pass and by input for the weights' gradient, so that a step's cost is proportional to its ones: neither this code nor
 * its users loop over all inputs.
 */

enum { PITCH = 16, DIGIT_BITS = 9, DIGITS = 1 << DIGIT_BITS };

static int dense_blocks(int numbers)
{
    return (numbers + KERNEL_BLOCK - 1) / KERNEL_BLOCK;
}

/* Columns of a block from `column` on: their bins are at most KERNEL_BLOCK. */
static int columns_of_block(const struct examples *like, int column, int *bins)
{
    int columns = 0;
    *bins = 0;
    while (column + columns < like->piecewise && *bins + like->bins[column + columns] <= KERNEL_BLOCK) {
        *bins += like->bins[column + columns++];
    }
    assert(columns > 0);
    return columns;
}

static int bin_blocks(const struct examples *like)
{
    int blocks = 0, bins;
    for (int column = 0; column < like->piecewise; blocks++) {
        column += columns_of_block(like, column, &bins);
    }
    return blocks;
}

int index_rows_block_count(const struct examples *like)
{
    return (like->numbers > 0 ? dense_blocks(like->numbers) : bin_blocks(like)) + (like->codes > 0);
}

static void *take(char **at, size_t bytes)
{
    void *taken = *at;
    *at += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return taken;
}

static void lay_out_bins(struct index_block *block, const struct examples *like, int column, int capacity, char **at,
                         bool fills)
{
    int bins;
    const int columns = columns_of_block(like, column, &bins);
    const size_t all = (size_t)capacity * (size_t)columns;
    block->count = bins;
    block->dense = true; /* no bin is left out of the gradient */
    block->bins = (struct bin_index){.column = column, .columns = columns};
    block->bins.first = take(at, ((size_t)columns + 1) * sizeof(int32_t));
    block->bins.row_bin = take(at, all * sizeof(int32_t));
    block->bins.row_share = take(at, all * sizeof(float));
    block->bins.column_start = take(at, ((size_t)bins + 1) * sizeof(uint32_t));
    block->bins.column_sample = take(at, all * sizeof(int32_t));
    block->bins.column_share = take(at, all * sizeof(float));
    for (int i = 0; fills && i < columns; i++) {
        block->bins.first[i + 1] = block->bins.first[i] + like->bins[column + i];
    }
}

/* Lays everything out from `memory` on and returns the bytes needed. */
static size_t layout(struct batch_index *index, const struct examples *like, int capacity, char *memory, bool fills)
{
    char *at = memory;
    const int first = examples_dense(like);
    int blocks = dense_blocks(like->numbers);
    for (int i = 0; i < blocks; i++) {
        struct index_block *block = &index->blocks[i];
        block->first = (int)((int64_t)i * first / blocks);
        block->count = (int)((int64_t)(i + 1) * first / blocks) - block->first;
        block->pitch = round_up(block->count, PITCH);
        block->dense = true;
        block->values = take(&at, (size_t)capacity * (size_t)block->pitch * sizeof(float));
    }
    for (int column = 0, input = 0; like->numbers == 0 && column < like->piecewise; blocks++) {
        struct index_block *block = &index->blocks[blocks];
        lay_out_bins(block, like, column, capacity, &at, fills);
        block->first = input;
        input += block->count;
        column += block->bins.columns;
    }
    struct place_index *places = &index->places;
    size_t ones = (size_t)capacity * (size_t)like->codes, inputs = (size_t)(like->inputs - first);
    size_t most = ones < inputs ? ones : inputs;
    *places = (struct place_index){.first = first, .count = (int)inputs, .codes = like->codes};
    places->row_start = take(&at, ((size_t)capacity + 1) * sizeof(uint32_t));
    places->row_place = take(&at, ones * sizeof(int32_t));
    places->present = take(&at, most * sizeof(int32_t));
    places->column_start = take(&at, (most + 1) * sizeof(uint32_t));
    places->column_sample = take(&at, ones * sizeof(int32_t));
    places->keys = take(&at, ones * sizeof(uint64_t));
    places->sorted = take(&at, ones * sizeof(uint64_t));
    return (size_t)(at - memory);
}

void index_rows_create(struct batch_index *index, const struct examples *like, int capacity)
{
    _Alignas(ALIGN) char none[1];
    *index = (struct batch_index){.capacity = capacity, .block_count = index_rows_block_count(like)};
    index->blocks = must_zero((size_t)index->block_count, sizeof *index->blocks, INDEXED);
    const size_t bytes = layout(index, like, capacity, none, false);
    index->memory = must_align(bytes, INDEXED);
    memset(index->memory, 0, bytes);
    layout(index, like, capacity, index->memory, true);
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

/* The samples of each bin of a column, in order: counted, then placed. */
static void list_by_bin(struct bin_index *bins, int column, int count)
{
    const int first = bins->first[column], end = bins->first[column + 1];
    uint32_t *start = bins->column_start;
    uint32_t at[KERNEL_BLOCK] = {0};
    for (int i = 0; i < count; i++) {
        at[bins->row_bin[(size_t)i * (size_t)bins->columns + (size_t)column]]++;
    }
    for (int bin = first; bin < end; bin++) {
        start[bin + 1] = start[bin] + at[bin];
        at[bin] = start[bin];
    }
    for (int i = 0; i < count; i++) {
        const size_t from = (size_t)i * (size_t)bins->columns + (size_t)column;
        const uint32_t to = at[bins->row_bin[from]]++;
        bins->column_sample[to] = i;
        bins->column_share[to] = bins->row_share[from];
    }
}

static void index_bins(struct index_block *block, const struct examples *examples, const int32_t *indexes, int count)
{
    struct bin_index *bins = &block->bins;
    for (int i = 0; i < count; i++) {
        const float *row = examples->positions + (size_t)(indexes ? indexes[i] : i) * (size_t)examples->piecewise;
        for (int c = 0; c < bins->columns; c++) {
            const size_t to = (size_t)i * (size_t)bins->columns + (size_t)c;
            const int last = bins->first[c + 1] - bins->first[c] - 1, bin = (int)row[bins->column + c];
            bins->row_bin[to] = bins->first[c] + (bin < last ? bin : last);
            bins->row_share[to] = row[bins->column + c] - (float)(bin < last ? bin : last);
        }
    }
    for (int c = 0; c < bins->columns; c++) {
        list_by_bin(bins, c, count);
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
                places->row_place[ones] = row[k];
                places->keys[ones++] = (uint64_t)row[k] << 32 | (uint32_t)i;
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
        (examples->numbers > 0 ? copy_numbers : index_bins)(&index->blocks[number], examples, indexes, count);
        return;
    }
    uint32_t ones = list_by_sample(&index->places, examples, indexes, count);
    sort(&index->places, ones);
    list_by_place(&index->places, ones);
}
