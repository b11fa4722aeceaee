/*
 * The context of mbedTLS's AES-GCM as net/tls/gcm.c fills it, included by <mbedtls/gcm.h> because of MBEDTLS_GCM_ALT.
 * Wiped by mbedtls_gcm_free.
 */
#ifndef NET_TLS_GCM_ALT_H
#define NET_TLS_GCM_ALT_H

typedef struct mbedtls_gcm_context {
    _Alignas(16) unsigned char state[512]; /* a crypto_aead_aes256gcm_state */
} mbedtls_gcm_context;

#endif
