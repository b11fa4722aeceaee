/* Keys of operators, who sign changes of a fleet's config (Ed25519, by libsodium). */
#include "net/operator_key.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sodium.h>

#include "base/file.h"
#include "base/trust.h"

static const char secret_head[] = "trainer operator secret key 1\n";
static const char public_head[] = "trainer operator public key 1\n";

enum { MAX_FILE = 256 };

static bool write_new(const char *path, mode_t mode, const char *head, const uint8_t *key, size_t size,
                      struct error *error)
{
    char text[MAX_FILE];
    int length = snprintf(text, sizeof text, "%s", head);
    sodium_bin2hex(text + length, sizeof text - (size_t)length, key, size);
    length += 2 * (int)size;
    text[length++] = '\n'; /* it replaces the hex digits' zero byte */
    const bool done = file_write_new(path, mode, &(struct file_part){text, (size_t)length}, 1, error);
    sodium_memzero(text, sizeof text);
    return done;
}

bool operator_key_create(const char *path, struct error *error)
{
    char public_path[PATH_MAX];
    uint8_t public_key[OPERATOR_PUBLIC_KEY], secret_key[OPERATOR_SECRET_KEY];
    if ((size_t)snprintf(public_path, sizeof public_path, "%s.pub", path) >= sizeof public_path) {
        return error_set(error, "%s: the path is too long", path);
    }
    if (sodium_init() < 0) {
        return error_set(error, "the system provides no random numbers");
    }
    crypto_sign_keypair(public_key, secret_key);
    bool done = write_new(path, 0600, secret_head, secret_key, sizeof secret_key, error);
    if (done && !write_new(public_path, 0644, public_head, public_key, sizeof public_key, error)) {
        unlink(path);
        done = false;
    }
    sodium_memzero(secret_key, sizeof secret_key);
    return done;
}

static bool read_key(const char *path, const char *head, const char *what, uint8_t *key, size_t key_size,
                     struct error *error)
{
    uint8_t *bytes = NULL;
    size_t size = 0;
    const char *end = NULL;
    if (!file_read(path, MAX_FILE, &bytes, &size, error)) {
        return false;
    }
    const char *text = (const char *)bytes, *hex = text + strlen(head);
    bool done = size == strlen(head) + 2 * key_size + 1 && memcmp(bytes, head, strlen(head)) == 0 &&
                sodium_hex2bin(key, key_size, hex, 2 * key_size, NULL, NULL, &end) == 0 && end == hex + 2 * key_size &&
                *end == '\n';
    sodium_memzero(bytes, size);
    free(bytes);
    return done || error_set(error, "%s: is not an operator's %s key; make a pair with: trainer keygen --operator=FILE",
                             path, what);
}

bool operator_key_read_secret(const char *path, uint8_t key[OPERATOR_SECRET_KEY], struct error *error)
{
    struct stat status;
    if (stat(path, &status) != 0) {
        return error_set(error, "%s: %s; make a pair of keys with: trainer keygen --operator=%s", path, strerror(errno),
                         path);
    }
    return trust_secret(path, "key", error) && read_key(path, secret_head, "secret", key, OPERATOR_SECRET_KEY, error);
}

bool operator_key_read_public(const char *path, uint8_t key[OPERATOR_PUBLIC_KEY], struct error *error)
{
    return trust_public_key(path, error) && read_key(path, public_head, "public", key, OPERATOR_PUBLIC_KEY, error);
}
