/* The job as a state machine: scenarios of members that join, push, fall silent, are duplicated, and leave. */
#include "tests/ps/job/scene.h"

/* A chief and others, all training: worker i has incarnation i + 1. */
static void begin(struct scene *scene, int workers)
{
    set_up(scene, workers);
    for (int i = 0; i < workers; i++) {
        come(scene, i, (uint64_t)i + 1);
    }
    restore(scene, 1, 0, 0);
}

static void pass(struct scene *scene, double seconds)
{
    const double end_s = scene->now_s + seconds;
    while (scene->now_s < end_s) {
        scene->now_s = scene->now_s + 0.5 < end_s ? scene->now_s + 0.5 : end_s;
        while (job_tick(&scene->job, scene->now_s)) {
            play(scene);
        }
        play(scene);
    }
}

static void test_waiting_names_who_is_awaited(void **state)
{
    (void)state;
    struct scene scene;
    char message[256];
    set_up(&scene, 2);
    assert_false(job_ready(&scene.job, 112, message));
    assert_string_equal(message, "waiting for worker 0 (b:2222) to initialise the model, 12 s");
    come(&scene, 1, 2);
    assert_int_equal(push_as(&scene, 1, 2, 0, 1, true).code, ERROR_NOT_READY);
    pass(&scene, 6);
    job_touch(&scene.job, 1, 2, scene.now_s);
    pass(&scene, 6);
    assert_true(told(&scene, "waiting for worker 0 (b:2222)"));
    come(&scene, 0, 1);
    scene.config.cluster.min_workers = 3;
    restore(&scene, 1, 0, 0);
    assert_true(job_initialised(&scene.job));
    assert_false(job_ready(&scene.job, scene.now_s + 2, message));
    assert_string_equal(message, "waiting for 1 more worker (min_workers is 3), 2 s");
    job_destroy(&scene.job);
}

/* A simulated cluster once waited "for 0 more workers" for ever. */
static void test_a_worker_heard_of_again_may_be_the_one_that_was_missing(void **state)
{
    (void)state;
    struct scene scene;
    char message[256];
    set_up(&scene, 3);
    scene.config.cluster.min_workers = 3;
    come(&scene, 0, 1);
    come(&scene, 1, 2);
    restore(&scene, 1, 0, 0);
    pass(&scene, 6);
    job_touch(&scene.job, 0, 1, scene.now_s);
    pass(&scene, 6);
    assert_true(told(&scene, "worker 1"));
    come(&scene, 2, 3);
    assert_int_equal(job_present(&scene.job), 2);
    assert_false(job_ready(&scene.job, scene.now_s, message));
    job_touch(&scene.job, 1, 2, scene.now_s);
    assert_int_equal(job_present(&scene.job), 3);
    assert_true(job_ready(&scene.job, scene.now_s, message));
    job_destroy(&scene.job);
}

static void test_only_the_chief_restores(void **state)
{
    (void)state;
    struct scene scene;
    struct verdict verdict;
    begin(&scene, 2);
    job_begin_restore(&scene.job, 1, 2, "", scene.now_s, &verdict);
    assert_int_equal(verdict.code, ERROR_NOT_ALLOWED);
    job_begin_restore(&scene.job, 0, 1, "", scene.now_s, &verdict); /* not above the present one */
    assert_int_equal(verdict.code, ERROR_OLD_GENERATION);
    job_write(&scene.job, 0, 1, &verdict); /* without begin */
    assert_int_equal(verdict.code, ERROR_BAD_REQUEST);
    job_begin_restore(&scene.job, 0, 5, "model-7\nforged\033line", scene.now_s, &verdict);
    assert_int_equal(verdict.code, 0);
    assert_true(told(&scene, "generation 5: model-7 forged\\x1bline"));
    job_write(&scene.job, 0, 4, &verdict);
    assert_int_equal(verdict.code, ERROR_OLD_GENERATION);
    assert_int_equal(push_as(&scene, 1, 2, 5, 1, true).code, ERROR_NOT_READY);
    job_end_restore(&scene.job, 0, 5, -1, 0, scene.now_s, &verdict);
    assert_int_equal(verdict.code, ERROR_BAD_REQUEST);
    job_end_restore(&scene.job, 0, 5, 70, 600, scene.now_s, &verdict);
    assert_int_equal(verdict.code, 0);
    play(&scene);
    assert_int_equal(push_as(&scene, 1, 2, 1, 1, true).code, ERROR_OLD_GENERATION);
    assert_int_equal(push(&scene, 1, 1), PUSH_APPLIED);
    assert_int_equal(scene.job.global_step, 71);
    job_destroy(&scene.job);
}

/* No value written by the chief makes the counters derived from it overflow. */
static void test_a_restored_job_has_room_to_count(void **state)
{
    static const int64_t bad[][2] = {{-1, 0},           {INT64_MIN, 0}, {JOB_MAX_STEP + 1, 0},    {INT64_MAX - 1, 0},
                                     {INT64_MAX, 1000}, {0, -1},        {0, JOB_MAX_BATCHES + 1}, {0, INT64_MAX}};
    (void)state;
    struct scene scene;
    struct verdict verdict;
    begin(&scene, 2);
    job_begin_restore(&scene.job, 0, 2, "", scene.now_s, &verdict);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        job_check_restored(&scene.job, 0, 2, bad[i][0], bad[i][1], &verdict);
        assert_int_equal(verdict.code, ERROR_BAD_REQUEST);
        job_end_restore(&scene.job, 0, 2, bad[i][0], bad[i][1], scene.now_s, &verdict);
        assert_int_equal(verdict.code, ERROR_BAD_REQUEST);
        assert_int_equal(scene.job.state, JOB_RESTORING);
    }
    for (int64_t step = -1; step <= 0; step++) {
        job_check_restored(&scene.job, 1, 2, step, 0, &verdict);
        assert_int_equal(verdict.code, ERROR_NOT_ALLOWED);
    }
    job_check_restored(&scene.job, 0, 2, JOB_MAX_STEP, JOB_MAX_BATCHES, &verdict);
    assert_int_equal(verdict.code, 0);
    job_end_restore(&scene.job, 0, 2, JOB_MAX_STEP, JOB_MAX_BATCHES, scene.now_s, &verdict);
    assert_int_equal(verdict.code, 0);
    struct verdict pushed;
    const struct job_push push = {.generation = 2, .sequence = 1, .base_step = -MESSAGE_MAX_SIGNED, .finite = true};
    job_push(&scene.job, 1, 2, &push, scene.now_s, &pushed);
    assert_int_equal(pushed.outcome, PUSH_APPLIED);
    assert_true(scene.job.workers[1].staleness == JOB_MAX_STEP + MESSAGE_MAX_SIGNED);
    job_destroy(&scene.job);
}

/* Whatever generation a peer has chosen, there is a later one. */
static void test_generations_go_round(void **state)
{
    static const uint32_t chosen[] = {UINT32_MAX, 1, UINT32_C(1) << 31, UINT32_MAX - 1, 7};
    (void)state;
    struct scene scene;
    struct verdict verdict;
    set_up(&scene, 1);
    come(&scene, 0, 1);
    for (size_t i = 0; i < sizeof chosen / sizeof chosen[0]; i++) {
        restore(&scene, chosen[i], 0, 0);
        const uint32_t refused[] = {chosen[i], chosen[i] - 1, chosen[i] - (UINT32_C(1) << 31) + 1, 0};
        for (size_t k = 0; k < sizeof refused / sizeof refused[0]; k++) {
            job_begin_restore(&scene.job, 0, refused[k], "", scene.now_s, &verdict);
            assert_int_equal(verdict.code, ERROR_OLD_GENERATION);
        }
    }
    assert_int_equal(generation_after(UINT32_MAX), 1);
    assert_true(generation_is_later(generation_after(UINT32_MAX), UINT32_MAX));
    assert_false(generation_is_later(UINT32_MAX, generation_after(UINT32_MAX)));
    assert_true(generation_is_later(UINT32_MAX, 0) && generation_is_later(1, 0) && !generation_is_later(0, 1));
    job_destroy(&scene.job);
}

/* A host that takes no actions for long still finds all probes and cuts, and that lines are missing. */
static void test_actions_never_get_too_many(void **state)
{
    (void)state;
    struct scene scene;
    struct error message;
    begin(&scene, 4);
    for (int round = 0; round < 50; round++) {
        for (int i = 0; i < 4; i++) {
            const uint64_t incarnation = 100 + (uint64_t)(4 * round + i);
            assert_int_equal(hello(&scene, i, incarnation, &message), JOB_RETRY);
            scene.now_s += 0.4;
            assert_int_equal(hello(&scene, i, incarnation, &message), JOB_RETRY);
            scene.now_s += 0.4;
            assert_int_equal(hello(&scene, i, incarnation, &message), JOB_RETRY);
            scene.now_s += 0.4;
            assert_int_equal(hello(&scene, i, incarnation, &message), 0);
        }
    }
    assert_true(told(&scene, "more lines about workers and steps are left out"));
    assert_int_equal(scene.probes, 4);
    assert_int_equal(scene.cuts, 4);
    assert_int_equal(scene.spared, 100 + 4 * 49 + 3);
    assert_false(job_has_actions(&scene.job));
    job_destroy(&scene.job);
}

/*
 * Only a limited number of replaced incarnations is remembered: connections of one's first life may end in its second.
 */
static void test_an_incarnation_comes_back_when_it_is_forgotten(void **state)
{
    (void)state;
    struct scene scene;
    begin(&scene, 2);
    job_hold(&scene.job, 1, 2, 1, scene.now_s);
    for (uint64_t i = 0; i <= JOB_FENCED + 1; i++) {
        const uint64_t incarnation = i <= JOB_FENCED ? 50 + i : 2;
        scene.job.workers[1].connections = 0; /* as if all had ended, except those of the first */
        come(&scene, 1, incarnation);
    }
    assert_true(job_is_current(&scene.job, 1, 2));
    job_hold(&scene.job, 1, 2, -1, scene.now_s);
    assert_int_equal(scene.job.workers[1].held, 0);
    job_disconnected(&scene.job, 1, 2, scene.now_s);
    job_disconnected(&scene.job, 1, 2, scene.now_s);
    assert_int_equal(scene.job.workers[1].connections, 0);
    job_destroy(&scene.job);
}

static void test_a_push_counts_once(void **state)
{
    (void)state;
    struct scene scene;
    begin(&scene, 2);
    assert_int_equal(push(&scene, 1, 1), PUSH_APPLIED);
    assert_int_equal(push(&scene, 1, 1), PUSH_APPLIED_BEFORE);
    assert_int_equal(push(&scene, 1, 2), PUSH_APPLIED);
    assert_int_equal(push(&scene, 1, 1), PUSH_APPLIED_BEFORE);
    assert_int_equal(push(&scene, 0, 1), PUSH_APPLIED); /* sequences are each worker's own */
    assert_int_equal(scene.job.global_step, 3);
    assert_int_equal(push_as(&scene, 1, 2, 1, 0, true).code, ERROR_BAD_REQUEST);
    /* A new process of the same worker counts from 1 again. */
    job_disconnected(&scene.job, 1, 2, scene.now_s);
    come(&scene, 1, 77);
    assert_int_equal(push_as(&scene, 1, 77, 1, 1, true).outcome, PUSH_APPLIED);
    assert_int_equal(scene.job.global_step, 4);
    assert_int_equal(push_as(&scene, 1, 2, 1, 3, true).code, ERROR_NOT_ALLOWED);
    assert_int_equal(scene.job.global_step, 4);
    job_destroy(&scene.job);
}

static void test_a_ps_that_stood_still_blames_nobody(void **state)
{
    (void)state;
    struct scene scene;
    begin(&scene, 2);
    pass(&scene, 9);
    scene.now_s += 600; /* stopped, or its machine was asleep: messages sent meanwhile are still unread */
    pass(&scene, 0.5);
    assert_true(scene.job.workers[1].present);
    pass(&scene, 1);
    assert_true(told(&scene, "worker 1 (10.0.0.1:2) is lost"));
    job_destroy(&scene.job);
}

static void test_not_finite_is_refused_and_counted(void **state)
{
    (void)state;
    struct scene scene;
    begin(&scene, 2);
    assert_int_equal(push_as(&scene, 1, 2, 1, 1, false).outcome, PUSH_NOT_FINITE);
    assert_true(told(&scene, "worker 1 (10.0.0.1:2) sent a gradient that is not finite"));
    assert_int_equal(push_as(&scene, 1, 2, 1, 1, true).outcome, PUSH_NOT_FINITE); /* its retry */
    assert_int_equal(scene.job.workers[1].not_finite, 1);
    assert_int_equal(scene.job.global_step, 0);
    assert_int_equal(push(&scene, 1, 2), PUSH_APPLIED);
    job_destroy(&scene.job);
}

/* A process says that it is worker 1. */
static uint16_t claim(struct scene *scene, uint64_t incarnation)
{
    struct error message;
    return hello(scene, 1, incarnation, &message);
}

/* Two workers in training, and process 9 has begun to claim worker 1's place. */
static void begin_claimed(struct scene *scene)
{
    begin(scene, 2);
    assert_int_equal(claim(scene, 9), JOB_RETRY);
    play(scene);
}

static void test_a_second_process_is_probed(void **state)
{
    (void)state;
    struct scene scene;
    struct error message;
    begin_claimed(&scene);
    assert_int_equal(scene.probes, 1);
    scene.now_s += 0.3;
    assert_int_equal(claim(&scene, 9), JOB_RETRY);
    job_pong(&scene.job, 1, 1, job_probe_nonce(&scene.job, 1));     /* another process does */
    job_pong(&scene.job, 1, 2, job_probe_nonce(&scene.job, 1) - 1); /* to an older question */
    assert_int_equal(claim(&scene, 9), JOB_RETRY);
    scene.now_s += 0.4;
    job_pong(&scene.job, 1, 2, job_probe_nonce(&scene.job, 1));     /* it answers */
    job_pong(&scene.job, 1, 2, job_probe_nonce(&scene.job, 1) - 1); /* followed by an older answer */
    assert_int_equal(hello(&scene, 1, 9, &message), REFUSAL_DUPLICATE);
    assert_non_null(strstr(message.text, "worker 1 is already running at 10.0.0.1:2"));
    /* Another attempt; this time the process is silent. */
    scene.now_s += 5;
    assert_int_equal(claim(&scene, 9), JOB_RETRY);
    scene.now_s += 0.49;
    assert_int_equal(claim(&scene, 9), JOB_RETRY);
    scene.now_s += 0.49;
    assert_int_equal(claim(&scene, 9), JOB_RETRY);
    scene.now_s += 0.03;
    assert_int_equal(claim(&scene, 9), 0);
    play(&scene);
    assert_int_equal(scene.cuts, 1);
    assert_int_equal(scene.spared, 9);
    /* The old one is fenced for good, whatever it tries. */
    assert_int_equal(claim(&scene, 2), REFUSAL_REPLACED);
    assert_int_equal(push_as(&scene, 1, 2, 1, 1, true).code, ERROR_NOT_ALLOWED);
    job_disconnected(&scene.job, 1, 2, scene.now_s);
    assert_int_equal(scene.job.workers[1].connections, 1);
    job_destroy(&scene.job);
}

/* A slow link, or a stalled ps: it receives only now what the old process sent before it was killed. */
static void test_the_last_words_of_a_dead_process_are_no_sign_of_life(void **state)
{
    (void)state;
    struct scene scene;
    begin_claimed(&scene);
    for (int i = 0; i < 4; i++) {
        scene.now_s += 0.24;
        job_touch(&scene.job, 1, 2, scene.now_s);
        assert_int_equal(claim(&scene, 9), JOB_RETRY);
    }
    scene.now_s += 0.05;
    assert_int_equal(claim(&scene, 9), 0);
    job_destroy(&scene.job);
}

/* The ps is stalled until the second is long over: then what it hears may be old, and it probes once more. */
static void test_a_ps_that_was_held_up_probes_anew(void **state)
{
    (void)state;
    struct scene scene;
    begin_claimed(&scene);
    scene.now_s += 3;
    assert_int_equal(claim(&scene, 9), JOB_RETRY);
    play(&scene);
    assert_int_equal(scene.probes, 2);
    scene.now_s += 0.01;
    job_disconnected(&scene.job, 1, 2, scene.now_s);
    assert_int_equal(claim(&scene, 9), 0);
    job_destroy(&scene.job);
}

/*
 * A claimant that arrives while another claim is being probed waits for the result; an abandoned claim blocks nobody.
 */
static void test_a_newcomer_that_went_away_blocks_nobody(void **state)
{
    (void)state;
    struct scene scene;
    begin_claimed(&scene);
    scene.now_s += 0.3;
    assert_int_equal(claim(&scene, 10), JOB_RETRY);
    scene.now_s += 0.3;
    assert_int_equal(claim(&scene, 10), JOB_RETRY);
    scene.now_s += 0.45;
    assert_int_equal(claim(&scene, 10), JOB_RETRY);
    scene.now_s += 0.45;
    assert_int_equal(claim(&scene, 10), JOB_RETRY);
    scene.now_s += 0.11;
    assert_int_equal(claim(&scene, 10), 0);
    job_destroy(&scene.job);
}

/* Two were started in a dead one's place: the first gets it and dies meanwhile, then the second gets it. */
static void test_claims_are_judged_one_after_the_other(void **state)
{
    (void)state;
    struct scene scene;
    begin(&scene, 2);
    for (int i = 0; i <= 10; i++) {
        assert_int_equal(claim(&scene, 9), i < 10 ? JOB_RETRY : 0);
        assert_int_equal(claim(&scene, 10), JOB_RETRY);
        play(&scene);
        scene.now_s += 0.101;
    }
    play(&scene);
    assert_int_equal(scene.probes, 2);
    for (int i = 0; i < 10; i++) {
        scene.now_s += 0.101;
        assert_int_equal(claim(&scene, 10), i < 8 ? JOB_RETRY : 0);
    }
    job_destroy(&scene.job);
}

static void test_a_process_that_is_gone_is_replaced_at_once(void **state)
{
    (void)state;
    struct scene scene;
    struct error message;
    begin(&scene, 2);
    job_disconnected(&scene.job, 1, 2, scene.now_s);
    assert_int_equal(hello(&scene, 1, 9, &message), 0);
    assert_int_equal(scene.probes, 0);
    assert_int_equal(hello(&scene, 5, 9, &message), REFUSAL_MEMBER);
    const struct peer ps = {.member = {MEMBER_PS, 1}, .incarnation = 3};
    const struct peer person = {.member = {MEMBER_OPERATOR, -1}, .incarnation = 3};
    const struct peer nobody = {.member = {MEMBER_WORKER, 0}};
    assert_int_equal(job_hello(&scene.job, &ps, "x", 0, &message), REFUSAL_MEMBER);
    assert_int_equal(job_hello(&scene.job, &person, "x", 0, &message), 0);
    assert_int_equal(job_hello(&scene.job, &nobody, "x", 0, &message), REFUSAL_MEMBER);
    assert_non_null(strstr(message.text, "incarnation"));
    job_destroy(&scene.job);
}

static void test_leases(void **state)
{
    (void)state;
    struct scene scene;
    begin(&scene, 2);
    pass(&scene, 6);
    job_touch(&scene.job, 0, 1, scene.now_s);
    pass(&scene, 5);
    assert_true(told(&scene, "worker 1 (10.0.0.1:2) is lost: not heard from for 10 s"));
    assert_int_equal(job_worker_state(&scene.job, 1), STATE_LOST);
    assert_int_equal(job_present(&scene.job), 1);
    job_touch(&scene.job, 1, 2, scene.now_s); /* thawed */
    assert_true(told(&scene, "worker 1 (10.0.0.1:2) responds again"));
    assert_int_equal(job_present(&scene.job), 2);
    /* A worker that the ps keeps waiting need not send anything. */
    job_hold(&scene.job, 1, 2, 1, scene.now_s);
    pass(&scene, 30);
    assert_int_equal(job_worker_state(&scene.job, 1), STATE_WAITING);
    job_hold(&scene.job, 1, 2, -1, scene.now_s);
    pass(&scene, 9);
    assert_int_equal(job_present(&scene.job), 1); /* the chief is lost by now, worker 1 is not */
    job_destroy(&scene.job);
}

static void test_staleness_makes_the_fast_wait(void **state)
{
    (void)state;
    struct scene scene;
    begin(&scene, 3);
    scene.config.cluster.max_staleness = 2;
    job_schedule(&scene.job, &scene.config, 0, scene.now_s);
    push(&scene, 0, 1);
    push(&scene, 1, 1); /* joins where worker 0 is, and is one ahead now */
    for (uint64_t i = 2; i <= 3; i++) {
        push(&scene, 0, i);
        assert_true(job_may_answer(&scene.job, 0));
    }
    push(&scene, 0, 4);
    push(&scene, 0, 5);
    assert_false(job_may_answer(&scene.job, 0));
    assert_true(job_may_answer(&scene.job, 1));
    push(&scene, 1, 2);
    assert_true(job_may_answer(&scene.job, 0));
    push(&scene, 0, 6);
    assert_false(job_may_answer(&scene.job, 0));
    /* A worker that is lost or leaves holds up nobody. */
    job_leave(&scene.job, 1, 2, "done", scene.now_s);
    assert_true(job_may_answer(&scene.job, 0));
    push(&scene, 2, 1);
    assert_true(job_may_answer(&scene.job, 2)); /* it joins where the others are, not at 0 */
    assert_true(job_may_answer(&scene.job, 0));
    job_leave(&scene.job, 2, 3, "done", scene.now_s);
    assert_int_equal(push(&scene, 1, 3), PUSH_APPLIED); /* arrives after the goodbye, on another connection */
    for (uint64_t i = 7; i <= 10; i++) {
        push(&scene, 0, i);
    }
    assert_true(job_may_answer(&scene.job, 0));
    job_destroy(&scene.job);
}

/*
 * Two ps start counting at different moments: each might make another worker wait for the other one, for ever. So only
 * the first ps with parameters keeps workers waiting.
 */
static void test_one_ps_alone_makes_workers_wait(void **state)
{
    (void)state;
    for (int ps = 0; ps < 3; ps++) {
        struct scene scene;
        set_up_at(&scene, 2, 3, ps);
        scene.config.cluster.max_staleness = 1;
        come(&scene, 0, 1);
        come(&scene, 1, 2);
        restore(&scene, 1, 0, 0);
        push(&scene, 1, 1);
        for (uint64_t i = 1; i <= 4; i++) {
            push(&scene, 0, i);
        }
        assert_int_equal(job_may_answer(&scene.job, 0), ps != 0);
        job_destroy(&scene.job);
    }
}

/* Its pushes reach this ps but not another: so it is stuck, and its clock with it. */
static void test_who_is_cut_off_from_a_ps_holds_up_nobody(void **state)
{
    (void)state;
    struct scene scene;
    struct message_heartbeat heartbeat = {
        .state = STATE_TRAINING, .loss = 1, .host = "h", .device = "cpu", .message = ""};
    begin(&scene, 2);
    scene.config.cluster.max_staleness = 2;
    job_schedule(&scene.job, &scene.config, 0, scene.now_s);
    push(&scene, 1, 1);
    for (uint64_t i = 1; i <= 3; i++) {
        push(&scene, 0, i);
    }
    assert_false(job_may_answer(&scene.job, 0));
    job_heartbeat(&scene.job, 1, 2, &heartbeat, scene.now_s);
    assert_false(job_may_answer(&scene.job, 0));
    heartbeat.state = STATE_LOST;
    heartbeat.message = "has not heard from ps 1 (q:2222) for 11 s";
    job_heartbeat(&scene.job, 1, 2, &heartbeat, scene.now_s);
    assert_true(job_may_answer(&scene.job, 0));
    push(&scene, 1, 2); /* one in flight */
    push(&scene, 0, 4);
    push(&scene, 0, 5);
    push(&scene, 0, 6);
    assert_true(job_may_answer(&scene.job, 0));
    heartbeat.state = STATE_TRAINING;
    job_heartbeat(&scene.job, 1, 2, &heartbeat, scene.now_s);
    push(&scene, 1, 3); /* it joins where worker 0 is */
    push(&scene, 0, 7);
    assert_true(job_may_answer(&scene.job, 0));
    push(&scene, 0, 8);
    push(&scene, 0, 9);
    push(&scene, 0, 10);
    assert_false(job_may_answer(&scene.job, 0));
    job_destroy(&scene.job);
}

/* The slowest worker's last gradient is no longer wanted, so its clock stays. */
static void test_staleness_holds_nobody_after_the_last_step(void **state)
{
    (void)state;
    struct scene scene;
    set_up(&scene, 2);
    scene.config.cluster.max_staleness = 1;
    come(&scene, 0, 1);
    come(&scene, 1, 2);
    restore(&scene, 1, 10, 14);
    assert_int_equal(push(&scene, 1, 1), PUSH_APPLIED);
    assert_int_equal(push(&scene, 0, 1), PUSH_APPLIED);
    assert_int_equal(push(&scene, 0, 2), PUSH_APPLIED);
    assert_false(job_may_answer(&scene.job, 0));
    assert_int_equal(push(&scene, 0, 3), PUSH_APPLIED);
    assert_int_equal(push(&scene, 1, 2), PUSH_NOT_WANTED);
    assert_true(job_may_answer(&scene.job, 0));
    job_destroy(&scene.job);
}

static void test_the_last_step_is_the_last(void **state)
{
    (void)state;
    struct scene scene;
    set_up(&scene, 2);
    come(&scene, 0, 1);
    come(&scene, 1, 2);
    restore(&scene, 1, 10, 12);
    assert_int_equal(push(&scene, 0, 1), PUSH_APPLIED);
    assert_int_equal(push(&scene, 1, 1), PUSH_APPLIED);
    assert_int_equal(push(&scene, 0, 2), PUSH_NOT_WANTED);
    assert_int_equal(push(&scene, 1, 1), PUSH_APPLIED_BEFORE);
    assert_int_equal(scene.job.global_step, 12);
    job_destroy(&scene.job);
}

static void test_live_keys_are_taken_at_their_step(void **state)
{
    (void)state;
    struct scene scene;
    set_up(&scene, 2);
    scene.config.train.epochs = 2;
    come(&scene, 0, 1);
    come(&scene, 1, 2);
    restore(&scene, 1, 10, 20000);
    assert_int_equal(scene.job.last_step, 1200); /* two epochs of 600 batches */
    struct config next = scene.config;
    next.cluster.max_staleness = 1;
    next.train.epochs = 0;
    next.train.train_steps = 14;
    job_schedule(&scene.job, &next, 13, scene.now_s);
    push(&scene, 1, 1);
    push(&scene, 0, 1);
    assert_true(job_may_answer(&scene.job, 0));
    assert_int_equal(scene.job.last_step, 1200);
    assert_true(scene.job.has_next);
    push(&scene, 0, 2); /* step 13 has come, and worker 1 is behind */
    assert_false(scene.job.has_next);
    assert_true(told(&scene, "from global step 13 on the last step is 14"));
    push(&scene, 1, 2);
    assert_int_equal(push(&scene, 0, 3), PUSH_NOT_WANTED);
    /* Back, at once; that also drops what was scheduled and is not yet in force. */
    next.train.train_steps = 15;
    job_schedule(&scene.job, &next, 30, scene.now_s);
    job_schedule(&scene.job, &scene.config, 0, scene.now_s);
    assert_int_equal(scene.job.last_step, 1200);
    assert_false(scene.job.has_next);
    assert_true(told(&scene, "from global step 14 on the last step is 1200"));
    assert_int_equal(push(&scene, 0, 3), PUSH_APPLIED);
    assert_int_equal(push(&scene, 0, 4), PUSH_APPLIED);
    assert_true(job_may_answer(&scene.job, 0));
    /* What is in force stays so in the next generation, at whatever step that begins. */
    next.train.train_steps = 18;
    job_schedule(&scene.job, &next, 16, scene.now_s);
    play(&scene);
    struct verdict verdict;
    job_begin_restore(&scene.job, 0, 2, "model-10", scene.now_s, &verdict);
    job_end_restore(&scene.job, 0, 2, 10, 600, scene.now_s, &verdict);
    assert_int_equal(verdict.code, 0);
    assert_int_equal(scene.job.last_step, 18);
    job_destroy(&scene.job);
}

static void test_an_epoch_has_as_many_steps_as_live_keys_say(void **state)
{
    (void)state;
    struct scene scene;
    set_up(&scene, 2);
    scene.config.cluster.issync = true;
    scene.job.config.cluster.issync = true;
    assert_int_equal(job_epoch_steps(&scene.job, &scene.config, 601), 301);
    scene.config.cluster.replicas_to_aggregate = 1;
    assert_int_equal(job_epoch_steps(&scene.job, &scene.config, 601), 601);
    assert_int_equal(job_epoch_steps(&scene.job, &scene.config, 1), 1);
    assert_int_equal(job_epoch_steps(&scene.job, &scene.config, 0), 0);
    job_destroy(&scene.job);
}

static void test_the_end(void **state)
{
    (void)state;
    struct scene scene;
    struct verdict verdict;
    struct message_end_job end = {.job_state = JOB_DONE, .global_step = 7, .message = "test accuracy 98.1%"};
    begin(&scene, 2);
    push(&scene, 1, 1);
    job_end(&scene.job, 1, &end, scene.now_s, &verdict);
    assert_int_equal(verdict.code, ERROR_NOT_ALLOWED);
    job_end(&scene.job, 0, &end, scene.now_s, &verdict);
    assert_int_equal(verdict.code, 0);
    assert_true(told(&scene, "training is over at global step 7: test accuracy 98.1%"));
    assert_false(job_may_exit(&scene.job, scene.now_s)); /* they must hear of it first */
    assert_int_equal(push(&scene, 1, 2), PUSH_NOT_WANTED);
    job_pull(&scene.job, 1, 2, 1, scene.now_s, &verdict);
    assert_int_equal(verdict.code, ERROR_JOB_OVER);
    job_leave(&scene.job, 0, 1, "", scene.now_s);
    assert_false(job_may_exit(&scene.job, scene.now_s + 3.9));
    assert_true(job_may_exit(&scene.job, scene.now_s + 4.1));
    job_disconnected(&scene.job, 1, 2, scene.now_s);
    assert_true(job_may_exit(&scene.job, scene.now_s));
    /* A ps that serves for ever accepts the next job. */
    come(&scene, 0, 50);
    restore(&scene, 2, 0, 0);
    assert_false(job_may_exit(&scene.job, scene.now_s + 100));
    assert_int_equal(push_as(&scene, 0, 50, 2, 1, true).outcome, PUSH_APPLIED);
    job_destroy(&scene.job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_waiting_names_who_is_awaited),
        cmocka_unit_test(test_a_worker_heard_of_again_may_be_the_one_that_was_missing),
        cmocka_unit_test(test_only_the_chief_restores),
        cmocka_unit_test(test_a_restored_job_has_room_to_count),
        cmocka_unit_test(test_generations_go_round),
        cmocka_unit_test(test_actions_never_get_too_many),
        cmocka_unit_test(test_an_incarnation_comes_back_when_it_is_forgotten),
        cmocka_unit_test(test_a_push_counts_once),
        cmocka_unit_test(test_a_ps_that_stood_still_blames_nobody),
        cmocka_unit_test(test_not_finite_is_refused_and_counted),
        cmocka_unit_test(test_a_second_process_is_probed),
        cmocka_unit_test(test_the_last_words_of_a_dead_process_are_no_sign_of_life),
        cmocka_unit_test(test_a_ps_that_was_held_up_probes_anew),
        cmocka_unit_test(test_a_newcomer_that_went_away_blocks_nobody),
        cmocka_unit_test(test_claims_are_judged_one_after_the_other),
        cmocka_unit_test(test_a_process_that_is_gone_is_replaced_at_once),
        cmocka_unit_test(test_leases),
        cmocka_unit_test(test_staleness_makes_the_fast_wait),
        cmocka_unit_test(test_one_ps_alone_makes_workers_wait),
        cmocka_unit_test(test_who_is_cut_off_from_a_ps_holds_up_nobody),
        cmocka_unit_test(test_staleness_holds_nobody_after_the_last_step),
        cmocka_unit_test(test_the_last_step_is_the_last),
        cmocka_unit_test(test_live_keys_are_taken_at_their_step),
        cmocka_unit_test(test_an_epoch_has_as_many_steps_as_live_keys_say),
        cmocka_unit_test(test_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
