/*
 * The bulk ciphers of TLS on libsodium, behind mbedTLS's ALT interfaces: AES-256-GCM where the processor has the
 * instructions, ChaCha20-Poly1305 everywhere.
 *
 * mbedTLS uses them in handshakes (record.c protects all later records): it encrypts and decrypts whole records, in
 * place. That is implemented, with the key schedule kept in the context. The interfaces for pieces of a message, which
 * mbedTLS's PSA layer links but no one calls, report that they are not supported. Errors are mbedTLS's, because mbedTLS
 * reads them.
 */
#include "net/tls/aead.h"

#include <assert.h>
#include <string.h>

#include <mbedtls/chachapoly.h>
#include <mbedtls/error.h>
#include <mbedtls/gcm.h>
#include <sodium.h>

static_assert(sizeof(mbedtls_gcm_context) >= sizeof(crypto_aead_aes256gcm_state), "the state must fit");

enum { TAG_BYTES = 16, NONCE_BYTES = 12 };

bool aead_has_aes(void)
{
    return crypto_aead_aes256gcm_is_available() == 1;
}

static crypto_aead_aes256gcm_state *gcm_state(mbedtls_gcm_context *context)
{
    return (crypto_aead_aes256gcm_state *)(void *)context->state;
}

void mbedtls_gcm_init(mbedtls_gcm_context *context)
{
    memset(context, 0, sizeof *context);
}

void mbedtls_gcm_free(mbedtls_gcm_context *context)
{
    if (context) {
        sodium_memzero(context, sizeof *context);
    }
}

int mbedtls_gcm_setkey(mbedtls_gcm_context *context, mbedtls_cipher_id_t cipher, const unsigned char *key,
                       unsigned int keybits)
{
    if (cipher != MBEDTLS_CIPHER_ID_AES || keybits != 256 || !aead_has_aes()) {
        return MBEDTLS_ERR_PLATFORM_FEATURE_UNSUPPORTED;
    }
    return crypto_aead_aes256gcm_beforenm(gcm_state(context), key) == 0 ? 0 : MBEDTLS_ERR_GCM_BAD_INPUT;
}

/* NOLINTNEXTLINE(readability-function-size): mbedTLS's own interface */
int mbedtls_gcm_crypt_and_tag(mbedtls_gcm_context *context, int mode, size_t length, const unsigned char *iv,
                              size_t iv_size, const unsigned char *additional, size_t additional_size,
                              const unsigned char *input, unsigned char *output, size_t tag_size, unsigned char *tag)
{
    if (mode != MBEDTLS_GCM_ENCRYPT || iv_size != NONCE_BYTES || tag_size != TAG_BYTES) {
        return MBEDTLS_ERR_GCM_BAD_INPUT;
    }
    crypto_aead_aes256gcm_encrypt_detached_afternm(output, tag, NULL, input, length, additional, additional_size, NULL,
                                                   iv, gcm_state(context));
    return 0;
}

/* NOLINTNEXTLINE(readability-function-size): mbedTLS's own interface */
int mbedtls_gcm_auth_decrypt(mbedtls_gcm_context *context, size_t length, const unsigned char *iv, size_t iv_size,
                             const unsigned char *additional, size_t additional_size, const unsigned char *tag,
                             size_t tag_size, const unsigned char *input, unsigned char *output)
{
    if (iv_size != NONCE_BYTES || tag_size != TAG_BYTES) {
        return MBEDTLS_ERR_GCM_BAD_INPUT;
    }
    return crypto_aead_aes256gcm_decrypt_detached_afternm(output, NULL, input, length, tag, additional, additional_size,
                                                          iv, gcm_state(context)) == 0
               ? 0
               : MBEDTLS_ERR_GCM_AUTH_FAILED;
}

int mbedtls_gcm_starts(mbedtls_gcm_context *context, int mode, const unsigned char *iv, size_t iv_size)
{
    (void)context, (void)mode, (void)iv, (void)iv_size;
    return MBEDTLS_ERR_PLATFORM_FEATURE_UNSUPPORTED;
}

int mbedtls_gcm_update_ad(mbedtls_gcm_context *context, const unsigned char *additional, size_t additional_size)
{
    (void)context, (void)additional, (void)additional_size;
    return MBEDTLS_ERR_PLATFORM_FEATURE_UNSUPPORTED;
}

int mbedtls_gcm_update(mbedtls_gcm_context *context, const unsigned char *input, size_t input_length,
                       unsigned char *output, size_t output_size, size_t *output_length)
{
    (void)context, (void)input, (void)input_length, (void)output, (void)output_size, (void)output_length;
    return MBEDTLS_ERR_PLATFORM_FEATURE_UNSUPPORTED;
}

int mbedtls_gcm_finish(mbedtls_gcm_context *context, unsigned char *output, size_t output_size, size_t *output_length,
                       unsigned char *tag, size_t tag_size)
{
    (void)context, (void)output, (void)output_size, (void)output_length, (void)tag, (void)tag_size;
    return MBEDTLS_ERR_PLATFORM_FEATURE_UNSUPPORTED;
}

void mbedtls_chachapoly_init(mbedtls_chachapoly_context *context)
{
    memset(context, 0, sizeof *context);
}

void mbedtls_chachapoly_free(mbedtls_chachapoly_context *context)
{
    if (context) {
        sodium_memzero(context, sizeof *context);
    }
}

int mbedtls_chachapoly_setkey(mbedtls_chachapoly_context *context, const unsigned char key[32])
{
    memcpy(context->key, key, sizeof context->key);
    return 0;
}

int mbedtls_chachapoly_encrypt_and_tag(mbedtls_chachapoly_context *context, size_t length,
                                       const unsigned char nonce[12], const unsigned char *additional,
                                       size_t additional_size, const unsigned char *input, unsigned char *output,
                                       unsigned char tag[16])
{
    crypto_aead_chacha20poly1305_ietf_encrypt_detached(output, tag, NULL, input, length, additional, additional_size,
                                                       NULL, nonce, context->key);
    return 0;
}

int mbedtls_chachapoly_auth_decrypt(mbedtls_chachapoly_context *context, size_t length, const unsigned char nonce[12],
                                    const unsigned char *additional, size_t additional_size,
                                    const unsigned char tag[16], const unsigned char *input, unsigned char *output)
{
    return crypto_aead_chacha20poly1305_ietf_decrypt_detached(output, NULL, input, length, tag, additional,
                                                              additional_size, nonce, context->key) == 0
               ? 0
               : MBEDTLS_ERR_CHACHAPOLY_AUTH_FAILED;
}

int mbedtls_chachapoly_starts(mbedtls_chachapoly_context *context, const unsigned char nonce[12],
                              mbedtls_chachapoly_mode_t mode)
{
    (void)context, (void)nonce, (void)mode;
    return MBEDTLS_ERR_PLATFORM_FEATURE_UNSUPPORTED;
}

int mbedtls_chachapoly_update_aad(mbedtls_chachapoly_context *context, const unsigned char *additional, size_t size)
{
    (void)context, (void)additional, (void)size;
    return MBEDTLS_ERR_PLATFORM_FEATURE_UNSUPPORTED;
}

int mbedtls_chachapoly_update(mbedtls_chachapoly_context *context, size_t length, const unsigned char *input,
                              unsigned char *output)
{
    (void)context, (void)length, (void)input, (void)output;
    return MBEDTLS_ERR_PLATFORM_FEATURE_UNSUPPORTED;
}

int mbedtls_chachapoly_finish(mbedtls_chachapoly_context *context, unsigned char tag[16])
{
    (void)context, (void)tag;
    return MBEDTLS_ERR_PLATFORM_FEATURE_UNSUPPORTED;
}
