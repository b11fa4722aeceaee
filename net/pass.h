/*
 * A pass is sent in a client's very first bytes, so that a server under attack can tell members from strangers before
 * it does any costly work: it is the random field of TLS's ClientHello, whose second half authenticates the first. Its
 * key is derived from the fleet key, or from the authority's certificate, which members keep and never send. A pass
 * only shows that a TLS handshake is worthwhile; TLS itself is unchanged.
 */
#ifndef NET_PASS_H
#define NET_PASS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    PASS_SIZE = 32, /* bytes */
    PASS_KEYS = 4,
};

/* Passes are made with the first key, and checked with any. Read-only once made; the owner wipes it. */
struct pass_keys {
    uint8_t keys[PASS_KEYS][32];
    int count;
};

/* Derives a key from a secret. Keys beyond PASS_KEYS, which no fleet needs, are ignored: they give no pass. */
void pass_keys_add(struct pass_keys *keys, const uint8_t *secret, size_t size);

/* Without a key, a pass is random bytes. */
void pass_make(const struct pass_keys *keys, uint8_t pass[PASS_SIZE]);
bool pass_check(const struct pass_keys *keys, const uint8_t pass[PASS_SIZE]);

#endif
