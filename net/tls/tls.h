/*
 * Private to net/: the content of credentials, for the files that call mbedTLS. Everything that connections share is
 * prepared when credentials are loaded, and read-only from then on.
 */
#ifndef NET_TLS_TLS_H
#define NET_TLS_TLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <mbedtls/pk.h>
#include <mbedtls/ssl.h>
#include <mbedtls/x509_crt.h>

#include "base/error.h"
#include "net/member.h"
#include "net/admission.h"
#include "net/revocation.h"

struct credentials {
    bool pinned;              /* a fleet key; else certificates are checked against an authority's */
    struct member member;     /* the member named in our certificate; MEMBER_NONE with a fleet key */
    mbedtls_pk_context key;   /* ours */
    mbedtls_x509_crt own;     /* ours */
    mbedtls_x509_crt trusted; /* pinned: the fleet's certificates; else the authority's */
    mbedtls_ssl_config client, server;
    struct handshake_token_keys token_keys;
    struct revocations *revocations;
};

/* Must be called before anything of mbedTLS or libsodium is used; any thread, any number of times. */
bool tls_start(struct error *error);

/* mbedTLS's interface to the kernel's random numbers. */
int tls_random(void *context, unsigned char *bytes, size_t size);

/*
 * Common to all our configs: TLS 1.3 only, the ciphers that suit this processor, random numbers. It does
 * not set whom to trust. Returns one of mbedTLS's error numbers; 0: none.
 */
int tls_config_common(mbedtls_ssl_config *config, int endpoint);

/* Is the certificate one of these, byte for byte? */
bool tls_is_pinned(const mbedtls_x509_crt *pinned, const mbedtls_x509_crt *certificate);

/* Prepares credentials->client and ->server from the rest. */
bool tls_configure(struct credentials *credentials, struct error *error);

/* The message for one of mbedTLS's error numbers. */
void tls_describe(int result, char text[128]);

/* Seconds since 1970. */
int64_t tls_seconds(const mbedtls_x509_time *time);

enum { TLS_TOLERANCE_S = 86400 }; /* our certificates are valid before they are made, for clocks that differ */

/* When our keygen made it. */
uint64_t tls_issued_s(const mbedtls_x509_crt *certificate);

/* The certificate's common name; false if it has none, or one that does not fit. */
bool tls_common_name(const mbedtls_x509_crt *certificate, char *name, size_t size);

#endif
