/*
 * The life cycle of a session: ready (queued), served (by a thread), resting (until data arrives or it is woken), and
 * ready again.
 *
 * Its socket is closed only after the table has dropped it: listener_disconnect shuts down by descriptor, and the kernel may
 * give that number to another connection as soon as it is closed.
 */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/condition.h"
#include "base/log.h"
#include "net/listener/internal.h"

static const double LINGER_S = 0.25; /* a thread stays with an idle session for this long */
static const double IDLE_S = 10;     /* a thread without a session ends after this long */

/* --- Ready sessions and their threads, locked --- */

static void *attend(void *context);

static void free_attendant(struct attendant *attendant)
{
    pthread_cond_destroy(&attendant->call);
    free(attendant);
}

/* ThreadSanitizer keeps 800 KB of its own on each stack, and its frames are larger. */
#ifdef __SANITIZE_THREAD__
enum { SANITIZER_STACK = 2 << 20 };
#else
enum { SANITIZER_STACK = 0 };
#endif

bool listener_start_thread(struct listener *listener)
{
    pthread_attr_t attributes;
    struct attendant *attendant = listener->threads < listener->places ? calloc(1, sizeof *attendant) : NULL;
    if (!attendant) {
        return false;
    }
    attendant->listener = listener;
    condition_create(&attendant->call);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, listener->options.stack_size + SANITIZER_STACK);
    const bool started = pthread_create(&attendant->thread, &attributes, attend, attendant) == 0;
    pthread_attr_destroy(&attributes);
    listener->threads += started;
    if (!started) {
        free_attendant(attendant);
    }
    return started;
}

static void stop_waiting(struct attendant *attendant)
{
    *(attendant->before ? &attendant->before->next : &attendant->listener->waiting) = attendant->next;
    if (attendant->next) {
        attendant->next->before = attendant->before;
    }
}

void listener_call_one(struct listener *listener)
{
    struct attendant *attendant = listener->waiting;
    if (attendant) {
        stop_waiting(attendant);
        attendant->called = true;
        pthread_cond_signal(&attendant->call);
    }
}

bool listener_call_thread(struct listener *listener, bool at_once)
{
    if (listener->ready.count <= listener->threads - listener->serving) {
        listener_call_one(listener);
        return true;
    }
    return (!at_once && listener->working >= LISTENER_THREADS) || listener_start_thread(listener);
}

void listener_put_ready(struct ready *queue, struct listener_session *session)
{
    session->next = NULL;
    *(queue->last ? &queue->last->next : &queue->first) = session;
    queue->last = session;
    queue->count++;
}

static struct listener_session *take_first(struct ready *queue)
{
    struct listener_session *session = queue->first;
    if (session) {
        queue->first = session->next;
        queue->last = queue->first ? queue->last : NULL;
        queue->count--;
    }
    return session;
}

void listener_make_ready(struct listener_session *session)
{
    struct listener *listener = session->listener;
    listener->timed -= session->life == SESSION_RESTS && session->wake_s < INFINITY;
    session->life = SESSION_READY;
    session->since_s = clock_monotonic_s();
    listener_put_ready(&listener->ready, session);
    listener_call_thread(listener, false);
}

void listener_wake(struct listener_session *session)
{
    if (session->life == SESSION_RESTS) {
        listener_make_ready(session);
    } else {
        session->woken = true;
    }
}

void listener_wake_at(struct listener_session *session, double when_s)
{
    session->wake_s = when_s;
}

void listener_set_waiting(struct listener_session *session, bool waits)
{
    struct listener *listener = session->listener;
    if (waits == session->waiting || !listener) {
        return;
    }
    session->waiting = waits;
    listener->working += waits ? -1 : 1;
    if (waits && listener->ready.count > 0) {
        listener_call_thread(listener, false);
    }
}

double listener_keep_thread_s(const struct listener *listener)
{
    return listener->ready.count > 0 || listener->threads > LISTENER_THREADS ? 0 : LINGER_S;
}

/* --- One connection, by a thread --- */

static bool is_known(void *context, const char *digest)
{
    struct listener_session *session = context;
    return session->listener->options.knows(session, digest);
}

static uint16_t ask_owner(void *context, const struct peer *peer, struct error *message)
{
    struct listener_session *session = context;
    return session->listener->options.admit(session, peer, message);
}

static void open_channel(struct listener_session *session, struct connection *connection)
{
    channel_open(&session->channel, connection);
    lock(session->listener);
    session->connection = connection;
    unlock(session->listener);
}

/* TLS and hello. If it fails, *cause says which of them did. */
static bool let_in(struct listener_session *session, enum complaint *cause, struct error *error)
{
    const struct listener_options *options = &session->listener->options;
    const struct hello_options *self = &options->self;
    const struct handshake_rules rules = {
        .knows = options->knows ? is_known : NULL, .admit = ask_owner, .context = session};
    const double deadline_s = session->came_s + session->timeout_s;
    struct connection *connection;
    struct peer peer;
    *cause = COMPLAINT_TLS;
    bool served = connection_serve(&connection, session->fd, session->peer, self->credentials, NULL, deadline_s, error);
    open_channel(session, connection); /* listener_end_session closes it */
    if (!served) {
        return false;
    }
    const struct hello_identity hello = self->hello(self->context);
    *cause = COMPLAINT_HELLO;
    if (!handshake_accept(&session->channel, &hello, &rules, &peer, deadline_s, error)) {
        return false;
    }
    assert(session->admitted);
    connection_set_idle_timeout(connection, self->idle_timeout_s);
    return true;
}

/* The table drops the session before its socket is closed: nobody may cut another connection by the same descriptor. */
void listener_end_session(struct listener_session *session)
{
    struct listener *listener = session->listener;
    lock(listener);
    if (session->connection) {
        listener->bytes_in += connection_bytes_in(session->connection);
        listener->bytes_out += connection_bytes_out(session->connection);
        session->connection = NULL;
    }
    if (session->admitted) {
        listener->options.leave(session);
    }
    listener_set_waiting(session, true);
    session->life = SESSION_FREE;
    unlock(listener);
    if (session->channel.connection) {
        channel_close(&session->channel);
    } else {
        close(session->fd);
    }
    lock(listener);
    session->next = listener->free;
    listener->free = session;
    listener->newcomers[session->member] -= !session->admitted;
    listener->here--;
    listener->serving -= !session->served_inline;
    listener_call_in(listener);
    pthread_cond_broadcast(&listener->left);
    unlock(listener);
}

/* Logs why a handshake failed: it was refused, or cut to make room. If the listener is ending, that says enough. */
static void complain_of(struct listener_session *session, enum complaint cause, struct error *error)
{
    struct listener *listener = session->listener;
    lock(listener);
    const bool said = session->admitted || listener->ending, crowded_out = session->cut;
    unlock(listener);
    if (crowded_out) {
        cause = COMPLAINT_CROWD;
        error_set(error, "refused %s: others are waiting, and it had not finished its handshake", session->peer);
    }
    if (!said) {
        listener_note_refusal(listener, cause, &session->source, session->peer, error);
    }
}

/* Performs the handshake. False: it failed, and that is logged. */
static bool receive_peer(struct listener_session *session)
{
    struct listener *listener = session->listener;
    struct error error;
    enum complaint cause;
    const double begun_s = clock_thread_s();
    const bool welcome = let_in(session, &cause, &error);
    if (!session->member) {
        lock(listener);
        const double cost_s = session->admitted ? 0 : clock_thread_s() - begun_s; /* admitted peers are no strangers */
        admission_end(&listener->admission, &session->source, cost_s, clock_monotonic_s());
        unlock(listener);
    }
    if (!welcome) {
        complain_of(session, cause, &error);
    }
    return welcome;
}

bool listener_let_rest(struct listener_session *session)
{
    struct listener *listener = session->listener;
    bool good = true;
    lock(listener);
    listener_set_waiting(session, true);
    if (session->woken || session->cut) {
        listener->serving -= !session->served_inline;
        listener_make_ready(session);
    } else {
        good = door_rest(&listener->door, session->fd, session, !session->read_paused);
        if (good) {
            session->life = SESSION_RESTS;
            listener->timed += session->wake_s < INFINITY;
            listener->serving -= !session->served_inline;
        }
    }
    unlock(listener);
    if (!good) {
        log_warning("dropped %s: the system is out of resources to wait for it", session->peer);
    }
    return good;
}

static void serve_once(struct listener_session *session, bool fresh)
{
    if ((fresh && !receive_peer(session)) || !session->listener->options.serve(session) ||
        !listener_let_rest(session)) {
        listener_end_session(session);
    }
}

/* Waits, locked, for a session to serve. NULL: none came for too long, or the listener ends. */
static struct listener_session *await_session(struct attendant *attendant)
{
    struct listener *listener = attendant->listener;
    struct listener_session *session;
    const double until_s = clock_monotonic_s() + IDLE_S;
    bool in_time = true;
    while (!(session = take_first(&listener->ready)) && in_time && !listener->over) {
        attendant->called = false;
        attendant->before = NULL;
        attendant->next = listener->waiting;
        if (attendant->next) {
            attendant->next->before = attendant;
        }
        listener->waiting = attendant;
        while (!attendant->called && in_time) {
            in_time = condition_wait_for(&attendant->call, listener->options.lock, until_s - clock_monotonic_s());
        }
        if (!attendant->called) {
            stop_waiting(attendant);
        }
    }
    return session;
}

static void *attend(void *context)
{
    struct attendant *attendant = context;
    struct listener *listener = attendant->listener;
    struct listener_session *session;
    lock(listener);
    while ((session = await_session(attendant))) {
        const bool fresh = session->fresh;
        session->life = SESSION_SERVED;
        session->since_s = clock_monotonic_s();
        listener->serving++;
        session->fresh = session->woken = session->read_paused = session->served_inline = false;
        session->wake_s = INFINITY;
        listener_set_waiting(session, fresh); /* a handshake is mostly waiting for the peer */
        unlock(listener);
        serve_once(session, fresh);
        lock(listener);
    }
    listener->threads--;
    attendant->next = listener->ended;
    listener->ended = attendant;
    pthread_cond_broadcast(&listener->no_more);
    unlock(listener);
    return NULL;
}

void listener_join_ended(struct listener *listener)
{
    lock(listener);
    struct attendant *ended = listener->ended;
    listener->ended = NULL;
    unlock(listener);
    while (ended) {
        struct attendant *next = ended->next;
        pthread_join(ended->thread, NULL);
        free_attendant(ended);
        ended = next;
    }
}
