/*
 * The bytes of a file, from its first to its last, unpacked on the way if the file is gzip (told by its first bytes,
 * not by its name) or zlib. Unpacks straight into the reader's memory, so that a large file costs no second copy of itself.
 *
 * One thread at a time. Errors name the file, the place in it and the cause.
 */
#ifndef WORKER_DATA_STREAM_H
#define WORKER_DATA_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct stream;

/* How a file is packed. What begins as gzip does is taken for gzip, unless the caller knows better. */
enum stream_packing { STREAM_DETECT, STREAM_PLAIN, STREAM_GZIP, STREAM_ZLIB };

/* path must be a regular file. */
bool stream_open_file(struct stream **stream, const char *path, struct error *error);
bool stream_open_file_as(struct stream **stream, const char *path, enum stream_packing packing, struct error *error);

/* The same from memory, which must outlive the stream; `name` stands for the path in errors. */
bool stream_open_bytes(struct stream **stream, const char *name, const void *bytes, size_t size, struct error *error);
bool stream_open_bytes_as(struct stream **stream, const char *name, const void *bytes, size_t size,
                          enum stream_packing packing, struct error *error);

/* Up to `size` bytes into buffer; *got < size only at the end of the content, whose checksum is verified by then. */
bool stream_read(struct stream *stream, void *buffer, size_t size, size_t *got, struct error *error);

/* Goes to byte `offset` of the content of a plain file. Not for packed ones, nor for memory. */
bool stream_seek(struct stream *stream, uint64_t offset, struct error *error);

/*
 * The most bytes that the whole content can have, known without reading it: exact for a plain file; gzip cannot shrink
 * by more than a factor of 1,032. What a header promises is checked against it before memory is taken.
 */
uint64_t stream_most_bytes(const struct stream *stream);

bool stream_is_packed(const struct stream *stream);
const char *stream_name(const struct stream *stream);

void stream_close(struct stream *stream); /* NULL is fine */

#endif
