/* Waits with a deadline, and a flag by which any thread or signal handler can end them. */
#ifndef NET_WAKE_H
#define NET_WAKE_H

#include <poll.h>
#include <stdbool.h>

#include "base/error.h"

struct wake {
    int fd; /* an eventfd: readable while raised */
};
bool wake_create(struct wake *wake, struct error *error);
void wake_destroy(struct wake *wake); /* fine on one whose fd is -1 */
void wake_raise(struct wake *wake);   /* safe in signal handlers; stays raised */
void wake_lower(struct wake *wake);

/* How a wait ended. */
enum wake_result { WAKE_READY, WAKE_TIMEOUT, WAKE_RAISED };

/*
 * Waits for `events` (POLLIN, POLLOUT) or an error on `fd` (-1: none); the next call on it shows which. Ends at the
 * deadline, in seconds of clock_monotonic_s, or when the wake (NULL: none) is raised.
 */
enum wake_result wake_wait(int fd, short events, const struct wake *wake, double deadline_s);

/* The same for several, filled in by poll(2); the first is the wake's. A deadline in the past only polls. */
enum wake_result wake_wait_any(struct pollfd *waits, int count, const struct wake *wake, double deadline_s);

#endif
