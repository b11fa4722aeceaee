/* Who is a member, what is known of it, and what is logged when members come and go. */
#include "tests/ps/job/entered.h"

static const struct message_heartbeat beat = {.state = STATE_TRAINING,
                                              .global_step = 3,
                                              .local_step = 7,
                                              .steps_per_s = 12,
                                              .loss = 0.75f,
                                              .staleness = 2,
                                              .retries = 4,
                                              .bytes_in = 1000,
                                              .bytes_out = 2000,
                                              .host = "north",
                                              .device = "cpu",
                                              .message = "busy",
                                              .memory_bytes = 4096,
                                              .cpu_percent = 150,
                                              .gpu_percent = 25};

static void heartbeat(int worker, uint64_t incarnation, enum member_state how, const char *message)
{
    struct message_heartbeat one = beat;
    one.state = (uint8_t)how;
    one.message = (char *)(uintptr_t)message;
    job_heartbeat(&scene.job, worker, incarnation, &one, scene.now_s);
}

static void what_a_heartbeat_says_is_kept(void **state)
{
    (void)state;
    come(&scene, 1, 2);
    const struct job_worker *worker = &scene.job.workers[1];
    job_heartbeat(&scene.job, 1, 9, &beat, scene.now_s); /* of another process */
    assert_int_equal(worker->local_step, 0);
    scene.now_s += 5;
    job_heartbeat(&scene.job, 1, 2, &beat, scene.now_s);
    assert_int_equal(worker->state, STATE_TRAINING);
    assert_int_equal(worker->global_step, 3);
    assert_int_equal(worker->local_step, 7);
    assert_true(worker->steps_per_s == 12 && worker->loss == 0.75f);
    assert_int_equal(worker->reported_staleness, 2);
    assert_int_equal(worker->retries, 4);
    assert_true(worker->bytes_in == 1000 && worker->bytes_out == 2000 && worker->memory_bytes == 4096);
    assert_true(worker->cpu_percent == 150 && worker->gpu_percent == 25);
    assert_string_equal(worker->host, "north");
    assert_string_equal(worker->device, "cpu");
    assert_string_equal(worker->message, "busy");
    assert_true(worker->heard_s == scene.now_s);
}

/* Neither its reports nor its pushes count. */
static void a_new_process_inherits_nothing(void **state)
{
    (void)state;
    come(&scene, 0, 1);
    come(&scene, 1, 2);
    restore(&scene, 1, 0, 0);
    job_heartbeat(&scene.job, 1, 2, &beat, scene.now_s);
    assert_int_equal(push(&scene, 1, 5), PUSH_APPLIED);
    job_disconnected(&scene.job, 1, 2, scene.now_s);
    scene.now_s += 1;
    come(&scene, 1, 20);
    const struct job_worker *worker = &scene.job.workers[1];
    assert_int_equal(worker->incarnation, 20);
    assert_int_equal(worker->state, STATE_STARTING);
    assert_true(worker->global_step == 0 && worker->local_step == 0 && worker->steps_per_s == 0);
    assert_true(isnan(worker->loss) && isnan(worker->cpu_percent) && isnan(worker->gpu_percent));
    assert_true(worker->retries == 0 && worker->bytes_in == 0 && worker->bytes_out == 0);
    assert_true(worker->memory_bytes == 0 && worker->held == 0);
    assert_string_equal(worker->host, "");
    assert_string_equal(worker->device, "");
    assert_string_equal(worker->message, "");
    assert_true(worker->present && worker->connections == 1 && worker->heard_s == scene.now_s);
    struct verdict verdict = push_as(&scene, 1, 20, 1, 1, true); /* it counts from 1 again */
    assert_int_equal(verdict.code, 0);
    assert_int_equal(verdict.outcome, PUSH_APPLIED);
}

static void what_a_hello_says_is_kept(void **state)
{
    const struct peer who = {
        .member = {MEMBER_WORKER, 2}, .incarnation = 7, .fleet_version = 9, .program = "trainer 2", .digest = "abc"};
    struct error message;
    (void)state;
    assert_int_equal(job_hello(&scene.job, &who, "10.0.0.9:1", scene.now_s, &message), 0);
    const struct job_worker *worker = &scene.job.workers[2];
    assert_string_equal(worker->peer, "10.0.0.9:1");
    assert_string_equal(worker->program, "trainer 2");
    assert_string_equal(worker->digest, "abc");
    assert_int_equal(worker->fleet_version, 9);
}

static uint16_t hello_of(enum member_role role, int index, uint64_t incarnation, struct error *message)
{
    const struct peer who = {.member = {role, index}, .incarnation = incarnation};
    return job_hello(&scene.job, &who, "10.0.0.9:1", scene.now_s, message);
}

static void who_has_no_place_here_is_told_so(void **state)
{
    struct error message;
    (void)state;
    assert_int_equal(hello_of(MEMBER_WORKER, 3, 1, &message), REFUSAL_MEMBER);
    assert_string_equal(message.text, "there is no worker 3: worker_hosts lists 3");
    assert_int_equal(hello_of(MEMBER_WORKER, -1, 1, &message), REFUSAL_MEMBER);
    assert_int_equal(hello_of(MEMBER_WORKER, 2, 0, &message), REFUSAL_MEMBER);
    assert_string_equal(message.text, "0 is not a valid incarnation");
    assert_int_equal(hello_of(MEMBER_PS, 0, 1, &message), REFUSAL_MEMBER); /* its own index */
    assert_int_equal(hello_of(MEMBER_PS, 1, 1, &message), REFUSAL_MEMBER);
    assert_string_equal(message.text, "ps 0 expects workers here, not ps 1");
    assert_int_equal(hello_of(MEMBER_OPERATOR, MEMBER_ANY_INDEX, 1, &message), 0);
    assert_int_equal(hello_of(MEMBER_WORKER, 2, 1, &message), 0);
}

/* On the ps that leads rollouts or decides steps. */
static void other_ps_come_to_the_first(void **state)
{
    struct error message;
    (void)state;
    for (int ps = 0; ps < 2; ps++) {
        job_destroy(&scene.job);
        set_up_at(&scene, 2, 3, ps);
        assert_int_equal(hello_of(MEMBER_PS, 2, 1, &message), ps == 0 ? 0 : REFUSAL_MEMBER);
        assert_int_equal(hello_of(MEMBER_PS, 1 - ps, 1, &message), ps == 0 ? 0 : REFUSAL_MEMBER);
    }
}

/* --- The log --- */

static void comings_and_goings_are_told(void **state)
{
    (void)state;
    come(&scene, 0, 1);
    assert_true(told(&scene, "worker 0 (10.0.0.0:1) joined"));
    restore(&scene, 1, 0, 0);
    come(&scene, 0, 1); /* another connection is not logged */
    play(&scene);
    assert_null(strstr(scene.log, "worker 0 (10.0.0.0:1) joined"));
    assert_null(strstr(scene.log, "connected again"));
    job_disconnected(&scene.job, 0, 1, scene.now_s);
    play(&scene);
    assert_null(strstr(scene.log, "disconnected"));
    job_disconnected(&scene.job, 0, 9, scene.now_s); /* of another process */
    play(&scene);
    assert_null(strstr(scene.log, "disconnected"));
    job_disconnected(&scene.job, 0, 1, scene.now_s);
    assert_true(told(&scene, "worker 0 (10.0.0.0:1) has disconnected; lost unless it is back in 10 s"));
    assert_true(scene.job.workers[0].gone_s == scene.now_s);
    job_disconnected(&scene.job, 0, 1, scene.now_s);
    assert_int_equal(scene.job.workers[0].connections, 0);
    come(&scene, 0, 1);
    assert_true(told(&scene, "worker 0 (10.0.0.0:1) is connected again"));
    job_leave(&scene.job, 0, 9, "", scene.now_s); /* of another process */
    assert_true(scene.job.workers[0].present);
    job_leave(&scene.job, 0, 1, "enough", scene.now_s);
    assert_true(told(&scene, "worker 0 (10.0.0.0:1) left: enough\n"));
    job_leave(&scene.job, 0, 1, "enough", scene.now_s);
    play(&scene);
    assert_string_equal(scene.log, "");
    come(&scene, 0, 1);
    assert_true(told(&scene, "worker 0 (10.0.0.0:1) joined"));
    job_leave(&scene.job, 0, 1, "", scene.now_s);
    assert_true(told(&scene, "worker 0 (10.0.0.0:1) left\n"));
}

static void lose(int worker)
{
    scene.now_s += 0.5;
    for (int i = 0; i < 25; i++) {
        job_tick(&scene.job, scene.now_s);
        play(&scene);
        scene.now_s += 0.5;
    }
    assert_true(scene.job.workers[worker].lost);
}

/* Ticks a second apart are no standstill of the ps, which would leave everybody more time. */
static void a_lease_is_as_long_as_it_is(void **state)
{
    (void)state;
    come(&scene, 0, 1);
    restore(&scene, 1, 0, 0);
    for (int second = 1; second <= 11; second++) {
        scene.now_s += 1;
        job_tick(&scene.job, scene.now_s);
        play(&scene);
        assert_int_equal(scene.job.workers[0].lost, second > 10);
    }
    assert_true(told(&scene, "worker 0 (10.0.0.0:1) is lost: not heard from for 11 s; the others continue"));
}

/* From its start on: also before it has ticked for the first time. */
static void a_ps_that_stood_still_at_its_start_blames_nobody(void **state)
{
    (void)state;
    come(&scene, 0, 1);
    scene.now_s += 60;
    job_tick(&scene.job, scene.now_s);
    assert_false(scene.job.workers[0].lost);
    scene.now_s += JOB_TICK_MS / 1000.0;
    job_tick(&scene.job, scene.now_s);
    assert_false(scene.job.workers[0].lost);
    lose(0);
}

/* Nor is one that was lost lost again, or one missed that has left. */
static void nobody_is_missed_after_the_end(void **state)
{
    const struct message_end_job over = {.job_state = JOB_DONE, .message = ""};
    struct verdict verdict;
    (void)state;
    for (int i = 0; i < 3; i++) {
        come(&scene, i, (uint64_t)i + 1);
    }
    restore(&scene, 1, 0, 0);
    job_leave(&scene.job, 2, 3, "", scene.now_s);
    play(&scene);
    scene.log[0] = '\0';
    job_disconnected(&scene.job, 2, 3, scene.now_s);
    play(&scene);
    assert_string_equal(scene.log, "");
    lose(1);
    scene.log[0] = '\0';
    for (int i = 0; i < 30; i++) {
        scene.now_s += 0.5;
        job_touch(&scene.job, 0, 1, scene.now_s);
        job_tick(&scene.job, scene.now_s);
        play(&scene);
    }
    assert_null(strstr(scene.log, "is lost"));
    job_touch(&scene.job, 1, 2, scene.now_s);
    job_end(&scene.job, 0, &over, scene.now_s, &verdict);
    play(&scene);
    scene.log[0] = '\0';
    for (int i = 0; i < 30; i++) {
        scene.now_s += 0.5;
        job_tick(&scene.job, scene.now_s);
    }
    job_disconnected(&scene.job, 1, 2, scene.now_s);
    play(&scene);
    assert_null(strstr(scene.log, "worker 1"));
    assert_true(scene.job.workers[1].present && !scene.job.workers[1].lost);
}

static void who_was_lost_is_told_to_be_back(void **state)
{
    (void)state;
    come(&scene, 0, 1);
    restore(&scene, 1, 0, 0);
    lose(0);
    assert_true(told(&scene, "worker 0 (10.0.0.0:1) is lost: not heard from for 10 s; the others continue"));
    assert_int_equal(job_worker_state(&scene.job, 0), STATE_LOST);
    job_touch(&scene.job, 0, 9, scene.now_s); /* of another process */
    assert_true(scene.job.workers[0].lost);
    job_touch(&scene.job, 0, 1, scene.now_s);
    assert_true(told(&scene, "worker 0 (10.0.0.0:1) responds again after 13 s"));
    assert_true(scene.job.workers[0].present && !scene.job.workers[0].lost);
    lose(0);
    scene.log[0] = '\0';
    come(&scene, 0, 1);
    assert_true(told(&scene, "worker 0 (10.0.0.0:1) is back after 13 s"));
    assert_true(scene.job.workers[0].present && !scene.job.workers[0].lost);
}

static void who_pushes_is_there(void **state)
{
    (void)state;
    come(&scene, 0, 1);
    restore(&scene, 1, 0, 0);
    for (uint64_t i = 1; i <= 30; i++) {
        scene.now_s += 0.5;
        job_tick(&scene.job, scene.now_s);
        push(&scene, 0, i);
        assert_false(scene.job.workers[0].lost);
    }
    lose(0);
    push(&scene, 0, 31);
    assert_true(scene.job.workers[0].present && !scene.job.workers[0].lost);
}

static void who_can_not_reach_all_ps_takes_no_part(void **state)
{
    (void)state;
    come(&scene, 0, 1);
    come(&scene, 1, 2);
    heartbeat(1, 2, STATE_LOST, "can't reach ps 1");
    play(&scene);
    assert_null(strstr(scene.log, "takes no part")); /* some ps are still to come */
    heartbeat(1, 2, STATE_TRAINING, "");
    restore(&scene, 1, 0, 0);
    scene.log[0] = '\0';
    heartbeat(1, 2, STATE_LOST, "can't reach ps 1");
    assert_true(told(&scene, "worker 1 (10.0.0.1:2) can't reach ps 1: it takes no part until it can reach all ps"));
    assert_true(scene.job.workers[1].cut_off && !scene.job.workers[1].present);
    assert_int_equal(job_worker_state(&scene.job, 1), STATE_LOST);
    scene.now_s += 4;
    heartbeat(1, 2, STATE_LOST, "can't reach ps 1"); /* not logged again */
    play(&scene);
    assert_string_equal(scene.log, "");
    come(&scene, 1, 2); /* another connection does not prove that it reaches the other ps */
    assert_true(scene.job.workers[1].cut_off && !scene.job.workers[1].present);
    play(&scene);
    assert_string_equal(scene.log, "");
    heartbeat(1, 2, STATE_TRAINING, "");
    assert_true(told(&scene, "worker 1 (10.0.0.1:2) reaches all ps again after 4 s"));
    assert_true(!scene.job.workers[1].cut_off && scene.job.workers[1].present);
    job_leave(&scene.job, 1, 2, "", scene.now_s);
    heartbeat(1, 2, STATE_LOST, "can't reach ps 1"); /* it has left, whatever it reaches */
    assert_false(scene.job.workers[1].cut_off);
}

/* Training begins with the one that was missing, once it reaches all ps. */
static void who_reaches_all_ps_may_be_the_last_one_needed(void **state)
{
    (void)state;
    scene.config.cluster.min_workers = scene.job.config.cluster.min_workers = 2;
    come(&scene, 0, 1);
    come(&scene, 1, 2);
    heartbeat(1, 2, STATE_LOST, "can't reach ps 1");
    restore(&scene, 1, 0, 0);
    assert_false(scene.job.started);
    heartbeat(1, 2, STATE_TRAINING, "");
    assert_true(scene.job.started);
}

static void who_takes_a_place_is_told_from_whom(void **state)
{
    struct error message;
    (void)state;
    come(&scene, 0, 1);
    come(&scene, 1, 2);
    while (hello(&scene, 1, 30, &message) == JOB_RETRY) { /* the present one does not answer */
        scene.now_s += 0.25;
        play(&scene);
    }
    assert_true(told(&scene, "worker 1 (10.0.0.1:30) replaces a process at 10.0.0.1:2 that does not answer"));
    assert_int_equal(scene.cuts, 1);
    assert_int_equal(hello(&scene, 1, 2, &message), REFUSAL_REPLACED);
    assert_string_equal(message.text, "a newer process is worker 1 now; it replaces this one");
    uint16_t refusal;
    while ((refusal = hello(&scene, 1, 40, &message)) == JOB_RETRY) {
        job_pong(&scene.job, 1, 30, job_probe_nonce(&scene.job, 1));
        scene.now_s += 0.25;
        play(&scene);
    }
    assert_int_equal(refusal, REFUSAL_DUPLICATE);
    assert_true(told(&scene, "refused a second worker 1 (10.0.0.1:40): the one at 10.0.0.1:30 is alive"));
    assert_non_null(strstr(message.text, "worker 1 is already running at 10.0.0.1:30, and alive"));
}

/* A second of silence is enough, with a question every half a second at the least. */
static void a_place_is_free_after_a_second(void **state)
{
    struct error message;
    (void)state;
    come(&scene, 0, 1);
    for (int i = 1; i <= 2; i++) {
        const double from_s = scene.now_s, every_s = i == 1 ? 0.25 : 0.5;
        const int probes = scene.probes;
        while (hello(&scene, 0, 10 * (uint64_t)i, &message) == JOB_RETRY) {
            scene.now_s += every_s;
        }
        play(&scene);
        assert_true(scene.now_s == from_s + 1);
        assert_int_equal(scene.probes, probes + 1);
    }
    assert_int_equal(hello(&scene, 0, 30, &message), JOB_RETRY);
    scene.now_s += 0.75; /* it was away, or this ps stood still: it is asked again */
    assert_int_equal(hello(&scene, 0, 30, &message), JOB_RETRY);
    scene.now_s += 0.25;
    assert_int_equal(hello(&scene, 0, 30, &message), JOB_RETRY);
}

/* --- States --- */

static void states_are_those_of_the_worker_as_far_as_it_is_here(void **state)
{
    const struct message_end_job over = {.job_state = JOB_DONE, .message = ""};
    struct verdict verdict;
    (void)state;
    assert_int_equal(job_worker_state(&scene.job, 1), STATE_ABSENT);
    come(&scene, 0, 1);
    come(&scene, 1, 2);
    restore(&scene, 1, 0, 0);
    assert_int_equal(job_worker_state(&scene.job, 1), STATE_STARTING);
    heartbeat(1, 2, STATE_TRAINING, "");
    assert_int_equal(job_worker_state(&scene.job, 1), STATE_TRAINING);
    job_hold(&scene.job, 1, 2, 1, scene.now_s);
    assert_int_equal(job_worker_state(&scene.job, 1), STATE_WAITING);
    job_hold(&scene.job, 1, 2, -1, scene.now_s);
    assert_int_equal(job_worker_state(&scene.job, 1), STATE_TRAINING);
    job_leave(&scene.job, 1, 2, "", scene.now_s);
    assert_int_equal(job_worker_state(&scene.job, 1), STATE_ABSENT);
    job_end(&scene.job, 0, &over, scene.now_s, &verdict);
    assert_int_equal(job_worker_state(&scene.job, 1), STATE_DONE);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, enter, leave)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_a_heartbeat_says_is_kept),
        TEST(a_new_process_inherits_nothing),
        TEST(what_a_hello_says_is_kept),
        TEST(who_has_no_place_here_is_told_so),
        TEST(other_ps_come_to_the_first),
        TEST(comings_and_goings_are_told),
        TEST(a_lease_is_as_long_as_it_is),
        TEST(a_ps_that_stood_still_at_its_start_blames_nobody),
        TEST(nobody_is_missed_after_the_end),
        TEST(who_was_lost_is_told_to_be_back),
        TEST(who_pushes_is_there),
        TEST(who_can_not_reach_all_ps_takes_no_part),
        TEST(who_reaches_all_ps_may_be_the_last_one_needed),
        TEST(who_takes_a_place_is_told_from_whom),
        TEST(a_place_is_free_after_a_second),
        TEST(states_are_those_of_the_worker_as_far_as_it_is_here),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
