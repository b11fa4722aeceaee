/* Reads /proc; a missing value means no limit. */
#include "base/memory.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/log.h"

/* --- Limits of a container --- */

/*
 * /proc/self/cgroup names this process's cgroup in each hierarchy: "0::/system.slice/trainer.service" (version 2),
 * "4:cpu,cpuacct:/..." (version 1). In a container the path may be one of the host, which isn't mounted here: folders
 * that do not exist are skipped, and the root of the mount is the container's own.
 */

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

/* A value of /proc/meminfo, in KiB. */
static bool read_available(uint64_t *kib)
{
    char line[128];
    unsigned long long number;
    bool found = false;
    FILE *file = fopen("/proc/meminfo", "re");
    while (file && !found && fgets(line, sizeof line, file)) {
        found = sscanf(line, "MemAvailable: %llu kB", &number) == 1;
    }
    if (file) {
        fclose(file);
    }
    *kib = found ? number : 0;
    return found;
}

static bool read_resident(uint64_t *pages)
{
    unsigned long long total, resident;
    FILE *file = fopen("/proc/self/statm", "re");
    bool found = file && fscanf(file, "%llu %llu", &total, &resident) == 2;
    if (file) {
        fclose(file);
    }
    *pages = found ? resident : 0;
    return found;
}

bool memory_for_this_process(uint64_t *bytes)
{
    uint64_t kib, pages, most = cgroup_limits().memory_bytes;
    struct rlimit address_space;
    if (!read_available(&kib) || !read_resident(&pages)) {
        return false;
    }
    *bytes = kib * 1024 + pages * (uint64_t)sysconf(_SC_PAGESIZE);
    *bytes = most < *bytes ? most : *bytes;
    if (getrlimit(RLIMIT_AS, &address_space) == 0 && address_space.rlim_cur < *bytes) {
        *bytes = address_space.rlim_cur;
    }
    return true;
}

bool memory_is_free(size_t bytes, size_t beside)
{
    uint64_t most, pages;
    if (bytes > SIZE_MAX / 2 || beside > SIZE_MAX / 2) {
        return false;
    }
    if (memory_for_this_process(&most) && read_resident(&pages)) {
        const uint64_t taken = pages * (uint64_t)sysconf(_SC_PAGESIZE);
        if (taken > most || bytes > most - taken) {
            return false;
        }
    }
    void *probe = mmap(NULL, bytes + beside + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return probe != MAP_FAILED && munmap(probe, bytes + beside + 1) == 0;
}

static const size_t huge_page = (size_t)2 << 20, worth_it = (size_t)8 << 20;

/* For the whole huge pages within. A hint: without it everything works, more slowly. */
static void ask_for_huge_pages(void *memory, size_t bytes)
{
    const size_t before = (huge_page - (uintptr_t)memory % huge_page) % huge_page;
    if (bytes >= worth_it) {
        madvise((char *)memory + before, (bytes - before) / huge_page * huge_page, MADV_HUGEPAGE);
    }
}

void *memory_aligned(size_t bytes)
{
    const size_t line = 64;
    if (bytes > SIZE_MAX - huge_page) {
        return NULL;
    }
    size_t align = bytes < worth_it ? line : huge_page, rounded = (bytes + align - 1) / align * align;
    void *memory = aligned_alloc(align, rounded);
    if (memory) {
        ask_for_huge_pages(memory, rounded);
    }
    return memory;
}

void *memory_zeroed(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    if (memory) {
        ask_for_huge_pages(memory, count * size);
    }
    return memory;
}

/* Not exit(): other threads still run, and use what it would free. */
static _Noreturn void run_out(size_t bytes, const char *what)
{
    if (bytes == 0) {
        log_error("out of memory for %s", what);
    } else if (bytes < 1 << 20) {
        log_error("out of memory: %zu bytes for %s", bytes, what);
    } else {
        log_error("out of memory: %.1f MiB for %s", (double)bytes / 0x1p20, what);
    }
    _exit(EXIT_FAILURE);
}

/* Never 0, for which the system may return NULL; SIZE_MAX, which nobody has, if the product is larger. */
static size_t product(size_t count, size_t size)
{
    const size_t bytes = size > 0 && count > SIZE_MAX / size ? SIZE_MAX : count * size;
    return bytes > 0 ? bytes : 1;
}

void *must_have(void *memory, size_t bytes, const char *what)
{
    if (!memory) {
        run_out(bytes, what);
    }
    return memory;
}

void *must_alloc(size_t bytes, const char *what)
{
    return must_have(malloc(product(bytes, 1)), bytes, what);
}

void *must_zero(size_t count, size_t size, const char *what)
{
    const size_t bytes = product(count, size);
    return must_have(calloc(bytes, 1), bytes, what);
}

void *must_align(size_t bytes, const char *what)
{
    const size_t line = 64, lines = bytes / line + (bytes % line != 0);
    return must_have(aligned_alloc(line, product(lines > 0 ? lines : 1, line)), bytes, what);
}

void *must_grow(void *old, size_t count, size_t size, const char *what)
{
    const size_t bytes = product(count, size);
    return must_have(realloc(old, bytes), bytes, what);
}

char *must_copy(const char *text)
{
    return must_have(strdup(text), strlen(text) + 1, "a text");
}
