/* A log that can't be written is reported once and then skipped: predictions matter more. */
#include "serve/access.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/trust.h"

enum { MOST_KEPT = 1 << 16 };

/* A link is followed where nobody else can have put it: /dev/stdout, say. */
static int open_file(const char *path, struct error *error)
{
    struct error ignored;
    return file_append(path, 0640, file_exists(path) && trust_file(path, &ignored), error);
}

bool access_open(struct access_log *log, const char *path, struct error *error)
{
    *log = (struct access_log){.path = path, .fd = -1};
    if (!path) {
        return true;
    }
    log->fd = open_file(path, error);
    return log->fd >= 0;
}

void access_add(struct access_log *log, const struct http_logged *logged)
{
    struct text_buffer *lines = &log->lines;
    if (!log->path) {
        return;
    }
    lines->follows = false;
    json_write_open(lines, NULL, '{');
    json_write_time(lines, "time", clock_wall_s());
    json_write_string(lines, "client", logged->client);
    json_write_string(lines, "method", logged->method);
    json_write_string(lines, "path", logged->path);
    json_write_integer(lines, "status", logged->status);
    json_write_integer(lines, "bytes", (int64_t)logged->bytes);
    json_write_number(lines, "ms", logged->seconds * 1e3);
    json_write_close(lines, '}');
    text_buffer_add(lines, "\n");
    if (lines->size >= MOST_KEPT) {
        access_flush(log);
    }
}

/* Continues in a new file if the old one was moved or deleted. */
static void reopen(struct access_log *log)
{
    struct stat own, there;
    if (fstat(log->fd, &own) == 0 && stat(log->path, &there) == 0 && own.st_ino == there.st_ino &&
        own.st_dev == there.st_dev) {
        return;
    }
    struct error ignored;
    const int fd = open_file(log->path, &ignored);
    if (fd >= 0) {
        close(log->fd);
        log->fd = fd;
    }
}

void access_flush(struct access_log *log)
{
    struct error error;
    size_t size;
    if (!log->path || log->lines.size == 0) {
        return;
    }
    reopen(log);
    char *lines = text_buffer_take(&log->lines, &size);
    const ssize_t written = lines ? write(log->fd, lines, size) : -1;
    if (written != (ssize_t)size && !log->has_failed) {
        file_error(&error, log->path, "cannot be written", lines && written < 0 ? errno : ENOSPC);
        log_warning("%s; lines are lost", error.text);
    }
    log->has_failed = written != (ssize_t)size;
    free(lines);
}

void access_close(struct access_log *log)
{
    access_flush(log);
    if (log->path && log->fd >= 0) {
        close(log->fd);
    }
    text_buffer_free(&log->lines);
    log->path = NULL;
}
