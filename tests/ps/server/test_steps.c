/* Synchronous steps on a ps: who waits, for how long and what ends the wait, and what the ps tell each other. */
#include "tests/check.h"
#include "tests/ps/server/asking.h"

static struct serving_session *first, *second;

/* Two workers, whose gradients make a step together; `count` ps, of which this has index `index`. */
static void begin(int index, int ps_count)
{
    struct config *config = serving_config();
    config->cluster.issync = true;
    config->cluster.replicas_to_aggregate = 2;
    config->cluster.min_replicas = 2;
    config->cluster.ps_hosts.count = ps_count;
    serving_begin(index);
    first = come(0);
    second = come(1);
    restore(1, 0);
    second->client.generation = 1;
}

static uint64_t sequences[2];

static void send_step(struct serving_session *one, int64_t token, float value)
{
    const struct message_push push = {
        .sequence = ++sequences[one == second], .base_step = token, .token = token, .loss = 0.5f};
    send_push(one, &push, value);
}

static void expect(struct serving_session *one, enum push_outcome wanted)
{
    assert_int_equal(outcome(one), wanted);
}

static void second_pushes(void)
{
    serving.meanwhile = NULL;
    send_step(second, serving.server.job.global_step, 3);
    assert_true(serving_serve(second));
}

static void second_pushes_three_examples(void)
{
    serving.meanwhile = NULL;
    const struct message_push push = {.sequence = ++sequences[1], .loss = 0.5f, .examples = 3};
    send_push(second, &push, 5);
    assert_true(serving_serve(second));
}

/* Until the second pushes, `then_s` from now. */
static double then_s;

static void second_pushes_late(void)
{
    if (serving.now_s >= then_s) {
        second_pushes();
    }
}

/* Where rounds are weighed: of one example and of three each counts as much. */
TEST(a_gradient_counts_by_its_examples)
{
    begin(0, 1);
    serving.server.shard->weighs_examples = true;
    serving.meanwhile = second_pushes_three_examples;
    const struct message_push push = {.sequence = ++sequences[0], .loss = 0.5f, .examples = 1};
    send_push(first, &push, 1);
    assert_true(serving_serve(first));
    assert_int_equal(outcome(first), PUSH_APPLIED);
    assert_true(parameter() == -(1 + 3 * 5) / 4.0f);
    serving_end();
}

/* --- Waiting --- */

TEST(a_push_waits_for_the_others_of_its_step)
{
    begin(0, 1);
    serving.meanwhile = second_pushes;
    send_step(first, 0, 1);
    assert_true(serving_serve(first));
    for (int i = 0; i < 2; i++) {
        struct serving_session *one = i == 0 ? first : second;
        expect(one, PUSH_APPLIED);
        assert_int_equal(one->client.message.pushed.global_step, 1);
        assert_int_equal(one->client.message.pushed.token, 1);
        assert_int_equal(one->client.message.pushed.version, 2);
        assert_int_equal(one->client.message.pushed.staleness, 0);
        assert_int_equal(one->client.message.pushed.sequence, sequences[i]);
    }
    assert_true(parameter() == -2); /* the mean of both */
    assert_int_equal(serving.server.pushes, 2);
    assert_true(serving.server.last_loss == 0.5f);
    serving_end();
}

/* Meanwhile it counts as alive, and gets signs of life from the ps. */
TEST(who_waits_is_pinged)
{
    struct error error;
    int pings = 0;
    begin(0, 1);
    const double quarter_s = identity_idle_timeout_s(&serving.server.identity) / 4;
    then_s = serving.now_s + 2.5 * quarter_s;
    serving.meanwhile = second_pushes_late;
    send_step(first, 0, 1);
    assert_true(serving_serve(first));
    do {
        assert_true(channel_receive(&first->client, serving.now_s, &error));
        if (first->client.frame.type == MESSAGE_ping) {
            assert_int_equal(first->client.message.ping.nonce, first->session.incarnation);
            pings++;
        }
    } while (first->client.frame.type == MESSAGE_ping);
    assert_int_equal(first->client.frame.type, MESSAGE_pushed);
    assert_int_equal(pings, 2);
    serving_end();
}

static bool showed_waiting;

static void look_at_waiting(void)
{
    showed_waiting = showed_waiting || job_worker_state(&serving.server.job, 0) == STATE_WAITING;
    second_pushes_late();
}

TEST(who_waits_is_shown_as_waiting)
{
    begin(0, 1);
    showed_waiting = false;
    then_s = serving.now_s + 2;
    serving.meanwhile = look_at_waiting;
    send_step(first, 0, 1);
    assert_true(serving_serve(first));
    assert_true(showed_waiting);
    assert_int_not_equal(job_worker_state(&serving.server.job, 0), STATE_WAITING);
    serving_end();
}

/* The gradient stays: a repeated push is not added twice. */
TEST(who_waits_too_long_is_told_for_whom)
{
    begin(0, 1);
    const double began_s = serving.now_s;
    send_step(first, 0, 1);
    assert_true(serving_serve(first));
    assert_int_equal(outcome(first), -1 - ERROR_TOO_LATE);
    assert_non_null(strstr(first->client.message.error.message, "waiting for "));
    assert_true(serving.now_s >= began_s + SERVING_LEASE_S && serving.now_s < began_s + SERVING_LEASE_S + 1);
    const struct member who = {MEMBER_WORKER, 1};
    serving_hang_up(second);
    assert_int_equal(serving_admit(second, &who, 101, false), 0);
    serving.meanwhile = second_pushes;
    sequences[0]--;
    send_step(first, 0, 100);
    assert_true(serving_serve(first));
    expect(first, PUSH_APPLIED);
    expect(second, PUSH_APPLIED);
    assert_true(parameter() == -2);
    serving_end();
}

static void first_hangs_up(void)
{
    channel_close(&first->client);
}

TEST(who_hangs_up_is_not_waited_with)
{
    begin(0, 1);
    const double began_s = serving.now_s;
    serving.meanwhile = first_hangs_up;
    send_step(first, 0, 1);
    assert_false(serving_serve(first));
    assert_true(serving.now_s < began_s + 2);
    serving.meanwhile = NULL;
    serving_end();
}

static void the_ps_leaves(void)
{
    serving.server.leaving = true;
}

TEST(a_ps_that_leaves_lets_nobody_wait)
{
    begin(0, 1);
    const double began_s = serving.now_s;
    serving.meanwhile = the_ps_leaves;
    send_step(first, 0, 1);
    assert_false(serving_serve(first));
    assert_true(serving.now_s < began_s + 2);
    serving.meanwhile = NULL;
    serving_end();
}

static void first_restores(void)
{
    serving.meanwhile = NULL;
    assert_int_equal(begin_restore(2), 0);
}

TEST(a_restore_ends_the_wait)
{
    begin(0, 1);
    serving.meanwhile = first_restores;
    send_step(second, 0, 1);
    assert_true(serving_serve(second));
    assert_int_equal(outcome(second), -1 - ERROR_OLD_GENERATION);
    assert_int_equal(second->client.frame.generation, 2);
    serving_end();
}

static int waited_for_job; /* how often while the shard was past a step that the job had not heard of */

static void the_job_hears_of_it(void)
{
    waited_for_job += serving.server.job.stepping;
    serving.server.job.stepping = false;
}

/* A push may be of a step that the job will only hear of soon: it waits for that, and for nothing else. */
TEST(a_push_waits_until_the_job_is_at_its_step)
{
    static const struct {
        bool stepping, leaving;
        enum job_state state;
        int64_t token;
        int waits;
    } cases[] = {{true, false, JOB_TRAINING, 1, 1},
                 {false, false, JOB_TRAINING, 1, 0},
                 {true, true, JOB_TRAINING, 1, 0},
                 {true, false, JOB_DONE, 1, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        begin(0, 1);
        serving.server.job.stepping = cases[i].stepping;
        serving.server.leaving = cases[i].leaving;
        serving.server.job.state = cases[i].state;
        waited_for_job = 0;
        serving.meanwhile = the_job_hears_of_it;
        send_step(second, cases[i].token, 1);
        serving_serve(second);
        assert_int_equal(waited_for_job, cases[i].waits);
        serving.meanwhile = NULL;
        serving.server.job.stepping = false;
        serving_end();
    }
}

/* A job that does not train makes no step to wait for. */
TEST(a_step_is_waited_for_while_the_job_trains)
{
    begin(0, 1);
    assert_true(serve_is_at_step(&first->session, 0));
    assert_false(serve_is_at_step(&first->session, 1));
    serving.server.job.state = JOB_RESTORING;
    assert_true(serve_is_at_step(&first->session, 1));
    serving_end();
}

/* Of a round it is shown how far each worker agreed with the others, and how large its difference was. */
TEST(how_workers_agreed_is_noted)
{
    struct config *config = serving_config();
    config->cluster.issync = true;
    config->cluster.replicas_to_aggregate = config->cluster.min_replicas = 2;
    config->train.local_steps = 2;
    config->train.outer_learning_rate = 1;
    serving_begin(0);
    first = come(0);
    second = come(1);
    restore(1, 0);
    second->client.generation = 1;
    serving.meanwhile = second_pushes;
    send_step(first, 0, 1);
    assert_true(serving_serve(first));
    expect(first, PUSH_APPLIED);
    for (int i = 0; i < 2; i++) {
        const struct job_worker *worker = &serving.server.job.workers[i];
        assert_true(fabsf(worker->cosine - 1) < 1e-4f);
        assert_true(fabsf(worker->norm - (i == 0 ? 1.0f : 3.0f) * sqrtf(FEW)) < 1e-3f);
    }
    serving_end();
}

/* The answer says by how many steps it came too late, and has the current model. */
TEST(what_comes_too_late_is_stale)
{
    begin_synchronous(1);
    first = chief;
    second = come(1);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(push(first, (uint64_t)i + 1, i), PUSH_APPLIED);
    }
    const struct message_push late = {.sequence = 1, .base_step = 0, .token = 0};
    send_push(second, &late, 50);
    assert_true(serving_serve(second));
    expect(second, PUSH_STALE);
    assert_int_equal(second->client.message.pushed.staleness, 2);
    assert_int_equal(second->client.message.pushed.global_step, 3);
    assert_int_equal(serving.server.job.workers[0].staleness, 0);
    assert_int_equal(serving.server.job.workers[1].staleness, 3); /* since the step that it was computed at */
    assert_int_equal(serving.server.job.workers[1].stale, 1);
    assert_true(parameter() == -3);
    serving_end();
}

/* A malformed one leaves its step unchanged. */
TEST(nonsense_is_no_gradient)
{
    float values[2] = {1, 1};
    uint8_t bytes[RANGE_BYTES];
    begin(0, 1);
    range_put(bytes, 0, (struct range){1 << 20, 2});
    const struct message_push push = {.sequence = 1, .ranges = {bytes, 1}};
    first->client.generation = 1;
    first->client.next_request++;
    send_part(first, MESSAGE_push, &push, FRAME_LAST, values, 2);
    assert_false(serving_serve(first));
    assert_int_equal(outcome(first), -1 - ERROR_BAD_REQUEST);
    assert_non_null(strstr(first->client.message.error.message, "are not all held here"));
    assert_null(serving.server.stage_users[0]);
    assert_int_equal(aggregation_get(&serving.server.job.gathered, 0, 0), PART_MISSING);
    serving_end();
}

/* --- The deciding ps --- */

static struct serving_session *other;

/* The set of a step, as "0-1 3-3 "; or the code of an error. */
static const char *set_of(int64_t step, uint32_t wait_ms)
{
    static char text[100];
    const struct message_get_aggregate wanted = {.step = step, .wait_ms = wait_ms};
    const uint16_t code = ask(other, MESSAGE_get_aggregate, &wanted, MESSAGE_aggregate);
    snprintf(text, sizeof text, "error %u", code);
    if (code == 0) {
        const struct message_aggregate *aggregate = &other->client.message.aggregate;
        assert_int_equal(aggregate->step, step);
        text[0] = '\0';
        for (uint32_t i = 0; i < aggregate->workers.count; i++) {
            const struct range range = range_get(&aggregate->workers, i);
            snprintf(text + strlen(text), sizeof text - strlen(text), "%d-%d ", (int)range.first,
                     (int)(range.first + range.count - 1));
        }
    }
    return text;
}

static const char *error_text(enum error_code code)
{
    static char text[20];
    snprintf(text, sizeof text, "error %d", (int)code);
    return text;
}

/* The other ps has whole gradients of these workers. */
static void report(int64_t step, struct range finite)
{
    uint8_t bytes[RANGE_BYTES];
    struct message_staged staged = {.step = step};
    range_put(bytes, 0, finite);
    staged.finite = (struct ranges){bytes, 1};
    assert_int_equal(ask(other, MESSAGE_staged, &staged, MESSAGE_done), 0);
}

static void the_other_reports(void)
{
    serving.meanwhile = NULL;
    report(0, (struct range){0, SERVING_WORKERS});
}

static void push_everywhere(struct serving_session *one, int64_t token)
{
    sequences[0] = sequences[1] = (uint64_t)token;
    send_step(one, token, 1);
}

TEST(a_step_is_decided_once_every_ps_has_its_gradients)
{
    struct config *config = serving_config();
    config->cluster.issync = true;
    config->cluster.replicas_to_aggregate = 1;
    config->cluster.ps_hosts.count = SERVING_PS;
    serving_begin(0);
    first = come(0);
    restore(1, 0);
    second = come(1);
    other = come_as(3, MEMBER_PS, 1, false);
    other->client.generation = 1;
    assert_string_equal(set_of(0, 0), error_text(ERROR_TOO_LATE));
    assert_non_null(strstr(other->client.message.error.message, "not decided yet"));
    serving.meanwhile = the_other_reports;
    push_everywhere(second, 0);
    assert_true(serving_serve(second));
    expect(second, PUSH_APPLIED);
    assert_int_equal(other->client.message.done.global_step, 1);
    assert_string_equal(set_of(0, 0), "1-1 ");
    assert_string_equal(set_of(1, 0), error_text(ERROR_TOO_LATE));
    const double asked_s = serving.now_s;
    assert_string_equal(set_of(1, 3000), error_text(ERROR_TOO_LATE));
    assert_true(serving.now_s >= asked_s + 3 && serving.now_s < asked_s + 4);
    other->client.generation = 7;
    assert_string_equal(set_of(0, 3000), error_text(ERROR_OLD_GENERATION));
    assert_int_equal(other->client.frame.generation, 1);
    report(1, (struct range){0, 1}); /* of an old generation: no effect */
    assert_int_equal(aggregation_get(&serving.server.job.gathered, 1, 0), PART_MISSING);
    serving_end();
}

/* Workers with gaps between them. */
TEST(sets_have_gaps)
{
    begin(0, SERVING_PS);
    other = come_as(3, MEMBER_PS, 1, false);
    other->client.generation = 1;
    struct job *job = &serving.server.job;
    static const bool taken[][SERVING_WORKERS] = {{true, false, true, true}, {true, true, true, true}, {false, true}};
    static const char *const told[] = {"0-0 2-3 ", "0-3 ", "1-1 "};
    for (int i = 0; i < 3; i++) {
        job->last_set_step = 7;
        for (int k = 0; k < SERVING_WORKERS; k++) {
            job->last_set[k] = taken[i][k];
        }
        assert_string_equal(set_of(7, 0), told[i]);
    }
    serving_end();
}

static void decide_now(void)
{
    serving.meanwhile = NULL;
    serving.server.job.last_set_step = 0;
    serving.server.job.last_set[1] = 1;
}

static void the_other_hangs_up(void)
{
    channel_close(&other->client);
}

TEST(a_decision_is_waited_for)
{
    const struct message_get_aggregate wanted = {.step = 0, .wait_ms = 60000};
    begin(0, SERVING_PS);
    other = come_as(3, MEMBER_PS, 1, false);
    other->client.generation = 1;
    const double began_s = serving.now_s;
    serving.meanwhile = decide_now;
    assert_string_equal(set_of(0, 60000), "1-1 ");
    serving.server.job.last_set_step = -1;
    serving.meanwhile = first_restores;
    assert_string_equal(set_of(0, 60000), error_text(ERROR_OLD_GENERATION));
    other->client.generation = 2;
    serving.meanwhile = the_ps_leaves;
    send_request(other, MESSAGE_get_aggregate, &wanted);
    assert_false(serving_serve(other));
    serving.server.leaving = false;
    serving.meanwhile = the_other_hangs_up;
    send_request(other, MESSAGE_get_aggregate, &wanted);
    assert_false(serving_serve(other));
    assert_true(serving.now_s < began_s + 10);
    serving.meanwhile = NULL;
    serving_end();
}

/* --- A following ps --- */

static void it_is_decided(void)
{
    const bool taken[SERVING_WORKERS] = {true, false};
    if (aggregation_get(&serving.server.job.gathered, 0, 0) == PART_HERE) {
        serving.meanwhile = NULL;
        assert_true(job_apply_decision(&serving.server.job, 1, 0, taken));
    }
}

TEST(a_follower_waits_for_the_decision)
{
    begin(1, SERVING_PS);
    const struct span *spans;
    shard_spans(serving.server.shard, &spans);
    assert_true(serving.server.following);
    serving.meanwhile = it_is_decided;
    uint8_t bytes[RANGE_BYTES];
    const float value = 2;
    range_put(bytes, 0, (struct range){spans[0].first, 1});
    const struct message_push push = {.sequence = 1, .ranges = {bytes, 1}};
    first->client.generation = 1;
    first->client.next_request++;
    send_part(first, MESSAGE_push, &push, FRAME_LAST, &value, 1);
    assert_true(serving_serve(first));
    expect(first, PUSH_APPLIED);
    float now;
    struct error error;
    assert_true(shard_read(serving.server.shard, STORE_PARAMETERS, (struct range){spans[0].first, 1}, &now, &error));
    assert_true(now == -2);
    serving_end();
}

int main(void)
{
    return check_run(NULL, NULL);
}
