/* Parses straight from the record: nothing is copied. */
#include "worker/data/tfrecord/feature.h"

#include <string.h>

bool feature_entry(const struct proto_field *entry, struct proto_field *key, struct proto_field *value)
{
    struct proto_reader reader = proto_read(entry->bytes, entry->size);
    struct proto_field field;
    *key = *value = (struct proto_field){0};
    while (proto_next(&reader, &field)) {
        if (field.wire == PROTO_BYTES && field.number == EXAMPLE_KEY) {
            *key = field;
        } else if (field.wire == PROTO_BYTES && field.number == EXAMPLE_VALUE) {
            *value = field;
        }
    }
    return !reader.damaged;
}

bool feature_read(struct feature *feature, const struct proto_field *value)
{
    struct proto_reader reader = proto_read(value->bytes, value->size);
    struct proto_field list;
    while (proto_next(&reader, &list)) {
        if (list.wire == PROTO_BYTES && list.number >= FEATURE_BYTES && list.number <= FEATURE_INTEGERS) {
            *feature = (struct feature){(enum feature_kind)list.number, list.bytes, list.size};
        }
    }
    return !reader.damaged;
}

struct feature_walk feature_walk(const struct feature *feature)
{
    return (struct feature_walk){.list = proto_read(feature->bytes, feature->size)};
}

static bool next_packed(struct feature_walk *walk, enum feature_kind kind, double *number)
{
    uint64_t bits;
    if (kind == FEATURE_INTEGERS) {
        if (!proto_next_varint(&walk->packed, &bits)) {
            return false;
        }
        *number = (double)(int64_t)bits;
        return true;
    }
    if (walk->packed.size - walk->packed.at < 4) {
        walk->packed.damaged = walk->packed.damaged || walk->packed.at < walk->packed.size;
        return false;
    }
    float value;
    memcpy(&value, walk->packed.bytes + walk->packed.at, sizeof value);
    walk->packed.at += sizeof value;
    *number = (double)value;
    return true;
}

bool feature_next(struct feature_walk *walk, enum feature_kind kind, double *number)
{
    struct proto_field field;
    for (;;) {
        if (next_packed(walk, kind, number)) {
            return true;
        }
        walk->list.damaged = walk->list.damaged || walk->packed.damaged;
        if (walk->list.damaged || !proto_next(&walk->list, &field)) {
            return false;
        }
        if (field.number != FEATURE_LIST) {
            continue;
        }
        if (field.wire == PROTO_BYTES) {
            walk->packed = proto_read(field.bytes, field.size);
        } else if (kind == FEATURE_INTEGERS && field.wire == PROTO_VARINT) {
            *number = (double)(int64_t)field.value;
            return true;
        } else if (kind == FEATURE_FLOATS && field.wire == PROTO_FIXED32) {
            *number = (double)proto_float_of(field.value);
            return true;
        } else {
            walk->list.damaged = true;
        }
    }
}

bool feature_bytes(const struct feature *feature, struct proto_field *raw)
{
    struct proto_reader list = proto_read(feature->bytes, feature->size);
    return proto_next(&list, raw) && raw->number == FEATURE_LIST && raw->wire == PROTO_BYTES;
}

int feature_dtype_bytes(enum label_dtype dtype)
{
    static const int bytes[] = {
        [LABEL_UINT8] = 1, [LABEL_INT32] = 4, [LABEL_INT64] = 8, [LABEL_FLOAT32] = 4, [LABEL_FLOAT64] = 8};
    return bytes[dtype];
}

double feature_raw_number(const uint8_t *bytes, enum label_dtype dtype)
{
    uint64_t bits = 0;
    float single;
    double number;
    memcpy(&bits, bytes, (size_t)feature_dtype_bytes(dtype));
    const uint32_t low = (uint32_t)bits;
    switch (dtype) {
    case LABEL_INT32:
        return (double)(int32_t)low;
    case LABEL_INT64:
        return (double)(int64_t)bits;
    case LABEL_FLOAT32:
        memcpy(&single, &low, sizeof single);
        return (double)single;
    case LABEL_FLOAT64:
        memcpy(&number, &bits, sizeof number);
        return number;
    case LABEL_AUTO:
    case LABEL_UINT8:
        break;
    }
    return (double)bits;
}
