/*
 * What unauthenticated peers may cost a listener. Pure state machines: their owner has the clock, the lock and the log.
 *
 * A TLS handshake costs the client next to nothing and the server milliseconds. So a member's first bytes carry a
 * handshake token, a keyed hash as WireGuard's mac1. All others share a rate limit: a small share of one CPU, which
 * accumulates, so that without an attack a few hundred are served at once. One address may use at most half of it, so
 * that a greedy one leaves others the rest. And each reason of rejections is logged at a limited rate.
 */
#ifndef NET_ADMISSION_H
#define NET_ADMISSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "net/socket.h"

/* --- Handshake tokens --- */

/*
 * A token is the random field of TLS's ClientHello, whose second half authenticates the first. Its key is derived from
 * a random secret in the key file, the same in all keys of a fleet, and in nothing that is sent. A token only shows
 * that a TLS handshake is worthwhile; TLS itself is unchanged.
 */

enum {
    HANDSHAKE_TOKEN_SIZE = 32, /* bytes */
    HANDSHAKE_TOKEN_KEYS = 4,
};

/* Tokens are made with the first key, and checked with any. Read-only once made; the owner wipes it. */
struct handshake_token_keys {
    uint8_t keys[HANDSHAKE_TOKEN_KEYS][32];
    int count;
};

/* Derives a key from a secret. Keys beyond HANDSHAKE_TOKEN_KEYS, which no fleet needs, are ignored. */
void handshake_token_add_key(struct handshake_token_keys *keys, const uint8_t *secret, size_t size);

/* Without a key, a token is random bytes. */
void handshake_token_make(const struct handshake_token_keys *keys, uint8_t token[HANDSHAKE_TOKEN_SIZE]);
bool handshake_token_check(const struct handshake_token_keys *keys, const uint8_t token[HANDSHAKE_TOKEN_SIZE]);

/* --- Rate limit --- */

enum {
    ADMISSION_ADDRESSES = 256, /* addresses remembered; the least recent one is forgotten */
    ADMISSION_TOKENS = 4096,   /* tokens remembered, approximately, so that none is accepted twice */
};

/*
 * For all unauthenticated peers together, in seconds of CPU time: per second, the most that accumulates, and the least
 * charge for a handshake, since the system's time for its connection and thread is not measured.
 */
#define ADMISSION_SHARE   0.05
#define ADMISSION_SAVED_S 0.5
#define ADMISSION_LEAST_S 0.005

/* A peer's origin: an IPv4 address, or the first 64 bits of an IPv6 address, since one machine may own all the rest. */
struct admission_source {
    uint8_t bytes[16];
};

struct admission_budget {
    double left_s, at_s; /* the budget left at time at_s */
};

struct admission {
    struct admission_budget all;
    struct admission_address {
        struct admission_source source;
        struct admission_budget budget; /* at_s: when it last connected */
    } addresses[ADMISSION_ADDRESSES];
    int address_count;
    uint64_t tokens[ADMISSION_TOKENS]; /* a hash table: each at the place its bytes give */
};

void admission_start(struct admission *admission, double now_s);

struct admission_source admission_source(const struct endpoint *endpoint);

/*
 * True if an unauthenticated handshake may begin; admission_end then reports its cost: 0 if the peer proved to be a
 * member.
 */
bool admission_begin(struct admission *admission, const struct admission_source *source, double now_s);
void admission_end(struct admission *admission, const struct admission_source *source, double cpu_s, double now_s);

/* False if this token was seen before, as far as remembered: it is a replay. */
bool admission_is_new(struct admission *admission, const uint8_t token[HANDSHAKE_TOKEN_SIZE]);

/* --- The log of rejections --- */

enum { REJECT_LOG_EVERY_S = 60 };

enum reject_reason {
    REJECT_SILENT, /* sent nothing in time, hung up, or was evicted to make room */
    REJECT_PLAIN,  /* did not speak TLS, as its first bytes showed */
    REJECT_RATE,   /* without a token while unauthenticated handshakes had reached their rate limit */
    REJECT_TLS,    /* TLS failed: another key, say */
    REJECT_HELLO,  /* had a key, but was refused for its hello, or sent none */
    REJECT_LOAD,   /* was cut off before or in its handshake, because there were too many */
    REJECT_ACCEPT, /* accept failed */
    REJECT_REASONS
};

/* Starts as zeros. */
struct reject_log {
    struct {
        double logged_s;     /* when the last line was due; 0: never */
        uint64_t suppressed; /* since then */
        struct error latest;
    } of[REJECT_REASONS];
};

/*
 * The first of a reason is logged at once, in full, the others once a minute by a line with their number and the
 * latest. True: the caller logs the text now.
 */
bool reject_log_add(struct reject_log *log, enum reject_reason reason, const struct error *text, double now_s);

/* The next due line; last: everything suppressed is due. False: there is none. */
bool reject_log_next(struct reject_log *log, double now_s, bool last, struct error *line);

#endif
