/*
 * First bytes are peeked at, not consumed: the handshake reads them again. A pending connection counts as readable only
 * when enough has arrived (SO_RCVLOWAT), so that half a ClientHello causes no wake-up.
 *
 * All are in one epoll set, whose events carry a session's address or, with the lowest bit set, a pending socket.
 */
#include "net/listener_internal.h"

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
    TOKEN_AT = 11, /* after the headers of a record and of a handshake message, and a version */
    FIRST_BYTES = TOKEN_AT + HANDSHAKE_TOKEN_SIZE,
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

bool accept_queue_create(struct accept_queue *queue, const struct credentials *credentials, int room, double timeout_s,
                         struct error *error)
{
    *queue = (struct accept_queue){.credentials = credentials, .timeout_s = timeout_s, .room = room, .epoll = -1};
    queue->pending = calloc((size_t)room, sizeof *queue->pending);
    if (!queue->pending) {
        return error_set(error, "out of memory");
    }
    queue->epoll = epoll_create1(EPOLL_CLOEXEC);
    return queue->epoll >= 0 || error_set(error, "can't wait for connections: %s", strerror(errno));
}

void accept_queue_destroy(struct accept_queue *queue)
{
    for (int i = 0; i < queue->count; i++) {
        close(queue->pending[i].fd);
    }
    if (queue->pending && queue->epoll >= 0) {
        close(queue->epoll);
    }
    free(queue->pending);
    *queue = (struct accept_queue){.epoll = -1};
}

enum wake_result accept_queue_wait(struct accept_queue *queue, int listener, const struct wake *wake, double deadline_s,
                                   bool *connects)
{
    struct pollfd waits[] = {[FIRST_WAIT] = {.fd = listener, .events = POLLIN},
                             [FIRST_WAIT + 1] = {.fd = queue->epoll, .events = POLLIN}};
    enum wake_result how = wake_wait_any(waits, FIRST_WAIT + 2, wake, deadline_s);
    *connects = how == WAKE_READY && waits[FIRST_WAIT].revents;
    const int count = how == WAKE_READY && waits[FIRST_WAIT + 1].revents
                          ? epoll_wait(queue->epoll, queue->events, ACCEPT_QUEUE_EVENTS, 0)
                          : 0;
    queue->event_count = count > 0 ? count : 0;
    queue->next_pending = queue->next_ready = 0;
    return how;
}

static void set_low_water_mark(const struct pending *pending, int bytes)
{
    setsockopt(pending->fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes); /* best effort: saves wake-ups */
}

enum peer_class accept_queue_classify(const struct accept_queue *queue, struct pending *pending)
{
    uint8_t first[FIRST_BYTES];
    if (!queue->credentials) {
        return PEER_MEMBER;
    }
    ssize_t got = recv(pending->fd, first, sizeof first, MSG_PEEK | MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        return PEER_UNKNOWN;
    }
    if (got <= 0) {
        return PEER_GONE;
    }
    if (first[0] != RECORD_HANDSHAKE) {
        return PEER_PLAIN;
    }
    if (got < FIRST_BYTES) {
        return PEER_UNKNOWN;
    }
    memcpy(pending->token, first + TOKEN_AT, sizeof pending->token);
    const bool member = first[MESSAGE_AT] == MESSAGE_CLIENT_HELLO &&
                        handshake_token_check(credentials_token_keys(queue->credentials), pending->token);
    return member ? PEER_MEMBER : PEER_UNAUTHENTICATED;
}

static void remove_at(struct accept_queue *queue, int i, struct pending *pending)
{
    *pending = queue->pending[i];
    queue->count--;
    memmove(queue->pending + i, queue->pending + i + 1, (size_t)(queue->count - i) * sizeof *queue->pending);
    epoll_ctl(queue->epoll, EPOLL_CTL_DEL, pending->fd, NULL);
    set_low_water_mark(pending, 1);
}

/* The oldest of an address that has half of the room, if it is the new one's address; otherwise the oldest. */
static int eviction_index(const struct accept_queue *queue, const struct pending *pending)
{
    int same = 0, oldest = 0;
    for (int i = queue->count - 1; i >= 0; i--) {
        if (memcmp(&queue->pending[i].source, &pending->source, sizeof pending->source) == 0) {
            same++;
            oldest = i;
        }
    }
    return same >= queue->room / 2 ? oldest : 0;
}

/* Without memory to wait for a connection it times out, since nothing that it sends would be seen. */
bool accept_queue_add(struct accept_queue *queue, const struct pending *pending, struct pending *evicted)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.u64 = tag_of(pending->fd)};
    const bool full = queue->count == queue->room;
    if (full) {
        remove_at(queue, eviction_index(queue, pending), evicted);
    }
    queue->pending[queue->count++] = *pending;
    set_low_water_mark(pending, FIRST_BYTES);
    epoll_ctl(queue->epoll, EPOLL_CTL_ADD, pending->fd, &event);
    return full;
}

static int find(const struct accept_queue *queue, uint64_t tag)
{
    int i = 0;
    while (i < queue->count && tag_of(queue->pending[i].fd) != tag) {
        i++;
    }
    return i;
}

enum peer_class accept_queue_next(struct accept_queue *queue, double now_s, struct pending *pending)
{
    while (queue->next_pending < queue->event_count) {
        const struct epoll_event *event = &queue->events[queue->next_pending++];
        const int i = is_pending(event) ? find(queue, event->data.u64) : queue->count;
        if (i == queue->count) {
            continue;
        }
        enum peer_class class = accept_queue_classify(queue, &queue->pending[i]);
        if (class == PEER_UNKNOWN && (event->events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))) {
            class = PEER_GONE;
        }
        if (class != PEER_UNKNOWN) {
            remove_at(queue, i, pending);
            return class;
        }
    }
    if (queue->count > 0 && now_s >= queue->pending[0].since_s + queue->timeout_s) {
        remove_at(queue, 0, pending);
        return PEER_GONE;
    }
    return PEER_UNKNOWN;
}

bool accept_queue_park(const struct accept_queue *queue, int fd, void *session, bool for_input)
{
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLONESHOT | (for_input ? EPOLLIN : 0),
                                .data.u64 = (uint64_t)(uintptr_t)session};
    return epoll_ctl(queue->epoll, EPOLL_CTL_MOD, fd, &event) == 0 ||
           epoll_ctl(queue->epoll, EPOLL_CTL_ADD, fd, &event) == 0; /* it is parked for the first time */
}

void *accept_queue_next_ready(struct accept_queue *queue)
{
    while (queue->next_ready < queue->event_count) {
        const struct epoll_event *event = &queue->events[queue->next_ready++];
        if (!is_pending(event)) {
            return (void *)(uintptr_t)event->data.u64;
        }
    }
    return NULL;
}
