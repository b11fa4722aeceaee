/* The bulk ciphers of TLS (aead.c). mbedTLS calls them through its own headers; this tells which are available. */
#ifndef NET_TLS_AEAD_H
#define NET_TLS_AEAD_H

#include <stdbool.h>

/* True if this processor has the instructions for AES-256-GCM; without them only ChaCha20-Poly1305 is offered. */
bool aead_has_aes(void);

#endif
