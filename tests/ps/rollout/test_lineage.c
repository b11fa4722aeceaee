/* Where this process's version comes from, according to the manifests beside its config. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"
#include <sodium.h>

#include "base/checked.h"
#include "base/file.h"
#include "base/log.h"
#include "ps/rollout/history.h"
#include "ps/rollout/manifest.h"

static uint8_t public_key[OPERATOR_PUBLIC_KEY], secret_key[OPERATOR_SECRET_KEY];
static char folder[64], path[96];
static struct config config;
static char *own_path; /* as parsed */
static struct error error;
static struct manifest_programs programs; /* that come with the next manifest */

/* Configs of a job, distinguished by their rates. */
static void parse(struct config *parsed, uint64_t version, double rate, const char *worker)
{
    char text[400];
    snprintf(text, sizeof text,
             "{\"fleet\":{\"name\":\"north\",\"version\":%llu},\"train\":{\"learning_rate\":%g},"
             "\"cluster\":{\"ps_hosts\":[\"127.0.0.1:1\"],\"worker_hosts\":[\"127.0.0.1:2\"%s]}}",
             (unsigned long long)version, rate, worker);
    if (!config_parse(parsed, "test", (uint8_t *)text, strlen(text), NULL, 0, &error)) {
        fail_msg("%s", error.text);
    }
}

static const char *digest_of(uint64_t version)
{
    static char digest[CONFIG_DIGEST_HEX + 1];
    struct config parsed;
    parse(&parsed, version, 1.0 / (double)version, "");
    config_digest(&parsed, digest);
    config_free(&parsed);
    return digest;
}

static int enter(void **state)
{
    char command[128];
    strcpy(folder, "/tmp/lineage-XXXXXX");
    if (sodium_init() < 0 || crypto_sign_keypair(public_key, secret_key) != 0 || !mkdtemp(folder)) {
        return 1;
    }
    log_setup(LOG_TEXT, (enum log_level)(LOG_ERROR + 1)); /* nothing */
    snprintf(path, sizeof path, "%s/config.json", folder);
    snprintf(command, sizeof command, "mkdir %s.d", path);
    parse(&config, 1, 1, "");
    own_path = config.path;
    config.path = path;
    return system(command);
}

static int leave(void **state)
{
    char command[128];
    config.path = own_path;
    config_free(&config);
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

/* Stored as on the machine: for a version, and as the last. local: local keys that come with the target. */
static void keep_of(uint64_t from, uint64_t to, bool may_lose, const char *worker, const char *local)
{
    struct config before, after;
    uint8_t *bytes;
    size_t size;
    char kept[VERSIONS_PATH];
    parse(&before, from, 1.0 / (double)from, "");
    parse(&after, to, 1.0 / (double)to, worker);
    char *before_text = config_job_text(&before), *after_text = config_job_text(&after);
    struct manifest manifest = {.fleet = "north",
                                .may_lose = may_lose,
                                .programs = programs,
                                .target = {.version = to,
                                           .text = after_text,
                                           .text_size = strlen(after_text),
                                           .local = local,
                                           .local_size = strlen(local)},
                                .fallback = {.version = from, .text = before_text, .text_size = strlen(before_text)}};
    assert_true(manifest_encode(&manifest, secret_key, &bytes, &size, &error));
    assert_true(lineage_path(&config, to, kept, &error));
    assert_true(checked_write(kept, bytes, size, &error) && versions_set_last(path, to, &error));
    free(bytes);
    free(before_text);
    free(after_text);
    config_free(&before);
    config_free(&after);
}

static void keep(uint64_t from, uint64_t to, bool may_lose)
{
    keep_of(from, to, may_lose, "", "");
}

static void is_in(uint64_t version)
{
    config.fleet.version = (int64_t)version;
}

TEST_WITH(without_a_rollout_there_is_none, enter, leave)
{
    struct lineage lineage;
    uint8_t *bytes;
    size_t size;
    bool may_lose = true;
    (void)state;
    assert_false(lineage_read(&config, &lineage));
    assert_false(lineage_of(&config, 1, &lineage));
    assert_false(lineage_is_fresh(&config));
    assert_false(lineage_adopts(&config, digest_of(1), &may_lose));
    assert_false(may_lose);
    for (uint64_t version = 0; version < 2; version++) {
        assert_true(lineage_load(&config, version, &bytes, &size, &error));
        assert_null(bytes);
    }
    config.path = NULL;
    assert_false(lineage_read(&config, &lineage));
    assert_false(lineage_adopts(&config, digest_of(1), &may_lose));
}

TEST_WITH(the_last_rollout_is_known_whole, enter, leave)
{
    struct lineage lineage;
    uint8_t *bytes;
    size_t size;
    (void)state;
    for (int loses = 0; loses < 2; loses++) {
        keep(4, 5, loses);
        assert_true(lineage_read(&config, &lineage));
        assert_int_equal(lineage.target, 5);
        assert_int_equal(lineage.fallback, 4);
        assert_int_equal(lineage.may_lose, loses);
        assert_int_equal(lineage.kind, ROLLOUT_LIVE);
        assert_string_equal(lineage.digests[0], digest_of(5));
        assert_string_equal(lineage.digests[1], digest_of(4));
    }
    assert_true(lineage_of(&config, 5, &lineage));
    assert_int_equal(lineage.target, 5);
    assert_false(lineage_of(&config, 4, &lineage));
    assert_false(lineage_of(&config, 0, &lineage));
    for (uint64_t version = 0; version <= 5; version += 5) {
        assert_true(lineage_load(&config, version, &bytes, &size, &error));
        assert_true(bytes && size > 0);
        free(bytes);
    }
    keep_of(4, 5, false, "", "{\"train\":{\"num_threads\":2}}");
    assert_true(lineage_read(&config, &lineage));
    assert_int_equal(lineage.kind, ROLLOUT_JOB); /* keys of the job differ, too */
    keep_of(4, 5, false, ",\"127.0.0.1:3\"", "");
    assert_true(lineage_read(&config, &lineage));
    assert_int_equal(lineage.kind, ROLLOUT_JOB);
}

/* In either of its versions it may not be settled yet. */
TEST_WITH(a_rollout_is_fresh_to_who_is_in_it, enter, leave)
{
    keep(4, 5, false);
    for (uint64_t version = 3; version <= 6; version++) {
        is_in(version);
        assert_int_equal(lineage_is_fresh(&config), version == 4 || version == 5);
    }
}

TEST_WITH(checkpoints_of_earlier_versions_are_adopted, enter, leave)
{
    bool may_lose;
    (void)state;
    keep(1, 2, false);
    keep(2, 4, true);
    keep(4, 5, false);
    is_in(5);
    assert_true(lineage_adopts(&config, digest_of(4), &may_lose));
    assert_false(may_lose);
    assert_true(lineage_adopts(&config, digest_of(2), &may_lose));
    assert_true(may_lose); /* the operator allowed it once on the way */
    assert_true(lineage_adopts(&config, digest_of(1), &may_lose));
    assert_true(may_lose);
    assert_false(lineage_adopts(&config, digest_of(3), &may_lose)); /* nobody came through it */
    is_in(3);
    assert_false(lineage_adopts(&config, digest_of(1), &may_lose));
    is_in(2);
    assert_true(lineage_adopts(&config, digest_of(1), &may_lose));
    assert_false(may_lose);
    assert_false(lineage_adopts(&config, digest_of(4), &may_lose)); /* not that way, unless it was the last */
}

/* It went back from there. */
TEST_WITH(checkpoints_of_the_target_are_adopted_by_the_fallback, enter, leave)
{
    bool may_lose;
    (void)state;
    for (int loses = 0; loses < 2; loses++) {
        keep(4, 5, loses);
        is_in(4);
        assert_true(lineage_adopts(&config, digest_of(5), &may_lose));
        assert_int_equal(may_lose, loses);
        assert_false(lineage_adopts(&config, digest_of(6), &may_lose));
        is_in(6);
        assert_false(lineage_adopts(&config, digest_of(5), &may_lose));
    }
}

TEST_WITH(what_the_disk_changed_is_named, enter, leave)
{
    static const char *const last_ones[] = {"5 #00000000\n", "five\n", "-5\n"};
    struct lineage lineage;
    uint8_t *bytes;
    size_t size;
    char kept[VERSIONS_PATH], last[VERSIONS_PATH];
    (void)state;
    keep(4, 5, false);
    assert_true(lineage_path(&config, 5, kept, &error));
    snprintf(last, sizeof last, "%s.d/last", path);
    for (size_t i = 0; i < sizeof last_ones / sizeof *last_ones; i++) {
        const struct file_part part = {last_ones[i], strlen(last_ones[i])};
        assert_true(file_write_atomic(last, &part, 1, &error));
        assert_false(lineage_load(&config, 0, &bytes, &size, &error));
        assert_null(bytes);
        assert_non_null(strstr(error.text, last));
        assert_non_null(strstr(error.text, "holds no version number"));
        assert_false(lineage_read(&config, &lineage));
        assert_true(lineage_of(&config, 5, &lineage));
    }
    assert_true(versions_set_last(path, 5, &error));
    assert_true(lineage_read(&config, &lineage));
    assert_true(file_read(kept, MANIFEST_MAX_BYTES, &bytes, &size, &error));
    bytes[size - 1] ^= 1; /* part of its signature: it still parses */
    const struct file_part parts[] = {{bytes, size}, {bytes, size / 2}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        assert_true(file_write_atomic(kept, &parts[i], 1, &error));
        for (uint64_t version = 0; version <= 5; version += 5) {
            uint8_t *loaded = bytes;
            size_t loaded_size;
            assert_false(lineage_load(&config, version, &loaded, &loaded_size, &error));
            assert_null(loaded);
            assert_non_null(strstr(error.text, kept));
            assert_non_null(strstr(error.text, "is damaged"));
        }
        assert_false(lineage_read(&config, &lineage));
        assert_false(lineage_of(&config, 5, &lineage));
    }
    free(bytes);
}

TEST_WITH(the_last_one_counts_only_with_its_manifest, enter, leave)
{
    struct lineage lineage;
    char kept[VERSIONS_PATH];
    (void)state;
    keep(4, 5, false);
    assert_true(lineage_path(&config, 5, kept, &error));
    assert_int_equal(remove(kept), 0);
    assert_false(lineage_read(&config, &lineage));
    keep(4, 5, false);
    assert_true(lineage_read(&config, &lineage));
    assert_int_equal(lineage.target, 5);
}

TEST_WITH(a_path_may_be_too_long, enter, leave)
{
    static char name[VERSIONS_PATH + 1];
    char kept[VERSIONS_PATH];
    uint8_t *bytes;
    size_t size;
    (void)state;
    memset(name, 'n', VERSIONS_PATH);
    config.path = name;
    assert_false(lineage_path(&config, 5, kept, &error));
    for (uint64_t version = 0; version < 2; version++) {
        assert_false(lineage_load(&config, version, &bytes, &size, &error));
        assert_null(bytes);
    }
}

/* --- Programs --- */

static char one[PROGRAM_DIGEST_HEX + 1], two[PROGRAM_DIGEST_HEX + 1];

/* The next manifest brings this program for all machines; NULL: none. */
static void bring(const char *digest, const char *fallback)
{
    static const char *const architectures[] = {"aarch64", "x86_64"};
    programs = (struct manifest_programs){.count = digest ? 2 : 0, .protocol = 1, .rate_kib = 1};
    programs.waves = (struct rollout_waves){.count = 1, .items = {1}};
    for (int i = 0; i < programs.count; i++) {
        struct manifest_program *program = &programs.items[i];
        program->size = 1000;
        snprintf(program->architecture, sizeof program->architecture, "%s", architectures[i]);
        snprintf(program->digest, sizeof program->digest, "%s", digest);
        snprintf(program->fallback, sizeof program->fallback, "%s", fallback);
    }
}

static void install_key(const char *name, const uint8_t key[OPERATOR_PUBLIC_KEY])
{
    char at[128], text[256];
    const int head = snprintf(text, sizeof text, "trainer operator public key 1\n");
    sodium_bin2hex(text + head, sizeof text - (size_t)head, key, OPERATOR_PUBLIC_KEY);
    strcat(text, "\n");
    snprintf(at, sizeof at, "%s/%s", folder, name);
    assert_true(file_write_atomic(at, &(struct file_part){text, strlen(text)}, 1, &error));
}

static bool vouches(uint64_t version, const char *digest)
{
    return lineage_vouches(path, version, digest, &error);
}

TEST_WITH(signed_manifests_vouch_for_programs, enter, leave)
{
    uint8_t other_key[OPERATOR_PUBLIC_KEY], other_secret[OPERATOR_SECRET_KEY];
    memset(one, '1', PROGRAM_DIGEST_HEX);
    memset(two, '2', PROGRAM_DIGEST_HEX);
    crypto_sign_keypair(other_key, other_secret);
    bring(one, "");
    keep(3, 4, false);
    bring(NULL, NULL);
    keep(4, 5, false);
    bring(two, one);
    keep(5, 6, false);
    assert_false(vouches(4, one)); /* no operator is trusted */
    assert_non_null(strstr(error.text, "operator.pub"));
    install_key("operator.pub", public_key);
    assert_true(vouches(4, one) && vouches(6, two));
    assert_true(vouches(5, one)); /* which came without a program, and runs in 4's */
    assert_true(!vouches(4, two) && !vouches(6, one) && !vouches(5, two));
    assert_false(vouches(3, one)); /* each machine's own */
    assert_false(vouches(7, two)); /* of which nothing is known */
    assert_non_null(strstr(error.text, "no manifest signed by the operator"));

    install_key("operator.pub", other_key);
    assert_false(vouches(6, two));
    install_key("operator.pub.previous", public_key);
    assert_true(vouches(6, two));
}

/* A machine that was away during a rollout knows the fallback's program from the manifest of the target alone. */
TEST_WITH(the_last_manifest_vouches_for_its_fallback, enter, leave)
{
    install_key("operator.pub", public_key);
    bring(two, one);
    keep(5, 6, false);
    assert_true(vouches(5, one));
    assert_false(vouches(5, two));
}

TEST_WITH(what_another_key_signed_vouches_for_nothing, enter, leave)
{
    uint8_t key[OPERATOR_PUBLIC_KEY];
    install_key("operator.pub", public_key);
    crypto_sign_keypair(key, secret_key);
    bring(two, one);
    keep(5, 6, false);
    assert_false(vouches(6, two));
    assert_false(vouches(5, one));
}

int main(void)
{
    return check_run(NULL, NULL);
}
