/*
 * A command that hangs, with a timeout that is long enough for everything before it on a busy machine: while that
 * command is under way, this thread's clock runs HURRY times as fast. Link with $(hung_link).
 */
#ifndef TESTS_CUDA_HUNG_H
#define TESTS_CUDA_HUNG_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

enum { HURRY = 25 };

static bool next_hangs;                                  /* the next command that computes */
static _Thread_local int64_t hurries_since_ns, ahead_ns; /* since when the clock hurries; 0: it does not */

int __real_clock_gettime(clockid_t clock, struct timespec *time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *time);
void __real_gpu_use_begin(void);
void __wrap_gpu_use_begin(void);
void __real_gpu_use_end(void);
void __wrap_gpu_use_end(void);

static inline int64_t real_ns(void)
{
    struct timespec now;
    __real_clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int __wrap_clock_gettime(clockid_t clock, struct timespec *time)
{
    if (clock != CLOCK_MONOTONIC) {
        return __real_clock_gettime(clock, time);
    }
    const int64_t now_ns = real_ns(), hurried_ns = hurries_since_ns > 0 ? (HURRY - 1) * (now_ns - hurries_since_ns) : 0;
    const int64_t shown_ns = now_ns + ahead_ns + hurried_ns;
    *time = (struct timespec){.tv_sec = shown_ns / 1000000000, .tv_nsec = shown_ns % 1000000000};
    return 0;
}

void __wrap_gpu_use_begin(void)
{
    __real_gpu_use_begin();
    hurries_since_ns = next_hangs ? real_ns() : 0;
    next_hangs = false;
}

/* What it ran ahead, it stays ahead. */
void __wrap_gpu_use_end(void)
{
    ahead_ns += hurries_since_ns > 0 ? (HURRY - 1) * (real_ns() - hurries_since_ns) : 0;
    hurries_since_ns = 0;
    __real_gpu_use_end();
}

#endif
