/* Keys of operators, who sign changes of a fleet's config (Ed25519, by libsodium). */
#include "net/operator_key.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <sodium.h>

#include "base/file.h"
#include "base/log.h"
#include "base/trust.h"
#include "net/bytes.h"

static const char secret_head[] = "trainer operator secret key 1\n";
static const char locked_head[] = "trainer operator secret key 2\n"; /* by a passphrase */
static const char public_head[] = "trainer operator public key 1\n";

enum { MAX_FILE = 512 };

/* What follows the head of a locked key, in hex. */
enum {
    LOCKED_PUBLIC = 0,
    LOCKED_PASSES = LOCKED_PUBLIC + OPERATOR_PUBLIC_KEY, /* of Argon2id */
    LOCKED_KIB = LOCKED_PASSES + 4,                      /* its memory */
    LOCKED_SALT = LOCKED_KIB + 4,
    LOCKED_NONCE = LOCKED_SALT + crypto_pwhash_SALTBYTES,
    LOCKED_BOX = LOCKED_NONCE + crypto_secretbox_NONCEBYTES,
    LOCKED_BYTES = LOCKED_BOX + crypto_secretbox_MACBYTES + OPERATOR_SECRET_KEY,
};

/* Half a second of a processor; what a file may ask for at most. */
enum { PASSES = 3, KIB = 128 << 10, MOST_PASSES = 32, MOST_KIB = 1 << 20 };

void *secret_memory(size_t size, struct error *error)
{
    static bool warned;
    trust_hide_memory();
    void *memory = sodium_init() < 0 ? NULL : sodium_malloc(size); /* which locks it if it may */
    if (!memory) {
        (void)error_set(error, "out of memory for a secret");
        return NULL;
    }
    if (sodium_mlock(memory, size) != 0 && !warned) {
        warned = true;
        log_warning("an operator's secret may be swapped to disk, because it can't be locked in memory: %s; raise "
                    "ulimit -l, or encrypt swap",
                    strerror(errno));
    }
    memset(memory, 0, size);
    return memory;
}

void secret_free(void *memory, size_t size)
{
    if (memory) {
        sodium_memzero(memory, size);
        sodium_free(memory);
    }
}

static bool write_new(const char *path, mode_t mode, const char *head, const uint8_t *key, size_t size,
                      struct error *error)
{
    char *text = secret_memory(MAX_FILE, error);
    if (!text) {
        return false;
    }
    int length = snprintf(text, MAX_FILE, "%s", head);
    sodium_bin2hex(text + length, MAX_FILE - (size_t)length, key, size);
    length += 2 * (int)size;
    text[length++] = '\n'; /* it replaces the hex digits' zero byte */
    const bool done = file_write_new(path, mode, &(struct file_part){text, (size_t)length}, 1, error);
    secret_free(text, MAX_FILE);
    return done;
}

/* --- Locked by a passphrase --- */

static bool derive(const uint8_t locked[LOCKED_BYTES], const char *passphrase, uint8_t key[crypto_secretbox_KEYBYTES],
                   struct error *error)
{
    const uint32_t passes = get_le32(locked + LOCKED_PASSES), kib = get_le32(locked + LOCKED_KIB);
    if (passes < crypto_pwhash_OPSLIMIT_MIN || passes > MOST_PASSES || kib < 8 || kib > MOST_KIB) {
        return error_set(error, "asks for too much work");
    }
    return crypto_pwhash(key, crypto_secretbox_KEYBYTES, passphrase, strlen(passphrase), locked + LOCKED_SALT, passes,
                         (size_t)kib << 10, crypto_pwhash_ALG_ARGON2ID13) == 0 ||
           error_set(error, "out of memory for its passphrase: %u MiB", kib >> 10);
}

static bool lock(const uint8_t secret[OPERATOR_SECRET_KEY], const uint8_t public[OPERATOR_PUBLIC_KEY],
                 const char *passphrase, uint8_t locked[LOCKED_BYTES], struct error *error)
{
    uint8_t *key = secret_memory(crypto_secretbox_KEYBYTES, error);
    if (!key) {
        return false;
    }
    memcpy(locked + LOCKED_PUBLIC, public, OPERATOR_PUBLIC_KEY);
    put_le32(locked + LOCKED_PASSES, PASSES);
    put_le32(locked + LOCKED_KIB, KIB);
    randombytes_buf(locked + LOCKED_SALT, crypto_pwhash_SALTBYTES + crypto_secretbox_NONCEBYTES);
    const bool done =
        derive(locked, passphrase, key, error) &&
        crypto_secretbox_easy(locked + LOCKED_BOX, secret, OPERATOR_SECRET_KEY, locked + LOCKED_NONCE, key) == 0;
    secret_free(key, crypto_secretbox_KEYBYTES);
    return done;
}

/* The box must hold the secret of the public key beside it. */
static bool unlock(const uint8_t locked[LOCKED_BYTES], const char *passphrase, uint8_t secret[OPERATOR_SECRET_KEY],
                   struct error *error)
{
    uint8_t public[OPERATOR_PUBLIC_KEY], *key = secret_memory(crypto_secretbox_KEYBYTES, error);
    if (!key || !derive(locked, passphrase, key, error)) {
        secret_free(key, crypto_secretbox_KEYBYTES);
        return false;
    }
    bool done = crypto_secretbox_open_easy(secret, locked + LOCKED_BOX, LOCKED_BYTES - LOCKED_BOX,
                                           locked + LOCKED_NONCE, key) == 0;
    secret_free(key, crypto_secretbox_KEYBYTES);
    done = done && crypto_sign_ed25519_sk_to_pk(public, secret) == 0 &&
           memcmp(public, locked + LOCKED_PUBLIC, sizeof public) == 0;
    if (!done) {
        sodium_memzero(secret, OPERATOR_SECRET_KEY);
    }
    return done || error_set(error, "the passphrase is another one, or the file is damaged");
}

/* One line, without showing it. */
static bool read_line_unseen(int fd, char line[OPERATOR_PASSPHRASE])
{
    struct termios before, unseen;
    if (tcgetattr(fd, &before) != 0) {
        return false;
    }
    unseen = before;
    unseen.c_lflag &= ~(tcflag_t)ECHO;
    tcsetattr(fd, TCSAFLUSH, &unseen);
    const ptrdiff_t size = read(fd, line, OPERATOR_PASSPHRASE - 1);
    tcsetattr(fd, TCSAFLUSH, &before);
    line[size > 0 ? size : 0] = '\0';
    line[strcspn(line, "\n")] = '\0';
    return size > 0;
}

bool operator_key_ask(const char *prompt, char passphrase[OPERATOR_PASSPHRASE], struct error *error)
{
    const char *given = getenv("TRAINER_OPERATOR_PASSPHRASE");
    if (given) {
        return (size_t)snprintf(passphrase, OPERATOR_PASSPHRASE, "%s", given) < OPERATOR_PASSPHRASE ||
               error_set(error, "TRAINER_OPERATOR_PASSPHRASE is longer than %d bytes", OPERATOR_PASSPHRASE - 1);
    }
    const int fd = open("/dev/tty", O_RDWR | O_CLOEXEC | O_NOCTTY);
    bool done = fd >= 0;
    if (done) {
        dprintf(fd, "%s: ", prompt);
        done = read_line_unseen(fd, passphrase);
        dprintf(fd, "\n");
        close(fd);
    }
    return done || error_set(error, "%s: there is no terminal to ask on; set TRAINER_OPERATOR_PASSPHRASE", prompt);
}

/* --- Files --- */

static bool write_secret(const char *path, const uint8_t secret[OPERATOR_SECRET_KEY],
                         const uint8_t public[OPERATOR_PUBLIC_KEY], const char *passphrase, struct error *error)
{
    uint8_t locked[LOCKED_BYTES];
    if (!passphrase || passphrase[0] == '\0') {
        return write_new(path, 0600, secret_head, secret, OPERATOR_SECRET_KEY, error);
    }
    return lock(secret, public, passphrase, locked, error) &&
           write_new(path, 0600, locked_head, locked, sizeof locked, error);
}

bool operator_key_create(const char *path, const char *passphrase, struct error *error)
{
    char public_path[PATH_MAX];
    uint8_t public_key[OPERATOR_PUBLIC_KEY], *secret_key;
    if ((size_t)snprintf(public_path, sizeof public_path, "%s.pub", path) >= sizeof public_path) {
        return error_set(error, "%s: the path is too long", path);
    }
    if (sodium_init() < 0) {
        return error_set(error, "the system provides no random numbers");
    }
    if (!(secret_key = secret_memory(OPERATOR_SECRET_KEY, error))) {
        return false;
    }
    crypto_sign_keypair(public_key, secret_key);
    bool done = write_secret(path, secret_key, public_key, passphrase, error);
    if (done && !write_new(public_path, 0644, public_head, public_key, sizeof public_key, error)) {
        unlink(path);
        done = false;
    }
    secret_free(secret_key, OPERATOR_SECRET_KEY);
    return done;
}

/* The key after this head, in hex. Returns what follows; NULL: it is not one. */
static const char *parse_key(const char *text, const char *head, uint8_t *key, size_t key_size)
{
    const size_t length = strlen(head);
    const char *end = NULL;
    return strncmp(text, head, length) == 0 &&
                   sodium_hex2bin(key, key_size, text + length, 2 * key_size, NULL, NULL, &end) == 0 &&
                   end == text + length + 2 * key_size && *end == '\n'
               ? end + 1
               : NULL;
}

static bool is_no_key(const char *path, const char *what, struct error *error)
{
    return error_set(error, "%s: is not an operator's %s key; make a pair with: trainer keygen --operator=FILE", path,
                     what);
}

/* Straight to where secrets may lie. text: [MAX_FILE + 1] */
static bool read_text(const char *path, char *text, size_t *size, struct error *error)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : 1;
    int reason = errno;
    for (*size = 0; got > 0 && *size < MAX_FILE; *size += (size_t)got) {
        got = read(fd, text + *size, MAX_FILE - *size);
        reason = errno;
        if (got < 0) {
            break;
        }
    }
    if (fd >= 0) {
        close(fd);
    }
    text[*size] = '\0';
    return got >= 0 || file_error(error, path, "cannot be read", reason);
}

static bool read_secret(const char *path, const char *head, uint8_t *key, size_t key_size, struct error *error)
{
    char *text = secret_memory(MAX_FILE + 1, error);
    size_t size = 0;
    if (!text || !read_text(path, text, &size, error)) {
        secret_free(text, MAX_FILE + 1);
        return false;
    }
    const bool done = parse_key(text, head, key, key_size) == text + size;
    secret_free(text, MAX_FILE + 1);
    return done || is_no_key(path, "secret", error);
}

/* False without an error: it is not locked, or not a key at all. */
static bool read_locked(const char *path, uint8_t locked[LOCKED_BYTES])
{
    struct error ignored;
    return read_secret(path, locked_head, locked, LOCKED_BYTES, &ignored);
}

static bool check_secret(const char *path, struct error *error)
{
    struct stat status;
    if (stat(path, &status) != 0) {
        return error_set(error, "%s: %s; make a pair of keys with: trainer keygen --operator=%s", path, strerror(errno),
                         path);
    }
    return trust_secret(path, "key", error);
}

bool operator_key_read_secret(const char *path, uint8_t key[OPERATOR_SECRET_KEY], struct error *error)
{
    uint8_t locked[LOCKED_BYTES];
    char prompt[PATH_MAX + 32];
    if (!check_secret(path, error)) {
        return false;
    }
    if (!read_locked(path, locked)) {
        return read_secret(path, secret_head, key, OPERATOR_SECRET_KEY, error);
    }
    snprintf(prompt, sizeof prompt, "passphrase of %s", path);
    char *passphrase = secret_memory(OPERATOR_PASSPHRASE, error);
    const bool done = passphrase && operator_key_ask(prompt, passphrase, error) &&
                      (unlock(locked, passphrase, key, error) || error_wrap(error, "%s", path));
    secret_free(passphrase, OPERATOR_PASSPHRASE);
    return done;
}

bool operator_key_read_own_public(const char *path, uint8_t key[OPERATOR_PUBLIC_KEY], struct error *error)
{
    uint8_t locked[LOCKED_BYTES];
    if (!check_secret(path, error)) {
        return false;
    }
    if (read_locked(path, locked)) {
        memcpy(key, locked + LOCKED_PUBLIC, OPERATOR_PUBLIC_KEY);
        return true;
    }
    uint8_t *secret = secret_memory(OPERATOR_SECRET_KEY, error);
    const bool done = secret && read_secret(path, secret_head, secret, OPERATOR_SECRET_KEY, error) &&
                      crypto_sign_ed25519_sk_to_pk(key, secret) == 0;
    secret_free(secret, OPERATOR_SECRET_KEY);
    return done;
}

/* --- Several operators --- */

static const char threshold_head[] = "threshold ";

bool operator_keys_have(const struct operator_keys *keys, const uint8_t key[OPERATOR_PUBLIC_KEY])
{
    bool found = false;
    for (int i = 0; i < keys->count; i++) {
        found = found || memcmp(keys->keys[i], key, OPERATOR_PUBLIC_KEY) == 0;
    }
    return found;
}

/* Returns what follows the keys; NULL: they are too many, or one is there twice. */
static const char *parse_keys(const char *text, struct operator_keys *keys)
{
    uint8_t key[OPERATOR_PUBLIC_KEY];
    const char *next;
    for (keys->count = 0; (next = parse_key(text, public_head, key, sizeof key)); text = next) {
        if (keys->count == OPERATOR_MAX_KEYS || operator_keys_have(keys, key)) {
            return NULL;
        }
        memcpy(keys->keys[keys->count++], key, sizeof key);
    }
    return text;
}

/* "threshold 2\n"; a single key needs none. */
static const char *parse_threshold(const char *text, struct operator_keys *keys)
{
    const size_t length = strlen(threshold_head);
    keys->threshold = keys->count == 1 ? 1 : 0;
    if (strncmp(text, threshold_head, length) != 0 || text[length] < '1' || text[length] > '9' ||
        text[length + 1] != '\n') {
        return text;
    }
    keys->threshold = text[length] - '0';
    return text + length + 2;
}

bool operator_keys_read(const char *path, struct operator_keys *keys, struct error *error)
{
    uint8_t *bytes = NULL;
    size_t size = 0;
    *keys = (struct operator_keys){.count = 0};
    if (!trust_public_key(path, error) || !file_read(path, OPERATOR_MAX_KEYS * MAX_FILE, &bytes, &size, error)) {
        return false;
    }
    const char *at = parse_keys((const char *)bytes, keys);
    at = at && keys->count > 0 ? parse_threshold(at, keys) : NULL;
    const bool is_whole = at == (const char *)bytes + size;
    free(bytes);
    if (!is_whole) {
        return is_no_key(path, "public", error);
    }
    return (keys->threshold > 0 && keys->threshold <= keys->count) ||
           error_set(error, "%s: holds %d keys, so its last line must say how many of them must sign: threshold %d",
                     path, keys->count, keys->count);
}

struct operator_keys operator_keys_of(const uint8_t key[OPERATOR_PUBLIC_KEY])
{
    struct operator_keys keys = {.count = 1, .threshold = 1};
    memcpy(keys.keys[0], key, OPERATOR_PUBLIC_KEY);
    return keys;
}

/* Whose signature it is; -1: of none of these keys. */
static int find_signer(const struct operator_keys *keys, const uint8_t *bytes, size_t size, const uint8_t *signature)
{
    int key = keys->count - 1;
    while (key >= 0 && crypto_sign_verify_detached(signature, bytes, size, keys->keys[key]) != 0) {
        key--;
    }
    return key;
}

bool operator_keys_verify(const struct operator_keys *keys, const uint8_t *bytes, size_t size,
                          const uint8_t *signatures, int count)
{
    bool has_signed[OPERATOR_MAX_KEYS] = {false};
    for (int i = 0; i < count; i++) {
        const int key = find_signer(keys, bytes, size, signatures + (size_t)i * OPERATOR_SIGNATURE);
        if (key < 0 || has_signed[key]) {
            return false;
        }
        has_signed[key] = true;
    }
    return count > 0;
}

void operator_keys_signers(const struct operator_keys *keys, const uint8_t *bytes, size_t size,
                           const uint8_t *signatures, int count, char text[OPERATOR_SIGNERS])
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < count && i < OPERATOR_MAX_KEYS; i++) {
        struct minisign_key named;
        const int key = find_signer(keys, bytes, size, signatures + (size_t)i * OPERATOR_SIGNATURE);
        if (key >= 0) {
            minisign_key_of(&named, keys->keys[key]);
            text[used] = ' ';
            used += used > 0 ? 1 : 0;
            sodium_bin2hex(text + used, OPERATOR_SIGNERS - used, named.id, sizeof named.id);
            used += 2 * sizeof named.id;
        }
    }
}

bool operator_key_read_public(const char *path, uint8_t key[OPERATOR_PUBLIC_KEY], struct error *error)
{
    struct operator_keys keys;
    if (!operator_keys_read(path, &keys, error)) {
        return false;
    }
    memcpy(key, keys.keys[0], OPERATOR_PUBLIC_KEY);
    return keys.count == 1 || error_set(error, "%s: holds %d keys, but one is needed here", path, keys.count);
}

/* --- Signatures of files, as minisign makes them --- */

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
