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
#include <stdint.h>

#include "base/error.h"

enum { OPERATOR_PUBLIC_KEY = 32, OPERATOR_SECRET_KEY = 64 /* bytes */ };

enum { OPERATOR_PASSPHRASE = 256 /* bytes, with its zero */ };

/* Creates a key pair. Neither file may exist. passphrase: NULL or "": the secret key is not locked. */
bool operator_key_create(const char *path, const char *passphrase, struct error *error);

/*
 * The passphrase in the environment (TRAINER_OPERATOR_PASSPHRASE), or else the one that a person types on the terminal,
 * unseen. The caller wipes it.
 */
bool operator_key_ask(const char *prompt, char passphrase[OPERATOR_PASSPHRASE], struct error *error);

/*
 * The caller wipes the secret key (sodium_memzero). A locked one asks for its passphrase (operator_key_ask). Refuses a
 * key that others may have written, and a secret key that everybody may read (base/trust.h).
 */
bool operator_key_read_secret(const char *path, uint8_t key[OPERATOR_SECRET_KEY], struct error *error);

/* The public half of a secret key, for which a locked one needs no passphrase. */
bool operator_key_read_own_public(const char *path, uint8_t key[OPERATOR_PUBLIC_KEY], struct error *error);
bool operator_key_read_public(const char *path, uint8_t key[OPERATOR_PUBLIC_KEY], struct error *error);

#endif
