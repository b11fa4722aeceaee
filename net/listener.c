/*
 * The owner's thread: accepts connections, resumes sessions that rested, and does the periodic work. Also the owner's
 * queries of the table of sessions, startup and shutdown. listener/newcomers.c decides about new connections;
 * listener/attendants.c runs sessions and their threads.
 */
#include "net/listener.h"

#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/condition.h"
#include "base/log.h"
#include "net/listener/internal.h"
#include "net/socket.h"

enum {
    AT_A_TIME = 64,   /* connections accepted before anything else gets a turn */
    SPARE_FILES = 64, /* open files besides the listener's connections */
};

static const double TIDY_S = 0.1;   /* between two passes over ended threads, the lobby and refusals */
static const double FAILED_S = 0.1; /* pause after accept failed: out of descriptors, say */
static const double ROUSE_S = 0.5;  /* between two searches for sessions that listener_wake_at made due */

/* --- The owner's thread --- */

/* Accepts what is pending, but no more than AT_A_TIME, so that sessions aren't kept waiting. False if accept failed. */
static bool take_those_who_come(struct listener *listener)
{
    for (int i = 0; i < AT_A_TIME; i++) {
        struct pending pending = {.came_s = clock_monotonic_s()}, out;
        struct error error;
        const enum socket_accepted taken = socket_accept(listener->fd, &pending.fd, &pending.from, &error);
        if (taken == SOCKET_FAILED) {
            listener_note_refusal(listener, COMPLAINT_ACCEPT, &pending.source, "this machine", &error);
        }
        if (taken != SOCKET_ACCEPTED) {
            return taken == SOCKET_NONE;
        }
        pending.source = admission_source(&pending.from);
        const enum door_look look = door_look(&listener->door, &pending);
        if (look != DOOR_NOTHING) {
            listener_deal_with(listener, look, &pending);
        } else if (door_put(&listener->door, &pending, &out)) {
            listener_refuse(listener, COMPLAINT_SILENT, &out, "it did not identify itself, and others are waiting");
        }
    }
    return true;
}

/* Resumes a session that rested: on this thread if that doesn't block, else on a serving one. */
static void go_on(struct listener *listener, struct listener_session *session)
{
    enum listener_inline how = INLINE_NEEDS_THREAD;
    lock(listener);
    const bool rested = session->life == SESSION_RESTS;
    if (rested && (!listener->options.serve_inline || session->cut)) {
        listener_make_ready(session);
    }
    const bool is_inline = rested && session->life == SESSION_RESTS;
    if (is_inline) {
        listener->timed -= session->wake_s < INFINITY;
        session->life = SESSION_SERVED;
        session->woken = session->read_paused = false;
        session->served_inline = true;
        session->wake_s = INFINITY;
    }
    unlock(listener);
    if (!is_inline) {
        return;
    }
    how = listener->options.serve_inline(session);
    if (how == INLINE_NEEDS_THREAD) {
        lock(listener);
        listener_set_waiting(session, true);
        listener_make_ready(session);
        unlock(listener);
    } else if (how == INLINE_CLOSE || !listener_let_rest(session)) {
        listener_end_session(session);
    }
}

/* Resumes the sessions whose peers sent something, or hung up. */
static void take_stirred(struct listener *listener)
{
    struct listener_session *session;
    while ((session = door_stirred(&listener->door))) {
        go_on(listener, session);
    }
}

/* Adds a thread if the others are slow, so that a session has been ready for too long. True if one is ready at all. */
static bool help_slow_threads(struct listener *listener, double now_s)
{
    lock(listener);
    const struct listener_session *first = listener->ready.first;
    if (first && now_s - first->since_s >= LISTENER_SLOW_S) {
        listener_call_thread(listener, true);
    }
    unlock(listener);
    return first;
}

/* The next session, from *i on, whose rest is due to end; NULL: no more. */
static struct listener_session *next_due(struct listener *listener, int *i, double now_s)
{
    struct listener_session *due = NULL;
    lock(listener);
    while (*i < listener->used && listener->timed > 0 && !due) {
        struct listener_session *session = session_at(listener, (*i)++);
        due = session->life == SESSION_RESTS && now_s >= session->wake_s ? session : NULL;
    }
    unlock(listener);
    return due;
}

static void rouse_those_due(struct listener *listener, double now_s)
{
    struct listener_session *session;
    for (int i = 0; (session = next_due(listener, &i, now_s));) {
        go_on(listener, session);
    }
}

static void look_after_all(struct listener *listener, double now_s)
{
    if (now_s - listener->tidied_s >= TIDY_S) {
        listener->tidied_s = now_s;
        listener_join_ended(listener);
        listener_look_into_lobby(listener, now_s);
        listener_complain(listener, now_s, false);
    }
    if (now_s - listener->roused_s >= ROUSE_S) {
        listener->roused_s = now_s;
        rouse_those_due(listener, now_s);
    }
}

bool listener_accept(struct listener *listener, const struct wake *wake, double deadline_s)
{
    struct pending pending;
    enum door_look look;
    bool comes;
    double now_s = clock_monotonic_s();
    if (now_s < listener->busy_until_s && wake_wait(-1, 0, wake, listener->busy_until_s) == WAKE_RAISED) {
        return false;
    }
    if (help_slow_threads(listener, now_s)) {
        deadline_s = fmin(deadline_s, now_s + LISTENER_SLOW_S);
    }
    enum wake_result how = door_wait(&listener->door, listener->fd, wake, deadline_s, &comes);
    now_s = clock_monotonic_s();
    while ((look = door_next(&listener->door, now_s, &pending)) != DOOR_NOTHING) {
        listener_deal_with(listener, look, &pending);
    }
    take_stirred(listener);
    if (comes && !take_those_who_come(listener)) {
        how = wake_wait(-1, 0, wake, now_s + FAILED_S);
    }
    look_after_all(listener, now_s);
    return how != WAKE_RAISED;
}

/* --- The owner's queries, locked --- */

void listener_admit(struct listener_session *session)
{
    session->admitted = true;
    session->last_active_s = session->listener->admitted_s = clock_monotonic_s();
    session->listener->newcomers[session->member]--;
    listener_call_in(session->listener);
}

struct listener_session *listener_next(const struct listener *listener, const struct listener_session *session)
{
    const size_t size = listener->options.session_size;
    const char *next = session ? (const char *)session + size : listener->sessions;
    for (int i = (int)((size_t)(next - listener->sessions) / size); i < listener->used; i++) {
        struct listener_session *one = session_at(listener, i);
        if (one->life != SESSION_FREE && one->admitted && !one->cut) {
            return one;
        }
    }
    return NULL;
}

int listener_count(const struct listener *listener,
                   bool (*alike)(const struct listener_session *session, const void *context), const void *context,
                   struct listener_session **silent)
{
    int count = 0;
    *silent = NULL;
    for (struct listener_session *session = NULL; (session = listener_next(listener, session));) {
        if (alike(session, context)) {
            count++;
            *silent = !*silent || session->last_active_s < (*silent)->last_active_s ? session : *silent;
        }
    }
    return count;
}

void listener_disconnect(struct listener_session *session)
{
    session->cut = true;
    shutdown(session->fd, SHUT_RDWR);
    listener_wake(session);
}

void listener_bytes(const struct listener *listener, uint64_t *in, uint64_t *out)
{
    *in = listener->bytes_in;
    *out = listener->bytes_out;
    for (int i = 0; i < listener->used; i++) {
        const struct connection *connection = session_at(listener, i)->connection;
        if (connection) {
            *in += connection_bytes_in(connection);
            *out += connection_bytes_out(connection);
        }
    }
}

bool listener_peer_hung_up(const struct listener_session *session)
{
    struct pollfd hangup = {.fd = session->fd, .events = POLLRDHUP};
    return poll(&hangup, 1, 0) > 0 && (hangup.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

/* --- Startup and shutdown --- */

/* Each connection is an open file, and the usual soft limit of 1,024 is too low for 256 workers. */
static void allow_files(int files, int likely)
{
    struct rlimit limit;
    const rlim_t wanted = (rlim_t)files + SPARE_FILES;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) {
        return;
    }
    const struct rlimit raised = {.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted,
                                  .rlim_max = limit.rlim_max};
    limit = setrlimit(RLIMIT_NOFILE, &raised) == 0 ? raised : limit;
    if (limit.rlim_cur < (rlim_t)likely + SPARE_FILES) {
        log_warning("only %lu files may be open, but all members together need %d connections: those beyond the limit "
                    "are turned away; raise the limit (ulimit -Hn, or LimitNOFILE= in a systemd unit)",
                    (unsigned long)limit.rlim_cur, likely);
    }
}

static bool take_memory(struct listener *listener, struct error *error)
{
    const struct listener_options *options = &listener->options;
    const int room = listener->expected + LISTENER_ACCEPT_QUEUE;
    listener->sessions = calloc((size_t)listener->places, options->session_size);
    listener->lobby.room = options->expected;
    listener->lobby.waits = calloc((size_t)options->expected, sizeof *listener->lobby.waits);
    if (!listener->sessions || !listener->lobby.waits) {
        return error_set(error, "out of memory");
    }
    return door_create(&listener->door, options->self.credentials, room, LISTENER_HANDSHAKE_S, error);
}

bool listener_create(struct listener **out, const struct listener_options *options, struct error *error)
{
    struct listener *listener = calloc(1, sizeof *listener);
    *out = NULL;
    if (!listener) {
        return error_set(error, "out of memory");
    }
    listener->options = *options;
    listener->fd = -1;
    listener->expected = options->expected < LISTENER_HANDSHAKES ? options->expected : LISTENER_HANDSHAKES;
    listener->places = options->members + listener->expected + 2 * LISTENER_SPARE;
    admission_start(&listener->admission, clock_monotonic_s());
    condition_create(&listener->left);
    condition_create(&listener->no_more);
    if (!take_memory(listener, error) || !socket_listen(&listener->fd, options->host, options->port, error)) {
        listener_destroy(listener);
        return false;
    }
    allow_files(listener->places + options->expected + listener->door.room, options->likely);
    *out = listener;
    return true;
}

uint16_t listener_port(const struct listener *listener)
{
    return socket_port(listener->fd);
}

/* Locked: rouses every session, or cuts it. */
static void rouse_all(struct listener *listener, bool cut)
{
    for (int i = 0; i < listener->used; i++) {
        struct listener_session *session = session_at(listener, i);
        if (session->life != SESSION_FREE && cut) {
            listener_disconnect(session);
        } else if (session->life != SESSION_FREE) {
            listener_wake(session);
        }
    }
}

/* Locked. */
static void end_threads(struct listener *listener)
{
    listener->over = true;
    while (listener->waiting) {
        listener_call_one(listener);
    }
    while (listener->threads > 0) {
        pthread_cond_wait(&listener->no_more, listener->options.lock);
    }
}

/* Waits until all sessions have ended, or until then. The owner's thread no longer helps slow threads, so this does. */
static void await_all(struct listener *listener, double until_s)
{
    double now_s;
    while (listener->here > 0 && (now_s = clock_monotonic_s()) < until_s) {
        if (listener->ready.count > 0) {
            listener_call_thread(listener, true);
        }
        condition_wait_for(&listener->left, listener->options.lock, fmin(TIDY_S, until_s - now_s));
    }
}

void listener_end(struct listener *listener, double grace_s)
{
    const double cut_s = clock_monotonic_s() + grace_s;
    if (listener->fd >= 0) {
        close(listener->fd);
        listener->fd = -1;
    }
    lock(listener);
    while (listener->lobby.count > 0) {
        const struct pending pending = listener_leave_lobby(listener);
        close(pending.fd);
    }
    rouse_all(listener, false);
    await_all(listener, cut_s);
    listener->ending = true;
    rouse_all(listener, true);
    await_all(listener, INFINITY);
    end_threads(listener);
    unlock(listener);
    listener_join_ended(listener);
    listener_complain(listener, clock_monotonic_s(), true);
}

void listener_destroy(struct listener *listener)
{
    if (!listener) {
        return;
    }
    if (listener->sessions) {
        listener_end(listener, 0);
    }
    if (listener->fd >= 0) {
        close(listener->fd);
    }
    pthread_cond_destroy(&listener->no_more);
    pthread_cond_destroy(&listener->left);
    door_destroy(&listener->door);
    free(listener->lobby.waits);
    free(listener->sessions);
    free(listener);
}
