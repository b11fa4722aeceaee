/*
 * Waits with a deadline, on a poll that does all it is allowed to: returns early, is interrupted, and can't wait long
 * at a time. The test's own clock advances by what poll waits.
 */
#include "net/socket.h"
#include "tests/check.h"

#include <errno.h>
#include <math.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/own_clock.h"
#include "tests/system.h"

static struct {
    bool mine; /* otherwise the system's */
    double now_s;
    int calls, interrupted; /* calls that a signal ends, of the next ones */
    double early_s;         /* how much too early poll returns */
    int longest_ms;
} script;

int poll(struct pollfd *waits, nfds_t count, int timeout_ms)
{
    if (!script.mine) {
        return SYSTEM(poll)(waits, count, timeout_ms);
    }
    script.calls++;
    assert_true(timeout_ms >= 0); /* a wait with a deadline is never for ever */
    script.longest_ms = timeout_ms > script.longest_ms ? timeout_ms : script.longest_ms;
    const int ready = SYSTEM(poll)(waits, count, 0);
    if (ready != 0) {
        return ready;
    }
    if (script.interrupted > 0) {
        script.interrupted--;
        script.now_s += timeout_ms / 2e3;
        errno = EINTR;
        return -1;
    }
    script.now_s += timeout_ms / 1e3 - script.early_s;
    script.early_s = 0;
    return 0;
}

double own_clock_s(void)
{
    return script.mine ? script.now_s : system_clock_s();
}

static void begin(double now_s)
{
    script.mine = true;
    script.now_s = now_s;
    script.calls = script.interrupted = script.longest_ms = 0;
    script.early_s = 0;
}

static int end(void **state)
{
    script.mine = false;
    return 0;
}

TEST_WITH(a_deadline_is_met, NULL, end)
{
    begin(100);
    assert_int_equal(wake_wait(-1, 0, NULL, 100.5), WAKE_TIMEOUT);
    assert_true(script.now_s >= 100.5 && script.now_s < 100.502);
    assert_int_equal(script.calls, 1);
    begin(100);
    assert_int_equal(wake_wait(-1, 0, NULL, 100.0004), WAKE_TIMEOUT); /* part of a millisecond counts as a whole one */
    assert_int_equal(script.calls, 1);
    assert_int_equal(script.longest_ms, 1);
    begin(100);
    assert_int_equal(wake_wait(-1, 0, NULL, 99), WAKE_TIMEOUT); /* just checks */
    assert_int_equal(script.calls, 1);
    assert_int_equal(script.longest_ms, 0);
}

/* Neither a signal nor a poll that returns too early ends a wait; nor does a wait too long for poll. */
TEST_WITH(nothing_else_ends_it, NULL, end)
{
    begin(100);
    script.interrupted = 3;
    assert_int_equal(wake_wait(-1, 0, NULL, 101), WAKE_TIMEOUT);
    assert_true(script.now_s >= 101 && script.now_s < 101.01);
    assert_int_equal(script.calls, 4);
    begin(100);
    script.early_s = 0.3;
    assert_int_equal(wake_wait(-1, 0, NULL, 101), WAKE_TIMEOUT);
    assert_true(script.now_s >= 101 && script.now_s < 101.01);
    assert_int_equal(script.calls, 2);
    begin(0);
    assert_int_equal(wake_wait(-1, 0, NULL, 1e7), WAKE_TIMEOUT);
    assert_true(script.now_s >= 1e7);
    assert_true(script.longest_ms >= 1000 && script.calls <= 10000);
}

/* Says which of the two it was; the wake comes first. */
TEST_WITH(what_ended_it, NULL, end)
{
    struct wake wake;
    struct error error;
    int ends[2];
    assert_true(wake_create(&wake, &error));
    assert_int_equal(pipe(ends), 0);
    begin(100);
    assert_int_equal(wake_wait(ends[0], POLLIN, &wake, 101), WAKE_TIMEOUT);
    assert_int_equal(wake_wait(ends[1], POLLOUT, &wake, INFINITY), WAKE_READY);
    assert_int_equal(write(ends[1], "x", 1), 1);
    assert_int_equal(wake_wait(ends[0], POLLIN, &wake, INFINITY), WAKE_READY);
    errno = ENOENT;
    for (int i = 0; i < 3; i++) {
        wake_raise(&wake);
    }
    assert_int_equal(errno, ENOENT); /* a signal handler leaves no trace */
    assert_int_equal(wake_wait(ends[0], POLLIN, &wake, INFINITY), WAKE_RAISED);
    assert_int_equal(wake_wait(-1, 0, &wake, 0), WAKE_RAISED); /* it stays raised */
    wake_lower(&wake);
    wake_lower(&wake);
    assert_int_equal(wake_wait(-1, 0, &wake, script.now_s), WAKE_TIMEOUT);
    assert_int_equal(wake_wait(ends[0], POLLIN, &wake, INFINITY), WAKE_READY);
    struct pollfd waits[] = {{.fd = -1}, {.fd = ends[1], .events = POLLIN}, {.fd = ends[0], .events = POLLIN}};
    assert_int_equal(wake_wait_any(waits, 3, NULL, INFINITY), WAKE_READY);
    assert_int_equal(waits[1].revents, 0);
    assert_int_equal(waits[2].revents, POLLIN);
    close(ends[0]);
    close(ends[1]);
    wake_destroy(&wake);
    assert_int_equal(wake.fd, -1);
    assert_int_equal(pipe(ends), 0); /* one of these has the number that the wake had */
    wake_destroy(&wake);
    assert_int_equal(close(ends[0]), 0);
    assert_int_equal(close(ends[1]), 0);
}

/* Its descriptor is free again afterwards; destroying it twice, or an empty one, is fine. */
TEST_WITH(nothing_is_left_open, NULL, end)
{
    struct wake wake, next;
    struct error error;
    assert_true(wake_create(&wake, &error));
    const int fd = wake.fd;
    wake_destroy(&wake);
    assert_int_equal(wake.fd, -1);
    assert_true(wake_create(&next, &error));
    assert_int_equal(next.fd, fd);
    wake_destroy(&wake);
    wake_raise(&next); /* it is still open */
    assert_int_equal(wake_wait(-1, 0, &next, clock_monotonic_s() + 5), WAKE_RAISED);
    wake_destroy(&next);
}

int main(void)
{
    return check_run(NULL, NULL);
}
