/* A nested message is written after room for a one-byte length, and moved if its length turns out to need more. */
#include "base/encoding/proto.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

enum { MAX_VARINT = 10 };

void proto_free(struct proto *proto)
{
    free(proto->bytes);
    *proto = (struct proto){0};
}

void proto_clear(struct proto *proto)
{
    proto->size = 0;
}

/* Makes room for `size` more bytes at the end. */
static uint8_t *extend(struct proto *proto, size_t size)
{
    if (proto->capacity - proto->size < size) {
        size_t capacity = proto->capacity < 256 ? 256 : proto->capacity;
        while (capacity - proto->size < size && capacity <= SIZE_MAX / 2) {
            capacity *= 2;
        }
        capacity = capacity - proto->size < size ? SIZE_MAX : capacity;
        proto->bytes = must_grow(proto->bytes, capacity, 1, "a protobuf message");
        proto->capacity = capacity;
    }
    uint8_t *end = proto->bytes + proto->size;
    proto->size += size;
    return end;
}

static size_t encode_varint(uint8_t bytes[MAX_VARINT], uint64_t value)
{
    size_t used = 0;
    while (value >= 0x80) {
        bytes[used++] = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    bytes[used++] = (uint8_t)value;
    return used;
}

void proto_raw(struct proto *proto, const void *bytes, size_t size)
{
    if (size > 0) {
        memcpy(extend(proto, size), bytes, size);
    }
}

static void put_varint(struct proto *proto, uint64_t value)
{
    uint8_t bytes[MAX_VARINT];
    const size_t size = encode_varint(bytes, value);
    proto_raw(proto, bytes, size);
}

static void put_key(struct proto *proto, int field, enum proto_wire wire)
{
    assert(field > 0);
    put_varint(proto, (uint64_t)field << 3 | (uint64_t)wire);
}

static void put_fixed(struct proto *proto, uint64_t bits, size_t size)
{
    uint8_t bytes[8];
    for (size_t i = 0; i < size; i++) {
        bytes[i] = (uint8_t)(bits >> (8 * i));
    }
    proto_raw(proto, bytes, size);
}

void proto_integer(struct proto *proto, int field, int64_t value)
{
    put_key(proto, field, PROTO_VARINT);
    put_varint(proto, (uint64_t)value);
}

void proto_float(struct proto *proto, int field, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_key(proto, field, PROTO_FIXED32);
    put_fixed(proto, bits, sizeof bits);
}

static void put_double(struct proto *proto, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_fixed(proto, bits, sizeof bits);
}

void proto_double(struct proto *proto, int field, double value)
{
    put_key(proto, field, PROTO_FIXED64);
    put_double(proto, value);
}

void proto_bytes(struct proto *proto, int field, const void *bytes, size_t size)
{
    put_key(proto, field, PROTO_BYTES);
    put_varint(proto, size);
    proto_raw(proto, bytes, size);
}

void proto_text(struct proto *proto, int field, const char *text)
{
    proto_bytes(proto, field, text, strlen(text));
}

void proto_packed_integers(struct proto *proto, int field, const int64_t *values, size_t count)
{
    size_t begun = proto_begin(proto, field);
    for (size_t i = 0; i < count; i++) {
        put_varint(proto, (uint64_t)values[i]);
    }
    proto_end(proto, begun);
}

void proto_packed_doubles(struct proto *proto, int field, const double *values, size_t count)
{
    put_key(proto, field, PROTO_BYTES);
    put_varint(proto, count * sizeof *values);
    for (size_t i = 0; i < count; i++) {
        put_double(proto, values[i]);
    }
}

size_t proto_begin(struct proto *proto, int field)
{
    put_key(proto, field, PROTO_BYTES);
    *extend(proto, 1) = 0;
    return proto->size;
}

void proto_end(struct proto *proto, size_t begun)
{
    uint8_t length[MAX_VARINT];
    assert(begun > 0 && begun <= proto->size);
    size_t size = proto->size - begun, used = encode_varint(length, size);
    if (used > 1) {
        extend(proto, used - 1);
        memmove(proto->bytes + begun + used - 1, proto->bytes + begun, size);
    }
    memcpy(proto->bytes + begun - 1, length, used);
}

struct proto_reader proto_read(const void *bytes, size_t size)
{
    return (struct proto_reader){.bytes = bytes, .size = size};
}

bool proto_read_varint(struct proto_reader *reader, uint64_t *value)
{
    uint64_t number = 0;
    for (int shift = 0; shift < 64 && reader->at < reader->size; shift += 7) {
        uint8_t byte = reader->bytes[reader->at++];
        number |= (uint64_t)(byte & 0x7F) << shift; /* the tenth byte has one bit that counts */
        if (byte < 0x80) {
            *value = number;
            return true;
        }
    }
    return proto_fail(reader);
}

static bool next_fixed(struct proto_reader *reader, size_t size, uint64_t *value)
{
    if (reader->size - reader->at < size) {
        return proto_fail(reader);
    }
    *value = 0;
    for (size_t i = 0; i < size; i++) {
        *value |= (uint64_t)reader->bytes[reader->at++] << (8 * i);
    }
    return true;
}

bool proto_next_other(struct proto_reader *reader, struct proto_field *field)
{
    switch (field->wire) {
    case PROTO_VARINT:
        return proto_next_varint(reader, &field->value) || proto_fail(reader);
    case PROTO_FIXED64:
        return next_fixed(reader, 8, &field->value);
    case PROTO_FIXED32:
        return next_fixed(reader, 4, &field->value);
    case PROTO_BYTES:
        break;
    }
    return proto_fail(reader); /* groups, which are obsolete, and unknown wire types */
}

float proto_float_of(uint64_t bits)
{
    uint32_t word = (uint32_t)bits;
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}
