/* From getrusage and /proc/self; takes a few microseconds, except for the list of descriptors. */
#include "base/process/usage.h"

#include <dirent.h>
#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"

static const double LOAD_S = 0.9; /* minimum period of a measurement: each second a client gets a new one */

static double (*_Atomic gpu_seconds)(int *gpus);

/* The last load, and the base of the next measurement. */
static struct {
    _Atomic(double) measured_s, cpu_s, gpu_s; /* measured: 0: never */
    _Atomic(float) cpu_percent, gpu_percent;
    atomic_uint_fast64_t memory_bytes;
} last;

/* --- Counts --- */

static double seconds(struct timeval time)
{
    return (double)time.tv_sec + (double)time.tv_usec * 1e-6;
}

/* -1: not known. */
static int count_entries(const char *path)
{
    DIR *folder = opendir(path);
    int count = -2; /* "." and ".." */
    if (!folder) {
        return -1;
    }
    while (readdir(folder)) {
        count++;
    }
    closedir(folder);
    return count;
}

static int count_descriptors(void)
{
    const int count = count_entries("/proc/self/fd");
    return count > 0 ? count - 1 : count; /* that of the folder itself */
}

static int count_threads(void)
{
    return count_entries("/proc/self/task");
}

static double used_cpu_s(void)
{
    struct rusage usage = {.ru_maxrss = 0};
    getrusage(RUSAGE_SELF, &usage);
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

static void measure_memory(uint64_t *resident_bytes, uint64_t *virtual_bytes)
{
    unsigned long long size = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file) {
        if (fscanf(file, "%llu %llu", &size, &resident) != 2) {
            size = resident = 0;
        }
        fclose(file);
    }
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    *resident_bytes = resident * page;
    *virtual_bytes = size * page;
}

static double used_gpu_s(int *gpus)
{
    double (*const ask)(int *) = atomic_load(&gpu_seconds);
    *gpus = 0;
    return ask ? ask(gpus) : 0;
}

void process_watch_gpus(double (*seconds_of)(int *gpus))
{
    atomic_store(&gpu_seconds, seconds_of);
}

void process_measure(struct process_use *use)
{
    struct rlimit limit;
    *use = (struct process_use){.cpu_s = used_cpu_s(),
                                .descriptors = count_descriptors(),
                                .most_descriptors = getrlimit(RLIMIT_NOFILE, &limit) == 0 ? (int)limit.rlim_cur : -1,
                                .threads = count_threads()};
    measure_memory(&use->resident_bytes, &use->virtual_bytes);
    use->gpu_s = used_gpu_s(&use->gpus);
}

/* --- Load --- */

static void measure_load(double before_s, double now_s)
{
    const bool first = before_s == 0 || now_s <= before_s;
    int gpus;
    uint64_t resident_bytes, virtual_bytes;
    const double cpu_s = used_cpu_s(), gpu_s = used_gpu_s(&gpus), passed_s = now_s - before_s;
    const double cpu_before_s = atomic_exchange(&last.cpu_s, cpu_s);
    const double gpu_before_s = atomic_exchange(&last.gpu_s, gpu_s);
    measure_memory(&resident_bytes, &virtual_bytes);
    atomic_store(&last.memory_bytes, resident_bytes);
    atomic_store(&last.cpu_percent, first ? NAN : (float)(100 * (cpu_s - cpu_before_s) / passed_s));
    atomic_store(&last.gpu_percent,
                 first || gpus == 0 ? NAN : (float)fmin(100, 100 * (gpu_s - gpu_before_s) / passed_s / gpus));
}

void process_load(struct process_load *load)
{
    const double now_s = clock_monotonic_s();
    double before_s = atomic_load(&last.measured_s);
    const bool is_due = before_s == 0 || now_s - before_s >= LOAD_S || now_s < before_s;
    if (is_due && atomic_compare_exchange_strong(&last.measured_s, &before_s, now_s)) {
        measure_load(before_s, now_s);
    }
    *load = (struct process_load){.memory_bytes = atomic_load(&last.memory_bytes),
                                  .cpu_percent = atomic_load(&last.cpu_percent),
                                  .gpu_percent = atomic_load(&last.gpu_percent)};
}
