/* The bounds of a manifest, what is said of one that is cut off where, and which configs may follow each other. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"
#include <sodium.h>

#include "ps/rollout/manifest.h"
#include "tests/one_operator.h"

enum {
    HEAD = 27 + 4 + 5 + 4 + 2 + 8 + 8 + 4, /* of "north" and "me" */
    CONFIG = 8 + 32 + 4 + 2 + 4 + 3,       /* with "{}" and three bytes of a machine's */
    PROGRAMS = 3 * 4,                      /* before their waves */
    PROGRAM = 4 + 6 + 8 + 32 + 32          /* for "x86_64" */
};

static uint8_t public_key[OPERATOR_PUBLIC_KEY], secret_key[OPERATOR_SECRET_KEY];
static struct manifest manifest, got;
static struct error error;
static uint8_t *bytes;
static size_t size;

static int make_keys(void **state)
{
    return sodium_init() < 0 || crypto_sign_keypair(public_key, secret_key) != 0;
}

static int enter(void **state)
{
    static const struct manifest_config usual = {.text = "{}", .text_size = 2, .local = "{ }", .local_size = 3};
    manifest = (struct manifest){.fleet = "north", .author = "me", .target = usual, .fallback = usual};
    manifest.target.version = 5;
    manifest.fallback.version = 4;
    bytes = NULL;
    return 0;
}

static int leave(void **state)
{
    free(bytes);
    return 0;
}

static void encode(void)
{
    free(bytes);
    if (!manifest_encode(&manifest, secret_key, &bytes, &size, &error)) {
        fail_msg("%s", error.text);
    }
}

/* Names that differ, of programs for so many architectures. */
static void bring(int count)
{
    manifest.programs.count = count;
    for (int i = 0; i < count; i++) {
        struct manifest_program *program = &manifest.programs.items[i];
        program->size = (uint64_t)i + 1;
        memcpy(program->architecture, "x86_6?", 7);
        program->architecture[5] = (char)('0' + i);
        checked_digest((const uint8_t *)program->architecture, 6, program->digest);
    }
}

/* With this number at that place, signed again. */
static bool takes(size_t at, uint32_t number)
{
    uint8_t *changed = malloc(size);
    memcpy(changed, bytes, size);
    for (int i = 0; i < 4; i++) {
        changed[at + (size_t)i] = (uint8_t)(number >> (8 * i));
    }
    crypto_sign_detached(changed + size - MANIFEST_SIGNATURE, NULL, changed, size - MANIFEST_SIGNATURE, secret_key);
    error.text[0] = '\0';
    const bool taken = manifest_decode(&got, changed, size, only(public_key), &error);
    free(changed);
    return taken;
}

TEST_WITH(it_is_said_where_it_is_cut_off, enter, leave)
{
    static const struct {
        size_t end;
        const char *says;
    } parts[] = {
        {27, "the manifest is invalid: it does not begin like one"},
        {HEAD, "the manifest is torn: it ends in its head"},
        {HEAD + CONFIG, "the manifest is torn: it ends in its target, or that is too large"},
        {HEAD + 2 * CONFIG, "the manifest is torn: it ends in its fallback, or that is too large"},
        {HEAD + 2 * CONFIG + PROGRAMS + 2 * 4 + 4 + PROGRAM,
         "the manifest is torn: it ends in its programs, or they make no sense"},
    };
    (void)state;
    bring(1);
    encode();
    assert_int_equal(size, parts[4].end + MANIFEST_SIGNATURE);
    size_t cut = 0;
    for (int part = 0; part < 5; part++) {
        for (; cut < parts[part].end; cut++) {
            assert_false(manifest_decode_unsigned(&got, bytes, cut, &error));
            if (strcmp(error.text, parts[part].says) != 0) {
                fail_msg("of %zu bytes: %s", cut, error.text);
            }
        }
    }
    for (; cut < size; cut++) {
        char says[100];
        snprintf(says, sizeof says, "the manifest is torn: %zu bytes where a signature of 64 should be",
                 cut - parts[4].end);
        assert_false(manifest_decode_unsigned(&got, bytes, cut, &error));
        assert_string_equal(error.text, says);
    }
    assert_true(manifest_decode_unsigned(&got, bytes, size, &error));
    assert_false(manifest_decode(&got, bytes, 27 + MANIFEST_SIGNATURE - 1, only(public_key), &error));
    assert_string_equal(error.text, "the manifest is torn: 90 bytes are too few for one");
    assert_false(manifest_decode(&got, bytes, MANIFEST_MAX_BYTES + 1, only(public_key), &error));
    assert_non_null(strstr(error.text, "the manifest is too large: "));
}

TEST_WITH(flags_are_known_ones, enter, leave)
{
    bring(1);
    manifest.may_lose = true;
    encode();
    assert_true(manifest_decode(&got, bytes, size, only(public_key), &error));
    assert_true(got.may_lose && got.programs.count == 1);
    assert_true(takes(HEAD - 4, 2));
    assert_true(!got.may_lose && got.programs.count == 1);
    assert_false(takes(HEAD - 4, 6));
    assert_string_equal(error.text,
                        "the manifest has flags 6, which this program does not know: is the program too old?");
}

/* Texts have no end but their size: a zero in one would hide what follows. */
TEST_WITH(no_text_has_a_zero_in_it, enter, leave)
{
    manifest.target.text = "{\0}";
    manifest.target.text_size = 3;
    encode();
    assert_false(manifest_decode(&got, bytes, size, only(public_key), &error));
    assert_non_null(strstr(error.text, "it ends in its target"));
    leave(NULL);
    enter(NULL);
    manifest.fallback.local = "\0 ";
    manifest.fallback.local_size = 2;
    encode();
    assert_false(manifest_decode(&got, bytes, size, only(public_key), &error));
    assert_non_null(strstr(error.text, "it ends in its fallback"));
}

TEST_WITH(a_digest_is_of_its_config, enter, leave)
{
    encode();
    assert_true(manifest_decode(&got, bytes, size, only(public_key), &error));
    assert_int_equal(strlen(got.target.digest), CONFIG_DIGEST_HEX);
    assert_string_equal(got.target.digest, got.fallback.digest);
    assert_string_equal(got.target.digest, manifest.target.digest); /* which encoding fills in */
    assert_false(takes(HEAD + 8, 0));
    assert_string_equal(error.text, "the manifest is damaged: its target is not what its digest says");
}

TEST_WITH(there_are_programs_for_four_architectures_at_most, enter, leave)
{
    const size_t count_at = HEAD + 2 * CONFIG + PROGRAMS + 2 * 4;
    (void)state;
    bring(MANIFEST_MAX_PROGRAMS);
    manifest.programs.items[3].size = PROGRAM_MAX_BYTES;
    manifest.programs.items[2].size = 1;
    manifest.programs.waves.least_speed = 100;
    encode();
    assert_true(manifest_decode(&got, bytes, size, only(public_key), &error));
    assert_int_equal(got.programs.count, MANIFEST_MAX_PROGRAMS);
    for (int i = 0; i < MANIFEST_MAX_PROGRAMS; i++) {
        const struct manifest_program *program = &manifest.programs.items[i];
        assert_string_equal(got.programs.items[i].architecture, program->architecture);
        assert_int_equal(got.programs.items[i].size, program->size);
        assert_ptr_equal(manifest_program_by_digest(&got.programs, program->digest), &got.programs.items[i]);
    }
    assert_null(manifest_program_by_digest(&got.programs, "a"));
    assert_false(takes(count_at, MANIFEST_MAX_PROGRAMS + 1));
    assert_non_null(strstr(error.text, "it ends in its programs"));
    assert_false(takes(count_at, 0));
    assert_non_null(strstr(error.text, "it ends in its programs"));
    assert_false(takes(count_at - 4, 101)); /* percent of speed */
}

TEST_WITH(there_are_eight_waves_at_most, enter, leave)
{
    bring(1);
    manifest.programs.waves.count = ROLLOUT_MAX_WAVES;
    for (uint32_t i = 0; i < ROLLOUT_MAX_WAVES; i++) {
        manifest.programs.waves.items[i] = 10 + i;
    }
    manifest.programs.waves.budget = 3;
    encode();
    assert_true(manifest_decode(&got, bytes, size, only(public_key), &error));
    assert_int_equal(got.programs.waves.count, ROLLOUT_MAX_WAVES);
    assert_memory_equal(got.programs.waves.items, manifest.programs.waves.items, sizeof got.programs.waves.items);
    assert_int_equal(got.programs.waves.budget, 3);
    assert_false(takes(HEAD + 2 * CONFIG + 8, ROLLOUT_MAX_WAVES + 1));
    assert_non_null(strstr(error.text, "it ends in its programs"));
    /* Nor if a ninth is really there. */
    const size_t waves_at = HEAD + 2 * CONFIG + PROGRAMS;
    uint8_t *more = malloc(size + 4);
    encode();
    memcpy(more, bytes, waves_at);
    memcpy(more + waves_at, bytes + waves_at, 4);
    memcpy(more + waves_at + 4, bytes + waves_at, size - waves_at);
    more[waves_at - 4]++;
    assert_false(manifest_decode_unsigned(&got, more, size + 4, &error));
    assert_non_null(strstr(error.text, "it ends in its programs"));
    free(more);
}

TEST_WITH(one_new_program_is_enough, enter, leave)
{
    bring(2);
    for (int i = 0; i < 2; i++) {
        strcpy(manifest.programs.items[i].fallback, manifest.programs.items[i].digest);
    }
    assert_false(manifest_brings_programs(&manifest));
    manifest.programs.items[0].fallback[0] ^= 1;
    assert_true(manifest_brings_programs(&manifest));
}

/* --- Which config may follow which --- */

static void parse(struct config *config, const char *text, const struct config_setting *flags, int count)
{
    if (!config_parse(config, "test", (const uint8_t *)text, strlen(text), flags, count, &error)) {
        fail_msg("%s", error.text);
    }
}

/* "": it may. */
static void may_follow(const char *before, const char *after, const char *says)
{
    struct config from, to;
    enum rollout_kind kind;
    parse(&from, before, NULL, 0);
    parse(&to, after, NULL, 0);
    error.text[0] = '\0';
    assert_int_equal(change_kind(&from, &to, false, &kind, &error), says[0] == '\0');
    if (strncmp(error.text, says, strlen(says)) != 0) {
        fail_msg("\"%s\" instead of \"%s\"", error.text, says);
    }
    config_free(&from);
    config_free(&to);
}

TEST_WITH(a_fleet_keeps_its_name_and_its_encryption, enter, leave)
{
    may_follow("{\"fleet\":{\"name\":\"north\"}}", "{\"fleet\":{\"name\":\"south\"}}",
               "fleet.name can't be changed by a rollout: stop the job and start it again");
    may_follow("{\"security\":{\"insecure\":false}}", "{\"security\":{\"insecure\":true}}",
               "security.insecure can't be changed by a rollout: stop the job and start it again");
    may_follow("{\"cluster\":{\"ps_hosts\":[\"a:1\"],\"worker_hosts\":[\"b:1\"]}}", "{}",
               "cluster.ps_hosts: would be empty");
    may_follow("{\"cluster\":{\"worker_hosts\":[\"b:1\"]}}", "{}", "cluster.worker_hosts: would be empty");
    may_follow("{}", "{\"cluster\":{\"ps_hosts\":[\"a:1\"],\"worker_hosts\":[\"b:1\"]}}", "");
}

TEST_WITH(a_flag_would_override_it_again, enter, leave)
{
    static const struct config_setting flags[] = {{"learning_rate", "0.5"}};
    struct config here, after;
    (void)state;
    parse(&after, "{\"train\":{\"learning_rate\":0.25}}", NULL, 0);
    parse(&here, "{\"train\":{\"learning_rate\":0.5}}", NULL, 0);
    assert_true(change_is_free(&here, &after, &error));
    config_free(&here);
    parse(&here, "{}", flags, 1);
    assert_false(change_is_free(&here, &after, &error));
    assert_string_equal(error.text, "train.learning_rate is set by a flag or the environment here, which would "
                                    "override the rollout at the next start: remove that first");
    assert_true(change_is_free(&here, &here, &error));
    config_free(&here);
    config_free(&after);
}

TEST_WITH(members_are_those_of_the_lists_and_who_may_join, enter, leave)
{
    struct config config;
    (void)state;
    parse(&config,
          "{\"cluster\":{\"ps_hosts\":[\"a:1\"],\"worker_hosts\":[\"b:1\",\"c:1\"],\"elastic\":true,"
          "\"elastic_workers\":1}}",
          NULL, 0);
    assert_true(change_has_member(&config, (struct member){MEMBER_PS, 0}));
    assert_false(change_has_member(&config, (struct member){MEMBER_PS, 1}));
    assert_true(change_has_member(&config, (struct member){MEMBER_WORKER, 2}));
    assert_false(change_has_member(&config, (struct member){MEMBER_WORKER, 3}));
    config_free(&config);
}

/* --- An abort --- */

TEST_WITH(an_abort_has_its_size, enter, leave)
{
    uint8_t word[MANIFEST_ABORT_BYTES + 1] = {0};
    const struct manifest_abort abort = {.fleet = "", .author = "", .target = 5};
    struct manifest_abort read;
    char says[80];
    (void)state;
    static const size_t sizes[] = {24 + 64 - 1, MANIFEST_ABORT_BYTES + 1};
    for (int i = 0; i < 2; i++) {
        assert_false(manifest_abort_decode(&read, word, sizes[i], only(public_key), &error));
        snprintf(says, sizeof says, "the abort is torn: it can't have %zu bytes", sizes[i]);
        assert_string_equal(error.text, says);
    }
    const size_t whole = manifest_abort_encode(&abort, secret_key, word), body = whole - MANIFEST_SIGNATURE;
    for (size_t cut = 24; cut <= body + 1; cut++) { /* signed, and cut off or too long all the same */
        uint8_t other[MANIFEST_ABORT_BYTES] = {0};
        memcpy(other, word, cut < body ? cut : body);
        crypto_sign_detached(other + cut, NULL, other, cut, secret_key);
        const bool good = manifest_abort_decode(&read, other, cut + MANIFEST_SIGNATURE, only(public_key), &error);
        assert_int_equal(good, cut == body);
        if (!good && strcmp(error.text, "the abort is invalid: it does not read like one") != 0) {
            fail_msg("of %zu bytes: %s", cut, error.text);
        }
    }
    word[0] ^= 1;
    crypto_sign_detached(word + body, NULL, word, body, secret_key);
    assert_false(manifest_abort_decode(&read, word, whole, only(public_key), &error));
    assert_string_equal(error.text, "the abort is invalid: it does not read like one");
}

int main(void)
{
    return check_run(make_keys, NULL);
}
