/*
 * Who this process is in its cluster, and what it proves it with: taken from the configuration once, when a role
 * starts, and not changed afterwards.
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
 * In what a program says it is: between its version and its build, the first PROGRAM_ID_HEX of its digest. A blank and
 * its architecture follow.
 */
#define IDENTITY_BUILD ", build "

struct identity {
    struct hello_identity hello;     /* its texts lie in here, or in the config, which is borrowed */
    struct credentials *credentials; /* NULL: plain text */
    char digest[CONFIG_DIGEST_HEX + 1];
    char *job;
    char program[65];
    char key_path[4096];                       /* of the credentials; "" for plain text */
    _Atomic(struct identity_change *) changed; /* the last change, which knows the ones before it; NULL: none */
};

/*
 * Finds the key (--fleet_key or security.fleet_key, else fleet.key beside the config). Without one it fails and says
 * which command makes one, unless security.insecure is set: then it warns, loudly. A key that names another member than
 * `member` is refused.
 */
bool identity_create(struct identity *identity, const struct config *config, struct member member, struct error *error);
void identity_destroy(struct identity *identity); /* fine on one that is all zeros */

/* The key's path: --fleet_key or security.fleet_key, else fleet.key beside the config, whether it is there or not. */
bool identity_key_path(const struct config *config, char *path, size_t size, struct error *error);

/* What it says about itself now, in handshakes. Any thread; it stays until identity_destroy. */
const struct hello_identity *identity_hello(const struct identity *identity);

/*
 * Seconds that a peer which owes something may give no sign of life, before the connection with it counts as dead: a
 * lease, and at least 2 s. A member that keeps a peer waiting for others pings it four times as often.
 */
double identity_idle_timeout_s(const struct identity *identity);

/* For links and listeners (net/link.h, net/listener.h). */
struct introduction identity_introduction(const struct identity *identity);
/* As a guest: without a digest, so that it is let in whatever its config is, to report and no more. */
struct introduction identity_guest(const struct identity *identity);

/* A new version of the config is in force: handshakes tell of it from now on. One thread; texts are copied. */
bool identity_change(struct identity *identity, uint64_t version, const char *digest, const char *job,
                     struct error *error);

#endif
