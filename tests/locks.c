/*
 * Locks that check their use, in every unit-test program: locking twice, unlocking what is not locked, or destroying a
 * locked one ends the test.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "tests/system.h"

static int demand(int result, const char *what)
{
    if (result != 0) {
        fprintf(stderr, "a mutex can't be %s: %s\n", what, strerror(result));
        abort();
    }
    return 0;
}

static int (*real_init)(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes);
static int (*real_lock)(pthread_mutex_t *mutex), (*real_unlock)(pthread_mutex_t *mutex),
    (*real_destroy)(pthread_mutex_t *mutex);

/* Before main; what comes earlier is the system's. */
__attribute__((constructor)) static void find_real(void)
{
    real_init = SYSTEM(pthread_mutex_init);
    real_lock = SYSTEM(pthread_mutex_lock);
    real_unlock = SYSTEM(pthread_mutex_unlock);
    real_destroy = SYSTEM(pthread_mutex_destroy);
}

int pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes)
{
    pthread_mutexattr_t checking;
    if (!real_init) {
        find_real();
    }
    pthread_mutexattr_init(&checking);
    pthread_mutexattr_settype(&checking, PTHREAD_MUTEX_ERRORCHECK);
    return real_init(mutex, &checking);
}

/* Of a test that counts them. */
void lock_taken(const pthread_mutex_t *mutex);
__attribute__((weak)) void lock_taken(const pthread_mutex_t *mutex)
{
}

int pthread_mutex_lock(pthread_mutex_t *mutex)
{
    if (!real_lock) {
        find_real();
    }
    lock_taken(mutex);
    return demand(real_lock(mutex), "taken");
}

int pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    if (mutex->__data.__owner == 0) { /* also of one that was never initialised */
        demand(EPERM, "given back");
    }
    return demand(real_unlock(mutex), "given back");
}

int pthread_mutex_destroy(pthread_mutex_t *mutex)
{
    return demand(real_destroy(mutex), "destroyed");
}
