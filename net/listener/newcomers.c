/*
 * Bounds what strangers can cost this process: places, time, CPU time and log lines. Members that arrive faster than it
 * can handshake wait in the lobby, first come, first served.
 */
#include <math.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "net/listener/internal.h"
#include "net/socket.h"

static const double BUSY_S = 0.005; /* pause after a refusal: refused peers come in bursts */

/* --- Refusals --- */

void listener_note_refusal(struct listener *listener, enum complaint cause, const struct admission_source *source,
                           const char *peer, const struct error *error)
{
    lock(listener);
    const bool said = complaints_note(&listener->complaints, cause, source, peer, error, clock_monotonic_s());
    unlock(listener);
    if (said) {
        log_warning("%s", error->text);
    }
}

void listener_refuse(struct listener *listener, enum complaint cause, const struct pending *pending, const char *why)
{
    struct error error;
    char peer[ENDPOINT_TEXT];
    endpoint_format(&pending->from, peer);
    error_set(&error, "refused %s: %s", peer, why);
    listener_note_refusal(listener, cause, &pending->source, peer, &error);
    close(pending->fd);
    listener->busy_until_s = clock_monotonic_s() + BUSY_S;
}

void listener_complain(struct listener *listener, double now_s, bool last)
{
    char line[COMPLAINTS_LINE];
    bool more = true;
    while (more) {
        lock(listener);
        more = complaints_next(&listener->complaints, now_s, last, line);
        unlock(listener);
        if (more) {
            log_warning("%s", line);
        }
    }
}

/* --- Places and the lobby --- */

/* Locked. A free place; NULL: none. */
static struct listener_session *find_place(struct listener *listener)
{
    struct listener_session *session = listener->free;
    if (session) {
        listener->free = session->next;
    } else if (listener->used < listener->places) {
        session = session_at(listener, listener->used++);
    }
    return session;
}

/* Locked. True if it has had its time, and the peer's next message is missing: the delay is not ours. */
static bool is_kept_waiting(const struct listener_session *session, double now_s)
{
    struct pollfd said = {.fd = session->fd, .events = POLLIN};
    return session->life == SESSION_SERVED && now_s - session->since_s >= LISTENER_UNDER_LOAD_S &&
           poll(&said, 1, 0) == 0;
}

static bool is_newcomer(const struct listener_session *session, bool member)
{
    return session->life != SESSION_FREE && !session->admitted && session->member == member;
}

/*
 * Locked. Cuts the oldest handshake, so that a crowd of them keeps nobody out. now_s: only among those that wait for
 * their peers; 0: among all.
 */
static void cut_oldest_newcomer(struct listener *listener, bool member, double now_s)
{
    struct listener_session *oldest = NULL;
    for (int i = 0; i < listener->used; i++) {
        struct listener_session *session = session_at(listener, i);
        if (is_newcomer(session, member) && !session->cut && (!oldest || session->came_s < oldest->came_s) &&
            (now_s == 0 || is_kept_waiting(session, now_s))) {
            oldest = session;
        }
    }
    if (oldest) {
        listener_disconnect(oldest);
    }
}

/* Locked. Members' handshakes that were cut but have not ended yet, which takes a while on a busy machine. */
static int count_leaving(const struct listener *listener)
{
    int leaving = listener->newcomers[true];
    for (int i = 0; i < listener->used; i++) {
        const struct listener_session *session = session_at(listener, i);
        leaving -= is_newcomer(session, true) && !session->cut;
    }
    return leaving;
}

/* Locked. Adds the connection to the table. False if there is no place or no thread for it. */
static bool take(struct listener *listener, const struct pending *pending, bool member)
{
    const struct listener_options *options = &listener->options;
    const int most = LISTENER_SPARE + (member ? listener->expected : 0);
    const bool crowded = listener->newcomers[member] >= most - LISTENER_SPARE / 2;
    if (crowded) {
        cut_oldest_newcomer(listener, member, 0);
    }
    struct listener_session *session = listener->newcomers[member] < most ? find_place(listener) : NULL;
    if (!session) {
        return false;
    }
    memset(session, 0, options->session_size);
    session->listener = listener;
    session->fd = pending->fd;
    session->number = ++listener->connections;
    session->came_s = pending->came_s;
    session->timeout_s = crowded && !member ? LISTENER_UNDER_LOAD_S : LISTENER_HANDSHAKE_S;
    session->member = member;
    session->source = pending->source;
    session->fresh = session->waiting = true;
    session->since_s = clock_monotonic_s();
    session->wake_s = INFINITY;
    endpoint_format(&pending->from, session->peer);
    socket_set_options(pending->fd, &pending->from);
    options->begin(session, options->context);
    if (listener->ready.count >= listener->threads - listener->serving && !listener_start_thread(listener)) {
        session->next = listener->free;
        listener->free = session;
        return false;
    }
    session->life = SESSION_READY;
    listener_put_ready(&listener->ready, session);
    listener_call_one(listener);
    listener->here++;
    listener->newcomers[member]++;
    return true;
}

/* Locked. True once another member's handshake would have to push out the oldest. */
static bool is_lobby_closed(const struct listener *listener)
{
    return listener->newcomers[true] >= listener->expected + LISTENER_SPARE / 2;
}

static bool wait_in_lobby(struct listener *listener, const struct pending *pending)
{
    if (!is_lobby_closed(listener) || listener->lobby.count == listener->lobby.room) {
        return false;
    }
    listener->lobby.waits[(listener->lobby.first + listener->lobby.count++) % listener->lobby.room] = *pending;
    return true;
}

struct pending listener_leave_lobby(struct listener *listener)
{
    const struct pending pending = listener->lobby.waits[listener->lobby.first];
    listener->lobby.first = (listener->lobby.first + 1) % listener->lobby.room;
    listener->lobby.count--;
    return pending;
}

/* Without a word to those for whom there is no place: it is the owner's thread that logs refusals. */
void listener_call_in(struct listener *listener)
{
    while (listener->lobby.count > 0 && !is_lobby_closed(listener)) {
        struct pending pending = listener_leave_lobby(listener);
        pending.came_s = clock_monotonic_s(); /* its full time starts now */
        if (!take(listener, &pending, true)) {
            close(pending.fd); /* it will retry */
        }
    }
}

/*
 * Turns away connections that waited too long. If no handshake has succeeded for a while, cuts those that wait for
 * their peers, the oldest first, until as many are leaving as wait in the lobby.
 */
void listener_look_into_lobby(struct listener *listener, double now_s)
{
    bool late = true;
    while (late) {
        struct pending pending;
        lock(listener);
        late = listener->lobby.count > 0 &&
               now_s >= listener->lobby.waits[listener->lobby.first].came_s + LISTENER_HANDSHAKE_S;
        if (late) {
            pending = listener_leave_lobby(listener);
        } else if (now_s >= listener->admitted_s + LISTENER_UNDER_LOAD_S &&
                   listener->lobby.count > count_leaving(listener)) {
            cut_oldest_newcomer(listener, true, now_s);
        }
        unlock(listener);
        if (late) {
            listener_refuse(listener, COMPLAINT_CROWD, &pending, "too many handshakes are in progress");
        }
    }
}

/* Takes it into the table or the lobby, or turns it away: it will retry. */
static void receive(struct listener *listener, const struct pending *pending, bool member)
{
    lock(listener);
    const bool taken = (member && wait_in_lobby(listener, pending)) || take(listener, pending, member);
    if (!taken && !member) {
        admission_end(&listener->admission, &pending->source, 0, clock_monotonic_s());
    }
    unlock(listener);
    if (!taken) {
        listener_refuse(listener, COMPLAINT_CROWD, pending, "too many handshakes are in progress");
    }
}

static void receive_stranger(struct listener *listener, const struct pending *pending, bool speaks_tls)
{
    lock(listener);
    const bool may = admission_begin(&listener->admission, &pending->source, clock_monotonic_s());
    unlock(listener);
    if (may) {
        receive(listener, pending, false);
    } else if (speaks_tls) {
        listener_refuse(listener, COMPLAINT_SHARE, pending,
                        "it shows no pass, and unauthenticated handshakes have used up their CPU time");
    } else {
        listener_refuse(listener, COMPLAINT_PLAIN, pending, "it does not speak TLS");
    }
}

void listener_deal_with(struct listener *listener, enum door_look look, const struct pending *pending)
{
    switch (look) {
    case DOOR_MEMBER: {
        lock(listener);
        const bool is_new = !listener->door.credentials || admission_is_new(&listener->admission, pending->pass);
        unlock(listener);
        if (is_new) {
            receive(listener, pending, true);
            break;
        }
        receive_stranger(listener, pending, true);
        break;
    }
    case DOOR_STRANGER:
    case DOOR_PLAIN:
        receive_stranger(listener, pending, look == DOOR_STRANGER);
        break;
    case DOOR_GONE:
        listener_refuse(listener, COMPLAINT_SILENT, pending, "it did not identify itself");
        break;
    case DOOR_NOTHING:
        break;
    }
}
