/* When a frame is complete, and which frames are answers. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "base/clock.h"
#include "net/channel.h"

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
    assert_true(connection_wait(pair->ours.connection, clock_monotonic_s() + 5, &ready, &error));
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
static void a_frame_comes_in_part(void **state)
{
    struct error error;
    uint8_t bytes[256];
    (void)state;
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
static void frames_that_are_not_whole(void **state)
{
    const struct frame empty = {.version = PROTOCOL_VERSION_MAX, .type = MESSAGE_done, .request = 1};
    const struct message_describe describe = {.digest = ""};
    struct pair pair;
    struct error error;
    uint8_t bytes[256];
    uint16_t type = 0;
    (void)state;
    begin(&pair);
    frame_encode(&empty, bytes);
    put(&pair, bytes, FRAME_HEADER);
    assert_true(channel_has_frame(&pair.ours, &type));
    assert_int_equal(type, MESSAGE_done);
    assert_false(channel_receive(&pair.ours, INFINITY, &error));
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

static bool ask(struct pair *pair, uint16_t *code, struct error *error)
{
    const struct message_ping ping = {.nonce = 5};
    return channel_call(&pair->ours, MESSAGE_ping, &ping, MESSAGE_pong, INFINITY, code, error);
}

/* Answers and errors for earlier requests are skipped; an answer to a later request ends the call. */
static void answers(void **state)
{
    const struct message_pong pong = {.nonce = 5};
    const struct message_done done = {.global_step = 5};
    struct pair pair;
    struct error error;
    uint16_t code = 99;
    (void)state;
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
    end(&pair);
}

/* An unreadable frame is refused under its own number, and by earlier versions under that of the one before. */
static void refusals_of_what_can_not_be_read(void **state)
{
    const struct frame strange = {.version = PROTOCOL_VERSION_MAX, .type = MESSAGE_TYPES + 1, .request = 7};
    struct pair pair;
    struct error error;
    uint8_t bytes[FRAME_HEADER];
    uint16_t code = 0;
    (void)state;
    begin(&pair);
    pair.ours.frame.request = 6;
    frame_encode(&strange, bytes);
    put(&pair, bytes, sizeof bytes);
    assert_false(channel_receive(&pair.ours, INFINITY, &error));
    assert_int_equal(pair.ours.frame.request, 7);
    end(&pair);
    begin(&pair);
    pair.ours.next_request = 6;
    for (uint64_t number = 6; number < 8; number++) {
        assert_true(channel_send_error(&pair.theirs, number, ERROR_BAD_REQUEST, INFINITY, &error, "what?"));
        assert_false(ask(&pair, &code, &error));
        assert_int_equal(code, ERROR_BAD_REQUEST);
        assert_string_equal(error.text, "ours: what?");
    }
    end(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_frame_comes_in_part),
        cmocka_unit_test(frames_that_are_not_whole),
        cmocka_unit_test(answers),
        cmocka_unit_test(refusals_of_what_can_not_be_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
