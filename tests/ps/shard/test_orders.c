/* Ordered snapshots: each step's state is kept until it is released, and no ordered step is lost. */
#include "tests/check.h"
#include "tests/ps/twin.h"

#include <pthread.h>
#include <sched.h>

enum { EVERY = 3, PUSHES = 300 };

static uint64_t order_of(int64_t step)
{
    return SNAPSHOT_ORDER | (uint64_t)(1000 + step);
}

static enum snapshot_state order(struct shard *shard, int64_t step)
{
    int64_t of_step;
    enum snapshot_state state = shard_snapshot(shard, order_of(step), step, &of_step);
    assert_true(state != SNAPSHOT_TAKEN || of_step == step);
    return state;
}

/* Every parameter of a snapshot is the number of steps made (set_up_plain_sgd). */
static void check_ordered(struct fixture *f, uint64_t number, int64_t step)
{
    struct error error;
    const float *values;
    int64_t of_step;
    struct range all = {0, (uint32_t)f->model.float_count};
    if (!shard_snapshot_values(f->shards[0], number, STORE_PARAMETERS, all, &values, &of_step, &error)) {
        fail_msg("step %lld: %s", (long long)step, error.text);
    }
    assert_int_equal(of_step, step);
    for (uint32_t k = 0; k < all.count; k++) {
        assert_true(values[k] == (in_padding(&f->model, k) ? 0.0f : (float)step));
    }
}

static void make_steps(struct fixture *f, int count)
{
    struct stage *stage = shard_stage(f->shards[0], 0);
    struct changes changes;
    for (int i = 0; i < count; i++) {
        fill_stage(f->shards[0], stage, -1.0f);
        assert_true(shard_apply(f->shards[0], GENERATION, stage, 0, DTYPE_FLOAT32, &changes));
    }
}

TEST(test_orders_are_kept_until_they_are_released)
{
    struct test_random random = test_random_begin("orders");
    struct fixture f;
    int64_t step;
    set_up_plain_sgd(&f, &random);
    struct shard *shard = f.shards[0];
    assert_false(shard_must_wait(shard, 0));
    for (int i = 1; i <= SHARD_ORDERS_KEPT + 1; i++) {
        assert_int_equal(order(shard, i * EVERY), SNAPSHOT_PENDING);
    }
    /* Not at the first ones, and not between two of them. */
    for (int i = 1; i <= SHARD_ORDERS_KEPT; i++) {
        assert_false(shard_must_wait(shard, i * EVERY));
    }
    const int64_t full = (SHARD_ORDERS_KEPT + 1) * EVERY;
    make_steps(&f, (int)full);
    assert_true(shard_must_wait(shard, full));
    assert_false(shard_must_wait(shard, full + 1));
    /* A plain snapshot has its own room. */
    assert_int_equal(shard_snapshot(shard, 5, -1, &step), SNAPSHOT_TAKEN);
    check_ordered(&f, 5, full);
    check_ordered(&f, order_of(EVERY), EVERY);
    check_ordered(&f, order_of(2 * EVERY), 2 * EVERY);
    /* A step that is not released is still there long after; a released one makes room for the one that waits. */
    shard_release(shard, order_of(EVERY));
    assert_false(shard_must_wait(shard, full));
    make_steps(&f, 1);
    assert_int_equal(order(shard, full), SNAPSHOT_TAKEN);
    check_ordered(&f, order_of(full), full);
    check_ordered(&f, order_of(2 * EVERY), 2 * EVERY);
    check_ordered(&f, 5, full);
    assert_int_equal(order(shard, EVERY), SNAPSHOT_PASSED);
    tear_down(&f);
}

TEST(test_a_step_that_has_just_passed_is_over)
{
    struct test_random random = test_random_begin("passed");
    struct fixture f;
    int64_t step;
    set_up_plain_sgd(&f, &random);
    make_steps(&f, 3);
    assert_int_equal(shard_snapshot(f.shards[0], 5, 2, &step), SNAPSHOT_PASSED);
    assert_int_equal(order(f.shards[0], 2), SNAPSHOT_PASSED);
    assert_int_equal(shard_snapshot(f.shards[0], 5, 3, &step), SNAPSHOT_TAKEN);
    assert_int_equal(step, 3);
    tear_down(&f);
}

TEST(test_a_step_that_is_left_without_room_loses_its_order_alone)
{
    struct test_random random = test_random_begin("no room");
    struct fixture f;
    set_up_plain_sgd(&f, &random);
    struct shard *shard = f.shards[0];
    for (int step = 1; step <= SHARD_ORDERS_KEPT + 1; step++) {
        order(shard, step);
    }
    make_steps(&f, SHARD_ORDERS_KEPT + 2);
    assert_int_equal(order(shard, SHARD_ORDERS_KEPT + 1), SNAPSHOT_PASSED);
    for (int step = 1; step <= SHARD_ORDERS_KEPT; step++) {
        check_ordered(&f, order_of(step), step);
    }
    /* A dropped order does not hold up anything. */
    order(shard, 10);
    assert_true(shard_must_wait(shard, 10));
    shard_skip_order(shard, 10);
    assert_false(shard_must_wait(shard, 10));
    check_ordered(&f, order_of(1), 1);
    /* Of too many, the earliest gives way; forgotten ones make room. */
    for (int step = 20; step < 20 + SHARD_ORDERS - SHARD_ORDERS_KEPT; step++) {
        assert_int_equal(order(shard, step), SNAPSHOT_PENDING);
    }
    check_ordered(&f, order_of(1), 1);
    assert_int_equal(order(shard, 30), SNAPSHOT_PENDING);
    assert_int_equal(order(shard, 1), SNAPSHOT_PASSED);
    check_ordered(&f, order_of(2), 2);
    shard_forget_snapshots(shard);
    assert_false(shard_must_wait(shard, 30));
    assert_int_equal(order(shard, 2), SNAPSHOT_PASSED);
    tear_down(&f);
}

TEST(test_orders_of_a_shard_that_is_being_written)
{
    struct test_random random = test_random_begin("orders early");
    struct fixture f;
    struct error error;
    set_up_plain_sgd(&f, &random);
    struct shard *shard = f.shards[0];
    order(shard, 4);
    make_steps(&f, 5);
    shard_begin_write(shard, GENERATION);
    for (int step = 1; step <= 3; step++) { /* earlier ones are forgotten */
        assert_int_equal(order(shard, step), SNAPSHOT_PENDING);
    }
    for (int i = 0; i < f.model.variable_count; i++) {
        const struct variable *variable = &f.model.variables[i];
        const struct span span = {variable->offset, (size_t)variable->rows * (size_t)variable->stride};
        float *twos = calloc(f.model.float_count, sizeof *twos);
        for (size_t k = span.first; k < span.first + span.count; k++) {
            twos[k] = in_padding(&f.model, k) ? 0.0f : 2.0f;
        }
        write_range(shard, STORE_PARAMETERS, span, twos);
        free(twos);
    }
    assert_true(shard_end_write(shard, 2, 0, &error));
    assert_int_equal(order(shard, 1), SNAPSHOT_PASSED); /* it begins later */
    make_steps(&f, 2);
    assert_int_equal(order(shard, 2), SNAPSHOT_TAKEN);
    assert_int_equal(order(shard, 3), SNAPSHOT_TAKEN);
    assert_int_equal(order(shard, 4), SNAPSHOT_PENDING); /* it is at that step, and has no room */
    assert_true(shard_must_wait(shard, 4));
    check_ordered(&f, order_of(2), 2);
    shard_release(shard, order_of(2));
    assert_int_equal(order(shard, 4), SNAPSHOT_TAKEN);
    check_ordered(&f, order_of(3), 3);
    tear_down(&f);
}

/* While many push, each respecting shard_must_wait: then no ordered step is ever lost. */
struct patient {
    struct fixture *f;
    int worker;
    pthread_mutex_t *turn; /* deciding, like the job: who may leave which step */
    int64_t *accepted;
    pthread_t thread;
};

static void *push_patiently(void *context)
{
    struct patient *patient = context;
    struct shard *shard = patient->f->shards[0];
    struct stage *stage = shard_stage(shard, patient->worker);
    for (int i = 0; i < PUSHES;) {
        struct changes changes;
        pthread_mutex_lock(patient->turn);
        bool waits = shard_must_wait(shard, *patient->accepted);
        *patient->accepted += !waits;
        pthread_mutex_unlock(patient->turn);
        if (!waits) {
            fill_stage(shard, stage, -1.0f);
            shard_apply(shard, GENERATION, stage, UINT64_MAX, DTYPE_FLOAT32, &changes);
            i++;
        } else {
            sched_yield(); /* otherwise waiting threads keep the locks from those they wait for */
        }
    }
    return NULL;
}

TEST(test_no_ordered_step_is_lost_while_many_push)
{
    struct test_random random = test_random_begin("every step");
    struct fixture f;
    struct patient patients[WORKERS];
    pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
    int64_t accepted = 0, steps = (int64_t)WORKERS * PUSHES, ordered = 0;
    set_up_plain_sgd(&f, &random);
    for (int i = 0; i <= SHARD_ORDERS_KEPT; i++) {
        assert_int_equal(order(f.shards[0], ordered += EVERY), SNAPSHOT_PENDING);
    }
    for (int i = 0; i < WORKERS; i++) {
        patients[i] = (struct patient){.f = &f, .worker = i, .turn = &turn, .accepted = &accepted};
        assert_int_equal(pthread_create(&patients[i].thread, NULL, push_patiently, &patients[i]), 0);
    }
    for (int64_t step = EVERY; step < steps; step += EVERY) {
        enum snapshot_state state_of_it;
        do {
            sched_yield();
            state_of_it = order(f.shards[0], step);
        } while (state_of_it == SNAPSHOT_PENDING);
        assert_int_equal(state_of_it, SNAPSHOT_TAKEN);
        order(f.shards[0], ordered += EVERY); /* before there is room */
        check_ordered(&f, order_of(step), step);
        shard_release(f.shards[0], order_of(step));
    }
    for (int i = 0; i < WORKERS; i++) {
        pthread_join(patients[i].thread, NULL);
    }
    pthread_mutex_destroy(&turn);
    tear_down(&f);
}

int main(void)
{
    return check_run(NULL, NULL);
}
