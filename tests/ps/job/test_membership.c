/* What a job keeps of what members say of themselves, who is a member, and actions that a host is slow to take. */
#include "tests/check.h"
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

TEST_WITH(what_a_heartbeat_says_is_kept, enter, leave)
{
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
TEST_WITH(a_new_process_inherits_nothing, enter, leave)
{
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

TEST_WITH(what_a_hello_says_is_kept, enter, leave)
{
    const struct peer who = {
        .member = {MEMBER_WORKER, 2}, .incarnation = 7, .fleet_version = 9, .program = "trainer 2", .digest = "abc"};
    struct error message;
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

TEST_WITH(who_has_no_place_here_is_told_so, enter, leave)
{
    struct error message;
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
TEST_WITH(other_ps_come_to_the_first, enter, leave)
{
    struct error message;
    for (int ps = 0; ps < 2; ps++) {
        job_destroy(&scene.job);
        set_up_at(&scene, 2, 3, ps);
        assert_int_equal(hello_of(MEMBER_PS, 2, 1, &message), ps == 0 ? 0 : REFUSAL_MEMBER);
        assert_int_equal(hello_of(MEMBER_PS, 1 - ps, 1, &message), ps == 0 ? 0 : REFUSAL_MEMBER);
    }
}

TEST_WITH(lines_that_are_too_many_are_counted, enter, leave)
{
    come(&scene, 0, 1);
    assert_false(job_has_actions(&scene.job));
    job_leave(&scene.job, 0, 1, "", scene.now_s);
    assert_true(job_has_actions(&scene.job));
    play(&scene);
    assert_false(job_has_actions(&scene.job));
    for (int i = 0; i < JOB_MAX_LINES + 5; i++) {
        struct verdict verdict;
        job_begin_restore(&scene.job, 0, (uint32_t)i + 1, "again", scene.now_s, &verdict);
    }
    assert_true(job_has_actions(&scene.job));
    struct job_action action;
    for (int i = 0; i < JOB_MAX_LINES; i++) {
        assert_true(job_next_action(&scene.job, &action));
        assert_int_equal(action.kind, JOB_LOG);
        assert_int_equal(action.level, LOG_INFO);
        char line[60];
        snprintf(line, sizeof line, "the model of generation %d: again", i + 1);
        assert_non_null(strstr(action.text, line));
    }
    assert_true(job_has_actions(&scene.job));
    assert_true(job_next_action(&scene.job, &action));
    assert_int_equal(action.level, LOG_WARNING);
    assert_string_equal(action.text, "5 more lines about workers and steps are left out");
    assert_false(job_has_actions(&scene.job));
    assert_false(job_next_action(&scene.job, &action));
}

TEST_WITH(a_single_line_too_many_is_told_of, enter, leave)
{
    struct job_action action;
    struct verdict verdict;
    come(&scene, 0, 1);
    for (int i = 0; i <= JOB_MAX_LINES; i++) {
        job_begin_restore(&scene.job, 0, (uint32_t)i + 1, "again", scene.now_s, &verdict);
    }
    for (int i = 0; i < JOB_MAX_LINES; i++) {
        assert_true(job_next_action(&scene.job, &action));
    }
    assert_true(job_has_actions(&scene.job));
    assert_true(job_next_action(&scene.job, &action));
    assert_string_equal(action.text, "1 more line about workers and steps is left out");
    assert_false(job_has_actions(&scene.job));
}

/* A host that takes no actions for long still finds all probes and cuts, and that lines are missing. */
TEST_WITH(probes_and_cuts_are_never_too_many, enter, leave)
{
    struct error message;
    job_destroy(&scene.job);
    set_up(&scene, 4);
    for (int i = 0; i < 4; i++) {
        come(&scene, i, (uint64_t)i + 1);
    }
    restore(&scene, 1, 0, 0);
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
}

int main(void)
{
    return check_run(NULL, NULL);
}
