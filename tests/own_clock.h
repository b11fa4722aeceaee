/*
 * A monotonic clock of the test's own, own_clock_s, which the test defines: the product reads it, and waits with a
 * deadline by it last as long as there is left of it. system_clock_s is the true one.
 */
#ifndef TESTS_OWN_CLOCK_H
#define TESTS_OWN_CLOCK_H

#include <math.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

double own_clock_s(void);

static inline double own_clock_seconds(const struct timespec *time)
{
    return (double)time->tv_sec + (double)time->tv_nsec * 1e-9;
}

static inline struct timespec own_clock_time(double seconds)
{
    const double whole = floor(seconds);
    const long nanoseconds = lround((seconds - whole) * 1e9);
    return nanoseconds < 1000000000 ? (struct timespec){(time_t)whole, nanoseconds}
                                    : (struct timespec){(time_t)whole + 1, 0};
}

static inline double system_clock_s(void)
{
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    return own_clock_seconds(&now);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    if (clock != CLOCK_MONOTONIC) {
        return (int)syscall(SYS_clock_gettime, clock, now);
    }
    *now = own_clock_time(own_clock_s());
    return 0;
}

/* For pthread_cond_timedwait, which the product calls with this clock's times alone. */
static inline int own_clock_wait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until)
{
    const struct timespec then = own_clock_time(system_clock_s() + fmax(own_clock_seconds(until) - own_clock_s(), 0));
    return pthread_cond_clockwait(condition, mutex, CLOCK_MONOTONIC, &then);
}

#ifndef OWN_CLOCK_WITHOUT_WAITS /* the test's own */
int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until)
{
    return own_clock_wait(condition, mutex, until);
}
#endif

#endif
