/*
 * File signatures in minisign's format, with the operator's keys: minisign can verify our signatures, and we can verify
 * minisign's.
 *
 * A signature (FILE.minisig) covers the file's BLAKE2b-512, and a comment: two lines in base64, each below a comment,
 * the first of which is not signed. minisign's key ids are random; an operator key's id is the beginning of its digest.
 */
#ifndef NET_MINISIGN_H
#define NET_MINISIGN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "net/operator_key.h"

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
