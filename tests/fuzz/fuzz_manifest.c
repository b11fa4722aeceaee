/*
 * A manifest from anywhere: refused with one line, or two configs that lie in its bytes and are what their digests say.
 */
#include <assert.h>
#include <string.h>

#include "ps/rollout/manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void check_config(const struct manifest_config *config, const uint8_t *bytes, size_t size)
{
    assert((const uint8_t *)config->text >= bytes && config->text_size <= MANIFEST_MAX_CONFIG);
    assert((const uint8_t *)config->text + config->text_size <= bytes + size - MANIFEST_SIGNATURE);
    assert((const uint8_t *)config->local >= bytes && config->local_size <= MANIFEST_MAX_LOCAL);
    assert((const uint8_t *)config->local + config->local_size <= bytes + size - MANIFEST_SIGNATURE);
    assert(strlen(config->digest) == CONFIG_DIGEST_HEX);
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
        assert(strncmp(error.text, "the manifest ", 13) == 0 && !strchr(error.text, '\n'));
    }
    error.text[0] = '\0';
    assert(!manifest_decode(&manifest, bytes, size, key, &error)); /* nobody has the key that would sign this */
    assert(strncmp(error.text, "the manifest ", 13) == 0);
    return 0;
}
