#include "ps/rollout/manifest.h"

#include <stdlib.h>
#include <string.h>

#include <sodium.h>

#include "net/bytes.h"

static const char magic[] = "trainer rollout manifest 2\n";

enum { MAGIC = sizeof magic - 1, DIGEST = CONFIG_DIGEST_HEX / 2, FLAG_MAY_LOSE = 1 };

/* Bytes not yet taken. */
struct rest {
    const uint8_t *bytes;
    size_t size;
};

static const uint8_t *take(struct rest *rest, size_t size)
{
    const uint8_t *bytes = rest->bytes;
    if (size > rest->size) {
        return NULL;
    }
    rest->bytes += size;
    rest->size -= size;
    return bytes;
}

static bool take_u64(struct rest *rest, uint64_t *number)
{
    const uint8_t *bytes = take(rest, sizeof *number);
    if (bytes != NULL) {
        *number = get_le64(bytes);
    }
    return bytes != NULL;
}

/* u32 size, and so many bytes: at most `limit`. */
static const char *take_text(struct rest *rest, size_t limit, size_t *size)
{
    const uint8_t *bytes = take(rest, sizeof(uint32_t));
    *size = bytes != NULL ? get_le32(bytes) : 0;
    bytes = bytes != NULL && *size <= limit ? take(rest, *size) : NULL;
    return bytes != NULL && memchr(bytes, 0, *size) == NULL ? (const char *)bytes : NULL;
}

static bool take_name(struct rest *rest, char name[MANIFEST_MAX_NAME + 1])
{
    size_t size;
    const char *text = take_text(rest, MANIFEST_MAX_NAME, &size);
    if (text != NULL) {
        memcpy(name, text, size);
        name[size] = '\0';
    }
    return text != NULL;
}

static void digest_of(const char *text, size_t size, uint8_t digest[DIGEST])
{
    crypto_generichash(digest, DIGEST, (const uint8_t *)text, size, NULL, 0);
}

static bool take_config(struct rest *rest, struct manifest_config *config, const char *what, struct error *error)
{
    uint8_t computed[DIGEST];
    const uint8_t *digest = NULL;
    if (take_u64(rest, &config->version)) {
        digest = take(rest, DIGEST);
    }
    config->text = digest != NULL ? take_text(rest, MANIFEST_MAX_CONFIG, &config->text_size) : NULL;
    if (config->text == NULL) {
        return error_set(error, "the manifest is torn: it ends in its %s, or holds too large a one", what);
    }
    digest_of(config->text, config->text_size, computed);
    if (memcmp(computed, digest, DIGEST) != 0) {
        return error_set(error, "the manifest is damaged: its %s is not what its digest says", what);
    }
    sodium_bin2hex(config->digest, sizeof config->digest, digest, DIGEST);
    config->local = take_text(rest, MANIFEST_MAX_LOCAL, &config->local_size);
    return config->local != NULL ||
           error_set(error, "the manifest is torn: it ends in its %s, or holds too large a one", what);
}

bool manifest_decode_unsigned(struct manifest *manifest, const uint8_t *bytes, size_t size, struct error *error)
{
    struct rest rest = {bytes, size};
    memset(manifest, 0, sizeof *manifest);
    const uint8_t *head = take(&rest, MAGIC);
    if (head == NULL || memcmp(head, magic, MAGIC) != 0) {
        return error_set(error, "the manifest is none: it does not begin as one");
    }
    if (!take_name(&rest, manifest->fleet) || !take_name(&rest, manifest->author) ||
        !take_u64(&rest, &manifest->signed_s) || (head = take(&rest, sizeof(uint32_t))) == NULL) {
        return error_set(error, "the manifest is torn: it ends in its head");
    }
    const uint32_t flags = get_le32(head);
    if ((flags & ~(uint32_t)FLAG_MAY_LOSE) != 0) {
        return error_set(error, "the manifest has flags %u, which this program does not know: is it an older one?",
                         flags);
    }
    manifest->may_lose = (flags & FLAG_MAY_LOSE) != 0;
    if (!take_config(&rest, &manifest->target, "target", error) ||
        !take_config(&rest, &manifest->fallback, "fallback", error)) {
        return false;
    }
    if (rest.size != MANIFEST_SIGNATURE) {
        return error_set(error, "the manifest is torn: %zu bytes stand where a signature of %d is due", rest.size,
                         MANIFEST_SIGNATURE);
    }
    if (manifest->target.version <= manifest->fallback.version) {
        return error_set(error, "the manifest leads from version %llu to version %llu, and versions only go up",
                         (unsigned long long)manifest->fallback.version, (unsigned long long)manifest->target.version);
    }
    return true;
}

bool manifest_decode(struct manifest *manifest, const uint8_t *bytes, size_t size,
                     const uint8_t public_key[OPERATOR_PUBLIC_KEY], struct error *error)
{
    if (size < MAGIC + MANIFEST_SIGNATURE) {
        return error_set(error, "the manifest is torn: %zu bytes are too few for one", size);
    }
    if (size > MANIFEST_MAX_BYTES) {
        return error_set(error, "the manifest is too large: %zu bytes, and at most %d are allowed", size,
                         MANIFEST_MAX_BYTES);
    }
    size_t signed_bytes = size - MANIFEST_SIGNATURE;
    if (crypto_sign_verify_detached(bytes + signed_bytes, bytes, signed_bytes, public_key) != 0) {
        return error_set(error,
                         "the manifest is not signed by the operator key that this member trusts, or it is torn");
    }
    return manifest_decode_unsigned(manifest, bytes, size, error);
}

static uint8_t *put(uint8_t *to, const void *bytes, size_t size)
{
    memcpy(to, bytes, size);
    return to + size;
}

static uint8_t *put_number(uint8_t *to, uint64_t number)
{
    put_le64(to, number);
    return to + sizeof number;
}

/* text: NULL if the size is 0. */
static uint8_t *put_text(uint8_t *to, const char *text, size_t size)
{
    put_le32(to, (uint32_t)size);
    to += sizeof(uint32_t);
    return size > 0 ? put(to, text, size) : to;
}

static uint8_t *put_config(uint8_t *to, struct manifest_config *config)
{
    uint8_t digest[DIGEST];
    digest_of(config->text, config->text_size, digest);
    sodium_bin2hex(config->digest, sizeof config->digest, digest, DIGEST);
    to = put_text(put(put_number(to, config->version), digest, DIGEST), config->text, config->text_size);
    return put_text(to, config->local, config->local_size);
}

bool manifest_encode(struct manifest *manifest, const uint8_t secret_key[OPERATOR_SECRET_KEY], uint8_t **bytes,
                     size_t *size, struct error *error)
{
    if (manifest->target.text_size > MANIFEST_MAX_CONFIG || manifest->fallback.text_size > MANIFEST_MAX_CONFIG) {
        return error_set(error, "the job's config is larger than %d bytes: it can't be rolled out",
                         MANIFEST_MAX_CONFIG);
    }
    if (manifest->target.local_size > MANIFEST_MAX_LOCAL || manifest->fallback.local_size > MANIFEST_MAX_LOCAL) {
        return error_set(error, "the keys of single machines take more than %d bytes: they can't be rolled out",
                         MANIFEST_MAX_LOCAL);
    }
    uint8_t *start = malloc(MANIFEST_MAX_BYTES);
    if (start == NULL) {
        return error_set(error, "out of memory");
    }
    uint8_t *end = put(start, magic, MAGIC);
    end = put_text(end, manifest->fleet, strlen(manifest->fleet));
    end = put_text(end, manifest->author, strlen(manifest->author));
    end = put_number(end, manifest->signed_s);
    put_le32(end, manifest->may_lose ? FLAG_MAY_LOSE : 0);
    end += sizeof(uint32_t);
    end = put_config(put_config(end, &manifest->target), &manifest->fallback);
    crypto_sign_detached(end, NULL, start, (unsigned long long)(end - start), secret_key);
    *bytes = start;
    *size = (size_t)(end - start) + MANIFEST_SIGNATURE;
    return true;
}

bool manifest_fits(const struct manifest *manifest, const char *fleet, uint64_t version, uint64_t highest,
                   struct error *error)
{
    if (strcmp(manifest->fleet, fleet) != 0) {
        return error_set(error, "the manifest is for fleet \"%s\", and this is fleet \"%s\"", manifest->fleet, fleet);
    }
    if (manifest->target.version <= version || manifest->target.version <= highest) {
        return error_set(error,
                         "the manifest is old: it leads to version %llu, and version %llu was here already; give the "
                         "new config a higher fleet.version",
                         (unsigned long long)manifest->target.version,
                         (unsigned long long)(version > highest ? version : highest));
    }
    if (manifest->fallback.version != version) {
        return error_set(error, "the manifest goes back to version %llu, and this fleet runs version %llu",
                         (unsigned long long)manifest->fallback.version, (unsigned long long)version);
    }
    return true;
}
