/* Which gradients make a step: scenarios, and random histories whose result must not depend on the order of arrival. */
#include <string.h>

#include "tests/check.h"

#include "ps/job/job.h"
#include "tests/random.h"

enum { WORKERS = 5 };

static const bool all[WORKERS] = {true, true, true, true, true};

static struct aggregation make(int shards, int wanted, int least)
{
    struct aggregation aggregation;
    struct error error;
    assert_true(aggregation_create(&aggregation, WORKERS, shards, wanted, least, &error));
    aggregation_begin(&aggregation, 41);
    return aggregation;
}

TEST(test_all_are_waited_for)
{
    struct aggregation aggregation = make(1, WORKERS, 1);
    for (int i = 0; i < WORKERS; i++) {
        assert_false(aggregation_decide(&aggregation, all));
        aggregation_add(&aggregation, 0, (i * 2) % WORKERS, true);
    }
    assert_true(aggregation_decide(&aggregation, all));
    assert_int_equal(aggregation.taken_count, WORKERS);
    aggregation_destroy(&aggregation);
}

TEST(test_surplus_workers_are_backups)
{
    struct aggregation aggregation = make(1, 3, 1);
    aggregation_add(&aggregation, 0, 4, true);
    aggregation_add(&aggregation, 0, 1, true);
    aggregation_add(&aggregation, 0, 1, true); /* repeated: counts once */
    assert_false(aggregation_decide(&aggregation, all));
    aggregation_add(&aggregation, 0, 2, true);
    assert_true(aggregation_decide(&aggregation, all));
    aggregation_add(&aggregation, 0, 0, true); /* too late */
    assert_true(aggregation_decide(&aggregation, all));
    assert_memory_equal(aggregation.taken, ((unsigned char[WORKERS]){0, 1, 1, 0, 1}), WORKERS);
    aggregation_begin(&aggregation, 42);
    assert_false(aggregation_decide(&aggregation, all));
    aggregation_destroy(&aggregation);
}

TEST(test_the_lost_are_not_waited_for)
{
    struct aggregation aggregation = make(1, WORKERS, 2);
    bool awaited[WORKERS] = {true, true, true, false, false};
    int possible, whole;
    aggregation_add(&aggregation, 0, 0, true);
    aggregation_add(&aggregation, 0, 4, true); /* lost since, but its gradient is here and counts */
    assert_false(aggregation_decide(&aggregation, awaited));
    aggregation_count(&aggregation, awaited, &possible, &whole);
    assert_int_equal(possible, 4);
    assert_int_equal(whole, 2);
    awaited[1] = awaited[2] = false;
    assert_true(aggregation_decide(&aggregation, awaited));
    assert_true(aggregation_decide(&aggregation, all)); /* whoever comes back now comes too late */
    assert_int_equal(aggregation.taken_count, 2);
    /* But never fewer than `least`. */
    aggregation_begin(&aggregation, 42);
    aggregation_add(&aggregation, 0, 0, true);
    assert_false(aggregation_decide(&aggregation, awaited));
    aggregation_destroy(&aggregation);
}

TEST(test_nobody_at_all_makes_no_step)
{
    struct aggregation aggregation = make(1, WORKERS, 1);
    bool awaited[WORKERS] = {false};
    assert_false(aggregation_decide(&aggregation, awaited));
    aggregation_add(&aggregation, 0, 3, false);
    assert_false(aggregation_decide(&aggregation, all));
    assert_false(aggregation_decide(&aggregation, awaited));
    aggregation_destroy(&aggregation);
}

TEST(test_not_finite_is_not_waited_for_until_there_is_another)
{
    struct aggregation aggregation = make(2, WORKERS, 1);
    for (int i = 0; i < WORKERS; i++) {
        aggregation_add(&aggregation, 0, i, true);
        aggregation_add(&aggregation, 1, i, i != 2);
    }
    assert_int_equal(aggregation_whole(&aggregation, 2), PART_NOT_FINITE);
    assert_int_equal(aggregation_whole(&aggregation, 3), PART_HERE);
    aggregation_add(&aggregation, 1, 2, true);
    assert_int_equal(aggregation_whole(&aggregation, 2), PART_HERE);
    aggregation_add(&aggregation, 1, 2, false); /* what is here stays */
    assert_true(aggregation_decide(&aggregation, all));
    assert_int_equal(aggregation.taken_count, WORKERS);
    aggregation_begin(&aggregation, 42);
    for (int i = 0; i < WORKERS; i++) {
        aggregation_add(&aggregation, 0, i, true);
        aggregation_add(&aggregation, 1, i, i != 2);
    }
    assert_true(aggregation_decide(&aggregation, all));
    assert_int_equal(aggregation.taken_count, WORKERS - 1);
    assert_int_equal(aggregation.taken[2], 0);
    aggregation_destroy(&aggregation);
}

TEST(test_a_gradient_needs_all_its_parts)
{
    struct aggregation aggregation = make(3, 1, 1);
    aggregation_add(&aggregation, 0, 1, true);
    aggregation_add(&aggregation, 1, 2, true);
    aggregation_add(&aggregation, 2, 1, true);
    aggregation_add(&aggregation, 2, 2, true);
    assert_false(aggregation_decide(&aggregation, all));
    aggregation_add(&aggregation, 1, 1, true);
    assert_true(aggregation_decide(&aggregation, all));
    assert_memory_equal(aggregation.taken, ((unsigned char[WORKERS]){0, 1, 0, 0, 0}), WORKERS);
    aggregation_destroy(&aggregation);
}

TEST(test_followers_take_what_is_decided)
{
    struct aggregation aggregation = make(1, WORKERS, 1);
    const bool set[WORKERS] = {true, false, true, false, false};
    aggregation_apply_decision(&aggregation, set);
    aggregation_apply_decision(&aggregation, all); /* a decision is final */
    assert_true(aggregation.decided);
    assert_int_equal(aggregation.taken_count, 2);
    aggregation_destroy(&aggregation);
}

/*
 * Whatever arrives, in whatever order and however often: the set contains only complete gradients, enough of them, and
 * never changes.
 */
TEST(test_random_histories)
{
    struct test_random random = test_random_begin("aggregation");
    for (int run = 0; run < 2000; run++) {
        int shards = 1 + test_random_below(&random, 3), wanted = 1 + test_random_below(&random, WORKERS);
        int least = 1 + test_random_below(&random, wanted);
        struct aggregation aggregation = make(shards, wanted, least);
        bool finite[WORKERS][3] = {{false}}, seen[WORKERS][3] = {{false}}, awaited[WORKERS];
        for (int i = 0; i < WORKERS; i++) {
            awaited[i] = test_random_below(&random, 5) > 0;
        }
        for (int event = 0; event < 60 && !aggregation.decided; event++) {
            int worker = test_random_below(&random, WORKERS), shard = test_random_below(&random, shards);
            if (test_random_below(&random, 6) == 0) {
                awaited[worker] = !awaited[worker];
            } else {
                bool good = test_random_below(&random, 8) > 0;
                aggregation_add(&aggregation, shard, worker, good);
                finite[worker][shard] = finite[worker][shard] || good;
                seen[worker][shard] = true;
            }
            int whole = 0, possible = 0;
            for (int i = 0; i < WORKERS; i++) {
                int here = 0, refused = 0;
                for (int k = 0; k < shards; k++) {
                    here += finite[i][k];
                    refused += seen[i][k] && !finite[i][k];
                }
                whole += here == shards;
                possible += here == shards || (refused == 0 && awaited[i]);
            }
            bool enough = whole >= wanted || (whole >= least && whole >= possible);
            assert_int_equal(aggregation_decide(&aggregation, awaited), enough);
            assert_int_equal(aggregation.decided ? aggregation.taken_count : 0, enough ? whole : 0);
        }
        aggregation_destroy(&aggregation);
    }
}

int main(void)
{
    return check_run(NULL, NULL);
}
