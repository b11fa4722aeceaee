#include "worker/cpu/index.h"

#include <stdlib.h>
#include <string.h>

#include "worker/cpu/layout.h"

enum { ALIGN = 64, GROUP = 16 /* pixels: what the byte kernels work on */ };

static size_t align_up(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* Blocks of nearly equal size, an even number of them if there is more than one: two threads share them well. */
static int block_count(int pixels)
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

/* Entries of a block that is not dense, with what `compress` may write beyond them. */
static size_t block_entries(const struct kernels *kernels, int pitch, int capacity)
{
    size_t pads = (size_t)capacity + (size_t)chunk_count(capacity) * (size_t)pitch;
    return (size_t)(kernels->dense_from * (float)pitch * (float)capacity) + pads + KERNEL_SLACK;
}

/* Lays one block out from *memory on (NULL: only counts) and moves it on. */
static void block_layout(struct index_block *block, const struct kernels *kernels, int capacity, size_t *bytes,
                         char *memory)
{
    size_t entries = block_entries(kernels, block->pitch, capacity);
    size_t starts[] = {align_up((size_t)(capacity + 1) * sizeof(uint32_t)),
                       align_up((size_t)chunk_count(capacity) * (KERNEL_BLOCK + 1) * sizeof(uint32_t)),
                       align_up((size_t)capacity), align_up((size_t)chunk_count(capacity) * KERNEL_BLOCK)};
    size_t sparse = 2 * align_up(entries) + 3 * align_up(entries * sizeof(float));
    size_t dense = align_up((size_t)capacity * (size_t)block->pitch * sizeof(float));
    if (memory) {
        char *at = memory + *bytes;
        block->row_start = (uint32_t *)(void *)at;
        block->column_start = (uint32_t *)(void *)(at + starts[0]);
        at += starts[0] + starts[1];
        block->row_order = (uint8_t *)at;
        block->column_order = (uint8_t *)at + starts[2];
        at += starts[2] + starts[3];
        block->values = (float *)(void *)at;
        block->row_value = (float *)(void *)at;
        block->column_value = (float *)(void *)(at + align_up(entries * sizeof(float)));
        block->row_index = (uint8_t *)at + 3 * align_up(entries * sizeof(float));
        block->column_index = block->row_index + align_up(entries);
    }
    *bytes += starts[0] + starts[1] + starts[2] + starts[3] + (sparse > dense ? sparse : dense);
}

bool index_create(struct batch_index *index, const struct kernels *kernels, int pixels, int capacity,
                  struct error *error)
{
    *index = (struct batch_index){.capacity = capacity, .block_count = block_count(pixels)};
    index->blocks = calloc((size_t)index->block_count, sizeof *index->blocks);
    if (index->blocks) {
        size_t bytes = 0;
        for (int i = 0; i < index->block_count; i++) {
            struct index_block *block = &index->blocks[i];
            block->first = block_first(pixels, index->block_count, i);
            block->count = block_first(pixels, index->block_count, i + 1) - block->first;
            block->pitch = round_up(block->count, GROUP);
            block_layout(block, kernels, capacity, &bytes, NULL);
        }
        index->memory = aligned_alloc(ALIGN, bytes);
        bytes = 0;
        for (int i = 0; i < index->block_count && index->memory; i++) {
            block_layout(&index->blocks[i], kernels, capacity, &bytes, index->memory);
        }
    }
    if (!index->memory) {
        index_destroy(index);
        return error_set(error, "no memory to index batches of %d images of %d pixels: choose a smaller --batch_size",
                         capacity, pixels);
    }
    return true;
}

void index_destroy(struct batch_index *index)
{
    free(index->blocks);
    free(index->memory);
    memset(index, 0, sizeof *index);
}

bool index_scratch_create(struct index_scratch *scratch, int capacity, struct error *error)
{
    size_t bytes = (size_t)chunk_count(capacity) * KERNEL_CHUNK * KERNEL_BLOCK;
    size_t transposed = (size_t)KERNEL_BLOCK * KERNEL_CHUNK;
    scratch->memory = aligned_alloc(ALIGN, align_up(bytes) + align_up(transposed));
    if (!scratch->memory) {
        return error_set(error, "no memory to index batches of %d images: choose a smaller --batch_size", capacity);
    }
    scratch->bytes = scratch->memory;
    scratch->transposed = scratch->bytes + align_up(bytes);
    return true;
}

void index_scratch_destroy(struct index_scratch *scratch)
{
    free(scratch->memory);
    memset(scratch, 0, sizeof *scratch);
}

/* Copies the block's part of each image; rows of pitch bytes, KERNEL_CHUNK rows from one chunk to the next. */
static void gather(const struct index_block *block, const struct kernels *kernels, uint8_t *bytes,
                   const uint8_t *images, int pixels, const int32_t *indexes, int count)
{
    size_t pitch = (size_t)block->pitch;
    for (int chunk = 0; chunk < chunk_count(count); chunk++) {
        int first = chunk_first(count, chunk);
        int end = chunk_first(count, chunk + 1);
        uint8_t *to = bytes + (size_t)chunk * KERNEL_CHUNK * pitch;
        for (int i = first; i < end; i++, to += pitch) {
            size_t image = (size_t)(indexes ? indexes[i] : i);
            const uint8_t *from = images + image * (size_t)pixels + (size_t)block->first;
            if (block->count == block->pitch) {
                kernels->copy_bytes(block->count, from, to);
            } else {
                memcpy(to, from, (size_t)block->count);
                memset(to + block->count, 0, pitch - (size_t)block->count);
            }
        }
        memset(to, 0, (size_t)(round_up(end - first, GROUP) - (end - first)) * pitch);
    }
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

/* Lists rows 0 .. count - 1 by their number of entries, by counting. */
static void order_rows(int count, const uint32_t *start, uint8_t *order)
{
    enum { LENGTHS = (KERNEL_CHUNK > KERNEL_BLOCK ? KERNEL_CHUNK : KERNEL_BLOCK) / 2 + 2 };
    uint8_t place[LENGTHS] = {0};
    for (int i = 0; i < count; i++) {
        place[(start[i + 1] - start[i]) / 2 + 1]++;
    }
    for (int i = 1; i < LENGTHS; i++) {
        place[i] = (uint8_t)(place[i] + place[i - 1]);
    }
    for (int i = 0; i < count; i++) {
        order[place[(start[i + 1] - start[i]) / 2]++] = (uint8_t)i;
    }
}

static void build_sparse(struct index_block *block, const struct kernels *kernels, struct index_scratch *scratch,
                         int count)
{
    static const uint8_t nothing[KERNEL_CHUNK];
    uint32_t rows = 0;
    uint32_t cols = 0;
    for (int chunk = 0; chunk < chunk_count(count); chunk++) {
        int first = chunk_first(count, chunk);
        int samples = chunk_first(count, chunk + 1) - first;
        int padded = round_up(samples, GROUP);
        const uint8_t *bytes = scratch->bytes + (size_t)chunk * KERNEL_CHUNK * (size_t)block->pitch;
        for (int i = 0; i < samples; i++) {
            block->row_start[first + i] = rows;
            rows += (uint32_t)kernels->compress(block->pitch, bytes + (size_t)i * (size_t)block->pitch,
                                                block->row_index + rows, block->row_value + rows);
        }
        kernels->transpose_bytes(padded, block->pitch, bytes, scratch->transposed);
        uint32_t *start = block->column_start + (size_t)chunk * (KERNEL_BLOCK + 1);
        for (int part = 0; part < block->part_count; part++) {
            const uint8_t *columns = scratch->transposed + part * INDEX_PART * padded;
            int pair = block->pair_first[part];
            int end = block->part_first[part + 1];
            for (int i = block->part_first[part]; i < end; i += 2, pair++) {
                const uint8_t *odd = i + 1 < end ? columns + block->present[i + 1] * padded : nothing;
                start[pair] = cols;
                cols += (uint32_t)kernels->compress_pairs(padded, columns + block->present[i] * padded, odd,
                                                          block->column_index + cols, block->column_value + 2 * cols);
            }
            start[pair] = cols;
            order_rows(pair - block->pair_first[part], start + block->pair_first[part],
                       block->column_order + (size_t)chunk * KERNEL_BLOCK + block->pair_first[part]);
        }
        block->row_start[first + samples] = rows;
        order_rows(samples, block->row_start + first, block->row_order + first);
    }
}

void index_build(struct batch_index *index, int number, const struct kernels *kernels, struct index_scratch *scratch,
                 const uint8_t *images, int pixels, const int32_t *indexes, int count)
{
    struct index_block *block = &index->blocks[number];
    gather(block, kernels, scratch->bytes, images, pixels, indexes, count);
    _Alignas(ALIGN) uint8_t seen[KERNEL_BLOCK] = {0};
    int64_t set = 0;
    for (int chunk = 0; chunk < chunk_count(count); chunk++) {
        int samples = chunk_first(count, chunk + 1) - chunk_first(count, chunk);
        set += kernels->survey(samples, block->pitch,
                               scratch->bytes + (size_t)chunk * KERNEL_CHUNK * (size_t)block->pitch, seen);
    }
    block->dense = (float)set > kernels->dense_from * (float)block->count * (float)count;
    int present = 0;
    for (int i = 0; i < block->count; i++) {
        if (i % INDEX_PART == 0) {
            block->part_first[i / INDEX_PART] = present;
        }
        block->present[present] = i % INDEX_PART;
        present += seen[i] != 0;
    }
    block->part_count = (block->count + INDEX_PART - 1) / INDEX_PART;
    block->part_first[block->part_count] = present;
    block->present[present] = 0; /* fetched in place of the pixel that a last one lacks */
    block->pair_first[0] = 0;
    for (int i = 0; i < block->part_count; i++) {
        block->pair_first[i + 1] = block->pair_first[i] + (block->part_first[i + 1] - block->part_first[i] + 1) / 2;
    }
    if (block->dense) {
        build_dense(block, kernels, scratch->bytes, count);
    } else {
        build_sparse(block, kernels, scratch, count);
    }
}
