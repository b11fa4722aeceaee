/* How a worker handles batches that are late, missing, or invalid: the chief is the test's own server. */
#include "tests/check.h"
#include "tests/system.h"
#include "tests/worker/remote/fetching.h"

static bool has_no_thread;

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *context)
{
    return has_no_thread ? EAGAIN : SYSTEM(pthread_create)(thread, attributes, run, context);
}

/* --- A server of the test's own --- */

struct manner {
    int64_t off; /* added to a batch's number */
    int label, images;
    uint32_t total, validation, pixels;
    int cut_after; /* batches; then the connection ends; -1: never */
    bool objects, answers_pong;
};

static const struct manner well = {.label = 1, .images = BATCH, .total = IMAGES, .pixels = PIXELS, .cut_after = -1};

static struct {
    struct fake_member member;
    struct manner ill; /* how it answers a request for batches from this one on, once; -1: none */
    atomic_llong ill_at;
    atomic_bool silent;
    atomic_ullong sent; /* bytes, on the last connection */
    atomic_int answers;
} fake;

/* The next request for batches from `number` on is answered like that. Earlier requests are answered well. */
static void misbehave(int64_t number, struct manner ill)
{
    fake.ill = ill;
    atomic_store(&fake.ill_at, number);
}

static bool reply(struct channel *channel)
{
    const struct message_get_batches asked = channel->message.get_batches;
    const uint64_t request = channel->frame.request;
    const struct message_pong pong = {1};
    long long at = asked.first;
    const struct manner does = atomic_compare_exchange_strong(&fake.ill_at, &at, -1) ? fake.ill : well;
    struct error error;
    tell("asks %u from %lld\n", asked.count, (long long)asked.first);
    if (does.objects) {
        return fake_member_object(channel, ERROR_INTERNAL);
    }
    if (atomic_load(&fake.silent) || does.answers_pong) {
        return !does.answers_pong || fake_member_say(channel, MESSAGE_pong, &pong);
    }
    struct message_batch batch = {
        .pixels = does.pixels, .total = does.total, .validation = does.validation, .description = "d", .number = -1};
    if (asked.count == 0) {
        return fake_member_say(channel, MESSAGE_batch, &batch);
    }
    for (uint32_t i = 0; i < asked.count; i++) {
        uint8_t bytes[64 * (2 + PIXELS)] = {0};
        batch.number = asked.first + i + does.off;
        batch.examples = (uint32_t)does.images;
        for (int k = 0; k < does.images; k++) {
            put_le16(bytes + 2 * k, (uint16_t)does.label);
            memset(bytes + 2 * does.images + k * PIXELS, (int)batch.number, PIXELS);
        }
        struct iovec bulk = {bytes, batch_bytes((size_t)does.images, does.pixels)};
        const struct outgoing frame = {.type = MESSAGE_batch,
                                       .request = request,
                                       .message = &batch,
                                       .bulk = &bulk,
                                       .bulk_parts = 1,
                                       .more = i + 1 < asked.count};
        if ((int)i == does.cut_after || !channel_send_frame(channel, &frame, fake_member_soon(), &error)) {
            connection_flush(channel->connection, fake_member_soon(), &error);
            return false;
        }
    }
    return true;
}

static bool answer(struct fake_member *member, struct channel *channel)
{
    const bool good = reply(channel);
    atomic_store(&fake.sent, connection_bytes_out(channel->connection));
    atomic_fetch_add(&fake.answers, 1);
    return good;
}

/* Waits until the fetcher has received that many answers in full. */
static void await_arrival(int answers)
{
    const double until_s = story_s() + STORY_PATIENCE_S;
    while ((atomic_load(&fake.answers) < answers || atomic_load(&bench.traffic.bytes_in) < atomic_load(&fake.sent)) &&
           story_s() < until_s) {
        usleep(1000);
    }
    assert_int_equal(atomic_load(&fake.answers), answers);
    assert_int_equal(atomic_load(&bench.traffic.bytes_in), atomic_load(&fake.sent));
}

static void begin_faked(void)
{
    memset(&fake, 0, sizeof fake);
    fake_member_listen(&fake.member, MEMBER_WORKER, 0);
    atomic_store(&fake.ill_at, -1);
    begin("2", socket_port(fake.member.listener));
    create_fetcher();
    told();
}

static void start_fake(void)
{
    fake_member_start(&fake.member, &bench.chief_identity.hello, answer);
}

static void end_faked(void)
{
    fake_member_stop(&fake.member); /* first: nobody waits for an answer any more */
    batch_fetcher_destroy(bench.fetcher);
    bench.fetcher = NULL;
    end();
}

static void ask(void)
{
    struct batch_fetcher_facts facts;
    struct error error;
    assert_int_equal(batch_fetcher_ask(bench.fetcher, &facts, &error), EXCHANGE_OK);
}

static void take_of_fake(int64_t number)
{
    struct batch batch;
    struct error error;
    assert_int_equal(batch_fetcher_take(bench.fetcher, number, &batch, &error), EXCHANGE_OK);
    assert_int_equal(batch.count, BATCH);
    assert_int_equal(batch.examples->labels[3], 1);
    assert_int_equal(batch.examples->images[BATCH * PIXELS - 1], number);
}

/* Six ahead at most, three at a time; a number out of sequence starts over. */
TEST(how_far_ahead)
{
    begin_faked();
    start_fake();
    ask();
    usleep(30000);
    assert_string_equal(told(), "asks 0 from 0\n"); /* none is wanted yet */
    take_of_fake(4);
    await_arrival(3);
    usleep(30000);
    assert_string_equal(told(), "asks 3 from 4\nasks 3 from 7\n");
    take_of_fake(5);
    take_of_fake(6);
    usleep(30000);
    assert_string_equal(told(), "");
    take_of_fake(7);
    assert_true(await_told("asks 3 from 10\n"));
    assert_string_equal(told(), "asks 3 from 10\n");
    take_of_fake(7); /* once more: it is still there */
    assert_string_equal(told(), "");
    take_of_fake(50);
    assert_true(await_told("asks 3 from 53\n"));
    take_of_fake(49);
    assert_true(await_told("asks 3 from 49\n"));
    take_of_fake(50);
    end_faked();
}

/* Whatever fails on a connection, another one brings the wanted batch. */
TEST(nonsense)
{
    begin_faked();
    start_fake();
    misbehave(0, (struct manner){.answers_pong = true});
    ask(); /* and again */
    misbehave(0, (struct manner){.objects = true});
    take_of_fake(0);
    const int wrongs = 10;
    for (int i = 0; i < wrongs; i++) {
        const int before = atomic_load(&fake.member.connections);
        struct manner ill = well;
        ill.off = i == 0;
        ill.label = i == 1 ? CLASSES : 1;
        ill.images = i == 2 ? BATCH + 1 : i == 6 ? 0 : BATCH;
        ill.total = i == 3 ? 0 : i == 7 ? (uint32_t)INT32_MAX + 1 : IMAGES;
        ill.validation = i == 8 ? (uint32_t)INT32_MAX + 1 : 0;
        ill.pixels = i == 9 ? PIXELS - 1 : PIXELS;
        ill.answers_pong = i == 4;
        ill.cut_after = i == 5 ? 1 : -1;
        misbehave(20 * (i + 1), ill);
        take_of_fake(20 * (i + 1));
        AWAIT(atomic_load(&fake.member.connections) == before + 1);
    }
    assert_int_equal(atomic_load(&bench.traffic.retries), wrongs + 2);
    struct manner many = well; /* as many as there may be */
    many.total = many.validation = INT32_MAX;
    misbehave(20 * (wrongs + 1), many);
    take_of_fake(20 * (wrongs + 1));
    assert_int_equal(atomic_load(&bench.traffic.retries), wrongs + 2);
    end_faked();
}

/* Batches with more images than the images are wide fit on both sides. */
TEST(long_batches)
{
    struct batch_fetcher_facts facts;
    struct batch batch;
    struct error error;
    batch_size = "30";
    begin_served("2");
    create_fetcher();
    assert_int_equal(batch_fetcher_ask(bench.fetcher, &facts, &error), EXCHANGE_OK);
    assert_int_equal(batch_fetcher_take(bench.fetcher, 0, &batch, &error), EXCHANGE_OK);
    assert_int_equal(batch.count, IMAGES);
    end();
    batch_size = "64";
    begin_faked();
    start_fake();
    ask();
    struct manner large = well;
    large.images = 64;
    misbehave(0, large);
    assert_int_equal(batch_fetcher_take(bench.fetcher, 0, &batch, &error), EXCHANGE_OK);
    assert_int_equal(batch.count, 64);
    assert_int_equal(batch.examples->labels[63], 1);
    end_faked();
    batch_size = "4";
}

/* A refusal is final; given_up ends a wait, and a wait is logged. */
TEST(no_batches)
{
    struct batch_fetcher_facts facts;
    struct batch batch;
    struct error error;
    begin_faked();
    atomic_store(&fake.member.refusal, REFUSAL_MEMBER);
    start_fake();
    assert_int_equal(batch_fetcher_ask(bench.fetcher, &facts, &error), EXCHANGE_FAILED);
    atomic_store(&bench.given_up, true);
    assert_int_equal(batch_fetcher_ask(bench.fetcher, &facts, &error), EXCHANGE_FAILED);
    end_faked();
    begin_faked();
    start_fake();
    ask();
    atomic_store(&fake.silent, true);
    atomic_store(&bench.given_up, true);
    assert_int_equal(batch_fetcher_take(bench.fetcher, 3, &batch, &error), EXCHANGE_STOPPED);
    end_faked();
    begin_faked();
    start_fake();
    ask();
    take_of_fake(0);
    atomic_store(&fake.member.refusal, REFUSAL_MEMBER);
    atomic_store(&fake.member.cut, true);
    enum exchange_result how = EXCHANGE_OK;
    for (int64_t number = 1; number < 20 && how == EXCHANGE_OK; number++) {
        how = batch_fetcher_take(bench.fetcher, number, &batch, &error);
    }
    assert_int_equal(how, EXCHANGE_FAILED);
    assert_non_null(strstr(error.text, "as the test wants"));
    end_faked();
}

/* Without a thread that fetches there is nothing to wait for. */
TEST(no_thread)
{
    struct batch_fetcher_facts facts;
    struct error error;
    begin_faked();
    start_fake();
    has_no_thread = true;
    const enum exchange_result how = batch_fetcher_ask(bench.fetcher, &facts, &error);
    has_no_thread = false;
    assert_int_equal(how, EXCHANGE_FAILED);
    assert_string_equal(error.text, "can't start a thread to fetch batches");
    ask(); /* there is one later */
    take_of_fake(0);
    end_faked();
}

static void *jump(void *context)
{
    for (int i = 0; i < 60000 && !was_told("asks 3 from 0\n"); i++) {
        usleep(1000);
    }
    atomic_store(&jumped_s, 12);
    return NULL;
}

/* A long wait is logged, once in ten seconds. */
TEST(long_waits_are_told)
{
    static char words[] = " to send batch 0, 1";
    pthread_t thread;
    begin_faked();
    start_fake();
    ask();
    fake.silent = true;
    assert_int_equal(pthread_create(&thread, NULL, jump, NULL), 0);
    take_none(words);
    pthread_join(thread, NULL);
    assert_int_equal(times(heard_so_far(), "waiting for worker 0 (127.0.0.1:"), 1);
    end_faked();
}

int main(void)
{
    return check_run(NULL, NULL);
}
