/*
 * The operator's keys (Ed25519): the secret key signs orders to a fleet, the public one, on every member, verifies
 * them.
 *
 * Two text files: FILE (mode 0600) with the secret key, FILE.pub with the public one; each with a line that says which
 * it is, and a line of hex. The secret one may be locked by a passphrase: Argon2id makes the key of a secretbox from it
 * (libsodium), and the public key lies beside the box.
 */
#ifndef NET_OPERATOR_KEY_H
#define NET_OPERATOR_KEY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "net/operator_key.h"

enum { OPERATOR_PUBLIC_KEY = 32, OPERATOR_SECRET_KEY = 64 /* bytes */ };

enum { OPERATOR_PASSPHRASE = 256 /* bytes, with its zero */ };

/*
 * Zeroed memory for secrets: locked, so that it is not swapped; in no core dump; between pages that can't be touched.
 * If the limit of locked memory does not allow it, that is a warning. NULL: out of memory.
 */
void *secret_memory(size_t size, struct error *error);
void secret_free(void *memory, size_t size); /* wipes it; NULL is fine */

/* Creates a key pair. Neither file may exist. passphrase: NULL or "": the secret key is not locked. */
bool operator_key_create(const char *path, const char *passphrase, struct error *error);

/*
 * The passphrase in the environment (TRAINER_OPERATOR_PASSPHRASE), or else the one that a person types on the terminal,
 * unseen. The caller wipes it, and has it in secret_memory.
 */
bool operator_key_ask(const char *prompt, char passphrase[OPERATOR_PASSPHRASE], struct error *error);

/*
 * The caller has the secret key in secret_memory. A locked one asks for its passphrase (operator_key_ask). Refuses a
 * key that others may have written, and a secret key that everybody may read (base/trust.h).
 */
bool operator_key_read_secret(const char *path, uint8_t key[OPERATOR_SECRET_KEY], struct error *error);

/* The public half of a secret key, for which a locked one needs no passphrase. */
bool operator_key_read_own_public(const char *path, uint8_t key[OPERATOR_PUBLIC_KEY], struct error *error);
bool operator_key_read_public(const char *path, uint8_t key[OPERATOR_PUBLIC_KEY], struct error *error);

/* --- Several operators --- */

enum { OPERATOR_MAX_KEYS = 8, OPERATOR_SIGNATURE = 64 };

/* Whose signatures count, and how many of different keys a rollout needs. */
struct operator_keys {
    int count, threshold;
    uint8_t keys[OPERATOR_MAX_KEYS][OPERATOR_PUBLIC_KEY];
};

/* A file with one public key; or with several of them one after the other, and a last line such as `threshold 2`. */
bool operator_keys_read(const char *path, struct operator_keys *keys, struct error *error);

struct operator_keys operator_keys_of(const uint8_t key[OPERATOR_PUBLIC_KEY]);
bool operator_keys_have(const struct operator_keys *keys, const uint8_t key[OPERATOR_PUBLIC_KEY]);

/* The ids of the keys that made them, as in minisign's files, in hex and separated by blanks. */
enum { OPERATOR_SIGNERS = OPERATOR_MAX_KEYS * 17 };
void operator_keys_signers(const struct operator_keys *keys, const uint8_t *bytes, size_t size,
                           const uint8_t *signatures, int count, char text[OPERATOR_SIGNERS]);

/* True if these `count` signatures of the bytes are of as many different keys. */
bool operator_keys_verify(const struct operator_keys *keys, const uint8_t *bytes, size_t size,
                          const uint8_t *signatures, int count);

/* --- Signatures of files, as minisign makes them --- */

/*
 * File signatures in minisign's format, with the operator's keys: minisign can verify our signatures, and we can verify
 * minisign's.
 *
 * A signature (FILE.minisig) covers the file's BLAKE2b-512, and a comment: two lines in base64, each below a comment,
 * the first of which is not signed. minisign's key ids are random; an operator key's id is the beginning of its digest.
 */

enum {
    MINISIGN_ID = 8,
    MINISIGN_SIGNATURE = 64,
    MINISIGN_DIGEST = 64,
    MINISIGN_KEY_TEXT = 57, /* "RW...", with the zero byte */
    MINISIGN_COMMENT = 256, /* with the zero byte */
    MINISIGN_MAX_FILE = 2048,
};

/* A public key. */
struct minisign_key {
    uint8_t id[MINISIGN_ID];
    uint8_t key[OPERATOR_PUBLIC_KEY];
};

struct minisign {
    uint8_t id[MINISIGN_ID];
    uint8_t signature[MINISIGN_SIGNATURE];         /* of the digest */
    uint8_t comment_signature[MINISIGN_SIGNATURE]; /* of the signature and the comment */
    char comment[MINISIGN_COMMENT];                /* printable ASCII */
};

void minisign_key_of(struct minisign_key *key, const uint8_t public_key[OPERATOR_PUBLIC_KEY]);
void minisign_key_format(const struct minisign_key *key, char text[MINISIGN_KEY_TEXT]);

/* Accepts "RW...", with or without the comment line above it in minisign's files. */
bool minisign_key_parse(struct minisign_key *key, const char *text, struct error *error);

bool minisign_parse(struct minisign *signature, const char *text, struct error *error);

/* The digest of a whole file, read in pieces. */
bool minisign_digest(const char *path, uint8_t digest[MINISIGN_DIGEST], struct error *error);

/* True if it is this key's signature of this digest, and of its comment. */
bool minisign_verify(const struct minisign *signature, const struct minisign_key *key,
                     const uint8_t digest[MINISIGN_DIGEST], struct error *error);

/* The text of a signature; false if the comment is too long or not printable. */
bool minisign_sign(const uint8_t secret_key[OPERATOR_SECRET_KEY], const uint8_t digest[MINISIGN_DIGEST],
                   const char *comment, char text[MINISIGN_MAX_FILE], struct error *error);

#endif
