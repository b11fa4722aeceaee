/*
 * What workers report of validations, and what the chief receives, with the test's own ps: broken requests are
 * repeated, and the chief waits for missing workers, but not for ever.
 */
#include "worker/remote/exchange/requests.h"

#include "tests/check.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "tests/allocations.h"
#include "tests/worker/remote/fake_member.h"
#include "tests/worker/remote/story.h"

enum { NO_ANSWER = -1, OTHER_ANSWER = -2, HALF_AN_ANSWER = -3 };

/* How many allocations fail of the size into which worker 1's results are read. */
enum { FIRST_BYTES = sizeof "one" };
static atomic_int refused;

bool allocation_fails(size_t size, const void *place)
{
    return size == FIRST_BYTES && atomic_load(&refused) > 0 && atomic_fetch_sub(&refused, 1) > 0;
}

/* The ps, which answers one request at a time. */
static struct {
    struct fake_member member;
    int fails;        /* how the next request fails; 0: it does not */
    uint32_t missing; /* reported as missing, one fewer each time */
} ps;

static struct {
    struct config config;
    struct model model;
    struct identity identity;
    struct traffic traffic;
    struct push_pull exchange;
} bench;

static bool send_validation(struct channel *channel, const struct message_validation *message, char *text)
{
    struct error error;
    struct iovec bulk = {text, text ? strlen(text) : 0};
    const struct outgoing frame = {.type = MESSAGE_validation,
                                   .request = channel->frame.request,
                                   .message = message,
                                   .bulk = &bulk,
                                   .bulk_parts = text ? 1 : 0,
                                   .more = message->worker >= 0};
    return channel_send_frame(channel, &frame, fake_member_soon(), &error);
}

static bool answer_validate(struct channel *channel, bool breaks)
{
    const struct message_validate asked = channel->message.validate;
    char first[] = "one", second[] = "two";
    const struct message_validation one = {.worker = 1, .examples = 10, .score = 0.5f};
    const struct message_validation two = {.worker = 2, .examples = 20, .score = 0.25f};
    const struct message_validation last = {.worker = -1, .missing = ps.missing};
    tell("asked for step %d, %d rows, wait %u\n", (int)asked.step, (int)asked.examples, asked.wait_ms);
    ps.missing -= ps.missing > 0 && !breaks;
    return send_validation(channel, &one, first) && !breaks && send_validation(channel, &two, second) &&
           send_validation(channel, &last, NULL);
}

static bool answer_validated(struct channel *channel)
{
    const struct message_validated told = channel->message.validated;
    const struct message_done done = {.global_step = told.step};
    const size_t size = channel->bulk_left;
    char text[16] = "";
    struct error error;
    if (!channel_read_bulk(channel, text, size, fake_member_soon(), &error)) {
        return false;
    }
    tell("told of step %d, %d rows: %s\n", (int)told.step, (int)told.examples, text);
    return fake_member_say(channel, MESSAGE_done, &done);
}

static bool answer(struct fake_member *member, struct channel *channel)
{
    const int how = ps.fails;
    const struct message_pong pong = {1};
    ps.fails = 0;
    if (how > 0) {
        return fake_member_object(channel, (enum error_code)how);
    }
    if (how == NO_ANSWER || how == OTHER_ANSWER) {
        return how == OTHER_ANSWER && fake_member_say(channel, MESSAGE_pong, &pong);
    }
    return channel->frame.type == MESSAGE_validated ? answer_validated(channel)
                                                    : answer_validate(channel, how == HALF_AN_ANSWER);
}

static void begin(void)
{
    static struct hello_identity self;
    struct error error;
    memset(&bench, 0, sizeof bench);
    memset(&ps, 0, sizeof ps);
    fake_member_listen(&ps.member, MEMBER_PS, 0);
    const struct config_setting settings[] = {{"insecure", "true"},
                                              {"local", "false"},
                                              {"layers", "5,2"},
                                              {"ps_hosts", ps.member.host},
                                              {"worker_hosts", "127.0.0.1:1,127.0.0.1:2"},
                                              {"job_name", "worker"}};
    listen_in();
    if (!config_load(&bench.config, NULL, settings, sizeof settings / sizeof *settings, &error) ||
        !identity_create(&bench.identity, &bench.config, (struct member){MEMBER_WORKER, 0}, &error)) {
        fail_msg("%s", error.text);
    }
    self = bench.identity.hello;
    model_layout(&bench.model, &bench.config.model);
    const struct push_pull_options options = {
        .config = &bench.config, .model = &bench.model, .identity = &bench.identity, .traffic = &bench.traffic};
    assert_true(push_pull_create(&bench.exchange, &options, &error));
    fake_member_start(&ps.member, &self, answer);
    told();
}

static void end(void)
{
    push_pull_destroy(&bench.exchange);
    fake_member_stop(&ps.member);
    identity_destroy(&bench.identity);
    config_free(&bench.config);
    heard();
}

/* --- Reporting --- */

static enum exchange_result tell_of(int64_t step, struct error *error)
{
    const struct own_validation own = {.step = step, .examples = 30, .score = 0.75, .rises = true};
    uint8_t bytes[] = {'o', 'w', 'n'};
    return validations_report(&bench.exchange, &own, bytes, step > 1 ? sizeof bytes : 0, error);
}

TEST(telling)
{
    const int ways[] = {0, NO_ANSWER, OTHER_ANSWER};
    struct error error;
    (void)state;
    begin();
    for (int i = 0; i < 3; i++) {
        ps.fails = ways[i];
        assert_int_equal(tell_of(i + 1, &error), EXCHANGE_OK);
    }
    assert_string_equal(told(),
                        "told of step 1, 30 rows: \ntold of step 2, 30 rows: own\ntold of step 3, 30 rows: own\n");
    assert_int_equal(atomic_load(&ps.member.connections), 3);
    ps.fails = ERROR_OLD_GENERATION;
    assert_int_equal(tell_of(4, &error), EXCHANGE_REJOIN);
    ps.fails = ERROR_NOT_ALLOWED;
    assert_int_equal(tell_of(4, &error), EXCHANGE_FAILED);
    assert_non_null(strstr(error.text, "as the test wants"));
    end();
}

/* --- Gathering --- */

static void take_none(void *context)
{
    tell("begins\n");
}

static void take_one(void *context, int worker, int64_t examples, double score, const uint8_t *bytes, size_t size)
{
    tell("worker %d: %d rows, %g, %.*s\n", worker, (int)examples, score, (int)size, (const char *)bytes);
}

static enum exchange_result gather(double wait_s, int *missing, struct error *error)
{
    const struct validations_receiver taker = {take_none, take_one, NULL};
    const struct own_validation own = {.step = 7, .examples = 40, .score = 1, .rises = true};
    return validations_gather(&bench.exchange, &own, wait_s, &taker, missing, error);
}

TEST(gathering)
{
    struct error error;
    int missing;
    (void)state;
    begin();
    assert_int_equal(gather(60, &missing, &error), EXCHANGE_OK);
    assert_int_equal(missing, 0);
    const char *all = told();
    assert_non_null(strstr(all, "asked for step 7, 40 rows, wait 500\n"));
    assert_non_null(strstr(all, "worker 1: 10 rows, 0.5, one\nworker 2: 20 rows, 0.25, two\n"));
    ps.missing = 2;
    assert_int_equal(gather(60, &missing, &error), EXCHANGE_OK); /* asks until nobody is missing */
    assert_int_equal(missing, 0);
    assert_int_equal(times(told(), "wait 500"), 3);
    ps.missing = 2;
    assert_int_equal(gather(0, &missing, &error), EXCHANGE_OK); /* with what has arrived */
    assert_int_equal(missing, 2);
    assert_non_null(strstr(told(), "wait 0"));
    ps.missing = 0;
    ps.fails = HALF_AN_ANSWER; /* from the start again */
    assert_int_equal(gather(60, &missing, &error), EXCHANGE_OK);
    all = told();
    assert_int_equal(times(all, "begins"), 2);
    assert_int_equal(times(all, "worker 2"), 1);
    ps.fails = ERROR_NOT_ALLOWED;
    assert_int_equal(gather(60, &missing, &error), EXCHANGE_FAILED);
    assert_int_equal(missing, 0);
    end();
}

/* Results for which memory ran out don't count, and are not requested again and again. */
TEST(gathering_without_memory)
{
    struct error error;
    int missing;
    (void)state;
    begin();
    atomic_store(&refused, 1);
    assert_int_equal(gather(60, &missing, &error), EXCHANGE_OK);
    atomic_store(&refused, 0);
    const char *all = told();
    assert_int_equal(times(all, "asked for"), 1);
    assert_int_equal(times(all, "begins"), 1);
    assert_non_null(strstr(all, "worker 1: 10 rows, 0.5, \nworker 2: 20 rows, 0.25, two\n"));
    assert_int_equal(atomic_load(&ps.member.connections), 1);
    end();
}

int main(void)
{
    return check_run(NULL, NULL);
}
