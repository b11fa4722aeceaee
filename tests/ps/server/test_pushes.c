/* Pushes frame by frame, and what a liar may say of synchronous steps. */
#include "tests/check.h"
#include "tests/ps/server/asking.h"

/* --- Pushes --- */

static void push_of_the_slowest(void)
{
    serving.meanwhile = NULL;
    assert_int_equal(push(&serving.sessions[1], 1, 0), PUSH_APPLIED);
}

/* The answer is what the push itself left, unless it had to wait for others: then theirs is in it as well. */
TEST(test_an_answer_is_given_at_once_or_is_fresh)
{
    serving_config()->cluster.max_staleness = 1;
    serving_begin(0);
    struct serving_session *fast = come(0);
    come(1);
    restore(1, 0);
    const struct message_pull pull = {.after_step = -1, .wait_ms = 0};
    for (int i = 0; i < 2; i++) { /* both take part */
        serving.sessions[i].client.generation = 1;
        assert_int_equal(ask(&serving.sessions[i], MESSAGE_pull, &pull, MESSAGE_values), 0);
    }
    assert_int_equal(push(fast, 1, 0), PUSH_APPLIED);
    assert_int_equal(fast->client.message.pushed.version, 2);
    const struct message_push second = {.sequence = 2};
    serving.meanwhile = push_of_the_slowest;
    send_push(fast, &second, 1);
    assert_true(serving_serve(fast));
    assert_int_equal(outcome(fast), PUSH_APPLIED);
    assert_int_equal(fast->client.message.pushed.version, 4); /* the slow one's is the fourth change */
    serving_end();
}

TEST(test_frames_of_a_push_belong_together)
{
    static const struct {
        enum message_type type;
        uint64_t sequence, request;
        uint32_t generation;
    } next[] = {{MESSAGE_push, 1, 0, 2}, {MESSAGE_push, 2, 0, 1}, {MESSAGE_push, 1, 1, 1}, {MESSAGE_ping, 1, 0, 1}};
    serving_config();
    serving_begin(0);
    come(0);
    restore(1, 0);
    for (size_t i = 0; i < sizeof next / sizeof next[0]; i++) {
        struct serving_session *one = come(1);
        const struct message_push first = {.sequence = 1}, second = {.sequence = next[i].sequence};
        const struct message_ping ping = {.nonce = 1};
        one->client.generation = 1;
        one->client.next_request++;
        send_part(one, MESSAGE_push, &first, 0, NULL, 0);
        one->client.generation = next[i].generation;
        one->client.next_request += next[i].request;
        const void *message = next[i].type == MESSAGE_ping ? (const void *)&ping : &second;
        send_part(one, next[i].type, message, FRAME_LAST, NULL, 0);
        assert_false(serving_serve(one));
        assert_int_equal(receive(one), MESSAGE_error);
        assert_int_equal(one->client.message.error.code, ERROR_BAD_REQUEST);
        serving_hang_up(one);
    }
    assert_int_equal(serving.server.job.global_step, 0);
    serving_end();
}

/* Nothing that follows is read: the sender learns at once what was wrong. */
TEST(test_nonsense_ends_a_push_before_its_last_frame)
{
    float values[2] = {1, 1};
    uint8_t bytes[RANGE_BYTES];
    serving_config();
    serving_begin(0);
    come(0);
    restore(1, 0);
    struct serving_session *one = come(1);
    range_put(bytes, 0, (struct range){1 << 20, 2});
    const struct message_push push = {.sequence = 1, .ranges = {bytes, 1}};
    one->client.generation = 1;
    one->client.next_request++;
    send_part(one, MESSAGE_push, &push, 0, values, 2);
    const double began_s = serving.now_s;
    assert_false(serving_serve(one));
    assert_int_equal(outcome(one), -1 - ERROR_BAD_REQUEST);
    assert_non_null(strstr(one->client.message.error.message, "are not all held here"));
    assert_true(serving.now_s == began_s);
    serving_end();
}

static struct serving_session *stalled;

/* As the thread of a session whose connection was cut off. */
static void leave_stage_if_cut(void)
{
    if (stalled->session.base.disconnected) {
        serving.server.stage_users[1] = NULL;
    }
}

/* A push that begins means that an earlier one on another connection was given up; a pull means nothing of the kind. */
TEST(test_a_push_cuts_off_the_one_before_it)
{
    serving_config();
    serving_begin(0);
    come(0);
    restore(1, 0);
    stalled = come(1);
    struct serving_session *again = &serving.sessions[2];
    const struct member who = {MEMBER_WORKER, 1};
    assert_int_equal(serving_admit(again, &who, stalled->session.incarnation, false), 0);
    serving.server.stage_users[1] = &stalled->session;
    serving.meanwhile = leave_stage_if_cut;
    const struct message_pull pull = {.after_step = -1};
    again->client.generation = 1;
    send_request(again, MESSAGE_pull, &pull);
    assert_false(serving_serve(again)); /* it waits in vain */
    assert_false(stalled->session.base.disconnected);
    serving_hang_up(again);
    assert_int_equal(serving_admit(again, &who, stalled->session.incarnation, false), 0);
    again->client.generation = 1;
    assert_int_equal(push(again, 1, 0), PUSH_APPLIED);
    assert_true(stalled->session.base.disconnected);
    assert_null(serving.server.stage_users[1]);
    serving.meanwhile = NULL;
    serving_end();
}

/* Of a gradient that another ps must refuse, no part is applied here. */
TEST(test_an_asynchronous_loss_that_is_not_finite_counts_too)
{
    serving_config();
    serving_begin(0);
    come(0);
    restore(1, 0);
    struct serving_session *worker = come(1);
    worker->client.generation = 1;
    const struct message_push message = {.sequence = 1, .loss = INFINITY};
    send_push(worker, &message, 1);
    serving_serve(worker);
    assert_int_equal(outcome(worker), PUSH_NOT_FINITE);
    assert_int_equal(serving.server.job.global_step, 0);
    assert_int_equal(push(worker, 2, 0), PUSH_APPLIED);
    serving_end();
}

/* --- Synchronous steps --- */

TEST(test_a_synchronous_push_cuts_off_the_one_before_it)
{
    begin_synchronous(1);
    stalled = come(1);
    struct serving_session *again = &serving.sessions[2];
    const struct member who = {MEMBER_WORKER, 1};
    assert_int_equal(serving_admit(again, &who, stalled->session.incarnation, false), 0);
    serving.server.stage_users[1] = &stalled->session;
    const struct message_push first = {.sequence = 1};
    send_push(again, &first, 1);
    assert_false(serving_serve(again)); /* in vain, if the other never ends */
    serving_hang_up(again);
    assert_int_equal(serving_admit(again, &who, stalled->session.incarnation, false), 0);
    serving.meanwhile = leave_stage_if_cut;
    assert_int_equal(push(again, 1, 0), PUSH_APPLIED);
    assert_true(stalled->session.base.disconnected);
    assert_null(serving.server.stage_users[1]);
    serving.meanwhile = NULL;
    serving_end();
}

TEST(test_a_loss_that_is_not_finite_counts_as_the_gradient)
{
    begin_synchronous(1);
    struct serving_session *worker = come(1);
    struct message_push message = {.sequence = 1, .loss = NAN};
    send_push(worker, &message, 1);
    serving.config.cluster.min_replicas = 1;
    serving.server.job.gathered.least = SERVING_WORKERS; /* so that nobody waits for another of its */
    serving_serve(worker);
    assert_int_equal(outcome(worker), PUSH_NOT_FINITE);
    assert_int_equal(serving.server.job.workers[1].not_finite, 1);
    assert_int_equal(serving.server.job.global_step, 0);
    serving.server.job.gathered.least = 1;
    assert_int_equal(push(worker, 2, 0), PUSH_APPLIED);
    assert_true(parameter() == -1);
    serving_end();
}

TEST(test_reports_name_workers_that_there_are)
{
    static const struct {
        struct range range;
        bool fine;
    } named[] = {{{0, SERVING_WORKERS}, true},      {{SERVING_WORKERS - 1, 1}, true},  {{SERVING_WORKERS, 1}, false},
                 {{SERVING_WORKERS - 1, 2}, false}, {{0, SERVING_WORKERS + 1}, false}, {{UINT64_MAX - 5, 5}, false},
                 {{1, UINT32_MAX}, false}};
    begin_synchronous(SERVING_PS);
    for (size_t i = 0; i < sizeof named / sizeof named[0]; i++) {
        for (int which = 0; which < 2; which++) {
            uint8_t bytes[RANGE_BYTES];
            struct serving_session *other = come_as(3, MEMBER_PS, 1, false);
            struct message_staged staged = {.step = 5}; /* of no step that is gathered */
            range_put(bytes, 0, named[i].range);
            *(which == 0 ? &staged.finite : &staged.not_finite) = (struct ranges){bytes, 1};
            other->client.generation = 1;
            assert_int_equal(ask(other, MESSAGE_staged, &staged, MESSAGE_done), named[i].fine ? 0 : ERROR_BAD_REQUEST);
            serving_hang_up(other);
        }
    }
    serving_end();
}

int main(void)
{
    return check_run(NULL, NULL);
}
