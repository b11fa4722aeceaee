/* Verifies that a file is the released one, by SHA256SUMS beside it and that file's signature (SHA256SUMS.minisig). */
#ifndef WORKER_RELEASE_H
#define WORKER_RELEASE_H

#include "net/operator_key.h"

/* Who signed it. */
struct release_proof {
    char key[MINISIGN_KEY_TEXT];
    char comment[MINISIGN_COMMENT]; /* the signed comment: usually the version */
};

/*
 * key: "RW...", or a file with a minisign or operator public key; NULL: the one shipped with this program, release.pub
 * in ../share/trainer. The error is one line about the first problem found.
 */
bool release_verify(const char *path, const char *key, struct release_proof *proof, struct error *error);

#endif
