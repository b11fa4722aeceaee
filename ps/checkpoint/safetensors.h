/*
 * The safetensors format: 8 bytes little-endian header length, a JSON header, the tensors' bytes one after another.
 *
 * Decoding is a pure function of the header's bytes and the file's size. It allocates nothing, checks every length
 * before it is used, and is stricter than the format asks: F32 tensors only, limits on all counts, and the tensors fill
 * the rest of the file exactly, without gaps or overlaps, in the header's order. Escapes are allowed in metadata's
 * values, which are not unescaped, but not in names.
 */
#ifndef PS_CHECKPOINT_SAFETENSORS_H
#define PS_CHECKPOINT_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum {
    SAFETENSORS_PREFIX = 8,             /* bytes before the header */
    SAFETENSORS_MAX_HEADER = 1 << 24,   /* bytes */
    SAFETENSORS_USUAL_HEADER = 1 << 18, /* enough for SAFETENSORS_MAX_TENSORS with short metadata */
    SAFETENSORS_MAX_TENSORS = 512,
    SAFETENSORS_MAX_METADATA = 64,
    SAFETENSORS_MAX_DIMENSIONS = 4,
    SAFETENSORS_MAX_NAME = 255,  /* bytes */
    SAFETENSORS_DATA_ALIGN = 64, /* of the first tensor in files we write; readers accept any */
};

/* Bytes inside the decoded header; no terminating zero. */
struct safetensors_text {
    const char *bytes;
    size_t size;
};

struct safetensors_tensor {
    struct safetensors_text name;
    int dimensions; /* 0: a single number */
    int64_t shape[SAFETENSORS_MAX_DIMENSIONS];
    uint64_t offset; /* from the beginning of the file */
    uint64_t size;   /* bytes */
};

struct safetensors_entry {
    struct safetensors_text key, value;
};

struct safetensors {
    struct safetensors_tensor tensors[SAFETENSORS_MAX_TENSORS];
    int tensor_count;
    struct safetensors_entry metadata[SAFETENSORS_MAX_METADATA];
    int metadata_count;
};

/* Size of the header, its 8 bytes of length included, from the file's first 8 bytes; checked against the limits. */
bool safetensors_header_size(const uint8_t prefix[SAFETENSORS_PREFIX], uint64_t file_size, size_t *header_size,
                             struct error *error);

/*
 * bytes: the first `size` of the file, size as safetensors_header_size said; they must outlive `file`. Errors do not
 * name the file: the caller does.
 */
bool safetensors_decode(struct safetensors *file, const uint8_t *bytes, size_t size, uint64_t file_size,
                        struct error *error);

/* NULL if there is none. */
const struct safetensors_tensor *safetensors_find(const struct safetensors *file, const char *name);
const struct safetensors_text *safetensors_metadata(const struct safetensors *file, const char *key);

/* Escapes a metadata value of any characters for the writer; NULL if out of memory. The caller frees it. */
char *safetensors_escape(const char *text);

/*
 * Builds a header in `buffer`: begin, any metadata, any tensors in the order of their bytes, end. Keys, values and
 * names must be plain (no quotes, backslashes or control characters). Overflow of the buffer is recorded and reported
 * at the end.
 */
struct safetensors_writer {
    char *buffer;
    size_t capacity, used;
    uint64_t data_size; /* bytes of the tensors so far */
    bool metadata_open;
    bool overflow;
};

void safetensors_write_begin(struct safetensors_writer *writer, char *buffer, size_t capacity);

/* Returns the offset of the value's first byte in the buffer. */
size_t safetensors_write_metadata(struct safetensors_writer *writer, const char *key, const char *value);
void safetensors_write_tensor(struct safetensors_writer *writer, const char *name, int dimensions,
                              const int64_t *shape);

/* Pads with blanks, so that the tensors begin at a multiple of SAFETENSORS_DATA_ALIGN, and fills in the length.
 * Returns the header's size, 0 if the buffer was too small. */
size_t safetensors_write_end(struct safetensors_writer *writer);

#endif
