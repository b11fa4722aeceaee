/* Blocks of examples in files, and how many examples are held out of them. */
#include "worker/data/source.h"

#include <assert.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/random/sampler.h"

/* --- Blocks --- */

/*
 * The order of an epoch's blocks comes from the same sampler as that of examples, so a resumed run reads the same
 * blocks.
 */

bool blocks_add(struct blocks *blocks, int file, uint64_t offset, uint32_t count)
{
    if (blocks->count == blocks->capacity) {
        int capacity = blocks->capacity == 0 ? 64 : 2 * blocks->capacity;
        struct stream_block *items =
            blocks->capacity > INT_MAX / 2 ? NULL : realloc(blocks->items, (size_t)capacity * sizeof *items);
        if (!items) {
            return false;
        }
        blocks->items = items;
        blocks->capacity = capacity;
    }
    blocks->items[blocks->count++] = (struct stream_block){.file = file, .offset = offset, .count = count};
    blocks->examples += count;
    return true;
}

bool blocks_extend(struct blocks *blocks, int *open, int file, uint64_t offset)
{
    if (*open >= 0 && offset - blocks->items[*open].offset < BLOCK_BYTES) {
        blocks->items[*open].count++;
        blocks->examples++;
        return true;
    }
    if (!blocks_add(blocks, file, offset, 1)) {
        return false;
    }
    *open = blocks->count - 1;
    return true;
}

void blocks_cut(struct blocks *blocks, int64_t first, int64_t count)
{
    int kept = 0;
    int64_t at = 0;
    assert(first >= 0 && count >= 0 && first + count <= blocks->examples);
    for (int i = 0; i < blocks->count; i++) {
        struct stream_block block = blocks->items[i];
        int64_t before = first > at ? first - at : 0; /* examples to skip at its start */
        int64_t end =
            first + count - at < block.count ? first + count - at : block.count; /* and those from here to its end */
        at += block.count;
        if (before < end) {
            block.skip += (uint32_t)before;
            block.count = (uint32_t)(end - before);
            blocks->items[kept++] = block;
        }
    }
    blocks->count = kept;
    blocks->examples = count;
}

/* Sorts one file's blocks among the positions they were drawn to in order[]. */
static void sort_forward(const struct blocks *blocks, const bool *forward_only, int *next, int32_t *order)
{
    for (int place = 0; place < blocks->count; place++) {
        int file = blocks->items[order[place]].file;
        if (forward_only[file]) {
            int i = next[file];
            while (blocks->items[i].file != file) {
                i++;
            }
            order[place] = i;
            next[file] = i + 1;
        }
    }
}

bool blocks_order(const struct blocks *blocks, const bool *forward_only, int files, uint64_t seed, uint32_t task,
                  int64_t epoch, int32_t *order)
{
    struct sampler sampler = {.seed = seed, .task = task, .examples = (uint32_t)blocks->count, .batch_size = 1};
    struct sampler_order drawn;
    assert(blocks->count > 0);
    sampler_order_make_part(&drawn, &sampler, SAMPLER_BLOCKS, epoch);
    for (int i = 0; i < blocks->count; i++) {
        order[i] = (int32_t)sampler_index(&drawn, (uint32_t)i);
    }
    if (forward_only) {
        int *next = calloc((size_t)files, sizeof *next);
        if (!next) {
            return false;
        }
        sort_forward(blocks, forward_only, next, order);
        free(next);
    }
    return true;
}

void blocks_free(struct blocks *blocks)
{
    free(blocks->items);
    memset(blocks, 0, sizeof *blocks);
}

/* --- What does not fit into memory --- */

/* Limits held-out rows to a tenth: a large set's number would leave too little of a small one to train on. */

void overflow_settle(struct overflow *overflow, int count)
{
    const int share = (int)((int64_t)count * overflow->percent / 100);
    const int more = overflow->percent > 0 && share < overflow->held_out ? overflow->held_out - share : 0;
    overflow->held_out -= more;
    overflow->keep -= more;
    overflow->percent = 0;
}
