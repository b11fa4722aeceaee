/*
 * Careful file access: bounded reads of whole files, and writes that no other user can redirect. All files that the
 * program creates are created here (tests/lint/house.py): exclusively, under an unpredictable name where the final one
 * is known beforehand, and never through a link.
 */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

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

/*
 * A file that is written piece by piece and then replaces `path`. FILE_PATH bounds the length of both names.
 *
 *     file_draft_begin, writes to fd or stream, then file_draft_end or file_draft_drop
 */
enum { FILE_PATH = 4096 };

struct file_draft {
    int fd;
    FILE *stream; /* NULL, unless file_draft_stream was called */
    char path[FILE_PATH];
    char temporary[FILE_PATH]; /* "": what is written goes to `path` itself */
};

/* mode: less umask. */
bool file_draft_begin(struct file_draft *draft, const char *path, unsigned mode, struct error *error);

/* The same for an output that the user named, which may be /dev/stdout, a terminal or a named pipe. */
bool file_output_begin(struct file_draft *draft, const char *path, unsigned mode, struct error *error);

/* Opens draft->stream on fd. On failure the draft is dropped. */
bool file_draft_stream(struct file_draft *draft, struct error *error);

/* Puts it in place. sync: also on the disk. On failure it is dropped, and `path` is as before. */
bool file_draft_end(struct file_draft *draft, bool sync, struct error *error);
void file_draft_drop(struct file_draft *draft);

/* Creates a file that must not exist. Returns its descriptor for writing; -1, with errno set too. */
int file_create(const char *path, unsigned mode, struct error *error);

/* Creates a file that must not exist, on the disk. On failure there is none. */
bool file_write_new(const char *path, unsigned mode, const struct file_part *parts, int count, struct error *error);

/*
 * Opens a file to append to, creating it if it is missing. Refuses one that belongs to another user, or that has a
 * second name. follow: it may be a link, which the caller has checked (base/trust.h). -1, with errno set too.
 */
int file_append(const char *path, unsigned mode, bool follow, struct error *error);

/* A file in that folder, for reading and writing, that has no name and is gone when it is closed; -1, with errno. */
int file_create_nameless(const char *folder, unsigned mode);

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

/* From now on only this user may read or enter what the process creates. Before it has threads. */
void file_keep_private(void);

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

/* The first bytes of a file, at most `size`; none if it cannot be read, which the next read reports. */
size_t file_head(const char *path, uint8_t *head, size_t size);

/*
 * Renames a damaged file to PATH.damaged, replacing an earlier one, so that nothing uses it and people can look at it.
 * reason: of the damage, for the log; NULL: it was logged. A file that can't be renamed is a warning.
 */
void file_set_aside(const char *path, const char *reason);

#endif
