/*
 * A fixed team of threads with a barrier.
 *
 * The caller of pool_run is thread 0 of the team; the others are created once and sleep between runs. A pool is driven
 * by one thread at a time. Waiting spins for a short while (only if the team fits the CPUs it may use) and then sleeps,
 * so that an oversubscribed machine makes progress.
 */
#ifndef BASE_THREADS_H
#define BASE_THREADS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/error.h"

enum { POOL_MAX_THREADS = 64 };

struct pool;

/* The CPUs this process may use: its affinity mask, bounded by its cgroups' CPU quota (base/memory.h); at least 1. */
int threads_available(void);

/*
 * For a thread that works in short bursts which others wait for: asks the scheduler (Linux 6.12 and later) for low
 * latency rather than long time slices, without a larger share of the CPU. Not inherited by threads it creates.
 */
void threads_run_soon(void);

/*
 * Lowers the priority of the calling thread and of the threads it creates from now on: to nice 5, unless it is nicer
 * already; a real-time thread's priority by one. It cannot be undone, and programs the thread executes inherit it: see
 * restart_spawn_helper.
 */
void threads_give_way(void);

/* threads: 1..POOL_MAX_THREADS. */
bool pool_create(struct pool **pool, int threads, struct error *error);
void pool_destroy(struct pool *pool); /* NULL is fine */
int pool_threads(const struct pool *pool);
void pool_give_way(struct pool *pool); /* threads_give_way for the whole team except the caller */

/* Runs work(context, thread) once on every thread of the team, thread = 0..pool_threads-1, and waits for all. */
void pool_run(struct pool *pool, void (*work)(void *context, int thread), void *context);

/* Called inside pool_run by every thread of the team; returns once all have arrived. A full memory barrier. */
void pool_barrier(struct pool *pool);

/* --- Waiting until a deadline --- */

/*
 * Conditions that can be waited for by the clock that never goes back: the default of the system is the wall clock,
 * which people set.
 */

/* To be destroyed by pthread_cond_destroy. */
void condition_create(pthread_cond_t *condition);

/*
 * As pthread_cond_wait, but no longer than this; below 0 is no time at all. false: it was that long. As ever, it may
 * return early for nothing.
 */
bool condition_wait_for(pthread_cond_t *condition, pthread_mutex_t *mutex, double most_s);

#endif
