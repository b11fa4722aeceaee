/* Passes: 16 random bytes and as many of a keyed BLAKE2b hash of them. */
#include "net/pass.h"

#include <sodium.h>

void pass_keys_add(struct pass_keys *keys, const uint8_t *secret, size_t size)
{
    static const char purpose[] = "trainer: keys of passes";
    if (keys->count < PASS_KEYS) {
        crypto_generichash(keys->keys[keys->count++], sizeof keys->keys[0], secret, size, (const uint8_t *)purpose,
                           sizeof purpose - 1);
    }
}

static void authenticate(const uint8_t key[32], const uint8_t *half, uint8_t tag[PASS_SIZE / 2])
{
    crypto_generichash(tag, PASS_SIZE / 2, half, PASS_SIZE / 2, key, 32);
}

void pass_make(const struct pass_keys *keys, uint8_t pass[PASS_SIZE])
{
    randombytes_buf(pass, PASS_SIZE);
    if (keys->count > 0) {
        authenticate(keys->keys[0], pass, pass + PASS_SIZE / 2);
    }
}

bool pass_check(const struct pass_keys *keys, const uint8_t pass[PASS_SIZE])
{
    bool good = false;
    for (int i = 0; i < keys->count; i++) {
        uint8_t tag[PASS_SIZE / 2];
        authenticate(keys->keys[i], pass, tag);
        good |= sodium_memcmp(tag, pass + PASS_SIZE / 2, sizeof tag) == 0;
    }
    return good;
}
