/* The frame of a record: length and both masked CRCs, little-endian. */
#include "worker/data/tfrecord/reader.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/encoding/crc32c.h"
#include "base/file.h"
#include "net/bytes.h"
#include "worker/data/stream.h"

void tfrecord_append(struct proto *out, const void *record, size_t size)
{
    uint8_t header[TFRECORD_HEADER], footer[TFRECORD_FOOTER];
    put_le64(header, size);
    put_le32(header + 8, crc32c_masked(header, 8));
    put_le32(footer, crc32c_masked(record, size));
    proto_raw(out, header, sizeof header);
    proto_raw(out, record, size);
    proto_raw(out, footer, sizeof footer);
}

bool tfrecord_length(const uint8_t header[TFRECORD_HEADER], uint64_t *length)
{
    *length = get_le64(header);
    return get_le32(header + 8) == crc32c_masked(header, 8);
}

/* True if the record's CRC is right. */
static bool tfrecord_is_whole(const void *record, size_t size, const uint8_t footer[TFRECORD_FOOTER])
{
    return get_le32(footer) == crc32c_masked(record, size);
}

/* --- Reading --- */

/* Records are returned straight from a buffer, which is filled in large pieces and grows for a large record. */

enum { BUFFER_BYTES = 1 << 16, FRAME = TFRECORD_HEADER + TFRECORD_FOOTER };

struct tfrecord_reader {
    struct stream *stream;
    uint8_t *buffer;
    size_t capacity, begin, end; /* buffer[begin..end) is read and not yet used */
    uint64_t offset;             /* of buffer[begin] in the content */
    uint64_t record_offset;
    bool at_end;
};

/* A plain file begins with a header with a valid CRC; its length field may look like gzip's magic. */
static enum stream_packing find_packing(const uint8_t *head, size_t size)
{
    uint64_t length;
    if (size >= TFRECORD_HEADER && tfrecord_length(head, &length)) {
        return STREAM_PLAIN;
    }
    if (size >= 2 && head[0] == 0x1F && head[1] == 0x8B) {
        return STREAM_GZIP;
    }
    bool is_zlib = size >= 2 && (head[0] & 0x0F) == 8 && head[0] >> 4 <= 7 && (head[0] << 8 | head[1]) % 31 == 0;
    return is_zlib ? STREAM_ZLIB : STREAM_PLAIN;
}

static bool create(struct tfrecord_reader **reader, struct stream *stream, struct error *error)
{
    struct tfrecord_reader *created = calloc(1, sizeof *created);
    uint8_t *buffer = malloc(BUFFER_BYTES);
    if (!created || !buffer) {
        error_set(error, "%s: out of memory while reading it", stream_name(stream));
        free(created);
        free(buffer);
        stream_close(stream);
        return false;
    }
    *created = (struct tfrecord_reader){.stream = stream, .buffer = buffer, .capacity = BUFFER_BYTES};
    *reader = created;
    return true;
}

bool tfrecord_open(struct tfrecord_reader **reader, const char *path, struct error *error)
{
    uint8_t head[TFRECORD_HEADER];
    struct stream *stream;
    const size_t got = file_head(path, head, sizeof head);
    return stream_open_file_as(&stream, path, find_packing(head, got), error) && create(reader, stream, error);
}

bool tfrecord_open_bytes(struct tfrecord_reader **reader, const char *name, const void *bytes, size_t size,
                         struct error *error)
{
    struct stream *stream;
    return stream_open_bytes_as(&stream, name, bytes, size, find_packing(bytes, size), error) &&
           create(reader, stream, error);
}

void tfrecord_charge_to(struct tfrecord_reader *reader, struct budget_account *account)
{
    stream_charge_to(reader->stream, account);
}

void tfrecord_close(struct tfrecord_reader *reader)
{
    if (reader) {
        stream_close(reader->stream);
        free(reader->buffer);
        free(reader);
    }
}

/* Makes up to `size` bytes available at buffer[begin], fewer at the end of the file. */
static bool make_ready(struct tfrecord_reader *reader, size_t size, struct error *error)
{
    if (reader->end - reader->begin >= size || reader->at_end) {
        return true;
    }
    memmove(reader->buffer, reader->buffer + reader->begin, reader->end - reader->begin);
    reader->end -= reader->begin;
    reader->begin = 0;
    if (size > reader->capacity) {
        if (!stream_charge(reader->stream, size - reader->capacity, error)) {
            return false;
        }
        uint8_t *larger = realloc(reader->buffer, size);
        if (!larger) {
            return error_set(error, "%s: out of memory for its record of %zu bytes at byte %" PRIu64,
                             stream_name(reader->stream), size, reader->offset);
        }
        reader->buffer = larger;
        reader->capacity = size;
    }
    size_t got, wanted = reader->capacity - reader->end;
    if (!stream_read(reader->stream, reader->buffer + reader->end, wanted, &got, error)) {
        return false;
    }
    reader->end += got;
    reader->at_end = got < wanted;
    return true;
}

static void skip(struct tfrecord_reader *reader, size_t size)
{
    reader->begin += size;
    reader->offset += size;
}

static bool is_header(const struct tfrecord_reader *reader, uint64_t *length)
{
    return tfrecord_length(reader->buffer + reader->begin, length) && *length <= TFRECORD_MAX_RECORD &&
           *length + FRAME <= stream_most_bytes(reader->stream);
}

/* Skips to the next position that looks like a header, or to the end. */
static bool find_header(struct tfrecord_reader *reader, struct error *error)
{
    uint64_t length;
    do {
        if (!make_ready(reader, TFRECORD_HEADER, error)) {
            return false;
        }
        if (reader->end - reader->begin < TFRECORD_HEADER) {
            skip(reader, reader->end - reader->begin);
            return true;
        }
        if (is_header(reader, &length)) {
            return true;
        }
        skip(reader, 1);
    } while (true);
}

static enum tfrecord_status set_damaged(const struct tfrecord_reader *reader, const char *what, struct error *error)
{
    error_set(error, "%s: the record at byte %" PRIu64 " is damaged: %s", stream_name(reader->stream),
              reader->record_offset, what);
    return TFRECORD_DAMAGED;
}

static enum tfrecord_status damaged_header(struct tfrecord_reader *reader, struct error *error)
{
    skip(reader, 1);
    if (!find_header(reader, error)) {
        return TFRECORD_FAILED;
    }
    return set_damaged(reader, "wrong CRC of its length", error);
}

static enum tfrecord_status cut_off(struct tfrecord_reader *reader, struct error *error)
{
    skip(reader, reader->end - reader->begin);
    return set_damaged(reader, "the file ends within it", error);
}

enum tfrecord_status tfrecord_next(struct tfrecord_reader *reader, const uint8_t **record, size_t *size,
                                   struct error *error)
{
    uint64_t length;
    reader->record_offset = reader->offset;
    if (!make_ready(reader, TFRECORD_HEADER, error)) {
        return TFRECORD_FAILED;
    }
    size_t there = reader->end - reader->begin;
    if (there < TFRECORD_HEADER) {
        return there == 0 ? TFRECORD_END : cut_off(reader, error);
    }
    if (!is_header(reader, &length)) {
        return damaged_header(reader, error);
    }
    size_t frame = (size_t)length + FRAME;
    if (!make_ready(reader, frame, error)) {
        return TFRECORD_FAILED;
    }
    if (reader->end - reader->begin < frame) {
        return cut_off(reader, error);
    }
    const uint8_t *content = reader->buffer + reader->begin + TFRECORD_HEADER;
    skip(reader, frame);
    if (!tfrecord_is_whole(content, (size_t)length, content + length)) {
        return set_damaged(reader, "wrong CRC", error);
    }
    *record = content;
    *size = (size_t)length;
    return TFRECORD_RECORD;
}

bool tfrecord_go_to(struct tfrecord_reader *reader, uint64_t offset, struct error *error)
{
    bool is_ahead = offset >= reader->offset;
    if (!is_ahead || (offset - reader->offset > reader->end - reader->begin && !tfrecord_is_packed(reader))) {
        reader->begin = reader->end = 0;
        reader->offset = offset;
        reader->at_end = false;
        return stream_seek(reader->stream, offset, error);
    }
    while (reader->offset < offset) {
        uint64_t there = reader->end - reader->begin, left = offset - reader->offset;
        skip(reader, (size_t)(there < left ? there : left));
        if (!make_ready(reader, 1, error)) {
            return false;
        }
        if (reader->begin == reader->end) {
            return true;
        }
    }
    return true;
}

bool tfrecord_is_packed(const struct tfrecord_reader *reader)
{
    return stream_is_packed(reader->stream);
}

uint64_t tfrecord_position(const struct tfrecord_reader *reader)
{
    return reader->offset;
}

uint64_t tfrecord_offset(const struct tfrecord_reader *reader)
{
    return reader->record_offset;
}

const char *tfrecord_name(const struct tfrecord_reader *reader)
{
    return stream_name(reader->stream);
}
