/* A zip archive of stored .npy files, written in one piece: local headers, data and directory are known beforehand. */
#include "worker/export/npz.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zlib.h>

#include "base/file.h"
#include "net/bytes.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "floats are written as they are in memory");

enum {
    LOCAL_HEADER = 30,
    CENTRAL_HEADER = 46,
    END_RECORD = 22,
    NAME_SIZE = 32,
    NPY_HEADER = 128, /* magic, version, length, description: a multiple of 64 */
    VERSION = 20,     /* zip version needed to extract */
    DATE = 0x21,      /* 1 January 1980: the same parameters give the same file */
};

#define MOST_BYTES ((uint64_t)0xFFF00000) /* limit of a zip archive without the 64-bit extension */

static const uint8_t npy_magic[8] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0};
static const uint8_t local_magic[4] = {'P', 'K', 3, 4}, central_magic[4] = {'P', 'K', 1, 2};
static const uint8_t end_magic[4] = {'P', 'K', 5, 6};

struct zip_entry {
    char name[NAME_SIZE];
    uint8_t local[LOCAL_HEADER + NAME_SIZE], npy[NPY_HEADER], central[CENTRAL_HEADER + NAME_SIZE];
    uint32_t crc, size, offset;
};

/* "{'descr': '<f4', ...}" in its frame. */
static void make_npy_header(uint8_t header[NPY_HEADER], const char *type, const char *shape)
{
    memset(header, ' ', NPY_HEADER);
    memcpy(header, npy_magic, sizeof npy_magic);
    put_le16(header + 8, NPY_HEADER - 10);
    int used = snprintf((char *)header + 10, NPY_HEADER - 10, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }",
                        type, shape);
    header[10 + used] = ' ';
    header[NPY_HEADER - 1] = '\n';
}

/* The 26 bytes, from the version on, that local headers and directory entries share. */
static void put_facts(uint8_t *bytes, const struct zip_entry *entry)
{
    memset(bytes, 0, 26);
    put_le16(bytes, VERSION);
    put_le16(bytes + 8, DATE);
    put_le32(bytes + 10, entry->crc);
    put_le32(bytes + 14, entry->size);
    put_le32(bytes + 18, entry->size);
    put_le16(bytes + 22, (uint16_t)strlen(entry->name));
}

/* Name, checksum, size and offset are known. */
static void make_records(struct zip_entry *entry, uint32_t offset)
{
    entry->offset = offset;
    memcpy(entry->local, local_magic, sizeof local_magic);
    put_facts(entry->local + 4, entry);
    memcpy(entry->local + LOCAL_HEADER, entry->name, strlen(entry->name));
    memset(entry->central, 0, CENTRAL_HEADER);
    memcpy(entry->central, central_magic, sizeof central_magic);
    put_le16(entry->central + 4, VERSION);
    put_facts(entry->central + 6, entry);
    put_le32(entry->central + 42, offset);
    memcpy(entry->central + CENTRAL_HEADER, entry->name, strlen(entry->name));
}

static void make_entry(struct zip_entry *entry, const struct variable *variable, const float *values, uint32_t offset)
{
    char shape[48];
    size_t row_bytes = (size_t)variable->cols * sizeof *values;
    snprintf(shape, sizeof shape, variable->is_weights ? "(%d, %d)" : "(%d,)",
             variable->is_weights ? variable->rows : variable->cols, variable->cols);
    snprintf(entry->name, sizeof entry->name, "%s.npy", variable->name);
    make_npy_header(entry->npy, "<f4", shape);
    uLong crc = crc32(crc32(0, NULL, 0), entry->npy, NPY_HEADER);
    for (int row = 0; row < variable->rows; row++) {
        crc = crc32(crc, (const Bytef *)(values + (size_t)row * (size_t)variable->stride), (uInt)row_bytes);
    }
    entry->crc = (uint32_t)crc;
    entry->size = (uint32_t)(NPY_HEADER + (size_t)variable->rows * row_bytes);
    make_records(entry, offset);
}

static void make_text_entry(struct zip_entry *entry, const char *text, uint32_t offset)
{
    char type[24];
    size_t size = strlen(text);
    snprintf(type, sizeof type, "|S%zu", size);
    snprintf(entry->name, sizeof entry->name, "preprocessing.npy");
    make_npy_header(entry->npy, type, "()");
    uLong crc = crc32(crc32(0, NULL, 0), entry->npy, NPY_HEADER);
    entry->crc = (uint32_t)crc32(crc, (const Bytef *)text, (uInt)size);
    entry->size = (uint32_t)(NPY_HEADER + size);
    make_records(entry, offset);
}

static void make_end(uint8_t end[END_RECORD], int entries, uint32_t directory_bytes, uint32_t directory_at)
{
    memset(end, 0, END_RECORD);
    memcpy(end, end_magic, sizeof end_magic);
    put_le16(end + 8, (uint16_t)entries);
    put_le16(end + 10, (uint16_t)entries);
    put_le32(end + 12, directory_bytes);
    put_le32(end + 16, directory_at);
}

/* All parts of the file, in order; entries: one more than variables. Returns how many. */
static int list_parts(const struct model *model, const float *parameters, const char *text, struct zip_entry *entries,
                      uint8_t end[END_RECORD], struct file_part *parts)
{
    int count = 0, entry_count = model->variable_count;
    uint32_t at = 0, directory = 0;
    for (int i = 0; i < model->variable_count; i++) {
        const struct variable *variable = &model->variables[i];
        const float *values = parameters + variable->offset;
        struct zip_entry *entry = &entries[i];
        make_entry(entry, variable, values, at);
        parts[count++] = (struct file_part){entry->local, LOCAL_HEADER + strlen(entry->name)};
        parts[count++] = (struct file_part){entry->npy, NPY_HEADER};
        for (int row = 0; row < variable->rows; row++) {
            parts[count++] = (struct file_part){values + (size_t)row * (size_t)variable->stride,
                                                (size_t)variable->cols * sizeof *values};
        }
        at += (uint32_t)(LOCAL_HEADER + strlen(entry->name)) + entry->size;
    }
    if (text) {
        struct zip_entry *entry = &entries[entry_count++];
        make_text_entry(entry, text, at);
        parts[count++] = (struct file_part){entry->local, LOCAL_HEADER + strlen(entry->name)};
        parts[count++] = (struct file_part){entry->npy, NPY_HEADER};
        parts[count++] = (struct file_part){text, strlen(text)};
        at += (uint32_t)(LOCAL_HEADER + strlen(entry->name)) + entry->size;
    }
    for (int i = 0; i < entry_count; i++) {
        size_t size = CENTRAL_HEADER + strlen(entries[i].name);
        parts[count++] = (struct file_part){entries[i].central, size};
        directory += (uint32_t)size;
    }
    make_end(end, entry_count, directory, at);
    parts[count++] = (struct file_part){end, END_RECORD};
    return count;
}

bool npz_write(const char *path, const struct model *model, const float *parameters, const char *preprocessing,
               struct error *error)
{
    uint8_t end[END_RECORD];
    size_t rows = 0;
    for (int i = 0; i < model->variable_count; i++) {
        rows += (size_t)model->variables[i].rows;
    }
    if (model->parameter_count * sizeof *parameters + (preprocessing ? strlen(preprocessing) : 0) > MOST_BYTES) {
        return error_set(
            error,
            "%s: the model has %zu MiB of parameters, but an npz file holds at most 4 GiB; use --format=safetensors",
            path, model->parameter_count * sizeof *parameters >> 20);
    }
    struct zip_entry *entries = calloc((size_t)model->variable_count + 1, sizeof *entries);
    struct file_part *parts = malloc((rows + (size_t)3 * (size_t)model->variable_count + 5) * sizeof *parts);
    bool done = entries && parts;
    if (!done) {
        error_set(error, "%s: out of memory while writing it", path);
    } else {
        int count = list_parts(model, parameters, preprocessing, entries, end, parts);
        done = file_write_atomic(path, parts, count, error);
    }
    free(parts);
    free(entries);
    return done;
}
