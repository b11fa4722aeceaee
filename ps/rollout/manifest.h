/*
 * A rollout, as the operator signed it: the fleet, the version to roll out, and the one to fall back to if that fails,
 * so that going back needs no key. Also, how to get from one config to another.
 *
 * Canonical bytes, numbers little-endian:
 *
 *     "trainer rollout manifest 3\n"
 *     u32 size, name of the fleet (fleet.name)
 *     u32 size, who signed it (user@host), for people
 *     u64 when, seconds since 1970, for people
 *     u64 when it expires, likewise; 0: never
 *     u32 flags: 1: parts of a checkpoint that the target has no place for may be lost; 2: programs come with it; the
 *         others are zero
 *     twice, the target and then the fallback:
 *         u64 version (fleet.version)
 *         32 bytes BLAKE2b-256 of the text that follows, which is the digest of that job config (base/config.h)
 *         u32 size, the job-scoped keys as canonical JSON (config_job_text)
 *         u32 size, the machine-scoped keys that come with it, as canonical JSON; 0: none do
 *     if programs come with it (base/process/program.h):
 *         u32 the lowest protocol version they speak
 *         u32 ps 0's total rate in sending programs, KiB per second; 0: unlimited
 *         u32 count of waves, and for each: u32, how many workers restart; plus 2^31: a percentage of all
 *         u32, likewise, how many may be away at once; 0: a wave, and the first error ends it
 *         u32 a canary's minimum speed, in percent of its previous steps per second; 0: no bound
 *         u32 count of programs, and for each:
 *             u32 size, the architecture
 *             u64 bytes of the file
 *             32 bytes BLAKE2b-256 of it
 *             32 bytes BLAKE2b-256 of the fallback; zeros: what each machine runs
 *     64 bytes Ed25519 signature over all before it; as many of them, each by another key, as operator.pub asks for
 *
 * And the operator's order to abort it, or to resume it after a pause, valid for that manifest only:
 *
 *     "trainer rollout abort 1\n", or "trainer rollout resume 1\n"
 *     u32 size, name of the fleet
 *     u32 size, who signed it
 *     u64 when
 *     u64 version of the target
 *     32 bytes BLAKE2b-256 of the manifest, with its signature
 *     64 bytes Ed25519 signature over all before it, by any of the keys: who wants to stop should not wait for others
 *
 * The signature is verified before any of the bytes are interpreted. Pure functions.
 */
#ifndef PS_ROLLOUT_MANIFEST_H
#define PS_ROLLOUT_MANIFEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/config.h"
#include "base/config/keys.h"
#include "base/error.h"
#include "base/process/program.h"
#include "net/member.h"
#include "net/operator_key.h"
#include "ps/rollout/decide.h"

enum {
    MANIFEST_SIGNATURE = 64,        /* bytes */
    MANIFEST_MAX_NAME = 256,        /* of the fleet, and of the author */
    MANIFEST_MAX_CONFIG = 64 << 10, /* of a config text */
    MANIFEST_MAX_LOCAL = 16 << 10,  /* of the machine-scoped keys */
    MANIFEST_MAX_PROGRAMS = 4,      /* one for each architecture */
    MANIFEST_MAX_BYTES = 2 * (MANIFEST_MAX_CONFIG + MANIFEST_MAX_LOCAL) + 2 * MANIFEST_MAX_NAME + 2048,
    MANIFEST_HASH = 32,
    MANIFEST_ABORT_BYTES = 2 * MANIFEST_MAX_NAME + 256, /* at most */
};

/* One of the two configs. The texts borrow from the manifest's bytes and have no terminating zero. */
struct manifest_config {
    uint64_t version;
    char digest[CONFIG_DIGEST_HEX + 1]; /* hex; in a manifest to encode: filled in by manifest_encode */
    const char *text;
    size_t text_size;
    const char *local; /* likewise */
    size_t local_size;
};

struct manifest_program {
    char architecture[PROGRAM_ARCHITECTURE];
    uint64_t size;
    char digest[PROGRAM_DIGEST_HEX + 1];
    char fallback[PROGRAM_DIGEST_HEX + 1]; /* "": what each machine runs */
};

struct manifest_programs {
    int count; /* 0: none come */
    struct manifest_program items[MANIFEST_MAX_PROGRAMS];
    uint32_t protocol; /* the lowest version that they speak */
    uint32_t rate_kib; /* a second; 0: no bound */
    struct rollout_waves waves;
};

struct manifest {
    char fleet[MANIFEST_MAX_NAME + 1];
    char author[MANIFEST_MAX_NAME + 1];
    uint64_t signed_s, expires_s; /* seconds since 1970 */
    bool may_lose;                /* see the flags */
    struct manifest_config target, fallback;
    struct manifest_programs programs;
    int signatures; /* of a manifest that was decoded */
};

/*
 * Checks size and signature, then decodes. Refuses too few or too many bytes, a text that does not match its digest,
 * and a target that is not above the fallback; the error begins with "the manifest". The manifest borrows from bytes.
 */
bool manifest_decode(struct manifest *manifest, const uint8_t *bytes, size_t size, const struct operator_keys *keys,
                     struct error *error);

/* Without checking the signature, for bytes verified on arrival, and for tests. */
bool manifest_decode_unsigned(struct manifest *manifest, const uint8_t *bytes, size_t size, struct error *error);

/* With one signature. The caller frees *bytes. */
bool manifest_encode(struct manifest *manifest, const uint8_t secret_key[OPERATOR_SECRET_KEY], uint8_t **bytes,
                     size_t *size, struct error *error);

/*
 * Adds a signature to a manifest that was decoded from these bytes, which are reallocated. Fails unless all signatures,
 * the new one included, are of different keys among these.
 */
bool manifest_add_signature(const struct manifest *manifest, const struct operator_keys *keys,
                            const uint8_t secret_key[OPERATOR_SECRET_KEY], uint8_t **bytes, size_t *size,
                            struct error *error);

/*
 * True if a member of this fleet, in this version, that knows versions up to `highest`, may accept it. The error names
 * the fleet or the numbers.
 */
bool manifest_fits(const struct manifest *manifest, const char *fleet, uint64_t version, uint64_t highest,
                   struct error *error);

/*
 * False if it has expired by this machine's clock: no rollout begins by it. has_begun: one that began in time may take
 * a day longer. Versions that were rolled out do not expire: members that were away still catch up. A clock that was
 * never set (1970) is before every expiry.
 */
bool manifest_is_current(const struct manifest *manifest, bool has_begun, double now_s, struct error *error);

/*
 * False if it sets keys that only a machine's owner may set: paths, addresses, keys, files to write. No machine accepts
 * those from outside, whoever signed them. The error names the key.
 */
bool manifest_is_portable(const struct manifest *manifest, struct error *error);

/* --- Abort and resume --- */

struct manifest_abort {
    bool resumes; /* resume instead of abort */
    char fleet[MANIFEST_MAX_NAME + 1];
    char author[MANIFEST_MAX_NAME + 1];
    uint64_t signed_s, target;
    uint8_t hash[MANIFEST_HASH]; /* of the manifest */
};

void manifest_hash(const uint8_t *bytes, size_t size, uint8_t hash[MANIFEST_HASH]);

/* Returns the size. */
size_t manifest_abort_encode(const struct manifest_abort *abort, const uint8_t secret_key[OPERATOR_SECRET_KEY],
                             uint8_t bytes[MANIFEST_ABORT_BYTES]);

/* Checks size and signature, then decodes; the error begins with "the abort". */
bool manifest_abort_decode(struct manifest_abort *abort, const uint8_t *bytes, size_t size,
                           const struct operator_keys *keys, struct error *error);

/* --- Programs --- */

/* The program with this digest, or for this architecture; NULL: none. */
const struct manifest_program *manifest_program_by_digest(const struct manifest_programs *programs, const char *digest);
const struct manifest_program *manifest_program_for(const struct manifest_programs *programs, const char *architecture);

/* True if they differ from the fallback's. A manifest that changes only a config repeats those in force. */
bool manifest_brings_programs(const struct manifest *manifest);

/* --- Kinds of change --- */

/* The kind of this manifest, given its two parsed configs. A new program comes alone, or with machine-scoped keys. */
bool manifest_kind(const struct manifest *manifest, const struct config *fallback, const struct config *target,
                   enum rollout_kind *kind, struct error *error);

/*
 * The kind of rollout that leads from one job config to the other: live if every differing key is live
 * (base/config/keys.c); local if only machine-scoped keys differ; else job. Fails, naming the key, if no rollout leads
 * there: a fleet's name and encryption can't change, and ps and workers can be added and removed only at the end of
 * their lists, though a worker may change its address.
 */
bool change_kind(const struct config *before, const struct config *after, bool local_differs, enum rollout_kind *kind,
                 struct error *error);

/*
 * Fails if a flag or the environment of this process overrides a changed key: it would override it again at the next
 * start.
 */
bool change_is_free(const struct config *here, const struct config *after, struct error *error);

/* True if this machine-scoped key may be rolled out: not if it identifies a machine or says where it keeps things. */
bool change_goes_to_machines(const struct config_key *key);

/* True if this config has such a member, or room for it. */
bool change_has_member(const struct config *config, struct member who);

/* A copy of one of a manifest's texts, which have no zero byte at their end, with one; NULL: out of memory. */
char *manifest_copy_text(const char *text, size_t size);

#endif
