/*
 * A pass is what a client shows in the very first bytes that it sends, so that a server under attack can tell members
 * from strangers before it does anything that costs: the random bytes of TLS's ClientHello, of which the second half
 * authenticates the first. Its key follows from the fleet key, or from the authority's certificate, which members keep
 * and never send; it proves nothing but that TLS is worth the trouble, and TLS itself is not changed by it.
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

/* What passes are made with: the first; and checked with: any. Read-only once made; to be wiped by its owner. */
struct pass_keys {
    uint8_t keys[PASS_KEYS][32];
    int count;
};

/* Derives a key from a secret. More than PASS_KEYS, of which no fleet has any use, are left out: they give no pass. */
void pass_keys_add(struct pass_keys *keys, const uint8_t *secret, size_t size);

/* Without a key, a pass is random bytes. */
void pass_make(const struct pass_keys *keys, uint8_t pass[PASS_SIZE]);
bool pass_check(const struct pass_keys *keys, const uint8_t pass[PASS_SIZE]);

#endif
