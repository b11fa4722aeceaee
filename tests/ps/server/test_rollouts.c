/* ps 0 leads rollouts: from one version to the next and back, and what it tells members and operators meanwhile. */

#include "tests/check.h"

#include "tests/ps/server/leading.h"
#include "tests/one_operator.h"

/* --- From one version to the next --- */

TEST_WITH(a_live_rollout, enter, leave)
{
    begin_with_all();
    coordinator_tick(coordinator);
    for (int i = 0; i < 10; i++) { /* 50 steps a second */
        train(25);
        pass(0.5);
    }
    assert_true(fabs(coordinator_vitals(coordinator).steps_per_s - 50) < 1);
    sign(1, 0.5, 2, 0.25, "", secret_key);
    accepted();
    pass(0.25);
    everybody(PHASE_STAGED, 2, 1);
    fakes[2].phase = PHASE_NONE;
    pass(0.25);
    assert_true(is_told(status()->message, "4 of 5 members have it, waiting for worker 2"));
    assert_true(is_told(status()->members, "worker 2: version 1, 0.0 s ago\n"));
    assert_true(is_told(status()->members, "ps 1: version 1, staged, 0.0 s ago\n"));
    fakes[2].phase = PHASE_STAGED;
    pass(0.25);
    audited("\"what\":\"switching\",\"version\":2");
    report(1);
    const int64_t step = told.step;
    assert_int_equal(order, ORDER_SWITCH);
    assert_int_equal(told.state, ROLLOUT_SWITCHING);
    assert_true(step > serving.server.job.global_step + 100); /* two seconds ahead, so that all learn of it */
    assert_true(step < serving.server.job.global_step + 1100);
    assert_int_equal(status()->step, step);
    report(PS_0);
    assert_int_equal(told.step, step);
    everybody(PHASE_SWITCHED, 2, 2);
    is_in(2, 0.25);
    pass(0.25);
    audited("\"what\":\"watching\",\"version\":2");
    report(1);
    assert_int_equal(told.step, 0); /* a member that comes now switches at once */
    assert_int_equal(status()->step, step);
    for (int i = 0; i < 16; i++) {
        train(2);
        pass(0.25);
    }
    assert_int_equal(coordinator->rollout.state, ROLLOUT_IDLE);
    audited("\"what\":\"idle\",\"version\":2,\"outcome\":\"version 2 is in force, since step ");
    report(1);
    assert_int_equal(order, ORDER_NOTHING);
    assert_int_equal(told.state, ROLLOUT_IDLE);
    const struct message_rollout *rollout = status();
    assert_int_equal(rollout->outcome, OUTCOME_DONE);
    assert_int_equal(rollout->target, 2);
    assert_int_equal(rollout->version, 2);
    assert_int_equal(rollout->highest, 2);
    assert_true(is_told(rollout->earlier, "\"learning_rate\":0.5")); /* for going back by hand */
    assert_string_equal(rollout->earlier_local, "");
    assert_int_equal(serving.server.job.workers[1].fleet_version, 2); /* which `trainer status` shows */
    assert_string_equal(serving.server.job.workers[1].digest, "d16e57");
    end();
}

/* The loss of one worker is no longer finite: all go back, and worker 0 restores. */
TEST_WITH(all_go_back_from_a_loss_that_is_not_finite, enter, leave)
{
    begin_with_all();
    sign(1, 0.5, 2, 0.25, "", secret_key);
    accepted();
    everybody(PHASE_STAGED, 2, 1);
    pass(0.25);
    everybody(PHASE_SWITCHED, 2, 2);
    pass(0.25);
    assert_int_equal(coordinator->rollout.state, ROLLOUT_WATCHING);
    fakes[2].loss = NAN;
    pass(0.25);
    assert_int_equal(coordinator->rollout.state, ROLLOUT_GOING_BACK);
    audited("\"what\":\"going back\"");
    report(1);
    assert_int_equal(order, ORDER_BACK);
    everybody(PHASE_BACK, 2, 1);
    pass(0.25);
    report(0);
    assert_int_equal(order, ORDER_RESTORE);
    fakes[0].phase = PHASE_RESTORED;
    pass(0.25);
    assert_int_equal(status()->outcome, OUTCOME_WENT_BACK);
    assert_true(is_told(status()->message, "the loss is no longer finite"));
    end();
}

/* An operator's abort works once, and aborts no other rollout by mistake. */
TEST_WITH(an_operator_takes_it_back, enter, leave)
{
    begin(0, text_of(1, 0.5, ""));
    struct serving_session *operator_ = operator_comes();
    all_come();
    word(false, 2, "north", 0, secret_key);
    refuses(operator_, "not for the rollout in progress");
    sign(1, 0.5, 2, 0.25, "", secret_key);
    accepted();
    pass(0.25);
    word(false, 3, "north", 0, secret_key);
    refuses(operator_, "the abort is for version 3 of fleet \"north\", not for the rollout in progress");
    word(false, 2, "north", 1, secret_key);
    refuses(operator_, "not for the rollout in progress");
    word(false, 2, "south", 0, secret_key);
    refuses(operator_, "\"south\"");
    word(true, 3, "north", 0, secret_key);
    refuses(operator_, "the resume is for version 3");
    word(true, 2, "north", 0, secret_key);
    refuses(operator_, "there is no rollout that is paused");
    assert_int_equal(coordinator->rollout.state, ROLLOUT_STAGING);
    word(false, 2, "north", 0, secret_key);
    assert_int_equal(operator_->client.frame.type, MESSAGE_done);
    audited("\"who\":\"she@desk\",\"what\":\"abort\",\"version\":2,\"outcome\":\"done\"");
    pass(0.25);
    assert_int_equal(status()->outcome, OUTCOME_NOT_BEGUN);
    word(false, 2, "north", 0, secret_key);
    refuses(operator_, "there is no rollout to abort");
    end();
}

/* A resume that was signed for one pause does not end the next, also after a restart of ps 0. */
TEST_WITH(a_resume_is_used_once, enter, leave)
{
    begin(0, text_of(1, 0.5, ""));
    struct serving_session *operator_ = operator_comes();
    all_come();
    sign(1, 0.5, 2, 0.25, "", secret_key);
    accepted();
    pass(0.25);
    coordinator->rollout.state = ROLLOUT_SWITCHING;
    for (word_s = 1000; word_s < 1002; word_s++) {
        coordinator->rollout.is_paused = true;
        word(true, 2, "north", 0, secret_key);
        assert_int_equal(operator_->client.frame.type, MESSAGE_done);
        coordinator->rollout.is_paused = true;
        word(true, 2, "north", 0, secret_key);
        refuses(operator_, "this resume was used already");
        assert_true(coordinator->rollout.is_paused);
    }
    word_s = 0;
    end();
}

/* A rollout being watched while nobody reports for 12 s; stood: and ps 0 did not tick, either. */
static enum rollout_state after_silence(bool stood)
{
    begin_with_all();
    coordinator_tick(coordinator);
    sign(1, 0.5, 2, 0.25, "", secret_key);
    accepted();
    everybody(PHASE_STAGED, 2, 1);
    pass(0.25);
    everybody(PHASE_SWITCHED, 2, 2);
    pass(0.25);
    assert_int_equal(coordinator->rollout.state, ROLLOUT_WATCHING);
    for (int i = 0; i < (stood ? 1 : 12); i++) {
        serving.now_s += stood ? 12 : 1;
        coordinator_tick(coordinator);
    }
    const enum rollout_state state = coordinator->rollout.state;
    end();
    return state;
}

TEST_WITH(members_that_say_nothing_go_back, enter, leave)
{
    assert_int_equal(after_silence(false), ROLLOUT_GOING_BACK);
}

/* ps 0 was suspended (its machine was asleep, say): it blames nobody for that. */
TEST_WITH(its_own_pause_is_nobody_s_silence, enter, leave)
{
    assert_int_equal(after_silence(true), ROLLOUT_WATCHING);
}

/* --- After a restart of ps 0 --- */

TEST_WITH(a_restarted_leader_goes_on, enter, leave)
{
    struct error error;
    (void)state;
    begin_with_all();
    sign(1, 0.5, 2, 0.25, "", secret_key);
    accepted();
    everybody(PHASE_STAGED, 2, 1);
    pass(0.25);
    everybody(PHASE_SWITCHED, 2, 2);
    pass(0.25);
    assert_int_equal(coordinator->rollout.state, ROLLOUT_WATCHING);
    assert_true(lead(&error));
    assert_int_equal(coordinator->rollout.state, ROLLOUT_GOING_BACK); /* it knows nothing of how that was */
    assert_int_equal(coordinator->rollout.target, 2);
    assert_int_equal(coordinator->rollout.fallback, 1);
    report(1);
    assert_int_equal(order, ORDER_NOTHING); /* until that is on disk */
    coordinator_tick(coordinator);
    report(1);
    assert_int_equal(order, ORDER_BACK);
    everybody(PHASE_BACK, 2, 1);
    pass(0.25);
    fakes[0].phase = PHASE_RESTORED;
    pass(0.25);
    assert_true(is_told(status()->message, "ps 0 was restarted while the rollout was watching"));
    assert_true(lead(&error)); /* now there is nothing to do */
    assert_int_equal(coordinator->rollout.state, ROLLOUT_IDLE);
    assert_int_equal(status()->highest, 2);
    sign(1, 0.5, 2, 0.125, "", secret_key);
    refused("version"); /* it remembers which numbers are used up */
    sign(1, 0.5, 3, 0.125, "", secret_key);
    pass(0);
    accepted();
    write_text("config.json.d/rollout.json", "{\"state\":");
    assert_false(lead(&error));
    assert_true(is_told(error.text, "rollout.json"));
    end();
}

/* --- Members that were away --- */

/* Rolls out that version from the one before, at once. */
static void roll_out(uint64_t version)
{
    sign(version - 1, 1.0 / (double)version, version, 1.0 / (double)(version + 1), "", secret_key);
    accepted();
    everybody(PHASE_STAGED, version, version - 1);
    pass(0.25);
    everybody(PHASE_SWITCHED, version, version);
    pass(0.25);
    is_in(version, 1.0 / (double)(version + 1));
    for (int i = 0; i < 20; i++) {
        train(1);
        pass(0.25);
    }
    assert_int_equal(coordinator->rollout.state, ROLLOUT_IDLE);
}

TEST_WITH(who_was_away_catches_up, enter, leave)
{
    size_t size;
    struct manifest manifest;
    struct error error;
    (void)state;
    begin_with_all();
    roll_out(2);
    fakes[1] = (struct fake){.version = 1, .loss = -1};
    assert_int_equal(report(1), proposal_size);
    assert_int_equal(order, ORDER_SWITCH); /* it switches to version 2 while running */
    assert_int_equal(told.version, 2);
    assert_int_equal(told.step, 0);
    sign(2, 1.0 / 3, 3, 0.25, "", secret_key);
    accepted();
    pass(0.25);
    report(2);
    assert_int_equal(order, ORDER_STAGE);
    manifest_told(2, &size);
    assert_true(report(1) > 0); /* it can take part only from version 2 on: this leads it there */
    assert_int_equal(order, ORDER_CATCH_UP);
    assert_int_equal(told.version, 2);
    const uint8_t *bytes = manifest_told(1, &size);
    assert_true(manifest_decode(&manifest, bytes, size, only(public_key), &error));
    assert_int_equal(manifest.target.version, 2);
    uint8_t *good;
    size_t good_size;
    assert_true(file_read(path_of("config.json.d/00000002.manifest"), 1 << 16, &good, &good_size, &error));
    write_text("config.json.d/00000002.manifest", "not what it was");
    assert_true(lead(&error)); /* it no longer knows how version 2 came: then it sends nothing, and not version 3 */
    coordinator_tick(coordinator);
    assert_int_equal(report(1), 0);
    assert_int_equal(unlink(path_of("config.json.d/00000002.manifest")), 0); /* which is no repair */
    coordinator_tick(coordinator);
    assert_int_equal(report(1), 0);
    const struct file_part part = {good, good_size}; /* it is repaired while ps 0 runs */
    assert_true(file_write_atomic(path_of("config.json.d/00000002.manifest"), &part, 1, &error));
    serving.now_s += 4;
    coordinator_tick(coordinator);
    assert_int_equal(report(1), 0); /* it looks every five seconds */
    serving.now_s += 1;
    coordinator_tick(coordinator);
    assert_int_equal(report(1), good_size);
    assert_int_equal(order, ORDER_CATCH_UP);
    bytes = manifest_told(1, &size);
    assert_memory_equal(bytes, good, good_size);
    free(good);
    end();
}

/* The answer to worker 1, in that version: where it is sent, by whose manifest (0: none). */
static uint64_t leads_to(uint64_t version)
{
    size_t size;
    struct manifest manifest;
    struct error error;
    fakes[1] = (struct fake){.version = version, .target = coordinator->rollout.target, .loss = -1};
    if (report(1) == 0) {
        return 0;
    }
    const uint8_t *bytes = manifest_told(1, &size);
    assert_true(manifest_decode(&manifest, bytes, size, only(public_key), &error));
    return manifest.target.version;
}

/* Worker 1 was away in a version that all others went back from: the rollout under way leads it back, too. */
TEST_WITH(who_is_astray_comes_back_by_the_rollout_under_way, enter, leave)
{
    struct error error;
    (void)state;
    begin_with_all();
    roll_out(2);
    sign(2, 1.0 / 3, 3, 0.25, "", secret_key);
    accepted();
    word(false, 3, "north", 0, secret_key);
    sign(2, 1.0 / 3, 4, 0.25, "", secret_key);
    accepted();
    pass(0.25);
    assert_int_equal(leads_to(3), 4);
    assert_int_equal(order, ORDER_CATCH_UP);
    assert_int_equal(told.version, 2);
    assert_int_equal(leads_to(1), 2);
    assert_int_equal(order, ORDER_CATCH_UP);
    assert_int_equal(leads_to(2), 0); /* it has version 4's already */
    assert_int_equal(order, ORDER_STAGE);
    leads_to(9); /* above all that was ever rolled out: it is told what all are told, and refuses it */
    assert_int_equal(order, ORDER_STAGE);
    write_text("config.json.d/00000002.manifest", "not what it was");
    assert_true(lead(&error));
    coordinator_tick(coordinator);
    assert_int_equal(leads_to(3), 4); /* for which version 2's manifest is not needed */
    assert_int_equal(leads_to(1), 0);
    assert_int_equal(unlink(path_of("config.json.d/00000002.manifest")), 0);
    assert_true(lead(&error)); /* version 2 came some other way: then version 4's may lead there */
    coordinator_tick(coordinator);
    assert_int_equal(leads_to(1), 4);
    end();
}

/* As long as the fleet may go back, one that was away comes to the fallback, though ps 0 is in the target. */
TEST_WITH(who_was_away_takes_no_version_on_trial, enter, leave)
{
    static const enum rollout_phase phases[] = {PHASE_STAGED, PHASE_TRIED, PHASE_SAVED};
    (void)state;
    begin_with_all();
    roll_out(2);
    sign(2, 1.0 / 3, 3, 0.25, "", secret_key); /* live: ps 0 says what is in force */
    accepted();
    everybody(PHASE_STAGED, 3, 2);
    pass(0.25);
    assert_int_equal(coordinator->rollout.state, ROLLOUT_SWITCHING);
    agent.version = 3;
    assert_int_equal(leads_to(1), 3);
    assert_int_equal(order, ORDER_CATCH_UP);
    assert_int_equal(told.version, 3);
    agent.version = 2;
    word(false, 3, "north", 0, secret_key);
    everybody(PHASE_BACK, 3, 2);
    fakes[0].phase = PHASE_RESTORED;
    pass(0.25);
    pass(0.25);
    pass(0.25);
    assert_int_equal(coordinator->rollout.state, ROLLOUT_IDLE);
    sign(2, 1.0 / 3, 4, 0.25, ",\"issync\":true", secret_key);
    accepted();
    for (int i = 0; i < 3; i++) {
        everybody(PHASE_STAGED, 4, 2);
        fakes[0].phase = phases[i];
        pass(0.25);
    }
    assert_int_equal(coordinator->rollout.state, ROLLOUT_SWITCHING);
    agent.version = 4;
    assert_int_equal(leads_to(1), 2);
    assert_int_equal(told.version, 2);
    leads_to(2);
    assert_int_equal(told.version, 4);
    coordinator->rollout.state = ROLLOUT_IDLE; /* it went well */
    assert_int_equal(leads_to(2), 4);
    assert_int_equal(order, ORDER_CATCH_UP);
    assert_int_equal(told.version, 4);
    end();
}

/* --- Reports --- */

/*
 * A report comes without a config: while the worker with that index is connected, no other process may report for it.
 */
TEST_WITH(nobody_speaks_for_a_worker_that_is_here, enter, leave)
{
    begin(0, text_of(1, 0.5, ""));
    all_come();
    struct serving_session *here = come(OTHER, MEMBER_WORKER, 1, false); /* another process than session 1 */
    assert_int_not_equal(here->session.incarnation, serving.sessions[1].session.incarnation);
    fakes[1].version = 7;
    report(1);
    assert_int_equal(coordinator->rollout.members[2 + 1].version, 1);
    serving.sessions[1].session.incarnation = here->session.incarnation;
    report(1);
    assert_int_equal(coordinator->rollout.members[2 + 1].version, 7);
    serving.sessions[1].session.incarnation = 1;
    serving_hang_up(here);
    for (int i = 0; i < 60; i++) {
        serving.now_s += 1;
        serving_tick();
    }
    fakes[1].version = 8;
    report(1); /* it has gone: the next process may report */
    assert_int_equal(coordinator->rollout.members[2 + 1].version, 8);
    end();
}

/* The last answer brings that manifest. */
static void brings(struct serving_session *one, const uint8_t *manifest, size_t manifest_size)
{
    const uint8_t *bytes;
    assert_int_equal(bulk_of(one, &bytes), manifest_size);
    assert_memory_equal(bytes, manifest, manifest_size);
}

/* While the next is under way they need its manifest, and the previous one does not matter. */
static void they_are_told_of_the_next(struct serving_session *one)
{
    uint8_t *last = proposal;
    const size_t last_size = proposal_size;
    proposal = NULL;
    sign(3, 0.125, 4, 0.0625, "", secret_key);
    accepted();
    assert_string_equal(status()->earlier, "");
    status();
    brings(one, proposal, proposal_size);
    word(false, 4, "north", 0, secret_key);
    coordinator_tick(coordinator);
    assert_string_equal(status()->earlier, "");
    status(); /* it failed: what counts is how version 3 came */
    brings(one, last, last_size);
    write_text("config.json.d/00000003.manifest", "not what it was");
    status(); /* the last one goes back to version 3, which vouches for that, too */
    brings(one, proposal, proposal_size);
    free(last);
}

TEST_WITH(what_operators_are_told, enter, leave)
{
    struct versions versions;
    struct error error;
    (void)state;
    begin(0, text_of(1, 0.5, ""));
    struct serving_session *one = operator_comes();
    all_come();
    come(OTHER, MEMBER_WORKER, 2, true);
    const struct message_rollout *rollout = status();
    assert_string_equal(rollout->job, serving.server.identity.job);
    assert_string_equal(rollout->earlier, "");
    assert_string_equal(rollout->local, "");
    assert_int_equal(rollout->version, 1);
    assert_int_equal(rollout->highest, 1);
    assert_int_equal(one->client.bulk_left, 0);
    assert_int_equal(one->client.frame.generation, serving.server.job.generation);
    fakes[1].message = "its disk is full";
    serving.now_s += 1.5;
    report(1);
    serving.now_s += 0.5;
    rollout = status();
    assert_true(is_told(rollout->members, "worker 1: version 1, 0.5 s ago: its disk is full\n"));
    assert_true(is_told(rollout->members, "ps 0: version 1, 2.0 s ago\n"));
    fakes[1].message = NULL;
    sign(1, 0.5, 2, 0.25, "", secret_key);
    accepted();
    status();
    brings(one, proposal, proposal_size);
    word(false, 2, "north", 0, secret_key);
    pass(0.25);
    sign(1, 0.5, 3, 0.125, "", secret_key);
    accepted();
    everybody(PHASE_STAGED, 3, 1);
    pass(0.25);
    everybody(PHASE_SWITCHED, 3, 3);
    pass(0.25);
    is_in(3, 0.125);
    for (int i = 0; i < 20; i++) {
        train(1);
        pass(0.25);
    }
    status();
    brings(one, proposal, proposal_size);
    assert_true(versions_open(&versions, path_of("config.json"), &error)); /* as its agent stores them */
    char *job = job_of(3, 0.125, "");
    assert_true(versions_add_local(&versions, 3, "{\"a\":1}", 7, &error));
    assert_true(versions_add(&versions, 3, job, strlen(job), &error));
    rollout = status();
    assert_string_equal(rollout->job, job);
    assert_string_equal(rollout->local, "{\"a\":1}");
    assert_true(is_told(rollout->earlier, "\"learning_rate\":0.5"));
    free(job);
    they_are_told_of_the_next(one);
    end();
}

/* Of very many, each with a long message, as many as there is room for. */
TEST_WITH(the_list_of_members_has_an_end, enter, leave)
{
    begin(0, text_of(1, 0.5, ",\"elastic\":true,\"elastic_workers\":400"));
    operator_comes();
    all_come();
    for (int i = 0; i < coordinator->rollout.count; i++) {
        struct rollout_member *member = &coordinator->rollout.members[i];
        member->heard_s = serving.now_s;
        memset(member->message, 'm', sizeof member->message - 1);
    }
    assert_int_equal(strlen(status()->members), 60 * 1024 - 1);
    end();
}

/* A generation is one of a model, which is there once worker 0 has brought it. */
TEST_WITH(operators_are_told_of_a_model_once_there_is_one, enter, leave)
{
    begin(0, text_of(1, 0.5, ""));
    struct serving_session *one = operator_comes();
    come(0, MEMBER_WORKER, 0, false);
    serving.server.job.generation = 5;
    status();
    assert_int_equal(one->client.frame.generation, 0);
    restore(100);
    status();
    assert_int_equal(one->client.frame.generation, 6);
    end();
}

/* One that a rollout adds reports before this ps has a place for it. */
TEST_WITH(who_has_no_place_yet_is_told_all_the_same, enter, leave)
{
    begin_with_all();
    struct serving_session *one = come(OTHER, MEMBER_WORKER, WORKERS, true);
    const struct message_report says = report_of(1);
    assert_int_equal(ask(one, MESSAGE_report, &says, NULL, 0), MESSAGE_rollout);
    assert_int_equal(one->client.message.rollout.order, ORDER_NOTHING);
    sign(1, 0.5, 2, 0.25, "", secret_key);
    accepted();
    coordinator_tick(coordinator);
    assert_int_equal(ask(one, MESSAGE_report, &says, NULL, 0), MESSAGE_rollout);
    assert_int_equal(one->client.message.rollout.order, ORDER_STAGE);
    assert_int_equal(one->client.bulk_left, proposal_size);
    end();
}

/* According to its last report. */
TEST_WITH(each_member_has_its_line, enter, leave)
{
    static const char *const phases[] = {"", ", staged", ", switched", ", went back", ", restored", ", refused it"};
    (void)state;
    begin(0, text_of(1, 0.5, ""));
    operator_comes();
    assert_string_equal(status()->members, "ps 0: not heard of\nps 1: not heard of\nworker 0: not heard of\n"
                                           "worker 1: not heard of\nworker 2: not heard of\n");
    all_come();
    sign(1, 0.5, 2, 0.25, "", secret_key);
    accepted();
    for (int i = 0; i < (int)(sizeof phases / sizeof *phases); i++) {
        char line[80];
        fakes[1].phase = (enum rollout_phase)i;
        fakes[1].target = 2;
        report(1);
        serving.now_s += 0.25;
        snprintf(line, sizeof line, "worker 1: version 1%s, 0.2 s ago\n", phases[i]);
        assert_true(is_told(status()->members, line));
    }
    coordinator->rollout.members[2 + 1].heard_s = 0; /* as the machine's clock began */
    assert_true(is_told(status()->members, "worker 1: version 1, refused it, 1"));
    end();
}

int main(void)
{
    return check_run(NULL, NULL);
}
