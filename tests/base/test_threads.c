/* The pool: every thread runs once per run, and none passes a barrier before all have arrived. */
#include "base/threads.h"
#include "tests/check.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>

enum { ROUNDS = 300 };

struct shared {
    struct pool *pool;
    atomic_int calls[POOL_MAX_THREADS];
    int values[POOL_MAX_THREADS]; /* deliberately plain: only the barrier orders accesses */
    atomic_int wrong;
};

static void count_call(void *context, int thread)
{
    struct shared *shared = context;
    atomic_fetch_add(&shared->calls[thread], 1);
}

/* In each round every thread writes its own value, all meet, and each reads all values. */
static void exchange(void *context, int thread)
{
    struct shared *shared = context;
    int threads = pool_threads(shared->pool);
    for (int round = 1; round <= ROUNDS; round++) {
        shared->values[thread] = round;
        pool_barrier(shared->pool);
        for (int i = 0; i < threads; i++) {
            if (shared->values[i] != round) {
                atomic_fetch_add(&shared->wrong, 1);
            }
        }
        pool_barrier(shared->pool);
    }
}

static void team_of(int threads)
{
    static struct shared shared;
    shared = (struct shared){0};
    struct error error;
    assert_true(pool_create(&shared.pool, threads, &error));
    assert_int_equal(pool_threads(shared.pool), threads);
    for (int run = 0; run < ROUNDS; run++) {
        pool_run(shared.pool, count_call, &shared);
    }
    for (int i = 0; i < POOL_MAX_THREADS; i++) {
        assert_int_equal(shared.calls[i], i < threads ? ROUNDS : 0);
    }
    pool_run(shared.pool, exchange, &shared);
    assert_int_equal(shared.wrong, 0);
    pool_destroy(shared.pool);
}

TEST(every_team_size)
{
    const int sizes[] = {1, 2, 3, 7, 16}; /* more threads than CPUs, too: then they must sleep, not spin */
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        team_of(sizes[i]);
    }
}

TEST(unused_team_ends)
{
    struct pool *pool;
    struct error error;
    assert_true(pool_create(&pool, 4, &error));
    pool_destroy(pool);
    pool_destroy(NULL);
}

TEST(some_cpu_is_available)
{
    assert_in_range(threads_available(), 1, POOL_MAX_THREADS);
}

static void note_nice(void *context, int thread)
{
    ((int *)context)[thread] = getpriority(PRIO_PROCESS, 0); /* on Linux, of the calling thread */
}

TEST(a_team_gives_way_without_its_caller)
{
    enum { TEAM = 3, NICE = 5 };
    struct pool *pool;
    struct error error;
    int before[TEAM], after[TEAM];
    assert_true(pool_create(&pool, TEAM, &error));
    pool_run(pool, note_nice, before);
    pool_give_way(pool);
    pool_run(pool, note_nice, after);
    assert_int_equal(after[0], before[0]);
    for (int i = 1; i < TEAM; i++) {
        assert_int_equal(after[i], before[i] < NICE ? NICE : before[i]);
    }
    pool_destroy(pool);
}

static void *give_way_in_real_time(void *context)
{
    struct sched_param wanted = {.sched_priority = 7};
    int policy, *priority = context;
    *priority = -1;
    if (pthread_setschedparam(pthread_self(), SCHED_RR, &wanted) == 0) {
        threads_give_way();
        pthread_getschedparam(pthread_self(), &policy, &wanted);
        *priority = policy == SCHED_RR ? wanted.sched_priority : 0;
    }
    return NULL;
}

/* With a policy set by chrt niceness has no effect. */
TEST(who_gives_way_in_real_time_does_so)
{
    pthread_t thread;
    int priority;
    assert_int_equal(pthread_create(&thread, NULL, give_way_in_real_time, &priority), 0);
    pthread_join(thread, NULL);
    if (priority < 0) {
        skip(); /* this needs permission */
    }
    assert_int_equal(priority, 6);
}

int main(void)
{
    return check_run(NULL, NULL);
}
