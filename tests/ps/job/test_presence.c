/*
 * Whom a synchronous job waits for: not for those who have only joined, nor for those of whom only signs of life come,
 * nor for those whose processes end with an error or without a gradient, again and again.
 */
#include "tests/ps/job/stepping.h"

/* A worker joins, and its data are not loaded yet. */
static void join_only(struct scene *scene, int worker, uint64_t incarnation)
{
    const struct peer who = {.member = {MEMBER_WORKER, worker}, .incarnation = incarnation, .program = "trainer"};
    struct error message;
    job_disconnected(&scene->jobs[0], worker, scene->jobs[0].workers[worker].incarnation, scene->now_s);
    assert_int_equal(job_hello(&scene->jobs[0], &who, "10.0.0.9:1", scene->now_s, &message), 0);
    play(scene);
}

static void fail_as(struct scene *scene, int worker, uint64_t incarnation, const char *message)
{
    const struct message_heartbeat heartbeat = {
        .state = STATE_FAILED, .loss = NAN, .host = "h", .device = "", .message = message};
    job_heartbeat(&scene->jobs[0], worker, incarnation, &heartbeat, scene->now_s);
    job_leave(&scene->jobs[0], worker, incarnation, message, scene->now_s);
    play(scene);
}

/* Workers 0 and 1 make a step; returns how many gradients it took, 0: it waits. */
static int step_of_two(struct scene *scene)
{
    const int64_t step = scene->jobs[0].global_step;
    offer(scene, 0, step);
    offer(scene, 1, step);
    return apply(scene, 0);
}

/* All beat for that long, so that no lease ends. */
static void pass_beating(struct scene *scene, double seconds, int workers)
{
    for (double end_s = scene->now_s + seconds; scene->now_s < end_s;) {
        pass(scene, 1);
        for (int i = 0; i < workers; i++) {
            job_touch(&scene->jobs[0], i, scene->jobs[0].workers[i].incarnation, scene->now_s);
        }
    }
}

static void who_has_only_joined_is_not_waited_for(void **state)
{
    struct scene scene;
    (void)state;
    begin(&scene, 1, 2, 0, 1);
    pass_beating(&scene, 11, 2); /* those who are not there yet could have come */
    assert_int_equal(step_of_two(&scene), 2);
    for (uint64_t again = 0; again < 30; again++) { /* a crash loop */
        join_only(&scene, 2, 100 + again);
        assert_int_equal(step_of_two(&scene), 2);
        pass_beating(&scene, 1, 2);
    }
    job_note_ready(&scene.jobs[0], 2, 129, scene.now_s);
    assert_int_equal(step_of_two(&scene), 0); /* now it is */
    end(&scene);
}

static void who_joined_counts_once_its_data_are_loaded(void **state)
{
    struct scene scene;
    char message[JOB_MESSAGE];
    (void)state;
    begin(&scene, 1, 1, 0, 1);
    scene.jobs[0].started = false;
    scene.jobs[0].config.cluster.min_workers = 2;
    join_only(&scene, 1, 2);
    assert_false(job_ready(&scene.jobs[0], scene.now_s, message));
    assert_string_equal(message, "waiting for 1 more worker (min_workers is 2), 0 s");
    job_note_ready(&scene.jobs[0], 1, 2, scene.now_s);
    assert_true(job_ready(&scene.jobs[0], scene.now_s, message));
    end(&scene);
}

static void who_pushes_has_its_data(void **state)
{
    struct scene scene;
    char message[JOB_MESSAGE];
    (void)state;
    begin(&scene, 1, 1, 0, 1);
    scene.jobs[0].started = false;
    scene.jobs[0].config.cluster.min_workers = 2;
    join_only(&scene, 1, 2);
    scene.now_s += 1000; /* how long its first gradient took is not known */
    assert_false(job_ready(&scene.jobs[0], scene.now_s, message));
    assert_true(offer(&scene, 1, 0));
    assert_true(job_ready(&scene.jobs[0], scene.now_s, message));
    assert_true(scene.jobs[0].workers[1].took_s < 1);
    end(&scene);
}

static void signs_of_life_alone_hold_nothing_for_ever(void **state)
{
    struct scene scene;
    (void)state;
    begin(&scene, 1, 3, 0, 1);
    pass_beating(&scene, 1, 3);
    assert_int_equal(step_of_two(&scene), 0); /* gradients take a second here: four of them and a lease are granted */
    pass_beating(&scene, 13, 3);
    assert_int_equal(apply(&scene, 0), 0);
    pass_beating(&scene, 2, 3);
    assert_true(told(&scene, "worker 2 (10.0.0.2:1) is alive, but has sent no gradient for"));
    assert_int_equal(apply(&scene, 0), 2);
    for (int i = 0; i < 5; i++) { /* the next steps do not wait at all */
        assert_int_equal(step_of_two(&scene), 2);
    }
    offer(&scene, 2, 0); /* stale, but work */
    assert_true(told(&scene, "worker 2 (10.0.0.2:1) sends gradients again"));
    assert_int_equal(step_of_two(&scene), 0);
    offer(&scene, 2, scene.jobs[0].global_step);
    assert_int_equal(apply(&scene, 0), 3);
    end(&scene);
}

static void a_slow_worker_is_given_its_time(void **state)
{
    struct scene scene;
    (void)state;
    begin(&scene, 1, 3, 0, 1);
    pass_beating(&scene, 1, 3);
    assert_int_equal(step_of_two(&scene), 0);
    pass_beating(&scene, 9, 3);
    offer(&scene, 2, 0); /* it took 10 s */
    assert_int_equal(apply(&scene, 0), 3);
    for (int i = 0; i < 3; i++) {
        for (int worker = 0; worker < 3; worker++) {
            job_hold(&scene.jobs[0], worker, (uint64_t)worker + 1, -1, scene.now_s);
        }
        assert_int_equal(step_of_two(&scene), 0);
        pass_beating(&scene, 40, 3); /* four times that: it is waited for */
        assert_int_equal(apply(&scene, 0), 0);
        offer(&scene, 2, scene.jobs[0].global_step);
        assert_int_equal(apply(&scene, 0), 3);
    }
    end(&scene);
}

static void the_chief_is_waited_for_as_long_as_it_lives(void **state)
{
    struct scene scene;
    (void)state;
    begin(&scene, 1, 2, 0, 1);
    pass_beating(&scene, 11, 2);
    assert_int_equal(step_of_two(&scene), 2);
    offer(&scene, 1, 1);
    pass_beating(&scene, 300, 2);
    assert_int_equal(apply(&scene, 0), 0);
    end(&scene);
}

static void starts_without_a_gradient_are_waited_for_twice(void **state)
{
    struct scene scene;
    (void)state;
    begin(&scene, 1, 3, 0, 1);
    for (uint64_t incarnation = 10; incarnation < 12; incarnation++) {
        assert_int_equal(step_of_two(&scene), 0);
        join_only(&scene, 2, incarnation); /* the one before has died */
        pass_beating(&scene, 11, 3);
        assert_int_equal(apply(&scene, 0), 2);
        job_note_ready(&scene.jobs[0], 2, incarnation, scene.now_s);
        play(&scene);
    }
    assert_true(told(&scene, "worker 2 (10.0.0.9:1) started 2 times without sending a gradient"));
    for (int i = 0; i < 5; i++) {
        assert_int_equal(step_of_two(&scene), 2);
    }
    end(&scene);
}

static void an_error_is_told_once_and_ever_more_rarely(void **state)
{
    struct scene scene;
    int times = 0;
    (void)state;
    begin(&scene, 1, 2, 0, 1);
    pass_beating(&scene, 11, 2);
    for (uint64_t again = 0; again < 16; again++) {
        join_only(&scene, 2, 100 + again);
        scene.log[0] = '\0';
        fail_as(&scene, 2, 100 + again, "d/train.csv: has no column line");
        assert_null(strstr(scene.log, "left"));
        times += strstr(scene.log, "failed") ? 1 : 0;
        assert_int_equal(job_worker_state(&scene.jobs[0], 2), STATE_FAILED);
        assert_int_equal(step_of_two(&scene), 2);
    }
    assert_int_equal(times, 5);
    assert_true(
        told(&scene, "worker 2 (10.0.0.9:1) failed, for the 16. time in a row: d/train.csv: has no column line"));
    assert_string_equal(scene.jobs[0].workers[2].failure, "d/train.csv: has no column line");
    join_only(&scene, 2, 999);
    job_note_ready(&scene.jobs[0], 2, 999, scene.now_s);
    assert_int_equal(scene.jobs[0].workers[2].failures, 0);
    end(&scene);
}

static void nobody_is_ahead_of_the_job(void **state)
{
    struct scene scene;
    (void)state;
    begin(&scene, 1, 3, 0, 1);
    const struct message_heartbeat lie = {.state = STATE_TRAINING,
                                          .global_step = INT64_C(1) << 53,
                                          .local_step = INT64_MAX,
                                          .host = "",
                                          .device = "",
                                          .message = ""};
    job_heartbeat(&scene.jobs[0], 2, 3, &lie, scene.now_s);
    assert_int_equal(scene.jobs[0].workers[2].global_step, 0);
    assert_true(scene.jobs[0].workers[2].local_step <= JOB_MAX_STEP);
    end(&scene);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_has_only_joined_is_not_waited_for),
        cmocka_unit_test(who_joined_counts_once_its_data_are_loaded),
        cmocka_unit_test(who_pushes_has_its_data),
        cmocka_unit_test(signs_of_life_alone_hold_nothing_for_ever),
        cmocka_unit_test(a_slow_worker_is_given_its_time),
        cmocka_unit_test(the_chief_is_waited_for_as_long_as_it_lives),
        cmocka_unit_test(starts_without_a_gradient_are_waited_for_twice),
        cmocka_unit_test(an_error_is_told_once_and_ever_more_rarely),
        cmocka_unit_test(nobody_is_ahead_of_the_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
