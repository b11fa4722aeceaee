/*
 * Keys that were revoked before they expire: the list that operators sign, and its effect on connections.
 *
 * Canonical bytes, numbers little-endian:
 *
 *     "trainer revocation list 1\n"
 *     u32 size, name of the fleet (fleet.name)
 *     u32 size, who signed it (user@host), for people
 *     u64 when, seconds since 1970
 *     u64 when it expires, likewise: until then a newer one should have replaced it
 *     u64 number: a list replaces only those with lower ones
 *     u32 count of entries, and for each:
 *         u32 role and u32 index of the member whose certificates are revoked (0: none, the key that follows is;
 *             index 2^32-1: any)
 *         u64 seconds since 1970: certificates that were issued later are not
 *         32 bytes BLAKE2b-256 of the public key (of its SubjectPublicKeyInfo in DER); zeros: a member is named
 *         u32 size, the reason, for people
 *     64 bytes Ed25519 signature over all before it; as many of them, each by another key, as operator.pub asks for
 *
 * The signatures are verified before any of the bytes are interpreted.
 *
 * A list stays in force after it has expired, or nobody could be locked out for good; but whoever has an expired one
 * may lack a newer one, and says so.
 */
#ifndef NET_REVOCATION_H
#define NET_REVOCATION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "net/member.h"
#include "net/operator_key.h"

enum {
    REVOCATION_MAX_ENTRIES = 256,
    REVOCATION_MAX_BYTES = 64 << 10,
    REVOCATION_NAME = 256, /* of the fleet, and of the author */
    REVOCATION_REASON = 96,
    REVOCATION_KEY = 32,
};

/* One key, or all keys of a member. */
struct revocation_entry {
    struct member member;        /* MEMBER_NONE: the key */
    uint64_t until_s;            /* of a member: certificates issued up to then */
    uint8_t key[REVOCATION_KEY]; /* zeros: the member */
    char reason[REVOCATION_REASON + 1];
};

struct revocation_list {
    char fleet[REVOCATION_NAME + 1], author[REVOCATION_NAME + 1];
    uint64_t signed_s, expires_s, number;
    int count;
    struct revocation_entry entries[REVOCATION_MAX_ENTRIES];
    int signatures; /* of a list that was decoded */
};

/* Checks size and signatures, then decodes; exactly all bytes. The error begins with "the list of revoked keys". */
bool revocation_decode(struct revocation_list *list, const uint8_t *bytes, size_t size,
                       const struct operator_keys *keys, struct error *error);
/* Without checking signatures: for those who add theirs, and for tests. */
bool revocation_decode_unsigned(struct revocation_list *list, const uint8_t *bytes, size_t size, struct error *error);

/* With one signature. bytes: [REVOCATION_MAX_BYTES]. */
bool revocation_encode(const struct revocation_list *list, const uint8_t secret_key[OPERATOR_SECRET_KEY],
                       uint8_t *bytes, size_t *size, struct error *error);

/*
 * Adds a signature to a list that was decoded from these bytes, [REVOCATION_MAX_BYTES]. Fails unless all signatures are
 * of different keys among these.
 */
bool revocation_add_signature(const struct revocation_list *list, const struct operator_keys *keys,
                              const uint8_t secret_key[OPERATOR_SECRET_KEY], uint8_t *bytes, size_t *size,
                              struct error *error);

/* False if it has expired by this machine's clock; one that was never set (1970) is before every expiry. */
bool revocation_is_current(const struct revocation_list *list, double now_s, struct error *error);

/* What is revoked: "worker:1, whose keys were issued until 2026-11-28 10:00:00 UTC", or "the key 01ab...". */
enum { REVOCATION_TEXT = 128 };
void revocation_describe(const struct revocation_entry *entry, char text[REVOCATION_TEXT]);

/* --- In force --- */

/* Of a peer that has proved that it holds its key. */
struct revocation_peer {
    struct member member;        /* in its certificate; MEMBER_NONE: none */
    uint64_t issued_s;           /* its certificate */
    uint8_t key[REVOCATION_KEY]; /* as in an entry */
};

/* An open connection, in a list of all of them; inside of the connection. */
struct revocation_watch {
    struct revocation_watch *next, *before;
    struct revocations *revocations; /* NULL: not watched */
    struct revocation_peer peer;
    const int *fd;
    atomic_bool is_cut; /* its key was revoked: the socket is shut down, and no more must be read or written */
};

/*
 * The list in force for some credentials, and the open connections that were made with them. Any thread. Counted: the
 * credentials hold one, and so does each watched connection.
 */
struct revocations;
struct revocations *revocations_create(void); /* NULL: out of memory */
void revocations_release(struct revocations *revocations);

/* Puts a list in force, unless there is a later one, and cuts connections whose peer it names. Returns how many; -1:
 * out of memory. */
int revocations_put(struct revocations *revocations, const struct revocation_list *list);

/* The number of the list in force; 0: none is. *expires_s may be NULL. */
uint64_t revocations_number(struct revocations *revocations, uint64_t *expires_s);

/* True if this peer's key is revoked; the text says by whom, why, and what to do. */
bool revocations_name(struct revocations *revocations, const struct revocation_peer *peer, char *why, size_t size);

/*
 * From now on the connection is cut when its peer's key is revoked. False if it has just been. fd: the socket; its
 * number must stay until revocations_forget.
 */
bool revocations_watch(struct revocations *revocations, struct revocation_watch *watch, const int *fd);
void revocations_forget(struct revocation_watch *watch); /* fine if it is not watched */

#endif
