/*
 * The context of mbedTLS's ChaCha20-Poly1305 as net/tls/gcm.c fills it, included by <mbedtls/chachapoly.h> because of
 * MBEDTLS_CHACHAPOLY_ALT. Wiped by mbedtls_chachapoly_free.
 */
#ifndef NET_TLS_CHACHAPOLY_ALT_H
#define NET_TLS_CHACHAPOLY_ALT_H

typedef struct mbedtls_chachapoly_context {
    unsigned char key[32];
} mbedtls_chachapoly_context;

#endif
