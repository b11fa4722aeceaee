/*
 * Careful file access: bounded reads of whole files, and atomic writes.
 */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/*
 * Sets an error about a call on `path` that failed with errno `reason`: "PATH: cannot be opened: No such file or
 * directory; check the path". Always false.
 */
bool file_error(struct error *error, const char *path, const char *what, int reason);

/* Reads a whole file of at most limit bytes into malloc'd memory (plus one zero byte, not counted). */
bool file_read(const char *path, size_t limit, uint8_t **bytes, size_t *size, struct error *error);

/* One piece of a file that is written from several. */
struct file_part {
    const void *bytes;
    size_t size;
};

/*
 * Replaces `path` with the concatenated parts: write a temporary file beside it, fsync, rename, fsync the folder. After
 * a crash at any point `path` holds the complete old or the complete new content. On failure the temporary file is
 * removed.
 */
bool file_write_atomic(const char *path, const struct file_part *parts, int count, struct error *error);

/* The same, but a file that already holds exactly these bytes is only synced. */
bool file_keep(const char *path, const void *bytes, size_t size, struct error *error);

/* Syncs the folder in which a file was created or renamed. */
bool file_sync_folder_of(const char *path, struct error *error);

/* "PATH.RANDOM.tmp", for a file that is to be renamed to `path`. False if it does not fit. */
bool file_temporary_name(char *name, size_t size, const char *path, struct error *error);

/*
 * Removes temporary files that killed processes left behind in a folder of our own (file_write_atomic). Files written
 * to within the last hour stay, since other processes may be writing there.
 */
void file_remove_leftovers(const char *folder);

/* Removes a folder of our own with all that is in it; fine if there is none. Links are removed, not followed. */
bool file_remove_folder(const char *path, struct error *error);

/* Creates the folder and its parents (mode 0777 less umask); fine if it exists. */
bool file_make_folder(const char *path, struct error *error);

/*
 * Takes an exclusive lock on `path` (created if missing; a symbolic link is refused) and writes this process's id into
 * it. The lock is held until *fd is closed or the process ends. If another process holds it, the error names its id and
 * `purpose`.
 */
bool file_lock(const char *path, const char *purpose, int *fd, struct error *error);

/* folder + "/" + name into buffer; false if it does not fit. */
bool file_join(char *buffer, size_t size, const char *folder, const char *name, struct error *error);

bool file_exists(const char *path);

/* True if the path leads to a folder. */
bool file_is_folder(const char *path);

#endif
