/* A row is its numbers, positions, places, label or targets, and weight, 4 bytes each, as in memory. */
#include "worker/data/table/spool.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/file.h"

enum {
    WRITTEN_AT_ONCE = 1 << 20,
    RESERVE = 256 << 20, /* bytes of a disk that are left to others, checkpoints say; of a small one, a twentieth */
    ROW_BLOCK_BYTES = 1 << 17, /* less than BLOCK_BYTES: rows are small, and a window should mix many blocks */
    MODE = 0600,
};

struct spool {
    struct example_source source;
    int fd;
    char *folder;
    size_t row_bytes;
    uint64_t rows;
    uint8_t *buffer; /* [room]: rows not written yet; NULL: all are */
    size_t room, used;
    struct weights weights;
};

struct spool_reader {
    struct example_reader reader;
    uint8_t *buffer; /* [of a block, and a row] */
};

/* --- the file --- */

static bool no_room(const struct spool *spool, int reason, struct error *error)
{
    return file_error(error, spool->folder,
                      "cannot take the rows that do not fit into memory; name a folder with more room by --cache_dir",
                      reason);
}

/* Data decide how many rows there are, and a full disk stops more than this process. */
static bool leaves_room(const struct spool *spool)
{
    struct statvfs disk;
    if (fstatvfs(spool->fd, &disk) != 0 || disk.f_blocks == 0 || spool->used == 0) {
        return true; /* memory's file systems may say nothing of their size */
    }
    const double all = (double)disk.f_blocks * (double)disk.f_frsize;
    return (double)disk.f_bavail * (double)disk.f_frsize - (double)spool->used >= fmin(RESERVE, all / 20);
}

static bool flush(struct spool *spool, struct error *error)
{
    if (!leaves_room(spool)) {
        return no_room(spool, ENOSPC, error);
    }
    for (size_t done = 0; done < spool->used;) {
        const ssize_t some = write(spool->fd, spool->buffer + done, spool->used - done);
        if (some < 0 && errno != EINTR) {
            return no_room(spool, errno, error);
        }
        done += some > 0 ? (size_t)some : 0;
    }
    spool->used = 0;
    return true;
}

/* --- rows --- */

static uint8_t *put(uint8_t *to, const void *array, int index, int count)
{
    const size_t bytes = (size_t)count * sizeof(float);
    if (bytes > 0) {
        memcpy(to, (const uint8_t *)array + (size_t)index * bytes, bytes);
    }
    return to + bytes;
}

static const uint8_t *take(const uint8_t *from, void *array, int index, int count)
{
    const size_t bytes = (size_t)count * sizeof(float);
    if (bytes > 0) {
        memcpy((uint8_t *)array + (size_t)index * bytes, from, bytes);
    }
    return from + bytes;
}

bool spool_add(struct spool *spool, const struct examples *examples, int index, struct error *error)
{
    if (spool->used + spool->row_bytes > spool->room && !flush(spool, error)) {
        return false;
    }
    uint8_t *to = spool->buffer + spool->used;
    to = put(to, examples->values, index, examples->numbers);
    to = put(to, examples->positions, index, examples->piecewise);
    to = put(to, examples->places, index, examples->codes);
    to = examples->labels ? put(to, examples->labels, index, 1)
                          : put(to, examples->target_values, index, examples->targets);
    put(to, examples->weights, index, examples->weights ? 1 : 0);
    spool->used += spool->row_bytes;
    spool->rows++;
    return true;
}

static void take_row(const struct examples *into, int index, const uint8_t *from)
{
    from = take(from, into->values, index, into->numbers);
    from = take(from, into->positions, index, into->piecewise);
    from = take(from, into->places, index, into->codes);
    from = into->labels ? take(from, into->labels, index, 1) : take(from, into->target_values, index, into->targets);
    take(from, into->weights, index, into->weights ? 1 : 0);
}

/* --- as a source --- */

static bool source_open(const struct example_source *source, struct example_reader **reader, struct error *error)
{
    struct spool_reader *opened = calloc(1, sizeof *opened);
    uint8_t *buffer = malloc(ROW_BLOCK_BYTES + ((const struct spool *)source)->row_bytes);
    if (!opened || !buffer) {
        free(opened);
        free(buffer);
        return error_set(error, "out of memory while reading rows");
    }
    opened->reader.source = source;
    opened->buffer = buffer;
    *reader = &opened->reader;
    return true;
}

static bool read_bytes(const struct spool *spool, uint8_t *bytes, size_t size, uint64_t offset, struct error *error)
{
    for (size_t done = 0; done < size;) {
        const ssize_t some = pread(spool->fd, bytes + done, size - done, (off_t)(offset + done));
        if (some == 0 || (some < 0 && errno != EINTR)) {
            return file_error(error, spool->folder, "cannot give back the rows that were put there (data.cache_dir)",
                              some == 0 ? EIO : errno);
        }
        done += some > 0 ? (size_t)some : 0;
    }
    return true;
}

static bool source_read(struct example_reader *base, const struct stream_block *block, uint32_t first,
                        const struct examples *into, struct error *error)
{
    const struct spool_reader *reader = (const struct spool_reader *)base;
    const struct spool *spool = (const struct spool *)base->source;
    const uint64_t offset = (block->offset + block->skip + first) * spool->row_bytes;
    const size_t bytes = (size_t)into->count * spool->row_bytes;
    if (!read_bytes(spool, reader->buffer, bytes, offset, error)) {
        return false;
    }
    for (int i = 0; i < into->count; i++) {
        take_row(into, i, reader->buffer + (size_t)i * spool->row_bytes);
    }
    weights_apply(&spool->weights, into, 0);
    return true;
}

static void source_close(struct example_reader *base)
{
    free(((struct spool_reader *)base)->buffer);
    free(base);
}

static void source_destroy(struct example_source *base)
{
    spool_destroy((struct spool *)base);
}

static const struct example_source_table table = {
    .open = source_open, .read = source_read, .close = source_close, .destroy = source_destroy};

/* --- Create and destroy --- */

bool spool_create(struct spool **result, const char *folder, const struct examples *like, struct error *error)
{
    struct spool *spool = calloc(1, sizeof *spool);
    if (!spool) {
        return error_set(error, "out of memory while reading rows");
    }
    spool->fd = -1;
    spool->source = (struct example_source){.table = &table, .like = *like, .files = 1};
    spool->row_bytes = examples_bytes(like);
    spool->room = spool->row_bytes > WRITTEN_AT_ONCE ? spool->row_bytes : WRITTEN_AT_ONCE;
    spool->folder = strdup(folder);
    spool->buffer = malloc(spool->room);
    if (!spool->folder || !spool->buffer) {
        spool_destroy(spool);
        return error_set(error, "out of memory while reading rows");
    }
    spool->fd = file_create_nameless(folder, MODE);
    if (spool->fd < 0) {
        file_error(error, folder, "cannot hold rows that do not fit into memory (data.cache_dir)", errno);
        spool_destroy(spool);
        return false;
    }
    *result = spool;
    return true;
}

bool spool_finish(struct spool *spool, struct overflow *overflow, struct weights *weights, struct error *error)
{
    const uint64_t in_block = ROW_BLOCK_BYTES / spool->row_bytes + 1;
    bool done = flush(spool, error);
    free(spool->buffer);
    spool->buffer = NULL;
    spool->weights = *weights;
    *weights = (struct weights){.classes = 0};
    overflow->source = &spool->source;
    for (uint64_t row = 0; done && row < spool->rows; row += in_block) {
        const uint64_t left = spool->rows - row;
        done = blocks_add(&overflow->blocks, 0, row, (uint32_t)(left < in_block ? left : in_block)) ||
               error_set(error, "out of memory for the order of the rows");
    }
    return done;
}

void spool_destroy(struct spool *spool)
{
    if (!spool) {
        return;
    }
    if (spool->fd >= 0) {
        close(spool->fd);
    }
    weights_free(&spool->weights);
    free(spool->folder);
    free(spool->buffer);
    free(spool);
}
