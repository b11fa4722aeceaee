/* When a frame is whole, and which frames are an answer. */
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <pthread.h>

#include "base/clock.h"
#include "net/bytes.h"
#include "net/channel.h"
#include "net/transport.h"
#include "tests/check.h"

/* Two channels connected by a pair of sockets. */
struct pair {
    struct channel ours, theirs;
};

static void begin(struct pair *pair)
{
    struct connection *ours, *theirs;
    struct error error;
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    assert_true(connection_serve(&ours, ends[0], "ours", NULL, NULL, INFINITY, &error));
    assert_true(connection_serve(&theirs, ends[1], "theirs", NULL, NULL, INFINITY, &error));
    channel_open(&pair->ours, ours);
    channel_open(&pair->theirs, theirs);
    pair->ours.version = pair->theirs.version = PROTOCOL_VERSION_MAX;
}

static void end(struct pair *pair)
{
    channel_close(&pair->ours);
    channel_close(&pair->theirs);
}

/* Sends raw bytes and waits until they arrive. */
static void put(struct pair *pair, const uint8_t *bytes, size_t size)
{
    struct iovec part = {(void *)(uintptr_t)bytes, size};
    struct error error;
    bool ready = false;
    assert_true(connection_write_more(pair->theirs.connection, &part, 1, INFINITY, &error));
    assert_true(connection_flush(pair->theirs.connection, INFINITY, &error));
    assert_true(connection_wait(pair->ours.connection, clock_monotonic_s() + 60, &ready, &error));
    assert_true(ready);
}

static size_t encode(enum message_type type, const void *message, uint32_t bulk_bytes, uint8_t bytes[128])
{
    const size_t size = message_size(PROTOCOL_VERSION_MAX, type, message);
    const struct frame frame = {.version = PROTOCOL_VERSION_MAX,
                                .type = (uint16_t)type,
                                .request = 1,
                                .flags = FRAME_LAST,
                                .message_bytes = (uint32_t)size,
                                .bulk_bytes = bulk_bytes};
    assert_true(FRAME_HEADER + size <= 128);
    frame_encode(&frame, bytes);
    message_encode(PROTOCOL_VERSION_MAX, type, message, bytes + FRAME_HEADER, size);
    return FRAME_HEADER + size;
}

/* Only a complete frame can be received without waiting; bytes after it belong to the next. */
TEST(a_frame_comes_in_part)
{
    struct error error;
    uint8_t bytes[256];
    const size_t size = encode(MESSAGE_done, &(struct message_done){.global_step = 5}, 0, bytes);
    memcpy(bytes + size, bytes, size);
    for (size_t there = 1; there < 2 * size; there++) {
        struct pair pair;
        uint16_t type = 0;
        begin(&pair);
        assert_false(channel_has_frame(&pair.ours, &type));
        put(&pair, bytes, there);
        assert_int_equal(channel_has_frame(&pair.ours, &type), there >= size);
        if (there >= size) {
            assert_int_equal(type, MESSAGE_done);
            assert_true(channel_receive(&pair.ours, INFINITY, &error));
            assert_int_equal(pair.ours.message.done.global_step, 5);
            assert_false(channel_has_frame(&pair.ours, &type));
        }
        end(&pair);
    }
}

/* Whether a complete frame is valid is found on receiving it; frames with bulk, and invalid ones, don't count. */
TEST(frames_that_are_not_whole)
{
    const struct frame empty = {.version = PROTOCOL_VERSION_MAX, .type = MESSAGE_done, .request = 1};
    const struct message_describe describe = {.digest = ""};
    struct pair pair;
    struct error error;
    uint8_t bytes[256];
    uint16_t type = 0;
    begin(&pair);
    frame_encode(&empty, bytes);
    put(&pair, bytes, FRAME_HEADER);
    assert_true(channel_has_frame(&pair.ours, &type));
    assert_int_equal(type, MESSAGE_done);
    assert_false(channel_receive(&pair.ours, INFINITY, &error));
    assert_ptr_equal(strstr(error.text, "ours: "), error.text);
    end(&pair);
    begin(&pair);
    bytes[0] ^= 1;
    put(&pair, bytes, FRAME_HEADER);
    assert_false(channel_has_frame(&pair.ours, &type));
    end(&pair);
    begin(&pair);
    const size_t head = encode(MESSAGE_describe, &describe, 2, bytes);
    bytes[head] = '{';
    bytes[head + 1] = '}';
    const size_t next = encode(MESSAGE_done, &(struct message_done){.global_step = 5}, 0, bytes + head + 2);
    put(&pair, bytes, head + 2 + next);
    assert_false(channel_has_frame(&pair.ours, &type)); /* its bulk must be read by the caller */
    assert_true(channel_receive(&pair.ours, INFINITY, &error));
    assert_int_equal(pair.ours.bulk_left, 2);
    assert_false(channel_has_frame(&pair.ours, &type));
    assert_true(channel_read_bulk(&pair.ours, bytes, 2, INFINITY, &error));
    assert_memory_equal(bytes, "{}", 2);
    assert_true(channel_has_frame(&pair.ours, &type));
    assert_int_equal(type, MESSAGE_done);
    end(&pair);
}

/* What is no frame yet may look like one: with what lay there before, or with bulk that looks like a frame. */
TEST(what_looks_like_a_frame)
{
    const struct message_describe describe = {.digest = ""};
    struct pair pair;
    struct error error;
    uint8_t done[128], bytes[256];
    uint16_t type;
    const size_t size = encode(MESSAGE_done, &(struct message_done){.global_step = 5}, 0, done);
    begin(&pair);
    put(&pair, done, size);
    assert_true(channel_receive(&pair.ours, INFINITY, &error));
    put(&pair, done, FRAME_HEADER - 1); /* the last byte of a header is the former frame's */
    assert_false(channel_has_frame(&pair.ours, &type));
    end(&pair);
    for (uint32_t bulk = 1; bulk <= size; bulk += (uint32_t)size - 1) {
        begin(&pair);
        const size_t head = encode(MESSAGE_describe, &describe, bulk, bytes);
        memcpy(bytes + head, done, size);
        put(&pair, bytes, head + size);
        assert_true(channel_receive(&pair.ours, INFINITY, &error));
        assert_int_equal(pair.ours.bulk_left, bulk);
        assert_false(channel_has_frame(&pair.ours, &type));
        end(&pair);
    }
}

/* Only what is said before a version is agreed on may be of another one. */
TEST(versions)
{
    const struct message_hello hello = {.program = "", .cluster = "", .digest = "", .job = ""};
    const struct message_welcome welcome = {.program = "", .digest = ""};
    const struct message_refused refused = {.message = ""};
    const struct message_ping ping = {.nonce = 5};
    const struct {
        enum message_type type;
        const void *message;
    } cases[] = {
        {MESSAGE_hello, &hello}, {MESSAGE_welcome, &welcome}, {MESSAGE_refused, &refused}, {MESSAGE_ping, &ping}};
    struct pair pair;
    struct error error;
    begin(&pair);
    pair.theirs.version = PROTOCOL_VERSION_MAX + 1;
    for (int i = 0; i < 4; i++) {
        assert_true(channel_send(&pair.theirs, cases[i].type, 1, cases[i].message, INFINITY, &error));
        assert_int_equal(channel_receive(&pair.ours, INFINITY, &error), i < 3);
        assert_int_equal(pair.ours.frame.type, cases[i].type);
    }
    assert_string_equal(error.text, "ours: frame of protocol version 2, and 1 was agreed on");
    end(&pair);
}

static bool ask(struct pair *pair, uint16_t *code, struct error *error)
{
    const struct message_ping ping = {.nonce = 5};
    return channel_call(&pair->ours, MESSAGE_ping, &ping, MESSAGE_pong, INFINITY, code, error);
}

/* Answers and errors for earlier requests are skipped; an answer to a later request ends the call. */
TEST(answers)
{
    const struct message_pong pong = {.nonce = 5};
    const struct message_done done = {.global_step = 5};
    struct pair pair;
    struct error error;
    uint16_t code = 99;
    begin(&pair);
    pair.ours.next_request = 6;
    assert_true(channel_send(&pair.theirs, MESSAGE_done, 0, &done, INFINITY, &error));
    assert_true(channel_send_error(&pair.theirs, 6, ERROR_TOO_LATE, INFINITY, &error, "too late"));
    assert_true(channel_send(&pair.theirs, MESSAGE_pong, 7, &pong, INFINITY, &error));
    assert_true(ask(&pair, &code, &error));
    assert_int_equal(code, 0);
    assert_true(channel_receive(&pair.theirs, INFINITY, &error));
    assert_int_equal(pair.theirs.frame.type, MESSAGE_ping);
    assert_int_equal(pair.theirs.frame.request, 7);
    assert_int_equal(pair.theirs.frame.flags, FRAME_LAST);
    for (int i = 0; i < 2; i++) { /* a caller that ignores the code still gets the text */
        assert_true(channel_send_error(&pair.theirs, 8 + (uint64_t)i, ERROR_TOO_LATE, INFINITY, &error, "too late"));
        assert_false(ask(&pair, i == 0 ? &code : NULL, &error));
        assert_int_equal(code, ERROR_TOO_LATE);
        assert_string_equal(error.text, "ours: too late");
    }
    assert_true(channel_send(&pair.theirs, MESSAGE_done, 10, &done, INFINITY, &error));
    assert_false(ask(&pair, &code, &error));
    assert_int_equal(code, 0);
    assert_string_equal(error.text, "ours: answered ping with done");
    assert_true(channel_send_error(&pair.theirs, 12, ERROR_TOO_LATE, INFINITY, &error, "too late"));
    code = 99;
    assert_false(ask(&pair, &code, &error));
    assert_int_equal(code, 0);
    assert_string_equal(error.text, "ours: answer to a request that was not made");
    const struct message_pong late = {.nonce = ERROR_BAD_REQUEST}; /* no error, though it may look like one */
    assert_true(channel_send(&pair.theirs, MESSAGE_pong, 9, &late, INFINITY, &error));
    assert_true(channel_send(&pair.theirs, MESSAGE_pong, 12, &pong, INFINITY, &error));
    assert_true(ask(&pair, NULL, &error));
    assert_int_equal(pair.ours.message.pong.nonce, 5);
    code = 99;
    assert_true(channel_check_answer(&pair.ours, MESSAGE_ping, 12, MESSAGE_pong, &code, &error));
    assert_int_equal(code, 0);
    end(&pair);
}

/* A peer that is gone is no answer, whether that is found out as we ask, wait, or pass over what nobody wanted. */
TEST(nobody_is_there)
{
    const struct message_describe describe = {.digest = ""};
    struct error error;
    uint8_t bytes[128];
    for (int i = 0; i < 3; i++) {
        struct pair pair;
        uint16_t code = 99;
        begin(&pair);
        if (i == 2) {
            put(&pair, bytes, encode(MESSAGE_describe, &describe, 2, bytes));
            assert_true(channel_receive(&pair.ours, INFINITY, &error));
        }
        shutdown(connection_fd(pair.theirs.connection), i == 0 ? SHUT_RDWR : SHUT_WR);
        error.text[0] = '\0';
        assert_false(i < 2 ? ask(&pair, &code, &error) : channel_receive(&pair.ours, INFINITY, &error));
        assert_int_equal(code, i < 2 ? 0 : 99);
        assert_string_equal(error.text, i == 0 ? "lost ours: Broken pipe" : "ours closed the connection");
        end(&pair);
    }
}

/* A frame that can't be read is refused under its own number; a refusal of a request before it is late. */
TEST(refusals_of_what_can_not_be_read)
{
    const struct frame strange = {.version = PROTOCOL_VERSION_MAX, .type = MESSAGE_TYPES + 1, .request = 7};
    struct pair pair;
    struct error error;
    uint8_t bytes[FRAME_HEADER];
    uint16_t code = 0;
    begin(&pair);
    pair.ours.frame.request = 6;
    frame_encode(&strange, bytes);
    put(&pair, bytes, sizeof bytes);
    assert_false(channel_receive(&pair.ours, INFINITY, &error));
    assert_int_equal(pair.ours.frame.request, 7);
    end(&pair);
    begin(&pair);
    pair.ours.next_request = 6;
    assert_true(channel_send_error(&pair.theirs, 6, ERROR_BAD_REQUEST, INFINITY, &error, "before"));
    assert_true(channel_send_error(&pair.theirs, 7, ERROR_BAD_REQUEST, INFINITY, &error, "what?"));
    assert_false(ask(&pair, &code, &error));
    assert_int_equal(code, ERROR_BAD_REQUEST);
    assert_string_equal(error.text, "ours: what?");
    end(&pair);
}

/* What has more behind it waits for that, and only the last frame says that it is the last. */
TEST(frames_that_wait_for_more)
{
    const struct message_done done = {.global_step = 5};
    struct outgoing outgoing = {.type = MESSAGE_done, .request = 3, .message = &done, .more = true};
    struct pair pair;
    struct error error;
    begin(&pair);
    assert_true(channel_send_frame(&pair.theirs, &outgoing, INFINITY, &error));
    assert_int_equal(connection_bytes_out(pair.theirs.connection), 0);
    outgoing.more = false;
    assert_true(channel_send_frame(&pair.theirs, &outgoing, INFINITY, &error));
    const uint64_t sent = connection_bytes_out(pair.theirs.connection);
    assert_int_equal(sent, 2 * (FRAME_HEADER + message_size(PROTOCOL_VERSION_MAX, MESSAGE_done, &done)));
    for (int i = 0; i < 2; i++) {
        assert_true(channel_receive(&pair.ours, INFINITY, &error));
        assert_int_equal(pair.ours.frame.flags, i == 0 ? 0 : FRAME_LAST);
    }
    end(&pair);
}

/* Bulk that nobody has read, all of it or some, is in nobody's way. */
TEST(bulk_that_nobody_wants)
{
    static const size_t sizes[] = {1, 4095, 4096, 4097, 20000};
    static char bytes[20000];
    const struct message_describe describe = {.digest = ""};
    struct error error;
    for (size_t i = 0; i < 2 * sizeof sizes / sizeof *sizes; i++) {
        const size_t size = sizes[i / 2];
        const struct iovec bulk[] = {{bytes, size / 3}, {bytes + size / 3, size - size / 3}};
        const struct outgoing outgoing = {
            .type = MESSAGE_describe, .request = 1, .message = &describe, .bulk = bulk, .bulk_parts = 2};
        struct pair pair;
        begin(&pair);
        assert_true(channel_send_frame(&pair.theirs, &outgoing, INFINITY, &error));
        assert_true(
            channel_send(&pair.theirs, MESSAGE_done, 2, &(struct message_done){.global_step = 5}, INFINITY, &error));
        assert_true(channel_receive(&pair.ours, INFINITY, &error));
        assert_int_equal(pair.ours.bulk_left, size);
        if (i % 2 == 1) {
            char byte;
            assert_true(channel_read_bulk(&pair.ours, &byte, 1, INFINITY, &error));
        }
        assert_true(channel_receive(&pair.ours, INFINITY, &error));
        assert_int_equal(pair.ours.message.done.global_step, 5);
        end(&pair);
    }
}

/* Buffers grow to the largest message, whose size is its sender's choice; what is no larger takes no other. */
TEST(buffers_grow_and_stay)
{
    static const size_t sizes[] = {10, 10, 5000, 30, 5000};
    struct pair pair;
    struct error error;
    char text[5001];
    begin(&pair);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const uint8_t *before[] = {pair.theirs.sent.bytes, pair.ours.received.bytes};
        memset(text, 'x', sizeof text);
        text[sizes[i]] = '\0';
        const struct message_hello hello = {.program = "", .cluster = "", .digest = "", .job = text};
        assert_true(channel_send(&pair.theirs, MESSAGE_hello, 1, &hello, INFINITY, &error));
        assert_true(channel_receive(&pair.ours, INFINITY, &error));
        assert_string_equal(pair.ours.message.hello.job, text);
        if (i % 2 == 1 || i == 4) {
            assert_ptr_equal(pair.theirs.sent.bytes, before[0]);
            assert_ptr_equal(pair.ours.received.bytes, before[1]);
        }
    }
    end(&pair);
}

/* A channel rests where nothing is under way, not even what is still to come; then it has no buffers. */
TEST(a_channel_rests)
{
    const struct message_describe describe = {.digest = ""};
    struct pair pair;
    struct error error;
    uint8_t bytes[256];
    begin(&pair);
    put(&pair, bytes, encode(MESSAGE_describe, &describe, 2, bytes));
    assert_false(channel_park(&pair.ours)); /* a frame is there */
    assert_true(channel_receive(&pair.ours, INFINITY, &error));
    assert_false(channel_park(&pair.ours)); /* its bulk is to come */
    assert_non_null(pair.ours.received.bytes);
    put(&pair, (const uint8_t *)"{}", 2);
    assert_true(channel_read_bulk(&pair.ours, bytes, 2, INFINITY, &error));
    assert_true(channel_send(&pair.ours, MESSAGE_done, 1, &(struct message_done){.global_step = 5}, INFINITY, &error));
    for (int i = 0; i < 2; i++) { /* the second time with the buffers of the first */
        assert_true(channel_park(&pair.ours));
        assert_null(pair.ours.connection->in);
        assert_true(!pair.ours.received.bytes && pair.ours.received.size == 0);
        assert_true(!pair.ours.sent.bytes && pair.ours.sent.size == 0);
        assert_true(channel_resume(&pair.ours, &error));
        assert_true(
            channel_send(&pair.theirs, MESSAGE_done, 2, &(struct message_done){.global_step = 6}, INFINITY, &error));
        assert_true(channel_receive(&pair.ours, INFINITY, &error));
        assert_int_equal(pair.ours.message.done.global_step, 6);
    }
    end(&pair);
}

enum { LATE_S = 30, LARGE = 2 * LATE_S * CHANNEL_LEAST_RATE };

static void *take_all(void *context)
{
    struct error error;
    struct channel *channel = context;
    void *bytes = malloc(LARGE);
    const bool good =
        channel_receive(channel, INFINITY, &error) && channel_read_bulk(channel, bytes, LARGE, INFINITY, &error);
    free(bytes);
    return good ? channel : NULL;
}

/* What is large may also take longer to send: here its deadline has passed for half of the time that it is allowed. */
TEST(large_frames_have_more_time)
{
    uint8_t range[RANGE_BYTES];
    const struct message_values message = {.ranges = {range, 1}};
    char *bytes = calloc(1, LARGE);
    const struct iovec bulk = {bytes, LARGE};
    const struct outgoing outgoing = {
        .type = MESSAGE_values, .request = 1, .message = &message, .bulk = &bulk, .bulk_parts = 1};
    struct pair pair;
    struct error error = {""};
    pthread_t thread;
    void *taken;
    range_put(range, 0, (struct range){0, LARGE / sizeof(float)});
    begin(&pair);
    assert_int_equal(fcntl(connection_fd(pair.theirs.connection), F_SETFL, O_NONBLOCK), 0);
    assert_int_equal(pthread_create(&thread, NULL, take_all, &pair.ours), 0);
    const bool sent = channel_send_frame(&pair.theirs, &outgoing, clock_monotonic_s() - LATE_S, &error);
    if (!sent) {
        shutdown(connection_fd(pair.theirs.connection), SHUT_RDWR);
    }
    pthread_join(thread, &taken);
    end(&pair);
    free(bytes);
    if (!sent) {
        fail_msg("%s", error.text);
    }
    assert_non_null(taken);
}

int main(void)
{
    return check_run(NULL, NULL);
}
