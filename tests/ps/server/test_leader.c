/* What ps 0 keeps of a rollout that it leads, tells of it only once that is kept, and knows of members. */
#include <sys/stat.h>

#include "tests/check.h"
#include "tests/ps/server/leading.h"

static struct error error;

/* --- What is known of training --- */

TEST_WITH(a_loss_of_zero_has_been_told, enter, leave)
{
    begin(0, text_of(1, 0.5, ""));
    all_come();
    fakes[0].loss = 0;
    report(0);
    assert_false(coordinator_vitals(coordinator).unsure);
    assert_true(coordinator_vitals(coordinator).loss == 0.5);
    end();
}

/* Of a single output it can't be said what a model loses that has learnt nothing, unless the loss is one of classes. */
TEST_WITH(a_guess_is_one_of_classes, enter, leave)
{
    static const struct {
        enum loss_kind loss;
        int outputs;
        double guess;
    } cases[] = {{LOSS_AUTO, 1, INFINITY}, {LOSS_AUTO, 2, 0.69314718055994529}, {LOSS_SOFTMAX, 1, 0}};
    begin(0, text_of(1, 0.5, ""));
    const int outputs = serving.config.model.layers[2];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        serving.config.train.loss = cases[i].loss;
        serving.config.model.layers[2] = cases[i].outputs;
        assert_true(coordinator_vitals(coordinator).chance_loss == cases[i].guess);
    }
    serving.config.model.layers[2] = outputs;
    end();
}

TEST_WITH(a_job_that_waits_is_known_as_such, enter, leave)
{
    begin(0, text_of(1, 0.5, ""));
    all_come();
    assert_false(coordinator_vitals(coordinator).waits);
    serving.server.job.started = false;
    assert_true(coordinator_vitals(coordinator).waits);
    serving.server.job.state = JOB_RESTORING;
    assert_false(coordinator_vitals(coordinator).waits);
    serving.server.job.state = JOB_TRAINING;
    serving.server.job.started = true;
    end();
}

/* By what it pushed, or by what it says, whichever is more: it may push a step of several. */
TEST_WITH(steps_of_a_worker_are_its_own, enter, leave)
{
    begin(0, text_of(1, 0.5, ""));
    all_come();
    report(0);
    assert_int_equal(coordinator->rollout.members[2].steps, 2);
    serving.server.job.workers[0].local_step = 50;
    report(0);
    assert_int_equal(coordinator->rollout.members[2].steps, 50);
    report(PS_1);
    assert_int_equal(coordinator->rollout.members[1].steps, 0);
    end();
}

TEST_WITH(each_architecture_has_its_number, enter, leave)
{
    static const char *const names[] = {"x86_64", "aarch64"};
    begin(0, text_of(1, 0.5, ""));
    all_come();
    coordinator->carried.count = 2;
    for (int i = 0; i < 2; i++) {
        strcpy(coordinator->carried.items[i].architecture, names[i]);
        memset(coordinator->carried.items[i].digest, 'a' + i, PROGRAM_DIGEST_HEX);
    }
    const struct rollout_member *member = &coordinator->rollout.members[2 + 1];
    for (int i = 0; i < 3; i++) {
        snprintf(serving.sessions[1].session.program, 65, "trainer 1, build %.16s %s",
                 i < 2 ? coordinator->carried.items[i].digest : "cccccccccccccccc", names[i % 2]);
        report(1);
        assert_int_equal(member->architecture, i % 2 + 1);
        assert_int_equal(member->runs_target, i < 2);
    }
    end();
}

/* Nothing happened before the first tick. */
TEST_WITH(its_start_is_no_pause, enter, leave)
{
    begin_with_all();
    coordinator_tick(coordinator);
    for (int i = 0; i < 10; i++) {
        serving.now_s += 1;
        for (int k = 0; k < WORKERS + 2; k++) {
            if (k != 2) {
                report(k);
            }
        }
        coordinator_tick(coordinator);
    }
    sign(1, 0.5, 2, 0.25, "", secret_key);
    accepted();
    assert_false(coordinator->rollout.members[2 + 2].awaited); /* silent for ten seconds */
    assert_true(coordinator->rollout.members[2 + 1].awaited);
    end();
}

/* --- A job that waits for workers --- */

/* A live change under which two workers are enough to begin; one is there. */
static void propose_to_a_job_that_waits(void)
{
    struct serving_session *chief = come(0, MEMBER_WORKER, 0, false);
    operator_comes();
    for (int i = 1; i <= PS_1; i++) {
        come(i, i == PS_1 ? MEMBER_PS : MEMBER_WORKER, i == PS_1 ? 1 : i, true);
    }
    assert_true(chief->open);
    restore(100);
    for (int i = 0; i < WORKERS + 2; i++) {
        fakes[i] = (struct fake){.version = 1, .loss = -1};
        report(i);
    }
    sign_texts(1, edited(job_of(1, 0.5, ""), "\"min_workers\":1", "\"min_workers\":2"), 2,
               edited(job_of(2, 0.25, ""), "\"min_workers\":1", "\"min_workers\":2"), secret_key);
    accepted();
    assert_true(coordinator->rollout.waited);
    come(OTHER, MEMBER_WORKER, 1, false);
    assert_int_equal(job_present(&serving.server.job), 2);
    assert_false(serving.server.job.started);
    coordinator_tick(coordinator);
    assert_false(serving.server.job.started);
}

static char *text_of_two(void)
{
    static char text[2048];
    char *of_two = edited(strdup(text_of(1, 0.5, "")), "\"min_workers\":1", "\"min_workers\":2");
    strcpy(text, of_two);
    free(of_two);
    return text;
}

TEST_WITH(a_job_begins_after_the_change, enter, leave)
{
    begin(0, text_of_two());
    propose_to_a_job_that_waits();
    everybody(PHASE_STAGED, 2, 1);
    serving.sessions[1].session.incarnation = serving.sessions[OTHER].session.incarnation;
    pass(0.25);
    assert_int_equal(coordinator->rollout.state, ROLLOUT_SWITCHING);
    assert_false(serving.server.job.started);
    report(1);
    assert_int_equal(order, ORDER_SWITCH);
    assert_int_equal(told.step, 0); /* at once, for no step is made meanwhile */
    everybody(PHASE_SWITCHED, 2, 2);
    pass(0.25);
    assert_int_equal(coordinator->rollout.state, ROLLOUT_WATCHING);
    assert_true(serving.server.job.started);
    end();
}

TEST_WITH(a_job_begins_without_the_change, enter, leave)
{
    begin(0, text_of_two());
    propose_to_a_job_that_waits();
    word(false, 2, "north", 0, secret_key);
    coordinator_tick(coordinator);
    assert_int_equal(coordinator->rollout.state, ROLLOUT_IDLE);
    assert_true(serving.server.job.started);
    end();
}

/* --- What is kept --- */

/* All but worker 2, which is off. */
static void pass_without_2(enum rollout_phase of_chief)
{
    serving.now_s += 0.25;
    for (int i = 0; i < WORKERS + 2; i++) {
        fakes[i].phase = i == 0 ? of_chief : PHASE_STAGED;
        fakes[i].target = 2;
        if (i != 2) {
            report(i);
        }
    }
    coordinator_tick(coordinator);
}

TEST_WITH(a_restarted_leader_knows_the_plan, enter, leave)
{
    begin_with_all();
    serving.now_s += ROLLOUT_IDLE_TIMEOUT_S;
    for (int i = 0; i < WORKERS + 2; i++) {
        if (i != 2) {
            report(i);
        }
    }
    sign(1, 0.5, 2, 0.5, ",\"issync\":true", secret_key);
    accepted();
    pass_without_2(PHASE_STAGED);
    pass_without_2(PHASE_TRIED);
    pass_without_2(PHASE_SAVED);
    assert_int_equal(coordinator->rollout.state, ROLLOUT_SWITCHING);
    assert_true(lead(&error));
    const struct rollout *rollout = &coordinator->rollout;
    assert_int_equal(rollout->state, ROLLOUT_SWITCHING);
    assert_int_equal(coordinator->stored_state, ROLLOUT_SWITCHING);
    assert_int_equal(rollout->target, 2);
    assert_int_equal(rollout->fallback, 1);
    assert_int_equal(rollout->kind, ROLLOUT_JOB);
    assert_true(rollout->healthy_s == 3 && rollout->loss_before == 0.5 && !rollout->waited);
    assert_true(rollout_is_absent(&rollout->absent, (struct member){MEMBER_WORKER, 2}));
    assert_false(rollout_is_absent(&rollout->absent, (struct member){MEMBER_WORKER, 1}));
    assert_false(rollout->members[2 + 2].takes_part);
    assert_string_equal(coordinator->author, "me@desk");
    assert_int_equal(coordinator->highest, 2);
    end();
}

/* What the disk does not take nobody is told; it goes on once it does. */
TEST_WITH(nobody_is_told_what_is_not_kept, enter, leave)
{
    begin_with_all();
    sign(1, 0.5, 2, 0.25, "", secret_key);
    accepted();
    assert_int_equal(mkdir(path_of("config.json.d/rollout.json"), 0777), 0); /* in the way */
    for (int i = 0; i < 3; i++) {
        pass(0.25);
        report(1);
        assert_int_equal(order, ORDER_NOTHING);
        assert_int_equal(told.state, ROLLOUT_IDLE);
        assert_null(strstr(audit(), "\"what\":\"staging\""));
    }
    assert_int_equal(rmdir(path_of("config.json.d/rollout.json")), 0);
    pass(0.25);
    report(1);
    assert_int_equal(order, ORDER_STAGE);
    assert_int_equal(told.state, ROLLOUT_STAGING);
    audited("\"what\":\"staging\"");
    const size_t size = strlen(audit());
    pass(0.25); /* what has not changed is not written again */
    assert_int_equal(strlen(audit()), size);
    end();
}

/* Without the manifest of its rollout it leads none, but gives its number away no more. */
TEST_WITH(a_leader_without_its_manifest_leads_nothing, enter, leave)
{
    begin_with_all();
    sign(1, 0.5, 2, 0.25, "", secret_key);
    accepted();
    everybody(PHASE_STAGED, 2, 1);
    pass(0.25);
    assert_int_equal(coordinator->rollout.state, ROLLOUT_SWITCHING);
    assert_int_equal(unlink(path_of("config.json.d/00000002.manifest")), 0);
    assert_true(lead(&error));
    assert_int_equal(coordinator->rollout.state, ROLLOUT_IDLE);
    assert_int_equal(coordinator->highest, 2);
    assert_null(coordinator->manifest);
    coordinator_tick(coordinator);
    report(1);
    assert_int_equal(order, ORDER_NOTHING);
    end();
}

/* --- What operators are told of who comes and goes --- */

TEST_WITH(who_came_by_itself_is_listed_while_it_is_there, enter, leave)
{
    begin(0, text_of(1, 0.5, ",\"elastic\":true,\"elastic_workers\":1"));
    operator_comes();
    all_come();
    assert_null(strstr(status()->members, "worker 3"));
    struct serving_session *one = come(OTHER, MEMBER_WORKER, WORKERS, true);
    const struct message_report says = report_of(1);
    assert_int_equal(ask(one, MESSAGE_report, &says, NULL, 0), MESSAGE_rollout);
    assert_true(is_told(status()->members, "worker 3: version 1, 0.0 s ago\n"));
    serving.now_s += ROLLOUT_IDLE_TIMEOUT_S;
    assert_null(strstr(status()->members, "worker 3"));
    end();
}

/* It is there, if cut off from another ps: no other process may speak for it. */
TEST_WITH(nobody_speaks_for_who_is_cut_off, enter, leave)
{
    begin(0, text_of(1, 0.5, ""));
    all_come();
    come(OTHER, MEMBER_WORKER, 1, false); /* another process than session 1 */
    serving.server.job.workers[1].present = false;
    serving.server.job.workers[1].cut_off = true;
    fakes[1].version = 7;
    report(1);
    assert_int_equal(coordinator->rollout.members[2 + 1].version, 1);
    serving.server.job.workers[1].cut_off = false;
    report(1);
    assert_int_equal(coordinator->rollout.members[2 + 1].version, 7);
    end();
}

int main(void)
{
    return check_run(NULL, NULL);
}
