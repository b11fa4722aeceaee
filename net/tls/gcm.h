/*
 * AES-256-GCM (NIST SP 800-38D) with nonces of 12 bytes and tags of 16: libsodium's, or where the processor has AES
 * instructions for vectors of 512 bits, that of Intel's Multi-Buffer Crypto for IPsec, which takes well under half the
 * time. Both give the same bytes.
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

/* Opaque; to be wiped by its owner. */
struct gcm_key {
    _Alignas(16) uint8_t state[1024];
    bool wide;
};

/* True where the processor has what is faster. */
bool gcm_is_wide(void);

/* ", " and the name and version of the library for that, or "" if none is linked into this program. */
const char *gcm_wide_library(void);

/* wide: as gcm_is_wide() has it, or false to have libsodium's in any case. */
void gcm_key_set(struct gcm_key *key, const uint8_t bytes[GCM_KEY_BYTES], bool wide);

/* Encrypts `size` bytes from `plain` to `sealed` (the same place, or without overlap), and makes their tag. */
void gcm_seal(const struct gcm_key *key, const uint8_t nonce[GCM_NONCE_BYTES], const uint8_t *additional,
              size_t additional_size, const uint8_t *plain, size_t size, uint8_t *sealed, uint8_t tag[GCM_TAG_BYTES]);

/* The other way. False if the tag is not that of these bytes: then nothing in `plain` means anything. */
bool gcm_open(const struct gcm_key *key, const uint8_t nonce[GCM_NONCE_BYTES], const uint8_t *additional,
              size_t additional_size, const uint8_t *sealed, size_t size, const uint8_t tag[GCM_TAG_BYTES],
              uint8_t *plain);

#endif
