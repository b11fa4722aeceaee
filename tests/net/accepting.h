/* Accepts connections by hand, in place of a listener, for tests that play the other side. */
#ifndef TESTS_NET_ACCEPTING_H
#define TESTS_NET_ACCEPTING_H

#include <stddef.h>

#include "base/clock.h"
#include "net/socket.h"

/* Waits for one; `peer` gets its address as text. False if none came in time. */
static inline bool accept_in_time(int listener, int *fd, char peer[ENDPOINT_TEXT], double deadline_s,
                                  struct error *error)
{
    struct endpoint from;
    enum socket_accepted taken;
    while ((taken = socket_accept(listener, fd, &from, error)) == SOCKET_NONE) {
        if (wake_wait(listener, POLLIN, NULL, deadline_s) != WAKE_READY) {
            return error_set(error, "nobody connected in time");
        }
    }
    if (taken == SOCKET_ACCEPTED) {
        socket_set_options(*fd, &from);
        endpoint_format(&from, peer);
    }
    return taken == SOCKET_ACCEPTED;
}

#endif
