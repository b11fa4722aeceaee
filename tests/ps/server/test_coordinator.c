/* What ps 0 knows of training while it leads a rollout, what a change means to a ps itself, and who may connect. */
#include "tests/check.h"
#include "tests/ps/server/leading.h"

/* --- What is known of training --- */

TEST_WITH(vitals_are_of_the_worst_worker, enter, leave)
{
    begin(0, text_of(1, 0.5, ",\"elastic\":true,\"elastic_workers\":1"));
    operator_comes();
    assert_false(coordinator_vitals(coordinator).training);
    assert_false(coordinator_vitals(coordinator).unsure);
    serving.server.job.workers[0].present = true;
    assert_true(coordinator_vitals(coordinator).unsure);
    serving.server.job.workers[0].present = false;
    all_come();
    fakes[1].loss = 2.5f;
    report(1);
    struct rollout_vitals vitals = coordinator_vitals(coordinator);
    assert_true(vitals.training && !vitals.waits && !vitals.over && !vitals.in_step);
    assert_true(vitals.loss == 2.5);
    assert_true(fabs(vitals.chance_loss - log(3)) < 1e-9);
    assert_false(vitals.unsure);
    assert_int_equal(vitals.global_step, 102);
    assert_int_equal(vitals.generation, serving.server.job.generation);
    assert_int_equal(vitals.under_way, 1); /* one worker is connected, with one gradient at a time */
    assert_true(vitals.may_come_s == 0);
    fakes[2].loss = INFINITY;
    report(2);
    assert_true(isinf(coordinator_vitals(coordinator).loss));
    fakes[1].loss = NAN;
    report(1);
    assert_true(isnan(coordinator_vitals(coordinator).loss));
    fakes[1].loss = fakes[2].loss = 1;
    report(1);
    report(2);
    assert_true(coordinator_vitals(coordinator).loss == 1);
    fakes[0].loss = -1; /* it has rejoined, and reported none since */
    report(0);
    assert_true(coordinator_vitals(coordinator).unsure);
    coordinator->losses[WORKERS] = NAN; /* from an unlisted worker that has left */
    assert_true(coordinator_vitals(coordinator).loss == 1);
    serving.server.job.workers[WORKERS].present = true;
    assert_true(isnan(coordinator_vitals(coordinator).loss));
    serving.server.job.workers[WORKERS].present = false;
    serving.config.train.loss = LOSS_MSE;
    assert_true(isinf(coordinator_vitals(coordinator).chance_loss));
    serving.config.train.loss = LOSS_SOFTMAX;
    serving.config.cluster.pipeline_depth = 2;
    assert_int_equal(coordinator_vitals(coordinator).under_way, 3);
    serving.config.cluster.max_staleness = 4;
    assert_true(coordinator_vitals(coordinator).in_step);
    serving.config.cluster.max_staleness = 0;
    serving.config.cluster.issync = true;
    vitals = coordinator_vitals(coordinator);
    assert_true(vitals.in_step && vitals.under_way == 1 && vitals.may_come_s == 10);
    serving.config.cluster.issync = false;
    serving.server.job.state = JOB_DONE;
    assert_true(coordinator_vitals(coordinator).over);
    end();
}

/* A restore is not a step, and a short pause does not make the fleet slow. */
TEST_WITH(the_rate_is_of_steps, enter, leave)
{
    begin(0, text_of(1, 0.5, ""));
    all_come();
    pass(1);
    train(10);
    pass(1);
    assert_true(fabs(coordinator_vitals(coordinator).steps_per_s - 10) < 0.01);
    train(40);
    pass(0.1); /* too early to tell */
    assert_true(fabs(coordinator_vitals(coordinator).steps_per_s - 10) < 0.01);
    pass(1.9);
    assert_true(fabs(coordinator_vitals(coordinator).steps_per_s - 20) < 0.01);
    pass(1);
    assert_true(fabs(coordinator_vitals(coordinator).steps_per_s - 20 * 0.99) < 0.01);
    serving.server.job.state = JOB_RESTORING; /* nor is it slow because it restores */
    const double fastest = coordinator_vitals(coordinator).steps_per_s;
    for (int i = 0; i < 50; i++) {
        pass(1);
    }
    assert_true(coordinator_vitals(coordinator).steps_per_s == fastest);
    serving.server.job.state = JOB_TRAINING;
    restore(5000);
    pass(1);
    train(5);
    pass(1);
    assert_true(coordinator_vitals(coordinator).steps_per_s < 20);
    end();
}

/* --- What a change means to a ps --- */

static enum participant_switch switch_to(const struct config *config, int64_t step)
{
    return agent.options.host.switch_to(agent.options.host.context, config, step);
}

static float parameter(void)
{
    float value = NAN;
    struct error error;
    assert_true(shard_read(serving.server.shard, STORE_PARAMETERS, (struct range){0, 1}, &value, &error));
    return value;
}

/* One more step, of gradient 1. */
static void step(void)
{
    static const float one = 1;
    uint8_t bytes[RANGE_BYTES];
    range_put(bytes, 0, (struct range){0, 1});
    const struct message_push push = {
        .sequence = ++pushes, .base_step = serving.server.job.global_step, .ranges = {bytes, 1}};
    assert_int_equal(ask(&serving.sessions[0], MESSAGE_push, &push, &one, sizeof one), MESSAGE_pushed);
}

/* The other version, parsed. */
static struct config version(uint64_t number, double rate)
{
    struct config config;
    struct error error;
    char *text = text_of(number, rate, "");
    assert_true(config_parse(&config, "test", (uint8_t *)text, strlen(text), NULL, 0, &error));
    return config;
}

TEST_WITH(a_ps_switches_at_its_step, enter, leave)
{
    begin(0, text_of(1, 0.5, ""));
    struct config then = version(2, 0.25);
    assert_true(agent.options.host.stays); /* its local keys wait for its next start */
    assert_false(agent.options.host.ready(agent.options.host.context));
    all_come();
    assert_true(agent.options.host.ready(agent.options.host.context));
    float before = parameter();
    assert_int_equal(switch_to(&then, 104), SWITCH_PENDING);
    step();
    assert_true(before - parameter() == 0.5);
    assert_int_equal(switch_to(&then, 104), SWITCH_PENDING);
    step();
    before = parameter();
    assert_int_equal(switch_to(&then, 104), SWITCH_DONE);
    step();
    assert_true(before - parameter() == 0.25);
    const int64_t now = serving.server.job.global_step;
    assert_int_equal(switch_to(&then, now - 1), SWITCH_LATE);     /* pushes were applied with the former rates */
    assert_int_equal(switch_to(&serving.config, 0), SWITCH_DONE); /* back, at once */
    before = parameter();
    step();
    assert_true(before - parameter() == 0.5);
    config_free(&then);
    end();
}

/* After a restore the next change may take effect at the same step as the last one did. */
TEST_WITH(the_same_step_is_another_switch_later, enter, leave)
{
    begin(0, text_of(1, 0.5, ""));
    struct config then = version(2, 0.25), later = version(3, 0.125);
    all_come();
    assert_int_equal(switch_to(&then, 102), SWITCH_LATE);
    assert_int_equal(switch_to(&then, 103), SWITCH_PENDING);
    step();
    assert_int_equal(switch_to(&then, 103), SWITCH_DONE);
    restore(102);
    assert_int_equal(switch_to(&later, 103), SWITCH_PENDING);
    step();
    assert_int_equal(switch_to(&later, 103), SWITCH_DONE);
    const float before = parameter();
    step();
    assert_true(before - parameter() == 0.125);
    assert_int_equal(switch_to(&then, 1), SWITCH_LATE);
    config_free(&then);
    config_free(&later);
    end();
}

/* While a step is being applied, the shard has it and the job does not. */
TEST_WITH(a_ps_has_switched_once_its_job_has, enter, leave)
{
    begin(0, text_of(1, 0.5, ""));
    struct config then = version(2, 0.25);
    all_come();
    struct job *job = &serving.server.job;
    assert_int_equal(switch_to(&then, 103), SWITCH_PENDING);
    step();
    job->has_next = true;
    assert_int_equal(switch_to(&then, 103), SWITCH_PENDING);
    job->has_next = false;
    assert_int_equal(switch_to(&then, 103), SWITCH_DONE);
    config_free(&then);
    end();
}

/* Who waits may have to wait no longer under the new config. */
TEST_WITH(a_switch_reaches_the_job_and_who_waits, enter, leave)
{
    begin(0, text_of(1, 0.5, ""));
    struct config then = version(2, 0.25);
    all_come();
    memset(&woken, 0, sizeof woken);
    assert_int_equal(switch_to(&then, 103), SWITCH_PENDING);
    assert_true(woken.changed == 1 && woken.stepped == 1);
    assert_true(serving.server.job.config.train.learning_rate == 0.5);
    step();
    memset(&woken, 0, sizeof woken);
    assert_int_equal(switch_to(&then, 103), SWITCH_DONE);
    assert_true(woken.changed == 0 && woken.stepped == 0);
    assert_true(serving.server.job.config.train.learning_rate == 0.25);
    config_free(&then);
    end();
}

/* Nobody pushes to it, so that no step ever comes. */
TEST_WITH(a_ps_without_parameters_switches_at_once, enter, leave)
{
    static const char text[] =
        "{\"fleet\":{\"name\":\"north\",\"version\":1},\"model\":{\"layers\":[2,2]},\"security\":{\"insecure\":true},"
        "\"train\":{\"learning_rate\":0.5},\"cluster\":{\"worker_hosts\":[\"a:1\",\"b:1\",\"c:1\"],"
        "\"placement\":\"round_robin\",\"ps_hosts\":[\"d:1\",\"e:1\",\"f:1\"]}}";
    begin(2, text);
    struct config then = version(2, 0.25);
    assert_int_equal(shard_floats(serving.server.shard), 0);
    assert_int_equal(switch_to(&then, 1000), SWITCH_DONE);
    assert_true(serving.server.job.config.train.learning_rate == 0.25);
    config_free(&then);
    end();
}

static bool has_room(const struct config *then, struct error *error)
{
    return agent.options.host.check(agent.options.host.context, then, error);
}

/* There is room for it from exactly as many bytes on. */
static void has_room_from(const struct config *then, size_t wanted)
{
    struct error error = {""};
    char expected[100];
    memory.is_known = true;
    memory.there = wanted;
    assert_true(has_room(then, &error));
    memory.there--;
    assert_false(has_room(then, &error));
    snprintf(expected, sizeof expected, "it would need %zu MiB of memory here, but there are %zu", wanted >> 20,
             (wanted - 1) >> 20);
    assert_true(is_told(error.text, expected));
}

TEST_WITH(a_ps_knows_what_it_has_room_for, enter, leave)
{
    struct config then;
    struct model model;
    struct error error = {""};
    begin(1, text_of(1, 0.5, ""));
    char *text = text_of(2, 0.25, ",\"elastic\":true,\"elastic_workers\":4");
    assert_true(config_parse(&then, "test", (uint8_t *)text, strlen(text), NULL, 0, &error));
    assert_true(has_room(&then, &error)); /* nobody knows what is there */
    model_layout(&model, &serving.config.model);
    has_room_from(&then, server_memory(&model, &then, 1, WORKERS + 4));
    config_free(&then);
    end();
}

/* Where a config leaves the ends of the model to the data, they are what they are now. */
TEST_WITH(a_model_without_ends_is_measured_with_the_present_ones, enter, leave)
{
    struct config then;
    struct model model;
    struct error error;
    static const char text[] = "{\"fleet\":{\"version\":2},\"model\":{\"hidden\":[50,60]}}";
    begin(0, text_of(1, 0.5, ""));
    assert_true(config_parse(&then, "test", (const uint8_t *)text, sizeof text - 1, NULL, 0, &error));
    then.cluster.local = false; /* so that only the number of hosts matters */
    then.cluster.ps_hosts.count = 1;
    then.cluster.worker_hosts.count = WORKERS;
    struct config_model fitted = then.model;
    memcpy(fitted.layers, (int[]){6, 50, 60, 3}, 4 * sizeof(int));
    fitted.layer_count = 4;
    model_layout(&model, &fitted);
    has_room_from(&then, server_memory(&model, &then, 0, WORKERS));
    then.cluster.ps_hosts.count = then.cluster.worker_hosts.count = 0;
    config_free(&then);
    end();
}

TEST_WITH(it_restarts_or_leaves_for_good, enter, leave)
{
    begin(0, text_of(1, 0.5, ""));
    agent.options.host.leave(agent.options.host.context, false);
    assert_int_equal(atomic_load(&serving.server.shutdown_mode), SHUTDOWN_RESTART);
    assert_int_equal(restart_s, 15);
    restart_s = 0;
    agent.options.host.leave(agent.options.host.context, true);
    assert_int_equal(atomic_load(&serving.server.shutdown_mode), SHUTDOWN_FINAL);
    assert_int_equal(restart_s, 15);
    end();
}

/* --- Who may connect, and what is shown --- */

TEST_WITH(members_of_either_version_are_let_in, enter, leave)
{
    char before[CONFIG_DIGEST_HEX + 1], after[CONFIG_DIGEST_HEX + 1];
    begin(0, text_of(1, 0.5, ""));
    operator_comes();
    digest_of(1, 0.5, "", before);
    digest_of(2, 0.25, "", after);
    assert_false(coordinator_knows_digest(coordinator, before));
    assert_false(coordinator_knows_digest(coordinator, after));
    assert_false(coordinator_knows_digest(coordinator, ""));
    agent.known = "beef";
    assert_true(coordinator_knows_digest(coordinator, "beef"));
    all_come();
    sign(1, 0.5, 2, 0.25, "", secret_key);
    accepted();
    assert_true(coordinator_knows_digest(coordinator, before));
    assert_true(coordinator_knows_digest(coordinator, after));
    assert_false(coordinator_knows_digest(coordinator, "00"));
    word(false, 2, "north", 0, secret_key);
    coordinator_tick(coordinator);
    sign(1, 0.5, 3, 0.25, ",\"issync\":true", secret_key); /* the whole job: no member works with the other version */
    accepted();
    digest_of(3, 0.25, ",\"issync\":true", after);
    assert_false(coordinator_knows_digest(coordinator, before));
    assert_false(coordinator_knows_digest(coordinator, after));
    assert_true(coordinator_has_member(coordinator, (struct member){MEMBER_WORKER, WORKERS - 1}));
    assert_true(
        coordinator_has_member(coordinator, (struct member){MEMBER_WORKER, WORKERS})); /* according to the agent */
    assert_false(coordinator_has_member(coordinator, (struct member){MEMBER_WORKER, WORKERS + 1}));
    assert_true(coordinator_has_member(coordinator, (struct member){MEMBER_PS, 1}));
    assert_false(coordinator_has_member(coordinator, (struct member){MEMBER_PS, 2}));
    uint64_t version;
    coordinator_version(coordinator, &version, before);
    assert_int_equal(version, 1);
    assert_string_equal(before, agent.digest);
    end();
}

TEST_WITH(what_is_shown, enter, leave)
{
    char message[400] = "";
    struct board_rollout shown = {.is_under_way = false};
    begin(0, text_of(1, 0.5, ""));
    operator_comes();
    all_come();
    coordinator_drift(coordinator, message, sizeof message);
    assert_string_equal(message, "");
    agent.drift = "config.json was edited";
    coordinator_drift(coordinator, message, sizeof message);
    assert_string_equal(message, "config.json was edited");
    coordinator_drift(coordinator, message, sizeof message);
    assert_string_equal(message, "config.json was edited; config.json was edited");
    strcpy(message, "?");
    coordinator_drift(coordinator, message, sizeof message);
    assert_string_equal(message, "?; config.json was edited");
    coordinator_show(coordinator, &shown);
    assert_false(shown.is_under_way); /* whatever its agent heard last: ps 0 knows better */
    assert_string_equal(shown.text, "");
    sign(1, 0.5, 2, 0.25, "", secret_key);
    accepted();
    coordinator_show(coordinator, &shown);
    assert_true(shown.is_under_way);
    assert_int_equal(shown.version, 2);
    assert_string_equal(shown.phase, "staging");
    assert_true(is_told(shown.text, "staging version 2: 0 of 5 members have it"));
    assert_true(shown.since_s > 1e9);
    shown.since_s = 5;
    coordinator_show(coordinator, &shown);
    assert_true(shown.since_s == 5);
    shown.is_under_way = false; /* it was another one */
    coordinator_show(coordinator, &shown);
    assert_true(shown.since_s > 1e9);
    everybody(PHASE_STAGED, 2, 1);
    pass(0.25);
    coordinator_show(coordinator, &shown);
    assert_string_equal(shown.phase, "switching");
    assert_true(shown.since_s > 1e9);
    end();
    begin(1, text_of(1, 0.5, ""));
    coordinator_show(coordinator, &shown);
    assert_int_equal(shown.version, 77); /* another ps knows what its agent heard */
    assert_string_equal(shown.text, "as the agent says");
    coordinator_tick(coordinator);
    end();
}

int main(void)
{
    return check_run(NULL, NULL);
}
