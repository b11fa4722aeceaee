/*
 * Looks at what has arrived without consuming it: the handshake reads it again from the start. A connection counts as
 * readable only when enough of it has arrived (SO_RCVLOWAT), so that half a hello wakes nobody.
 *
 * All wait in one epoll set, whose events carry a session's address or, with the lowest bit set, a pending socket.
 */
#include "net/door.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    RECORD_HANDSHAKE = 22,
    MESSAGE_CLIENT_HELLO = 1,
    MESSAGE_AT = 5,
    PASS_AT = 11, /* after the headers of a record and of a handshake message, and a version */
    ENOUGH = PASS_AT + PASS_SIZE,
    FIRST_WAIT = 1, /* after the wake */
};

static uint64_t tag_of(int fd)
{
    return (uint64_t)fd << 1 | 1;
}

static bool is_pending(const struct epoll_event *event)
{
    return event->data.u64 & 1;
}

bool door_create(struct door *door, const struct credentials *credentials, int room, double timeout_s,
                 struct error *error)
{
    *door = (struct door){.credentials = credentials, .timeout_s = timeout_s, .room = room, .set = -1};
    door->pending = calloc((size_t)room, sizeof *door->pending);
    if (!door->pending) {
        return error_set(error, "out of memory");
    }
    door->set = epoll_create1(EPOLL_CLOEXEC);
    return door->set >= 0 || error_set(error, "can't wait for connections: %s", strerror(errno));
}

void door_destroy(struct door *door)
{
    for (int i = 0; i < door->count; i++) {
        close(door->pending[i].fd);
    }
    if (door->pending && door->set >= 0) {
        close(door->set);
    }
    free(door->pending);
    *door = (struct door){.set = -1};
}

enum wake_result door_wait(struct door *door, int listener, const struct wake *wake, double deadline_s, bool *comes)
{
    struct pollfd waits[] = {[FIRST_WAIT] = {.fd = listener, .events = POLLIN},
                             [FIRST_WAIT + 1] = {.fd = door->set, .events = POLLIN}};
    enum wake_result how = wake_wait_any(waits, FIRST_WAIT + 2, wake, deadline_s);
    *comes = how == WAKE_READY && waits[FIRST_WAIT].revents;
    const int heard =
        how == WAKE_READY && waits[FIRST_WAIT + 1].revents ? epoll_wait(door->set, door->events, DOOR_AT_A_TIME, 0) : 0;
    door->heard = heard > 0 ? heard : 0;
    door->looked_at = door->stirred_at = 0;
    return how;
}

static void want(const struct pending *pending, int bytes)
{
    setsockopt(pending->fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes); /* best effort: saves wake-ups */
}

enum door_look door_look(const struct door *door, struct pending *pending)
{
    uint8_t first[ENOUGH];
    if (!door->credentials) {
        return DOOR_MEMBER;
    }
    ssize_t got = recv(pending->fd, first, sizeof first, MSG_PEEK | MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        return DOOR_NOTHING;
    }
    if (got <= 0) {
        return DOOR_GONE;
    }
    if (first[0] != RECORD_HANDSHAKE) {
        return DOOR_PLAIN;
    }
    if (got < ENOUGH) {
        return DOOR_NOTHING;
    }
    memcpy(pending->pass, first + PASS_AT, sizeof pending->pass);
    const bool member =
        first[MESSAGE_AT] == MESSAGE_CLIENT_HELLO && pass_check(credentials_passes(door->credentials), pending->pass);
    return member ? DOOR_MEMBER : DOOR_STRANGER;
}

static void take_out(struct door *door, int i, struct pending *pending)
{
    *pending = door->pending[i];
    door->count--;
    memmove(door->pending + i, door->pending + i + 1, (size_t)(door->count - i) * sizeof *door->pending);
    epoll_ctl(door->set, EPOLL_CTL_DEL, pending->fd, NULL);
    want(pending, 1);
}

/* The oldest of an address that has half of the room, if it is the new one's address; otherwise the oldest. */
static int whose_time_it_is(const struct door *door, const struct pending *pending)
{
    int same = 0, oldest = 0;
    for (int i = door->count - 1; i >= 0; i--) {
        if (memcmp(&door->pending[i].source, &pending->source, sizeof pending->source) == 0) {
            same++;
            oldest = i;
        }
    }
    return same >= door->room / 2 ? oldest : 0;
}

/* Without memory to wait for a connection it times out at once, since nothing that it sends would be seen. */
bool door_put(struct door *door, const struct pending *pending, struct pending *out)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.u64 = tag_of(pending->fd)};
    const bool full = door->count == door->room;
    if (full) {
        take_out(door, whose_time_it_is(door, pending), out);
    }
    door->pending[door->count++] = *pending;
    want(pending, ENOUGH);
    epoll_ctl(door->set, EPOLL_CTL_ADD, pending->fd, &event);
    return full;
}

static int find(const struct door *door, uint64_t tag)
{
    int i = 0;
    while (i < door->count && tag_of(door->pending[i].fd) != tag) {
        i++;
    }
    return i;
}

enum door_look door_next(struct door *door, double now_s, struct pending *pending)
{
    while (door->looked_at < door->heard) {
        const struct epoll_event *event = &door->events[door->looked_at++];
        const int i = is_pending(event) ? find(door, event->data.u64) : door->count;
        if (i == door->count) {
            continue;
        }
        enum door_look look = door_look(door, &door->pending[i]);
        if (look == DOOR_NOTHING && (event->events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))) {
            look = DOOR_GONE;
        }
        if (look != DOOR_NOTHING) {
            take_out(door, i, pending);
            return look;
        }
    }
    if (door->count > 0 && now_s >= door->pending[0].came_s + door->timeout_s) {
        take_out(door, 0, pending);
        return DOOR_GONE;
    }
    return DOOR_NOTHING;
}

bool door_rest(const struct door *door, int fd, void *session, bool for_requests)
{
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLONESHOT | (for_requests ? EPOLLIN : 0),
                                .data.u64 = (uint64_t)(uintptr_t)session};
    return epoll_ctl(door->set, EPOLL_CTL_MOD, fd, &event) == 0 ||
           epoll_ctl(door->set, EPOLL_CTL_ADD, fd, &event) == 0; /* it rests for the first time */
}

void *door_stirred(struct door *door)
{
    while (door->stirred_at < door->heard) {
        const struct epoll_event *event = &door->events[door->stirred_at++];
        if (!is_pending(event)) {
            return (void *)(uintptr_t)event->data.u64;
        }
    }
    return NULL;
}
