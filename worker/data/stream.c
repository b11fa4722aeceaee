/* gzip and zlib streams, by zlib's inflate, which verifies the checksum and length at the end. */
#include "worker/data/stream.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
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

bool stream_open(struct stream **stream, const struct stream_content *content, struct error *error)
{
    const bool done = content->bytes ? stream_open_bytes(stream, content->name, content->bytes, content->size, error)
                                     : stream_open_file(stream, content->name, error);
    if (done) {
        stream_charge_to(*stream, content->account);
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

/* --- Kinds of files by their first bytes --- */

/* The first bytes are from the formats' own descriptions, as file(1) has them. */

struct known {
    size_t at, size;
    const char *bytes;
    struct file_kind signature;
};

#define BYTES(text) sizeof(text) - 1, text

static const struct known known[] = {
    {0, BYTES("\xff\xd8\xff"), {"a JPEG picture", "convert it to PNG"}},
    {0, BYTES("\x89PNG\r\n\x1a\n"), {"a PNG picture", "a table is needed here"}},
    {0, BYTES("GIF8"), {"a GIF picture", "convert it to PNG or JPEG"}},
    {8, BYTES("WEBP"), {"a WebP picture", "convert it to PNG or JPEG"}},
    {4, BYTES("ftypavif"), {"an AVIF picture", "convert it to PNG or JPEG"}},
    {4, BYTES("ftyphei"), {"a HEIC picture", "convert it to PNG or JPEG"}},
    {0, BYTES("II*\0"), {"a TIFF picture", "convert it to PNG or JPEG"}},
    {0, BYTES("MM\0*"), {"a TIFF picture", "convert it to PNG or JPEG"}},
    {0, BYTES("%PDF-"), {"a PDF document", "save its table as CSV"}},
    {0, BYTES("PAR1"), {"a Parquet file", "save it as CSV (pandas.read_parquet(...).to_csv(..., index=False))"}},
    {0, BYTES("ARROW1"), {"an Arrow file", "save it as CSV (pandas.read_feather(...).to_csv(..., index=False))"}},
    {0, BYTES("FEA1"), {"a Feather file", "save it as CSV (pandas.read_feather(...).to_csv(..., index=False))"}},
    {0, BYTES("\x89HDF\r\n\x1a\n"), {"an HDF5 file", "save its arrays by numpy.savez, or its table as CSV"}},
    {0, BYTES("MATLAB 5.0"), {"a MATLAB file", "save its arrays by numpy.savez (scipy.io.loadmat)"}},
    {0, BYTES("SQLite format 3"), {"an SQLite database", "export its table as CSV (sqlite3 -header -csv)"}},
    {0, BYTES("ORC"), {"an ORC file", "save it as CSV"}},
    {0, BYTES("Obj\1"), {"an Avro file", "save it as CSV"}},
    {0, BYTES("\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"), {"an Excel workbook of the old format", "save it as CSV"}},
    {0, BYTES("BZh"), {"packed by bzip2", "unpack it, or compress it with gzip"}},
    {0,
     BYTES("\xfd"
           "7zXZ"),
     {"packed by xz", "unpack it, or compress it with gzip"}},
    {0, BYTES("\x28\xb5\x2f\xfd"), {"packed by Zstandard", "unpack it, or compress it with gzip"}},
    {0, BYTES("7z\xbc\xaf\x27\x1c"), {"a 7-Zip archive", "unpack it"}},
    {0, BYTES("Rar!"), {"a RAR archive", "unpack it"}},
    {257, BYTES("ustar"), {"a tar archive", "unpack it"}},
    {0, BYTES("\x1f\x8b"), {"packed by gzip", "unpack it"}},
    {0,
     BYTES("\x7f"
           "ELF"),
     {"a program", "name the data"}},
    {0, BYTES("\x93NUMPY"), {"a numpy array", "a table or pictures are needed here"}},
    {0, BYTES("\x80\2}"), {"a Python pickle", "save it as CSV, or its arrays by numpy.savez"}},
    {0, BYTES("\x80\3"), {"a Python pickle", "save it as CSV, or its arrays by numpy.savez"}},
    {0, BYTES("\x80\4\x95"), {"a Python pickle", "save it as CSV, or its arrays by numpy.savez"}},
    {0, BYTES("\x80\5\x95"), {"a Python pickle", "save it as CSV, or its arrays by numpy.savez"}},
    {0, BYTES("%!PS"), {"a PostScript document", "save its table as CSV"}},
    {0, BYTES("{\\rtf"), {"an RTF document", "save its table as CSV"}},
};

static bool contains(const char *bytes, size_t size, const char *text)
{
    return memmem(bytes, size, text, strlen(text));
}

/* By the names of the first files in a ZIP archive. */
static const struct file_kind *find_archive(const char *bytes, size_t size)
{
    static const struct file_kind workbook = {"an Excel workbook", "save it as CSV"},
                                  sheet = {"a spreadsheet of OpenDocument", "save it as CSV"},
                                  document = {"a Word document", "save its table as CSV"},
                                  torch = {"a model or tensors of PyTorch", "save arrays by numpy.savez"},
                                  archive = {"a ZIP archive", "unpack it"};
    if (contains(bytes, size, "xl/") || contains(bytes, size, "[Content_Types].xml")) {
        return contains(bytes, size, "word/") ? &document : &workbook;
    }
    return contains(bytes, size, "opendocument.spreadsheet") ? &sheet
           : contains(bytes, size, "/data.pkl")              ? &torch
                                                             : &archive;
}

/* "1 3:0.5 17:2": a label, then numbers of columns, which rise, with their values. Times, "1 12:30 14:45", are none. */
static bool is_sparse(const char *bytes, size_t size)
{
    char line[SIGNATURE_HEAD + 1], *end;
    size = size < SIGNATURE_HEAD ? size : SIGNATURE_HEAD;
    const char *stop = memchr(bytes, '\n', size);
    size = stop ? (size_t)(stop - bytes) : size;
    memcpy(line, bytes, size);
    line[size] = '\0';
    strtod(line, &end);
    bool are_times = true;
    const char *at = end;
    for (long last = -1, index; at > line && *at == ' ' && at[1] >= '0' && at[1] <= '9'; last = index, at = end) {
        index = strtol(at + 1, &end, 10);
        if (*end != ':' || index <= last) {
            return false;
        }
        at = end + 1;
        strtod(at, &end);
        are_times &= end - at == 2;
        if (end == at) {
            return false;
        }
    }
    at += strspn(at, " \r");
    return *at == '\0' && !are_times;
}

static const struct file_kind *find_text(const char *bytes, size_t size)
{
    static const struct file_kind page = {"a web page, perhaps instead of the file wanted", "download it again"},
                                  xml = {"an XML file", "save it as CSV"},
                                  weka = {"an ARFF file, of Weka",
                                          "save it as CSV: the attributes' names, then the lines after @data"},
                                  json = {"JSON", "save it as CSV (pandas.read_json(...).to_csv(..., index=False); "
                                                  "with lines=True if each line is an object)"},
                                  sparse = {"in LIBSVM's format",
                                            "save its arrays by numpy.savez (sklearn.datasets.load_svmlight_file)"},
                                  lfs = {"a pointer of Git LFS instead of the file", "fetch it: git lfs pull"};
    if ((*bytes == '@' || *bytes == '%') && (contains(bytes, size, "@relation") || contains(bytes, size, "@RELATION") ||
                                             contains(bytes, size, "@Relation"))) {
        return &weka;
    }
    while (size > 0 && (*bytes == ' ' || *bytes == '\n' || *bytes == '\r' || *bytes == '\t')) {
        bytes++;
        size--;
    }
    if ((size >= 14 && strncasecmp(bytes, "<!DOCTYPE html", 14) == 0) ||
        (size >= 5 && strncasecmp(bytes, "<html", 5) == 0)) {
        return &page;
    }
    if ((size > 0 && *bytes == '{' && contains(bytes, size, "\":")) || (size > 1 && memcmp(bytes, "[{", 2) == 0)) {
        return &json;
    }
    if (is_sparse(bytes, size)) {
        return &sparse;
    }
    return size >= 5 && memcmp(bytes, "<?xml", 5) == 0                                          ? &xml
           : size >= 42 && memcmp(bytes, "version https://git-lfs.github.com/spec/v1", 42) == 0 ? &lfs
                                                                                                : NULL;
}

const struct file_kind *signature_find(const void *head, size_t size)
{
    const char *bytes = head;
    if (size >= 4 && (memcmp(bytes, "PK\3\4", 4) == 0 || memcmp(bytes, "PK\5\6", 4) == 0)) {
        return find_archive(bytes, size);
    }
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (size >= known[i].at + known[i].size && memcmp(bytes + known[i].at, known[i].bytes, known[i].size) == 0) {
            return &known[i].signature;
        }
    }
    return find_text(bytes, size);
}

bool signature_say(const char *name, const void *bytes, size_t size, struct error *error)
{
    const struct file_kind *found = signature_find(bytes, size);
    if (found) {
        error_set(error, "%s: is %s; %s", name, found->what, found->remedy);
    }
    return found;
}
