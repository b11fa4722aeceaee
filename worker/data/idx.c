/* Headers are not trusted: the elements they promise must fit the file. */
#include "worker/data/idx.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "worker/data/stream.h"

static int element_bytes(int type)
{
    switch (type) {
    case IDX_UINT8:
    case IDX_INT8:
        return 1;
    case IDX_INT16:
        return 2;
    case IDX_INT32:
    case IDX_FLOAT:
        return 4;
    case IDX_DOUBLE:
        return 8;
    default:
        return 0;
    }
}

static uint32_t big_endian(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static bool read_exactly(struct stream *stream, uint8_t *bytes, size_t size, const char *what, struct error *error)
{
    size_t got;
    if (!stream_read(stream, bytes, size, &got, error)) {
        return false;
    }
    if (got < size) {
        return error_set(error, "%s: ends after %zu of the %zu bytes of its %s; fetch the file again",
                         stream_name(stream), got, size, what);
    }
    return true;
}

static bool read_sizes(struct idx_header *header, struct stream *stream, struct error *error)
{
    const char *name = stream_name(stream);
    uint8_t bytes[4 * IDX_MAX_DIMENSIONS];
    if (!read_exactly(stream, bytes, 4 * (size_t)header->dimensions, "list of dimensions", error)) {
        return false;
    }
    header->elements = 1;
    uint64_t most = IDX_MAX_BYTES / (uint64_t)element_bytes((int)header->type);
    for (int i = 0; i < IDX_MAX_DIMENSIONS; i++) {
        uint32_t size = i < header->dimensions ? big_endian(bytes + (size_t)4 * (size_t)i) : 1;
        if (size == 0 || size > INT32_MAX) {
            return error_set(error, "%s: dimension %d at byte %d is %u; expected 1 to %d", name, i + 1, 4 + 4 * i, size,
                             INT32_MAX);
        }
        if (size > most / header->elements) {
            return error_set(error, "%s: its dimensions need more than %llu GiB", name,
                             (unsigned long long)(IDX_MAX_BYTES >> 30));
        }
        header->sizes[i] = size;
        header->elements *= size;
    }
    return true;
}

bool idx_read_header(struct idx_header *header, struct stream *stream, struct error *error)
{
    const char *name = stream_name(stream);
    uint8_t magic[4];
    if (!read_exactly(stream, magic, sizeof magic, "header", error)) {
        return false;
    }
    if (signature_say(name, magic, sizeof magic, error)) {
        return false;
    }
    if (magic[0] != 0 || magic[1] != 0 || element_bytes(magic[2]) == 0) {
        return error_set(error, "%s: is not an IDX file: begins with %02x %02x %02x %02x, expected 00 00 and a type",
                         name, magic[0], magic[1], magic[2], magic[3]);
    }
    if (magic[3] < 1 || magic[3] > IDX_MAX_DIMENSIONS) {
        return error_set(error, "%s: has %u dimensions (byte 3); expected 1 to %d", name, magic[3], IDX_MAX_DIMENSIONS);
    }
    memset(header, 0, sizeof *header);
    header->type = (enum idx_type)magic[2];
    header->dimensions = magic[3];
    if (!read_sizes(header, stream, error)) {
        return false;
    }
    header->bytes = header->elements * (uint64_t)element_bytes(magic[2]);
    uint64_t header_bytes = 4 + 4 * (uint64_t)magic[3];
    uint64_t promised = header_bytes + header->bytes;
    uint64_t most = stream_most_bytes(stream);
    if (promised > most || (!stream_is_packed(stream) && promised < most)) {
        return error_set(error, "%s: its header promises %llu bytes, but the file has %s%llu; fetch it again", name,
                         (unsigned long long)promised, stream_is_packed(stream) ? "at most " : "",
                         (unsigned long long)most);
    }
    return true;
}

bool idx_read_part(struct stream *stream, uint8_t *bytes, size_t size, struct error *error)
{
    return read_exactly(stream, bytes, size, "elements", error);
}

bool idx_read_end(const struct idx_header *header, struct stream *stream, struct error *error)
{
    /* Only reading past the last element reaches the end of the stream and its checksum. */
    uint8_t extra;
    size_t got;
    return stream_read(stream, &extra, 1, &got, error) &&
           (got == 0 || error_set(error,
                                  "%s: continues after the %llu bytes of elements that its header promises; fetch it "
                                  "again",
                                  stream_name(stream), (unsigned long long)header->bytes));
}

bool idx_read_elements(const struct idx_header *header, struct stream *stream, uint8_t **bytes, struct error *error)
{
    size_t size = (size_t)header->bytes;
    uint8_t *elements = memory_aligned(size + IDX_PADDING);
    if (!elements) {
        return error_set(error, "%s: out of memory for its %zu bytes", stream_name(stream), size);
    }
    if (!idx_read_part(stream, elements, size, error) || !idx_read_end(header, stream, error)) {
        free(elements);
        return false;
    }
    memset(elements + size, 0, IDX_PADDING);
    *bytes = elements;
    return true;
}

bool idx_examine(struct idx_header *header, const char *path, struct error *error)
{
    struct stream *stream;
    if (!stream_open_file(&stream, path, error)) {
        return false;
    }
    bool done = idx_read_header(header, stream, error);
    stream_close(stream);
    return done;
}

size_t idx_write_header(uint8_t bytes[IDX_MAX_HEADER], int dimensions, const uint32_t *sizes)
{
    assert(dimensions >= 1 && dimensions <= IDX_MAX_DIMENSIONS);
    bytes[0] = 0;
    bytes[1] = 0;
    bytes[2] = IDX_UINT8;
    bytes[3] = (uint8_t)dimensions;
    for (int i = 0; i < dimensions; i++) {
        for (int j = 0; j < 4; j++) {
            bytes[4 + 4 * i + j] = (uint8_t)(sizes[i] >> (24 - 8 * j));
        }
    }
    return 4 + 4 * (size_t)dimensions;
}
