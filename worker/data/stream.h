/*
 * Reads a file sequentially, unpacking gzip (recognised by its first bytes, not its name; all its members) or zlib.
 * Unpacks straight into the caller's memory, so that a large file needs no second copy.
 *
 * One thread at a time. Errors name the file, the place in it and the cause.
 */
#ifndef WORKER_DATA_STREAM_H
#define WORKER_DATA_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/budget.h"
#include "base/error.h"

struct stream;

/* How a file is packed. With STREAM_DETECT, a file that begins like gzip is gzip. */
enum stream_packing { STREAM_DETECT, STREAM_PLAIN, STREAM_GZIP, STREAM_ZLIB };

/* path must be a regular file. */
bool stream_open_file(struct stream **stream, const char *path, struct error *error);
bool stream_open_file_as(struct stream **stream, const char *path, enum stream_packing packing, struct error *error);

/* The same from memory, which must outlive the stream; `name` replaces the path in errors. */
bool stream_open_bytes(struct stream **stream, const char *name, const void *bytes, size_t size, struct error *error);
bool stream_open_bytes_as(struct stream **stream, const char *name, const void *bytes, size_t size,
                          enum stream_packing packing, struct error *error);

/* A file, or what is in memory, which must outlive what reads it. */
struct stream_content {
    const char *name;  /* the file's path, or what errors call the memory */
    const void *bytes; /* NULL: a file */
    size_t size;
    struct budget_account *account; /* as for stream_charge_to */
};
bool stream_open(struct stream **stream, const struct stream_content *content, struct error *error);

/*
 * Charges what reading this content takes to an account, which must outlive the stream: readers ask before they
 * allocate, and the stream releases all when it is closed. Without an account all is granted, except what is certainly
 * more than this process may have.
 */
void stream_charge_to(struct stream *stream, struct budget_account *account);
bool stream_charge(struct stream *stream, size_t bytes, struct error *error);
void stream_release(struct stream *stream, size_t bytes); /* freed before that */

/* Reads up to `size` bytes; *got < size only at the end of the content, after its checksum was verified. */
bool stream_read(struct stream *stream, void *buffer, size_t size, size_t *got, struct error *error);

/* Seeks to byte `offset` of a plain file. Not for packed files, nor for memory. */
bool stream_seek(struct stream *stream, uint64_t offset, struct error *error);

/*
 * Upper bound on the bytes of the whole content, without reading it: exact for a plain file; gzip cannot compress by
 * more than a factor of 1,032. Headers are checked against it before memory is allocated.
 */
uint64_t stream_most_bytes(const struct stream *stream);

bool stream_is_packed(const struct stream *stream);
const char *stream_name(const struct stream *stream);

void stream_close(struct stream *stream); /* safe on NULL */

/* --- Kinds of files by their first bytes --- */

/* Formats that people have their data in, known by their first bytes, for errors that say what a file is. */

enum { SIGNATURE_HEAD = 512 /* first bytes, enough for all of them */ };

struct file_kind {
    const char *what;   /* "a JPEG picture" */
    const char *remedy; /* "convert it to PNG"; what to do where it can't be read */
};

/* NULL: none of them. */
const struct file_kind *signature_find(const void *bytes, size_t size);

/* True with the error "NAME: is WHAT; REMEDY" if it is one of them. */
bool signature_say(const char *name, const void *bytes, size_t size, struct error *error);

#endif
