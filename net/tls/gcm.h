/*
 * AES-256-GCM (NIST SP 800-38D) with nonces of 12 bytes and tags of 16: libsodium's, or on processors with AES
 * instructions for 256- or 512-bit vectors that of Intel's Multi-Buffer Crypto for IPsec, which takes well under half
 * the time. All give the same bytes. gcm.c also has the ciphers that mbedTLS calls by its ALT interfaces (gcm_alt.h,
 * chachapoly_alt.h).
 *
 * Needs a processor for which gcm_is_available(). Pure functions of their arguments: any threads may use one key.
 */
#ifndef NET_TLS_GCM_H
#define NET_TLS_GCM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { GCM_KEY_BYTES = 32, GCM_NONCE_BYTES = 12, GCM_TAG_BYTES = 16 };

/* True if the processor has the instructions for AES-256-GCM; without them only ChaCha20-Poly1305 is offered. */
bool gcm_is_available(void);

/* The implementations; later ones are faster. */
enum gcm_code { GCM_LIBSODIUM, GCM_VAES_256, GCM_VAES_512, GCM_CODES };

/* Opaque; the owner wipes it. */
struct gcm_key {
    _Alignas(16) uint8_t state[1280];
    enum gcm_code code;
};

/* True if the processor has the instructions that this code needs. */
bool gcm_has(enum gcm_code code);

/* The fastest supported one whose output matches libsodium's, which is checked once. */
enum gcm_code gcm_fastest(void);

/* ", " and the name and version of Intel's library, or "" if it is not linked into this program. */
const char *gcm_vaes_library(void);

void gcm_key_set(struct gcm_key *key, const uint8_t bytes[GCM_KEY_BYTES], enum gcm_code code);

/* Encrypts `size` bytes from `plain` to `sealed` (the same, or not overlapping), and computes their tag. */
void gcm_seal(const struct gcm_key *key, const uint8_t nonce[GCM_NONCE_BYTES], const uint8_t *additional,
              size_t additional_size, const uint8_t *plain, size_t size, uint8_t *sealed, uint8_t tag[GCM_TAG_BYTES]);

/* Decrypts and verifies. False if the tag does not match: the content of `plain` is then meaningless. */
bool gcm_open(const struct gcm_key *key, const uint8_t nonce[GCM_NONCE_BYTES], const uint8_t *additional,
              size_t additional_size, const uint8_t *sealed, size_t size, const uint8_t tag[GCM_TAG_BYTES],
              uint8_t *plain);

#endif
