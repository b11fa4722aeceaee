/* A member of a rollout for tests: its files are real, and the test is its host. */
#ifndef TESTS_PS_ROLLOUT_PARTICIPATING_H
#define TESTS_PS_ROLLOUT_PARTICIPATING_H

#include "tests/ps/rollout/machine.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/config/versions.h"
#include "base/process/restart.h"
#include "net/socket.h"

static struct rollout_participant participant;

/* The host's calls, and its answers. */
static struct {
    int checked, saved, left, restored, settled;
    bool for_good, has_no_memory, cant_save;
    int64_t now;
} host;
static uint64_t disk_left = 1 << 30;

int statvfs(const char *path, struct statvfs *status) /* replaces the system's */
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
    host.checked++;
    assert_int_equal(then->cluster.job_name, JOB_WORKER);
    return !host.has_no_memory || error_set(error, "it would take 9 MiB of memory here, and there are 2");
}

static inline bool save(void *context, struct error *error)
{
    host.saved++;
    return !host.cant_save || error_set(error, "the disk is full");
}

static inline enum participant_switch switch_to(void *context, const struct config *now, int64_t step)
{
    assert_null(context);
    assert_non_null(now);
    return host.now < step ? SWITCH_PENDING : SWITCH_DONE;
}

static inline bool restore(void *context, struct error *error)
{
    host.restored++;
    return true;
}

static inline void settle(void *context)
{
    host.settled++;
}

static inline void leave(void *context, bool for_good)
{
    host.left++;
    host.for_good = for_good;
}

static const struct participant_host table = {
    .check = check, .save = save, .switch_to = switch_to, .restore = restore, .settle = settle, .leave = leave};

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
    participant_create(&participant, &config, (struct member){MEMBER_WORKER, 0}, &table);
    memset(&host, 0, sizeof host);
}

static inline int set_up(void **state)
{
    if (!make_machine()) {
        return 1;
    }
    resolver_lookup = lookup;
    disk_left = 1 << 30;
    write_text("config.json", text_of(1, 0.5, ""));
    start();
    return 0;
}

static inline int tear_down(void **state)
{
    participant_destroy(&participant);
    memset(&participant, 0, sizeof participant);
    return remove_machine();
}

static const char *local[2] = {"", ""}; /* local keys that come with the target, and with the fallback */

/* A manifest from one version to another; other key: signed by someone else. */
static inline struct participant_order order_of(enum rollout_order what, uint64_t from, double from_rate, uint64_t to,
                                                double rate, const char *worker, const uint8_t *key)
{
    const struct manifest_config before = signed_config(text_of(from, from_rate, ""), from, local[1]);
    const struct manifest_config after = signed_config(text_of(to, rate, worker), to, local[0]);
    return order_signed(what, &before, &after, key);
}

/* message: a part of what it says; "": nothing. */
static inline void says(enum rollout_phase phase, uint64_t version, const char *message)
{
    struct rollout_report report;
    participant_report(&participant, &report);
    assert_int_equal(report.phase, phase);
    assert_int_equal(report.version, version);
    if (message[0] == '\0' ? report.message[0] != '\0' : !strstr(report.message, message)) {
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
