#include "base/memory.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The number of KiB behind a name in /proc/meminfo. */
static bool read_available(uint64_t *kib)
{
    char line[128];
    unsigned long long number;
    bool found = false;
    FILE *file = fopen("/proc/meminfo", "re");
    while (file != NULL && !found && fgets(line, sizeof line, file) != NULL) {
        found = sscanf(line, "MemAvailable: %llu kB", &number) == 1;
    }
    if (file != NULL) {
        fclose(file);
    }
    *kib = found ? number : 0;
    return found;
}

static bool read_resident(uint64_t *pages)
{
    unsigned long long total, resident;
    FILE *file = fopen("/proc/self/statm", "re");
    bool found = file != NULL && fscanf(file, "%llu %llu", &total, &resident) == 2;
    if (file != NULL) {
        fclose(file);
    }
    *pages = found ? resident : 0;
    return found;
}

bool memory_for_this_process(uint64_t *bytes)
{
    uint64_t kib, pages;
    if (!read_available(&kib) || !read_resident(&pages)) {
        return false;
    }
    *bytes = kib * 1024 + pages * (uint64_t)sysconf(_SC_PAGESIZE);
    return true;
}
