/*
 * A wall clock under a test's control. build/clocked/trainer consists of the product's objects, linked so that they
 * read the time here (ld's --wrap). TEST_CLOCK names a file with one double, the seconds by which the clock is ahead;
 * it may change at any time. The monotonic clock remains the system's.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

int __real_clock_gettime(clockid_t id, struct timespec *now);
int __wrap_clock_gettime(clockid_t id, struct timespec *now);
time_t __wrap_time(time_t *to);

static const volatile double *ahead_s;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("TEST_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *mapped = fd >= 0 ? mmap(NULL, sizeof *ahead_s, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (mapped == MAP_FAILED) {
        abort();
    }
    close(fd);
    ahead_s = mapped;
}

int __wrap_clock_gettime(clockid_t id, struct timespec *now)
{
    int result = __real_clock_gettime(id, now);
    if (result == 0 && id == CLOCK_REALTIME) {
        now->tv_sec += (time_t)*ahead_s;
    }
    return result;
}

time_t __wrap_time(time_t *to)
{
    struct timespec now = {0};
    __wrap_clock_gettime(CLOCK_REALTIME, &now);
    if (to) {
        *to = now.tv_sec;
    }
    return now.tv_sec;
}
