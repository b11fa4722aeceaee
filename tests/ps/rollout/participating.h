/* A member of a rollout for tests: its files are real, its host is the test. */
#ifndef TESTS_PS_ROLLOUT_PARTICIPATING_H
#define TESTS_PS_ROLLOUT_PARTICIPATING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cmocka.h>
#include <sodium.h>

#include "base/config/versions.h"
#include "base/file.h"
#include "base/process/restart.h"
#include "net/resolver.h"
#include "ps/rollout/participant.h"

static char folder[64], config_path[96];
static uint8_t public_key[OPERATOR_PUBLIC_KEY], secret_key[OPERATOR_SECRET_KEY];
static struct config config;
static struct rollout_participant participant;

/* What the host was asked, and answers. */
static struct {
    int checked, saved, left, restored, settled;
    bool for_good, has_no_memory, cant_save;
    int64_t now;
} host;
static uint64_t disk_left = 1 << 30;

int statvfs(const char *path, struct statvfs *status) /* in place of the system's */
{
    (void)path;
    *status = (struct statvfs){.f_frsize = 1, .f_bavail = disk_left};
    return 0;
}

static inline bool lookup(const struct address *address, struct endpoints *endpoints, struct error *error)
{
    memset(endpoints, 0, sizeof *endpoints);
    return strncmp(address->host, "nowhere", 7) != 0 || error_set(error, "%s: there is no such host", address->host);
}

static inline bool check(void *context, const struct config *then, struct error *error)
{
    (void)context;
    host.checked++;
    assert_int_equal(then->cluster.job_name, JOB_WORKER);
    return !host.has_no_memory || error_set(error, "it would take 9 MiB of memory here, and there are 2");
}

static inline bool save(void *context, struct error *error)
{
    (void)context;
    host.saved++;
    return !host.cant_save || error_set(error, "the disk is full");
}

static inline enum participant_switch switch_to(void *context, const struct config *now, int64_t step)
{
    (void)context;
    (void)now;
    return host.now < step ? SWITCH_PENDING : SWITCH_DONE;
}

static inline bool restore(void *context, struct error *error)
{
    (void)context;
    (void)error;
    host.restored++;
    return true;
}

static inline void settle(void *context)
{
    (void)context;
    host.settled++;
}

static inline void leave(void *context, bool for_good)
{
    (void)context;
    host.left++;
    host.for_good = for_good;
}

static const struct participant_host table = {
    .check = check, .save = save, .switch_to = switch_to, .restore = restore, .settle = settle, .leave = leave};

static inline void write_text(const char *name, const char *text)
{
    char path[128];
    struct error error;
    const struct file_part part = {text, strlen(text)};
    assert_true(file_join(path, sizeof path, folder, name, &error));
    assert_true(file_write_atomic(path, &part, 1, &error));
}

static inline char *text_of(uint64_t version, double rate, const char *worker)
{
    static char text[512];
    snprintf(text, sizeof text,
             "{\"fleet\":{\"name\":\"north\",\"version\":%llu},\"train\":{\"learning_rate\":%g},"
             "\"cluster\":{\"ps_hosts\":[\"127.0.0.1:1\"],\"worker_hosts\":[\"127.0.0.1:2\"%s]}}",
             (unsigned long long)version, rate, worker);
    return text;
}

static inline void start(void)
{
    struct error error;
    const struct config_setting flags[] = {{"job_name", "worker"}, {"task_index", "0"}};
    participant_destroy(&participant);
    config_free(&config);
    assert_true(config_load(&config, config_path, flags, 2, &error));
    assert_true(participant_create(&participant, &config, (struct member){MEMBER_WORKER, 0}, &table, &error));
    memset(&host, 0, sizeof host);
}

static inline int set_up(void **state)
{
    char hex[2 * OPERATOR_PUBLIC_KEY + 1], key[200];
    (void)state;
    strcpy(folder, "/tmp/participant-XXXXXX");
    if (sodium_init() < 0 || crypto_sign_keypair(public_key, secret_key) != 0 || !mkdtemp(folder)) {
        return 1;
    }
    resolver_lookup = lookup;
    disk_left = 1 << 30;
    snprintf(config_path, sizeof config_path, "%s/config.json", folder);
    sodium_bin2hex(hex, sizeof hex, public_key, sizeof public_key);
    snprintf(key, sizeof key, "trainer operator public key 1\n%s\n", hex);
    write_text("operator.pub", key);
    write_text("config.json", text_of(1, 0.5, ""));
    start();
    return 0;
}

static inline int tear_down(void **state)
{
    char command[128];
    (void)state;
    participant_destroy(&participant);
    config_free(&config);
    memset(&config, 0, sizeof config);
    memset(&participant, 0, sizeof participant);
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

static struct manifest_programs programs; /* that come with it */
static const char *local[2] = {"", ""};   /* the keys of machines that come with the target, and with the fallback */

/* A manifest from one version to another; other key: by somebody else. */
static inline struct participant_order order_of(enum rollout_order what, uint64_t from, double from_rate, uint64_t to,
                                                double rate, const char *worker, const uint8_t *key)
{
    static uint8_t *bytes;
    static struct config before, after;
    size_t size;
    struct error error;
    char *text = text_of(from, from_rate, "");
    config_free(&before);
    config_free(&after);
    assert_true(config_parse(&before, "before", (uint8_t *)text, strlen(text), NULL, 0, &error));
    text = text_of(to, rate, worker);
    assert_true(config_parse(&after, "after", (uint8_t *)text, strlen(text), NULL, 0, &error));
    char *before_text = config_job_text(&before), *after_text = config_job_text(&after);
    struct manifest manifest = {.fleet = "north",
                                .author = "me@desk",
                                .programs = programs,
                                .target = {.version = to,
                                           .text = after_text,
                                           .text_size = strlen(after_text),
                                           .local = local[0],
                                           .local_size = strlen(local[0])},
                                .fallback = {.version = from,
                                             .text = before_text,
                                             .text_size = strlen(before_text),
                                             .local = local[1],
                                             .local_size = strlen(local[1])}};
    free(bytes);
    assert_true(manifest_encode(&manifest, key, &bytes, &size, &error));
    free(before_text);
    free(after_text);
    config_free(&before);
    config_free(&after);
    return (struct participant_order){.order = what, .target = to, .manifest = bytes, .manifest_size = size};
}

static inline void says(enum rollout_phase phase, uint64_t version, const char *message)
{
    struct rollout_report report;
    participant_report(&participant, &report);
    assert_int_equal(report.phase, phase);
    assert_int_equal(report.version, version);
    if (!strstr(report.message, message)) {
        fail_msg("\"%s\", and not \"%s\"", report.message, message);
    }
}

static inline uint64_t current(void)
{
    bool there;
    uint64_t number;
    struct error error;
    assert_true(versions_current(config_path, &there, &number, &error));
    return there ? number : 1;
}

#endif
