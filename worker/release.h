/* Is a file what was released? By SHA256SUMS beside it, and that file's signature (SHA256SUMS.minisig). */
#ifndef WORKER_RELEASE_H
#define WORKER_RELEASE_H

#include "net/minisign.h"

/* Who says so. */
struct release_proof {
    char key[MINISIGN_KEY_TEXT];
    char comment[MINISIGN_COMMENT]; /* what they signed along: the version, as a rule */
};

/*
 * key: "RW...", or a file with a public key of minisign's or an operator's; NULL: the one that came with this program,
 * release.pub in ../share/trainer. The error is one line about the first thing that is wrong.
 */
bool release_verify(const char *path, const char *key, struct release_proof *proof, struct error *error);

#endif
