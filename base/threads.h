/*
 * A fixed team of threads, and the barrier that they meet at.
 *
 * The caller of pool_run is thread 0 of the team; the others are created once and sleep between runs. A pool is
 * driven by one thread at a time. Waiting spins for a short while (only if the team fits the CPUs it may use) and
 * then sleeps, so that an oversubscribed box makes progress.
 */
#ifndef BASE_THREADS_H
#define BASE_THREADS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/error.h"

enum { POOL_MAX_THREADS = 64 };

struct pool;

/* The CPUs this process may use: its affinity mask, bounded by the cgroup's CPU quota; at least 1. */
int threads_available(void);

/*
 * The calling thread works in short bursts that others wait for: where the scheduler can be told (Linux 6.12 and on), it
 * is to run soon rather than long, at the cost of nobody's share of the processor. What it starts is not.
 */
void threads_run_soon(void);

/*
 * The calling thread, and those that it creates from now on, leave the processor to others that want it (nice 5, unless
 * it is nicer already). It can't be taken back, and what the thread executes inherits it: see restart_stand_by.
 */
void threads_give_way(void);

/* threads: 1..POOL_MAX_THREADS. */
bool pool_create(struct pool **pool, int threads, struct error *error);
void pool_destroy(struct pool *pool); /* NULL is fine */
int pool_threads(const struct pool *pool);
void pool_give_way(struct pool *pool); /* threads_give_way for all of the team but the caller */

/* Runs work(context, thread) once on every thread of the team, thread = 0..pool_threads-1, and waits for all. */
void pool_run(struct pool *pool, void (*work)(void *context, int thread), void *context);

/* Called inside pool_run by every thread of the team: nobody leaves before all have come. A full memory barrier. */
void pool_barrier(struct pool *pool);

#endif
