/* The chief's batches are those that the worker would have drawn, from memory, files, or rows. */
#include "tests/check.h"
#include "tests/worker/remote/fetching.h"

#include <fcntl.h>

/* --- What may fail --- */

static size_t refused_size; /* of an allocation; 0: none is refused */
static bool has_no_rows;

void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
bool __real_examples_create(struct examples *examples, const struct examples *like, int count);
bool __wrap_examples_create(struct examples *examples, const struct examples *like, int count);

void *__wrap_malloc(size_t size)
{
    return refused_size > 0 && size == refused_size ? NULL : __real_malloc(size);
}

bool __wrap_examples_create(struct examples *examples, const struct examples *like, int count)
{
    return !has_no_rows && __real_examples_create(examples, like, count);
}

/* --- The server --- */

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

/* In order and out of order, including short ones at the end of an epoch. */
TEST(batches_as_if_drawn_here)
{
    struct batch_fetcher_facts facts;
    struct error error;
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
    begin_served("2"); /* a session without requests is ended, too */
    create_fetcher();
    assert_int_equal(batch_fetcher_ask(bench.fetcher, &facts, &error), EXCHANGE_OK);
    usleep(20000);
    end();
    atomic_store(&without_looks, false);
}

/* By hand. NULL: it was admitted; otherwise why not. */
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

/* Workers with this job's data are served, and nobody else; of a worker's two connections the newer stays. */
TEST(who_gets_batches)
{
    struct link link, other;
    struct error error;
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
    assert_false(channel_receive(&link.channel, clock_monotonic_s() + 60, &error)); /* cut */
    assert_null(strstr(error.text, "time"));
    link_destroy(&link);
    link_destroy(&other);
    end();
}

/* Requests that it does not answer. */
TEST(requests_that_make_no_sense)
{
    struct link link;
    struct error error;
    uint16_t code;
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
        assert_int_equal(answered, i == 1); /* far ahead, but a batch */
        if (i == 0) {
            assert_int_equal(code, ERROR_BAD_REQUEST);
            assert_false(channel_receive(&link.channel, clock_monotonic_s() + 60, &error)); /* it hangs up */
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

/* How rows become inputs, and the layer widths that follow from data. */
TEST(what_it_says_of_its_data)
{
    static char text[] = "how rows become inputs";
    struct schema schema = {.text = text};
    char digest[PREPROCESSING_DIGEST], units[MODEL_UNITS_TEXT], got[sizeof text] = "";
    const struct message_describe describe = {.digest = ""};
    const struct message_layers layers = {.units = ""};
    struct link link;
    struct error error;
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

/* --- Streaming data --- */

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

/* Batches that the chief reads from files; if it can't read one it reports that, and hangs up. */
TEST(batches_from_files)
{
    struct link link;
    struct batch batch;
    struct error error;
    uint16_t code;
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
    assert_false(channel_receive(&link.channel, clock_monotonic_s() + 60, &error));
    link_destroy(&link);
    stream_has_no_room = true;
    assert_null(connect_as(&link, MEMBER_WORKER, 2, NULL));
    assert_false(channel_receive(&link.channel, clock_monotonic_s() + 60, &error));
    assert_null(strstr(error.text, "time")); /* it hangs up at once */
    stream_has_no_room = false;
    link_destroy(&link);
    AWAIT(times(heard_so_far(), "warning: worker 2: no room for a batch\n") == 1);
    bench.dataset.streaming = NULL;
    end();
}

/* A batch too large for any message is detected at once. */
TEST(batches_too_large)
{
    struct error error;
    begin("2", free_port());
    bench.dataset.train = (struct examples){.count = 10, .height = 5000, .width = 5000, .classes = CLASSES};
    assert_false(
        data_server_create(&bench.server, &bench.config, &bench.chief_identity, &bench.dataset, knows, &bench, &error));
    assert_non_null(strstr(error.text, "a batch of 4 rows is 95 MiB, and a message holds "));
    assert_non_null(strstr(error.text, "lower train.batch_size"));
    end();
    assert_int_not_equal(fcntl(STDIN_FILENO, F_GETFD), -1); /* of what was not there nothing is closed */
}

/* --- Rows --- */

static struct examples a_row = {.inputs = 5, .numbers = 2, .codes = 2, .classes = CLASSES, .is_weighted = true};

/* place: of each row's first code; the second has none. */
static void begin_rows(int place)
{
    struct examples *train = &bench.dataset.train;
    struct error error;
    begin("2", free_port());
    assert_true(examples_create(train, &a_row, IMAGES));
    train->count = IMAGES;
    for (int i = 0; i < IMAGES; i++) {
        train->labels[i] = i % CLASSES;
        if (train->weights) {
            train->weights[i] = 0.5f * (float)i;
        }
        train->values[2 * i] = (float)i;
        train->values[2 * i + 1] = (float)-i;
        train->places[2 * i] = place;
    }
    if (!data_server_create(&bench.server, &bench.config, &bench.chief_identity, &bench.dataset, knows, &bench,
                            &error)) {
        fail_msg("%s", error.text);
    }
}

static void check_batches_of_rows(void)
{
    const struct sampler sampler = {.task = 2, .examples = IMAGES, .batch_size = BATCH};
    struct batch_fetcher_facts facts;
    struct error error;
    begin_rows(2);
    create_fetcher_of(&a_row);
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
            assert_true(!batch.examples->weights || batch.examples->weights[i] == 0.5f * (float)wanted[i]);
            assert_true(batch.examples->values[2 * i] == (float)wanted[i]);
            assert_true(batch.examples->values[2 * i + 1] == (float)-wanted[i]);
            assert_int_equal(batch.examples->places[2 * i], 2);
            assert_int_equal(batch.examples->places[2 * i + 1], -1);
        }
    }
    assert_int_equal(atomic_load(&bench.traffic.retries), 0);
    end();
}

TEST(rows)
{
    for (int weighted = 0; weighted < 2; weighted++) {
        a_row.is_weighted = weighted;
        check_batches_of_rows();
    }
}

/* Without memory for its batches a worker is told nothing, but that this is the end; others are served. */
TEST(no_memory_for_batches)
{
    struct link link;
    struct error error;
    for (int of_rows = 0; of_rows < 2; of_rows++) {
        batch_size = "61";
        if (of_rows) {
            begin_rows(4);
        } else {
            begin_served("2");
        }
        batch_size = "4";
        refused_size = of_rows ? 0 : batch_bytes(61, PIXELS);
        has_no_rows = of_rows;
        assert_null(connect_as(&link, MEMBER_WORKER, 2, NULL));
        assert_false(channel_receive(&link.channel, clock_monotonic_s() + 60, &error));
        assert_null(strstr(error.text, "time")); /* it hangs up at once */
        refused_size = 0;
        has_no_rows = false;
        link_destroy(&link);
        AWAIT(times(heard_so_far(), "warning: out of memory for batches of worker 2\n") == 1);
        assert_int_equal(times(heard_so_far(), "gets its batches from here"), 0);
        const struct message_ping ping = {5};
        assert_null(connect_as(&link, MEMBER_WORKER, 2, NULL));
        assert_true(channel_call(&link.channel, MESSAGE_ping, &ping, MESSAGE_pong, INFINITY, NULL, &error));
        link_destroy(&link);
        end();
    }
}

/* Rows that the model has no place for, or that look otherwise, are not trained on. */
TEST(rows_that_do_not_fit)
{
    static char label[] = "sent label 2, and the model has 2 classes",
                above[] = "sent a row with input 4, and there are 4",
                below[] = "sent a row with input 0, and there are 5", other[] = " bytes, and here they take ";
    struct batch_fetcher_facts facts;
    struct examples like;
    struct error error;
    for (int i = 0; i < 3; i++) {
        begin_rows(i == 2 ? -2 : 2);
        bench.config.model.layers[1] = i == 0 ? 2 : 3;
        like = a_row;
        like.inputs = i == 1 ? 4 : 5;
        create_fetcher_of(&like);
        assert_int_equal(batch_fetcher_ask(bench.fetcher, &facts, &error), EXCHANGE_OK);
        take_none(i == 0 ? label : i == 1 ? above : below);
        end();
    }
    begin_rows(4);
    like = a_row;
    like.codes = 3;
    create_fetcher_of(&like);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, give_up_once_told, other), 0);
    assert_int_equal(batch_fetcher_ask(bench.fetcher, &facts, &error), EXCHANGE_STOPPED);
    pthread_join(thread, NULL);
    assert_non_null(strstr(heard_so_far(), "has rows of "));
    end();
}

int main(void)
{
    return check_run(NULL, NULL);
}
