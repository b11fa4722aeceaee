/*
 * Limits what unauthenticated peers may cost a listener: a pure state machine, without clock, sockets or locks.
 *
 * A TLS handshake costs the client next to nothing and the server milliseconds. So strangers, who show no pass
 * (net/pass.h), share a CPU time budget: a small share of one CPU, which accumulates, so that without an attack a few
 * hundred are served at once. One address may use at most half of it, so that a greedy one leaves others the rest.
 */
#ifndef NET_ADMISSION_H
#define NET_ADMISSION_H

#include <stdbool.h>
#include <stdint.h>

#include "net/endpoint.h"
#include "net/pass.h"

enum {
    ADMISSION_ADDRESSES = 256, /* addresses remembered; the least recent one is forgotten */
    ADMISSION_PASSES = 4096,   /* passes remembered, approximately, so that none is accepted twice */
};

/*
 * For all strangers together, in seconds of CPU time: per second, the most that accumulates, and the least charge for a
 * handshake, since the system's time for its connection and thread is not measured.
 */
#define ADMISSION_SHARE   0.05
#define ADMISSION_SAVED_S 0.5
#define ADMISSION_LEAST_S 0.005

/* A peer's origin: an IPv4 address, or the first 64 bits of an IPv6 address, since one machine may own all the rest. */
struct admission_source {
    uint8_t bytes[16];
};

struct admission_allowance {
    double left_s, at_s; /* the budget left at time at_s */
};

struct admission {
    struct admission_allowance all;
    struct admission_address {
        struct admission_source source;
        struct admission_allowance allowance; /* at_s: when it last connected */
    } addresses[ADMISSION_ADDRESSES];
    int address_count;
    uint64_t passes[ADMISSION_PASSES]; /* a hash table: each at the place its bytes give */
};

void admission_start(struct admission *admission, double now_s);

struct admission_source admission_source(const struct endpoint *endpoint);

/*
 * True if a stranger's handshake may begin; admission_end then reports its cost: 0 if the peer proved to be a member.
 */
bool admission_begin(struct admission *admission, const struct admission_source *source, double now_s);
void admission_end(struct admission *admission, const struct admission_source *source, double cpu_s, double now_s);

/* False if this pass was seen before, as far as remembered: it is a replay. */
bool admission_is_new(struct admission *admission, const uint8_t pass[PASS_SIZE]);

#endif
