/* Compresses in memory, so that the file itself is still written atomically. */
#include "worker/data/convert/pack.h"

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>

#define ZLIB_CONST /* deflate does not write to its input */
#include <zlib.h>

enum { ZLIB_WINDOW = 15, GZIP_WINDOW = 15 + 16, MEMORY_LEVEL = 8 };

/* Compresses them, one after another, into malloc'd memory (packed->bytes) as one gzip or zlib stream. */
static bool pack_parts(const struct file_part *parts, int count, enum stream_packing packing, struct file_part *packed,
                       struct error *error)
{
    z_stream deflater = {0};
    int window = packing == STREAM_ZLIB ? ZLIB_WINDOW : GZIP_WINDOW;
    assert(packing == STREAM_ZLIB || packing == STREAM_GZIP);
    if (deflateInit2(&deflater, Z_DEFAULT_COMPRESSION, Z_DEFLATED, window, MEMORY_LEVEL, Z_DEFAULT_STRATEGY) != Z_OK) {
        return error_set(error, "out of memory while compressing the images; write them plain");
    }
    size_t total = 0;
    for (int i = 0; i < count; i++) {
        total += parts[i].size;
    }
    size_t bound = deflateBound(&deflater, total);
    uint8_t *bytes = total <= UINT32_MAX / 2 ? malloc(bound) : NULL;
    if (!bytes) {
        deflateEnd(&deflater);
        return error_set(error, "out of memory while compressing %zu bytes of images; write them plain", total);
    }
    deflater.next_out = bytes;
    deflater.avail_out = (uInt)bound;
    for (int i = 0; i < count; i++) {
        deflater.next_in = parts[i].bytes;
        deflater.avail_in = (uInt)parts[i].size;
        deflate(&deflater, i + 1 < count ? Z_NO_FLUSH : Z_FINISH);
    }
    *packed = (struct file_part){bytes, bound - deflater.avail_out};
    deflateEnd(&deflater);
    return true;
}

bool pack_write(const char *path, const struct file_part *parts, int count, enum stream_packing packing,
                struct error *error)
{
    struct file_part packed;
    if (packing == STREAM_PLAIN || packing == STREAM_DETECT) {
        return file_write_atomic(path, parts, count, error);
    }
    if (!pack_parts(parts, count, packing, &packed, error)) {
        return false;
    }
    bool done = file_write_atomic(path, &packed, 1, error);
    free((void *)(uintptr_t)packed.bytes);
    return done;
}
