/*
 * What a member authenticates itself with, and whom it trusts.
 *
 * One PEM file, in one of two forms, distinguished by its content:
 *  - a fleet key: a private key, the secret of handshake tokens (net/admission.h) and a self-signed certificate, the
 *    same file on all members. Every member presents it
 *    and accepts exactly it; its dates and names are ignored, so no clock is needed. During key rotation a second one
 *    is trusted: `FILE.next` or `FILE.previous` beside it.
 *  - a member's key: a private key, the secret that all keys of one authority share, its certificate, and the
 *    certificate of the authority that signed it. The certificate's common name is the member ("worker:1", "ps" for
 *    any ps, "operator"); signature, dates and name are checked on both sides.
 *
 * Credentials are immutable once loaded, except for the list of revoked keys (net/revocation.h), and may be shared by
 * all connections and threads. Private keys are wiped when freed and never appear in a message.
 */
#ifndef NET_CREDENTIALS_H
#define NET_CREDENTIALS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "net/member.h"
#include "net/admission.h"
#include "net/revocation.h"

struct credentials;

enum { CREDENTIALS_MAX_FILE = 64 * 1024 }; /* bytes */

/* Fails if the file is readable by others than its owner and group. The caller frees *credentials. */
bool credentials_load(struct credentials **credentials, const char *path, struct error *error);
void credentials_free(struct credentials *credentials); /* NULL is fine */

/* The member named in the certificate; MEMBER_NONE for a fleet key, which any member may hold. */
struct member credentials_member(const struct credentials *credentials);

/*
 * Identifies the holder of this key: a hash of its public half, so that a new certificate for the same key changes
 * nothing; 0 for a fleet key, which all members hold.
 */
uint64_t credentials_identity(const struct credentials *credentials);

/* The time, in seconds since 1970, at which the certificate expires; 0 for a fleet key, whose dates do not matter. */
int64_t credentials_valid_until(const struct credentials *credentials);

/* The list of revoked keys: none is in force at first. Valid as long as the credentials. */
struct revocations *credentials_revocations(const struct credentials *credentials);

/* As its peers see it. */
void credentials_describe(const struct credentials *credentials, struct revocation_peer *self);

/* By the first certificate in a key file: how a list of revoked keys names it, and its member (MEMBER_NONE: none). */
bool credentials_public_hash(const char *path, uint8_t hash[REVOCATION_KEY], struct member *member,
                             struct error *error);

/* The keys of handshake tokens (net/admission.h); valid as long as the credentials. */
const struct handshake_token_keys *credentials_token_keys(const struct credentials *credentials);

/* Writes a new fleet key to `path`, mode 0600; fails if the file exists. */
bool credentials_create_fleet_key(const char *path, struct error *error);

/* Writes `folder`/ca.key (the authority's private key, secret and certificate, mode 0600); fails if it exists. */
bool credentials_create_authority(const char *folder, struct error *error);

/* Writes a key for `member`, signed by `folder`/ca.key and valid for `days`, to `path`, mode 0600. */
bool credentials_create_member(const char *folder, const struct member *member, int days, const char *path,
                               struct error *error);

#endif
