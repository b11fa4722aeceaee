/* Where a member finds its key, which keys it refuses, and what it says about itself. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/process/program.h"
#include "base/version.h"
#include "ps/identity.h"
#include "tests/check.h"
#include "tests/net/loopback.h"

static char folder[64], config_path[96];
static const struct member ps0 = {MEMBER_PS, 0}, worker1 = {MEMBER_WORKER, 1};
static struct config config;

static const char *file(const char *name)
{
    static char path[160];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static int set_up(void **state)
{
    struct error error;
    const char *text = "{\"fleet\":{\"name\":\"north\",\"version\":6},\"cluster\":{\"lease_secs\":4}}";
    log_setup(LOG_TEXT, LOG_ERROR);
    loopback_make_folder(folder);
    snprintf(config_path, sizeof config_path, "%s/config.json", folder);
    FILE *stream = fopen(config_path, "w");
    if (!stream || fputs(text, stream) < 0 || fclose(stream) != 0) {
        return 1;
    }
    return !config_load(&config, config_path, NULL, 0, &error);
}

static int tear_down(void **state)
{
    config_free(&config);
    loopback_remove_folder(folder);
    return 0;
}

static void refused(const char *words)
{
    struct identity identity;
    struct error error;
    assert_false(identity_create(&identity, &config, worker1, &error));
    if (!strstr(error.text, words)) {
        fail_msg("\"%s\" instead of \"%s\"", error.text, words);
    }
    identity_destroy(&identity);
}

TEST(the_key_lies_beside_the_config)
{
    struct identity identity;
    struct error error;
    char wanted[192];
    snprintf(wanted, sizeof wanted, "there is no key at %s,", file("fleet.key"));
    refused(wanted);
    assert_true(credentials_create_fleet_key(file("fleet.key"), &error));
    assert_true(identity_create(&identity, &config, worker1, &error));
    assert_string_equal(identity.key_path, file("fleet.key"));
    assert_non_null(identity.credentials);
    const struct hello_options options = identity_hello_options(&identity);
    assert_ptr_equal(options.credentials, identity.credentials);
    identity_destroy(&identity);
    identity_destroy(&identity);
    assert_int_equal(unlink(file("fleet.key")), 0);
}

/* Without a folder in the config's path it is the current one; likewise without a config. */
TEST(the_key_lies_in_the_current_folder)
{
    struct identity identity;
    struct error error;
    char before[4096];
    struct config here = config;
    char beside[] = "config.json", at_the_top[] = "/config.json";
    assert_non_null(getcwd(before, sizeof before));
    assert_true(credentials_create_fleet_key(file("fleet.key"), &error));
    assert_int_equal(chdir(folder), 0);
    here.path = NULL;
    for (int i = 0; i < 2; i++) {
        assert_true(identity_create(&identity, &here, worker1, &error));
        identity_destroy(&identity);
        here.path = beside;
    }
    assert_int_equal(chdir(before), 0);
    assert_int_equal(unlink(file("fleet.key")), 0);
    here.path = at_the_top;
    assert_false(identity_create(&identity, &here, worker1, &error));
    assert_non_null(strstr(error.text, "there is no key at /fleet.key,"));
    identity_destroy(&identity);
}

TEST(a_key_of_another_member_is_refused)
{
    struct identity identity;
    struct error error;
    assert_true(credentials_create_authority(folder, &error));
    assert_true(credentials_create_member(folder, &worker1, 1, file("w1.key"), &error));
    assert_true(credentials_create_member(folder, &ps0, 1, file("ps0.key"), &error));
    char *const usual = config.security.fleet_key;
    char path[160];
    config.security.fleet_key = path;
    snprintf(path, sizeof path, "%s", file("ps0.key"));
    refused("ps0.key is the key of ps:0, but this process is worker:1: give it its own key with --fleet_key");
    snprintf(path, sizeof path, "%s", file("w1.key"));
    assert_true(identity_create(&identity, &config, worker1, &error));
    assert_string_equal(identity.key_path, file("w1.key"));
    identity_destroy(&identity);
    snprintf(path, sizeof path, "%s", file("missing.key"));
    refused("missing.key");
    config.security.fleet_key = usual;
}

TEST(what_it_says_follows_its_versions)
{
    struct identity identity;
    struct error error;
    struct config plain = config;
    plain.security.insecure = true;
    assert_true(identity_create(&identity, &plain, worker1, &error));
    assert_null(identity.credentials);
    assert_string_equal(identity.key_path, "");
    const struct hello_options options = identity_hello_options(&identity), guest = identity_guest(&identity);
    assert_true(options.idle_timeout_s == 4);
    struct hello_identity hello = options.hello(options.context);
    assert_int_equal(hello.member.role, MEMBER_WORKER);
    assert_int_equal(hello.member.index, 1);
    assert_int_equal(hello.fleet_version, 6);
    assert_int_equal(hello.lease_ms, 4000);
    assert_string_equal(hello.cluster, "north");
    char program[200];
    snprintf(program, sizeof program, "trainer %s" IDENTITY_BUILD "%.*s %s", version_trainer(), PROGRAM_ID_HEX,
             program_own_digest(), program_own_architecture());
    assert_string_equal(hello.program, program);
    assert_int_equal(strlen(hello.digest), CONFIG_DIGEST_HEX);
    assert_non_null(strstr(hello.job, "lease_secs"));
    const uint64_t incarnation = hello.incarnation;
    const char *const digests[] = {"aa", "bb"}, *const jobs[] = {"{\"a\":1}", "{\"b\":22}"};
    for (int i = 0; i < 2; i++) {
        const struct hello_identity *before = identity_hello(&identity);
        const char *const digest_before = before->digest;
        assert_true(identity_change(&identity, 7 + (uint64_t)i, digests[i], jobs[i], &error));
        hello = options.hello(options.context);
        assert_int_equal(hello.fleet_version, 7 + i);
        assert_string_equal(hello.digest, digests[i]);
        assert_string_equal(hello.job, jobs[i]);
        assert_int_equal(hello.incarnation, incarnation);
        assert_ptr_equal(before->digest, digest_before); /* readers of the older one may continue */
        hello = guest.hello(guest.context);
        assert_string_equal(hello.digest, "");
        assert_string_equal(hello.job, "");
        assert_int_equal(hello.fleet_version, 7 + i);
    }
    identity_destroy(&identity);
}

/* A short lease is no reason to give up a connection within a moment. */
TEST(silence_is_borne_for_two_seconds_at_least)
{
    struct identity identity = {.hello.lease_ms = 100};
    assert_true(identity_idle_timeout_s(&identity) == 2);
    identity.hello.lease_ms = 2001;
    assert_true(identity_idle_timeout_s(&identity) == 2.001);
}

int main(void)
{
    return check_run(set_up, tear_down);
}
