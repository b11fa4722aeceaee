/* A ps whose memory runs short while it takes and gives what means nothing to it: nothing is kept or told by halves. */
#include "tests/check.h"
#include "tests/ps/server/asking.h"

#include "tests/no_memory.h"

enum { MOST_FAILURES = 100 };

static void begin(void)
{
    begin_synchronous(1);
    come(1)->client.generation = 1;
}

static bool has_failed; /* an allocation, at the last request */

/* What a worker sends, of which the n-th allocation of the ps fails; false: its session ends. */
static bool is_served(struct serving_session *one, enum message_type type, const void *message, float bulk, int nth)
{
    one->client.next_request++;
    send_part(one, type, message, FRAME_LAST, &bulk, bulk > 0);
    no_memory_from(nth, 1);
    const bool goes_on = serving_serve(one);
    has_failed = no_memory_end() >= nth;
    return goes_on;
}

static int lost; /* pieces that a test's ps has not kept */

/* Of four bytes; they are there, too, where it was the answer that there was no memory for. */
static void assert_kept(size_t size, bool done)
{
    assert_true(size == 4 || (size == 0 && !done));
    lost += size == 0;
}

static float bulk_of(struct serving_session *one)
{
    float bulk = 0;
    struct error error;
    if (one->client.bulk_left > 0) {
        assert_int_equal(one->client.bulk_left, sizeof bulk);
        assert_true(channel_read_bulk(&one->client, &bulk, sizeof bulk, serving.now_s, &error));
    }
    return bulk;
}

TEST(a_description_is_kept_and_told_whole)
{
    const struct message_describe tells = {.digest = (char *)(uintptr_t) "d1"},
                                  asks = {.digest = (char *)(uintptr_t) ""};
    int kept = 0, told = 0;
    lost = 0;
    for (bool done = false; !done; kept += !done) {
        begin();
        done = is_served(chief, MESSAGE_describe, &tells, 7, kept + 1);
        assert_kept(serving.server.description_size, done);
        assert_string_equal(serving.server.description_digest, serving.server.description ? "d1" : "");
        serving_end();
        assert_true(kept < MOST_FAILURES);
    }
    assert_true(kept > 0 && lost > 0);
    for (bool done = false; !done; told += !done) {
        begin();
        assert_true(is_served(chief, MESSAGE_describe, &tells, 7, MOST_FAILURES));
        done = is_served(&serving.sessions[1], MESSAGE_describe, &asks, 0, told + 1);
        if (done) {
            assert_int_equal(receive(&serving.sessions[1]), MESSAGE_description);
            assert_string_equal(serving.sessions[1].client.message.description.digest, "d1");
            assert_true(bulk_of(&serving.sessions[1]) == 7);
        }
        serving_end();
        assert_true(told < MOST_FAILURES);
    }
    assert_true(told > 0);
}

TEST(figures_are_kept_and_told_whole)
{
    const struct message_figures of_1 = {.worker = 1};
    int kept = 0, told = 0;
    lost = 0;
    for (bool done = false; !done; kept += !done) {
        begin();
        done = is_served(&serving.sessions[1], MESSAGE_figures, &of_1, 7, kept + 1);
        assert_kept(serving.server.figures_bytes, done);
        serving_end();
        assert_true(kept < MOST_FAILURES);
    }
    assert_true(kept > 0 && lost > 0);
    for (bool done = false; !done; told += !done) {
        begin();
        assert_true(is_served(&serving.sessions[1], MESSAGE_figures, &of_1, 7, MOST_FAILURES));
        done = is_served(chief, MESSAGE_figures, &of_1, 0, told + 1);
        if (done) {
            assert_int_equal(receive(chief), MESSAGE_figures);
            assert_true(bulk_of(chief) == 7);
        }
        serving_end();
        assert_true(told < MOST_FAILURES);
    }
    assert_true(told > 0);
}

/* The score is what counts: it is told also where there is no memory for what belongs to it. */
TEST(a_validation_is_kept_whole)
{
    const struct message_validated tells = {.step = 1, .examples = 20, .score = 0.25f, .rises = 1};
    const struct message_validate asks = {.step = 1, .examples = 10, .score = 0.5f, .rises = 1};
    int kept = 0, told = 0;
    lost = 0;
    for (bool done = false; !done; kept += !done) {
        begin();
        done = is_served(&serving.sessions[1], MESSAGE_validated, &tells, 7, kept + 1);
        assert_kept(serving.server.validation_bytes, done);
        assert_int_equal(serving.server.validations[1].examples, serving.server.validation_bytes > 0 ? 20 : 0);
        serving_end();
        assert_true(kept < MOST_FAILURES);
    }
    assert_true(kept > 0 && lost > 0);
    has_failed = true;
    lost = 0;
    for (; has_failed; told++) {
        begin();
        assert_true(is_served(&serving.sessions[1], MESSAGE_validated, &tells, 7, MOST_FAILURES));
        if (is_served(chief, MESSAGE_validate, &asks, 0, told + 1)) {
            assert_int_equal(receive(chief), MESSAGE_validation);
            assert_int_equal(chief->client.message.validation.worker, 1);
            assert_true(chief->client.message.validation.score == 0.25f);
            const float bulk = bulk_of(chief);
            assert_true(bulk == 7 || (bulk == 0 && has_failed));
            lost += bulk == 0;
            assert_int_equal(receive(chief), MESSAGE_validation);
            assert_int_equal(chief->client.message.validation.worker, -1);
        }
        serving_end();
        assert_true(told < MOST_FAILURES);
    }
    assert_int_equal(lost, 1);
}

int main(void)
{
    return check_run(NULL, NULL);
}
