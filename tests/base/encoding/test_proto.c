/* Messages compared with bytes worked out from the encoding's documentation; readers on every kind of damage. */
#include "base/encoding/proto.h"
#include "tests/check.h"

#include <stdlib.h>
#include <string.h>

#include "tests/random.h"

TEST(known_messages)
{
    struct proto proto = {0};
    proto_integer(&proto, 1, 150); /* the documentation's own examples */
    proto_text(&proto, 2, "testing");
    size_t begun = proto_begin(&proto, 3);
    proto_integer(&proto, 1, 150);
    proto_end(&proto, begun);
    static const int64_t packed[] = {3, 270, 86942};
    proto_packed_integers(&proto, 6, packed, 3);
    proto_integer(&proto, 1, -2);
    proto_float(&proto, 16, 1.5f);
    static const uint8_t expected[] = {0x08, 0x96, 0x01, 0x12, 0x07, 't',  'e',  's',  't',  'i',  'n',
                                       'g',  0x1a, 0x03, 0x08, 0x96, 0x01, 0x32, 0x06, 0x03, 0x8e, 0x02,
                                       0x9e, 0xa7, 0x05, 0x08, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
                                       0xff, 0xff, 0x01, 0x85, 0x01, 0x00, 0x00, 0xc0, 0x3f};
    assert_int_equal(proto.size, sizeof expected);
    assert_memory_equal(proto.bytes, expected, sizeof expected);
    proto_free(&proto);
}

/* A nested message whose length takes one, two, three and four bytes. */
TEST(nested_lengths)
{
    static const size_t sizes[] = {0, 1, 120, 127, 128, 129, 16380, 16383, 16384, 16390, 3000000};
    uint8_t *content = malloc(3000000);
    assert_non_null(content);
    memset(content, 0x5A, 3000000);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct proto proto = {0};
        size_t outer = proto_begin(&proto, 1), inner = proto_begin(&proto, 2);
        proto_raw(&proto, content, sizes[i]);
        proto_end(&proto, inner);
        proto_end(&proto, outer);
        struct proto_reader reader = proto_read(proto.bytes, proto.size);
        struct proto_field field;
        assert_true(proto_next(&reader, &field) && field.number == 1 && field.wire == PROTO_BYTES);
        struct proto_reader nested = proto_read(field.bytes, field.size);
        assert_false(proto_next(&reader, &field) || reader.damaged);
        assert_true(proto_next(&nested, &field) && field.number == 2);
        assert_int_equal(field.size, sizes[i]);
        assert_memory_equal(field.bytes, content, sizes[i]);
        assert_false(proto_next(&nested, &field) || nested.damaged);
        proto_free(&proto);
    }
    free(content);
}

TEST(numbers_read_back)
{
    struct test_random random = test_random_begin(__func__);
    struct proto proto = {0};
    uint64_t values[200];
    for (int i = 0; i < 200; i++) {
        values[i] = test_random_next(&random) >> (i % 64);
        proto_integer(&proto, 1 + i, (int64_t)values[i]);
        proto_double(&proto, 5, (double)values[i]);
        proto_float(&proto, 5, (float)i);
    }
    struct proto_reader reader = proto_read(proto.bytes, proto.size);
    struct proto_field field;
    for (int i = 0; i < 200; i++) {
        double number;
        assert_true(proto_next(&reader, &field) && field.number == 1 + i && field.value == values[i]);
        assert_true(proto_next(&reader, &field) && field.wire == PROTO_FIXED64);
        memcpy(&number, &field.value, sizeof number);
        assert_true(number == (double)values[i]);
        assert_true(proto_next(&reader, &field) && proto_float_of(field.value) == (float)i);
    }
    assert_false(proto_next(&reader, &field) || reader.damaged);
    proto_free(&proto);
}

/* Cut anywhere, a message either ends between two fields or is found damaged; no byte beyond it is ever read. */
TEST(cut_messages)
{
    struct proto proto = {0};
    proto_integer(&proto, 1, 1 << 20);
    proto_double(&proto, 2, 1);
    proto_float(&proto, 3, 1);
    proto_text(&proto, 4, "abc");
    int damaged = 0;
    for (size_t size = 0; size <= proto.size; size++) {
        uint8_t *copy = malloc(size + 1);
        assert_non_null(copy);
        memcpy(copy, proto.bytes, size);
        uint8_t *exact = realloc(copy, size > 0 ? size : 1);
        struct proto_reader reader = proto_read(exact, size);
        struct proto_field field;
        while (proto_next(&reader, &field)) {
        }
        damaged += reader.damaged;
        free(exact);
    }
    assert_int_equal(damaged, (int)proto.size + 1 - 5);
    proto_free(&proto);
}

TEST(empty_messages)
{
    struct proto_reader reader = proto_read(NULL, 0);
    struct proto_field field;
    uint64_t value;
    assert_false(proto_next(&reader, &field));
    assert_false(proto_next_varint(&reader, &value));
    assert_false(reader.damaged);
}

static void refuses(const uint8_t *bytes, size_t size)
{
    struct proto_reader reader = proto_read(bytes, size);
    struct proto_field field;
    assert_false(proto_next(&reader, &field));
    assert_true(reader.damaged);
    assert_false(proto_next(&reader, &field)); /* for good */
}

TEST(impossible_fields)
{
    refuses((const uint8_t[]){0x00, 0x01}, 2);                                                  /* field 0 */
    refuses((const uint8_t[]){0x0B, 0x01}, 2);                                                  /* a group */
    refuses((const uint8_t[]){0x0F, 0x01}, 2);                                                  /* no such type */
    refuses((const uint8_t[]){0x0A, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01}, 10); /* 2^63 bytes */
    refuses((const uint8_t[]){0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01}, 12);
    refuses((const uint8_t[]){0x88, 0x80, 0x80, 0x80, 0x80, 0x01, 0x00}, 7); /* a number beyond 2^29 */
}

int main(void)
{
    return check_run(NULL, NULL);
}
