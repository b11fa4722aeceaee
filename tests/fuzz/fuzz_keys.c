/*
 * Arbitrary key files: a fleet's or a member's in PEM, with a second, trusted one beside it; the operator's; and
 * minisign's with its signatures. Refused with a one-line message that names the file, or keys that accept the passes
 * that they make.
 */
#include "tests/fuzz/fuzz.h"

#include "net/credentials.h"
#include "net/operator_key.h"

FUZZ_MEMORY(16, 256 << 10)

static void check_credentials(const char *path)
{
    struct error error = {""};
    struct credentials *credentials;
    if (!credentials_load(&credentials, path, &error)) {
        check_beginning(&error, path);
        assert(!credentials);
        return;
    }
    const struct member member = credentials_member(credentials);
    const struct handshake_token_keys *keys = credentials_token_keys(credentials);
    uint8_t pass[HANDSHAKE_TOKEN_SIZE];
    assert(member.role >= MEMBER_NONE && member.role <= MEMBER_OPERATOR && member.index <= MEMBER_MAX_INDEX);
    assert(keys->count >= 0 && keys->count <= HANDSHAKE_TOKEN_KEYS);
    handshake_token_make(keys, pass);
    assert(handshake_token_check(keys, pass) == (keys->count > 0));
    credentials_free(credentials);
}

static void check_minisign(const uint8_t *bytes, size_t size)
{
    static const uint8_t digest[MINISIGN_DIGEST] = {1};
    static const struct minisign_key nobodys = {{1}, {2}};
    char *text = text_of(bytes, size), again[MINISIGN_KEY_TEXT];
    struct minisign_key key;
    struct minisign signature;
    struct error error = {""};
    if (minisign_key_parse(&key, text, &error)) {
        minisign_key_format(&key, again);
        assert(strstr(text, again)); /* the encoding is unique */
    } else {
        check_refusal(&error, "is not a minisign public key");
    }
    if (minisign_parse(&signature, text, &error)) {
        assert(strlen(signature.comment) < sizeof signature.comment && strstr(text, signature.comment));
        assert(!minisign_verify(&signature, &nobodys, digest, &error));
        check_refusal(&error, "was not signed");
        memcpy(signature.id, nobodys.id, sizeof signature.id);
        assert(!minisign_verify(&signature, &nobodys, digest, &error));
        check_refusal(&error, "differs from what");
    } else {
        check_refusal(&error, "is ");
    }
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    char path[300], beside[310];
    struct input input = input_of(bytes, size);
    struct error error = {""};
    uint8_t secret[OPERATOR_SECRET_KEY], open[OPERATOR_PUBLIC_KEY];
    size_t part_size;
    const uint8_t *part = input_part(&input, &part_size);
    snprintf(path, sizeof path, "%s/key", fuzz_folder());
    snprintf(beside, sizeof beside, "%s.next", path);
    fuzz_write(path, part, part_size);
    check_minisign(part, part_size);
    unlink(beside);
    if (input_left(&input) > 0) {
        part = input_part(&input, &part_size);
        fuzz_write(beside, part, part_size);
    }
    check_credentials(path);
    if (!operator_key_read_secret(path, secret, &error)) {
        check_beginning(&error, path);
    }
    if (!operator_key_read_public(path, open, &error)) {
        check_beginning(&error, path);
    }
    return 0;
}
