/*
 * The protocol buffers wire format, used by TensorFlow's files (tf.train.Example, summaries) and ONNX models.
 *
 * No schema: the caller passes field numbers. Format: https://protobuf.dev/programming-guides/encoding/.
 */
#ifndef BASE_ENCODING_PROTO_H
#define BASE_ENCODING_PROTO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum proto_wire { PROTO_VARINT = 0, PROTO_FIXED64 = 1, PROTO_BYTES = 2, PROTO_FIXED32 = 5 };

/*
 * A message being written into memory that grows. A zeroed struct is empty; proto_free releases it.
 */
struct proto {
    uint8_t *bytes;
    size_t size, capacity;
};

void proto_free(struct proto *proto);
void proto_clear(struct proto *proto); /* empty again, its memory kept */

/* An integer, bool or enum; a negative int64 as its two's complement, as protobuf requires. */
void proto_integer(struct proto *proto, int field, int64_t value);
void proto_float(struct proto *proto, int field, float value);
void proto_double(struct proto *proto, int field, double value);
void proto_bytes(struct proto *proto, int field, const void *bytes, size_t size);
void proto_text(struct proto *proto, int field, const char *text);
void proto_packed_integers(struct proto *proto, int field, const int64_t *values, size_t count);
void proto_packed_doubles(struct proto *proto, int field, const double *values, size_t count);

/* Begin and end a nested message; proto_end takes what proto_begin returned. */
size_t proto_begin(struct proto *proto, int field);
void proto_end(struct proto *proto, size_t begun);

/* Raw bytes, not wrapped in a field. */
void proto_raw(struct proto *proto, const void *bytes, size_t size);

/* A message being read; the bytes are borrowed and need not be trusted. */
struct proto_reader {
    const uint8_t *bytes;
    size_t size, at;
    bool damaged; /* it ended within a field, or is not a valid message */
};

struct proto_field {
    int number;
    enum proto_wire wire;
    uint64_t value;       /* of PROTO_VARINT, PROTO_FIXED64 and PROTO_FIXED32 */
    const uint8_t *bytes; /* of PROTO_BYTES, inside the message */
    size_t size;
};

struct proto_reader proto_read(const void *bytes, size_t size);

/* Helpers of the inline functions below; those are inline because files hold millions of records. */
bool proto_read_varint(struct proto_reader *reader, uint64_t *value);
bool proto_next_other(struct proto_reader *reader, struct proto_field *field);

/* Marks the message as damaged; always false. */
static inline bool proto_spoil(struct proto_reader *reader)
{
    reader->damaged = true;
    return false;
}

/* The next packed varint; false at the end or if damaged. */
static inline bool proto_next_varint(struct proto_reader *reader, uint64_t *value)
{
    if (reader->damaged || reader->at == reader->size) {
        return false; /* bytes may be NULL */
    }
    const uint8_t *next = reader->bytes + reader->at;
    if (next[0] < 0x80) {
        *value = next[0];
        reader->at++;
        return true;
    }
    if (reader->size - reader->at > 1 && next[1] < 0x80) {
        *value = (uint64_t)(next[0] & 0x7F) | (uint64_t)next[1] << 7;
        reader->at += 2;
        return true;
    }
    return proto_read_varint(reader, value);
}

/* The next field; false at the end of the message or if it is damaged. */
static inline bool proto_next(struct proto_reader *reader, struct proto_field *field)
{
    uint64_t key, size;
    if (!proto_next_varint(reader, &key)) {
        return false;
    }
    *field = (struct proto_field){.number = (int)(key >> 3 & 0x1FFFFFFF), .wire = (enum proto_wire)(key & 7)};
    if (field->number == 0 || key >> 32 != 0) {
        return proto_spoil(reader);
    }
    if (field->wire != PROTO_BYTES) {
        return proto_next_other(reader, field);
    }
    if (!proto_next_varint(reader, &size) || size > reader->size - reader->at) {
        return proto_spoil(reader);
    }
    field->bytes = reader->bytes + reader->at;
    field->size = (size_t)size;
    reader->at += (size_t)size;
    return true;
}

/* A PROTO_FIXED32 as a float. */
float proto_float_of(uint64_t bits);

#endif
