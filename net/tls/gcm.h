/*
 * AES-256-GCM (NIST SP 800-38D) with nonces of 12 bytes and tags of 16: libsodium's, or where the processor has AES
 * instructions for vectors of 256 or 512 bits, that of Intel's Multi-Buffer Crypto for IPsec, which takes well under
 * half the time. All give the same bytes.
 *
 * Needs a processor for which aead_has_aes() (net/tls/aead.h). Pure functions of their arguments: any threads may use
 * one key.
 */
#ifndef NET_TLS_GCM_H
#define NET_TLS_GCM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { GCM_KEY_BYTES = 32, GCM_NONCE_BYTES = 12, GCM_TAG_BYTES = 16 };

/* Whose code computes; the later, the faster. */
enum gcm_code { GCM_LIBSODIUM, GCM_VAES_256, GCM_VAES_512, GCM_CODES };

/* Opaque; to be wiped by its owner. */
struct gcm_key {
    _Alignas(16) uint8_t state[1280];
    enum gcm_code code;
};

/* Does the processor have what this code needs? */
bool gcm_has(enum gcm_code code);

/* The fastest that it has and that gives libsodium's bytes, which is tried once. */
enum gcm_code gcm_fastest(void);

/* ", " and the name and version of Intel's library, or "" if it is not linked into this program. */
const char *gcm_vaes_library(void);

void gcm_key_set(struct gcm_key *key, const uint8_t bytes[GCM_KEY_BYTES], enum gcm_code code);

/* Encrypts `size` bytes from `plain` to `sealed` (the same place, or without overlap), and makes their tag. */
void gcm_seal(const struct gcm_key *key, const uint8_t nonce[GCM_NONCE_BYTES], const uint8_t *additional,
              size_t additional_size, const uint8_t *plain, size_t size, uint8_t *sealed, uint8_t tag[GCM_TAG_BYTES]);

/* The other way. False if the tag is not that of these bytes: then nothing in `plain` means anything. */
bool gcm_open(const struct gcm_key *key, const uint8_t nonce[GCM_NONCE_BYTES], const uint8_t *additional,
              size_t additional_size, const uint8_t *sealed, size_t size, const uint8_t tag[GCM_TAG_BYTES],
              uint8_t *plain);

#endif
