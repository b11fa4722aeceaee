/* From getrusage and /proc/self. */
#include "observe/process.h"

#include <dirent.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

static double seconds(struct timeval time)
{
    return (double)time.tv_sec + (double)time.tv_usec * 1e-6;
}

static int count_descriptors(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int count = -3; /* ".", ".." and the folder itself */
    if (!folder) {
        return -1;
    }
    while (readdir(folder)) {
        count++;
    }
    closedir(folder);
    return count;
}

static int count_threads(void)
{
    DIR *folder = opendir("/proc/self/task");
    int count = -2;
    if (!folder) {
        return -1;
    }
    while (readdir(folder)) {
        count++;
    }
    closedir(folder);
    return count;
}

void process_measure(struct process_use *use)
{
    struct rusage usage = {.ru_maxrss = 0};
    struct rlimit limit;
    unsigned long long size = 0, resident = 0;
    getrusage(RUSAGE_SELF, &usage);
    FILE *file = fopen("/proc/self/statm", "re");
    if (file) {
        if (fscanf(file, "%llu %llu", &size, &resident) != 2) {
            size = resident = 0;
        }
        fclose(file);
    }
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    *use = (struct process_use){.cpu_s = seconds(usage.ru_utime) + seconds(usage.ru_stime),
                                .resident_bytes = resident * page,
                                .virtual_bytes = size * page,
                                .descriptors = count_descriptors(),
                                .most_descriptors = getrlimit(RLIMIT_NOFILE, &limit) == 0 ? (int)limit.rlim_cur : -1,
                                .threads = count_threads()};
}
