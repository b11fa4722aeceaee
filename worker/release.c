/* Verifies a released file: first the signature of the list of digests, then the list, then the file's digest. */
#include "worker/release.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sodium.h>

#include "base/file.h"
#include "base/trust.h"

enum { MAX_LIST = 1 << 20, PIECE = 64 * 1024, HEX = 2 * crypto_hash_sha256_BYTES };

static bool read_text(const char *path, size_t limit, char **text, struct error *error)
{
    uint8_t *bytes;
    size_t size;
    if (!file_read(path, limit, &bytes, &size, error)) {
        return false;
    }
    *text = (char *)bytes;
    if (strlen(*text) == size) {
        return true;
    }
    free(bytes);
    return error_set(error, "%s: is no text", path);
}

/* --- Trusted keys --- */

static bool own_key_path(char path[PATH_MAX], struct error *error)
{
    char program[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(program, '/');
    if (slash) {
        *slash = '\0';
        if ((size_t)snprintf(path, PATH_MAX, "%s/../share/trainer/release.pub", program) < PATH_MAX &&
            file_exists(path)) {
            return true;
        }
    }
    return error_set(error,
                     "no key was installed with this program; name one that you trust: --key=RW... or --key=FILE");
}

static bool read_key(const char *path, struct minisign_key *key, struct error *error)
{
    static const char operators[] = "trainer operator ";
    uint8_t public_key[OPERATOR_PUBLIC_KEY];
    char *text;
    if (!trust_public_key(path, error) || !read_text(path, MINISIGN_MAX_FILE, &text, error)) {
        return false;
    }
    bool is_operators = strncmp(text, operators, strlen(operators)) == 0;
    bool done = is_operators ? operator_key_read_public(path, public_key, error)
                             : minisign_key_parse(key, text, error) || error_wrap(error, "%s", path);
    free(text);
    if (done && is_operators) {
        minisign_key_of(key, public_key);
    }
    return done;
}

static bool find_key(const char *given, struct minisign_key *key, struct error *error)
{
    char path[PATH_MAX];
    if (!given) {
        return own_key_path(path, error) && read_key(path, key, error);
    }
    if (strncmp(given, "RW", 2) == 0 && !file_exists(given)) {
        return minisign_key_parse(key, given, error) || error_wrap(error, "--key=%s", given);
    }
    return read_key(given, key, error);
}

/* --- The signed list --- */

static bool verify_list(const char *list, const struct minisign_key *key, struct release_proof *proof,
                        struct error *error)
{
    char path[PATH_MAX], *text;
    uint8_t digest[MINISIGN_DIGEST];
    struct minisign signature;
    if ((size_t)snprintf(path, sizeof path, "%s.minisig", list) >= sizeof path) {
        return error_set(error, "%s: the path is too long", list);
    }
    if (!minisign_digest(list, digest, error) || !read_text(path, MINISIGN_MAX_FILE, &text, error)) {
        return false;
    }
    bool parsed = minisign_parse(&signature, text, error) || error_wrap(error, "%s", path);
    free(text);
    if (!parsed) {
        return false;
    }
    if (!minisign_verify(&signature, key, digest, error)) {
        return error_wrap(error, "%s", list);
    }
    minisign_key_format(key, proof->key);
    snprintf(proof->comment, sizeof proof->comment, "%s", signature.comment);
    return true;
}

/* A line is the digest in hex, two blanks (or a blank and an asterisk), and the name. */
static bool find_digest(const char *list, const char *name, char digest[HEX + 1])
{
    size_t length = strlen(name);
    for (const char *line = list; *line != '\0';) {
        size_t size = strcspn(line, "\n");
        if (size == HEX + 2 + length && memcmp(line + HEX + 2, name, length) == 0 && line[HEX] == ' ' &&
            strspn(line, "0123456789abcdef") == HEX) {
            memcpy(digest, line, HEX);
            digest[HEX] = '\0';
            return true;
        }
        line += size + (line[size] == '\n');
    }
    return false;
}

static bool digest_of(const char *path, char digest[HEX + 1], struct error *error)
{
    uint8_t piece[PIECE], bytes[crypto_hash_sha256_BYTES];
    crypto_hash_sha256_state state;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return file_error(error, path, "cannot be opened", errno);
    }
    crypto_hash_sha256_init(&state);
    ssize_t got;
    while ((got = read(fd, piece, sizeof piece)) > 0) {
        crypto_hash_sha256_update(&state, piece, (size_t)got);
    }
    int reason = errno;
    close(fd);
    crypto_hash_sha256_final(&state, bytes);
    sodium_bin2hex(digest, HEX + 1, bytes, sizeof bytes);
    return got == 0 || file_error(error, path, "cannot be read", reason);
}

static bool compare(const char *path, const char *list, struct error *error)
{
    char wanted[HEX + 1], found[HEX + 1], *text;
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    if (!read_text(list, MAX_LIST, &text, error)) {
        return false;
    }
    bool is_listed = find_digest(text, name, wanted);
    free(text);
    if (!is_listed) {
        return error_set(error, "%s: is not part of the release, whose files %s lists", path, list);
    }
    if (!digest_of(path, found, error)) {
        return false;
    }
    return strcmp(found, wanted) == 0 ||
           error_set(error,
                     "%s: is damaged or was altered: its SHA-256 begins with %.8s, that of the released file with "
                     "%.8s; download it again",
                     path, found, wanted);
}

bool release_verify(const char *path, const char *key_text, struct release_proof *proof, struct error *error)
{
    char list[PATH_MAX];
    struct minisign_key key;
    const char *slash = strrchr(path, '/');
    int folder = slash ? (int)(slash - path) + 1 : 0;
    if ((size_t)snprintf(list, sizeof list, "%.*sSHA256SUMS", folder, path) >= sizeof list) {
        return error_set(error, "%s: the path is too long", path);
    }
    return find_key(key_text, &key, error) && verify_list(list, &key, proof, error) && compare(path, list, error);
}
