/* pthread's conditions, with the monotonic clock and relative times. */
#include "base/condition.h"

#include <math.h>
#include <time.h>

void condition_create(pthread_cond_t *condition)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
}

bool condition_wait_for(pthread_cond_t *condition, pthread_mutex_t *mutex, double most_s)
{
    static const long SECOND_NS = 1000000000;
    struct timespec until;
    double whole_s;
    const double part_s = modf(fmax(most_s, 0), &whole_s);
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)(part_s * (double)SECOND_NS);
    until.tv_sec += (time_t)whole_s + until.tv_nsec / SECOND_NS;
    until.tv_nsec %= SECOND_NS;
    return pthread_cond_timedwait(condition, mutex, &until) == 0;
}
