/* Asynchronous rounds (train.buffer_size): when pushes make a step, their staleness, and what discards them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "ps/job/job.h"

enum { WORKERS = 3 };

static char *workers[WORKERS] = {(char[]){"a:1"}, (char[]){"b:1"}, (char[]){"c:1"}}, *servers[] = {(char[]){"p:1"}};

static void restore(struct job *job, uint32_t generation, int64_t step)
{
    struct verdict verdict;
    job_begin_restore(job, 0, generation, "initialised", 100, &verdict);
    assert_int_equal(verdict.code, 0);
    job_end_restore(job, 0, generation, step, 600, 100, &verdict);
    assert_int_equal(verdict.code, 0);
}

static void begin(struct job *job, struct config *config, int size, int64_t last_step)
{
    struct error error;
    memset(config, 0, sizeof *config);
    config->cluster = (struct config_cluster){.ps_hosts = {.items = servers, .count = 1},
                                              .worker_hosts = {.items = workers, .count = WORKERS},
                                              .min_workers = 1,
                                              .lease_secs = 10};
    config->train = (struct config_train){.local_steps = 4, .buffer_size = size, .train_steps = last_step};
    config->model.layers[0] = 6;
    config->model.layers[1] = 3;
    config->model.layer_count = 2;
    assert_true(job_create(job, config, 0, 100, &error));
    for (int i = 0; i < WORKERS; i++) {
        const struct peer who = {.member = {MEMBER_WORKER, i}, .incarnation = (uint64_t)i + 1, .program = "trainer"};
        assert_int_equal(job_hello(job, &who, "10.0.0.1:1", 100, &error), 0);
        job_note_ready(job, i, who.incarnation, 100);
    }
    restore(job, 1, 0);
}

static enum push_outcome push(struct job *job, int worker, uint64_t sequence, int64_t base_step, bool finite)
{
    struct verdict verdict;
    const struct job_push push = {
        .generation = job->generation, .sequence = sequence, .base_step = base_step, .finite = finite};
    job_push(job, worker, (uint64_t)worker + 1, &push, 101, &verdict);
    assert_int_equal(verdict.code, 0);
    return verdict.outcome;
}

/* From any worker: a fast one may be in it several times, and a slow one delays nobody. */
static void test_so_many_pushes_make_a_step(void **state)
{
    (void)state;
    struct job job;
    struct config config;
    begin(&job, &config, 3, 0);
    for (int64_t i = 0; i < 30; i++) {
        assert_int_equal(job_is_about_to_step(&job), i % 3 == 2);
        assert_int_equal(push(&job, 1, (uint64_t)i + 1, i / 3, true), PUSH_APPLIED);
        assert_int_equal(job.global_step, (i + 1) / 3);
        assert_int_equal(job.buffered, (i + 1) % 3);
        assert_true(job_may_answer(&job, 1));
    }
    assert_int_equal(job.workers[1].applied, 30);
    job_destroy(&job);
}

static void test_what_is_sent_again_or_refused_waits_for_no_step(void **state)
{
    (void)state;
    struct job job;
    struct config config;
    begin(&job, &config, 2, 0);
    assert_int_equal(push(&job, 1, 1, 0, true), PUSH_APPLIED);
    assert_int_equal(push(&job, 1, 1, 0, true), PUSH_APPLIED_BEFORE);
    assert_int_equal(push(&job, 2, 1, 0, false), PUSH_NOT_FINITE);
    assert_int_equal(job.buffered, 1);
    assert_int_equal(job.global_step, 0);
    assert_int_equal(push(&job, 2, 2, 0, true), PUSH_APPLIED);
    assert_int_equal(push(&job, 2, 2, 0, true), PUSH_APPLIED_BEFORE);
    assert_int_equal(push(&job, 1, 1, 0, true), PUSH_APPLIED_BEFORE);
    assert_int_equal(job.buffered, 0);
    assert_int_equal(job.global_step, 1);
    job_destroy(&job);
}

static void test_age_is_counted_in_steps_and_told(void **state)
{
    (void)state;
    struct job job;
    struct config config;
    char message[256];
    begin(&job, &config, 2, 0);
    job_describe(&job, 101, message);
    assert_string_equal(message, "has 0 of 2 differences for step 0");
    for (uint64_t i = 1; i <= 6; i++) {
        push(&job, 0, i, (int64_t)(i - 1) / 2, true); /* always of the newest model */
    }
    assert_int_equal(job.global_step, 3);
    assert_true(job.mean_staleness <= 0);
    push(&job, 1, 1, 0, true);
    assert_int_equal(job.workers[1].staleness, 3);
    push(&job, 0, 7, 3, true);
    assert_int_equal(job.workers[0].staleness, 0);
    push(&job, 2, 1, 9, true); /* this ps knows no later step than this: staleness is not negative */
    assert_int_equal(job.workers[2].staleness, 0);
    assert_true(fabs(job.mean_staleness - 1.5) < 1e-9);
    job_describe(&job, 101, message);
    assert_string_equal(message,
                        "has 1 of 2 differences for step 4; those of the last step were 1.50 steps old on average");
    job_destroy(&job);
}

static void test_a_restore_forgets_what_waits(void **state)
{
    (void)state;
    struct job job;
    struct config config;
    begin(&job, &config, 3, 0);
    push(&job, 0, 1, 0, true);
    push(&job, 1, 1, 0, true);
    restore(&job, 2, 7);
    assert_int_equal(job.buffered, 0);
    for (uint64_t i = 2; i <= 4; i++) {
        assert_int_equal(job.global_step, 7);
        assert_int_equal(push(&job, 1, i, 7, true), PUSH_APPLIED);
    }
    assert_int_equal(job.global_step, 8);
    assert_true(job.mean_staleness <= 0);
    job_destroy(&job);
}

static void test_nothing_waits_after_the_last_step(void **state)
{
    (void)state;
    struct job job;
    struct config config;
    begin(&job, &config, 3, 2);
    for (uint64_t i = 1; i <= 6; i++) {
        assert_int_equal(push(&job, 0, i, 0, true), PUSH_APPLIED);
    }
    assert_int_equal(job.global_step, 2);
    assert_int_equal(push(&job, 1, 1, 0, true), PUSH_NOT_WANTED);
    assert_int_equal(job.buffered, 0);
    job_destroy(&job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_so_many_pushes_make_a_step),
        cmocka_unit_test(test_what_is_sent_again_or_refused_waits_for_no_step),
        cmocka_unit_test(test_age_is_counted_in_steps_and_told),
        cmocka_unit_test(test_a_restore_forgets_what_waits),
        cmocka_unit_test(test_nothing_waits_after_the_last_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
