/*
 * AES-256-GCM by each implementation: the specification's vectors, libsodium's compared with the others on all sizes,
 * nothing altered passes.
 */
#include "net/tls/gcm.h"
#include "tests/check.h"

#include <stdlib.h>
#include <string.h>

#include <sodium.h>

#include "tests/net/tls/vectors.h"
#include "tests/random.h"

enum { MOST = 16385, MOST_ADDITIONAL = 100 };

static struct test_random test_seed;

static int start(void **state)
{
    return sodium_init() < 0;
}

static const char *const names[GCM_CODES] = {"libsodium", "vectors of 256 bits", "vectors of 512 bits"};

/* Can this processor run it? Prints a note if not. */
static bool runs(enum gcm_code code)
{
    if (gcm_is_available() && gcm_has(code)) {
        return true;
    }
    print_message("[  SKIPPED ] AES-GCM by %s: this processor has no such AES instructions\n", names[code]);
    return false;
}

TEST(vectors_of_the_specification)
{
    for (enum gcm_code code = 0; code < GCM_CODES; code++) {
        for (size_t i = 0; runs(code) && i < GCM_VECTORS; i++) {
            const struct vector *vector = &gcm_vectors[i];
            uint8_t bytes[256], nonce[256], additional[256], plain[256], sealed[256], expected[256], tag[256],
                got[GCM_TAG_BYTES];
            struct gcm_key key;
            unhex(vector->key, bytes);
            unhex(vector->nonce, nonce);
            size_t additional_size = unhex(vector->additional, additional), size = unhex(vector->plain, plain);
            unhex(vector->cipher, expected);
            unhex(vector->tag, tag);
            gcm_key_set(&key, bytes, code);
            gcm_seal(&key, nonce, additional, additional_size, plain, size, sealed, got);
            assert_memory_equal(sealed, expected, size);
            assert_memory_equal(got, tag, GCM_TAG_BYTES);
            assert_true(gcm_open(&key, nonce, additional, additional_size, sealed, size, tag, sealed));
            assert_memory_equal(sealed, plain, size);
        }
    }
}

static void fill(uint8_t *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        bytes[i] = (uint8_t)test_random_below(&test_seed, 256);
    }
}

/* All make the same record, in place and not; the key needs no alignment beyond malloc's. */
static void check_size(enum gcm_code code, size_t size)
{
    static uint8_t plain[MOST], sealed[2][MOST], opened[MOST];
    uint8_t bytes[GCM_KEY_BYTES], nonce[GCM_NONCE_BYTES], additional[MOST_ADDITIONAL], tags[2][GCM_TAG_BYTES];
    size_t additional_size = (size_t)test_random_below(&test_seed, MOST_ADDITIONAL + 1);
    _Alignas(64) uint8_t room[sizeof(struct gcm_key) + 64];
    struct gcm_key *fast = (struct gcm_key *)(void *)(room + 16 * test_random_below(&test_seed, 4)), slow;
    fill(bytes, sizeof bytes);
    fill(nonce, sizeof nonce);
    fill(additional, sizeof additional);
    fill(plain, size);
    gcm_key_set(fast, bytes, code);
    gcm_key_set(&slow, bytes, GCM_LIBSODIUM);
    gcm_seal(&slow, nonce, additional, additional_size, plain, size, sealed[0], tags[0]);
    memcpy(sealed[1], plain, size);
    gcm_seal(fast, nonce, additional, additional_size, sealed[1], size, sealed[1], tags[1]);
    assert_memory_equal(sealed[0], sealed[1], size);
    assert_memory_equal(tags[0], tags[1], GCM_TAG_BYTES);
    assert_true(gcm_open(fast, nonce, additional, additional_size, sealed[0], size, tags[0], opened));
    assert_memory_equal(opened, plain, size);
    assert_true(gcm_open(&slow, nonce, additional, additional_size, sealed[1], size, tags[1], sealed[1]));
    assert_memory_equal(sealed[1], plain, size);
}

TEST(all_make_the_same_bytes)
{
    for (enum gcm_code code = GCM_LIBSODIUM + 1; code < GCM_CODES; code++) {
        if (!runs(code)) {
            continue;
        }
        for (size_t size = 0; size <= 1100; size++) {
            check_size(code, size);
        }
        for (int i = 0; i < 200; i++) {
            check_size(code, (size_t)test_random_below(&test_seed, MOST + 1));
        }
        check_size(code, MOST);
    }
}

TEST(the_fastest_is_chosen)
{
    if (!gcm_is_available()) {
        skip();
    }
    const enum gcm_code fastest = gcm_fastest();
    assert_true(gcm_has(fastest));
    for (enum gcm_code code = fastest + 1; code < GCM_CODES; code++) {
        assert_false(gcm_has(code));
    }
}

static void flip(uint8_t *bytes, size_t size)
{
    bytes[test_random_below(&test_seed, (int)size)] ^= (uint8_t)(1 << test_random_below(&test_seed, 8));
}

TEST(nothing_altered_passes)
{
    static uint8_t sealed[MOST], opened[MOST];
    for (enum gcm_code code = 0; code < GCM_CODES; code++) {
        for (int i = 0; runs(code) && i < 500; i++) {
            uint8_t bytes[GCM_KEY_BYTES], nonce[GCM_NONCE_BYTES], additional[5], tag[GCM_TAG_BYTES];
            size_t size = 1 + (size_t)test_random_below(&test_seed, i % 10 ? 300 : MOST);
            struct gcm_key key;
            fill(bytes, sizeof bytes);
            fill(nonce, sizeof nonce);
            fill(additional, sizeof additional);
            fill(sealed, size);
            gcm_key_set(&key, bytes, code);
            gcm_seal(&key, nonce, additional, sizeof additional, sealed, size, sealed, tag);
            assert_true(gcm_open(&key, nonce, additional, sizeof additional, sealed, size, tag, opened));
            switch (test_random_below(&test_seed, 4)) {
            case 0:
                flip(sealed, size);
                break;
            case 1:
                flip(tag, sizeof tag);
                break;
            case 2:
                flip(additional, sizeof additional);
                break;
            default:
                flip(nonce, sizeof nonce);
                break;
            }
            assert_false(gcm_open(&key, nonce, additional, sizeof additional, sealed, size, tag, opened));
        }
    }
}

int main(void)
{
    test_seed = test_random_begin("test_gcm");
    return check_run(start, NULL);
}
