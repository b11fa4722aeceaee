/*
 * /proc/self/cgroup names this process's cgroup in each hierarchy: "0::/system.slice/trainer.service" (version 2),
 * "4:cpu,cpuacct:/..." (version 1). In a container the path may be one of the host, which isn't mounted here: folders
 * that do not exist are skipped, and the root of the mount is the container's own.
 */
#include "base/cgroup.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH = 4096 };

/* Reads up to two numbers; returns how many there are. "max" is none. */
static int read_numbers(const char *folder, const char *name, long long numbers[2])
{
    char path[PATH + 64];
    int count = 0;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "re");
    if (file) {
        count = fscanf(file, "%lld %lld", &numbers[0], &numbers[1]);
        fclose(file);
    }
    return count > 0 ? count : 0;
}

static void take_memory(struct cgroup_limits *limits, const char *folder)
{
    static const char *const names[] = {"memory.max", "memory.high", "memory.limit_in_bytes"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        long long number[2];
        if (read_numbers(folder, names[i], number) > 0 && number[0] > 0 && (uint64_t)number[0] < limits->memory_bytes) {
            limits->memory_bytes = (uint64_t)number[0];
        }
    }
}

static void take_cpus(struct cgroup_limits *limits, const char *folder)
{
    long long both[2] = {-1, 0}, period[2];
    bool found = read_numbers(folder, "cpu.max", both) == 2;
    if (!found && read_numbers(folder, "cpu.cfs_quota_us", both) > 0 &&
        read_numbers(folder, "cpu.cfs_period_us", period) > 0) {
        both[1] = period[0];
        found = true;
    }
    if (!found || both[0] <= 0 || both[1] <= 0) {
        return;
    }
    const long long whole = both[0] / both[1], cpus = whole < 1 ? 1 : whole;
    if (limits->cpus == 0 || cpus < limits->cpus) {
        limits->cpus = cpus < INT32_MAX ? (int)cpus : INT32_MAX;
    }
}

/* Of a cgroup and of all above it, up to the root of the mount. */
static void take_all(struct cgroup_limits *limits, const char *mounted, const char *controller, const char *path)
{
    char folder[PATH];
    const size_t root =
        (size_t)snprintf(folder, sizeof folder, "%s%s%s", mounted, controller[0] != '\0' ? "/" : "", controller);
    if (root >= sizeof folder || (size_t)snprintf(folder + root, sizeof folder - root, "%s", path) + root >= PATH) {
        return;
    }
    for (;;) {
        take_memory(limits, folder);
        take_cpus(limits, folder);
        char *slash = strrchr(folder + root, '/');
        if (!slash) {
            return;
        }
        *slash = '\0';
    }
}

static bool names_controller(const char *list, const char *name)
{
    const size_t size = strlen(name);
    for (const char *at = list; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, name, size) == 0 && (at[size] == ',' || at[size] == '\0')) {
            return true;
        }
    }
    return false;
}

/* One line, without its end: "number:controllers:path". */
static void take_line(struct cgroup_limits *limits, const char *mounted, char *line)
{
    char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!path) {
        return;
    }
    *path++ = '\0';
    controllers++;
    if (strstr(path, "/..")) { /* outside of what this process may see */
        path[1] = '\0';
    }
    if (controllers[0] == '\0') {
        take_all(limits, mounted, "", path);
        take_all(limits, mounted, "unified", path);
    }
    if (names_controller(controllers, "memory")) {
        take_all(limits, mounted, "memory", path);
    }
    if (names_controller(controllers, "cpu")) {
        take_all(limits, mounted, "cpu", path);
        take_all(limits, mounted, controllers, path); /* "cpu,cpuacct", where no link named cpu leads to it */
    }
}

struct cgroup_limits cgroup_read(const char *membership, const char *mounted)
{
    struct cgroup_limits limits = {.memory_bytes = UINT64_MAX};
    char line[PATH];
    FILE *file = fopen(membership, "re");
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        take_line(&limits, mounted, line);
    }
    if (file) {
        fclose(file);
    }
    return limits;
}

struct cgroup_limits cgroup_limits(void)
{
    return cgroup_read("/proc/self/cgroup", "/sys/fs/cgroup");
}
