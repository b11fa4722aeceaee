/*
 * Conditions that can be waited for by the clock that never goes back: the default of the system is the wall clock,
 * which people set.
 */
#ifndef BASE_CONDITION_H
#define BASE_CONDITION_H

#include <pthread.h>
#include <stdbool.h>

/* To be destroyed by pthread_cond_destroy. */
void condition_create(pthread_cond_t *condition);

/*
 * As pthread_cond_wait, but no longer than this; below 0 is no time at all. false: it was that long. As ever, it may
 * return early for nothing.
 */
bool condition_wait_for(pthread_cond_t *condition, pthread_mutex_t *mutex, double most_s);

#endif
