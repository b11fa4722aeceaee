/*
 * An arbitrary manifest: refused with a one-line message, or two configs within its bytes that match their digests. And
 * an abort and a list of revoked keys, treated as if the operator had signed these bytes, because otherwise they are
 * not even parsed.
 */
#include "tests/fuzz/fuzz.h"

#include <sodium.h>

#include "net/revocation.h"
#include "ps/rollout/manifest.h"
#include "tests/one_operator.h"

FUZZ_MEMORY(8, 16 << 10)

static void check_config(const struct manifest_config *config, const uint8_t *bytes, size_t size)
{
    assert((const uint8_t *)config->text >= bytes && config->text_size <= MANIFEST_MAX_CONFIG);
    assert((const uint8_t *)config->text + config->text_size <= bytes + size - MANIFEST_SIGNATURE);
    assert((const uint8_t *)config->local >= bytes && config->local_size <= MANIFEST_MAX_LOCAL);
    assert((const uint8_t *)config->local + config->local_size <= bytes + size - MANIFEST_SIGNATURE);
    assert(strlen(config->digest) == CONFIG_DIGEST_HEX);
}

static void check_abort(const uint8_t *bytes, size_t size)
{
    static uint8_t public_key[OPERATOR_PUBLIC_KEY], secret_key[OPERATOR_SECRET_KEY];
    static const uint8_t seed[crypto_sign_SEEDBYTES] = {1};
    uint8_t whole[MANIFEST_ABORT_BYTES];
    struct manifest_abort abort;
    struct error error = {""};
    if (size > sizeof whole - MANIFEST_SIGNATURE) {
        assert(!manifest_abort_decode(&abort, bytes, size, only(public_key), &error));
        return;
    }
    crypto_sign_seed_keypair(public_key, secret_key, seed);
    memcpy(whole, bytes, size);
    crypto_sign_detached(whole + size, NULL, whole, size, secret_key);
    if (manifest_abort_decode(&abort, whole, size + MANIFEST_SIGNATURE, only(public_key), &error)) {
        uint8_t again[MANIFEST_ABORT_BYTES];
        assert(manifest_abort_encode(&abort, secret_key, again) == size + MANIFEST_SIGNATURE);
        assert(memcmp(again, whole, size + MANIFEST_SIGNATURE) == 0); /* the encoding is unique */
    } else {
        check_refusal(&error, "the abort ");
    }
}

static void check_revoked(const uint8_t *bytes, size_t size)
{
    static uint8_t public_key[OPERATOR_PUBLIC_KEY], secret_key[OPERATOR_SECRET_KEY];
    static const uint8_t seed[crypto_sign_SEEDBYTES] = {1};
    static uint8_t whole[REVOCATION_MAX_BYTES], again[REVOCATION_MAX_BYTES];
    static struct revocation_list list;
    size_t again_size;
    char text[REVOCATION_TEXT];
    struct error error = {""};
    if (size > sizeof whole - OPERATOR_SIGNATURE) {
        assert(!revocation_decode(&list, bytes, size, only(public_key), &error));
        return;
    }
    crypto_sign_seed_keypair(public_key, secret_key, seed);
    memcpy(whole, bytes, size);
    crypto_sign_detached(whole + size, NULL, whole, size, secret_key);
    size += OPERATOR_SIGNATURE;
    if (!revocation_decode(&list, whole, size, only(public_key), &error)) {
        check_refusal(&error, "the list of revoked keys ");
        return;
    }
    assert(list.count <= REVOCATION_MAX_ENTRIES && list.number > 0 && list.signatures >= 1);
    for (int i = 0; i < list.count; i++) {
        revocation_describe(&list.entries[i], text);
    }
    if (list.signatures == 1) { /* the encoding is unique */
        assert(revocation_encode(&list, secret_key, again, &again_size, &error));
        assert(again_size == size && memcmp(again, whole, size) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static const uint8_t key[OPERATOR_PUBLIC_KEY] = {1};
    struct error error = {""};
    struct manifest manifest;
    if (manifest_decode_unsigned(&manifest, bytes, size, &error)) {
        assert(strlen(manifest.fleet) <= MANIFEST_MAX_NAME && strlen(manifest.author) <= MANIFEST_MAX_NAME);
        assert(manifest.target.version > manifest.fallback.version);
        check_config(&manifest.target, bytes, size);
        check_config(&manifest.fallback, bytes, size);
    } else {
        check_refusal(&error, "the manifest ");
    }
    error.text[0] = '\0';
    assert(!manifest_decode(&manifest, bytes, size, only(key), &error)); /* nobody has the key to sign this */
    check_refusal(&error, "the manifest ");
    check_abort(bytes, size);
    check_revoked(bytes, size);
    return 0;
}
