/*
 * The parts of mbedTLS that we use: TLS 1.3 with elliptic-curve certificates, and no more, for a small program with a
 * small attack surface.
 *
 * The bulk ciphers are ours (net/tls/gcm.c, on libsodium), behind mbedTLS's ALT hooks, because mbedTLS's own AES-GCM
 * is several times slower. MBEDTLS_USE_PSA_CRYPTO stays off: with it, every record would set up its key again. The
 * random generator is the kernel's, through libsodium: no state of our own to seed, lock or share between connections.
 * mbedTLS and the files here that call it must be compiled with the same configuration, hence this file.
 */
#ifndef NET_TLS_MBEDTLS_CONFIG_H
#define NET_TLS_MBEDTLS_CONFIG_H

/* System */
#define MBEDTLS_HAVE_ASM
#define MBEDTLS_HAVE_TIME
#define MBEDTLS_HAVE_TIME_DATE
#define MBEDTLS_PLATFORM_C
#define MBEDTLS_VERSION_C
#define MBEDTLS_THREADING_C
#define MBEDTLS_THREADING_PTHREAD

/* Bulk ciphers: libsodium's */
#define MBEDTLS_CIPHER_C
#define MBEDTLS_AES_C
#define MBEDTLS_AES_FEWER_TABLES
#define MBEDTLS_GCM_C
#define MBEDTLS_GCM_ALT
#define MBEDTLS_CHACHA20_C
#define MBEDTLS_POLY1305_C
#define MBEDTLS_CHACHAPOLY_C
#define MBEDTLS_CHACHAPOLY_ALT

/* Hashes and random numbers */
#define MBEDTLS_MD_C
#define MBEDTLS_SHA256_C
#define MBEDTLS_SHA384_C
#define MBEDTLS_SHA512_C
#define MBEDTLS_HKDF_C
#define MBEDTLS_PSA_CRYPTO_C
#define MBEDTLS_PSA_CRYPTO_EXTERNAL_RNG
/* A TLS 1.3 handshake keeps its secrets in the key store, whose fixed form has 32 places: with some twenty workers
 * connecting at once, handshakes would run out of memory. */
#define MBEDTLS_PSA_KEY_STORE_DYNAMIC

/* Elliptic curves: P-256 for our own certificates, P-384 for authorities made elsewhere, X25519 for key exchange
 * (multiplied by libsodium: x25519.c) */
#define MBEDTLS_BIGNUM_C
#define MBEDTLS_ECP_C
#define MBEDTLS_ECP_NIST_OPTIM
#define MBEDTLS_ECP_DP_SECP256R1_ENABLED
#define MBEDTLS_ECP_DP_SECP384R1_ENABLED
#define MBEDTLS_ECP_DP_CURVE25519_ENABLED
#define MBEDTLS_ECDH_C
#define MBEDTLS_ECDSA_C

/* Keys and certificates, read and written */
#define MBEDTLS_ASN1_PARSE_C
#define MBEDTLS_ASN1_WRITE_C
#define MBEDTLS_OID_C
#define MBEDTLS_BASE64_C
#define MBEDTLS_PEM_PARSE_C
#define MBEDTLS_PEM_WRITE_C
#define MBEDTLS_PK_C
#define MBEDTLS_PK_PARSE_C
#define MBEDTLS_PK_WRITE_C
#define MBEDTLS_X509_USE_C
#define MBEDTLS_X509_CRT_PARSE_C
#define MBEDTLS_X509_CREATE_C
#define MBEDTLS_X509_CRT_WRITE_C

/* TLS 1.3; no session tickets, no early data, no renegotiation */
#define MBEDTLS_SSL_TLS_C
#define MBEDTLS_SSL_CLI_C
#define MBEDTLS_SSL_SRV_C
#define MBEDTLS_SSL_PROTO_TLS1_3
#define MBEDTLS_SSL_TLS1_3_KEY_EXCHANGE_MODE_EPHEMERAL_ENABLED
#define MBEDTLS_SSL_KEEP_PEER_CERTIFICATE
#define MBEDTLS_ERROR_C

#endif
