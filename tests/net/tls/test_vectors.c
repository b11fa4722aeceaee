/*
 * Published vectors (vectors.txt; tests/vectors/make_tls_vectors.py names their sources) for each cipher and for
 * X25519, by every path to them; and RFC 8448 for the keys of records.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mbedtls/chachapoly.h>
#include <mbedtls/ecp.h>
#include <mbedtls/gcm.h>
#include <sodium.h>

#include "net/tls/gcm.h"
#include "net/tls/stream.h"
#include "net/tls/tls.h"
#include "tests/check.h"

enum { FIELDS = 6, MOST = 2048, TAG = 16 };

struct fields {
    size_t sizes[FIELDS];
    uint8_t bytes[FIELDS][MOST];
};

static size_t lines;

/* Reads the vectors of one kind, and calls `check` for each; returns their number. */
static int for_each(const char *kind, void (*check)(const struct fields *fields, const char *verdict))
{
    static char line[4 * MOST];
    static struct fields fields;
    int count = 0;
    FILE *file = fopen("tests/net/tls/vectors.txt", "r");
    assert_non_null(file);
    for (lines = 1; fgets(line, sizeof line, file); lines++) {
        char *rest = line, *word = strtok_r(line, " \n", &rest);
        if (!word || strcmp(word, kind) != 0) {
            continue;
        }
        char *verdict = strtok_r(NULL, " \n", &rest);
        for (int i = 0; i < FIELDS; i++) {
            word = strtok_r(NULL, " \n", &rest);
            fields.sizes[i] = 0;
            if (word && strcmp(word, "-") != 0) {
                assert_int_equal(
                    sodium_hex2bin(fields.bytes[i], MOST, word, strlen(word), NULL, &fields.sizes[i], NULL), 0);
            }
        }
        check(&fields, verdict);
        count++;
    }
    fclose(file);
    return count;
}

static void verdict_is(bool accepted, const char *verdict, const char *way)
{
    if (accepted != (strcmp(verdict, "valid") == 0)) {
        fail_msg("vectors.txt:%zu: %s is %s", lines, way, accepted ? "accepted" : "refused");
    }
}

static void result_is(const void *got, const void *expected, size_t size, const char *way)
{
    if (memcmp(got, expected, size) != 0) {
        fail_msg("vectors.txt:%zu: %s gives something else", lines, way);
    }
}

#define KEY        fields->bytes[0]
#define NONCE      fields->bytes[1]
#define ADDITIONAL fields->bytes[2], fields->sizes[2]
#define PLAIN      fields->bytes[3]
#define SEALED     fields->bytes[4]
#define SIZE       fields->sizes[3]

static void check_gcm_of(const struct fields *fields, const char *verdict, enum gcm_code code)
{
    static uint8_t got[MOST];
    const char *way = (const char *[]){"gcm.c on libsodium", "gcm.c with VAES", "gcm.c with VAES and AVX-512"}[code];
    uint8_t tag[TAG];
    struct gcm_key key;
    gcm_key_set(&key, KEY, code);
    verdict_is(gcm_open(&key, NONCE, ADDITIONAL, SEALED, SIZE, fields->bytes[5], got), verdict, way);
    if (strcmp(verdict, "valid") == 0) {
        result_is(got, PLAIN, SIZE, way);
        gcm_seal(&key, NONCE, ADDITIONAL, PLAIN, SIZE, got, tag);
        result_is(got, SEALED, SIZE, way);
        result_is(tag, fields->bytes[5], TAG, way);
    }
}

static void check_gcm(const struct fields *fields, const char *verdict)
{
    static uint8_t got[MOST];
    mbedtls_gcm_context context;
    assert_int_equal(fields->sizes[0], 32);
    assert_int_equal(fields->sizes[1], 12);
    assert_int_equal(fields->sizes[5], TAG);
    for (enum gcm_code code = 0; code < GCM_CODES; code++) {
        if (gcm_has(code)) {
            check_gcm_of(fields, verdict, code);
        }
    }
    mbedtls_gcm_init(&context);
    assert_int_equal(mbedtls_gcm_setkey(&context, MBEDTLS_CIPHER_ID_AES, KEY, 256), 0);
    int result = mbedtls_gcm_auth_decrypt(&context, SIZE, NONCE, 12, ADDITIONAL, fields->bytes[5], TAG, SEALED, got);
    verdict_is(result == 0, verdict, "mbedTLS's GCM on gcm.c");
    mbedtls_gcm_free(&context);
}

TEST(gcm)
{
    if (!gcm_is_available()) {
        print_message("this processor has no AES instructions\n");
        skip();
    }
    assert_in_range(for_each("gcm", check_gcm), 100, 1000);
}

static void check_chacha(const struct fields *fields, const char *verdict)
{
    static uint8_t got[MOST];
    uint8_t tag[TAG];
    mbedtls_chachapoly_context context;
    mbedtls_chachapoly_init(&context);
    assert_int_equal(mbedtls_chachapoly_setkey(&context, KEY), 0);
    int result = mbedtls_chachapoly_auth_decrypt(&context, SIZE, NONCE, ADDITIONAL, fields->bytes[5], SEALED, got);
    verdict_is(result == 0, verdict, "mbedTLS");
    if (result == 0) {
        result_is(got, PLAIN, SIZE, "mbedTLS");
        assert_int_equal(mbedtls_chachapoly_encrypt_and_tag(&context, SIZE, NONCE, ADDITIONAL, PLAIN, got, tag), 0);
        result_is(got, SEALED, SIZE, "mbedTLS");
        result_is(tag, fields->bytes[5], TAG, "mbedTLS");
    }
    mbedtls_chachapoly_free(&context);
}

TEST(chacha)
{
    assert_in_range(for_each("chacha", check_chacha), 250, 1000);
}

static int draw(void *context, unsigned char *bytes, size_t size)
{
    return tls_random(context, bytes, size);
}

/*
 * "acceptable" are points that may be refused: those of small order, which must be refused here, and unusual encodings.
 */
static void check_x25519(const struct fields *fields, const char *verdict)
{
    static const uint8_t zeros[32];
    uint8_t number[32], product[32];
    size_t size = 0;
    mbedtls_ecp_group group;
    mbedtls_mpi factor;
    mbedtls_ecp_point point, result;
    mbedtls_ecp_group_init(&group);
    mbedtls_mpi_init(&factor);
    mbedtls_ecp_point_init(&point);
    mbedtls_ecp_point_init(&result);
    memcpy(number, fields->bytes[0], sizeof number);
    number[0] &= 248;
    number[31] = (uint8_t)((number[31] & 127) | 64);
    assert_int_equal(mbedtls_ecp_group_load(&group, MBEDTLS_ECP_DP_CURVE25519), 0);
    assert_int_equal(mbedtls_mpi_read_binary_le(&factor, number, sizeof number), 0);
    int status = mbedtls_ecp_point_read_binary(&group, &point, fields->bytes[1], 32);
    status = status ? status : mbedtls_ecp_mul(&group, &result, &factor, &point, draw, NULL);
    if (memcmp(fields->bytes[2], zeros, sizeof zeros) == 0) {
        assert_int_not_equal(status, 0);
    } else if (status != 0) {
        verdict_is(false, verdict, "x25519.c");
    } else {
        assert_int_equal(mbedtls_ecp_point_write_binary(&group, &result, MBEDTLS_ECP_PF_COMPRESSED, &size, product, 32),
                         0);
        result_is(product, fields->bytes[2], sizeof product, "x25519.c");
    }
    mbedtls_ecp_group_free(&group);
    mbedtls_mpi_free(&factor);
    mbedtls_ecp_point_free(&point);
    mbedtls_ecp_point_free(&result);
}

TEST(x25519)
{
    assert_in_range(for_each("x25519", check_x25519), 500, 1000);
}

/* RFC 8448, 3: keys, nonces and Finished of each traffic secret. Its cipher has 16-byte keys. */
TEST(keys_of_the_trace)
{
    static const struct {
        const char *secret, *key, *iv, *finished;
    } rows[] = {
        {"b67b7d690cc16c4e75e54213cb2d37b4e9c912bcded9105d42befd59d391ad38", "3fce516009c21727d0f2e4e86ee403bc",
         "5d313eb2671276ee13000b30", "008d3b66f816ea559f96b537e885c31fc068bf492c652f01f288a1d8cdc19fc8"},
        {"b3eddb126e067f35a780b3abf45e2d8f3b1a950738f52e9600746a0e27a55a21", "dbfaa693d1762c5b666af5d950258d01",
         "5bd3c71b836e0b76bb73265f", "b80ad01015fb2f0bd65ff7d4da5d6bf83f84821d1f87fdc7d3c75b5a7b42d9c4"},
        {"9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5", "17422dda596ed5d9acd890e3c63f5051",
         "5b78923dee08579033e523d9", ""},
        {"a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643", "9f02283b6c9c07efc26bb9f2ac92e356",
         "cf782b88dd83549aadf1e984", ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *const labels[] = {"key", "iv", "finished"}, *const hex[] = {rows[i].key, rows[i].iv,
                                                                                rows[i].finished};
        uint8_t secret[32], expected[32], got[32];
        size_t size;
        assert_int_equal(sodium_hex2bin(secret, 32, rows[i].secret, 64, NULL, NULL, NULL), 0);
        for (int j = 0; j < 3; j++) {
            assert_int_equal(sodium_hex2bin(expected, 32, hex[j], strlen(hex[j]), NULL, &size, NULL), 0);
            assert_true(record_expand_label(RECORD_CHACHA20_POLY1305_SHA256, secret, labels[j], got, size));
            assert_memory_equal(got, expected, size);
        }
    }
}

static int start(void **state)
{
    struct error error;
    return !tls_start(&error);
}

int main(void)
{
    return check_run(start, NULL);
}
