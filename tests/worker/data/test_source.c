/* Blocks: split where they are large, shared out to the last example, in a new order every epoch. */
#include "tests/check.h"
#include "worker/data/source.h"

#include <stdlib.h>
#include <string.h>

#include "tests/random.h"

enum { FILES = 3, BLOCKS = 200 };

static void begins_another_block_where_one_is_large(void **state)
{
    struct blocks blocks = {.items = NULL};
    int open[2] = {-1, -1};
    for (uint64_t i = 0; i < 1000; i++) { /* two files in turn, of records of 1 and 4 KiB */
        assert_true(blocks_extend(&blocks, &open[0], 0, i * 1024));
        assert_true(blocks_extend(&blocks, &open[1], 1, i * 4096));
    }
    assert_int_equal(blocks.examples, 2000);
    uint32_t of[2] = {0}, next[2] = {0};
    for (int i = 0; i < blocks.count; i++) {
        const struct stream_block *block = &blocks.items[i];
        uint64_t size = block->file == 0 ? 1024 : 4096;
        assert_int_equal(block->offset, next[block->file] * size);
        assert_true(block->count * size <= BLOCK_BYTES);
        next[block->file] += block->count;
        of[block->file]++;
    }
    assert_int_equal(next[0], 1000);
    assert_int_equal(of[0], (1000 * 1024 + BLOCK_BYTES - 1) / BLOCK_BYTES);
    assert_int_equal(of[1], (1000 * 4096 + BLOCK_BYTES - 1) / BLOCK_BYTES);
    blocks_free(&blocks);
}

/* Blocks of 1 to 40 examples, alternating between the files. */
static struct blocks make_blocks(struct test_random *random)
{
    struct blocks blocks = {.items = NULL};
    for (int i = 0; i < BLOCKS; i++) {
        assert_true(blocks_add(&blocks, i % FILES, (uint64_t)i, 1 + (uint32_t)test_random_below(random, 40)));
    }
    return blocks;
}

static void shares_are_everything_once(void **state)
{
    struct test_random *random = *state;
    for (int shares = 1; shares <= 7; shares++) {
        static uint8_t seen[BLOCKS][40];
        memset(seen, 0, sizeof seen);
        for (int share = 0; share < shares; share++) {
            struct test_random same = *random;
            struct blocks blocks = make_blocks(&same);
            int64_t all = blocks.examples, first = all * share / shares, end = all * (share + 1) / shares, count = 0;
            blocks_cut(&blocks, first, end - first);
            assert_int_equal(blocks.examples, end - first);
            for (int i = 0; i < blocks.count; i++) {
                const struct stream_block *block = &blocks.items[i];
                assert_true(block->count > 0);
                for (uint32_t k = block->skip; k < block->skip + block->count; k++) {
                    assert_int_equal(seen[block->offset][k]++, 0);
                    count++;
                }
            }
            assert_int_equal(count, end - first);
            blocks_free(&blocks);
        }
        struct test_random same = *random;
        struct blocks blocks = make_blocks(&same);
        for (int i = 0; i < BLOCKS; i++) {
            for (uint32_t k = 0; k < 40; k++) {
                assert_int_equal(seen[i][k], k < blocks.items[i].count);
            }
        }
        blocks_free(&blocks);
    }
}

static void an_order_is_a_permutation_and_packed_files_go_forward(void **state)
{
    static const bool packed[FILES] = {false, true, true};
    struct test_random *random = *state;
    struct blocks blocks = make_blocks(random);
    int32_t order[2][BLOCKS], plain[BLOCKS];
    for (uint32_t task = 0; task < 2; task++) {
        for (int64_t epoch = 0; epoch < 3; epoch++) {
            int last[FILES] = {-1, -1, -1};
            bool seen[BLOCKS] = {false}, backward = false;
            assert_true(blocks_order(&blocks, packed, FILES, 7, task, epoch, order[task]));
            assert_true(blocks_order(&blocks, NULL, FILES, 7, task, epoch, plain));
            for (int i = 0; i < BLOCKS; i++) {
                int block = order[task][i], file = blocks.items[block].file;
                assert_false(seen[block]);
                seen[block] = true;
                assert_int_equal(file, blocks.items[plain[i]].file); /* the places are those that were drawn */
                backward = backward || (file == 0 && block < last[file]);
                assert_true(file == 0 || block > last[file]);
                last[file] = block;
            }
            assert_true(backward);
        }
    }
    assert_memory_not_equal(order[0], order[1], sizeof order[0]);
    blocks_free(&blocks);
}

int main(void)
{
    struct test_random random = test_random_begin("test_blocks");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(begins_another_block_where_one_is_large),
        cmocka_unit_test_prestate(shares_are_everything_once, &random),
        cmocka_unit_test_prestate(an_order_is_a_permutation_and_packed_files_go_forward, &random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
