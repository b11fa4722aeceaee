/* The bulk ciphers behind mbedTLS's interfaces, by the vectors of their specifications. */
#include "net/tls/gcm.h"
#include "tests/check.h"

#include <stdio.h>
#include <string.h>

#include <mbedtls/chachapoly.h>
#include <mbedtls/gcm.h>
#include <sodium.h>

#include "tests/net/tls/vectors.h"

TEST(gcm)
{
    assert_true(sodium_init() >= 0);
    if (!gcm_is_available()) {
        print_message("this processor has no AES instructions\n");
        skip();
    }
    for (size_t i = 0; i < GCM_VECTORS; i++) {
        const struct vector *vector = &gcm_vectors[i];
        uint8_t key[256], nonce[256], additional[256], plain[256], cipher[256], tag[256], text[256], got_tag[16];
        mbedtls_gcm_context context;
        unhex(vector->key, key);
        size_t nonce_size = unhex(vector->nonce, nonce), additional_size = unhex(vector->additional, additional);
        size_t size = unhex(vector->plain, plain);
        unhex(vector->cipher, cipher);
        unhex(vector->tag, tag);
        mbedtls_gcm_init(&context);
        assert_int_equal(mbedtls_gcm_setkey(&context, MBEDTLS_CIPHER_ID_AES, key, 256), 0);
        memcpy(text, plain, size); /* in place, as TLS does it */
        assert_int_equal(mbedtls_gcm_crypt_and_tag(&context, MBEDTLS_GCM_ENCRYPT, size, nonce, nonce_size, additional,
                                                   additional_size, text, text, 16, got_tag),
                         0);
        assert_memory_equal(text, cipher, size);
        assert_memory_equal(got_tag, tag, 16);
        assert_int_equal(mbedtls_gcm_auth_decrypt(&context, size, nonce, nonce_size, additional, additional_size, tag,
                                                  16, text, text),
                         0);
        assert_memory_equal(text, plain, size);
        tag[3] ^= 1;
        assert_int_equal(mbedtls_gcm_auth_decrypt(&context, size, nonce, nonce_size, additional, additional_size, tag,
                                                  16, cipher, text),
                         MBEDTLS_ERR_GCM_AUTH_FAILED);
        mbedtls_gcm_free(&context);
        assert_true(sodium_is_zero((const unsigned char *)&context, sizeof context));
    }
}

TEST(gcm_refuses_what_tls_does_not_use)
{
    mbedtls_gcm_context context;
    uint8_t bytes[32] = {0};
    mbedtls_gcm_init(&context);
    assert_true(sodium_init() >= 0);
    assert_int_not_equal(mbedtls_gcm_setkey(&context, MBEDTLS_CIPHER_ID_AES, bytes, 128), 0);
    assert_int_not_equal(mbedtls_gcm_starts(&context, MBEDTLS_GCM_ENCRYPT, bytes, 12), 0);
    assert_int_not_equal(
        mbedtls_gcm_crypt_and_tag(&context, MBEDTLS_GCM_ENCRYPT, 4, bytes, 16, NULL, 0, bytes, bytes, 16, bytes + 16),
        0);
    mbedtls_gcm_free(&context);
}

/* RFC 8439, section 2.8.2. */
TEST(chachapoly)
{
    static const char plain[] = "Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the "
                                "future, sunscreen would be it.";
    static const struct vector vector = {
        "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f",
        "070000004041424344454647",
        "50515253c0c1c2c3c4c5c6c7",
        NULL,
        "d31a8d34648e60db7b86afbc53ef7ec2a4aded51296e08fea9e2b5a736ee62d63dbea45e8ca9671282fafb69da92728b"
        "1a71de0a9e060b2905d6a5b67ecd3b3692ddbd7f2d778b8c9803aee328091b58fab324e4fad675945585808b4831d7bc"
        "3ff4def08e4b7a9de576d26586cec64b6116",
        "1ae10b594f09e26a7e902ecbd0600691",
    };
    uint8_t key[256], nonce[256], additional[256], cipher[256], tag[256], text[256], got_tag[16];
    size_t size = sizeof plain - 1;
    mbedtls_chachapoly_context context;
    assert_true(sodium_init() >= 0);
    unhex(vector.key, key);
    unhex(vector.nonce, nonce);
    size_t additional_size = unhex(vector.additional, additional);
    assert_int_equal(unhex(vector.cipher, cipher), size);
    unhex(vector.tag, tag);
    mbedtls_chachapoly_init(&context);
    assert_int_equal(mbedtls_chachapoly_setkey(&context, key), 0);
    memcpy(text, plain, size);
    assert_int_equal(
        mbedtls_chachapoly_encrypt_and_tag(&context, size, nonce, additional, additional_size, text, text, got_tag), 0);
    assert_memory_equal(text, cipher, size);
    assert_memory_equal(got_tag, tag, 16);
    assert_int_equal(
        mbedtls_chachapoly_auth_decrypt(&context, size, nonce, additional, additional_size, tag, text, text), 0);
    assert_memory_equal(text, plain, size);
    cipher[5] ^= 1;
    assert_int_equal(
        mbedtls_chachapoly_auth_decrypt(&context, size, nonce, additional, additional_size, tag, cipher, text),
        MBEDTLS_ERR_CHACHAPOLY_AUTH_FAILED);
    mbedtls_chachapoly_free(&context);
    assert_true(sodium_is_zero((const unsigned char *)&context, sizeof context));
}

int main(void)
{
    return check_run(NULL, NULL);
}
