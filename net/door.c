/*
 * Looking at what has come, without taking it: the handshake reads it again from the beginning. A connection counts as
 * readable only when there is enough of it (SO_RCVLOWAT), so that half a hello wakes nobody.
 */
#include "net/door.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    RECORD_HANDSHAKE = 22,
    MESSAGE_CLIENT_HELLO = 1,
    MESSAGE_AT = 5,
    PASS_AT = 11, /* behind the headers of a record and of a handshake message, and a version */
    ENOUGH = PASS_AT + PASS_SIZE,
    FIRST_WAIT = 2, /* of the pending ones */
};

bool door_create(struct door *door, const struct credentials *credentials, int room, double timeout_s)
{
    *door = (struct door){.credentials = credentials, .timeout_s = timeout_s, .room = room};
    door->pending = calloc((size_t)room, sizeof *door->pending);
    door->waits = calloc((size_t)room + FIRST_WAIT, sizeof *door->waits);
    return door->pending && door->waits;
}

void door_destroy(struct door *door)
{
    for (int i = 0; i < door->count; i++) {
        close(door->pending[i].fd);
    }
    free(door->pending);
    free(door->waits);
    *door = (struct door){.credentials = NULL};
}

enum wake_result door_wait(struct door *door, int listener, const struct wake *wake, double deadline_s, bool *comes)
{
    door->waits[1] = (struct pollfd){.fd = listener, .events = POLLIN};
    for (int i = 0; i < door->count; i++) {
        door->waits[FIRST_WAIT + i] = (struct pollfd){.fd = door->pending[i].fd, .events = POLLIN | POLLRDHUP};
    }
    enum wake_result how = wake_wait_any(door->waits, FIRST_WAIT + door->count, wake, deadline_s);
    *comes = how == WAKE_READY && door->waits[1].revents;
    door->looked_at = how == WAKE_RAISED ? door->count : 0;
    return how;
}

static void want(const struct pending *pending, int bytes)
{
    setsockopt(pending->fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes); /* best effort: else it wakes us more */
}

enum door_look door_look(const struct door *door, struct pending *pending)
{
    uint8_t first[ENOUGH];
    if (!door->credentials) {
        return DOOR_MEMBER;
    }
    ssize_t got = recv(pending->fd, first, sizeof first, MSG_PEEK | MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
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
    memmove(door->waits + FIRST_WAIT + i, door->waits + FIRST_WAIT + i + 1,
            (size_t)(door->count - i) * sizeof *door->waits);
    door->looked_at -= i < door->looked_at;
    want(pending, 1);
}

/* The oldest of an address that has half of the room, if it is the new one's; else the oldest. */
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

bool door_put(struct door *door, const struct pending *pending, struct pending *out)
{
    const bool full = door->count == door->room;
    if (full) {
        take_out(door, whose_time_it_is(door, pending), out);
    }
    door->waits[FIRST_WAIT + door->count].revents = 0;
    door->pending[door->count++] = *pending;
    want(pending, ENOUGH);
    return full;
}

enum door_look door_next(struct door *door, double now_s, struct pending *pending)
{
    for (; door->looked_at < door->count; door->looked_at++) {
        const int i = door->looked_at;
        const short events = door->waits[FIRST_WAIT + i].revents;
        enum door_look look = events ? door_look(door, &door->pending[i]) : DOOR_NOTHING;
        if (look == DOOR_NOTHING &&
            ((events & (POLLRDHUP | POLLHUP | POLLERR)) || now_s >= door->pending[i].came_s + door->timeout_s)) {
            look = DOOR_GONE;
        }
        if (look != DOOR_NOTHING) {
            take_out(door, i, pending);
            return look;
        }
    }
    return DOOR_NOTHING;
}
