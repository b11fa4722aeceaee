/* Two libraries behind one interface, chosen by what the processor has; both give the same bytes. */
#include "net/tls/gcm.h"

#include <assert.h>

#include <sodium.h>

#include "base/cpu.h"

static_assert(sizeof(crypto_aead_aes256gcm_state) <= sizeof((struct gcm_key *)0)->state, "the state must fit");

static crypto_aead_aes256gcm_state *narrow_state(const struct gcm_key *key)
{
    return (crypto_aead_aes256gcm_state *)(void *)(uintptr_t)key->state;
}

#if defined(__x86_64__)
#include <intel-ipsec-mb.h>

static_assert(sizeof(struct gcm_key_data) <= sizeof((struct gcm_key *)0)->state, "the state must fit");

/*
 * As the library's own header declares their siblings for other instruction sets (aes_gcm_enc_256_sse ...): its public
 * way to these is a table of everything it has, ten times as large as all of this program.
 */
void aes_gcm_precomp_256_vaes_avx512(struct gcm_key_data *key);
void aes_gcm_enc_256_vaes_avx512(const struct gcm_key_data *key, struct gcm_context_data *context, uint8_t *out,
                                 const uint8_t *in, uint64_t size, const uint8_t *nonce, const uint8_t *additional,
                                 uint64_t additional_size, uint8_t *tag, uint64_t tag_size);
void aes_gcm_dec_256_vaes_avx512(const struct gcm_key_data *key, struct gcm_context_data *context, uint8_t *out,
                                 const uint8_t *in, uint64_t size, const uint8_t *nonce, const uint8_t *additional,
                                 uint64_t additional_size, uint8_t *tag, uint64_t tag_size);

static struct gcm_key_data *wide_state(const struct gcm_key *key)
{
    return (struct gcm_key_data *)(void *)(uintptr_t)key->state;
}

bool gcm_is_wide(void)
{
    const struct cpu_features *cpu = cpu_features_get();
    return cpu->avx512 && cpu->vaes;
}

const char *gcm_wide_library(void)
{
    return ", IPsec-MB " IMB_VERSION_STR;
}

static void wide_set(struct gcm_key *key, const uint8_t *bytes)
{
    aes_keyexp_256_enc_avx512(bytes, wide_state(key)->expanded_keys);
    aes_gcm_precomp_256_vaes_avx512(wide_state(key));
}

static void wide_seal(const struct gcm_key *key, const uint8_t *nonce, const uint8_t *additional,
                      size_t additional_size, const uint8_t *plain, size_t size, uint8_t *sealed, uint8_t *tag)
{
    struct gcm_context_data context;
    aes_gcm_enc_256_vaes_avx512(wide_state(key), &context, sealed, plain, size, nonce, additional, additional_size, tag,
                                GCM_TAG_BYTES);
    sodium_memzero(&context, sizeof context);
}

static bool wide_open(const struct gcm_key *key, const uint8_t *nonce, const uint8_t *additional,
                      size_t additional_size, const uint8_t *sealed, size_t size, const uint8_t *tag, uint8_t *plain)
{
    struct gcm_context_data context;
    uint8_t expected[GCM_TAG_BYTES];
    aes_gcm_dec_256_vaes_avx512(wide_state(key), &context, plain, sealed, size, nonce, additional, additional_size,
                                expected, GCM_TAG_BYTES);
    bool same = sodium_memcmp(expected, tag, GCM_TAG_BYTES) == 0;
    sodium_memzero(&context, sizeof context);
    sodium_memzero(expected, sizeof expected);
    return same;
}
#else
bool gcm_is_wide(void)
{
    return false;
}

const char *gcm_wide_library(void)
{
    return "";
}

static void wide_set(struct gcm_key *key, const uint8_t *bytes)
{
    (void)key, (void)bytes;
}

static void wide_seal(const struct gcm_key *key, const uint8_t *nonce, const uint8_t *additional,
                      size_t additional_size, const uint8_t *plain, size_t size, uint8_t *sealed, uint8_t *tag)
{
    (void)key, (void)nonce, (void)additional, (void)additional_size, (void)plain, (void)size, (void)sealed, (void)tag;
}

static bool wide_open(const struct gcm_key *key, const uint8_t *nonce, const uint8_t *additional,
                      size_t additional_size, const uint8_t *sealed, size_t size, const uint8_t *tag, uint8_t *plain)
{
    (void)key, (void)nonce, (void)additional, (void)additional_size, (void)sealed, (void)size, (void)tag, (void)plain;
    return false;
}
#endif

void gcm_key_set(struct gcm_key *key, const uint8_t bytes[GCM_KEY_BYTES], bool wide)
{
    assert(!wide || gcm_is_wide());
    key->wide = wide;
    if (wide) {
        wide_set(key, bytes);
    } else {
        crypto_aead_aes256gcm_beforenm(narrow_state(key), bytes);
    }
}

void gcm_seal(const struct gcm_key *key, const uint8_t nonce[GCM_NONCE_BYTES], const uint8_t *additional,
              size_t additional_size, const uint8_t *plain, size_t size, uint8_t *sealed, uint8_t tag[GCM_TAG_BYTES])
{
    if (key->wide) {
        wide_seal(key, nonce, additional, additional_size, plain, size, sealed, tag);
    } else {
        crypto_aead_aes256gcm_encrypt_detached_afternm(sealed, tag, NULL, plain, size, additional, additional_size,
                                                       NULL, nonce, narrow_state(key));
    }
}

bool gcm_open(const struct gcm_key *key, const uint8_t nonce[GCM_NONCE_BYTES], const uint8_t *additional,
              size_t additional_size, const uint8_t *sealed, size_t size, const uint8_t tag[GCM_TAG_BYTES],
              uint8_t *plain)
{
    return key->wide ? wide_open(key, nonce, additional, additional_size, sealed, size, tag, plain)
                     : crypto_aead_aes256gcm_decrypt_detached_afternm(plain, NULL, sealed, size, tag, additional,
                                                                      additional_size, nonce, narrow_state(key)) == 0;
}
