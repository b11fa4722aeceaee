/* Synchronous training as a state machine: who is waited for, the answers, and what two ps tell each other. */
#include "tests/ps/job/stepping.h"

static void test_a_step_takes_one_of_every_worker(void **state)
{
    (void)state;
    struct scene scene;
    begin(&scene, 1, 4, 0, 1);
    for (int i = 3; i >= 0; i--) {
        assert_int_equal(apply(&scene, 0), 0);
        assert_true(offer(&scene, i, 0));
        assert_int_equal(outcome(&scene, i, 0), -1);
    }
    assert_int_equal(apply(&scene, 0), 4);
    assert_int_equal(scene.jobs[0].global_step, 1);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(outcome(&scene, i, 0), PUSH_APPLIED);
        assert_int_equal(scene.jobs[0].workers[i].asked, 0); /* only rounds use this */
    }
    end(&scene);
}

static void test_a_gradient_sent_twice_counts_once(void **state)
{
    (void)state;
    struct scene scene;
    begin(&scene, 1, 4, 0, 1);
    assert_true(offer(&scene, 1, 0));
    assert_false(offer_as(&scene, 0, 1, 2, 0, true)); /* the connection broke: the push is sent again, and dropped */
    job_disconnected(&scene.jobs[0], 1, 2, scene.now_s);
    come(&scene, 1, 77); /* the worker restarts, and computes the same step */
    scene.sequences[1] = 1;
    assert_false(offer_as(&scene, 0, 1, 77, 0, true));
    for (int i = 0; i < 4; i++) {
        if (i != 1) {
            offer(&scene, i, 0);
        }
    }
    assert_int_equal(apply(&scene, 0), 4);
    struct verdict verdict;
    const struct job_push push = push_of(&scene, 1, 0, true);
    assert_true(job_settled(&scene.jobs[0], 1, 77, &push, &verdict));
    assert_int_equal(verdict.outcome, PUSH_APPLIED);
    assert_true(job_settled(&scene.jobs[0], 1, 2, &push, &verdict)); /* the old process learns that it is fenced */
    assert_int_equal(verdict.code, ERROR_NOT_ALLOWED);
    assert_int_equal(scene.jobs[0].workers[1].stale, 0);
    end(&scene);
}

static void test_backups_come_too_late_and_are_counted(void **state)
{
    (void)state;
    struct scene scene;
    begin(&scene, 1, 4, 3, 1);
    for (int i = 0; i < 3; i++) {
        offer(&scene, i, 0);
    }
    assert_false(offer(&scene, 3, 0)); /* decided, but not applied yet */
    assert_int_equal(outcome(&scene, 3, 0), -1);
    assert_int_equal(apply(&scene, 0), 3);
    assert_int_equal(outcome(&scene, 3, 0), PUSH_STALE);
    assert_int_equal(outcome(&scene, 3, 0), PUSH_STALE); /* asked again, it is not counted again */
    assert_int_equal(scene.jobs[0].workers[3].stale, 1);
    for (int i = 0; i < 3; i++) {
        offer(&scene, i, 1);
    }
    apply(&scene, 0);
    assert_false(offer(&scene, 3, 1));
    assert_int_equal(outcome(&scene, 3, 1), PUSH_STALE);
    assert_int_equal(job_dropped(&scene.jobs[0]), 2);
    end(&scene);
}

static void test_a_lost_worker_shrinks_the_step(void **state)
{
    (void)state;
    struct scene scene;
    char message[256];
    begin(&scene, 1, 4, 0, 1);
    for (int i = 0; i < 3; i++) {
        offer(&scene, i, 0);
    }
    job_disconnected(&scene.jobs[0], 3, 4, scene.now_s);
    for (int second = 0; second < 9; second++) {
        pass(&scene, 1);
        for (int i = 0; i < 3; i++) {
            hear(&scene, i);
        }
        assert_int_equal(apply(&scene, 0), 0);
    }
    assert_true(job_describe_wait(&scene.jobs[0], scene.now_s, message));
    assert_string_equal(message, "waiting for worker 3 (e:2222) to push step 0, 9 s");
    pass(&scene, 1.5);
    assert_true(told(&scene, "worker 3 (10.0.0.3:1) is lost"));
    assert_int_equal(apply(&scene, 0), 3);
    /* Back again, it counts again. */
    come(&scene, 3, 99);
    for (int i = 0; i < 3; i++) {
        offer(&scene, i, 1);
    }
    assert_int_equal(apply(&scene, 0), 0);
    scene.sequences[3] = 1;
    assert_true(offer_as(&scene, 0, 3, 99, 1, true));
    assert_int_equal(apply(&scene, 0), 4);
    end(&scene);
}

static void test_one_that_leaves_is_not_waited_for(void **state)
{
    (void)state;
    struct scene scene;
    begin(&scene, 1, 4, 0, 1);
    for (int i = 0; i < 3; i++) {
        offer(&scene, i, 0);
    }
    job_leave(&scene.jobs[0], 3, 4, "stopped", scene.now_s);
    assert_int_equal(apply(&scene, 0), 3);
    end(&scene);
}

static void test_min_replicas_is_the_least(void **state)
{
    (void)state;
    struct scene scene;
    char message[256];
    begin(&scene, 1, 4, 0, 3);
    offer(&scene, 0, 0);
    offer(&scene, 1, 0);
    job_leave(&scene.jobs[0], 3, 4, "", scene.now_s);
    job_leave(&scene.jobs[0], 2, 3, "", scene.now_s);
    assert_int_equal(apply(&scene, 0), 0);
    pass(&scene, 5);
    assert_true(job_describe_wait(&scene.jobs[0], scene.now_s, message));
    assert_string_equal(message, "waiting for 1 more worker to push step 0 (min_replicas is 3), 5 s");
    come(&scene, 2, 55);
    scene.sequences[2] = 1;
    assert_true(offer_as(&scene, 0, 2, 55, 0, true));
    assert_int_equal(apply(&scene, 0), 3);
    end(&scene);
}

static void test_who_never_came_is_waited_for_one_lease(void **state)
{
    (void)state;
    struct scene scene;
    begin(&scene, 1, 2, 0, 1);
    offer(&scene, 0, 0);
    offer(&scene, 1, 0);
    pass(&scene, 9);
    assert_int_equal(apply(&scene, 0), 0);
    hear(&scene, 0);
    hear(&scene, 1);
    pass(&scene, 1.5);
    assert_true(told(&scene, "worker 2 (d:2222) and others are absent"));
    assert_int_equal(apply(&scene, 0), 2);
    end(&scene);
}

static void test_not_finite_holds_up_nobody(void **state)
{
    (void)state;
    struct scene scene;
    begin(&scene, 1, 4, 0, 1);
    for (int i = 0; i < 3; i++) {
        offer(&scene, i, 0);
    }
    scene.sequences[3]++;
    assert_true(offer_as(&scene, 0, 3, 4, 0, false));
    assert_true(told(&scene, "worker 3 (10.0.0.3:1) sent a gradient that is not finite"));
    assert_int_equal(outcome(&scene, 3, 0), -1); /* answered with the step, so that it is not sent again at once */
    assert_int_equal(apply(&scene, 0), 3);
    assert_int_equal(outcome(&scene, 3, 0), PUSH_NOT_FINITE);
    assert_int_equal(scene.jobs[0].workers[3].not_finite, 1);
    assert_int_equal(scene.jobs[0].workers[3].stale, 0);
    /* If the step can't do without it, it is asked for another one. */
    for (int i = 0; i < 4; i++) {
        scene.sequences[i]++;
        assert_true(offer_as(&scene, 0, i, (uint64_t)i + 1, 1, false));
    }
    assert_int_equal(apply(&scene, 0), 0);
    assert_int_equal(outcome(&scene, 2, 1), PUSH_NOT_FINITE);
    assert_true(offer(&scene, 2, 1));
    assert_int_equal(apply(&scene, 0), 1);
    end(&scene);
}

/*
 * A worker is lost in the middle of a push: ps 1 has its part, and ps 0 never will. Only ps 0 knows that the step now
 * needs another gradient from the worker whose first was refused, and that worker waits for both answers.
 */
static void test_a_follower_holds_no_refusal(void **state)
{
    (void)state;
    struct scene scene;
    struct verdict verdict;
    begin(&scene, 2, 2, 0, 1);
    scene.sequences[0] = scene.sequences[1] = 1;
    assert_true(offer_as(&scene, 1, 1, 2, 0, true));
    for (int ps = 0; ps < 2; ps++) {
        assert_true(offer_as(&scene, ps, 0, 1, 0, false));
    }
    report(&scene);
    assert_int_equal(outcome(&scene, 0, 0), -1); /* worker 1 may do */
    job_disconnected(&scene.jobs[0], 1, 2, scene.now_s);
    for (int second = 0; second < 11; second++) { /* longer than a lease */
        pass(&scene, 1);
        hear(&scene, 0);
    }
    assert_int_equal(outcome(&scene, 0, 0), PUSH_NOT_FINITE);
    const struct job_push refused = push_of(&scene, 0, 0, false);
    assert_true(job_settled(&scene.jobs[1], 0, 1, &refused, &verdict));
    assert_int_equal(verdict.outcome, PUSH_NOT_FINITE);
    scene.sequences[0]++;
    for (int ps = 0; ps < 2; ps++) {
        assert_true(offer_as(&scene, ps, 0, 1, 0, true));
    }
    report(&scene);
    assert_int_equal(apply(&scene, 0), 1);
    end(&scene);
}

static void test_a_new_generation_forgets_what_was_staged(void **state)
{
    (void)state;
    struct scene scene;
    struct verdict verdict;
    struct job_step step;
    bool receive;
    begin(&scene, 1, 4, 0, 1);
    for (int i = 0; i < 4; i++) {
        offer(&scene, i, 0);
    }
    const struct job_push old = push_of(&scene, 1, 0, true);
    assert_true(job_take_step(&scene.jobs[0], &step)); /* it is being applied when the chief begins to restore */
    restore(&scene, 2, 40, 0);
    job_step_applied(&scene.jobs[0], &step, false, scene.now_s);
    assert_int_equal(scene.jobs[0].global_step, 40);
    assert_true(job_settled(&scene.jobs[0], 1, 2, &old, &verdict));
    assert_int_equal(verdict.code, ERROR_OLD_GENERATION);
    job_stage(&scene.jobs[0], 1, 2, &old, scene.now_s, &verdict, &receive);
    assert_int_equal(verdict.code, ERROR_OLD_GENERATION);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(apply(&scene, 0), 0);
        assert_true(offer(&scene, i, 40));
    }
    assert_int_equal(apply(&scene, 0), 4);
    end(&scene);
}

static void test_lies_about_steps_are_refused(void **state)
{
    (void)state;
    struct scene scene;
    struct verdict verdict;
    bool receive;
    begin(&scene, 1, 4, 0, 1);
    const struct job_push lies[] = {
        {.generation = 1, .sequence = 1, .token = 7, .finite = true},
        {.generation = 1, .sequence = 1, .token = -1, .finite = true},
        {.generation = 1, .sequence = 0, .token = 0, .finite = true},
    };
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        job_stage(&scene.jobs[0], 1, 2, &lies[i], scene.now_s, &verdict, &receive);
        assert_int_equal(verdict.code, ERROR_BAD_REQUEST);
        assert_false(receive);
        job_staged(&scene.jobs[0], 1, 2, &lies[i], true, scene.now_s, &verdict);
        assert_int_equal(verdict.code, ERROR_BAD_REQUEST);
    }
    end(&scene);
}

static void test_after_the_last_step_nothing_is_wanted(void **state)
{
    (void)state;
    struct scene scene;
    begin(&scene, 1, 4, 0, 1);
    restore(&scene, 2, 9, 10);
    for (int i = 0; i < 4; i++) {
        offer(&scene, i, 9);
    }
    assert_int_equal(apply(&scene, 0), 4);
    assert_true(told(&scene, "global step 10, the last one, is applied"));
    assert_int_equal(outcome(&scene, 1, 9), PUSH_APPLIED);
    assert_false(offer(&scene, 1, 10));
    assert_int_equal(outcome(&scene, 1, 10), PUSH_NOT_WANTED);
    end(&scene);
}

static void test_two_ps_agree(void **state)
{
    (void)state;
    struct scene scene;
    char message[256];
    begin(&scene, 2, 4, 2, 1);
    assert_false(job_is_follower(&scene.jobs[0]));
    assert_true(job_is_follower(&scene.jobs[1]));
    offer(&scene, 0, 0);
    offer(&scene, 1, 0); /* enough for ps 0 alone, but no gradient is complete */
    assert_int_equal(apply(&scene, 0), 0);
    pass(&scene, 2);
    assert_true(job_describe_wait(&scene.jobs[0], scene.now_s, message));
    assert_string_equal(message, "waiting for worker 0 (b:2222) to push step 0 to ps 1 (q:2222), 2 s");
    scene.sequences[2] = scene.sequences[3] = 1;
    assert_true(offer_as(&scene, 1, 2, 3, 0, true));
    assert_true(offer_as(&scene, 1, 1, 2, 0, true));
    report(&scene);
    assert_int_equal(apply(&scene, 0), 0);
    assert_int_equal(apply(&scene, 1), 0); /* two have arrived, but ps 1 does not decide */
    offer(&scene, 2, 0);
    report(&scene); /* reported twice */
    struct job_step step;
    assert_true(job_take_step(&scene.jobs[0], &step));
    assert_int_equal(step.count, 2);
    assert_int_equal(step.workers[0], 1);
    assert_int_equal(step.workers[1], 2);
    assert_true(offer_as(&scene, 1, 0, 1, 0, true)); /* too late to count, and staged anyway */
    const bool set[MOST] = {false, true, true, false};
    assert_true(job_apply_decision(&scene.jobs[1], 1, 1, set)); /* of another step or another generation: ignored */
    assert_true(job_apply_decision(&scene.jobs[1], 2, 0, set));
    assert_int_equal(apply(&scene, 1), 0);
    /* No coordinator selects an empty set, or a gradient that is incomplete here. */
    const bool nobody[MOST] = {false}, too_many[MOST] = {false, true, true, true};
    assert_false(job_apply_decision(&scene.jobs[1], 1, 0, nobody));
    assert_false(job_apply_decision(&scene.jobs[1], 1, 0, too_many));
    assert_int_equal(apply(&scene, 1), 0);
    assert_true(job_apply_decision(&scene.jobs[1], 1, 0, set));
    assert_int_equal(apply(&scene, 1), 2);
    job_step_applied(&scene.jobs[0], &step, true, scene.now_s);
    assert_int_equal(scene.jobs[0].global_step, 1);
    assert_int_equal(scene.jobs[1].global_step, 1);
    struct verdict verdict;
    struct job_push push = push_of(&scene, 0, 0, true);
    assert_true(job_settled(&scene.jobs[1], 0, 1, &push, &verdict));
    assert_int_equal(verdict.outcome, PUSH_STALE);
    assert_int_equal(outcome(&scene, 0, 0), PUSH_STALE);
    /* Only ps may report, and only those with parameters. */
    const bool none[MOST] = {false};
    job_report(&scene.jobs[1], 0, 1, 1, none, none, scene.now_s, &verdict);
    assert_int_equal(verdict.code, ERROR_NOT_ALLOWED);
    job_report(&scene.jobs[0], 7, 1, 1, none, none, scene.now_s, &verdict);
    assert_int_equal(verdict.code, ERROR_NOT_ALLOWED);
    end(&scene);
}

/* It is heard here, but can't reach another ps: then its gradient can never be complete. */
static void test_nobody_waits_for_who_is_cut_off_from_a_ps(void **state)
{
    (void)state;
    struct scene scene;
    struct job_step step;
    char message[256];
    const char *const why = "has not heard from ps 1 (q:2222) for 11 s";
    begin(&scene, 2, 3, 0, 1);
    for (int i = 0; i < 3; i++) {
        offer(&scene, i, 0);
    }
    for (int i = 0; i < 2; i++) {
        assert_true(offer_as(&scene, 1, i, (uint64_t)i + 1, 0, true));
    }
    for (int i = 0; i < 11; i++) { /* longer than any lease */
        pass(&scene, 1);
        hear(&scene, 0);
        hear(&scene, 1);
        hear(&scene, 2);
        report(&scene);
        assert_int_equal(apply(&scene, 0), 0);
    }
    beat(&scene, 0, 2, STATE_LOST, why);
    assert_true(
        told(&scene, "worker 2 (10.0.0.2:1) has not heard from ps 1 (q:2222) for 11 s: it takes no part until"));
    assert_int_equal(job_worker_state(&scene.jobs[0], 2), STATE_LOST);
    assert_int_equal(job_present(&scene.jobs[0]), 2);
    assert_true(job_take_step(&scene.jobs[0], &step));
    assert_int_equal(step.count, 2);
    job_step_applied(&scene.jobs[0], &step, true, scene.now_s);
    assert_int_equal(outcome(&scene, 2, 0), PUSH_STALE);
    /* Other messages from it, and another connection, change nothing. */
    hear(&scene, 2);
    come(&scene, 2, 3);
    beat(&scene, 0, 2, STATE_LOST, why);
    assert_int_equal(job_present(&scene.jobs[0]), 2);
    assert_string_equal(scene.log, "");
    /* If nobody else is left, the log names it, and why. */
    beat(&scene, 0, 0, STATE_LOST, why);
    beat(&scene, 0, 1, STATE_LOST, why);
    pass(&scene, 2);
    assert_true(job_describe_wait(&scene.jobs[0], scene.now_s, message));
    assert_string_equal(message,
                        "waiting for worker 0 (b:2222) to push step 1: it has not heard from ps 1 (q:2222) for "
                        "11 s");
    scene.log[0] = '\0';
    beat(&scene, 0, 2, STATE_TRAINING, "");
    assert_true(told(&scene, "worker 2 (10.0.0.2:1) reaches all ps again after 2 s"));
    assert_int_equal(job_present(&scene.jobs[0]), 1);
    assert_int_equal(job_worker_state(&scene.jobs[0], 2), STATE_TRAINING);
    end(&scene);
}

/* It is alive: a claim on its place is probed as usual. A new process starts from 0. */
static void test_who_is_cut_off_keeps_its_place(void **state)
{
    (void)state;
    struct scene scene;
    struct error message;
    begin(&scene, 1, 2, 0, 1);
    beat(&scene, 0, 1, STATE_LOST, "has not heard from ps 1 (q:2222) for 11 s");
    const struct peer other = {.member = {MEMBER_WORKER, 1}, .incarnation = 99, .program = "trainer"};
    assert_int_equal(job_hello(&scene.jobs[0], &other, "x:1", scene.now_s, &message), JOB_RETRY);
    job_pong(&scene.jobs[0], 1, 2, job_probe_nonce(&scene.jobs[0], 1));
    assert_int_equal(job_hello(&scene.jobs[0], &other, "x:1", scene.now_s, &message), REFUSAL_DUPLICATE);
    job_leave(&scene.jobs[0], 1, 2, "stopped", scene.now_s);
    assert_int_equal(job_hello(&scene.jobs[0], &other, "x:1", scene.now_s, &message), 0);
    job_note_ready(&scene.jobs[0], 1, 99, scene.now_s);
    assert_int_equal(job_present(&scene.jobs[0]), 2);
    end(&scene);
}

/* All but two are lost in one tick, which has other lines to log. */
static void test_many_are_lost_at_once(void **state)
{
    enum { LISTED = 40, HERE = 36 };
    static char *many[LISTED];
    (void)state;
    struct scene scene;
    struct error error;
    begin(&scene, 1, 0, 0, 1);
    end(&scene);
    for (int i = 0; i < LISTED; i++) {
        many[i] = hosts[i % MOST];
    }
    scene.config.cluster.worker_hosts.items = many;
    scene.config.cluster.worker_hosts.count = LISTED;
    assert_true(job_create(&scene.jobs[0], &scene.config, 0, scene.now_s, &error));
    for (int i = 0; i < HERE; i++) {
        come(&scene, i, (uint64_t)i + 1);
    }
    restore(&scene, 1, 0, 0);
    for (int s = 0; s <= 21; s++) {
        scene.now_s += 0.5;
        hear(&scene, 0);
        hear(&scene, 1);
        for (int i = 2; s == 0 && i < HERE; i++) {
            hear(&scene, i);
        }
        if (s < 21) {
            assert_false(job_tick(&scene.jobs[0], scene.now_s));
            play(&scene);
        }
    }
    scene.log[0] = '\0';
    scene.jobs[0].logged_s = 0; /* and who is awaited, and who never came */
    scene.jobs[0].logged_absent = false;
    for (int more = 1, calls = 0; more; calls++) {
        more = job_tick(&scene.jobs[0], scene.now_s);
        play(&scene);
        assert_in_range(calls, 0, HERE);
    }
    int lost = 0;
    for (const char *at = scene.log; (at = strstr(at, " is lost: ")); at++) {
        lost++;
    }
    assert_int_equal(lost, HERE - 2);
    assert_int_equal(job_present(&scene.jobs[0]), 2);
    assert_non_null(strstr(scene.log, "waiting for worker 0"));
    assert_true(told(&scene, "worker 36 (b:2222) and others are absent"));
    end(&scene);
}

/* A gradient of a later step has arrived: what happened to an earlier one of the same worker is a separate question. */
static void test_an_earlier_push_is_not_the_one_that_was_taken(void **state)
{
    (void)state;
    struct scene scene;
    begin(&scene, 1, 4, 3, 1);
    for (int i = 0; i < 3; i++) {
        offer(&scene, i, 0);
    }
    assert_int_equal(apply(&scene, 0), 3);
    offer(&scene, 3, 0);
    assert_int_equal(outcome(&scene, 3, 0), PUSH_STALE);
    for (int i = 1; i < 4; i++) {
        offer(&scene, i, 1);
    }
    assert_int_equal(apply(&scene, 0), 3);
    assert_int_equal(outcome(&scene, 3, 1), PUSH_APPLIED);
    assert_int_equal(outcome(&scene, 3, 0), PUSH_STALE); /* asked about again on another connection */
    end(&scene);
}

/* A rollout: from step 2 on two gradients are enough, exactly from there; then back, at once. */
static void test_replicas_change_at_one_step(void **state)
{
    (void)state;
    struct scene scene;
    begin(&scene, 1, 4, 4, 3);
    struct config next = scene.config;
    next.cluster.replicas_to_aggregate = 2;
    next.cluster.min_replicas = 1;
    job_schedule(&scene.jobs[0], &next, 2, scene.now_s);
    for (int64_t step = 0; step < 2; step++) {
        for (int i = 0; i < 4; i++) {
            assert_int_equal(apply(&scene, 0), 0);
            offer(&scene, i, step);
        }
        assert_int_equal(apply(&scene, 0), 4);
    }
    assert_true(told(&scene, "from global step 2 on a step takes 2 gradients (before: 4), at least 1"));
    assert_false(scene.jobs[0].has_next);
    offer(&scene, 3, 2);
    assert_int_equal(apply(&scene, 0), 0);
    offer(&scene, 1, 2);
    assert_int_equal(apply(&scene, 0), 2);
    /* Going back requires more: what has been gathered is not enough any more... */
    offer(&scene, 0, 3);
    job_schedule(&scene.jobs[0], &scene.config, 0, scene.now_s);
    offer(&scene, 1, 3);
    offer(&scene, 2, 3);
    assert_int_equal(apply(&scene, 0), 0);
    /* ...and going forward again requires fewer: what has been gathered decides the step by itself. */
    job_schedule(&scene.jobs[0], &next, 3, scene.now_s);
    assert_int_equal(apply(&scene, 0), 3);
    /* A decided step does not change. */
    offer(&scene, 0, 4);
    offer(&scene, 2, 4);
    job_schedule(&scene.jobs[0], &scene.config, 4, scene.now_s);
    assert_int_equal(apply(&scene, 0), 2);
    offer(&scene, 0, 5);
    offer(&scene, 2, 5);
    assert_int_equal(apply(&scene, 0), 0);
    end(&scene);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_step_takes_one_of_every_worker),
        cmocka_unit_test(test_a_gradient_sent_twice_counts_once),
        cmocka_unit_test(test_backups_come_too_late_and_are_counted),
        cmocka_unit_test(test_a_lost_worker_shrinks_the_step),
        cmocka_unit_test(test_one_that_leaves_is_not_waited_for),
        cmocka_unit_test(test_min_replicas_is_the_least),
        cmocka_unit_test(test_who_never_came_is_waited_for_one_lease),
        cmocka_unit_test(test_not_finite_holds_up_nobody),
        cmocka_unit_test(test_a_follower_holds_no_refusal),
        cmocka_unit_test(test_a_new_generation_forgets_what_was_staged),
        cmocka_unit_test(test_lies_about_steps_are_refused),
        cmocka_unit_test(test_after_the_last_step_nothing_is_wanted),
        cmocka_unit_test(test_two_ps_agree),
        cmocka_unit_test(test_nobody_waits_for_who_is_cut_off_from_a_ps),
        cmocka_unit_test(test_who_is_cut_off_keeps_its_place),
        cmocka_unit_test(test_many_are_lost_at_once),
        cmocka_unit_test(test_an_earlier_push_is_not_the_one_that_was_taken),
        cmocka_unit_test(test_replicas_change_at_one_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
