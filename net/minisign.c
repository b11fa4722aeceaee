/* Signatures of files as minisign writes them (Ed25519 and BLAKE2b, by libsodium). */
#include "net/minisign.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <sodium.h>

#include "base/file.h"

static const char untrusted_head[] = "untrusted comment: ", trusted_head[] = "trusted comment: ";

enum {
    KIND = 2, /* bytes before each key and signature: "Ed" for a key, "ED" for a signature of a digest */
    KEY_BYTES = KIND + MINISIGN_ID + OPERATOR_PUBLIC_KEY,
    SIGNATURE_BYTES = KIND + MINISIGN_ID + MINISIGN_SIGNATURE,
    LINE = 1024 + sizeof untrusted_head,
    PIECE = 64 * 1024,
};

/* Copies the next line without its end, and returns what follows it; NULL: it is too long. */
static const char *next_line(const char *text, char line[LINE])
{
    size_t length = strcspn(text, "\r\n");
    if (length >= LINE) {
        return NULL;
    }
    memcpy(line, text, length);
    line[length] = '\0';
    text += length;
    text += *text == '\r';
    return text + (*text == '\n');
}

/* Exactly this many bytes, and nothing else in the line. */
static bool decode(const char *line, uint8_t *bytes, size_t size)
{
    size_t decoded = 0;
    const char *end = NULL;
    return sodium_base642bin(bytes, size, line, strlen(line), NULL, &decoded, &end, sodium_base64_VARIANT_ORIGINAL) ==
               0 &&
           decoded == size && *end == '\0';
}

/* The bytes covered by the signature of the comment. */
static size_t comment_message(uint8_t message[MINISIGN_SIGNATURE + MINISIGN_COMMENT],
                              const uint8_t signature[MINISIGN_SIGNATURE], const char *comment)
{
    memcpy(message, signature, MINISIGN_SIGNATURE);
    return MINISIGN_SIGNATURE + (size_t)snprintf((char *)message + MINISIGN_SIGNATURE, MINISIGN_COMMENT, "%s", comment);
}

static bool is_comment(const char *text)
{
    size_t length = 0;
    while (text[length] >= ' ' && text[length] <= '~') {
        length++;
    }
    return text[length] == '\0' && length > 0 && length < MINISIGN_COMMENT;
}

/* --- Keys --- */

void minisign_key_of(struct minisign_key *key, const uint8_t public_key[OPERATOR_PUBLIC_KEY])
{
    uint8_t digest[crypto_generichash_BYTES];
    crypto_generichash(digest, sizeof digest, public_key, OPERATOR_PUBLIC_KEY, NULL, 0);
    memcpy(key->id, digest, sizeof key->id);
    memcpy(key->key, public_key, sizeof key->key);
}

void minisign_key_format(const struct minisign_key *key, char text[MINISIGN_KEY_TEXT])
{
    uint8_t bytes[KEY_BYTES] = {'E', 'd'};
    memcpy(bytes + KIND, key->id, sizeof key->id);
    memcpy(bytes + KIND + MINISIGN_ID, key->key, sizeof key->key);
    sodium_bin2base64(text, MINISIGN_KEY_TEXT, bytes, sizeof bytes, sodium_base64_VARIANT_ORIGINAL);
}

bool minisign_key_parse(struct minisign_key *key, const char *text, struct error *error)
{
    char line[LINE];
    uint8_t bytes[KEY_BYTES];
    const char *behind = next_line(text, line);
    if (behind && strncmp(line, untrusted_head, strlen(untrusted_head)) == 0) {
        behind = next_line(behind, line);
    }
    if (!behind || *behind != '\0' || !decode(line, bytes, sizeof bytes) || memcmp(bytes, "Ed", KIND) != 0) {
        return error_set(error, "is not a minisign public key, which begins with RW");
    }
    memcpy(key->id, bytes + KIND, sizeof key->id);
    memcpy(key->key, bytes + KIND + MINISIGN_ID, sizeof key->key);
    return true;
}

/* --- Signatures --- */

bool minisign_parse(struct minisign *signature, const char *text, struct error *error)
{
    char line[LINE];
    uint8_t bytes[SIGNATURE_BYTES];
    const char *at = next_line(text, line);
    bool fits = at && strncmp(line, untrusted_head, strlen(untrusted_head)) == 0 && (at = next_line(at, line)) &&
                decode(line, bytes, sizeof bytes);
    if (fits && memcmp(bytes, "Ed", KIND) == 0) {
        return error_set(error, "is a signature in minisign's legacy format; sign again without -l");
    }
    fits = fits && memcmp(bytes, "ED", KIND) == 0 && (at = next_line(at, line)) &&
           strncmp(line, trusted_head, strlen(trusted_head)) == 0 && is_comment(line + strlen(trusted_head));
    if (fits) {
        memcpy(signature->comment, line + strlen(trusted_head), strlen(line) - strlen(trusted_head) + 1);
        fits = (at = next_line(at, line)) && *at == '\0' &&
               decode(line, signature->comment_signature, sizeof signature->comment_signature);
    }
    if (!fits) {
        return error_set(error, "is not a minisign signature");
    }
    memcpy(signature->id, bytes + KIND, sizeof signature->id);
    memcpy(signature->signature, bytes + KIND + MINISIGN_ID, sizeof signature->signature);
    return true;
}

bool minisign_digest(const char *path, uint8_t digest[MINISIGN_DIGEST], struct error *error)
{
    uint8_t piece[PIECE];
    crypto_generichash_state state;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return file_error(error, path, "cannot be opened", errno);
    }
    crypto_generichash_init(&state, NULL, 0, MINISIGN_DIGEST);
    ssize_t got;
    while ((got = read(fd, piece, sizeof piece)) > 0) {
        crypto_generichash_update(&state, piece, (size_t)got);
    }
    int reason = errno;
    close(fd);
    crypto_generichash_final(&state, digest, MINISIGN_DIGEST);
    return got == 0 || file_error(error, path, "cannot be read", reason);
}

bool minisign_verify(const struct minisign *signature, const struct minisign_key *key,
                     const uint8_t digest[MINISIGN_DIGEST], struct error *error)
{
    uint8_t message[MINISIGN_SIGNATURE + MINISIGN_COMMENT];
    char wanted[MINISIGN_KEY_TEXT];
    minisign_key_format(key, wanted);
    if (memcmp(signature->id, key->id, sizeof key->id) != 0) {
        return error_set(error, "was not signed by the key %s", wanted);
    }
    if (crypto_sign_verify_detached(signature->signature, digest, MINISIGN_DIGEST, key->key) != 0) {
        return error_set(error, "differs from what was signed by the key %s", wanted);
    }
    size_t size = comment_message(message, signature->signature, signature->comment);
    if (crypto_sign_verify_detached(signature->comment_signature, message, size, key->key) != 0) {
        return error_set(error, "has a comment that was not signed by the key %s", wanted);
    }
    return true;
}

bool minisign_sign(const uint8_t secret_key[OPERATOR_SECRET_KEY], const uint8_t digest[MINISIGN_DIGEST],
                   const char *comment, char text[MINISIGN_MAX_FILE], struct error *error)
{
    enum { BASE64 = sodium_base64_ENCODED_LEN(SIGNATURE_BYTES, sodium_base64_VARIANT_ORIGINAL) };
    uint8_t bytes[SIGNATURE_BYTES] = {'E', 'D'}, comment_signature[MINISIGN_SIGNATURE];
    uint8_t public_key[OPERATOR_PUBLIC_KEY], message[MINISIGN_SIGNATURE + MINISIGN_COMMENT];
    char key_text[MINISIGN_KEY_TEXT], first[BASE64], second[BASE64];
    struct minisign_key key;
    if (!is_comment(comment)) {
        return error_set(error, "a signature's comment must be printable ASCII, at most %d characters",
                         MINISIGN_COMMENT - 1);
    }
    crypto_sign_ed25519_sk_to_pk(public_key, secret_key);
    minisign_key_of(&key, public_key);
    minisign_key_format(&key, key_text);
    memcpy(bytes + KIND, key.id, sizeof key.id);
    uint8_t *signature = bytes + KIND + MINISIGN_ID;
    crypto_sign_detached(signature, NULL, digest, MINISIGN_DIGEST, secret_key);
    size_t size = comment_message(message, signature, comment);
    crypto_sign_detached(comment_signature, NULL, message, size, secret_key);
    sodium_bin2base64(first, sizeof first, bytes, sizeof bytes, sodium_base64_VARIANT_ORIGINAL);
    sodium_bin2base64(second, sizeof second, comment_signature, sizeof comment_signature,
                      sodium_base64_VARIANT_ORIGINAL);
    snprintf(text, MINISIGN_MAX_FILE, "%ssignature by the key %s\n%s\n%s%s\n%s\n", untrusted_head, key_text, first,
             trusted_head, comment, second);
    return true;
}
