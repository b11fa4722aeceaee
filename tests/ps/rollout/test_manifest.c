/* Manifests: signed, intact, for this fleet, and newer; anything else is refused with the reason. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"
#include <sodium.h>

#include "ps/rollout/manifest.h"
#include "tests/one_operator.h"

static uint8_t public_key[OPERATOR_PUBLIC_KEY], secret_key[OPERATOR_SECRET_KEY];

static void make(const char *fleet, uint64_t from, uint64_t to, uint8_t **bytes, size_t *size)
{
    struct error error;
    struct manifest manifest = {
        .author = "me@desk",
        .signed_s = 1700000000,
        .expires_s = 1700003600,
        .may_lose = true,
        .target = {.version = to, .text = "{\"a\":1}", .text_size = 7, .local = "{\"b\":2}", .local_size = 7},
        .fallback = {.version = from, .text = "{\"a\":22}", .text_size = 8}};
    snprintf(manifest.fleet, sizeof manifest.fleet, "%s", fleet);
    assert_true(manifest_encode(&manifest, secret_key, bytes, size, &error));
}

static int make_keys(void **state)
{
    return sodium_init() < 0 || crypto_sign_keypair(public_key, secret_key) != 0;
}

TEST(comes_back_as_it_went)
{
    uint8_t *bytes;
    size_t size;
    struct manifest manifest;
    struct error error;
    make("north", 4, 5, &bytes, &size);
    assert_true(manifest_decode(&manifest, bytes, size, only(public_key), &error));
    assert_string_equal(manifest.fleet, "north");
    assert_string_equal(manifest.author, "me@desk");
    assert_int_equal(manifest.signed_s, 1700000000);
    assert_int_equal(manifest.expires_s, 1700003600);
    assert_int_equal(manifest.target.version, 5);
    assert_int_equal(manifest.fallback.version, 4);
    assert_memory_equal(manifest.target.text, "{\"a\":1}", 7);
    assert_int_equal(manifest.fallback.text_size, 8);
    assert_memory_equal(manifest.target.local, "{\"b\":2}", 7);
    assert_int_equal(manifest.fallback.local_size, 0);
    assert_true(manifest.may_lose);
    assert_int_equal(strlen(manifest.target.digest), CONFIG_DIGEST_HEX);
    free(bytes);
}

/* By the clock of whoever looks; one that was never set is before every expiry. */
TEST(a_manifest_expires)
{
    struct error error;
    struct manifest manifest = {.signed_s = 1700000000, .expires_s = 1700003600};
    assert_true(manifest_is_current(&manifest, false, 1700003599, &error));
    assert_false(manifest_is_current(&manifest, false, 1700003600, &error));
    assert_string_equal(error.text, "the manifest expired at 2023-11-14T23:13:20Z, and this machine's clock says "
                                    "2023-11-14T23:13:20Z: roll the config out again, or set the clock");
    assert_true(manifest_is_current(&manifest, true, 1700003600 + 86399, &error));
    assert_false(manifest_is_current(&manifest, true, 1700003600 + 86400, &error));
    assert_true(manifest_is_current(&manifest, false, 12, &error));
    manifest.expires_s = 0;
    assert_true(manifest_is_current(&manifest, false, 1e18, &error));
}

/* Every byte is covered by the signature, and no prefix is accepted. */
TEST(any_other_byte_is_refused)
{
    uint8_t *bytes;
    size_t size;
    struct manifest manifest;
    struct error error;
    make("north", 4, 5, &bytes, &size);
    for (size_t i = 0; i < size; i++) {
        bytes[i] ^= 0x10;
        assert_false(manifest_decode(&manifest, bytes, size, only(public_key), &error));
        assert_non_null(strstr(error.text, "is not signed by the operator key"));
        bytes[i] ^= 0x10;
        assert_false(manifest_decode(&manifest, bytes, i, only(public_key), &error));
        assert_memory_equal(error.text, "the manifest ", 13);
        struct manifest ignored;
        assert_false(manifest_decode_unsigned(&ignored, bytes, i, &error));
    }
    uint8_t other[OPERATOR_PUBLIC_KEY], unused[OPERATOR_SECRET_KEY];
    crypto_sign_keypair(other, unused);
    assert_false(manifest_decode(&manifest, bytes, size, only(other), &error));
    free(bytes);
}

TEST(a_digest_that_lies_is_refused_although_signed)
{
    uint8_t *bytes;
    size_t size;
    struct manifest manifest;
    struct error error;
    make("north", 4, 5, &bytes, &size);
    bytes[size - MANIFEST_SIGNATURE - sizeof(uint32_t) - 2] ^= 1; /* in the fallback's text */
    crypto_sign_detached(bytes + size - MANIFEST_SIGNATURE, NULL, bytes, size - MANIFEST_SIGNATURE, secret_key);
    assert_false(manifest_decode(&manifest, bytes, size, only(public_key), &error));
    assert_non_null(strstr(error.text, "its fallback is not what its digest says"));
    free(bytes);
    make("north", 4, 5, &bytes, &size); /* flags of a future program */
    bytes[27 + 4 + 5 + 4 + 7 + 8 + 8] = 4;
    crypto_sign_detached(bytes + size - MANIFEST_SIGNATURE, NULL, bytes, size - MANIFEST_SIGNATURE, secret_key);
    assert_false(manifest_decode(&manifest, bytes, size, only(public_key), &error));
    assert_non_null(strstr(error.text, "flags 4"));
    free(bytes);
}

TEST(programs_come_back_as_they_went)
{
    uint8_t *bytes;
    size_t size;
    struct error error;
    struct manifest manifest = {
        .fleet = "north",
        .target = {.version = 5, .text = "{\"a\":1}", .text_size = 7},
        .fallback = {.version = 4, .text = "{\"a\":1}", .text_size = 7},
        .programs = {.count = 2,
                     .items = {{.architecture = "x86_64", .size = 1000}, {.architecture = "aarch64", .size = 2000}},
                     .protocol = 2,
                     .rate_kib = 77,
                     .waves = {.count = 3,
                               .items = {1, ROLLOUT_PERCENT | 10, ROLLOUT_PERCENT | 100},
                               .budget = ROLLOUT_PERCENT | 5,
                               .least_speed = 60}}};
    struct manifest_program *items = manifest.programs.items;
    checked_digest((const uint8_t *)"one", 3, items[0].digest);
    checked_digest((const uint8_t *)"two", 3, items[1].digest);
    checked_digest((const uint8_t *)"before", 6, items[1].fallback);
    assert_true(manifest_encode(&manifest, secret_key, &bytes, &size, &error));
    struct manifest got;
    assert_true(manifest_decode(&got, bytes, size, only(public_key), &error));
    assert_int_equal(got.programs.count, 2);
    assert_int_equal(got.programs.protocol, 2);
    assert_int_equal(got.programs.rate_kib, 77);
    assert_int_equal(got.programs.waves.count, 3);
    assert_int_equal(got.programs.waves.items[1], ROLLOUT_PERCENT | 10);
    assert_int_equal(got.programs.waves.budget, ROLLOUT_PERCENT | 5);
    assert_int_equal(got.programs.waves.least_speed, 60);
    assert_true(manifest_brings_programs(&got));
    const struct manifest_program *program = manifest_program_for(&got.programs, "aarch64");
    assert_non_null(program);
    assert_int_equal(program->size, 2000);
    assert_string_equal(program->digest, items[1].digest);
    assert_string_equal(program->fallback, items[1].fallback);
    assert_string_equal(got.programs.items[0].fallback, "");
    assert_ptr_equal(manifest_program_by_digest(&got.programs, items[0].digest), &got.programs.items[0]);
    assert_null(manifest_program_for(&got.programs, "mips"));
    for (size_t i = 0; i < size; i++) {
        assert_false(manifest_decode_unsigned(&got, bytes, i, &error));
    }
    free(bytes);
    memcpy(items[0].fallback, items[0].digest, sizeof items[0].digest);
    memcpy(items[1].fallback, items[1].digest, sizeof items[1].digest);
    assert_false(manifest_brings_programs(&manifest)); /* a config only, for the programs in force */
}

TEST(programs_that_make_no_sense_are_refused)
{
    uint8_t *bytes;
    size_t size;
    struct error error;
    struct manifest got;
    for (int wrong = 0; wrong < 5; wrong++) {
        struct manifest manifest = {
            .fleet = "north",
            .target = {.version = 5, .text = "{}", .text_size = 2},
            .fallback = {.version = 4, .text = "{}", .text_size = 2},
            .programs = {.count = 2,
                         .items = {{.architecture = "x86_64", .size = 1000}, {.architecture = "aarch64", .size = 1}}}};
        struct manifest_program *last = &manifest.programs.items[1];
        checked_digest((const uint8_t *)"one", 3, manifest.programs.items[0].digest);
        checked_digest((const uint8_t *)"two", 3, last->digest);
        switch (wrong) {
        case 0:
            last->size = 0;
            break;
        case 1:
            last->size = (uint64_t)PROGRAM_MAX_BYTES + 1;
            break;
        case 2:
            snprintf(last->architecture, sizeof last->architecture, "x86_64"); /* twice */
            break;
        case 3:
            manifest.programs.waves.least_speed = 101;
            break;
        default:
            last->digest[0] = '\0';
            break;
        }
        assert_true(manifest_encode(&manifest, secret_key, &bytes, &size, &error));
        assert_false(manifest_decode(&got, bytes, size, only(public_key), &error));
        assert_non_null(strstr(error.text, "in its programs"));
        free(bytes);
    }
}

TEST(versions_only_go_up)
{
    uint8_t *bytes;
    size_t size;
    struct manifest manifest;
    struct error error;
    make("north", 5, 5, &bytes, &size);
    assert_false(manifest_decode(&manifest, bytes, size, only(public_key), &error));
    assert_non_null(strstr(error.text, "versions only go up"));
    free(bytes);
    make("north", 4, 5, &bytes, &size);
    assert_true(manifest_decode(&manifest, bytes, size, only(public_key), &error));
    assert_true(manifest_fits(&manifest, "north", 4, 4, &error));
    assert_false(manifest_fits(&manifest, "south", 4, 4, &error));
    assert_non_null(strstr(error.text, "for fleet \"north\", but this is fleet \"south\""));
    assert_false(manifest_fits(&manifest, "north", 5, 4, &error));
    assert_non_null(strstr(error.text, "is old"));
    assert_false(manifest_fits(&manifest, "north", 4, 5, &error)); /* tried before, and rolled back */
    assert_non_null(strstr(error.text, "version 5 was here already"));
    assert_false(manifest_fits(&manifest, "north", 3, 3, &error));
    assert_non_null(strstr(error.text, "goes back to version 4, but this fleet runs version 3"));
    free(bytes);
}

/* An abort is signed as a whole, too, and so is a resume; neither passes for the other, nor does a manifest. */
static void check_word(bool resumes)
{
    uint8_t bytes[MANIFEST_ABORT_BYTES], other[OPERATOR_PUBLIC_KEY], unused[OPERATOR_SECRET_KEY], *manifest;
    size_t manifest_size;
    struct manifest_abort abort = {.resumes = resumes,
                                   .fleet = "north",
                                   .author = "me@desk",
                                   .signed_s = 1700000000,
                                   .target = 5},
                          read;
    struct error error;
    make("north", 4, 5, &manifest, &manifest_size);
    manifest_hash(manifest, manifest_size, abort.hash);
    const size_t size = manifest_abort_encode(&abort, secret_key, bytes);
    assert_true(manifest_abort_decode(&read, bytes, size, only(public_key), &error));
    assert_string_equal(read.fleet, "north");
    assert_string_equal(read.author, "me@desk");
    assert_int_equal(read.signed_s, 1700000000);
    assert_int_equal(read.target, 5);
    assert_int_equal(read.resumes, resumes);
    assert_memory_equal(read.hash, abort.hash, MANIFEST_HASH);
    for (size_t i = 0; i < size; i++) {
        bytes[i] ^= 0x10;
        assert_false(manifest_abort_decode(&read, bytes, size, only(public_key), &error));
        assert_non_null(strstr(error.text, "is not signed by the operator key"));
        bytes[i] ^= 0x10;
        assert_false(manifest_abort_decode(&read, bytes, i, only(public_key), &error));
        assert_memory_equal(error.text, "the abort ", 10);
    }
    assert_false(manifest_abort_decode(&read, manifest, manifest_size, only(public_key), &error));
    struct manifest ignored;
    assert_false(manifest_decode(&ignored, bytes, size, only(public_key), &error));
    crypto_sign_keypair(other, unused);
    assert_false(manifest_abort_decode(&read, bytes, size, only(other), &error));
    free(manifest);
    /* The longest names fit. */
    memset(abort.fleet, 'f', MANIFEST_MAX_NAME);
    memset(abort.author, 'a', MANIFEST_MAX_NAME);
    assert_true(manifest_abort_encode(&abort, secret_key, bytes) <= MANIFEST_ABORT_BYTES);
}

TEST(an_abort_is_signed)
{
    check_word(false);
    check_word(true);
}

TEST(machines_keep_what_is_their_own)
{
    static const char *const own[] = {"{\"output\":{\"profile\":\"p\"}}",
                                      "{\"output\":{\"train_dir\":\"t\"}}",
                                      "{\"output\":{\"summary_dir\":\"s\"}}",
                                      "{\"cluster\":{\"bind\":\"0.0.0.0\"}}",
                                      "{\"security\":{\"fleet_key\":\"k\"}}",
                                      "{\"cluster\":{\"task_index\":3}}",
                                      "{\"train\":{\"warm_start\":\"w\"}}",
                                      "{\"train\":{\"batch_size\":1}}",
                                      "{\"train\":{\"num_threads\":2},\"output\":{\"profile\":\"p\"}}"};
    struct error error;
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        const struct manifest_config bad = {.local = own[i], .local_size = strlen(own[i])};
        assert_false(manifest_is_portable(&(struct manifest){.target = bad}, &error));
        assert_non_null(strstr(error.text, "target sets "));
        assert_non_null(strstr(error.text, "belongs to each machine and can't be rolled out"));
        assert_false(manifest_is_portable(&(struct manifest){.fallback = bad}, &error));
        assert_non_null(strstr(error.text, "fallback sets "));
    }
    const char *fine =
        "{\"train\":{\"num_threads\":2,\"device\":\"cpu\"},\"data\":{\"data_dir\":\"d\",\"memory_mb\":9}}";
    const struct manifest_config good = {.local = fine, .local_size = strlen(fine)};
    assert_true(manifest_is_portable(&(struct manifest){.target = good, .fallback = good}, &error));
    assert_true(manifest_is_portable(&(struct manifest){.target = good}, &error));
    const struct manifest_config torn = {.local = fine, .local_size = 9};
    assert_false(manifest_is_portable(&(struct manifest){.target = torn}, &error));
}

/* Exactly as large as the header says. */
TEST(sizes_are_bounded)
{
    static char text[MANIFEST_MAX_CONFIG + 1];
    uint8_t *bytes;
    size_t size;
    struct manifest got;
    struct error error;
    (void)state;
    memset(text, ' ', sizeof text);
    struct manifest manifest = {.target = {.version = 5, .text = text, .text_size = MANIFEST_MAX_CONFIG},
                                .fallback = {.version = 4, .text = text, .text_size = MANIFEST_MAX_CONFIG}};
    memset(manifest.fleet, 'f', MANIFEST_MAX_NAME);
    memset(manifest.author, 'a', MANIFEST_MAX_NAME);
    manifest.target.local = manifest.fallback.local = text;
    manifest.target.local_size = manifest.fallback.local_size = MANIFEST_MAX_LOCAL;
    assert_true(manifest_encode(&manifest, secret_key, &bytes, &size, &error));
    assert_true(size <= MANIFEST_MAX_BYTES);
    assert_true(manifest_decode(&got, bytes, size, only(public_key), &error));
    assert_string_equal(got.fleet, manifest.fleet);
    assert_string_equal(got.author, manifest.author);
    assert_int_equal(got.target.text_size, MANIFEST_MAX_CONFIG);
    assert_int_equal(got.fallback.local_size, MANIFEST_MAX_LOCAL);
    free(bytes);
    struct manifest_config *const configs[] = {&manifest.target, &manifest.fallback};
    for (int i = 0; i < 2; i++) {
        configs[i]->text_size++;
        assert_false(manifest_encode(&manifest, secret_key, &bytes, &size, &error));
        assert_non_null(strstr(error.text, "the job's config is larger than 65536 bytes"));
        configs[i]->text_size--;
        configs[i]->local_size++;
        assert_false(manifest_encode(&manifest, secret_key, &bytes, &size, &error));
        assert_non_null(strstr(error.text, "the keys of single machines take more than 16384 bytes"));
        configs[i]->local_size--;
    }
}

/* Signed or not. */
TEST(more_than_a_manifest_is_none)
{
    uint8_t *bytes;
    size_t size;
    struct manifest manifest;
    struct error error;
    (void)state;
    make("north", 4, 5, &bytes, &size);
    bytes[size - MANIFEST_SIGNATURE] = 0;
    crypto_sign_detached(bytes + size + 1 - MANIFEST_SIGNATURE, NULL, bytes, size + 1 - MANIFEST_SIGNATURE, secret_key);
    assert_false(manifest_decode(&manifest, bytes, size + 1, only(public_key), &error));
    assert_memory_equal(error.text, "the manifest ", 13);
    free(bytes);
    assert_false(manifest_abort_decode(&(struct manifest_abort){.target = 0}, NULL, 0, only(public_key), &error));
    assert_non_null(strstr(error.text, "the abort is not signed: give it up with a program that signs"));
}

static void kind_is(const struct manifest *manifest, const char *before, const char *after, int wanted)
{
    struct config from, to;
    struct error error;
    enum rollout_kind kind = ROLLOUT_JOB;
    assert_true(config_parse(&from, "before", (const uint8_t *)before, strlen(before), NULL, 0, &error));
    assert_true(config_parse(&to, "after", (const uint8_t *)after, strlen(after), NULL, 0, &error));
    const bool can = manifest_kind(manifest, &from, &to, &kind, &error);
    assert_int_equal(can ? (int)kind : -1, wanted);
    if (!can) {
        assert_non_null(strstr(error.text, "roll out the program first, and then the config"));
    }
    config_free(&from);
    config_free(&to);
}

TEST(what_differs_makes_the_kind)
{
    static const char slow[] = "{\"train\":{\"learning_rate\":0.5}}", fast[] = "{\"train\":{\"learning_rate\":0.25}}";
    struct manifest manifest = {.target = {.local = "ab", .local_size = 2},
                                .fallback = {.local = "ab", .local_size = 2}};
    (void)state;
    kind_is(&manifest, slow, fast, ROLLOUT_LIVE);
    kind_is(&manifest, slow, slow, ROLLOUT_LIVE);
    manifest.target.local = "ac";
    kind_is(&manifest, slow, slow, ROLLOUT_LOCAL);
    kind_is(&manifest, slow, fast, ROLLOUT_JOB);
    manifest.target.local_size = 1;
    kind_is(&manifest, slow, slow, ROLLOUT_LOCAL);
    manifest.target.local = "ab";
    manifest.target.local_size = 2;
    manifest.programs.count = 1;
    kind_is(&manifest, slow, fast, ROLLOUT_LIVE); /* the same program */
    strcpy(manifest.programs.items[0].digest, "b");
    kind_is(&manifest, slow, slow, ROLLOUT_LOCAL);
    kind_is(&manifest, slow, fast, -1);
}

/* Two of three operators. */
TEST(as_many_sign_as_must)
{
    uint8_t secrets[4][OPERATOR_SECRET_KEY], stranger[OPERATOR_PUBLIC_KEY], *bytes;
    size_t size;
    struct operator_keys team = {.count = 3, .threshold = 2};
    struct manifest manifest, got;
    struct manifest_abort word = {.fleet = "north", .author = "cora", .target = 5}, read;
    uint8_t said[MANIFEST_ABORT_BYTES];
    struct error error;
    for (int i = 0; i < 4; i++) {
        crypto_sign_keypair(i < 3 ? team.keys[i] : stranger, secrets[i]);
    }
    memcpy(secret_key, secrets[0], sizeof secret_key);
    make("north", 4, 5, &bytes, &size);
    assert_true(manifest_decode(&got, bytes, size, only(team.keys[0]), &error));
    assert_false(manifest_decode(&got, bytes, size, &team, &error));
    assert_non_null(strstr(error.text, "not signed by 2 of the 3 operator keys"));
    assert_true(manifest_decode_unsigned(&manifest, bytes, size, &error));
    assert_int_equal(manifest.signatures, 1);

    /* Not the same one twice, nor a stranger; what they made is refused, too. */
    for (int i = 0; i < 4; i += 3) {
        uint8_t *other = malloc(size);
        size_t other_size = size;
        memcpy(other, bytes, size);
        assert_false(manifest_add_signature(&manifest, &team, secrets[i], &other, &other_size, &error));
        assert_false(manifest_decode(&got, other, other_size, &team, &error));
        free(other);
    }
    assert_true(manifest_add_signature(&manifest, &team, secrets[2], &bytes, &size, &error));
    assert_true(manifest_decode(&got, bytes, size, &team, &error));
    assert_int_equal(got.signatures, 2);
    assert_int_equal(got.target.version, 5);
    const size_t signed_by_two = size;
    assert_false(manifest_add_signature(&got, &team, secrets[1], &bytes, &size, &error)); /* would not be read */
    assert_non_null(strstr(error.text, "has the 2 signatures that it needs"));
    assert_int_equal(size, signed_by_two);
    assert_false(manifest_decode(&got, bytes, size, only(team.keys[0]), &error)); /* another number than it asks for */
    assert_false(manifest_decode(&got, bytes, size, only(team.keys[2]), &error));
    for (size_t at = 0; at < size; at++) { /* each byte is signed by both, or part of a signature */
        bytes[at] ^= 1;
        assert_false(manifest_decode(&got, bytes, size, &team, &error));
        bytes[at] ^= 1;
    }
    free(bytes);

    /* One is enough to stop. */
    assert_true(manifest_abort_decode(&read, said, manifest_abort_encode(&word, secrets[2], said), &team, &error));
    assert_false(manifest_abort_decode(&read, said, manifest_abort_encode(&word, secrets[3], said), &team, &error));
}

int main(void)
{
    return check_run(make_keys, NULL);
}
