/*
 * One encoder and one decoder for all messages: they walk the table of a message's fields, which, like the structs, is
 * generated from net/message_table.h.
 */
#include "net/message.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/text/text.h"
#include "net/bytes.h"

enum field_kind {
    KIND_U8,
    KIND_U16,
    KIND_U32,
    KIND_U64,
    KIND_I32,
    KIND_I64,
    KIND_F32,
    KIND_F64,
    KIND_TEXT,
    KIND_RANGES
};

struct field {
    const char *name;
    enum field_kind kind;
    uint32_t limit;
    size_t offset; /* in the message's struct */
};

/* Bytes on the wire; for a text without its characters, for ranges without the ranges. */
static const uint8_t kind_sizes[] = {
    [KIND_U8] = 1,  [KIND_U16] = 2, [KIND_U32] = 4, [KIND_U64] = 8,  [KIND_I32] = 4,
    [KIND_I64] = 8, [KIND_F32] = 4, [KIND_F64] = 8, [KIND_TEXT] = 5, [KIND_RANGES] = 4};

/* One function per message, because only there a name can stand for the struct whose offsets are meant. */
#define FIELD_AS_ROW(field_kind, field_name, field_limit, text)                                                        \
    {.name = #field_name, .kind = KIND_##field_kind, .limit = field_limit, .offset = offsetof(identity, field_name)},
#define MESSAGE_AS_ROWS(number, message, bulk, text)                                                                   \
    static const struct field *fields_of_##message(void)                                                               \
    {                                                                                                                  \
        typedef struct message_##message identity;                                                                     \
        static const struct field rows[] = {MESSAGE_FIELDS_##message(FIELD_AS_ROW)};                                   \
        return rows;                                                                                                   \
    }
MESSAGE_TABLE(MESSAGE_AS_ROWS)

#define FIELD_MAX_U8(limit)                     1
#define FIELD_MAX_U16(limit)                    2
#define FIELD_MAX_U32(limit)                    4
#define FIELD_MAX_U64(limit)                    8
#define FIELD_MAX_I32(limit)                    4
#define FIELD_MAX_I64(limit)                    8
#define FIELD_MAX_F32(limit)                    4
#define FIELD_MAX_F64(limit)                    8
#define FIELD_MAX_TEXT(limit)                   (5 + (limit))
#define FIELD_MAX_RANGES(limit)                 (4 + (limit)*RANGE_BYTES)
#define FIELD_AS_COUNT(kind, name, limit, text) +1
#define FIELD_AS_MAX(kind, name, limit, text)   +FIELD_MAX_##kind(limit)

struct description {
    const char *name;
    const struct field *(*fields)(void);
    int field_count;
    uint32_t max_size, max_bulk;
};

#define MESSAGE_AS_DESCRIPTION(number, message, bulk, text)                                                            \
    [number] = {#message, fields_of_##message, MESSAGE_FIELDS_##message(FIELD_AS_COUNT),                               \
                MESSAGE_FIELDS_##message(FIELD_AS_MAX), bulk},
static const struct description descriptions[MESSAGE_TYPES] = {MESSAGE_TABLE(MESSAGE_AS_DESCRIPTION)};

/* The fields that each message has in a version: those of its struct up to the first one added later. */
#define ADDITION_AS_ROW(message, first, since)                                                                         \
    {.type = MESSAGE_##message, .version = (since), .offset = offsetof(struct message_##message, first)},
static const struct {
    uint16_t type, version;
    size_t offset;
} additions[] = {MESSAGE_ADDITIONS(ADDITION_AS_ROW){.type = MESSAGE_TYPES}};

static int field_count(uint16_t version, uint16_t type)
{
    const struct field *fields = descriptions[type].fields();
    int count = descriptions[type].field_count;
    for (size_t i = 0; i < sizeof additions / sizeof additions[0]; i++) {
        while (additions[i].type == type && version < additions[i].version &&
               fields[count - 1].offset >= additions[i].offset) {
            count--;
        }
    }
    return count;
}

bool message_known(uint16_t type)
{
    return type < MESSAGE_TYPES && descriptions[type].name;
}

const char *message_name(uint16_t type)
{
    return message_known(type) ? descriptions[type].name : "unknown";
}

/* Every version of the program reads hello and refused: later ones may append fields, which we skip. */
static bool may_be_longer(uint16_t type)
{
    return type == MESSAGE_hello || type == MESSAGE_refused;
}

uint32_t message_max_size(uint16_t type)
{
    return message_known(type) ? descriptions[type].max_size + (may_be_longer(type) ? MESSAGE_GROWTH : 0) : 0;
}

uint32_t message_max_bulk(uint16_t type)
{
    return message_known(type) ? descriptions[type].max_bulk : 0;
}

struct range range_get(const struct ranges *ranges, uint32_t i)
{
    assert(i < ranges->count);
    const uint8_t *bytes = ranges->bytes + (size_t)i * RANGE_BYTES;
    return (struct range){get_le64(bytes), get_le32(bytes + 8)};
}

void range_put(uint8_t *bytes, uint32_t i, struct range range)
{
    bytes += (size_t)i * RANGE_BYTES;
    put_le64(bytes, range.first);
    put_le32(bytes + 8, range.count);
}

uint64_t ranges_total(const struct ranges *ranges)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < ranges->count; i++) {
        total += range_get(ranges, i).count;
    }
    return total;
}

/* A text as sent: at most `limit` bytes, cut between characters. */
static size_t text_size(const char *text, uint32_t limit)
{
    size_t size = text ? strnlen(text, (size_t)limit + 1) : 0;
    if (size > limit) {
        size = limit;
        while (size > 0 && ((unsigned char)text[size] & 0xc0) == 0x80) {
            size--; /* a UTF-8 continuation byte: drop the whole character */
        }
    }
    return size;
}

size_t message_size(uint16_t version, uint16_t type, const void *message)
{
    assert(message_known(type));
    const struct field *fields = descriptions[type].fields();
    const int count = field_count(version, type);
    size_t size = 0;
    for (int i = 0; i < count; i++) {
        const char *from = (const char *)message + fields[i].offset;
        size += kind_sizes[fields[i].kind];
        if (fields[i].kind == KIND_TEXT) {
            const char *text;
            memcpy(&text, from, sizeof text);
            size += text_size(text, fields[i].limit);
        } else if (fields[i].kind == KIND_RANGES) {
            struct ranges ranges;
            memcpy(&ranges, from, sizeof ranges);
            assert(ranges.count <= fields[i].limit);
            size += (size_t)ranges.count * RANGE_BYTES;
        }
    }
    return size;
}

/* Encodes one field; returns where the next one goes. */
static uint8_t *put_field(const struct field *field, const char *from, uint8_t *to)
{
    uint16_t word;
    uint32_t number;
    uint64_t big;
    switch (field->kind) {
    case KIND_U8:
        *to = *(const uint8_t *)from;
        return to + 1;
    case KIND_U16:
        memcpy(&word, from, sizeof word);
        put_le16(to, word);
        return to + 2;
    case KIND_U32:
    case KIND_I32:
    case KIND_F32: /* IEEE 754 in memory, as on the wire */
        memcpy(&number, from, sizeof number);
        put_le32(to, number);
        return to + 4;
    case KIND_U64:
    case KIND_I64:
    case KIND_F64:
        memcpy(&big, from, sizeof big);
        put_le64(to, big);
        return to + 8;
    case KIND_TEXT: {
        const char *text;
        memcpy(&text, from, sizeof text);
        size_t size = text_size(text, field->limit);
        put_le32(to, (uint32_t)size);
        if (size > 0) {
            memcpy(to + 4, text, size);
            utf8_mend(to + 4, size); /* a truncated line, or a file name: peers refuse invalid UTF-8 */
        }
        to[4 + size] = 0;
        return to + 4 + size + 1;
    }
    case KIND_RANGES: {
        struct ranges ranges;
        memcpy(&ranges, from, sizeof ranges);
        put_le32(to, ranges.count);
        if (ranges.count > 0) {
            memcpy(to + 4, ranges.bytes, (size_t)ranges.count * RANGE_BYTES);
        }
        return to + 4 + (size_t)ranges.count * RANGE_BYTES;
    }
    }
    return to;
}

void message_encode(uint16_t version, uint16_t type, const void *message, uint8_t *bytes, size_t size)
{
    assert(size == message_size(version, type, message));
    const struct field *fields = descriptions[type].fields();
    const int count = field_count(version, type);
    uint8_t *to = bytes;
    for (int i = 0; i < count; i++) {
        to = put_field(&fields[i], (const char *)message + fields[i].offset, to);
    }
    assert(to == bytes + size);
}

/* The state of decoding. */
struct field_reader {
    const uint8_t *next, *end;
    const char *message;
    struct error *error;
};

static bool reader_need(struct field_reader *reader, const struct field *field, uint64_t size)
{
    if (size > (uint64_t)(reader->end - reader->next)) {
        return error_set(reader->error, "%s message ends in the middle of %s", reader->message, field->name);
    }
    return true;
}

static bool get_text(struct field_reader *reader, const struct field *field, char *to)
{
    uint32_t size = get_le32(reader->next);
    if (size > field->limit) {
        return error_set(reader->error, "%s message: %s has %u bytes; at most %u are allowed", reader->message,
                         field->name, size, field->limit);
    }
    if (!reader_need(reader, field, 4 + (uint64_t)size + 1)) {
        return false;
    }
    const char *text = (const char *)reader->next + 4;
    if (memchr(text, 0, (size_t)size + 1) != text + size) {
        return error_set(reader->error, "%s message: %s is not a text: its zero byte is not at its end",
                         reader->message, field->name);
    }
    if (!utf8_check(text, size)) {
        return error_set(reader->error, "%s message: %s is not UTF-8", reader->message, field->name);
    }
    memcpy(to, &text, sizeof text);
    reader->next += 4 + (size_t)size + 1;
    return true;
}

static bool get_ranges(struct field_reader *reader, const struct field *field, char *to)
{
    struct ranges ranges = {reader->next + 4, get_le32(reader->next)};
    if (ranges.count > field->limit) {
        return error_set(reader->error, "%s message: %u ranges; at most %u are allowed", reader->message, ranges.count,
                         field->limit);
    }
    if (!reader_need(reader, field, 4 + (uint64_t)ranges.count * RANGE_BYTES)) {
        return false;
    }
    uint64_t end = 0;
    for (uint32_t i = 0; i < ranges.count; i++) {
        struct range range = range_get(&ranges, i);
        if (range.count == 0 || range.first < end || range.first > UINT64_MAX - range.count) {
            return error_set(reader->error, "%s message: range %u of %s is empty, out of order or too far out",
                             reader->message, i, field->name);
        }
        end = range.first + range.count;
    }
    memcpy(to, &ranges, sizeof ranges);
    reader->next += 4 + (size_t)ranges.count * RANGE_BYTES;
    return true;
}

static bool check_limit(struct field_reader *reader, const struct field *field, uint64_t value)
{
    return field->limit == 0 || value <= field->limit ||
           error_set(reader->error, "%s message: %s is %llu; at most %u is allowed", reader->message, field->name,
                     (unsigned long long)value, field->limit);
}

/* A step, or a count: sums and small multiples of accepted values do not overflow. */
static bool get_signed(struct field_reader *reader, const struct field *field, char *to)
{
    const int64_t value = (int64_t)get_le64(reader->next);
    memcpy(to, &value, sizeof value);
    reader->next += sizeof value;
    return (value >= -MESSAGE_MAX_SIGNED && value <= MESSAGE_MAX_SIGNED) ||
           error_set(reader->error, "%s message: %s is %lld; at most 2^53 is allowed", reader->message, field->name,
                     (long long)value);
}

static bool get_field(struct field_reader *reader, const struct field *field, char *to)
{
    uint8_t size = kind_sizes[field->kind];
    if (!reader_need(reader, field, size)) {
        return false;
    }
    uint64_t value = 0;
    switch (field->kind) {
    case KIND_TEXT:
        return get_text(reader, field, to);
    case KIND_RANGES:
        return get_ranges(reader, field, to);
    case KIND_U8:
        value = *reader->next;
        *(uint8_t *)to = (uint8_t)value;
        break;
    case KIND_U16: {
        uint16_t word = get_le16(reader->next);
        memcpy(to, &word, sizeof word);
        value = word;
        break;
    }
    case KIND_U32:
    case KIND_I32:
    case KIND_F32: {
        uint32_t number = get_le32(reader->next);
        memcpy(to, &number, sizeof number);
        value = number;
        break;
    }
    case KIND_I64:
        return get_signed(reader, field, to);
    case KIND_U64:
    case KIND_F64:
        value = get_le64(reader->next);
        memcpy(to, &value, sizeof value);
        break;
    }
    reader->next += size;
    return check_limit(reader, field, value);
}

/*
 * Packed ranges are small. int8 takes a byte per float, and a scale for every 64; of others the reader checks the size.
 */
static bool check_packed(uint16_t type, enum dtype dtype, const struct ranges *ranges, uint32_t bulk_bytes,
                         struct error *error)
{
    uint64_t wanted = 0;
    for (uint32_t i = 0; i < ranges->count; i++) {
        const uint32_t count = range_get(ranges, i).count;
        if (count > PACKED_FLOATS) {
            return error_set(error, "%s message: a range of %u packed floats; at most %d are allowed",
                             message_name(type), count, (int)PACKED_FLOATS);
        }
        wanted += count + ((uint64_t)count + 63) / 64 * sizeof(float);
    }
    return dtype != DTYPE_INT8 || bulk_bytes == wanted ||
           error_set(error, "%s message: its ranges take %llu bytes of bulk, and it has %u", message_name(type),
                     (unsigned long long)wanted, bulk_bytes);
}

/*
 * The bulk of a message with a dtype contains exactly the floats that its ranges name; that of a batch, its examples.
 */
static bool check_bulk(uint16_t type, const union message *message, uint32_t bulk_bytes, struct error *error)
{
    enum dtype dtype;
    const struct ranges *ranges;
    switch (type) {
    case MESSAGE_write:
        dtype = (enum dtype)message->write.dtype;
        ranges = &message->write.ranges;
        break;
    case MESSAGE_values:
        dtype = (enum dtype)message->values.dtype;
        ranges = &message->values.ranges;
        break;
    case MESSAGE_push:
        dtype = (enum dtype)message->push.dtype;
        ranges = &message->push.ranges;
        break;
    case MESSAGE_pushed:
        dtype = (enum dtype)message->pushed.dtype;
        ranges = &message->pushed.ranges;
        break;
    case MESSAGE_batch: {
        uint64_t wanted = (uint64_t)message->batch.examples * (2 + (uint64_t)message->batch.pixels);
        return bulk_bytes == wanted ||
               error_set(error, "batch message: its examples take %llu bytes of bulk, and it has %u",
                         (unsigned long long)wanted, bulk_bytes);
    }
    default:
        return true;
    }
    if (dtype_is_packed(dtype)) {
        return check_packed(type, dtype, ranges, bulk_bytes, error);
    }
    uint64_t floats = ranges_total(ranges);
    if (dtype == DTYPE_DIFFERENCES && type == MESSAGE_push) {
        return error_set(error, "push message: differences are for parameters");
    }
    if (dtype == DTYPE_DIFFERENCES) { /* the reader checks that they fit */
        return floats <= DIFFERENCES_FLOATS ||
               error_set(error, "%s message: differences of %llu floats; at most %d are allowed", message_name(type),
                         (unsigned long long)floats, (int)DIFFERENCES_FLOATS);
    }
    uint64_t wanted = floats * dtype_size(dtype);
    return bulk_bytes == wanted || error_set(error, "%s message: its ranges take %llu bytes of bulk, and it has %u",
                                             message_name(type), (unsigned long long)wanted, bulk_bytes);
}

/* Fields that a peer of an earlier version does not send are unknown. */
static void lack_field(const struct field *field, char *to)
{
    const float unknown = NAN;
    if (field->kind == KIND_F32) {
        memcpy(to, &unknown, sizeof unknown);
    }
}

bool message_decode(uint16_t version, uint16_t type, const uint8_t *bytes, size_t size, uint32_t bulk_bytes,
                    union message *message, struct error *error)
{
    if (!message_known(type)) {
        return error_set(error, "message of unknown type %u", type);
    }
    const struct field *fields = descriptions[type].fields();
    struct field_reader reader = {bytes, bytes + size, descriptions[type].name, error};
    memset(message, 0, sizeof *message);
    const int count = field_count(version, type);
    for (int i = 0; i < count; i++) {
        if (!get_field(&reader, &fields[i], (char *)message + fields[i].offset)) {
            return false;
        }
    }
    for (int i = count; i < descriptions[type].field_count; i++) {
        lack_field(&fields[i], (char *)message + fields[i].offset);
    }
    if (reader.next != reader.end && !may_be_longer(type)) {
        return error_set(error, "%s message has %zu bytes too many", reader.message,
                         (size_t)(reader.end - reader.next));
    }
    return check_bulk(type, message, bulk_bytes, error);
}

const char *member_state_name(enum member_state state)
{
    static const char *const names[] = {"absent", "starting", "ready", "training", "waiting",
                                        "saving", "done",     "lost",  "failed"};
    return (size_t)state < sizeof names / sizeof names[0] ? names[state] : "unknown";
}

/* --- The header of a frame: checked before anything is allocated --- */

static const uint8_t magic[4] = {'T', 'R', 'N', 'R'};

void frame_encode(const struct frame *frame, uint8_t bytes[FRAME_HEADER])
{
    memcpy(bytes, magic, sizeof magic);
    put_le16(bytes + 4, frame->version);
    put_le16(bytes + 6, frame->type);
    put_le64(bytes + 8, frame->request);
    put_le32(bytes + 16, frame->generation);
    put_le32(bytes + 20, frame->flags);
    put_le32(bytes + 24, frame->message_bytes);
    put_le32(bytes + 28, frame->bulk_bytes);
}

bool frame_decode(const uint8_t bytes[FRAME_HEADER], struct frame *frame, struct error *error)
{
    if (memcmp(bytes, magic, sizeof magic) != 0) {
        return error_set(
            error, "the data received are not a frame of trainer's protocol (they start with %02x %02x %02x %02x)",
            bytes[0], bytes[1], bytes[2], bytes[3]);
    }
    struct frame decoded = {
        .version = get_le16(bytes + 4),
        .type = get_le16(bytes + 6),
        .request = get_le64(bytes + 8),
        .generation = get_le32(bytes + 16),
        .flags = get_le32(bytes + 20),
        .message_bytes = get_le32(bytes + 24),
        .bulk_bytes = get_le32(bytes + 28),
    };
    frame->request = decoded.request;
    if (!message_known(decoded.type)) {
        return error_set(error, "frame of unknown type %u (protocol version %u)", decoded.type, decoded.version);
    }
    if (decoded.flags & ~(uint32_t)FRAME_LAST) {
        return error_set(error, "%s frame with unknown flags 0x%x", message_name(decoded.type), decoded.flags);
    }
    if (decoded.message_bytes > message_max_size(decoded.type)) {
        return error_set(error, "%s frame with a message of %u bytes; at most %u are allowed",
                         message_name(decoded.type), decoded.message_bytes, message_max_size(decoded.type));
    }
    if (decoded.bulk_bytes > message_max_bulk(decoded.type)) {
        return error_set(error, "%s frame with %u bytes of bulk; at most %u are allowed", message_name(decoded.type),
                         decoded.bulk_bytes, message_max_bulk(decoded.type));
    }
    *frame = decoded;
    return true;
}
