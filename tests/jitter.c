/*
 * Delays for `make test-jitter`. Preloaded into a unit-test program, this makes a thread slow now and then: when it
 * starts, and around the calls by which threads and peers take turns. A test that relies on a fast thread is likely to
 * fail then, on a quiet machine, too. Whatever the program starts is spared.
 */
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "tests/random.h"

enum {
    OFTEN = 4,
    RARELY = 80, /* one call in so many is slow: of most, of locks */
    START = 63   /* the call that starts a thread; the others have numbers from 0 on */
};

static const double LONGEST_NS = 1e8; /* most delays are shorter; */
static const double ALL_NS = 60e9;    /* and all together take no longer, of whatever threads */

static struct test_random first;
static uint64_t slow; /* bits: the calls that are slow in this run, since delays of the others would hide much */
static atomic_int threads;
static atomic_llong spent_ns;

__attribute__((constructor)) static void begin(void)
{
    unsetenv("LD_PRELOAD");
    first = test_random_begin("jitter");
    slow = test_random_next(&first);
    slow &= test_random_next(&first); /* a quarter of them */
}

/* Where this call, of that number, is slow now and then. */
static void linger(int call, int one_in)
{
    static _Thread_local struct test_random random;
    static _Thread_local bool begun;
    if (!begun) {
        random.state = first.state + (uint64_t)atomic_fetch_add(&threads, 1);
        begun = true;
    }
    if ((slow >> call & 1) && test_random_below(&random, one_in) == 0 && atomic_load(&spent_ns) < ALL_NS) {
        const double share = test_random_float(&random);
        const struct timespec pause = {.tv_nsec = (long)(LONGEST_NS * share * share)};
        const int number = errno;
        syscall(SYS_nanosleep, &pause, NULL); /* not one of the calls that a test replaces */
        errno = number;
        atomic_fetch_add(&spent_ns, pause.tv_nsec);
    }
}

/* The definition that the program would have used: a sanitizer's or the system's. */
#define REAL(name)                                                                                                     \
    static __typeof__(&name) real;                                                                                     \
    if (!real) {                                                                                                       \
        *(void **)&real = dlsym(RTLD_NEXT, #name);                                                                     \
    }

#define SLOW(type, name, one_in, arguments, ...)                                                                       \
    type name(__VA_ARGS__)                                                                                             \
    {                                                                                                                  \
        REAL(name)                                                                                                     \
        linger(__COUNTER__, one_in);                                                                                   \
        const type result = real arguments;                                                                            \
        linger(__COUNTER__, one_in);                                                                                   \
        return result;                                                                                                 \
    }

SLOW(ssize_t, read, OFTEN, (fd, bytes, size), int fd, void *bytes, size_t size)
SLOW(ssize_t, readv, OFTEN, (fd, parts, count), int fd, const struct iovec *parts, int count)
SLOW(ssize_t, recv, OFTEN, (fd, bytes, size, flags), int fd, void *bytes, size_t size, int flags)
SLOW(ssize_t, recvmsg, OFTEN, (fd, message, flags), int fd, struct msghdr *message, int flags)
SLOW(ssize_t, write, OFTEN, (fd, bytes, size), int fd, const void *bytes, size_t size)
SLOW(ssize_t, writev, OFTEN, (fd, parts, count), int fd, const struct iovec *parts, int count)
SLOW(ssize_t, send, OFTEN, (fd, bytes, size, flags), int fd, const void *bytes, size_t size, int flags)
SLOW(ssize_t, sendmsg, OFTEN, (fd, message, flags), int fd, const struct msghdr *message, int flags)
SLOW(int, poll, OFTEN, (waits, count, timeout_ms), struct pollfd *waits, nfds_t count, int timeout_ms)
SLOW(int, epoll_wait, OFTEN, (set, events, most, timeout_ms), int set, struct epoll_event *events, int most,
     int timeout_ms)
SLOW(int, shutdown, OFTEN, (fd, how), int fd, int how)
SLOW(int, close, OFTEN, (fd), int fd)
SLOW(int, pthread_mutex_lock, RARELY, (mutex), pthread_mutex_t *mutex)
SLOW(int, pthread_mutex_unlock, RARELY, (mutex), pthread_mutex_t *mutex)

struct start {
    void *(*run)(void *context);
    void *context;
};

static void *run_late(void *context)
{
    const struct start start = *(struct start *)context;
    free(context);
    linger(START, 2);
    return start.run(start.context);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *context)
{
    REAL(pthread_create)
    struct start *start = malloc(sizeof *start);
    if (!start) {
        return EAGAIN;
    }
    *start = (struct start){run, context};
    const int failure = real(thread, attributes, run_late, start);
    if (failure != 0) {
        free(start);
    }
    return failure;
}
