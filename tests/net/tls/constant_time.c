/*
 * Code that works on secrets, run under valgrind's memcheck with the secrets marked as undefined: it reports each
 * branch and each address that depends on them. These are the product's own objects. With an argument something leaks
 * on purpose, and must be reported.
 *
 * valgrind does not know AVX-512, so of the AES-GCM codes it only sees libsodium's; the other one has no branch between
 * records' lengths, and its tags are compared by code checked here.
 */
#include <stdio.h>
#include <string.h>

#include <mbedtls/ecp.h>
#include <sodium.h>
#include <valgrind/memcheck.h>

#include "net/tls/gcm.h"
#include "net/tls/stream.h"
#include "net/tls/tls.h"

enum { CONTENT = 1000 };

static void make_secret(void *bytes, size_t size)
{
    randombytes_buf(bytes, size);
    VALGRIND_MAKE_MEM_UNDEFINED(bytes, size);
}

/* What the peer sees, or what decides about a connection, is not secret. */
static void make_public(const void *bytes, size_t size)
{
    VALGRIND_MAKE_MEM_DEFINED(bytes, size);
}

/* Key schedule, encryption and decryption of records, one generation of keys after another. */
static bool records(enum record_cipher cipher)
{
    static struct record_key out, in;
    static uint8_t record[RECORD_SEALED], plain[CONTENT + 1];
    uint8_t secret[RECORD_MOST_SECRET], type;
    make_secret(secret, sizeof secret);
    if (!record_key_set(&out, cipher, secret) || !record_key_set(&in, cipher, secret)) {
        return false;
    }
    for (int generation = 0; generation < 3; generation++) {
        make_secret(record + RECORD_HEADER, CONTENT);
        size_t size = record_seal(&out, RECORD_DATA, record, CONTENT);
        make_public(record, size);
        ptrdiff_t content = record_open(&in, record, size - RECORD_HEADER, plain, &type);
        if (content != CONTENT || !record_key_next(&out) || !record_key_next(&in)) {
            return false;
        }
    }
    return true;
}

/* As mbedTLS compares a Finished, and gcm.c a tag. */
static bool comparison(void)
{
    uint8_t secret[16], public[16] = {0};
    make_secret(secret, sizeof secret);
    int result = sodium_memcmp(secret, public, sizeof public);
    make_public(&result, sizeof result);
    return result != 0;
}

static int draw(void *context, unsigned char *bytes, size_t size)
{
    return tls_random(context, bytes, size);
}

/* A private number times the base point, and then the result, as in a handshake. */
static bool x25519(void)
{
    uint8_t number[32], product[32] = {9};
    size_t size;
    mbedtls_ecp_group group;
    mbedtls_mpi factor;
    mbedtls_ecp_point point, result;
    mbedtls_ecp_group_init(&group);
    mbedtls_mpi_init(&factor);
    mbedtls_ecp_point_init(&point);
    mbedtls_ecp_point_init(&result);
    make_secret(number, sizeof number);
    number[0] &= 248;
    number[31] = (uint8_t)((number[31] & 127) | 64);
    bool done = mbedtls_ecp_group_load(&group, MBEDTLS_ECP_DP_CURVE25519) == 0 &&
                mbedtls_mpi_read_binary_le(&factor, number, sizeof number) == 0;
    for (int i = 0; done && i < 2; i++) {
        done = mbedtls_ecp_point_read_binary(&group, &point, product, sizeof product) == 0 &&
               mbedtls_ecp_mul(&group, &result, &factor, &point, draw, NULL) == 0 &&
               mbedtls_ecp_point_write_binary(&group, &result, MBEDTLS_ECP_PF_COMPRESSED, &size, product,
                                              sizeof product) == 0;
        make_public(product, sizeof product);
    }
    mbedtls_ecp_group_free(&group);
    mbedtls_mpi_free(&factor);
    mbedtls_ecp_point_free(&point);
    mbedtls_ecp_point_free(&result);
    return done;
}

/* A comparison that stops at the first difference. */
static bool leak(void)
{
    uint8_t secret[16], public[16] = {0};
    make_secret(secret, sizeof secret);
    for (size_t i = 0; i < sizeof secret; i++) {
        if (secret[i] != public[i]) {
            return true;
        }
    }
    return false;
}

int main(int argc, char **argv)
{
    struct error error;
    if (!tls_start(&error)) {
        fprintf(stderr, "constant_time: %s\n", error.text);
        return 1;
    }
    bool done = records(RECORD_CHACHA20_POLY1305_SHA256) &&
                (!gcm_is_available() || records(RECORD_AES_256_GCM_SHA384)) && comparison() && x25519();
    if (argc > 1) {
        done = leak() && done;
    }
    printf("%s\n", done ? "done" : "failed");
    return !done;
}
