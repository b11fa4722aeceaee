/*
 * Batches from worker 0: what its server sends is what each worker would have drawn itself; what its clients ask for,
 * how far ahead, and how they bear a server that sends nonsense, breaks off, or is not there.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/random/sampler.h"
#include "net/bytes.h"
#include "tests/locks.h"
#include "tests/worker/remote/fake_member.h"
#include "tests/worker/remote/story.h"
#include "worker/data/streaming/streaming.h"
#include "worker/data/table/schema.h"
#include "worker/remote/batch_fetcher.h"
#include "worker/remote/data_server.h"
#include "worker/remote/exchange/preprocessing.h"

enum { PIXELS = 6, CLASSES = 3, IMAGES = 30, BATCH = 4 };

static _Atomic(double) jumped_s;

double __real_clock_monotonic_s(void);
double __wrap_clock_monotonic_s(void);

double __wrap_clock_monotonic_s(void)
{
    return __real_clock_monotonic_s() + atomic_load(&jumped_s);
}

/*
 * Whoever waits with a deadline waits until it is told, or for twenty seconds more: then the test fails. So nothing is
 * found out by a look now and then that somebody should have been told of.
 */
static atomic_bool without_looks;

int __real_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until);
int __wrap_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until);

int __wrap_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until)
{
    struct timespec later = *until;
    if (!atomic_load(&without_looks)) {
        return __real_pthread_cond_timedwait(condition, mutex, until);
    }
    later.tv_sec += 20;
    const int result = __real_pthread_cond_timedwait(condition, mutex, &later);
    if (result == ETIMEDOUT) {
        fprintf(stderr, "somebody was not told\n");
        abort();
    }
    return result;
}

static const char *batch_size = "4"; /* BATCH but where a test has larger ones */

static struct bench {
    struct config config;
    struct identity identity, chief_identity;
    struct traffic traffic;
    struct dataset dataset;
    struct data_server *server;
    struct batch_fetcher *fetcher;
    atomic_bool given_up;
} bench;

static bool given_up(void *context)
{
    return atomic_load(&((struct bench *)context)->given_up);
}

static bool knows(void *context, const char *digest)
{
    assert_ptr_equal(context, &bench);
    return strcmp(digest, "coming") == 0;
}

/* Worker `index` of three; worker 0 at this port. */
static void begin(const char *index, int port)
{
    char hosts[80];
    struct error error;
    memset(&bench, 0, sizeof bench);
    atomic_store(&jumped_s, 0);
    snprintf(hosts, sizeof hosts, "127.0.0.1:%d,127.0.0.1:2,127.0.0.1:3", port);
    const struct config_setting settings[] = {{"insecure", "true"},    {"layers", "6,3"},    {"batch_size", batch_size},
                                              {"worker_hosts", hosts}, {"ps_hosts", "a:1"},  {"job_name", "worker"},
                                              {"task_index", index},   {"bind", "127.0.0.1"}};
    listen_in();
    if (!config_load(&bench.config, NULL, settings, 8, &error) ||
        !identity_create(&bench.identity, &bench.config, (struct member){MEMBER_WORKER, index[0] - '0'}, &error) ||
        !identity_create(&bench.chief_identity, &bench.config, (struct member){MEMBER_WORKER, 0}, &error)) {
        fail_msg("%s", error.text);
    }
}

/* like: of rows; NULL: pictures. */
static void create_feed_of(const struct examples *like)
{
    struct error error;
    const struct batch_fetcher_options options = {.config = &bench.config,
                                                  .like = like,
                                                  .identity = &bench.identity,
                                                  .traffic = &bench.traffic,
                                                  .given_up = given_up,
                                                  .context = &bench};
    if (!batch_fetcher_create(&bench.fetcher, &options, &error)) {
        fail_msg("%s", error.text);
    }
}

static void create_fetcher(void)
{
    create_feed_of(NULL);
}

static void end(void)
{
    batch_fetcher_destroy(bench.fetcher);
    data_server_destroy(bench.server);
    examples_free(&bench.dataset.train);
    identity_destroy(&bench.identity);
    identity_destroy(&bench.chief_identity);
    config_free(&bench.config);
    heard();
}

/* --- The server --- */

static int free_port(void)
{
    struct error error;
    int fd;
    assert_true(socket_listen(&fd, "127.0.0.1", 0, &error));
    const int port = socket_port(fd);
    close(fd);
    return port;
}

static void begin_served(const char *index)
{
    struct examples *train = &bench.dataset.train;
    struct error error;
    begin(index, free_port());
    *train = (struct examples){.count = IMAGES, .height = 2, .width = 3, .classes = CLASSES};
    train->images = calloc(IMAGES, PIXELS);
    train->labels = calloc(IMAGES, sizeof *train->labels);
    for (int i = 0; i < IMAGES; i++) {
        train->labels[i] = i % CLASSES;
        memset(train->images + i * PIXELS, i, PIXELS);
    }
    bench.dataset.validation.count = 7;
    snprintf(bench.dataset.description, sizeof bench.dataset.description, "thirty images");
    if (!data_server_create(&bench.server, &bench.config, &bench.chief_identity, &bench.dataset, knows, &bench,
                            &error)) {
        fail_msg("%s", error.text);
    }
}

/* Batch `number` is what worker 2 would have drawn. */
static void take(int64_t number)
{
    const struct sampler sampler = {
        .seed = (uint64_t)bench.config.train.seed, .task = 2, .examples = IMAGES, .batch_size = BATCH};
    int32_t wanted[BATCH];
    struct batch batch;
    struct error error;
    assert_int_equal(batch_fetcher_take(bench.fetcher, number, &batch, &error), EXCHANGE_OK);
    assert_int_equal(batch.count, sampler_draw(&sampler, number, wanted));
    assert_int_equal(batch.examples->count, batch.count);
    for (int i = 0; i < batch.count; i++) {
        uint8_t image[PIXELS];
        memset(image, wanted[i], PIXELS);
        assert_int_equal(batch.indexes[i], i);
        assert_int_equal(batch.examples->labels[i], wanted[i] % CLASSES);
        assert_memory_equal(batch.examples->images + i * PIXELS, image, PIXELS);
    }
}

/* In order and out of it, short ones at the end of an epoch too. */
static void batches_as_if_drawn_here(void **state)
{
    struct batch_fetcher_facts facts;
    struct error error;
    (void)state;
    begin_served("2");
    create_fetcher();
    atomic_store(&without_looks, true);
    assert_int_equal(batch_fetcher_ask(bench.fetcher, &facts, &error), EXCHANGE_OK);
    assert_int_equal(facts.train, IMAGES);
    assert_int_equal(facts.validation, 7);
    assert_string_equal(facts.description, "from worker 0: thirty images");
    for (int64_t number = 0; number < 20; number++) {
        take(number);
    }
    take(19);
    take(21);
    take(100);
    take(5);
    take(6);
    assert_true(atomic_load(&bench.traffic.bytes_in) > 20 * BATCH * PIXELS);
    assert_int_equal(atomic_load(&bench.traffic.retries), 0);
    end();
    begin_served("2"); /* who has asked for nothing yet is told of the end, too */
    create_fetcher();
    assert_int_equal(batch_fetcher_ask(bench.fetcher, &facts, &error), EXCHANGE_OK);
    usleep(20000);
    end();
    atomic_store(&without_looks, false);
}

/* By hand. NULL: it was let in; else why not. */
static const char *connect_as(struct link *link, enum member_role role, int index, const char *digest)
{
    static struct hello_identity hello;
    static struct identity identity;
    static struct error error;
    hello = *identity_hello(&bench.identity);
    hello.member = (struct member){role, index};
    hello.incarnation++;
    hello.digest = digest ? digest : hello.digest;
    memset(&identity, 0, sizeof identity);
    identity.hello = hello;
    if (!shard_link_create_to_chief(link, &bench.config, &identity, &bench.traffic, &error)) {
        fail_msg("%s", error.text);
    }
    link->quiet = true;
    return link_try(link, &error) == LINK_OPEN ? NULL : error.text;
}

/* Workers with this job's data get it, and nobody else; of two connections of one the newer stays. */
static void who_gets_batches(void **state)
{
    struct link link, other;
    struct error error;
    (void)state;
    begin_served("2");
    const struct {
        enum member_role role;
        int index;
        const char *digest;
    } strangers[] = {{MEMBER_WORKER, 0, NULL}, {MEMBER_WORKER, 3, NULL}, {MEMBER_PS, 1, NULL}, {MEMBER_WORKER, 1, ""}};
    for (int i = 0; i < 4; i++) {
        const char *why = connect_as(&link, strangers[i].role, strangers[i].index, strangers[i].digest);
        assert_non_null(why);
        assert_non_null(strstr(why, "worker 0 sends batches to workers 1 to 2 only"));
        link_destroy(&link);
    }
    assert_non_null(connect_as(&link, MEMBER_WORKER, 1, "another"));
    link_destroy(&link);
    assert_null(connect_as(&link, MEMBER_WORKER, 1, "coming"));
    link_destroy(&link);
    assert_null(connect_as(&link, MEMBER_WORKER, 1, NULL));
    assert_null(connect_as(&other, MEMBER_WORKER, 1, NULL));
    const struct message_ping ping = {5};
    assert_true(channel_call(&other.channel, MESSAGE_ping, &ping, MESSAGE_pong, INFINITY, NULL, &error));
    assert_int_equal(other.channel.message.pong.nonce, 5);
    assert_false(channel_receive(&link.channel, clock_monotonic_s() + 10, &error)); /* cut */
    assert_null(strstr(error.text, "time"));
    link_destroy(&link);
    link_destroy(&other);
    end();
}

/* What it does not answer. */
static void requests_that_make_no_sense(void **state)
{
    struct link link;
    struct error error;
    uint16_t code;
    (void)state;
    begin_served("2");
    assert_null(connect_as(&link, MEMBER_WORKER, 2, NULL));
    const struct message_get_status status = {0};
    for (uint64_t i = 1; i <= ERROR_NOT_ALLOWED; i++) { /* so that no request has the number of an error */
        const struct message_ping ping = {i};
        assert_true(channel_call(&link.channel, MESSAGE_ping, &ping, MESSAGE_pong, INFINITY, NULL, &error));
    }
    assert_false(channel_call(&link.channel, MESSAGE_get_status, &status, MESSAGE_status, INFINITY, &code, &error));
    assert_int_equal(code, ERROR_NOT_ALLOWED);
    assert_non_null(strstr(error.text, "get_status is for a ps, and this is worker 0"));
    const int64_t wrong[] = {-1, ((int64_t)1 << 53) - 1};
    for (int i = 0; i < 2; i++) {
        const struct message_get_batches asked = {.first = wrong[i], .count = 2};
        const bool answered =
            channel_call(&link.channel, MESSAGE_get_batches, &asked, MESSAGE_batch, INFINITY, &code, &error);
        assert_int_equal(answered, i == 1); /* far away, but a batch */
        if (i == 0) {
            assert_int_equal(code, ERROR_BAD_REQUEST);
            assert_false(channel_receive(&link.channel, clock_monotonic_s() + 10, &error)); /* it hangs up */
            link_destroy(&link);
            assert_null(connect_as(&link, MEMBER_WORKER, 2, NULL));
        }
    }
    assert_int_equal(link.channel.message.batch.number, ((int64_t)1 << 53) - 1);
    assert_false(link.channel.frame.flags & FRAME_LAST);
    assert_true(channel_receive(&link.channel, INFINITY, &error));
    assert_true(link.channel.frame.flags & FRAME_LAST);
    link_destroy(&link);
    end();
}

/* How rows become inputs, and how wide data make the layers. */
static void what_it_says_of_its_data(void **state)
{
    static char text[] = "how rows become inputs";
    struct schema schema = {.text = text};
    char digest[PREPROCESSING_DIGEST], units[MODEL_UNITS_TEXT], got[sizeof text] = "";
    const struct message_describe describe = {.digest = ""};
    const struct message_layers layers = {.units = ""};
    struct link link;
    struct error error;
    (void)state;
    begin_served("2");
    assert_null(connect_as(&link, MEMBER_WORKER, 2, NULL));
    struct channel *channel = &link.channel;
    assert_true(channel_call(channel, MESSAGE_describe, &describe, MESSAGE_description, INFINITY, NULL, &error));
    assert_string_equal(channel->message.description.digest, "");
    assert_int_equal(channel->bulk_left, 0);
    model_units_text(&bench.config.model, units);
    assert_true(channel_call(channel, MESSAGE_layers, &layers, MESSAGE_layers, INFINITY, NULL, &error));
    assert_string_equal(channel->message.layers.units, units);
    link_destroy(&link);
    data_server_destroy(bench.server);
    bench.dataset.schema = &schema;
    if (!data_server_create(&bench.server, &bench.config, &bench.chief_identity, &bench.dataset, knows, &bench,
                            &error)) {
        fail_msg("%s", error.text);
    }
    assert_null(connect_as(&link, MEMBER_WORKER, 2, NULL));
    preprocessing_digest(schema.text, digest);
    assert_true(channel_call(channel, MESSAGE_describe, &describe, MESSAGE_description, INFINITY, NULL, &error));
    assert_string_equal(channel->message.description.digest, digest);
    assert_int_equal(channel->bulk_left, sizeof text - 1);
    assert_true(channel_read_bulk(channel, got, sizeof text - 1, INFINITY, &error));
    assert_string_equal(got, text);
    link_destroy(&link);
    end();
}

/* --- Data that stream --- */

static char the_stream;
static bool stream_fails, stream_has_no_room;

bool __wrap_streaming_draw(struct streaming *streaming, uint32_t task, int64_t step, struct examples *drawn,
                           struct error *error);
bool __wrap_streaming_create_batch(const struct streaming *streaming, struct examples *batch, struct error *error);

/* Batch `step` of a task: two images, of the step, of class 1. */
bool __wrap_streaming_draw(struct streaming *streaming, uint32_t task, int64_t step, struct examples *drawn,
                           struct error *error)
{
    assert_ptr_equal(streaming, &the_stream);
    assert_int_equal(task, 2);
    drawn->count = 2;
    drawn->labels[0] = drawn->labels[1] = 1;
    memset(drawn->images, (int)step, PIXELS);
    memset(drawn->images + PIXELS, (int)step + 100, PIXELS);
    return !stream_fails || error_set(error, "the file has changed");
}

bool __wrap_streaming_create_batch(const struct streaming *streaming, struct examples *batch, struct error *error)
{
    const struct examples like = {.height = 2, .width = 3, .classes = CLASSES};
    assert_ptr_equal(streaming, &the_stream);
    return stream_has_no_room ? error_set(error, "no room for a batch") : examples_create(batch, &like, BATCH);
}

/* Batches that the chief reads from files; what it can't read it says, and hangs up. */
static void batches_from_files(void **state)
{
    struct link link;
    struct batch batch;
    struct error error;
    uint16_t code;
    (void)state;
    begin_served("2");
    bench.dataset.streaming = (struct streaming *)(void *)&the_stream;
    create_fetcher();
    struct batch_fetcher_facts facts;
    assert_int_equal(batch_fetcher_ask(bench.fetcher, &facts, &error), EXCHANGE_OK);
    for (int64_t number = 3; number < 9; number++) {
        assert_int_equal(batch_fetcher_take(bench.fetcher, number, &batch, &error), EXCHANGE_OK);
        assert_int_equal(batch.count, 2);
        assert_int_equal(batch.examples->images[0], number);
        assert_int_equal(batch.examples->images[2 * PIXELS - 1], number + 100);
        assert_int_equal(batch.examples->labels[1], 1);
    }
    batch_fetcher_destroy(bench.fetcher);
    bench.fetcher = NULL;
    assert_null(connect_as(&link, MEMBER_WORKER, 2, NULL));
    stream_fails = true;
    const struct message_get_batches asked = {.first = 0, .count = 2};
    assert_false(channel_call(&link.channel, MESSAGE_get_batches, &asked, MESSAGE_batch, INFINITY, &code, &error));
    stream_fails = false;
    assert_int_equal(code, ERROR_INTERNAL);
    assert_non_null(strstr(error.text, "the file has changed"));
    assert_false(channel_receive(&link.channel, clock_monotonic_s() + 10, &error));
    link_destroy(&link);
    stream_has_no_room = true;
    assert_null(connect_as(&link, MEMBER_WORKER, 2, NULL));
    assert_false(channel_receive(&link.channel, clock_monotonic_s() + 10, &error));
    assert_null(strstr(error.text, "time")); /* it hangs up at once */
    stream_has_no_room = false;
    link_destroy(&link);
    AWAIT(times(heard_so_far(), "warning: worker 2: no room for a batch\n") == 1);
    bench.dataset.streaming = NULL;
    end();
}

/* A batch that no message holds is found out at once. */
static void batches_too_large(void **state)
{
    struct error error;
    (void)state;
    begin("2", free_port());
    bench.dataset.train = (struct examples){.count = 10, .height = 5000, .width = 5000, .classes = CLASSES};
    assert_false(
        data_server_create(&bench.server, &bench.config, &bench.chief_identity, &bench.dataset, knows, &bench, &error));
    assert_non_null(strstr(error.text, "a batch of 4 rows is 95 MiB, and a message holds "));
    assert_non_null(strstr(error.text, "lower train.batch_size"));
    end();
}

/* --- Rows --- */

static const struct examples a_row = {.inputs = 5, .numbers = 2, .codes = 2, .classes = CLASSES, .is_weighted = true};

/* place: of the first code of each row; of the second there is none. */
static void begin_rows(int place)
{
    struct examples *train = &bench.dataset.train;
    struct error error;
    begin("2", free_port());
    assert_true(examples_create(train, &a_row, IMAGES));
    train->count = IMAGES;
    for (int i = 0; i < IMAGES; i++) {
        train->labels[i] = i % CLASSES;
        train->weights[i] = 0.5f * (float)i;
        train->values[2 * i] = (float)i;
        train->values[2 * i + 1] = (float)-i;
        train->places[2 * i] = place;
    }
    if (!data_server_create(&bench.server, &bench.config, &bench.chief_identity, &bench.dataset, knows, &bench,
                            &error)) {
        fail_msg("%s", error.text);
    }
}

static void rows(void **state)
{
    const struct sampler sampler = {.task = 2, .examples = IMAGES, .batch_size = BATCH};
    struct batch_fetcher_facts facts;
    struct error error;
    (void)state;
    begin_rows(4);
    create_feed_of(&a_row);
    assert_int_equal(batch_fetcher_ask(bench.fetcher, &facts, &error), EXCHANGE_OK);
    for (int64_t number = 0; number < 12; number++) {
        struct sampler here = sampler;
        int32_t wanted[BATCH];
        struct batch batch;
        here.seed = (uint64_t)bench.config.train.seed;
        assert_int_equal(batch_fetcher_take(bench.fetcher, number, &batch, &error), EXCHANGE_OK);
        assert_int_equal(batch.count, sampler_draw(&here, number, wanted));
        for (int i = 0; i < batch.count; i++) {
            assert_int_equal(batch.examples->labels[i], wanted[i] % CLASSES);
            assert_true(batch.examples->weights[i] == 0.5f * (float)wanted[i]);
            assert_true(batch.examples->values[2 * i] == (float)wanted[i]);
            assert_true(batch.examples->values[2 * i + 1] == (float)-wanted[i]);
            assert_int_equal(batch.examples->places[2 * i], 4);
            assert_int_equal(batch.examples->places[2 * i + 1], -1);
        }
    }
    assert_int_equal(atomic_load(&bench.traffic.retries), 0);
    end();
}

static void *give_up_once_told(void *words)
{
    for (int i = 0; i < 10000 && !strstr(heard_so_far(), words); i++) {
        usleep(1000);
    }
    atomic_store(&bench.given_up, true);
    return NULL;
}

/* Waits for a batch until these words are in the log. */
static void take_none(char *words)
{
    struct batch batch;
    struct error error;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, give_up_once_told, words), 0);
    assert_int_equal(batch_fetcher_take(bench.fetcher, 0, &batch, &error), EXCHANGE_STOPPED);
    pthread_join(thread, NULL);
    assert_non_null(strstr(heard_so_far(), words));
}

/* Rows that the model has no place for, or that look otherwise, are not trained on. */
static void rows_that_do_not_fit(void **state)
{
    static char label[] = "sent label 2, and the model has 2 classes",
                above[] = "sent a row with input 4, and there are 4",
                below[] = "sent a row with input 1, and there are 5", other[] = " bytes, and here they take ";
    struct batch_fetcher_facts facts;
    struct examples like;
    struct error error;
    (void)state;
    for (int i = 0; i < 3; i++) {
        begin_rows(i == 2 ? 1 : 4);
        bench.config.model.layers[1] = i == 0 ? 2 : 3;
        like = a_row;
        like.inputs = i == 1 ? 4 : 5;
        create_feed_of(&like);
        assert_int_equal(batch_fetcher_ask(bench.fetcher, &facts, &error), EXCHANGE_OK);
        take_none(i == 0 ? label : i == 1 ? above : below);
        end();
    }
    begin_rows(4);
    like = a_row;
    like.codes = 3;
    create_feed_of(&like);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, give_up_once_told, other), 0);
    assert_int_equal(batch_fetcher_ask(bench.fetcher, &facts, &error), EXCHANGE_STOPPED);
    pthread_join(thread, NULL);
    assert_non_null(strstr(heard_so_far(), "has rows of "));
    end();
}

/* --- A server of the test's own --- */

struct manner {
    int64_t off; /* added to a batch's number */
    int label, images;
    uint32_t total;
    int cut_after; /* batches; then the connection ends; -1: never */
    bool objects, answers_pong;
};

static const struct manner well = {.label = 1, .images = BATCH, .total = IMAGES, .cut_after = -1};

static struct {
    struct fake_member member;
    struct manner ill; /* how it answers a question for batches from this one on, once; -1: none */
    atomic_llong ill_at;
    atomic_bool silent;
} fake;

/* The next question for batches from `number` on is answered like that. What was asked before is answered well. */
static void misbehave(int64_t number, struct manner ill)
{
    fake.ill = ill;
    atomic_store(&fake.ill_at, number);
}

static bool answer(struct fake_member *member, struct channel *channel)
{
    const struct message_get_batches asked = channel->message.get_batches;
    const uint64_t request = channel->frame.request;
    const struct message_pong pong = {1};
    long long at = asked.first;
    const struct manner does = atomic_compare_exchange_strong(&fake.ill_at, &at, -1) ? fake.ill : well;
    struct error error;
    (void)member;
    tell("asks %u from %lld\n", asked.count, (long long)asked.first);
    if (does.objects) {
        return fake_member_object(channel, ERROR_INTERNAL);
    }
    if (atomic_load(&fake.silent) || does.answers_pong) {
        return !does.answers_pong || fake_member_say(channel, MESSAGE_pong, &pong);
    }
    struct message_batch batch = {.pixels = PIXELS, .total = does.total, .description = "d", .number = -1};
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
        struct iovec bulk = {bytes, batch_bytes((size_t)does.images, PIXELS)};
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

/* Six ahead at most, three at a time; a number that does not follow begins anew. */
static void how_far_ahead(void **state)
{
    (void)state;
    begin_faked();
    start_fake();
    ask();
    usleep(30000);
    assert_string_equal(told(), "asks 0 from 0\n"); /* nothing is wanted yet */
    take_of_fake(4);
    assert_true(await_told("asks 3 from 7\n"));
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

/* Whatever goes wrong on a connection, another one brings the batch that is wanted. */
static void nonsense(void **state)
{
    (void)state;
    begin_faked();
    start_fake();
    misbehave(0, (struct manner){.answers_pong = true});
    ask(); /* and again */
    misbehave(0, (struct manner){.objects = true});
    take_of_fake(0);
    const int wrongs = 6;
    for (int i = 0; i < wrongs; i++) {
        const int before = atomic_load(&fake.member.connections);
        struct manner ill = well;
        ill.off = i == 0;
        ill.label = i == 1 ? CLASSES : 1;
        ill.images = i == 2 ? BATCH + 1 : BATCH;
        ill.total = i == 3 ? 0 : IMAGES;
        ill.answers_pong = i == 4;
        ill.cut_after = i == 5 ? 1 : -1;
        misbehave(20 * (i + 1), ill);
        take_of_fake(20 * (i + 1));
        AWAIT(atomic_load(&fake.member.connections) == before + 1);
    }
    assert_int_equal(atomic_load(&bench.traffic.retries), wrongs + 2);
    end_faked();
}

/* Batches that are longer than their images are wide find room on both sides. */
static void long_batches(void **state)
{
    struct batch_fetcher_facts facts;
    struct batch batch;
    struct error error;
    (void)state;
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

/* A refusal is for good; who gives up stops waiting, and a wait is named. */
static void no_batches(void **state)
{
    struct batch_fetcher_facts facts;
    struct batch batch;
    struct error error;
    (void)state;
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

static void *jump(void *context)
{
    (void)context;
    for (int i = 0; i < 10000 && !was_told("asks 3 from 0\n"); i++) {
        usleep(1000);
    }
    atomic_store(&jumped_s, 12);
    return NULL;
}

/* Who waits for long says so, once in ten seconds. */
static void long_waits_are_told(void **state)
{
    static char words[] = " to send batch 0, 1";
    pthread_t thread;
    (void)state;
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_as_if_drawn_here),
        cmocka_unit_test(who_gets_batches),
        cmocka_unit_test(requests_that_make_no_sense),
        cmocka_unit_test(what_it_says_of_its_data),
        cmocka_unit_test(batches_from_files),
        cmocka_unit_test(batches_too_large),
        cmocka_unit_test(rows),
        cmocka_unit_test(rows_that_do_not_fit),
        cmocka_unit_test(how_far_ahead),
        cmocka_unit_test(nonsense),
        cmocka_unit_test(long_batches),
        cmocka_unit_test(no_batches),
        cmocka_unit_test(long_waits_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
