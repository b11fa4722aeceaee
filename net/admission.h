/*
 * What peers that have proved nothing may take of a listener: a pure state machine, without clock, sockets or locks.
 *
 * A TLS handshake costs the client next to nothing and the server milliseconds. So strangers, who show no pass
 * (net/pass.h), share an allowance of processor time: a small share of one processor, saved up for a while, so that in
 * peace a few hundred are served as they come. An address may take half of it at most, so that one
 * that takes all it can get leaves others the rest.
 */
#ifndef NET_ADMISSION_H
#define NET_ADMISSION_H

#include <stdbool.h>
#include <stdint.h>

#include "net/endpoint.h"
#include "net/pass.h"

enum {
    ADMISSION_ADDRESSES = 256, /* remembered at once: the one that came least recently is forgotten */
    ADMISSION_PASSES = 4096,   /* remembered, about, so that none is good twice */
};

/*
 * All strangers together, in seconds of processor time: for each second, saved up at most, and for a handshake at
 * least, since what the system spends on its connection and its thread is on no clock of ours.
 */
#define ADMISSION_SHARE   0.05
#define ADMISSION_SAVED_S 0.5
#define ADMISSION_LEAST_S 0.005

/* Where a peer comes from: an IPv4 address, or the first 64 bits of an IPv6 address, which one machine may have all. */
struct admission_source {
    uint8_t bytes[16];
};

struct admission_allowance {
    double left_s, at_s; /* so much was left then */
};

struct admission {
    struct admission_allowance all;
    struct admission_address {
        struct admission_source source;
        struct admission_allowance allowance; /* of at_s: when it came last */
    } addresses[ADMISSION_ADDRESSES];
    int address_count;
    uint64_t passes[ADMISSION_PASSES]; /* each at a place that follows from it */
};

void admission_start(struct admission *admission, double now_s);

struct admission_source admission_source(const struct endpoint *endpoint);

/*
 * True if a stranger's handshake may begin; then admission_end tells what it took: 0 if it turned out to be a member.
 */
bool admission_begin(struct admission *admission, const struct admission_source *source, double now_s);
void admission_end(struct admission *admission, const struct admission_source *source, double cpu_s, double now_s);

/* False if this pass came before, as far as is remembered: then somebody has overheard it. */
bool admission_is_new(struct admission *admission, const uint8_t pass[PASS_SIZE]);

#endif
