/* Two libraries behind one interface, selected by the processor's features; all give the same bytes. */
#include "net/tls/gcm.h"

#include <assert.h>
#include <pthread.h>
#include <string.h>

#include <mbedtls/chachapoly.h>
#include <mbedtls/error.h>
#include <mbedtls/gcm.h>
#include <sodium.h>

#include "base/cpu.h"

static_assert(sizeof(crypto_aead_aes256gcm_state) <= sizeof((struct gcm_key *)0)->state, "the state must fit");
static_assert(sizeof(mbedtls_gcm_context) >= sizeof(crypto_aead_aes256gcm_state), "the state must fit");

bool gcm_is_available(void)
{
    return crypto_aead_aes256gcm_is_available() == 1;
}

static crypto_aead_aes256gcm_state *sodium_state(const struct gcm_key *key)
{
    return (crypto_aead_aes256gcm_state *)(void *)(uintptr_t)key->state;
}

#if defined(__x86_64__)
#include <intel-ipsec-mb.h>

static_assert(sizeof(struct gcm_key_data) <= sizeof((struct gcm_key *)0)->state, "the state must fit");

/*
 * Declared like their siblings for other instruction sets in the library's header (aes_gcm_enc_256_sse ...): its public
 * access to these is a table of everything, ten times as large as this whole program.
 */
void aes_gcm_precomp_256_vaes_avx2(struct gcm_key_data *key);
void aes_gcm_enc_256_vaes_avx2(const struct gcm_key_data *key, struct gcm_context_data *context, uint8_t *out,
                               const uint8_t *in, uint64_t size, const uint8_t *nonce, const uint8_t *additional,
                               uint64_t additional_size, uint8_t *tag, uint64_t tag_size);
void aes_gcm_dec_256_vaes_avx2(const struct gcm_key_data *key, struct gcm_context_data *context, uint8_t *out,
                               const uint8_t *in, uint64_t size, const uint8_t *nonce, const uint8_t *additional,
                               uint64_t additional_size, uint8_t *tag, uint64_t tag_size);
void aes_gcm_precomp_256_vaes_avx512(struct gcm_key_data *key);
void aes_gcm_enc_256_vaes_avx512(const struct gcm_key_data *key, struct gcm_context_data *context, uint8_t *out,
                                 const uint8_t *in, uint64_t size, const uint8_t *nonce, const uint8_t *additional,
                                 uint64_t additional_size, uint8_t *tag, uint64_t tag_size);
void aes_gcm_dec_256_vaes_avx512(const struct gcm_key_data *key, struct gcm_context_data *context, uint8_t *out,
                                 const uint8_t *in, uint64_t size, const uint8_t *nonce, const uint8_t *additional,
                                 uint64_t additional_size, uint8_t *tag, uint64_t tag_size);

static const struct vaes {
    aes_gcm_precomp_t precompute;
    aes_gcm_enc_dec_t seal, open;
} vaes_codes[GCM_CODES] = {
    [GCM_VAES_256] = {aes_gcm_precomp_256_vaes_avx2, aes_gcm_enc_256_vaes_avx2, aes_gcm_dec_256_vaes_avx2},
    [GCM_VAES_512] = {aes_gcm_precomp_256_vaes_avx512, aes_gcm_enc_256_vaes_avx512, aes_gcm_dec_256_vaes_avx512},
};

static struct gcm_key_data *vaes_state(const struct gcm_key *key)
{
    return (struct gcm_key_data *)(void *)(uintptr_t)key->state;
}

bool gcm_has(enum gcm_code code)
{
    const struct cpu_features *cpu = cpu_features_get();
    return code == GCM_LIBSODIUM || (cpu->vaes && (code == GCM_VAES_256 || cpu->avx512));
}

const char *gcm_vaes_library(void)
{
    return ", IPsec-MB " IMB_VERSION_STR;
}

static void vaes_set(struct gcm_key *key, const uint8_t *bytes)
{
    aes_keyexp_256_enc_avx2(bytes, vaes_state(key)->expanded_keys);
    vaes_codes[key->code].precompute(vaes_state(key));
}

static void vaes_seal(const struct gcm_key *key, const uint8_t *nonce, const uint8_t *additional,
                      size_t additional_size, const uint8_t *plain, size_t size, uint8_t *sealed, uint8_t *tag)
{
    struct gcm_context_data context;
    vaes_codes[key->code].seal(vaes_state(key), &context, sealed, plain, size, nonce, additional, additional_size, tag,
                               GCM_TAG_BYTES);
    sodium_memzero(&context, sizeof context);
}

static bool vaes_open(const struct gcm_key *key, const uint8_t *nonce, const uint8_t *additional,
                      size_t additional_size, const uint8_t *sealed, size_t size, const uint8_t *tag, uint8_t *plain)
{
    struct gcm_context_data context;
    uint8_t expected[GCM_TAG_BYTES];
    vaes_codes[key->code].open(vaes_state(key), &context, plain, sealed, size, nonce, additional, additional_size,
                               expected, GCM_TAG_BYTES);
    bool same = sodium_memcmp(expected, tag, GCM_TAG_BYTES) == 0;
    sodium_memzero(&context, sizeof context);
    sodium_memzero(expected, sizeof expected);
    return same;
}
#else
bool gcm_has(enum gcm_code code)
{
    return code == GCM_LIBSODIUM;
}

const char *gcm_vaes_library(void)
{
    return "";
}

static void vaes_set(struct gcm_key *key, const uint8_t *bytes)
{
    (void)key, (void)bytes;
}

static void vaes_seal(const struct gcm_key *key, const uint8_t *nonce, const uint8_t *additional,
                      size_t additional_size, const uint8_t *plain, size_t size, uint8_t *sealed, uint8_t *tag)
{
    (void)key, (void)nonce, (void)additional, (void)additional_size, (void)plain, (void)size, (void)sealed, (void)tag;
}

static bool vaes_open(const struct gcm_key *key, const uint8_t *nonce, const uint8_t *additional,
                      size_t additional_size, const uint8_t *sealed, size_t size, const uint8_t *tag, uint8_t *plain)
{
    (void)key, (void)nonce, (void)additional, (void)additional_size, (void)sealed, (void)size, (void)tag, (void)plain;
    return false;
}
#endif

void gcm_key_set(struct gcm_key *key, const uint8_t bytes[GCM_KEY_BYTES], enum gcm_code code)
{
    assert(gcm_has(code));
    key->code = code;
    if (code == GCM_LIBSODIUM) {
        crypto_aead_aes256gcm_beforenm(sodium_state(key), bytes);
    } else {
        vaes_set(key, bytes);
    }
}

void gcm_seal(const struct gcm_key *key, const uint8_t nonce[GCM_NONCE_BYTES], const uint8_t *additional,
              size_t additional_size, const uint8_t *plain, size_t size, uint8_t *sealed, uint8_t tag[GCM_TAG_BYTES])
{
    if (key->code == GCM_LIBSODIUM) {
        crypto_aead_aes256gcm_encrypt_detached_afternm(sealed, tag, NULL, plain, size, additional, additional_size,
                                                       NULL, nonce, sodium_state(key));
    } else {
        vaes_seal(key, nonce, additional, additional_size, plain, size, sealed, tag);
    }
}

bool gcm_open(const struct gcm_key *key, const uint8_t nonce[GCM_NONCE_BYTES], const uint8_t *additional,
              size_t additional_size, const uint8_t *sealed, size_t size, const uint8_t tag[GCM_TAG_BYTES],
              uint8_t *plain)
{
    if (key->code == GCM_LIBSODIUM) {
        return crypto_aead_aes256gcm_decrypt_detached_afternm(plain, NULL, sealed, size, tag, additional,
                                                              additional_size, nonce, sodium_state(key)) == 0;
    }
    return vaes_open(key, nonce, additional, additional_size, sealed, size, tag, plain);
}

/* --- The choice --- */

/* Does it give libsodium's bytes? Tested on a record that is longer than one pass and ends with a partial block. */
static bool agrees(enum gcm_code code)
{
    enum { SIZE = 1000, ADDITIONAL = 5 };
    static const uint8_t secret[GCM_KEY_BYTES] = {1, 2, 3}, nonce[GCM_NONCE_BYTES] = {4, 5, 6};
    uint8_t plain[SIZE] = {7, 8, 9}, expected[SIZE], sealed[SIZE], expected_tag[GCM_TAG_BYTES], tag[GCM_TAG_BYTES];
    struct gcm_key key, reference;
    gcm_key_set(&reference, secret, GCM_LIBSODIUM);
    gcm_seal(&reference, nonce, plain, ADDITIONAL, plain, SIZE, expected, expected_tag);
    gcm_key_set(&key, secret, code);
    gcm_seal(&key, nonce, plain, ADDITIONAL, plain, SIZE, sealed, tag);
    return memcmp(sealed, expected, SIZE) == 0 && memcmp(tag, expected_tag, sizeof tag) == 0 &&
           gcm_open(&key, nonce, plain, ADDITIONAL, sealed, SIZE, tag, sealed) && memcmp(sealed, plain, SIZE) == 0;
}

static enum gcm_code fastest;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/*
 * The program may have been built without a machine to test these instructions: check their results before relying on
 * them.
 */
static void choose(void)
{
    for (fastest = GCM_CODES - 1; fastest > GCM_LIBSODIUM && !(gcm_has(fastest) && agrees(fastest)); fastest--) {
    }
}

enum gcm_code gcm_fastest(void)
{
    pthread_once(&once, choose);
    return fastest;
}

/* --- mbedTLS's ALT interfaces --- */

/*
 * mbedTLS uses them in handshakes and for web.c (record.c protects all other records): it encrypts and decrypts whole
 * records, in place. That is implemented, with the key schedule kept in the context. The interfaces for pieces of a
 * message, which mbedTLS's PSA layer links but no one calls, report that they are not supported. Errors are mbedTLS's,
 * because mbedTLS reads them.
 */
enum { TAG_BYTES = 16, NONCE_BYTES = 12 };

static crypto_aead_aes256gcm_state *alt_state(mbedtls_gcm_context *context)
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
    if (cipher != MBEDTLS_CIPHER_ID_AES || keybits != 256 || !gcm_is_available()) {
        return MBEDTLS_ERR_PLATFORM_FEATURE_UNSUPPORTED;
    }
    return crypto_aead_aes256gcm_beforenm(alt_state(context), key) == 0 ? 0 : MBEDTLS_ERR_GCM_BAD_INPUT;
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
                                                   iv, alt_state(context));
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
                                                          iv, alt_state(context)) == 0
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
