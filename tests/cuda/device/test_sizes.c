/* Every remainder around the sizes of tiles, in rows, columns and depth; and batches up to the largest. */
#include "tests/check.h"
#include "tests/cuda/device/fixture.h"

/* A number of multiprocessors with which tiles of this kind are chosen for products of about its size. */
static void choose(enum kernel_tile tile)
{
    set_number("FAKE_CUDA_MULTIPROCESSORS", tile == TILE_SMALL ? 1000 : tile == TILE_MEDIUM ? 2 : 1);
}

static void check(struct fixture *fixture, int count)
{
    set_number("FAKE_CUDA_SEED", below(2) ? 1 + below(1000) : 0);
    open_engines(fixture);
    check_gradient(fixture, count);
    write_all(fixture); /* a new device starts without it */
    train_both(fixture, 1, 2e-4);
    teardown(fixture);
}

TEST(test_one_off_each_tile)
{
    static const int sides[] = {KERNEL_SMALL_TILE, KERNEL_MEDIUM_TILE, KERNEL_LARGE_TILE};
    for (int tile = 0; tile < 3; tile++) {
        for (int i = -1; i <= 1; i++) {
            struct fixture fixture;
            int side = sides[tile], batch = side + i;
            int layers[] = {tile == TILE_LARGE ? 9 + i : side + (i + 2) % 3 - 1, side + (i + 3) % 3 - 1, 1 + below(9)};
            choose((enum kernel_tile)tile);
            setup(&fixture, layers, 3, batch, 2 * batch);
            fixture.config.train.clip_norm = 100; /* no persistent kernel */
            check(&fixture, batch - below(2));
        }
    }
}

/* The depth per turn is 8 or 16, of each of up to four slices. */
TEST(test_every_depth)
{
    for (int depth = 1; depth <= 35; depth += 1 + (depth > 17)) {
        struct fixture fixture;
        int layers[] = {depth, 36 - depth, 5};
        choose((enum kernel_tile)(depth % 3));
        setup(&fixture, layers, 3, 2 * depth, 4 * depth);
        fixture.config.train.clip_norm = 100;
        check(&fixture, 2 * depth - 1);
    }
}

/* 500 hidden units like the network used for tuning, few pixels to save time; one image fewer than the maximum. */
TEST(test_the_largest_batch)
{
    struct fixture fixture;
    set_number("FAKE_CUDA_MULTIPROCESSORS", 200); /* otherwise large tiles would be wasted on ten classes */
    set_number("FAKE_CUDA_SEED", 0);
    setup(&fixture, (const int[]){7, 500, 10}, 3, 8192, 8191);
    open_engines(&fixture);
    assert_non_null(strstr(device_describe(fixture.device), "for its large batch"));
    train_both(&fixture, 1, 2e-4);
    teardown(&fixture);
}

int main(void)
{
    test_seed = test_random_begin("test_sizes");
    return check_run(NULL, NULL);
}
