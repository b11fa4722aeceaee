/* gzip and zlib streams, by zlib's inflate, which verifies the checksum and length at the end. */
#include "worker/data/stream.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ZLIB_CONST /* inflate does not write to its input */
#include <zlib.h>

#include "base/file.h"
#include "base/memory.h"

enum {
    BUFFER_BYTES = 1 << 16,
    GZIP_MOST_RATIO = 1032, /* deflate spends at least 2 bits on 258 bytes */
    ZLIB_WINDOW = 15,       /* the largest window */
    GZIP_WINDOW = 15 + 16,  /* the same; gzip's header and trailer, not zlib's */
    MUCH = 1 << 26,         /* bytes that are worth asking how many this process may have */
};

struct stream {
    char *name;
    int fd;                      /* -1: from memory */
    enum stream_packing packing; /* never STREAM_DETECT */
    bool ended;                  /* packed: its trailer has been read and verified */
    uint64_t size;               /* of the file, packed or not */
    uint64_t taken;              /* bytes of the file handed to the reader or to inflate */
    uint64_t content;            /* bytes handed to the reader */
    struct budget_account *account;
    size_t charged;
    z_stream inflate;
    const uint8_t *input; /* bytes read from the file but not yet consumed */
    size_t input_left;
    uint8_t buffer[]; /* [BUFFER_BYTES] for a file */
};

/* Reads at most `size` bytes of a file; 0 at its end. */
static bool read_some(struct stream *stream, void *buffer, size_t size, size_t *got, struct error *error)
{
    for (;;) {
        ssize_t count = read(stream->fd, buffer, size);
        if (count >= 0) {
            *got = (size_t)count;
            return true;
        }
        if (errno != EINTR) {
            return error_set(error, "%s: cannot be read at byte %llu: %s", stream->name,
                             (unsigned long long)stream->taken, strerror(errno));
        }
    }
}

/* Ensures input_left > 0, unless the file is at its end. */
static bool fill(struct stream *stream, struct error *error)
{
    if (stream->input_left > 0 || stream->fd < 0) {
        return true;
    }
    stream->input = stream->buffer;
    return read_some(stream, stream->buffer, BUFFER_BYTES, &stream->input_left, error);
}

static const char *packing_name(const struct stream *stream)
{
    return stream->packing == STREAM_ZLIB ? "zlib" : "gzip";
}

static bool begin(struct stream *stream, enum stream_packing packing, struct error *error)
{
    if (!fill(stream, error)) {
        return false;
    }
    if (packing == STREAM_DETECT) {
        bool is_gzip = stream->input_left >= 2 && stream->input[0] == 0x1F && stream->input[1] == 0x8B;
        packing = is_gzip ? STREAM_GZIP : STREAM_PLAIN;
    }
    stream->packing = packing;
    int window = packing == STREAM_ZLIB ? ZLIB_WINDOW : GZIP_WINDOW;
    if (packing != STREAM_PLAIN && inflateInit2(&stream->inflate, window) != Z_OK) {
        stream->packing = STREAM_PLAIN;
        return error_set(error, "%s: out of memory while unpacking it", stream->name);
    }
    return true;
}

static struct stream *create(const char *name, size_t buffer)
{
    struct stream *stream = calloc(1, sizeof *stream + buffer);
    if (stream) {
        stream->fd = -1;
        stream->packing = STREAM_PLAIN;
        stream->name = strdup(name);
    }
    if (stream && !stream->name) {
        free(stream);
        stream = NULL;
    }
    return stream;
}

bool stream_open_file(struct stream **result, const char *path, struct error *error)
{
    return stream_open_file_as(result, path, STREAM_DETECT, error);
}

bool stream_open_file_as(struct stream **result, const char *path, enum stream_packing packing, struct error *error)
{
    struct stream *stream = create(path, BUFFER_BYTES);
    if (!stream) {
        return error_set(error, "%s: out of memory while reading it", path);
    }
    struct stat status;
    stream->fd =
        open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* opening a named pipe would otherwise wait for a writer */
    if (stream->fd < 0) {
        file_error(error, path, "cannot be opened", errno);
    } else if (fstat(stream->fd, &status) != 0) {
        file_error(error, path, "cannot be examined", errno);
    } else if (!S_ISREG(status.st_mode)) {
        error_set(error, "%s: is not a regular file", path);
    } else {
        stream->size = (uint64_t)status.st_size;
        if (begin(stream, packing, error)) {
            *result = stream;
            return true;
        }
    }
    stream_close(stream);
    return false;
}

bool stream_open_bytes(struct stream **result, const char *name, const void *bytes, size_t size, struct error *error)
{
    return stream_open_bytes_as(result, name, bytes, size, STREAM_DETECT, error);
}

bool stream_open_bytes_as(struct stream **result, const char *name, const void *bytes, size_t size,
                          enum stream_packing packing, struct error *error)
{
    struct stream *stream = create(name, 0);
    if (!stream) {
        return error_set(error, "%s: out of memory while reading it", name);
    }
    stream->input = bytes;
    stream->input_left = size;
    stream->size = size;
    if (!begin(stream, packing, error)) {
        stream_close(stream);
        return false;
    }
    *result = stream;
    return true;
}

static bool read_plain(struct stream *stream, uint8_t *buffer, size_t size, size_t *got, struct error *error)
{
    size_t done = stream->input_left < size ? stream->input_left : size;
    if (done > 0) {
        memcpy(buffer, stream->input, done);
        stream->input += done;
        stream->input_left -= done;
        stream->taken += done;
    }
    while (done < size && stream->fd >= 0) {
        size_t some;
        if (!read_some(stream, buffer + done, size - done, &some, error)) {
            return false;
        }
        if (some == 0) {
            break;
        }
        done += some;
        stream->taken += some;
    }
    *got = done;
    return true;
}

/* What follows the packed data must be another member of gzip; anything else is damage. */
static bool check_end(struct stream *stream, struct error *error)
{
    if (!fill(stream, error)) {
        return false;
    }
    if (stream->input_left > 0 && stream->packing == STREAM_GZIP && stream->input[0] == 0x1F) {
        stream->ended = false;
        return inflateReset(&stream->inflate) == Z_OK || error_set(error, "%s: cannot be unpacked", stream->name);
    }
    if (stream->input_left > 0) {
        return error_set(error, "%s: its %s data ends at byte %llu, but the file continues; fetch it again",
                         stream->name, packing_name(stream), (unsigned long long)stream->taken);
    }
    return true;
}

/* One call of inflate, from the available input to buffer[0..size). */
static bool inflate_some(struct stream *stream, uint8_t *buffer, size_t size, size_t *got, struct error *error)
{
    uInt in = stream->input_left < UINT32_MAX ? (uInt)stream->input_left : UINT32_MAX;
    uInt out = size < UINT32_MAX ? (uInt)size : UINT32_MAX;
    stream->inflate.next_in = stream->input;
    stream->inflate.avail_in = in;
    stream->inflate.next_out = buffer;
    stream->inflate.avail_out = out;
    int status = inflate(&stream->inflate, Z_NO_FLUSH);
    size_t used = in - stream->inflate.avail_in;
    stream->input += used;
    stream->input_left -= used;
    stream->taken += used;
    *got = out - stream->inflate.avail_out;
    if (status == Z_MEM_ERROR) {
        return error_set(error, "%s: out of memory while unpacking it", stream->name);
    }
    if (status == Z_NEED_DICT || (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR)) {
        return error_set(error, "%s: its %s data is damaged near byte %llu (%s); fetch the file again", stream->name,
                         packing_name(stream), (unsigned long long)stream->taken,
                         stream->inflate.msg ? stream->inflate.msg : "not deflate data");
    }
    stream->ended = status == Z_STREAM_END;
    return !stream->ended || check_end(stream, error);
}

static bool read_packed(struct stream *stream, uint8_t *buffer, size_t size, size_t *got, struct error *error)
{
    size_t done = 0;
    while (done < size && !stream->ended) {
        if (!fill(stream, error)) {
            return false;
        }
        if (stream->input_left == 0) {
            return error_set(error, "%s: ends at byte %llu, within its %s data; fetch the file again", stream->name,
                             (unsigned long long)stream->taken, packing_name(stream));
        }
        size_t some;
        if (!inflate_some(stream, buffer + done, size - done, &some, error)) {
            return false;
        }
        done += some;
    }
    *got = done;
    return true;
}

bool stream_read(struct stream *stream, void *buffer, size_t size, size_t *got, struct error *error)
{
    bool done = stream_is_packed(stream) ? read_packed(stream, buffer, size, got, error)
                                         : read_plain(stream, buffer, size, got, error);
    if (done) {
        stream->content += *got;
    }
    return done;
}

void stream_charge_to(struct stream *stream, struct budget_account *account)
{
    stream->account = account;
}

bool stream_charge(struct stream *stream, size_t bytes, struct error *error)
{
    uint64_t most;
    if (!stream->account && bytes >= MUCH && memory_for_this_process(&most) && bytes > most) {
        return error_set(error, "%s: needs %zu MiB of memory unpacked, and this process may use %llu MiB", stream->name,
                         bytes >> 20, (unsigned long long)most >> 20);
    }
    if (!budget_charge(stream->account, bytes, error)) {
        return error_wrap(error, "%s", stream->name);
    }
    stream->charged += bytes;
    return true;
}

void stream_release(struct stream *stream, size_t bytes)
{
    budget_release(stream->account, bytes);
    stream->charged -= bytes;
}

bool stream_seek(struct stream *stream, uint64_t offset, struct error *error)
{
    assert(!stream_is_packed(stream) && stream->fd >= 0);
    if (offset > INT64_MAX || lseek(stream->fd, (off_t)offset, SEEK_SET) < 0) {
        return error_set(error, "%s: cannot be read from byte %llu: %s", stream->name, (unsigned long long)offset,
                         strerror(errno));
    }
    stream->input_left = 0;
    stream->taken = stream->content = offset;
    return true;
}

uint64_t stream_most_bytes(const struct stream *stream)
{
    if (!stream_is_packed(stream)) {
        return stream->size;
    }
    return stream->size < UINT64_MAX / GZIP_MOST_RATIO ? stream->size * GZIP_MOST_RATIO : UINT64_MAX;
}

bool stream_is_packed(const struct stream *stream)
{
    return stream->packing != STREAM_PLAIN;
}

const char *stream_name(const struct stream *stream)
{
    return stream->name;
}

void stream_close(struct stream *stream)
{
    if (!stream) {
        return;
    }
    if (stream_is_packed(stream)) {
        inflateEnd(&stream->inflate);
    }
    if (stream->fd >= 0) {
        close(stream->fd);
    }
    budget_release(stream->account, stream->charged);
    free(stream->name);
    free(stream);
}
