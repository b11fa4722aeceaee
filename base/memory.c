/* Reads /proc; a missing value means no limit. */
#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/cgroup.h"

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
