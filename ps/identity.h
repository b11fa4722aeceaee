/*
 * This process's identity in its cluster, and its credentials: taken from the configuration once, when a role starts,
 * and not changed afterwards.
 */
#ifndef PS_IDENTITY_H
#define PS_IDENTITY_H

#include <stdbool.h>

#include "base/config.h"
#include "base/error.h"
#include "net/credentials.h"
#include "net/handshake.h"
#include "net/member.h"

/*
 * In a program's description: separates its version from its build, the first PROGRAM_ID_HEX digits of its digest. A
 * blank and its architecture follow.
 */
#define IDENTITY_BUILD ", build "

struct identity {
    struct hello_identity hello;     /* its texts are in here, or in the config, which is borrowed */
    struct credentials *credentials; /* NULL: plain text */
    char digest[CONFIG_DIGEST_HEX + 1];
    char *job;
    char program[65];
    char key_path[4096];                       /* of the credentials; "" for plain text */
    _Atomic(struct identity_change *) changed; /* the last change, linked to earlier ones; NULL: none */
};

/*
 * Finds the key (--fleet_key or security.fleet_key, else fleet.key beside the config). Without one it fails and names
 * the command that makes one, unless security.insecure is set: then it warns, loudly. A key that names another member
 * than `member` is refused.
 */
bool identity_create(struct identity *identity, const struct config *config, struct member member, struct error *error);
void identity_destroy(struct identity *identity); /* fine on zeros */

/* The key's path: --fleet_key or security.fleet_key, else fleet.key beside the config, whether it exists or not. */
bool identity_key_path(const struct config *config, char *path, size_t size, struct error *error);

/* Its current hello for handshakes. Any thread; valid until identity_destroy. */
const struct hello_identity *identity_hello(const struct identity *identity);

/*
 * Seconds of silence after which a connection to a peer that owes something counts as dead: a lease, and at least 2 s.
 * A member that keeps a peer waiting for others pings it four times as often.
 */
double identity_idle_timeout_s(const struct identity *identity);

/* The time, in seconds since 1970, at which its certificate expires; 0: it has none. */
double identity_valid_until_s(const struct identity *identity);

/*
 * Logs a warning if its certificate expires within 30 days, or the list of revoked keys has expired, the first time and
 * then once a day. *next_s: 0 at first;
 * the caller's, as is the thread. Cheap.
 */
void identity_warn_of_expiry(const struct identity *identity, double *next_s);

/* For links and listeners (net/link.h, net/listener.h). */
struct hello_options identity_hello_options(const struct identity *identity);
/* As a guest: without a digest, so that it is admitted whatever its config, but only to report. */
struct hello_options identity_guest(const struct identity *identity);

/* A new version of the config is in force, and goes into handshakes from now on. One thread; texts are copied. */
bool identity_change(struct identity *identity, uint64_t version, const char *digest, const char *job,
                     struct error *error);

#endif
