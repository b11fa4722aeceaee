/* Two libraries behind one interface, selected by the processor's features; all give the same bytes. */
#include "net/tls/gcm.h"

#include <assert.h>
#include <pthread.h>
#include <string.h>

#include <sodium.h>

#include "base/cpu.h"

static_assert(sizeof(crypto_aead_aes256gcm_state) <= sizeof((struct gcm_key *)0)->state, "the state must fit");

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

/* --- the choice --- */

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
