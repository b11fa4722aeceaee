/* sd_notify's protocol without libsystemd: a datagram suffices. */
#include "base/process/notify.h"

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"

enum { MAX_MESSAGE = 512 };

static void send_text(const char *text)
{
    const char *name = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (!name || (name[0] != '/' && name[0] != '@') || strlen(name) >= sizeof address.sun_path) {
        return;
    }
    memcpy(address.sun_path, name, strlen(name));
    if (name[0] == '@') {
        address.sun_path[0] = '\0';
    }
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd >= 0) {
        const socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name));
        /* A missing reader is no error: the process that set the variable has exited. */
        (void)sendto(fd, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT, (const struct sockaddr *)&address, size);
        close(fd);
    }
}

void notify_ready(const char *status)
{
    char text[MAX_MESSAGE];
    snprintf(text, sizeof text, "READY=1\nSTATUS=%.400s\n", status);
    send_text(text);
}

void notify_stopping(void)
{
    send_text("STOPPING=1\n");
}

void notify_restarting(void)
{
    char text[MAX_MESSAGE];
    snprintf(text, sizeof text, "RELOADING=1\nMONOTONIC_USEC=%" PRId64 "\nSTATUS=restarting\n",
             (int64_t)(clock_monotonic_s() * 1e6));
    send_text(text);
}

int notify_listener(void)
{
    enum { FIRST = 3 };
    const char *process = getenv("LISTEN_PID"), *count = getenv("LISTEN_FDS");
    const bool is_ours = process && count && strtoll(process, NULL, 10) == getpid() && strtol(count, NULL, 10) > 0;
    unsetenv("LISTEN_PID"); /* not meant for children */
    unsetenv("LISTEN_FDS");
    int listens = 0;
    socklen_t size = sizeof listens;
    if (!is_ours || getsockopt(FIRST, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || !listens ||
        fcntl(FIRST, F_SETFD, FD_CLOEXEC) != 0 || fcntl(FIRST, F_SETFL, O_NONBLOCK) != 0) {
        return 0;
    }
    return FIRST;
}

/* Seconds between two keepalives; 0: none are needed. */
static double interval;

static void find_interval(void)
{
    const char *usec = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    if (usec && (!pid || strtol(pid, NULL, 10) == (long)getpid())) {
        interval = strtod(usec, NULL) / 2e6;
    }
}

void notify_alive(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static atomic_llong last_us;
    pthread_once(&once, find_interval);
    if (!(interval > 0)) {
        return;
    }
    const long long now_us = (long long)(clock_monotonic_s() * 1e6), before_us = atomic_load(&last_us);
    if ((double)(now_us - before_us) / 1e6 >= interval) {
        atomic_store(&last_us, now_us);
        send_text("WATCHDOG=1\n");
    }
}
