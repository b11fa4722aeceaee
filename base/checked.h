/*
 * Small files that must not be obeyed once the disk has changed them. A CRC-32C covers each, and its name, for a disk
 * may hand out another file's bytes:
 *
 *  - at the end of a file that is one line: "5 #1a2b3c4d\n"
 *  - beside a file that hardly ever changes, in NAME.sum: "1a2b3c4d\n"; while it is being replaced also the sum of what
 *    was there before: "1a2b3c4d 5e6f7a8b\n"
 *
 * A file without a checksum was written by an earlier program, or by hand, and is taken as it is.
 */
#ifndef BASE_CHECKED_H
#define BASE_CHECKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum { CHECKED_LINE = 128 };

/* The checksum of bytes that belong into this file, in whatever folder. */
uint32_t checked_sum(const char *path, const void *bytes, size_t size);

/* line: without '\n' and '#'. Replaces the file atomically. */
bool checked_line_write(const char *path, const char *line, struct error *error);

/* The line alone. The error names the file, and says what is wrong with it. */
bool checked_line_read(const char *path, char line[CHECKED_LINE], struct error *error);

/* Writes NAME.sum and then the file, each atomically, or leaves both if they hold just that, synced. */
bool checked_write(const char *path, const void *bytes, size_t size, struct error *error);

/* As file_read. */
bool checked_read(const char *path, size_t limit, uint8_t **bytes, size_t *size, struct error *error);

#endif
