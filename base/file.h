/*
 * Files, the careful way: whole reads with a limit, writes that are either all there or not there at all.
 */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/*
 * Fails with one line about a call on `path` that failed with errno `reason`: "PATH: cannot be opened: No such file or
 * directory; check the path". Always false.
 */
bool file_error(struct error *error, const char *path, const char *what, int reason);

/* Reads a whole file of at most limit bytes into malloc'd memory (one zero byte is added after the end, not counted). */
bool file_read(const char *path, size_t limit, uint8_t **bytes, size_t *size, struct error *error);

/* One piece of a file that is written from several. */
struct file_part {
    const void *bytes;
    size_t size;
};

/*
 * Replaces `path` by the parts, in order: written to a temporary file beside it, fsync, rename, fsync of the folder.
 * After a crash at any point `path` holds the old content or the new, whole. On failure the temporary file is removed.
 */
bool file_write_atomic(const char *path, const struct file_part *parts, int count, struct error *error);

/* The same, but a file that holds just these bytes already is left as it is; it is as certain to stay afterwards. */
bool file_keep(const char *path, const void *bytes, size_t size, struct error *error);

/* Creates the folder and its parents (mode 0777 less umask); fine if it exists. */
bool file_make_folder(const char *path, struct error *error);

/*
 * Takes an exclusive lock on `path` (created if missing) and writes this process's id into it. *fd holds the lock until
 * it is closed or the process ends. If another process holds it, fails naming its id and `purpose`.
 */
bool file_lock(const char *path, const char *purpose, int *fd, struct error *error);

/* folder + "/" + name into buffer; false if it does not fit. */
bool file_join(char *buffer, size_t size, const char *folder, const char *name, struct error *error);

bool file_exists(const char *path);

#endif
