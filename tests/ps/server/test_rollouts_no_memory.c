/* ps 0 leads a rollout while its memory runs short: nothing begins by halves, and the next attempt succeeds. */
#include "tests/check.h"
#include "tests/ps/server/leading.h"

#include "tests/no_memory.h"

enum { MOST_FAILURES = 2000 };

static struct error error;

/* One request, of which the n-th allocation of the ps fails; the type of its answer, 0: its session ended. */
static uint16_t ask_without_memory(struct serving_session *one, enum message_type type, const void *message,
                                   const void *bytes, size_t size, int nth)
{
    send_bulk(one, type, message, bytes, size);
    no_memory_from(nth, 1);
    const bool goes_on = serving_serve(one);
    no_memory_end();
    if (!goes_on) {
        return 0;
    }
    assert_true(channel_receive(&one->client, serving.now_s, &error));
    return one->client.frame.type;
}

TEST_WITH(a_leader_begins_or_says_why_not, enter, leave)
{
    int failures = 0;
    begin(0, text_of(1, 0.5, ""));
    operator_comes();
    all_come();
    sign(1, 0.5, 2, 0.25, "", secret_key);
    accepted();
    pass(0.25);
    for (bool done = false; !done; failures += !done) {
        coordinator_destroy(coordinator);
        coordinator = NULL;
        error.text[0] = '\0';
        no_memory_from(failures + 1, 1);
        done = coordinator_create(&coordinator, &serving.server, &error);
        no_memory_end();
        assert_true(done || error.text[0] != '\0');
        assert_true(failures < MOST_FAILURES);
    }
    assert_true(failures >= 1 + 2); /* members; the record and the manifest */
    serving.server.coordinator = coordinator;
    assert_string_equal(coordinator->rollout.reason, "ps 0 was restarted while the rollout was staging");
    end();
}

TEST_WITH(a_proposal_is_taken_or_refused, enter, leave)
{
    const struct message_propose message = {.healthy_s = 3};
    int nth = 1, refusals = 0;
    begin(0, text_of(1, 0.5, ""));
    operator_comes();
    all_come();
    sign(1, 0.5, 2, 0.25, "", secret_key);
    while (coordinator->rollout.state == ROLLOUT_IDLE) {
        struct serving_session *one = &serving.sessions[OPERATOR];
        const uint16_t answer = ask_without_memory(one, MESSAGE_propose, &message, proposal, proposal_size, nth);
        assert_int_equal(answer == MESSAGE_done, coordinator->rollout.state == ROLLOUT_STAGING);
        assert_int_equal(coordinator->highest, answer == MESSAGE_done ? 2 : 0);
        assert_false(coordinator->proposing);
        refusals += answer == MESSAGE_error;
        if (answer == 0) {
            serving_hang_up(one);
            operator_comes();
        }
        nth++;
        assert_true(nth < MOST_FAILURES);
    }
    assert_true(refusals > 0); /* while it was read, checked and stored */
    end();
}

/* A member that gets an order without its manifest asks again. */
TEST_WITH(a_manifest_comes_whole_or_not, enter, leave)
{
    int failures = 0;
    begin(0, text_of(1, 0.5, ""));
    operator_comes();
    all_come();
    sign(1, 0.5, 2, 0.25, "", secret_key);
    accepted();
    pass(0.25);
    const struct message_report says = report_of(1);
    for (size_t size = 0; size == 0;) {
        const uint16_t answer = ask_without_memory(&serving.sessions[1], MESSAGE_report, &says, NULL, 0, ++failures);
        size = answer == MESSAGE_rollout ? serving.sessions[1].client.bulk_left : 0;
        if (answer == 0) {
            serving_hang_up(&serving.sessions[1]);
            come(1, MEMBER_WORKER, 1, true);
        } else {
            assert_int_equal(serving.sessions[1].client.message.rollout.order, ORDER_STAGE);
        }
        assert_true(size == 0 || size == proposal_size);
        assert_true(failures < MOST_FAILURES);
    }
    assert_true(failures > 1);
    const struct message_report question = {
        .loss = -1, .digest = (char *)(uintptr_t) "", .message = (char *)(uintptr_t) ""};
    for (int nth = 1, answered = 0; answered < 2; nth++) { /* what an operator is told lacks at most what there was no
                                                              memory for */
        struct serving_session *one = &serving.sessions[OPERATOR];
        const uint16_t answer = ask_without_memory(one, MESSAGE_report, &question, NULL, 0, nth);
        if (answer == 0) {
            serving_hang_up(one);
            operator_comes();
            continue;
        }
        assert_int_equal(one->client.message.rollout.state, ROLLOUT_STAGING);
        const bool is_whole = one->client.bulk_left == proposal_size &&
                              one->client.message.rollout.members[0] != '\0' &&
                              one->client.message.rollout.job[0] != '\0';
        answered += is_whole;
        if (one->client.bulk_left > 0) {
            const uint8_t *bytes;
            bulk_of(one, &bytes);
        }
        assert_true(nth < MOST_FAILURES);
    }
    end();
}

int main(void)
{
    return check_run(NULL, NULL);
}
