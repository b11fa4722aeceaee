/* Files with checksums: a flipped bit could otherwise name another version, or change a config. */
#include "base/checked.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sodium.h>

#include "base/encoding/crc32c.h"
#include "base/file.h"
#include "base/trust.h"

enum { MAX_SUMS = 32, MAX_REPLACED = 1 << 20, LONGEST_PATH = 4096 };

static const char MARKER[] = " #";

uint32_t checked_sum(const char *path, const void *bytes, size_t size)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const uint32_t sums[] = {crc32c(name, strlen(name)), crc32c(bytes, size)};
    return crc32c(sums, sizeof sums);
}

/* --- One line --- */

bool checked_line_write(const char *path, const char *line, struct error *error)
{
    char text[CHECKED_LINE];
    const int size =
        snprintf(text, sizeof text, "%s%s%08" PRIx32 "\n", line, MARKER, checked_sum(path, line, strlen(line)));
    if ((size_t)size >= sizeof text) {
        return error_set(error, "%s: %d bytes are too many for a line", path, size);
    }
    const struct file_part part = {text, (size_t)size};
    return file_write_atomic(path, &part, 1, error);
}

bool checked_line_read(const char *path, char line[CHECKED_LINE], struct error *error)
{
    uint8_t *bytes;
    size_t size;
    char sum[16];
    if (!trust_file(path, error) || !file_read(path, CHECKED_LINE - 1, &bytes, &size, error)) {
        return false;
    }
    memcpy(line, bytes, size + 1);
    free(bytes);
    char *end = strchr(line, '\n'), *marker = strstr(line, MARKER);
    if (!end || end != line + size - 1) {
        return error_set(error, "%s: is damaged: it is not one line", path);
    }
    *end = '\0';
    if (marker) {
        *marker = '\0';
        snprintf(sum, sizeof sum, "%08" PRIx32, checked_sum(path, line, strlen(line)));
        if (strcmp(marker + sizeof MARKER - 1, sum) != 0) {
            return error_set(error, "%s: is damaged: its checksum is wrong", path);
        }
    }
    return true;
}

/* --- A checksum in a separate file --- */

static bool name_sum(const char *path, char sum_path[LONGEST_PATH], struct error *error)
{
    return (size_t)snprintf(sum_path, LONGEST_PATH, "%s.sum", path) < LONGEST_PATH ||
           error_set(error, "%s: the path is too long", path);
}

/* Is it among the checksums in the file? *there: there are any. */
static bool has_sum(const char *path, uint32_t sum, bool *there, struct error *error)
{
    char sum_path[LONGEST_PATH], text[16];
    uint8_t *bytes;
    size_t size;
    *there = false;
    if (!name_sum(path, sum_path, error)) {
        return false;
    }
    if (!file_exists(sum_path)) {
        return true;
    }
    *there = true;
    if (!trust_file(sum_path, error) || !file_read(sum_path, MAX_SUMS, &bytes, &size, error)) {
        return false;
    }
    snprintf(text, sizeof text, "%08" PRIx32, sum);
    const char *sums = (const char *)bytes;
    const bool two = size == 18 && sums[8] == ' ';
    const bool whole = (size == 9 || two) && sums[size - 1] == '\n';
    const bool same = whole && (strncmp(sums, text, 8) == 0 || (two && strncmp(sums + 9, text, 8) == 0));
    free(bytes);
    return same || error_set(error,
                             "%s: is damaged: its checksum is not that of %s; restore both from a backup or another "
                             "machine, or remove the latter if the former is correct",
                             path, sum_path);
}

bool checked_read(const char *path, size_t limit, uint8_t **bytes, size_t *size, struct error *error)
{
    bool there;
    if (!trust_file(path, error) || !file_read(path, limit, bytes, size, error)) {
        return false;
    }
    if (!has_sum(path, checked_sum(path, *bytes, *size), &there, error)) {
        free(*bytes);
        return false;
    }
    return true;
}

bool checked_write(const char *path, const void *bytes, size_t size, struct error *error)
{
    char sum_path[LONGEST_PATH], text[MAX_SUMS];
    const uint32_t sum = checked_sum(path, bytes, size);
    uint8_t *former = NULL;
    size_t former_size = 0;
    bool there = false;
    struct error ignored;
    if (!name_sum(path, sum_path, error)) {
        return false;
    }
    if (has_sum(path, sum, &there, &ignored) && there) { /* of an existing file */
        return file_keep(path, bytes, size, error);
    }
    int length = snprintf(text, sizeof text, "%08" PRIx32 "\n", sum);
    if (file_exists(path) && checked_read(path, MAX_REPLACED, &former, &former_size, &ignored)) {
        length =
            snprintf(text, sizeof text, "%08" PRIx32 " %08" PRIx32 "\n", sum, checked_sum(path, former, former_size));
        free(former);
    }
    const struct file_part part = {text, (size_t)length};
    return file_write_atomic(sum_path, &part, 1, error) && file_keep(path, bytes, size, error);
}

/* --- Digests --- */

enum { PIECE = 64 << 10, DIGEST_BYTES = CHECKED_DIGEST_HEX / 2 };

static void hash_begin(crypto_generichash_state *hash)
{
    if (sodium_init() >= 0) { /* it selects the fastest implementation */
        crypto_generichash_init(hash, NULL, 0, DIGEST_BYTES);
    }
}

static void hash_end(crypto_generichash_state *hash, char digest[CHECKED_DIGEST_HEX + 1])
{
    uint8_t bytes[DIGEST_BYTES];
    crypto_generichash_final(hash, bytes, sizeof bytes);
    sodium_bin2hex(digest, CHECKED_DIGEST_HEX + 1, bytes, sizeof bytes);
}

void checked_digest(const uint8_t *bytes, size_t size, char digest[CHECKED_DIGEST_HEX + 1])
{
    crypto_generichash_state hash;
    hash_begin(&hash);
    crypto_generichash_update(&hash, bytes, size);
    hash_end(&hash, digest);
}

bool checked_digest_file(const char *path, char digest[CHECKED_DIGEST_HEX + 1], struct error *error)
{
    crypto_generichash_state hash;
    uint8_t piece[PIECE];
    ssize_t got = -1;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return file_error(error, path, "cannot be opened", errno);
    }
    hash_begin(&hash);
    while ((got = read(fd, piece, sizeof piece)) > 0) {
        crypto_generichash_update(&hash, piece, (size_t)got);
    }
    const int reason = errno;
    close(fd);
    hash_end(&hash, digest);
    return got == 0 || file_error(error, path, "cannot be read", reason);
}
