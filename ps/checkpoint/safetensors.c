/*
 * A small JSON reader for this header only: one pass over untrusted bytes, with a cursor that remembers the first
 * error, so that the grammar below needs no error handling.
 */
#include "ps/checkpoint/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <cJSON.h>

struct cursor {
    const uint8_t *bytes;
    size_t size, at;
    const char *fault; /* NULL: none so far */
};

static void fail(struct cursor *cursor, const char *fault)
{
    if (!cursor->fault) {
        cursor->fault = fault;
    }
}

static void skip_blanks(struct cursor *cursor)
{
    while (cursor->at < cursor->size && strchr(" \t\r\n", cursor->bytes[cursor->at]) &&
           cursor->bytes[cursor->at] != 0) {
        cursor->at++;
    }
}

/* Takes the character if it is next, after blanks. */
static bool take(struct cursor *cursor, char wanted)
{
    skip_blanks(cursor);
    if (cursor->fault || cursor->at == cursor->size || cursor->bytes[cursor->at] != (uint8_t)wanted) {
        return false;
    }
    cursor->at++;
    return true;
}

static void expect(struct cursor *cursor, char wanted, const char *fault)
{
    if (!take(cursor, wanted)) {
        fail(cursor, fault);
    }
}

static bool is_hex(uint8_t byte)
{
    return (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'f') || (byte >= 'A' && byte <= 'F');
}

static void skip_escape(struct cursor *cursor)
{
    uint8_t kind = cursor->at < cursor->size ? cursor->bytes[cursor->at++] : 0;
    if (kind == 'u') {
        for (int i = 0; i < 4; i++) {
            if (cursor->at == cursor->size || !is_hex(cursor->bytes[cursor->at++])) {
                fail(cursor, "\\u without four hexadecimal digits");
                return;
            }
        }
    } else if (kind == 0 || !strchr("\"\\/bfnrt", kind)) {
        fail(cursor, "an unknown escape in a string");
    }
}

static struct safetensors_text read_string(struct cursor *cursor, bool escapes_allowed)
{
    struct safetensors_text text = {"", 0};
    expect(cursor, '"', "a string is missing");
    size_t start = cursor->at;
    while (!cursor->fault) {
        if (cursor->at == cursor->size) {
            fail(cursor, "a string without an end");
            break;
        }
        uint8_t byte = cursor->bytes[cursor->at++];
        if (byte == '"') {
            text.bytes = (const char *)cursor->bytes + start;
            text.size = cursor->at - 1 - start;
            break;
        }
        if (byte < 0x20) {
            fail(cursor, "a control character in a string");
        } else if (byte == '\\') {
            if (!escapes_allowed) {
                fail(cursor, "an escape in a name");
            }
            skip_escape(cursor);
        }
    }
    return text;
}

/* A JSON whole number without sign, exponent or leading zeros, up to 2^53. */
static uint64_t read_number(struct cursor *cursor)
{
    const uint64_t limit = (uint64_t)1 << 53;
    skip_blanks(cursor);
    uint64_t number = 0;
    size_t start = cursor->at;
    while (!cursor->fault && cursor->at < cursor->size && cursor->bytes[cursor->at] >= '0' &&
           cursor->bytes[cursor->at] <= '9') {
        number = number * 10 + (uint64_t)(cursor->bytes[cursor->at++] - '0');
        if (number > limit) {
            fail(cursor, "a number beyond 2^53");
        }
    }
    if (cursor->at == start) {
        fail(cursor, "a whole number is missing");
    } else if (cursor->at - start > 1 && cursor->bytes[start] == '0') {
        fail(cursor, "a number with a leading zero");
    }
    return number;
}

static bool text_is(const struct safetensors_text *text, const char *wanted)
{
    return text->size == strlen(wanted) && memcmp(text->bytes, wanted, text->size) == 0;
}

static bool same_text(const struct safetensors_text *a, const struct safetensors_text *b)
{
    return a->size == b->size && memcmp(a->bytes, b->bytes, a->size) == 0;
}

static void read_metadata(struct cursor *cursor, struct safetensors *file)
{
    expect(cursor, '{', "__metadata__ is not an object");
    if (take(cursor, '}')) {
        return;
    }
    do {
        if (file->metadata_count == SAFETENSORS_MAX_METADATA) {
            fail(cursor, "too many entries in __metadata__");
            return;
        }
        struct safetensors_entry *entry = &file->metadata[file->metadata_count];
        entry->key = read_string(cursor, true);
        expect(cursor, ':', "':' is missing in __metadata__");
        entry->value = read_string(cursor, true);
        for (int i = 0; i < file->metadata_count; i++) {
            if (same_text(&file->metadata[i].key, &entry->key)) {
                fail(cursor, "a key twice in __metadata__");
            }
        }
        file->metadata_count++;
    } while (take(cursor, ','));
    expect(cursor, '}', "__metadata__ has no end");
}

/* Also computes the bytes that the shape needs; a product of 2^60 elements is beyond any file. */
static uint64_t read_shape(struct cursor *cursor, struct safetensors_tensor *tensor)
{
    uint64_t elements = 1;
    expect(cursor, '[', "a shape is not a list");
    if (take(cursor, ']')) {
        return sizeof(float);
    }
    do {
        if (tensor->dimensions == SAFETENSORS_MAX_DIMENSIONS) {
            fail(cursor, "a shape with too many dimensions");
            return 0;
        }
        uint64_t extent = read_number(cursor);
        if (extent != 0 && elements > ((uint64_t)1 << 60) / extent) {
            fail(cursor, "a shape too large for any file");
            return 0;
        }
        elements *= extent;
        tensor->shape[tensor->dimensions++] = (int64_t)extent;
    } while (take(cursor, ','));
    expect(cursor, ']', "a shape has no end");
    return elements * sizeof(float);
}

static void read_tensor(struct cursor *cursor, struct safetensors_tensor *tensor, uint64_t *begin, uint64_t *end)
{
    enum { DTYPE = 1, SHAPE = 2, OFFSETS = 4, ALL = DTYPE | SHAPE | OFFSETS };
    int seen = 0;
    expect(cursor, '{', "a tensor is not an object");
    do {
        struct safetensors_text key = read_string(cursor, false);
        expect(cursor, ':', "':' is missing in a tensor");
        int what = text_is(&key, "dtype") ? DTYPE : text_is(&key, "shape") ? SHAPE : OFFSETS;
        if (what == OFFSETS && !text_is(&key, "data_offsets")) {
            fail(cursor, "an unknown key in a tensor");
        }
        if (seen & what) {
            fail(cursor, "a key twice in a tensor");
        }
        seen |= what;
        if (what == DTYPE) {
            struct safetensors_text dtype = read_string(cursor, false);
            if (!text_is(&dtype, "F32")) {
                fail(cursor, "a tensor that is not F32");
            }
        } else if (what == SHAPE) {
            tensor->size = read_shape(cursor, tensor);
        } else {
            expect(cursor, '[', "data_offsets is not a list");
            *begin = read_number(cursor);
            expect(cursor, ',', "data_offsets has one number only");
            *end = read_number(cursor);
            expect(cursor, ']', "data_offsets has no end");
        }
    } while (take(cursor, ','));
    expect(cursor, '}', "a tensor has no end");
    if (seen != ALL) {
        fail(cursor, "a tensor without dtype, shape or data_offsets");
    }
}

static void read_entry(struct cursor *cursor, struct safetensors *file, bool *has_metadata, uint64_t *data_used)
{
    struct safetensors_text name = read_string(cursor, false);
    expect(cursor, ':', "':' is missing after a name");
    if (text_is(&name, "__metadata__")) {
        if (*has_metadata) {
            fail(cursor, "__metadata__ twice");
            return;
        }
        *has_metadata = true;
        read_metadata(cursor, file);
        return;
    }
    if (file->tensor_count == SAFETENSORS_MAX_TENSORS) {
        fail(cursor, "too many tensors");
        return;
    }
    if (name.size == 0 || name.size > SAFETENSORS_MAX_NAME) {
        fail(cursor, "a tensor's name is empty or too long");
        return;
    }
    for (int i = 0; i < file->tensor_count; i++) {
        if (same_text(&file->tensors[i].name, &name)) {
            fail(cursor, "a tensor twice");
        }
    }
    struct safetensors_tensor *tensor = &file->tensors[file->tensor_count++];
    *tensor = (struct safetensors_tensor){.name = name};
    uint64_t begin = 0, end = 0;
    read_tensor(cursor, tensor, &begin, &end);
    if (begin != *data_used || end < begin || end - begin != tensor->size) {
        fail(cursor, "a tensor whose data_offsets do not follow the one before or do not fit its shape");
    }
    tensor->offset = cursor->size + begin;
    *data_used = end;
}

bool safetensors_header_size(const uint8_t prefix[SAFETENSORS_PREFIX], uint64_t file_size, size_t *header_size,
                             struct error *error)
{
    uint64_t length = 0;
    for (int i = 0; i < SAFETENSORS_PREFIX; i++) {
        length |= (uint64_t)prefix[i] << (8 * i);
    }
    if (length < 2 || length > SAFETENSORS_MAX_HEADER) {
        return error_set(error, "is no safetensors file: a header of %" PRIu64 " bytes (2 to %d are allowed)", length,
                         SAFETENSORS_MAX_HEADER);
    }
    if (file_size < SAFETENSORS_PREFIX + length) {
        return error_set(error, "is cut off: %" PRIu64 " bytes, its header alone should have %" PRIu64, file_size,
                         SAFETENSORS_PREFIX + length);
    }
    *header_size = (size_t)(SAFETENSORS_PREFIX + length);
    return true;
}

bool safetensors_decode(struct safetensors *file, const uint8_t *bytes, size_t size, uint64_t file_size,
                        struct error *error)
{
    file->tensor_count = 0;
    file->metadata_count = 0;
    struct cursor cursor = {.bytes = bytes, .size = size, .at = SAFETENSORS_PREFIX};
    bool has_metadata = false;
    uint64_t data_used = 0;
    if (size <= SAFETENSORS_PREFIX || file_size < size || bytes[SAFETENSORS_PREFIX] != '{') {
        return error_set(error, "is no safetensors file: its header does not begin with '{'");
    }
    expect(&cursor, '{', "no header");
    if (!take(&cursor, '}')) {
        do {
            read_entry(&cursor, file, &has_metadata, &data_used);
        } while (take(&cursor, ','));
        expect(&cursor, '}', "the header has no end");
    }
    skip_blanks(&cursor);
    if (cursor.at != cursor.size) {
        fail(&cursor, "something follows the header's end");
    }
    if (cursor.fault) {
        return error_set(error, "its safetensors header is wrong at byte %zu: %s", cursor.at, cursor.fault);
    }
    if (file_size - size != data_used) {
        return error_set(error, "%s: %" PRIu64 " bytes, its header asks for %" PRIu64,
                         file_size - size < data_used ? "is cut off" : "is too long", file_size, size + data_used);
    }
    return true;
}

const struct safetensors_tensor *safetensors_find(const struct safetensors *file, const char *name)
{
    for (int i = 0; i < file->tensor_count; i++) {
        if (text_is(&file->tensors[i].name, name)) {
            return &file->tensors[i];
        }
    }
    return NULL;
}

const struct safetensors_text *safetensors_metadata(const struct safetensors *file, const char *key)
{
    for (int i = 0; i < file->metadata_count; i++) {
        if (text_is(&file->metadata[i].key, key)) {
            return &file->metadata[i].value;
        }
    }
    return NULL;
}

static void append(struct safetensors_writer *writer, const char *text)
{
    size_t size = strlen(text);
    if (writer->overflow || size > writer->capacity - writer->used) {
        writer->overflow = true;
        return;
    }
    memcpy(writer->buffer + writer->used, text, size);
    writer->used += size;
}

static void append_number(struct safetensors_writer *writer, uint64_t number)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, number);
    append(writer, text);
}

char *safetensors_escape(const char *text)
{
    cJSON *string = cJSON_CreateString(text);
    char *quoted = string ? cJSON_PrintUnformatted(string) : NULL;
    cJSON_Delete(string);
    if (quoted) {
        const size_t length = strlen(quoted);
        memmove(quoted, quoted + 1, length - 2);
        quoted[length - 2] = '\0';
    }
    return quoted;
}

void safetensors_write_begin(struct safetensors_writer *writer, char *buffer, size_t capacity)
{
    *writer = (struct safetensors_writer){.buffer = buffer, .capacity = capacity, .metadata_open = true};
    append(writer, "........{\"__metadata__\":{"); /* the length is filled in at the end */
}

size_t safetensors_write_metadata(struct safetensors_writer *writer, const char *key, const char *value)
{
    append(writer, writer->used > 0 && writer->buffer[writer->used - 1] == '{' ? "\"" : ",\"");
    append(writer, key);
    append(writer, "\":\"");
    size_t offset = writer->used;
    append(writer, value);
    append(writer, "\"");
    return offset;
}

static void close_metadata(struct safetensors_writer *writer)
{
    append(writer, writer->metadata_open ? "}" : "");
    writer->metadata_open = false;
}

void safetensors_write_tensor(struct safetensors_writer *writer, const char *name, int dimensions, const int64_t *shape)
{
    close_metadata(writer);
    uint64_t size = sizeof(float);
    append(writer, ",\"");
    append(writer, name);
    append(writer, "\":{\"dtype\":\"F32\",\"shape\":[");
    for (int i = 0; i < dimensions; i++) {
        append(writer, i > 0 ? "," : "");
        append_number(writer, (uint64_t)shape[i]);
        size *= (uint64_t)shape[i];
    }
    append(writer, "],\"data_offsets\":[");
    append_number(writer, writer->data_size);
    writer->data_size += size;
    append(writer, ",");
    append_number(writer, writer->data_size);
    append(writer, "]}");
}

size_t safetensors_write_end(struct safetensors_writer *writer)
{
    close_metadata(writer);
    append(writer, "}");
    while (!writer->overflow && writer->used % SAFETENSORS_DATA_ALIGN != 0) {
        append(writer, " ");
    }
    if (writer->overflow) {
        return 0;
    }
    uint64_t length = writer->used - SAFETENSORS_PREFIX;
    for (int i = 0; i < SAFETENSORS_PREFIX; i++) {
        writer->buffer[i] = (char)(uint8_t)(length >> (8 * i));
    }
    return writer->used;
}
