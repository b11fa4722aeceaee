/* The limits of a process's own cgroup and of those above it, in folders made like the kernel's. */
#include "base/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char folder[64], membership[128];

static void run(const char *format, ...)
{
    char command[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(command, sizeof command, format, arguments);
    va_end(arguments);
    assert_int_equal(system(command), 0); /* NOLINT(cert-env33-c) */
}

static int enter(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/test_cgroup.XXXXXX");
    if (!mkdtemp(folder)) {
        return -1;
    }
    snprintf(membership, sizeof membership, "%s/membership", folder);
    return 0;
}

static int leave(void **state)
{
    (void)state;
    run("rm -rf %s", folder);
    return 0;
}

static void belongs(const char *lines)
{
    run("printf '%s' >%s", lines, membership);
}

static void put(const char *path, const char *text)
{
    run("mkdir -p $(dirname %s/fs/%s) && echo '%s' >%s/fs/%s", folder, path, text, folder, path);
}

static void limits_are(uint64_t memory_bytes, int cpus)
{
    char mounted[128];
    snprintf(mounted, sizeof mounted, "%s/fs", folder);
    const struct cgroup_limits limits = cgroup_read(membership, mounted);
    assert_int_equal(limits.memory_bytes, memory_bytes);
    assert_int_equal(limits.cpus, cpus);
}

static void of_a_unit(void **state)
{
    (void)state;
    belongs("0::/system.slice/trainer.service\n");
    put("cgroup.controllers", "cpu memory");
    put("system.slice/memory.max", "max");
    put("system.slice/cpu.max", "max 100000");
    put("system.slice/trainer.service/memory.max", "536870912");
    put("system.slice/trainer.service/memory.high", "max");
    put("system.slice/trainer.service/cpu.max", "250000 100000");
    limits_are(536870912, 2); /* rounded down */
    put("system.slice/trainer.service/memory.high", "268435456");
    limits_are(268435456, 2);
    put("system.slice/trainer.service/cpu.max", "50000 100000");
    limits_are(268435456, 1);
}

static void of_those_above(void **state)
{
    (void)state;
    belongs("0::/a/b/c\n");
    put("a/memory.max", "1000");
    put("a/b/memory.max", "2000");
    put("a/b/c/memory.max", "3000");
    put("a/b/cpu.max", "300000 100000");
    put("a/b/c/cpu.max", "max 100000");
    limits_are(1000, 3);
}

static void of_version_1(void **state)
{
    (void)state;
    belongs("5:cpu,cpuacct:/system.slice/x.service\n4:memory:/system.slice/x.service\n0::/\n");
    put("memory/memory.limit_in_bytes", "9223372036854771712");
    put("memory/system.slice/x.service/memory.limit_in_bytes", "41943040");
    put("cpu,cpuacct/cpu.cfs_quota_us", "-1");
    put("cpu,cpuacct/cpu.cfs_period_us", "100000");
    put("cpu,cpuacct/system.slice/x.service/cpu.cfs_quota_us", "150000");
    put("cpu,cpuacct/system.slice/x.service/cpu.cfs_period_us", "100000");
    limits_are(41943040, 1);
}

/* A container without a cgroup namespace: the host's path does not exist here, and the mount's root is its own. */
static void of_a_container(void **state)
{
    (void)state;
    belongs("0::/docker/0123\n");
    put("memory.max", "1048576");
    put("cpu.max", "400000 100000");
    limits_are(1048576, 4);
    belongs("0::/../../elsewhere\n");
    limits_are(1048576, 4);
}

static void none(void **state)
{
    (void)state;
    limits_are(UINT64_MAX, 0);
    belongs("what is this\n0::\n");
    put("memory.max", "garbage");
    put("cpu.max", "garbage");
    limits_are(UINT64_MAX, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, enter, leave)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(of_a_unit), TEST(of_those_above), TEST(of_version_1), TEST(of_a_container), TEST(none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
