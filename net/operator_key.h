/*
 * The operator's keys (Ed25519): one signs what a fleet is to do, the other, on every member, checks it.
 *
 * Two text files: FILE (mode 0600) with the secret key, FILE.pub with the public one; each a line that says which it
 * is, and a line of hex.
 */
#ifndef NET_OPERATOR_KEY_H
#define NET_OPERATOR_KEY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

enum { OPERATOR_PUBLIC_KEY = 32, OPERATOR_SECRET_KEY = 64 /* bytes */ };

/* Makes a pair. Neither file may be there. */
bool operator_key_create(const char *path, struct error *error);

/*
 * The secret one is the caller's to wipe (sodium_memzero). Refused are a secret key that everybody may read, and a
 * public one that everybody may write.
 */
bool operator_key_read_secret(const char *path, uint8_t key[OPERATOR_SECRET_KEY], struct error *error);
bool operator_key_read_public(const char *path, uint8_t key[OPERATOR_PUBLIC_KEY], struct error *error);

#endif
