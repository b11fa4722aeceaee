/*
 * Locks that check their use: locking twice, unlocking what is not locked, or destroying a locked one ends the test. A
 * test that includes this is linked with locks_link (tests/unit.mk).
 */
#ifndef TESTS_LOCKS_H
#define TESTS_LOCKS_H

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int __real_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes);
int __real_pthread_mutex_lock(pthread_mutex_t *mutex);
int __real_pthread_mutex_unlock(pthread_mutex_t *mutex);
int __real_pthread_mutex_destroy(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_destroy(pthread_mutex_t *mutex);

static inline int locks_demand(int result, const char *what)
{
    if (result != 0) {
        fprintf(stderr, "a mutex can't be %s: %s\n", what, strerror(result));
        abort();
    }
    return 0;
}

int __wrap_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes)
{
    pthread_mutexattr_t checking;
    (void)attributes;
    pthread_mutexattr_init(&checking);
    pthread_mutexattr_settype(&checking, PTHREAD_MUTEX_ERRORCHECK);
    return __real_pthread_mutex_init(mutex, &checking);
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
    return locks_demand(__real_pthread_mutex_lock(mutex), "taken");
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    if (mutex->__data.__owner == 0) { /* also of one that was never initialised */
        locks_demand(EPERM, "given back");
    }
    return locks_demand(__real_pthread_mutex_unlock(mutex), "given back");
}

int __wrap_pthread_mutex_destroy(pthread_mutex_t *mutex)
{
    return locks_demand(__real_pthread_mutex_destroy(mutex), "destroyed");
}

#endif
