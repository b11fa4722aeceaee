/* Sets of workers as ranges: neighbours share one, and workers in a peer's set must exist. */
#include <string.h>

#include "ps/server/requests.h"
#include "tests/check.h"

enum { WORKERS = 9 };

static struct ranges put_all(uint8_t *bytes, const bool *has)
{
    struct ranges set = {bytes, 0};
    for (int i = 0; i < WORKERS; i++) {
        if (has[i]) {
            worker_set_put(&set, bytes, i);
        }
    }
    return set;
}

TEST(neighbours_are_one_range)
{
    static const bool has[WORKERS] = {[0] = true, [1] = true, [2] = true, [5] = true, [7] = true, [8] = true};
    static const struct range expected[] = {{0, 3}, {5, 1}, {7, 2}};
    uint8_t bytes[WORKER_SET_BYTES];
    const struct ranges set = put_all(bytes, has);
    assert_int_equal(set.count, 3);
    for (uint32_t i = 0; i < set.count; i++) {
        assert_int_equal(range_get(&set, i).first, expected[i].first);
        assert_int_equal(range_get(&set, i).count, expected[i].count);
    }
}

TEST(every_set_is_read_as_it_was_put)
{
    uint8_t bytes[WORKER_SET_BYTES];
    for (unsigned bits = 0; bits < 1U << WORKERS; bits++) {
        bool has[WORKERS], read[WORKERS];
        for (int i = 0; i < WORKERS; i++) {
            has[i] = (bits >> i & 1) != 0;
        }
        const struct ranges set = put_all(bytes, has);
        assert_true(worker_set_read(&set, read, WORKERS));
        assert_memory_equal(read, has, sizeof has);
    }
}

TEST(workers_that_do_not_exist_are_refused)
{
    static const struct range wrong[] = {{WORKERS, 0},    {WORKERS, 1},    {WORKERS - 1, 2},        {0, WORKERS + 1},
                                         {0, UINT32_MAX}, {UINT64_MAX, 1}, {UINT64_MAX, UINT32_MAX}};
    uint8_t bytes[2 * RANGE_BYTES];
    bool has[WORKERS];
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        range_put(bytes, 0, (struct range){2, 1});
        range_put(bytes, 1, wrong[i]);
        assert_false(worker_set_read(&(struct ranges){bytes, 2}, has, WORKERS));
    }
}

int main(void)
{
    return check_run(NULL, NULL);
}
