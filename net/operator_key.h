/*
 * The operator's keys (Ed25519): the secret key signs orders to a fleet, the public one, on every member, verifies
 * them.
 *
 * Two text files: FILE (mode 0600) with the secret key, FILE.pub with the public one; each with a line that says which
 * it is, and a line of hex.
 */
#ifndef NET_OPERATOR_KEY_H
#define NET_OPERATOR_KEY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

enum { OPERATOR_PUBLIC_KEY = 32, OPERATOR_SECRET_KEY = 64 /* bytes */ };

/* Creates a key pair. Neither file may exist. */
bool operator_key_create(const char *path, struct error *error);

/*
 * The caller wipes the secret key (sodium_memzero). Refuses a key that others may have written, and a secret key that
 * everybody may read (base/trust.h).
 */
bool operator_key_read_secret(const char *path, uint8_t key[OPERATOR_SECRET_KEY], struct error *error);
bool operator_key_read_public(const char *path, uint8_t key[OPERATOR_PUBLIC_KEY], struct error *error);

#endif
