/*
 * A counter incremented by every run wakes the team; another one, incremented by every barrier, releases it. Waiters of
 * both spin for some tens of microseconds, then sleep on the counter (a futex). The waker enters the kernel only if a
 * thread sleeps.
 */
#include "base/threads.h"

#include <assert.h>
#include <errno.h>
#include <linux/futex.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/memory.h"
#include "base/profile.h"

enum { CACHE_LINE = 64, SPIN_ROUNDS = 2000 };

/* A word that only grows, and the number of threads asleep on it. */
struct counter {
    _Alignas(CACHE_LINE) atomic_uint value;
    atomic_uint sleepers;
};

struct pool_thread {
    struct pool *pool;
    pthread_t thread;
    int number;
};

struct pool {
    struct counter runs;
    struct counter barriers;
    _Alignas(CACHE_LINE) atomic_uint arrived;
    void (*work)(void *context, int thread);
    void *context;
    bool stopping;
    int threads;
    int spin_rounds;
    struct pool_thread *members;
};

/* Waits until the word differs from `old`; returns the new value. */
static void counter_await(struct counter *counter, unsigned old, int spin_rounds)
{
    for (int i = 0; i < spin_rounds; i++) {
        if (atomic_load_explicit(&counter->value, memory_order_acquire) != old) {
            return;
        }
        cpu_relax();
    }
    atomic_fetch_add(&counter->sleepers, 1);
    while (atomic_load(&counter->value) == old) {
        syscall(SYS_futex, &counter->value, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
    }
    atomic_fetch_sub(&counter->sleepers, 1);
}

static void counter_advance(struct counter *counter)
{
    atomic_fetch_add(&counter->value, 1);
    if (atomic_load(&counter->sleepers) > 0) {
        syscall(SYS_futex, &counter->value, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
    }
}

int threads_available(void)
{
    cpu_set_t set;
    int cpus = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    int quota = cgroup_limits().cpus;
    if (quota > 0 && quota < cpus) {
        cpus = quota;
    }
    return cpus < 1 ? 1 : cpus > POOL_MAX_THREADS ? POOL_MAX_THREADS : cpus;
}

void threads_run_soon(void)
{
    /* The struct of sched_setattr(2); under this policy "runtime" is the requested time slice. */
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime_ns, deadline_ns, period_ns;
    } attributes = {.size = sizeof attributes};
    if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) == 0 && attributes.policy == SCHED_OTHER) {
        attributes.runtime_ns = 100 * 1000;
        attributes.flags |= 1;                         /* SCHED_FLAG_RESET_ON_FORK */
        syscall(SYS_sched_setattr, 0, &attributes, 0); /* best effort: a failure changes nothing */
    }
}

void threads_give_way(void)
{
    enum { NICE = 5 };
    struct sched_param real_time;
    int policy;
    if (pthread_getschedparam(pthread_self(), &policy, &real_time) == 0 &&
        (policy == SCHED_FIFO || policy == SCHED_RR)) { /* with a policy set by chrt, niceness has no effect */
        real_time.sched_priority--;
        pthread_setschedparam(pthread_self(), policy, &real_time);
        return;
    }
    errno = 0;
    int now = getpriority(PRIO_PROCESS, 0); /* on Linux, per thread */
    if (errno == 0 && now < NICE) {
        setpriority(PRIO_PROCESS, 0, NICE);
    }
}

static void *member_main(void *argument)
{
    profile_thread("compute");
    struct pool_thread *member = argument;
    struct pool *pool = member->pool;
    for (unsigned run = 0;; run++) {
        counter_await(&pool->runs, run, pool->spin_rounds);
        if (pool->stopping) {
            return NULL;
        }
        pool->work(pool->context, member->number);
        pool_barrier(pool);
    }
}

bool pool_create(struct pool **out, int threads, struct error *error)
{
    assert(threads >= 1 && threads <= POOL_MAX_THREADS);
    struct pool *pool = must_align(sizeof *pool, "a team of threads");
    struct pool_thread *members = must_zero((size_t)threads, sizeof *members, "a team of threads");
    memset(pool, 0, sizeof *pool);
    pool->members = members;
    pool->spin_rounds = threads <= threads_available() ? SPIN_ROUNDS : 0;
    pool->threads = 1;
    for (int i = 1; i < threads; i++) {
        members[i] = (struct pool_thread){.pool = pool, .number = i};
        int reason = pthread_create(&members[i].thread, NULL, member_main, &members[i]);
        if (reason != 0) {
            pool_destroy(pool);
            return error_set(error, "cannot start thread %d of %d: %s; choose a smaller --num_threads", i + 1, threads,
                             strerror(reason));
        }
        pool->threads = i + 1;
    }
    *out = pool;
    return true;
}

void pool_destroy(struct pool *pool)
{
    if (!pool) {
        return;
    }
    pool->stopping = true;
    counter_advance(&pool->runs);
    for (int i = 1; i < pool->threads; i++) {
        pthread_join(pool->members[i].thread, NULL);
    }
    free(pool->members);
    free(pool);
}

int pool_threads(const struct pool *pool)
{
    return pool->threads;
}

void pool_run(struct pool *pool, void (*work)(void *context, int thread), void *context)
{
    pool->work = work;
    pool->context = context;
    counter_advance(&pool->runs);
    work(context, 0);
    pool_barrier(pool);
}

static void give_way(void *context, int thread)
{
    (void)context;
    if (thread > 0) {
        threads_give_way();
    }
}

void pool_give_way(struct pool *pool)
{
    pool_run(pool, give_way, NULL);
}

void pool_barrier(struct pool *pool)
{
    if (pool->threads == 1) {
        return;
    }
    unsigned barrier = atomic_load_explicit(&pool->barriers.value, memory_order_acquire);
    if (atomic_fetch_add(&pool->arrived, 1) + 1 == (unsigned)pool->threads) {
        atomic_store_explicit(&pool->arrived, 0, memory_order_relaxed);
        counter_advance(&pool->barriers);
    } else {
        PROFILE("wait for other threads");
        counter_await(&pool->barriers, barrier, pool->spin_rounds);
    }
}

/* --- Waiting until a deadline --- */

/* pthread's conditions, with the monotonic clock and relative times. */

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
