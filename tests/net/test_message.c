/* Messages: what is encoded decodes; what is truncated, too long, out of order or out of range is refused. */
#include "net/message.h"
#include "tests/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/random.h"

static uint8_t *encode(uint16_t type, const void *message, size_t *size)
{
    *size = message_size(PROTOCOL_VERSION_MAX, type, message);
    uint8_t *bytes = malloc(*size + 1);
    message_encode(PROTOCOL_VERSION_MAX, type, message, bytes, *size);
    return bytes;
}

TEST(hello_round_trip)
{
    struct message_hello hello = {.version_min = 1,
                                  .version_max = 3,
                                  .program = "trainer 1.0",
                                  .role = 2,
                                  .index = 1,
                                  .expected_role = 1,
                                  .expected_index = -1,
                                  .incarnation = 0x123456789abcdef0,
                                  .cluster = "digits",
                                  .fleet_version = 7,
                                  .digest = "abcd",
                                  .job = "{\"model\":{}}"};
    union message got;
    struct error error;
    size_t size;
    uint8_t *bytes = encode(MESSAGE_hello, &hello, &size);
    assert_true(message_decode(PROTOCOL_VERSION_MAX, MESSAGE_hello, bytes, size, 0, &got, &error));
    assert_int_equal(got.hello.version_max, 3);
    assert_string_equal(got.hello.program, "trainer 1.0");
    assert_int_equal(got.hello.index, 1);
    assert_int_equal(got.hello.expected_index, -1);
    assert_true(got.hello.incarnation == 0x123456789abcdef0);
    assert_string_equal(got.hello.job, "{\"model\":{}}");
    for (size_t cut = 0; cut < size; cut++) {
        assert_false(message_decode(PROTOCOL_VERSION_MAX, MESSAGE_hello, bytes, cut, 0, &got, &error));
        assert_non_null(strstr(error.text, "hello message"));
    }
    bytes[size] = 9; /* a field of a future version */
    assert_true(message_decode(PROTOCOL_VERSION_MAX, MESSAGE_hello, bytes, size + 1, 0, &got, &error));
    free(bytes);
}

TEST(push_round_trip)
{
    uint8_t ranges[3 * RANGE_BYTES];
    range_put(ranges, 0, (struct range){0, 10});
    range_put(ranges, 1, (struct range){10, 5});
    range_put(ranges, 2, (struct range){0x100000000, 1});
    struct message_push push = {.sequence = 9,
                                .base_version = 3,
                                .base_step = -1,
                                .token = -2,
                                .examples = 100,
                                .loss = 0.25F,
                                .dtype = DTYPE_BFLOAT16,
                                .ranges = {ranges, 3}};
    union message got;
    struct error error;
    size_t size;
    uint8_t *bytes = encode(MESSAGE_push, &push, &size);
    assert_true(message_decode(PROTOCOL_VERSION_MAX, MESSAGE_push, bytes, size, 32, &got, &error));
    assert_int_equal(got.push.ranges.count, 3);
    assert_true(got.push.loss == 0.25F && got.push.token == -2 && got.push.base_step == -1);
    assert_true(range_get(&got.push.ranges, 2).first == 0x100000000);
    assert_int_equal(ranges_total(&got.push.ranges), 16);
    assert_false(message_decode(PROTOCOL_VERSION_MAX, MESSAGE_push, bytes, size, 64, &got, &error));
    assert_non_null(strstr(error.text, "its ranges take 32 bytes of bulk, and it has 64"));
    bytes[size] = 0;
    assert_false(message_decode(PROTOCOL_VERSION_MAX, MESSAGE_push, bytes, size + 1, 32, &got, &error));
    assert_non_null(strstr(error.text, "1 bytes too many"));
    free(bytes);
}

static void check_ranges(struct range a, struct range b, bool fine)
{
    uint8_t ranges[2 * RANGE_BYTES];
    range_put(ranges, 0, a);
    range_put(ranges, 1, b);
    struct message_pull pull = {.ranges = {ranges, 2}};
    union message got;
    struct error error;
    size_t size;
    uint8_t *bytes = encode(MESSAGE_pull, &pull, &size);
    assert_int_equal(message_decode(PROTOCOL_VERSION_MAX, MESSAGE_pull, bytes, size, 0, &got, &error), fine);
    free(bytes);
}

TEST(ranges_are_in_order)
{
    check_ranges((struct range){0, 1}, (struct range){1, 1}, true);
    check_ranges((struct range){0, 2}, (struct range){1, 1}, false);
    check_ranges((struct range){5, 1}, (struct range){1, 1}, false);
    check_ranges((struct range){0, 0}, (struct range){1, 1}, false);
    check_ranges((struct range){0, 1}, (struct range){UINT64_MAX, 1}, false);
    check_ranges((struct range){0, 1}, (struct range){UINT64_MAX - 1, 1}, true);
    check_ranges((struct range){0, 1}, (struct range){UINT64_MAX - 5, UINT32_MAX}, false);
}

TEST(limits_hold)
{
    union message got;
    struct error error;
    size_t size;
    struct message_welcome welcome = {.role = 3, .program = "x"};
    uint8_t *bytes = encode(MESSAGE_welcome, &welcome, &size);
    assert_true(message_decode(PROTOCOL_VERSION_MAX, MESSAGE_welcome, bytes, size, 0, &got, &error));
    bytes[2 + 5 + 1] = 4; /* role */
    assert_false(message_decode(PROTOCOL_VERSION_MAX, MESSAGE_welcome, bytes, size, 0, &got, &error));
    assert_non_null(strstr(error.text, "role is 4; at most 3"));
    bytes[2 + 5 + 1] = 3;
    bytes[2] = 65; /* size of program */
    assert_false(message_decode(PROTOCOL_VERSION_MAX, MESSAGE_welcome, bytes, size, 0, &got, &error));
    assert_non_null(strstr(error.text, "program has 65 bytes; at most 64"));
    bytes[2] = 1;
    bytes[2 + 4] = 0; /* its first character */
    assert_false(message_decode(PROTOCOL_VERSION_MAX, MESSAGE_welcome, bytes, size, 0, &got, &error));
    assert_non_null(strstr(error.text, "program is not a text"));
    free(bytes);
}

/* Our own texts that are too long are cut between characters. */
TEST(long_texts_are_cut)
{
    char text[80];
    memset(text, 'a', sizeof text);
    memcpy(text + 62, "\xe2\x82\xac", 4); /* a euro sign across the limit of 64 */
    struct message_hello hello = {.program = text};
    union message got;
    struct error error;
    size_t size;
    uint8_t *bytes = encode(MESSAGE_hello, &hello, &size);
    assert_true(message_decode(PROTOCOL_VERSION_MAX, MESSAGE_hello, bytes, size, 0, &got, &error));
    assert_int_equal(strlen(got.hello.program), 62);
    free(bytes);
    for (int last = 0x80; last <= 0xbf; last++) { /* any character of two bytes */
        memset(text, 'a', sizeof text);
        memcpy(text + 63, (const char[]){(char)0xc2, (char)last, '\0'}, 3);
        bytes = encode(MESSAGE_hello, &hello, &size);
        assert_true(message_decode(PROTOCOL_VERSION_MAX, MESSAGE_hello, bytes, size, 0, &got, &error));
        assert_int_equal(strlen(got.hello.program), 63);
        free(bytes);
    }
}

/* Invalid UTF-8 is refused and never sent: a peer's text goes to terminals and into JSON. */
TEST(texts_are_utf8)
{
    static const char *const bad[] = {
        "\x80", "a\xff", "\xc0\xaf", "\xe2\x82", "\xed\xa0\x80", "\xf5\x80\x80\x80", "\xf0\x80\x80\xaf", "ok \xe2\x82"};
    union message got;
    struct error error;
    size_t size;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const struct message_leave leave = {.message = bad[i]};
        uint8_t *bytes = encode(MESSAGE_leave, &leave, &size);
        assert_true(message_decode(PROTOCOL_VERSION_MAX, MESSAGE_leave, bytes, size, 0, &got, &error));
        assert_int_equal(strlen(got.leave.message), strlen(bad[i]));
        assert_non_null(strchr(got.leave.message, '?'));
        memcpy(bytes + 4, bad[i], strlen(bad[i]));
        assert_false(message_decode(PROTOCOL_VERSION_MAX, MESSAGE_leave, bytes, size, 0, &got, &error));
        assert_string_equal(error.text, "leave message: message is not UTF-8");
        free(bytes);
    }
    const struct message_leave leave = {.message = "\xe2\x82\xac \xf0\x9f\x8e\x89 z\xc3\xbcrich"};
    uint8_t *bytes = encode(MESSAGE_leave, &leave, &size);
    assert_true(message_decode(PROTOCOL_VERSION_MAX, MESSAGE_leave, bytes, size, 0, &got, &error));
    assert_string_equal(got.leave.message, leave.message);
    free(bytes);
}

/* Steps received from peers are added and subtracted. */
TEST(steps_leave_room_to_count)
{
    static const int64_t steps[] = {MESSAGE_MAX_SIGNED,      -MESSAGE_MAX_SIGNED, MESSAGE_MAX_SIGNED + 1,
                                    -MESSAGE_MAX_SIGNED - 1, INT64_MAX,           INT64_MIN};
    union message got;
    struct error error;
    size_t size;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        const struct message_push push = {.sequence = 1, .base_step = steps[i]};
        uint8_t *bytes = encode(MESSAGE_push, &push, &size);
        assert_int_equal(message_decode(PROTOCOL_VERSION_MAX, MESSAGE_push, bytes, size, 0, &got, &error), i < 2);
        free(bytes);
    }
    assert_non_null(strstr(error.text, "push message: base_step is -9223372036854775808; at most 2^53"));
}

/* Any message with bytes changed or cut is decoded or refused, and what is decoded encodes to the same bytes. */
TEST(damaged_messages)
{
    struct test_random random = test_random_begin("damaged_messages");
    int decoded = 0;
    for (int i = 0; i < 200000; i++) {
        uint8_t bytes[256], again[256];
        union message empty = {0}, message;
        struct error error;
        const uint16_t version = (uint16_t)(1 + test_random_below(&random, PROTOCOL_VERSION_MAX));
        uint16_t type = (uint16_t)(1 + test_random_below(&random, MESSAGE_TYPES - 1));
        size_t size = message_size(version, type, &empty);
        message_encode(version, type, &empty, bytes, size);
        for (int damage = test_random_below(&random, 4); damage > 0; damage--) {
            bytes[test_random_below(&random, (int)size)] = (uint8_t)test_random_next(&random);
        }
        if (test_random_below(&random, 8) == 0) {
            size = (size_t)test_random_below(&random, (int)size);
        }
        if (message_decode(version, type, bytes, size, 0, &message, &error)) {
            size_t used = message_size(version, type, &message);
            assert_true(used <= size);
            message_encode(version, type, &message, again, used);
            assert_memory_equal(again, bytes, used);
            decoded++;
        }
    }
    assert_true(decoded > 50000 && decoded < 199000);
}

TEST(frames)
{
    struct frame frame = {1, MESSAGE_push, 0x1122334455667788, 5, FRAME_LAST, 100, 4096}, got;
    struct error error;
    uint8_t bytes[FRAME_HEADER], again[FRAME_HEADER];
    frame_encode(&frame, bytes);
    assert_true(frame_decode(bytes, &got, &error));
    assert_true(got.request == frame.request && got.generation == 5 && got.bulk_bytes == 4096);
    frame_encode(&got, again);
    assert_memory_equal(again, bytes, sizeof bytes);
    bytes[0] = 'X';
    assert_false(frame_decode(bytes, &got, &error));
    assert_non_null(strstr(error.text, "58 52 4e 52"));
    frame.type = MESSAGE_TYPES;
    frame_encode(&frame, bytes);
    assert_false(frame_decode(bytes, &got, &error));
    assert_non_null(strstr(error.text, "unknown type"));
    frame.type = 0;
    frame_encode(&frame, bytes);
    assert_false(frame_decode(bytes, &got, &error));
    frame.type = MESSAGE_push;
    frame.flags = 2;
    frame_encode(&frame, bytes);
    assert_false(frame_decode(bytes, &got, &error));
    frame.flags = 0;
    assert_int_equal(message_max_size(0), 0); /* of unknown types */
    assert_int_equal(message_max_size(9999), 0);
    assert_int_equal(message_max_bulk(0), 0);
    assert_int_equal(message_max_bulk(9999), 0);
    frame.message_bytes = message_max_size(MESSAGE_push);
    frame.bulk_bytes = message_max_bulk(MESSAGE_push);
    frame_encode(&frame, bytes);
    assert_true(frame_decode(bytes, &got, &error)); /* all that there may be of both */
    frame.bulk_bytes = 0;
    frame.message_bytes = message_max_size(MESSAGE_push) + 1;
    frame_encode(&frame, bytes);
    assert_false(frame_decode(bytes, &got, &error));
    assert_non_null(strstr(error.text, "push frame with a message of"));
    frame.message_bytes = 0;
    frame.bulk_bytes = message_max_bulk(MESSAGE_push) + 1;
    frame_encode(&frame, bytes);
    assert_false(frame_decode(bytes, &got, &error));
    frame.type = MESSAGE_ping;
    frame.bulk_bytes = 1;
    frame_encode(&frame, bytes);
    assert_false(frame_decode(bytes, &got, &error));
}

/* Is a message that has these ranges, of this dtype, and so much bulk accepted? */
static bool is_fine(uint16_t type, enum dtype dtype, const uint32_t *counts, uint32_t bulk_bytes, struct error *error)
{
    static uint8_t bytes[4 * RANGE_BYTES];
    struct ranges ranges = {bytes, 0};
    uint64_t first = 0;
    union message message = {0}, got;
    size_t size;
    for (; counts[ranges.count] > 0; ranges.count++) {
        range_put(bytes, ranges.count, (struct range){first, counts[ranges.count]});
        first += counts[ranges.count];
    }
    switch (type) {
    case MESSAGE_write:
        message.write = (struct message_write){.dtype = (uint8_t)dtype, .ranges = ranges};
        break;
    case MESSAGE_values:
        message.values = (struct message_values){.dtype = (uint8_t)dtype, .ranges = ranges};
        break;
    case MESSAGE_push:
        message.push = (struct message_push){.dtype = (uint8_t)dtype, .ranges = ranges};
        break;
    default:
        message.pushed = (struct message_pushed){.dtype = (uint8_t)dtype, .ranges = ranges};
        break;
    }
    uint8_t *encoded = encode(type, &message, &size);
    const bool fine = message_decode(PROTOCOL_VERSION_MAX, type, encoded, size, bulk_bytes, &got, error);
    free(encoded);
    return fine;
}

/* Whatever has ranges has just the bulk that these take. */
TEST(bulk_is_what_its_ranges_take)
{
    static const uint16_t types[] = {MESSAGE_write, MESSAGE_values, MESSAGE_push, MESSAGE_pushed};
    static const struct {
        enum dtype dtype;
        uint32_t counts[4], bytes;
    } cases[] = {{DTYPE_FLOAT32, {0}, 0},
                 {DTYPE_FLOAT32, {1, 100000}, 400004},
                 {DTYPE_BFLOAT16, {3, 4}, 14},
                 {DTYPE_INT8, {0}, 0},
                 {DTYPE_INT8, {1}, 5},
                 {DTYPE_INT8, {64}, 68},
                 {DTYPE_INT8, {65}, 73},
                 {DTYPE_INT8, {1, 128, 129}, 5 + 136 + 141},
                 {DTYPE_INT8, {PACKED_FLOATS, 2}, PACKED_FLOATS + PACKED_FLOATS / 16 + 6}};
    struct error error;
    for (size_t i = 0; i < 4 * sizeof cases / sizeof *cases; i++) {
        const uint16_t type = types[i % 4];
        const uint32_t *const counts = cases[i / 4].counts, bytes = cases[i / 4].bytes;
        if (type == MESSAGE_write && cases[i / 4].dtype == DTYPE_INT8) {
            continue;
        }
        assert_true(is_fine(type, cases[i / 4].dtype, counts, bytes, &error));
        assert_false(is_fine(type, cases[i / 4].dtype, counts, bytes + 1, &error));
        char words[160];
        snprintf(words, sizeof words, "%s message: its ranges take %u bytes of bulk, and it has %u", message_name(type),
                 bytes, bytes + 1);
        assert_string_equal(error.text, words);
        assert_true(bytes == 0 || !is_fine(type, cases[i / 4].dtype, counts, bytes - 1, &error));
    }
}

/* What is packed takes as much as it takes, which its reader sees; but it comes in small pieces. */
TEST(what_is_packed_is_small)
{
    static const uint32_t most[] = {1, PACKED_FLOATS, 0}, more[] = {1, PACKED_FLOATS + 1, 0};
    static const uint32_t whole[] = {1, DIFFERENCES_FLOATS - 1, 0}, too_many[] = {1, DIFFERENCES_FLOATS, 0};
    struct error error;
    for (int dtype = DTYPE_INT8; dtype <= DTYPE_LARGEST_INT8; dtype++) {
        for (uint32_t bulk = 0; bulk < 10 && dtype > DTYPE_INT8; bulk += 3) {
            assert_true(is_fine(MESSAGE_push, (enum dtype)dtype, most, bulk, &error));
        }
        assert_false(is_fine(MESSAGE_push, (enum dtype)dtype, more, 0, &error));
        assert_string_equal(error.text, "push message: a range of 8193 packed floats; at most 8192 are allowed");
    }
    assert_true(is_fine(MESSAGE_values, DTYPE_DIFFERENCES, whole, 7, &error));
    assert_true(is_fine(MESSAGE_pushed, DTYPE_DIFFERENCES, whole, 0, &error));
    assert_false(is_fine(MESSAGE_values, DTYPE_DIFFERENCES, too_many, 7, &error));
    assert_string_equal(error.text, "values message: differences of 16385 floats; at most 16384 are allowed");
    assert_false(is_fine(MESSAGE_push, DTYPE_DIFFERENCES, whole, 7, &error));
    assert_string_equal(error.text, "push message: differences are for parameters");
}

TEST(bulk_of_a_batch)
{
    const struct message_batch batch = {.examples = 3, .pixels = 784, .description = ""};
    union message got;
    struct error error;
    size_t size;
    uint8_t *bytes = encode(MESSAGE_batch, &batch, &size);
    assert_true(message_decode(PROTOCOL_VERSION_MAX, MESSAGE_batch, bytes, size, 2358, &got, &error));
    assert_false(message_decode(PROTOCOL_VERSION_MAX, MESSAGE_batch, bytes, size, 2357, &got, &error));
    assert_string_equal(error.text, "batch message: its examples take 2358 bytes of bulk, and it has 2357");
    free(bytes);
}

/* Ranges are as many as they say, which is no more than a message may have. */
TEST(ranges_that_are_cut_or_many)
{
    enum { MOST = 65536 };
    uint8_t *ranges = malloc((size_t)(MOST + 1) * RANGE_BYTES);
    struct message_pull pull = {.ranges = {ranges, 2}};
    union message got;
    struct error error;
    size_t size;
    for (uint32_t i = 0; i < MOST; i++) {
        range_put(ranges, i, (struct range){2 * (uint64_t)i, 1});
    }
    uint8_t *bytes = encode(MESSAGE_pull, &pull, &size);
    for (size_t cut = 0; cut < size; cut++) {
        uint8_t *part = malloc(cut + 1); /* so that the sanitizer sees who reads on */
        memcpy(part + 1, bytes, cut);
        assert_false(message_decode(PROTOCOL_VERSION_MAX, MESSAGE_pull, part + 1, cut, 0, &got, &error));
        assert_ptr_equal(strstr(error.text, "pull message ends in the middle of "), error.text);
        free(part);
    }
    free(bytes);
    pull.ranges.count = MOST;
    bytes = encode(MESSAGE_pull, &pull, &size);
    assert_true(message_decode(PROTOCOL_VERSION_MAX, MESSAGE_pull, bytes, size, 0, &got, &error));
    assert_int_equal(got.pull.ranges.count, MOST);
    assert_int_equal(ranges_total(&got.pull.ranges), MOST);
    const size_t count_at = size - (size_t)MOST * RANGE_BYTES - 4;
    memcpy(bytes + count_at, (uint8_t[]){1, 0, 1, 0}, 4);
    assert_false(message_decode(PROTOCOL_VERSION_MAX, MESSAGE_pull, bytes, size, 0, &got, &error));
    assert_string_equal(error.text, "pull message: 65537 ranges; at most 65536 are allowed");
    free(bytes);
    free(ranges);
}

/* A text that is just as long as it may be goes as it is; of one that is no text at all nothing may be left. */
TEST(texts_at_their_limit)
{
    char text[81] = "";
    struct message_hello hello = {.program = text};
    union message got;
    struct error error;
    size_t size;
    memset(text, 'a', 64);
    uint8_t *bytes = encode(MESSAGE_hello, &hello, &size);
    assert_true(message_decode(PROTOCOL_VERSION_MAX, MESSAGE_hello, bytes, size, 0, &got, &error));
    assert_string_equal(got.hello.program, text);
    free(bytes);
    memset(text, 0x80, 80);
    bytes = encode(MESSAGE_hello, &hello, &size);
    assert_true(message_decode(PROTOCOL_VERSION_MAX, MESSAGE_hello, bytes, size, 0, &got, &error));
    assert_string_equal(got.hello.program, "");
    free(bytes);
}

TEST(states_have_names)
{
    assert_string_equal(member_state_name(STATE_ABSENT), "absent");
    assert_string_equal(member_state_name(STATE_TRAINING), "training");
    assert_string_equal(member_state_name(STATE_FAILED), "failed");
    assert_string_equal(member_state_name((enum member_state)(STATE_FAILED + 1)), "unknown");
    assert_string_equal(message_name(MESSAGE_TYPES), "unknown");
    assert_string_equal(message_name(0), "unknown");
}

int main(void)
{
    return check_run(NULL, NULL);
}
