/* Curve25519 behind mbedTLS's interface, by the vectors of RFC 7748. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "tests/check.h"

#include <mbedtls/ecp.h>
#include <sodium.h>

enum { BYTES = 32 };

static mbedtls_ecp_group group;

static int enter(void **state)
{
    mbedtls_ecp_group_init(&group);
    return sodium_init() < 0 || mbedtls_ecp_group_load(&group, MBEDTLS_ECP_DP_CURVE25519) != 0;
}

static int leave(void **state)
{
    mbedtls_ecp_group_free(&group);
    return 0;
}

static void unhex(const char *hex, uint8_t bytes[BYTES])
{
    assert_int_equal(sodium_hex2bin(bytes, BYTES, hex, strlen(hex), NULL, NULL, NULL), 0);
}

static int draw(void *context, unsigned char *bytes, size_t size)
{
    randombytes_buf(bytes, size);
    return 0;
}

/*
 * number x the point with that u, or the base point if u is NULL; the status is mbedTLS's. clamp: as in RFC 7748,
 * section 5.
 */
static int multiply(const uint8_t number[BYTES], bool clamp, const uint8_t *u, uint8_t product[BYTES])
{
    uint8_t clamped[BYTES];
    size_t size = 0;
    mbedtls_mpi factor;
    mbedtls_ecp_point point, result;
    mbedtls_mpi_init(&factor);
    mbedtls_ecp_point_init(&point);
    mbedtls_ecp_point_init(&result);
    memcpy(clamped, number, BYTES);
    if (clamp) {
        clamped[0] &= 248;
        clamped[31] = (uint8_t)((clamped[31] & 127) | 64);
    }
    const uint8_t base[BYTES] = {9};
    assert_int_equal(mbedtls_mpi_read_binary_le(&factor, clamped, BYTES), 0);
    assert_int_equal(mbedtls_ecp_point_read_binary(&group, &point, u ? u : base, BYTES), 0);
    int status = mbedtls_ecp_mul(&group, &result, &factor, &point, draw, NULL);
    if (status == 0) {
        assert_int_equal(
            mbedtls_ecp_point_write_binary(&group, &result, MBEDTLS_ECP_PF_COMPRESSED, &size, product, BYTES), 0);
        assert_int_equal(size, BYTES);
    }
    mbedtls_mpi_free(&factor);
    mbedtls_ecp_point_free(&point);
    mbedtls_ecp_point_free(&result);
    return status;
}

static void is(const uint8_t product[BYTES], const char *hex)
{
    uint8_t expected[BYTES];
    unhex(hex, expected);
    assert_memory_equal(product, expected, BYTES);
}

/* Section 5.2. The second u has its highest bit set, which must be ignored. */
TEST_WITH(products, enter, leave)
{
    static const char *const vectors[][3] = {{"a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4",
                                              "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c",
                                              "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"},
                                             {"4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d",
                                              "e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a493",
                                              "95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957"}};
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        uint8_t number[BYTES], u[BYTES], product[BYTES];
        unhex(vectors[i][0], number);
        unhex(vectors[i][1], u);
        assert_int_equal(multiply(number, true, u, product), 0);
        is(product, vectors[i][2]);
    }
}

/* Section 5.2, the loop: each number is the previous product, each point the previous number. */
TEST_WITH(a_thousand_times, enter, leave)
{
    uint8_t number[BYTES] = {9}, u[BYTES] = {9}, product[BYTES];
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(multiply(number, true, u, product), 0);
        memcpy(u, number, BYTES);
        memcpy(number, product, BYTES);
        if (i == 0) {
            is(product, "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079");
        }
    }
    is(number, "684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51");
}

/* Section 6.1: what the two ends of a handshake do. */
TEST_WITH(both_ends_agree, enter, leave)
{
    uint8_t alice[BYTES], bob[BYTES], of_alice[BYTES], of_bob[BYTES], shared[BYTES];
    unhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a", alice);
    unhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb", bob);
    assert_int_equal(multiply(alice, true, NULL, of_alice), 0);
    is(of_alice, "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a");
    assert_int_equal(multiply(bob, true, NULL, of_bob), 0);
    is(of_bob, "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f");
    assert_int_equal(multiply(alice, true, of_bob, shared), 0);
    is(shared, "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742");
    assert_int_equal(multiply(bob, true, of_alice, shared), 0);
    is(shared, "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742");
}

/* A peer that sends a point of small order would know the secret; and an invalid number makes no key. */
TEST_WITH(what_is_no_key_is_refused, enter, leave)
{
    uint8_t number[BYTES], product[BYTES];
    static const uint8_t zero[BYTES] = {0}, one[BYTES] = {1};
    randombytes_buf(number, BYTES);
    assert_int_equal(multiply(number, true, zero, product), MBEDTLS_ERR_ECP_INVALID_KEY);
    assert_int_equal(multiply(number, true, one, product), MBEDTLS_ERR_ECP_INVALID_KEY);
    assert_int_equal(multiply(one, false, NULL, product), MBEDTLS_ERR_ECP_INVALID_KEY);
}

/* Twice the base point of P-256. */
TEST_WITH(other_curves_are_not_touched, enter, leave)
{
    uint8_t point[65], x[BYTES];
    size_t size;
    mbedtls_ecp_keypair pair;
    mbedtls_ecp_keypair_init(&pair);
    uint8_t two[BYTES] = {0};
    two[BYTES - 1] = 2;
    assert_int_equal(mbedtls_ecp_read_key(MBEDTLS_ECP_DP_SECP256R1, &pair, two, BYTES), 0);
    assert_int_equal(mbedtls_ecp_keypair_calc_public(&pair, draw, NULL), 0);
    assert_int_equal(mbedtls_ecp_write_public_key(&pair, MBEDTLS_ECP_PF_UNCOMPRESSED, &size, point, sizeof point), 0);
    assert_int_equal(size, sizeof point);
    memcpy(x, point + 1, BYTES);
    is(x, "7cf27b188d034f7e8a52380304b51ac3c08969e277f21b35a60b48fc47669978");
    mbedtls_ecp_keypair_free(&pair);
}

int main(void)
{
    return check_run(NULL, NULL);
}
