/*
 * Every wait with a deadline in this program goes through the one poll here, so that signals, wakes and a clock that is
 * slightly late are handled in one place.
 */
#include "net/wake.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"

bool wake_create(struct wake *wake, struct error *error)
{
    wake->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    return wake->fd >= 0 || error_set(error, "can't create an eventfd: %s", strerror(errno));
}

void wake_destroy(struct wake *wake)
{
    if (wake->fd >= 0) {
        close(wake->fd);
        wake->fd = -1;
    }
}

void wake_raise(struct wake *wake)
{
    int kept = errno;
    eventfd_write(wake->fd, 1); /* it can fail only if the counter is full, and so raised already */
    errno = kept;
}

void wake_lower(struct wake *wake)
{
    eventfd_t count;
    eventfd_read(wake->fd, &count);
}

/* Milliseconds until the deadline, rounded up: poll must not return just before it, over and over. */
static int milliseconds_left(double deadline_s)
{
    double left = ceil((deadline_s - clock_monotonic_s()) * 1e3);
    return left <= 0 ? 0 : left > 1e6 ? 1000000 : (int)left;
}

enum wake_result wake_wait_any(struct pollfd *waits, int count, const struct wake *wake, double deadline_s)
{
    waits[0] = (struct pollfd){.fd = wake ? wake->fd : -1, .events = POLLIN};
    for (;;) {
        int timeout_ms = milliseconds_left(deadline_s);
        int ready = poll(waits, (nfds_t)count, timeout_ms);
        if (ready > 0) {
            return waits[0].revents ? WAKE_RAISED : WAKE_READY;
        }
        if (ready == 0 && milliseconds_left(deadline_s) == 0) {
            return WAKE_TIMEOUT;
        }
        assert(ready == 0 || errno == EINTR || errno == ENOMEM || errno == EAGAIN);
    }
}

enum wake_result wake_wait(int fd, short events, const struct wake *wake, double deadline_s)
{
    struct pollfd waits[] = {{.fd = -1}, {.fd = fd, .events = events}};
    return wake_wait_any(waits, 2, wake, deadline_s);
}
