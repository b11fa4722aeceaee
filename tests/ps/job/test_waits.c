/* What a synchronous job waits for, how long, and how it says so; and who may report what to whom. */
#include "tests/ps/job/stepping.h"

static char message[256];

static bool is_said(struct scene *scene, int ps, const char *text)
{
    if (!job_describe_wait(&scene->jobs[ps], scene->now_s, message)) {
        assert_string_equal(message, "");
        return false;
    }
    if (strcmp(message, text) != 0) {
        fail_msg("\"%s\" instead of \"%s\"", message, text);
    }
    return true;
}

static bool is_silent(struct scene *scene, int ps)
{
    strcpy(message, "something");
    const bool waits = job_describe_wait(&scene->jobs[ps], scene->now_s, message);
    assert_true(waits || message[0] == '\0');
    return !waits;
}

static void all_are_heard(struct scene *scene, int count)
{
    for (int i = 0; i < count; i++) {
        hear(scene, i);
    }
}

/* --- For people --- */

static void a_wait_of_a_second_is_worth_a_message(void **state)
{
    struct scene scene;
    (void)state;
    begin(&scene, 1, 4, 0, 1);
    pass(&scene, 0.75);
    assert_true(is_silent(&scene, 0));
    pass(&scene, 0.25);
    assert_true(is_said(&scene, 0, "waiting for worker 0 (b:2222) to push step 0, 1 s"));
    offer(&scene, 0, 0);
    assert_true(is_said(&scene, 0, "waiting for worker 1 (c:2222) to push step 0, 1 s"));
    for (int i = 1; i < 4; i++) {
        offer(&scene, i, 0);
    }
    assert_true(is_silent(&scene, 0)); /* it is decided */
    assert_int_equal(apply(&scene, 0), 4);
    pass(&scene, 0.75);
    assert_true(is_silent(&scene, 0)); /* the wait for the next step has started again */
    pass(&scene, 1);
    assert_true(is_said(&scene, 0, "waiting for worker 0 (b:2222) to push step 1, 2 s"));
    end(&scene);
}

static void a_gradient_that_was_not_finite_is_waited_for_again(void **state)
{
    struct scene scene;
    (void)state;
    begin(&scene, 1, 4, 0, 1);
    scene.sequences[0]++;
    assert_true(offer_as(&scene, 0, 0, 1, 0, false));
    pass(&scene, 3);
    assert_true(is_said(&scene, 0,
                        "waiting for worker 0 (b:2222) to push step 0 again, since its gradient was not finite, 3 s"));
    end(&scene);
}

static void too_few_workers_are_counted(void **state)
{
    struct scene scene;
    (void)state;
    begin(&scene, 1, 1, 0, 3);
    offer(&scene, 0, 0);
    pass(&scene, 2);
    assert_true(is_said(&scene, 0, "waiting for worker 1 (c:2222) to push step 0, 2 s")); /* it may come yet */
    for (int i = 0; i < 8; i++) {
        pass(&scene, 1);
        hear(&scene, 0);
    }
    assert_true(is_said(&scene, 0, "waiting for 2 more workers to push step 0 (min_replicas is 3), 10 s"));
    come(&scene, 1, 2);
    assert_true(is_said(&scene, 0, "waiting for worker 1 (c:2222) to push step 0, 10 s"));
    offer(&scene, 1, 0);
    assert_true(is_said(&scene, 0, "waiting for 1 more worker to push step 0 (min_replicas is 3), 10 s"));
    end(&scene);
}

/* Also between two ticks. */
static void who_may_still_come_is_seen_at_once(void **state)
{
    struct scene scene;
    (void)state;
    begin(&scene, 1, 1, 0, 3);
    offer(&scene, 0, 0);
    pass(&scene, 9.75);
    assert_true(is_said(&scene, 0, "waiting for worker 1 (c:2222) to push step 0, 10 s"));
    scene.now_s += 0.25;
    assert_true(is_said(&scene, 0, "waiting for 2 more workers to push step 0 (min_replicas is 3), 10 s"));
    end(&scene);
}

static void a_ps_waits_for_the_one_that_decides(void **state)
{
    struct scene scene;
    (void)state;
    begin(&scene, 2, 4, 0, 1);
    for (int i = 0; i < 4; i++) {
        scene.sequences[i]++;
        assert_true(offer_as(&scene, 1, i, (uint64_t)i + 1, 0, true));
    }
    pass(&scene, 4);
    assert_true(is_said(&scene, 1, "waiting for ps 0 (p:2222) to decide on step 0, 4 s"));
    assert_true(is_said(&scene, 0, "waiting for worker 0 (b:2222) to push step 0, 4 s"));
    end(&scene);
}

/* The ps that decides names the other one, where its own part of the gradient is here. */
static void the_ps_that_lacks_a_part_is_named(void **state)
{
    struct scene scene;
    (void)state;
    begin(&scene, 2, 4, 0, 1);
    for (int i = 0; i < 4; i++) {
        offer(&scene, i, 0);
    }
    offer_as(&scene, 1, 0, 1, 0, true);
    report(&scene);
    pass(&scene, 2);
    assert_true(is_said(&scene, 0, "waiting for worker 1 (c:2222) to push step 0 to ps 1 (q:2222), 2 s"));
    assert_true(is_said(&scene, 1, "waiting for worker 1 (c:2222) to push step 0, 2 s"));
    end(&scene);
}

/* However long the job has lasted, a step that has just begun is no news. */
static void only_long_waits_are_logged(void **state)
{
    struct scene scene;
    (void)state;
    begin(&scene, 1, 4, 0, 1);
    pass(&scene, 8);
    for (int i = 0; i < 4; i++) {
        offer(&scene, i, 0);
    }
    assert_int_equal(apply(&scene, 0), 4);
    scene.log[0] = '\0';
    for (int i = 0; i < 2; i++) {
        pass(&scene, 4.5);
        all_are_heard(&scene, 4);
    }
    assert_string_equal(scene.log, "");
    pass(&scene, 5);
    assert_true(told(&scene, "waiting for worker 0 (b:2222) to push step 1, 12 s"));
    end(&scene);
}

static void nothing_is_waited_for_while_nothing_is_trained(void **state)
{
    struct scene scene;
    struct verdict verdict;
    (void)state;
    begin(&scene, 1, 4, 0, 1);
    pass(&scene, 2);
    assert_false(is_silent(&scene, 0));
    job_begin_restore(&scene.jobs[0], 0, 2, "a checkpoint", scene.now_s, &verdict);
    assert_true(is_silent(&scene, 0));
    restore(&scene, 3, 10, 10); /* behind its last step */
    pass(&scene, 2);
    assert_true(is_silent(&scene, 0));
    end(&scene);
}

/* --- How long --- */

static void who_never_came_is_waited_for_one_lease_exactly(void **state)
{
    struct scene scene;
    (void)state;
    begin(&scene, 1, 3, 0, 1);
    for (int i = 0; i < 3; i++) {
        offer(&scene, i, 0);
    }
    pass(&scene, 5);
    all_are_heard(&scene, 3);
    pass(&scene, 4.75);
    assert_int_equal(apply(&scene, 0), 0);
    all_are_heard(&scene, 3);
    scene.log[0] = '\0';
    pass(&scene, 0.25);
    assert_true(told(&scene, "worker 3 (e:2222) is absent; steps are made without them until they join"));
    assert_int_equal(apply(&scene, 0), 3);
    for (int i = 0; i < 3; i++) {
        offer(&scene, i, 1);
    }
    assert_int_equal(apply(&scene, 0), 3);
    assert_null(strstr(scene.log, "absent")); /* it is said once */
    end(&scene);
}

static void nobody_is_called_absent_where_all_are_there(void **state)
{
    struct scene scene;
    (void)state;
    begin(&scene, 1, 4, 0, 1);
    for (int i = 0; i < 6; i++) {
        pass(&scene, 2);
        all_are_heard(&scene, 4);
    }
    play(&scene);
    assert_null(strstr(scene.log, "absent"));
    end(&scene);
}

/* --- What counts --- */

static void a_late_gradient_says_how_late_it_is(void **state)
{
    struct scene scene;
    (void)state;
    begin(&scene, 1, 4, 3, 1);
    for (int64_t step = 0; step < 3; step++) {
        for (int i = 0; i < 3; i++) {
            offer(&scene, i, step);
            assert_int_equal(scene.jobs[0].workers[i].staleness, 0);
        }
        assert_int_equal(apply(&scene, 0), 3);
    }
    assert_int_equal(scene.jobs[0].workers[1].applied, 3);
    assert_false(offer(&scene, 3, 1));
    assert_int_equal(scene.jobs[0].workers[3].staleness, 2);
    assert_int_equal(scene.jobs[0].workers[3].applied, 0);
    /* The same again, on another connection, changes nothing of that; one of a later step does. */
    assert_false(offer_as(&scene, 0, 3, 4, 0, true));
    assert_int_equal(scene.jobs[0].workers[3].staleness, 2);
    assert_true(offer(&scene, 3, 3));
    assert_int_equal(scene.jobs[0].workers[3].staleness, 0);
    end(&scene);
}

/* Its answer was lost, and it has gone on meanwhile: then the next gradient is the one that counts, or is dropped. */
static void a_late_question_leaves_the_next_gradient_alone(void **state)
{
    struct scene scene;
    struct verdict verdict;
    (void)state;
    begin(&scene, 1, 4, 3, 1);
    for (int i = 0; i < 3; i++) {
        offer(&scene, i, 0);
    }
    assert_int_equal(apply(&scene, 0), 3);
    assert_false(offer(&scene, 3, 0));
    const struct job_push first = push_of(&scene, 3, 0, true);
    assert_true(offer(&scene, 3, 1));
    assert_true(job_settled(&scene.jobs[0], 3, 4, &first, &verdict));
    assert_int_equal(verdict.outcome, PUSH_STALE);
    assert_int_equal(scene.jobs[0].workers[3].stale, 0);
    assert_int_equal(scene.jobs[0].workers[3].outcome, PUSH_STAGED);
    offer(&scene, 0, 1);
    offer(&scene, 1, 1);
    assert_int_equal(apply(&scene, 0), 3);
    assert_int_equal(outcome(&scene, 3, 1), PUSH_APPLIED);
    end(&scene);
}

static void the_first_process_of_a_worker_is_not_heard_any_more(void **state)
{
    struct scene scene;
    struct verdict verdict;
    bool receive;
    (void)state;
    begin(&scene, 1, 4, 0, 1);
    job_disconnected(&scene.jobs[0], 1, 2, scene.now_s);
    come(&scene, 1, 77);
    const struct job_push push = {.generation = 1, .sequence = 1, .token = 0, .finite = true};
    job_stage(&scene.jobs[0], 1, 2, &push, scene.now_s, &verdict, &receive);
    assert_int_not_equal(verdict.code, 0);
    assert_false(receive);
    assert_true(job_settled(&scene.jobs[0], 1, 2, &push, &verdict));
    assert_int_equal(verdict.code, ERROR_NOT_ALLOWED);
    assert_string_equal(verdict.message, "a newer process is worker 1 now");
    end(&scene);
}

/* The worker waits for the ps that decides, which knows whether the step needs another gradient of it. */
static void a_ps_that_follows_refuses_at_once(void **state)
{
    struct scene scene;
    struct verdict verdict;
    (void)state;
    begin(&scene, 2, 4, 0, 1);
    scene.sequences[1] = 1;
    const struct job_push push = push_of(&scene, 1, 0, false);
    for (int ps = 0; ps < 2; ps++) {
        assert_true(offer_as(&scene, ps, 1, 2, 0, false));
        assert_int_equal(job_settled(&scene.jobs[ps], 1, 2, &push, &verdict), ps == 1);
    }
    assert_int_equal(verdict.outcome, PUSH_NOT_FINITE);
    end(&scene);
}

/* The other ps has its part of the new model, and has decided on its first step: that comes again. */
static void a_decision_may_come_before_the_model(void **state)
{
    static const bool all[MOST] = {true, true, true, true};
    struct scene scene;
    struct verdict verdict;
    (void)state;
    begin(&scene, 2, 4, 0, 1);
    job_begin_restore(&scene.jobs[1], 0, 2, "a checkpoint", scene.now_s, &verdict);
    assert_true(job_apply_decision(&scene.jobs[1], 2, 0, all));
    assert_false(scene.jobs[1].gathered.decided);
    assert_true(job_apply_decision(&scene.jobs[0], 1, 0, all)); /* who decides is told nothing */
    assert_false(scene.jobs[0].gathered.decided);
    play(&scene);
    end(&scene);
}

/* A step that somebody applies while the chief restores counts for nobody, whichever comes first. */
static void a_step_of_a_model_that_is_given_up_counts_for_nobody(void **state)
{
    struct scene scene;
    struct job_step step;
    struct verdict verdict;
    (void)state;
    for (int how = 0; how < 3; how++) {
        begin(&scene, 1, 4, 0, 1);
        for (int i = 0; i < 4; i++) {
            offer(&scene, i, 0);
        }
        assert_true(job_has_step(&scene.jobs[0]));
        assert_true(job_take_step(&scene.jobs[0], &step));
        assert_false(job_has_step(&scene.jobs[0]));
        assert_int_equal(step.generation, 1);
        assert_int_equal(step.step, 0);
        if (how > 0) {
            job_begin_restore(&scene.jobs[0], 0, 2, "a checkpoint", scene.now_s, &verdict);
        }
        if (how > 1) {
            job_schedule(&scene.jobs[0], &scene.config, 0, scene.now_s);
            job_end_restore(&scene.jobs[0], 0, 2, 0, 600, scene.now_s, &verdict);
            assert_int_equal(verdict.code, 0);
        }
        job_step_applied(&scene.jobs[0], &step, how > 0, scene.now_s);
        assert_int_equal(scene.jobs[0].global_step, 0);
        for (int i = 0; i < 4; i++) {
            assert_int_equal(scene.jobs[0].workers[i].applied, 0);
            assert_int_equal(scene.jobs[0].workers[i].taken_step, -1);
        }
        play(&scene);
        end(&scene);
    }
}

static void a_step_is_refused_that_cannot_be(void **state)
{
    struct scene scene;
    struct verdict verdict;
    bool receive;
    (void)state;
    begin(&scene, 1, 4, 0, 1);
    const struct job_push ahead = {.generation = 1, .sequence = 1, .token = 1, .finite = true};
    job_stage(&scene.jobs[0], 1, 2, &ahead, scene.now_s, &verdict, &receive);
    assert_int_equal(verdict.code, ERROR_BAD_REQUEST);
    assert_string_equal(verdict.message, "a gradient of step 1 is impossible: training is at step 0");
    const struct job_push before = {.generation = 1, .sequence = 1, .token = -1, .finite = true};
    job_stage(&scene.jobs[0], 1, 2, &before, scene.now_s, &verdict, &receive);
    assert_string_equal(verdict.message, "a gradient of step -1 is impossible: training is at step 0");
    const struct job_push none = {.generation = 1, .sequence = 0, .token = 0, .finite = true};
    job_stage(&scene.jobs[0], 1, 2, &none, scene.now_s, &verdict, &receive);
    assert_string_equal(verdict.message, "pushes are counted from 1, not 0");
    end(&scene);
}

/* A gradient is kept once: what came twice, or after the step was decided, or of another step, is not received. */
static void nothing_is_staged_that_the_step_does_not_need(void **state)
{
    struct scene scene;
    struct verdict verdict;
    (void)state;
    begin(&scene, 1, 4, 0, 1);
    scene.sequences[1] = 1;
    const struct job_push push = push_of(&scene, 1, 0, true);
    job_staged(&scene.jobs[0], 1, 2, &push, false, scene.now_s, &verdict); /* not one byte of it came */
    assert_int_equal(aggregation_get(&scene.jobs[0].gathered, 0, 1), PART_MISSING);
    assert_int_equal(scene.jobs[0].workers[1].sequence, 1);
    const uint64_t changes = scene.jobs[0].changes;
    job_staged(&scene.jobs[0], 1, 2, &push, true, scene.now_s, &verdict);
    assert_int_equal(aggregation_get(&scene.jobs[0].gathered, 0, 1), PART_HERE);
    assert_true(scene.jobs[0].changes > changes); /* which a follower tells the ps that decides */
    play(&scene);
    end(&scene);
}

static void one_gradient_may_be_enough(void **state)
{
    struct scene scene;
    (void)state;
    begin(&scene, 1, 4, 1, 1);
    assert_int_equal(scene.jobs[0].last_set_step, -1); /* no step has a set yet */
    const uint64_t changes = scene.jobs[0].changes;
    offer(&scene, 2, 0);
    assert_int_equal(apply(&scene, 0), 1);
    assert_true(scene.jobs[0].changes >= changes + 2); /* what came, and the next step */
    assert_int_equal(scene.jobs[0].last_set_step, 0);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(scene.jobs[0].last_set[i], i == 2);
    }
    end(&scene);
}

/* Worker 1 is the only one that ever came, or so it seems: the others may come, but owe nothing yet. */
static void who_was_refused_is_asked_again_where_nobody_else_is_there(void **state)
{
    struct scene scene;
    (void)state;
    begin(&scene, 1, 0, 0, 1);
    come(&scene, 1, 2);
    scene.sequences[1]++;
    assert_true(offer_as(&scene, 0, 1, 2, 0, false));
    assert_int_equal(outcome(&scene, 1, 0), PUSH_NOT_FINITE);
    come(&scene, 2, 3);
    assert_int_equal(outcome(&scene, 1, 0), -1); /* that one is enough, though nothing of it is here yet */
    end(&scene);
}

static void who_was_not_refused_is_not_asked_again(void **state)
{
    struct scene scene;
    (void)state;
    begin(&scene, 1, 2, 0, 3);
    offer(&scene, 0, 0);
    assert_int_equal(outcome(&scene, 0, 0), -1); /* too few are there, but its own is here */
    end(&scene);
}

/* The step was made while bytes of a gradient still came: they are not those of the next. */
static void what_comes_too_late_is_not_of_the_next_step(void **state)
{
    struct scene scene;
    struct verdict verdict;
    bool receive;
    (void)state;
    begin(&scene, 1, 4, 3, 1);
    const struct job_push push = {.generation = 1, .sequence = 1, .token = 0, .finite = true};
    job_stage(&scene.jobs[0], 3, 4, &push, scene.now_s, &verdict, &receive);
    assert_true(receive);
    for (int i = 0; i < 3; i++) {
        offer(&scene, i, 0);
    }
    assert_int_equal(apply(&scene, 0), 3);
    memset(&verdict, 0xff, sizeof verdict);
    job_staged(&scene.jobs[0], 3, 4, &push, true, scene.now_s, &verdict);
    assert_int_equal(verdict.code, 0);
    assert_int_equal(aggregation_get(&scene.jobs[0].gathered, 0, 3), PART_MISSING);
    end(&scene);
}

static void what_is_refused_leaves_no_trace(void **state)
{
    struct scene scene;
    struct verdict verdict;
    (void)state;
    begin(&scene, 1, 4, 0, 1);
    const struct job_push ahead = {.generation = 1, .sequence = 9, .token = 1, .finite = true};
    job_staged(&scene.jobs[0], 1, 2, &ahead, true, scene.now_s, &verdict);
    assert_int_equal(verdict.code, ERROR_BAD_REQUEST);
    assert_int_equal(scene.jobs[0].workers[1].sequence, 0);
    restore(&scene, 2, 10, 10);
    const struct job_push behind = {.generation = 2, .sequence = 9, .token = 11, .finite = true};
    bool receive = true;
    job_stage(&scene.jobs[0], 1, 2, &behind, scene.now_s, &verdict, &receive); /* past the end all are told so */
    assert_int_equal(verdict.code, 0);
    assert_false(receive);
    job_staged(&scene.jobs[0], 1, 2, &behind, true, scene.now_s, &verdict);
    assert_int_equal(verdict.code, 0);
    assert_int_equal(scene.jobs[0].workers[1].sequence, 0);
    assert_true(job_settled(&scene.jobs[0], 1, 2, &behind, &verdict));
    assert_int_equal(verdict.outcome, PUSH_NOT_WANTED);
    end(&scene);
}

static void a_model_that_is_being_restored_takes_nothing(void **state)
{
    struct scene scene;
    struct verdict verdict;
    (void)state;
    begin(&scene, 1, 4, 0, 1);
    for (int i = 0; i < 4; i++) {
        offer(&scene, i, 0);
    }
    assert_true(job_has_step(&scene.jobs[0]));
    job_begin_restore(&scene.jobs[0], 0, 2, "a checkpoint", scene.now_s, &verdict);
    assert_false(job_has_step(&scene.jobs[0]));
    const struct job_push early = {.generation = 2, .sequence = 1, .token = 0, .finite = true};
    assert_true(job_settled(&scene.jobs[0], 1, 2, &early, &verdict));
    assert_int_equal(verdict.code, ERROR_OLD_GENERATION);
    play(&scene);
    end(&scene);
}

/* Asked once more, on another connection, for a push that a later one follows. */
static void an_earlier_push_changes_nothing_of_the_later_one(void **state)
{
    struct scene scene;
    (void)state;
    begin(&scene, 1, 4, 3, 1);
    for (int i = 0; i < 3; i++) {
        offer(&scene, i, 0);
    }
    assert_int_equal(apply(&scene, 0), 3);
    offer(&scene, 3, 0);
    offer(&scene, 3, 1); /* before anybody asked what the first one came to */
    scene.sequences[3] = 1;
    assert_int_equal(outcome(&scene, 3, 0), PUSH_STALE);
    assert_int_equal(scene.jobs[0].workers[3].stale, 0);
    assert_int_equal(scene.jobs[0].workers[3].outcome, PUSH_STAGED);
    end(&scene);
}

/* Whoever pushes is alive. */
static void pushes_are_signs_of_life(void **state)
{
    struct scene scene;
    struct verdict verdict;
    bool receive;
    (void)state;
    begin(&scene, 1, 4, 0, 1);
    const struct job_push push = {.generation = 1, .sequence = 1, .token = 0, .finite = true};
    pass(&scene, 9);
    job_stage(&scene.jobs[0], 1, 2, &push, scene.now_s, &verdict, &receive);
    job_staged(&scene.jobs[0], 2, 3, &push, true, scene.now_s, &verdict);
    pass(&scene, 2);
    assert_int_equal(job_present(&scene.jobs[0]), 2);
    assert_true(scene.jobs[0].workers[1].present && scene.jobs[0].workers[2].present);
    end(&scene);
}

/* --- Who comes by itself --- */

static void who_came_by_itself_is_waited_for_while_it_is_there(void **state)
{
    struct scene scene;
    struct error error;
    (void)state;
    begin(&scene, 1, 4, 0, 1);
    end(&scene);
    scene.config.cluster.worker_hosts.count = 3;
    scene.config.cluster.elastic = true;
    scene.config.cluster.elastic_workers = 1;
    assert_true(job_create(&scene.jobs[0], &scene.config, 0, scene.now_s, &error));
    for (int i = 0; i < 3; i++) {
        scene.sequences[i] = 0;
        come(&scene, i, (uint64_t)i + 1);
    }
    restore(&scene, 1, 0, 0);
    for (int i = 0; i < 3; i++) {
        offer(&scene, i, 0);
    }
    assert_int_equal(apply(&scene, 0), 3); /* nobody knows of the fourth */
    come(&scene, 3, 4);
    for (int i = 0; i < 3; i++) {
        offer(&scene, i, 1);
    }
    pass(&scene, 2);
    assert_true(is_said(&scene, 0, "waiting for worker 3 (10.0.0.3:1) to push step 1, 2 s"));
    end(&scene);
}

static void the_first_of_several_that_never_came_is_named(void **state)
{
    struct scene scene;
    (void)state;
    begin(&scene, 1, 0, 0, 1);
    come(&scene, 2, 3);
    pass(&scene, 8);
    hear(&scene, 2);
    pass(&scene, 2.5);
    assert_true(told(&scene, "worker 0 (b:2222) and others are absent; steps are made without them until they join"));
    end(&scene);
}

/* --- Between ps --- */

static void an_asynchronous_job_has_no_steps_to_wait_for(void **state)
{
    struct scene scene;
    struct job_step step;
    struct error error;
    (void)state;
    begin(&scene, 2, 4, 0, 1);
    end(&scene);
    scene.config.cluster.issync = false;
    for (int ps = 0; ps < 2; ps++) {
        assert_true(job_create(&scene.jobs[ps], &scene.config, ps, scene.now_s, &error));
    }
    come(&scene, 0, 1);
    restore(&scene, 1, 0, 0);
    pass(&scene, 2);
    for (int ps = 0; ps < 2; ps++) {
        assert_false(job_is_follower(&scene.jobs[ps]));
        assert_false(job_take_step(&scene.jobs[ps], &step));
        assert_true(is_silent(&scene, ps));
    }
    end(&scene);
}

/* A set of one is a set; one of a worker that this ps has nothing of is not taken. */
static void a_decision_is_of_what_is_here(void **state)
{
    const bool first[MOST] = {true}, second[MOST] = {false, true};
    struct scene scene;
    (void)state;
    begin(&scene, 2, 4, 1, 1);
    scene.sequences[1] = 1;
    assert_true(offer_as(&scene, 1, 1, 2, 0, true));
    assert_false(job_apply_decision(&scene.jobs[1], 1, 0, first));
    assert_int_equal(apply(&scene, 1), 0);
    assert_true(job_apply_decision(&scene.jobs[1], 1, 0, second));
    assert_int_equal(apply(&scene, 1), 1);
    end(&scene);
}

static void only_ps_that_hold_something_report(void **state)
{
    static char third[] = "r:2222";
    static char *three[] = {ps_hosts[0], ps_hosts[1], third};
    const bool all[MOST] = {true, true, true, true}, none[MOST] = {false};
    struct scene scene;
    struct verdict verdict;
    struct error error;
    (void)state;
    begin(&scene, 2, 4, 0, 1);
    end(&scene);
    scene.config.cluster.ps_hosts.items = three;
    scene.config.cluster.ps_hosts.count = 3;
    scene.config.cluster.placement = PLACEMENT_ROUND_ROBIN; /* weights, biases, nothing */
    scene.ps_count = 1;
    assert_true(job_create(&scene.jobs[0], &scene.config, 0, scene.now_s, &error));
    for (int i = 0; i < 4; i++) {
        come(&scene, i, (uint64_t)i + 1);
    }
    restore(&scene, 1, 0, 0);
    static const int others[] = {-1, 0, 2, 3};
    for (int i = 0; i < 4; i++) {
        char text[80];
        job_report(&scene.jobs[0], others[i], 1, 0, all, none, scene.now_s, &verdict);
        assert_int_equal(verdict.code, ERROR_NOT_ALLOWED);
        snprintf(text, sizeof text, "ps %d has nothing to report to ps 0", others[i]);
        assert_string_equal(verdict.message, text);
    }
    for (int i = 0; i < 4; i++) {
        offer(&scene, i, 0);
    }
    assert_int_equal(apply(&scene, 0), 0);
    job_report(&scene.jobs[0], 1, 2, 0, all, none, scene.now_s, &verdict); /* of another generation, or step */
    job_report(&scene.jobs[0], 1, 1, 1, all, none, scene.now_s, &verdict);
    assert_int_equal(apply(&scene, 0), 0);
    job_report(&scene.jobs[0], 1, 1, 0, all, none, scene.now_s, &verdict);
    assert_int_equal(verdict.code, 0);
    assert_int_equal(apply(&scene, 0), 4);
    play(&scene);
    end(&scene);
}

/* What is not finite at the other ps counts for nobody, and holds up nobody. */
static void a_part_that_is_not_finite_elsewhere_counts_as_that(void **state)
{
    const bool three[MOST] = {true, true, false, true}, one[MOST] = {false, false, true, false};
    struct scene scene;
    struct verdict verdict;
    struct job_step step;
    (void)state;
    begin(&scene, 2, 4, 0, 1);
    for (int i = 0; i < 4; i++) {
        offer(&scene, i, 0);
    }
    job_report(&scene.jobs[0], 1, 1, 0, three, one, scene.now_s, &verdict);
    assert_true(job_take_step(&scene.jobs[0], &step));
    assert_int_equal(step.count, 3);
    assert_int_equal(step.workers[2], 3);
    end(&scene);
}

static void a_ps_that_does_not_follow_takes_no_decision(void **state)
{
    const bool all[MOST] = {true, true, true, true};
    struct scene scene;
    (void)state;
    begin(&scene, 1, 4, 0, 1);
    assert_true(job_apply_decision(&scene.jobs[0], 1, 0, all)); /* nothing is lacking, for nothing is asked */
    assert_int_equal(apply(&scene, 0), 0);
    end(&scene);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wait_of_a_second_is_worth_a_message),
        cmocka_unit_test(a_gradient_that_was_not_finite_is_waited_for_again),
        cmocka_unit_test(too_few_workers_are_counted),
        cmocka_unit_test(who_may_still_come_is_seen_at_once),
        cmocka_unit_test(a_ps_waits_for_the_one_that_decides),
        cmocka_unit_test(the_ps_that_lacks_a_part_is_named),
        cmocka_unit_test(only_long_waits_are_logged),
        cmocka_unit_test(nothing_is_waited_for_while_nothing_is_trained),
        cmocka_unit_test(who_never_came_is_waited_for_one_lease_exactly),
        cmocka_unit_test(nobody_is_called_absent_where_all_are_there),
        cmocka_unit_test(a_late_gradient_says_how_late_it_is),
        cmocka_unit_test(a_late_question_leaves_the_next_gradient_alone),
        cmocka_unit_test(the_first_process_of_a_worker_is_not_heard_any_more),
        cmocka_unit_test(a_ps_that_follows_refuses_at_once),
        cmocka_unit_test(a_decision_may_come_before_the_model),
        cmocka_unit_test(a_step_of_a_model_that_is_given_up_counts_for_nobody),
        cmocka_unit_test(a_step_is_refused_that_cannot_be),
        cmocka_unit_test(nothing_is_staged_that_the_step_does_not_need),
        cmocka_unit_test(one_gradient_may_be_enough),
        cmocka_unit_test(who_was_refused_is_asked_again_where_nobody_else_is_there),
        cmocka_unit_test(who_was_not_refused_is_not_asked_again),
        cmocka_unit_test(what_comes_too_late_is_not_of_the_next_step),
        cmocka_unit_test(what_is_refused_leaves_no_trace),
        cmocka_unit_test(a_model_that_is_being_restored_takes_nothing),
        cmocka_unit_test(an_earlier_push_changes_nothing_of_the_later_one),
        cmocka_unit_test(pushes_are_signs_of_life),
        cmocka_unit_test(who_came_by_itself_is_waited_for_while_it_is_there),
        cmocka_unit_test(the_first_of_several_that_never_came_is_named),
        cmocka_unit_test(an_asynchronous_job_has_no_steps_to_wait_for),
        cmocka_unit_test(a_decision_is_of_what_is_here),
        cmocka_unit_test(only_ps_that_hold_something_report),
        cmocka_unit_test(a_part_that_is_not_finite_elsewhere_counts_as_that),
        cmocka_unit_test(a_ps_that_does_not_follow_takes_no_decision),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
