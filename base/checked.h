/*
 * Small files that must not be trusted if the disk has corrupted them. A CRC-32C covers each file's content and its
 * name, since a disk may return another file's bytes:
 *
 *  - at the end of a one-line file: "5 #1a2b3c4d\n"
 *  - beside a file that rarely changes, in NAME.sum: "1a2b3c4d\n"; while it is being replaced, followed by the old
 *    content's sum: "1a2b3c4d 5e6f7a8b\n"
 *
 * A file without a checksum was written by hand, and is accepted as it is. One that another user may have written is
 * refused (base/trust.h): such files decide what this process does.
 */
#ifndef BASE_CHECKED_H
#define BASE_CHECKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum { CHECKED_LINE = 128 };

/* The checksum of this file's bytes; it depends on the file's name, but not on its folder. */
uint32_t checked_sum(const char *path, const void *bytes, size_t size);

/* line: without '\n' and '#'. Replaces the file atomically. */
bool checked_line_write(const char *path, const char *line, struct error *error);

/* Reads the line, without its checksum. The error names the file and says what is wrong with it. */
bool checked_line_read(const char *path, char line[CHECKED_LINE], struct error *error);

/* Writes NAME.sum and then the file, each atomically; leaves both, synced, if they already hold just that. */
bool checked_write(const char *path, const void *bytes, size_t size, struct error *error);

/* As file_read. */
bool checked_read(const char *path, size_t limit, uint8_t **bytes, size_t *size, struct error *error);

/* The digest (BLAKE2b) of a whole file, which nobody can find another file for. */
enum { CHECKED_DIGEST_HEX = 64 };
void checked_digest(const uint8_t *bytes, size_t size, char digest[CHECKED_DIGEST_HEX + 1]);
bool checked_digest_file(const char *path, char digest[CHECKED_DIGEST_HEX + 1], struct error *error);

#endif
