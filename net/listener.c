/*
 * The table of sessions, the worker threads that serve them, and the owner's thread, which accepts connections and
 * bounds what they can cost.
 *
 * A connection: accept queue until it has sent its first bytes; then SESSION_NEW, or, for a member while too many
 * handshakes are in progress, the handshake queue; SESSION_HANDSHAKE; and, once admitted, SESSION_SERVED and
 * SESSION_PARKED in turn, by way of SESSION_READY or SESSION_INLINE.
 *
 * A socket is closed only after the table has dropped it: listener_disconnect shuts down by descriptor, and the kernel
 * may give that number to another connection as soon as it is closed.
 */
#include "net/listener.h"

#include <assert.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/threads.h"
#include "net/listener_internal.h"
#include "net/socket.h"

enum {
    ACCEPT_BATCH = 64, /* connections accepted before anything else gets a turn */
    SPARE_FILES = 64,  /* open files besides the listener's connections */
};

static const double TIDY_S = 0.1;         /* between two passes of housekeeping */
static const double EXPIRE_S = 0.5;       /* between two searches for sessions that listener_wake_at made due */
static const double FAILED_S = 0.1;       /* pause after accept failed: out of descriptors, say */
static const double REJECTED_S = 0.005;   /* pause after a rejection: rejected peers come in bursts */
static const double KEEP_THREAD_S = 0.25; /* a thread stays with an idle session for this long */
static const double IDLE_S = 10;          /* a thread without a session ends after this long */

static void lock(const struct listener *listener)
{
    pthread_mutex_lock(listener->options.lock);
}

static void unlock(const struct listener *listener)
{
    pthread_mutex_unlock(listener->options.lock);
}

/* --- Rejections --- */

static void log_rejection(struct listener *listener, enum reject_reason reason, const struct error *error)
{
    lock(listener);
    const bool due = reject_log_add(&listener->rejected, reason, error, clock_monotonic_s());
    unlock(listener);
    if (due) {
        log_warning("%s", error->text);
    }
}

/* Closes the connection and logs why. */
static void reject(struct listener *listener, enum reject_reason reason, const struct pending *pending, const char *why)
{
    struct error error;
    char peer[ENDPOINT_TEXT];
    endpoint_format(&pending->from, peer);
    error_set(&error, "refused %s: %s", peer, why);
    log_rejection(listener, reason, &error);
    close(pending->fd);
    listener->pause_until_s = clock_monotonic_s() + REJECTED_S;
}

/* Logs rejections that were only counted so far, once they are due. */
static void log_suppressed(struct listener *listener, double now_s, bool last)
{
    struct error line;
    bool more = true;
    while (more) {
        lock(listener);
        more = reject_log_next(&listener->rejected, now_s, last, &line);
        unlock(listener);
        if (more) {
            log_warning("%s", line.text);
        }
    }
}

/* --- Worker threads --- */

static void *run_thread(void *context);

static void free_thread(struct worker_thread *thread)
{
    pthread_cond_destroy(&thread->wakeup);
    free(thread);
}

/* ThreadSanitizer keeps 800 KB of its own on each stack, and its frames are larger. */
#ifdef __SANITIZE_THREAD__
enum { SANITIZER_STACK = 2 << 20 };
#else
enum { SANITIZER_STACK = 0 };
#endif

/* Within the limit. */
static bool start_thread_locked(struct listener *listener)
{
    pthread_attr_t attributes;
    struct worker_thread *thread = listener->threads < listener->places ? calloc(1, sizeof *thread) : NULL;
    if (!thread) {
        return false;
    }
    thread->listener = listener;
    condition_create(&thread->wakeup);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, listener->options.stack_size + SANITIZER_STACK);
    const bool started = pthread_create(&thread->thread, &attributes, run_thread, thread) == 0;
    pthread_attr_destroy(&attributes);
    listener->threads += started;
    if (!started) {
        free_thread(thread);
    }
    return started;
}

/* If none is idle, threads that are starting find what is ready. */
static void wake_thread_locked(struct listener *listener)
{
    struct worker_thread *thread = listener->idle;
    if (thread) {
        listener->idle = thread->next;
        thread->woken = true;
        pthread_cond_signal(&thread->wakeup);
    }
}

/*
 * Makes sure that a thread takes the session that has been ready longest: if none is free, starts one, within
 * LISTENER_THREADS unless at_once.
 */
static void provide_thread_locked(struct listener *listener, bool at_once)
{
    if (listener->ready.count <= listener->threads - listener->serving) {
        wake_thread_locked(listener);
    } else if (at_once || listener->working < LISTENER_THREADS) {
        start_thread_locked(listener);
    }
}

static void push_ready_locked(struct listener_session *session, bool is_new)
{
    struct listener *listener = session->listener;
    session->state = is_new ? SESSION_NEW : SESSION_READY;
    session->since_s = clock_monotonic_s();
    session->next = NULL;
    *(listener->ready.last ? &listener->ready.last->next : &listener->ready.first) = session;
    listener->ready.last = session;
    listener->ready.count++;
}

static struct listener_session *pop_ready_locked(struct listener *listener)
{
    struct listener_session *session = listener->ready.first;
    if (session) {
        listener->ready.first = session->next;
        listener->ready.last = session->next ? listener->ready.last : NULL;
        listener->ready.count--;
    }
    return session;
}

static void resume_locked(struct listener_session *session)
{
    session->listener->timed -= session->state == SESSION_PARKED && session->wake_s < INFINITY;
    push_ready_locked(session, false);
    provide_thread_locked(session->listener, false);
}

void listener_wake(struct listener_session *session)
{
    if (session->state == SESSION_PARKED) {
        resume_locked(session);
    } else {
        session->woken = true;
    }
}

void listener_wake_at(struct listener_session *session, double when_s)
{
    session->wake_s = when_s;
}

void listener_set_waiting(struct listener_session *session, bool waiting)
{
    struct listener *listener = session->listener;
    if (waiting == session->waiting || !listener) {
        return;
    }
    session->waiting = waiting;
    listener->working += waiting ? -1 : 1;
    if (waiting && listener->ready.count > 0) {
        provide_thread_locked(listener, false);
    }
}

double listener_keep_thread_s(const struct listener *listener)
{
    return listener->ready.count > 0 || listener->threads > LISTENER_THREADS ? 0 : KEEP_THREAD_S;
}

/* --- Sessions --- */

static bool is_admitted(const struct listener_session *session)
{
    return session->state >= SESSION_READY;
}

static bool is_handshaking(const struct listener_session *session, bool is_member)
{
    return session->state != SESSION_FREE && !is_admitted(session) && session->is_member == is_member;
}

struct listener_session *listener_next(const struct listener *listener, const struct listener_session *session)
{
    const size_t size = listener->options.session_size;
    const char *next = session ? (const char *)session + size : listener->sessions;
    for (int i = (int)((size_t)(next - listener->sessions) / size); i < listener->used; i++) {
        struct listener_session *one = session_at(listener, i);
        if (is_admitted(one) && !one->disconnected) {
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
    session->disconnected = true;
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

/* NULL: there is none. */
static struct listener_session *find_place_locked(struct listener *listener)
{
    struct listener_session *session = listener->free;
    if (session) {
        listener->free = session->next;
    } else if (listener->used < listener->places) {
        session = session_at(listener, listener->used++);
    }
    return session;
}

static void free_place_locked(struct listener_session *session)
{
    session->state = SESSION_FREE;
    session->next = session->listener->free;
    session->listener->free = session;
}

/* --- Handshakes that begin --- */

/* The handshake has had some time, and the peer's next message is missing: the delay is not ours. */
static bool is_stalled(const struct listener_session *session, double now_s)
{
    struct pollfd input = {.fd = session->fd, .events = POLLIN};
    return session->state == SESSION_HANDSHAKE && now_s - session->since_s >= LISTENER_UNDER_LOAD_S &&
           poll(&input, 1, 0) == 0;
}

/* Ends the oldest handshake. now_s: only among stalled ones; 0: among all. */
static void evict_handshake_locked(struct listener *listener, bool is_member, double now_s)
{
    struct listener_session *oldest = NULL;
    for (int i = 0; i < listener->used; i++) {
        struct listener_session *session = session_at(listener, i);
        if (is_handshaking(session, is_member) && !session->disconnected &&
            (!oldest || session->accepted_s < oldest->accepted_s) && (now_s == 0 || is_stalled(session, now_s))) {
            oldest = session;
        }
    }
    if (oldest) {
        listener_disconnect(oldest);
    }
}

/* Members' handshakes that were evicted but have not ended yet, which takes a while on a busy machine. */
static int count_evicted_locked(const struct listener *listener)
{
    int count = listener->handshaking[true];
    for (int i = 0; i < listener->used; i++) {
        const struct listener_session *session = session_at(listener, i);
        count -= is_handshaking(session, true) && !session->disconnected;
    }
    return count;
}

/* Adds the connection to the table. False if there is no place or no thread for it. */
static bool begin_session_locked(struct listener *listener, const struct pending *pending, bool is_member)
{
    const struct listener_options *options = &listener->options;
    const int most = LISTENER_SPARE + (is_member ? listener->expected : 0);
    const bool under_load = listener->handshaking[is_member] >= most - LISTENER_SPARE / 2;
    if (under_load) {
        evict_handshake_locked(listener, is_member, 0);
    }
    struct listener_session *session = listener->handshaking[is_member] < most ? find_place_locked(listener) : NULL;
    if (!session) {
        return false;
    }
    memset(session, 0, options->session_size);
    session->listener = listener;
    session->fd = pending->fd;
    session->number = ++listener->connections;
    session->accepted_s = pending->since_s;
    session->timeout_s = under_load && !is_member ? LISTENER_UNDER_LOAD_S : LISTENER_HANDSHAKE_S;
    session->is_member = is_member;
    session->source = pending->source;
    session->waiting = true;
    session->wake_s = INFINITY;
    endpoint_format(&pending->from, session->peer);
    socket_set_options(pending->fd, &pending->from);
    options->begin(session, options->context);
    if (listener->ready.count >= listener->threads - listener->serving && !start_thread_locked(listener)) {
        free_place_locked(session);
        return false;
    }
    push_ready_locked(session, true);
    wake_thread_locked(listener);
    listener->open++;
    listener->handshaking[is_member]++;
    return true;
}

/* True once another member's handshake would have to evict the oldest. */
static bool is_full_locked(const struct listener *listener)
{
    return listener->handshaking[true] >= listener->expected + LISTENER_SPARE / 2;
}

static bool enqueue_handshake_locked(struct listener *listener, const struct pending *pending)
{
    const int count = listener->handshake_queue.count, room = listener->handshake_queue.room;
    if (!is_full_locked(listener) || count == room) {
        return false;
    }
    listener->handshake_queue.pending[(listener->handshake_queue.first + count) % room] = *pending;
    listener->handshake_queue.count++;
    return true;
}

static struct pending dequeue_handshake_locked(struct listener *listener)
{
    const struct pending pending = listener->handshake_queue.pending[listener->handshake_queue.first];
    listener->handshake_queue.first = (listener->handshake_queue.first + 1) % listener->handshake_queue.room;
    listener->handshake_queue.count--;
    return pending;
}

/* Begins queued handshakes in the places that others have left. Closes silently: the owner's thread logs rejections. */
static void drain_handshakes_locked(struct listener *listener)
{
    while (listener->handshake_queue.count > 0 && !is_full_locked(listener)) {
        struct pending pending = dequeue_handshake_locked(listener);
        pending.since_s = clock_monotonic_s(); /* its full time starts now */
        if (!begin_session_locked(listener, &pending, true)) {
            close(pending.fd); /* it will retry */
        }
    }
}

void listener_admit(struct listener_session *session)
{
    session->state = SESSION_SERVED;
    session->last_active_s = session->listener->admitted_s = clock_monotonic_s();
    session->listener->handshaking[session->is_member]--;
    drain_handshakes_locked(session->listener);
}

/* --- One session, by a thread --- */

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

/* TLS and hello. If it fails, *reason says which of them did. */
static bool shake_hands(struct listener_session *session, enum reject_reason *reason, struct error *error)
{
    const struct listener_options *options = &session->listener->options;
    const struct hello_options *self = &options->self;
    const struct handshake_rules rules = {
        .knows = options->knows ? is_known : NULL, .admit = ask_owner, .context = session};
    const double deadline_s = session->accepted_s + session->timeout_s;
    struct connection *connection;
    struct peer peer;
    *reason = REJECT_TLS;
    bool served = connection_serve(&connection, session->fd, session->peer, self->credentials, NULL, deadline_s, error);
    open_channel(session, connection); /* end_session closes it */
    if (!served) {
        return false;
    }
    const struct hello_identity hello = self->hello(self->context);
    *reason = REJECT_HELLO;
    if (!handshake_accept(&session->channel, &hello, &rules, &peer, deadline_s, error)) {
        return false;
    }
    assert(is_admitted(session));
    connection_set_idle_timeout(connection, self->idle_timeout_s);
    return true;
}

/* The table drops the session before its socket is closed: see the top of the file. */
static void end_session(struct listener_session *session)
{
    struct listener *listener = session->listener;
    lock(listener);
    const bool was_admitted = is_admitted(session), was_inline = session->state == SESSION_INLINE;
    if (session->connection) {
        listener->bytes_in += connection_bytes_in(session->connection);
        listener->bytes_out += connection_bytes_out(session->connection);
        session->connection = NULL;
    }
    if (was_admitted) {
        listener->options.leave(session);
    }
    listener_set_waiting(session, true);
    session->state = SESSION_FREE;
    unlock(listener);
    if (session->channel.connection) {
        channel_close(&session->channel);
    } else {
        close(session->fd);
    }
    lock(listener);
    free_place_locked(session);
    listener->handshaking[session->is_member] -= !was_admitted;
    listener->open--;
    listener->serving -= !was_inline;
    drain_handshakes_locked(listener);
    pthread_cond_broadcast(&listener->session_ended);
    unlock(listener);
}

/* Logs why a handshake failed, or that it was evicted. If the listener is ending, that says enough. */
static void log_failure(struct listener_session *session, enum reject_reason reason, struct error *error)
{
    struct listener *listener = session->listener;
    lock(listener);
    const bool is_logged = is_admitted(session) || listener->ending, was_evicted = session->disconnected;
    unlock(listener);
    if (was_evicted) {
        reason = REJECT_LOAD;
        error_set(error, "refused %s: its handshake was not finished, and others are waiting", session->peer);
    }
    if (!is_logged) {
        log_rejection(listener, reason, error);
    }
}

/* Performs the handshake. False: it failed, and that is logged. */
static bool admit(struct listener_session *session)
{
    struct listener *listener = session->listener;
    struct error error;
    enum reject_reason reason;
    const double begun_s = clock_thread_s();
    const bool welcome = shake_hands(session, &reason, &error);
    if (!session->is_member) {
        lock(listener);
        const double cost_s = is_admitted(session) ? 0 : clock_thread_s() - begun_s; /* it proved to be a member */
        admission_end(&listener->admission, &session->source, cost_s, clock_monotonic_s());
        unlock(listener);
    }
    if (!welcome) {
        log_failure(session, reason, &error);
    }
    return welcome;
}

/* Parks it, or resumes it if it was woken meanwhile. False: the system is out of resources. */
static bool park(struct listener_session *session)
{
    struct listener *listener = session->listener;
    lock(listener);
    const bool was_inline = session->state == SESSION_INLINE, resumes = session->woken || session->disconnected;
    listener_set_waiting(session, true);
    const bool good =
        resumes || accept_queue_park(&listener->accept_queue, session->fd, session, !session->read_paused);
    listener->serving -= good && !was_inline;
    if (resumes) {
        resume_locked(session);
    } else if (good) {
        session->state = SESSION_PARKED;
        listener->timed += session->wake_s < INFINITY;
    }
    unlock(listener);
    if (!good) {
        log_warning("dropped %s: the system is out of resources to wait for it", session->peer);
    }
    return good;
}

/* Waits for a session to serve. NULL: none came for too long, or the listener ends. */
static struct listener_session *await_session_locked(struct worker_thread *thread)
{
    struct listener *listener = thread->listener;
    struct listener_session *session;
    const double until_s = clock_monotonic_s() + IDLE_S;
    bool in_time = true;
    while (!(session = pop_ready_locked(listener)) && in_time && !listener->over) {
        thread->woken = false;
        thread->next = listener->idle;
        listener->idle = thread;
        while (!thread->woken && in_time) {
            in_time = condition_wait_for(&thread->wakeup, listener->options.lock, until_s - clock_monotonic_s());
        }
        if (!thread->woken) {
            struct worker_thread **link = &listener->idle;
            while (*link != thread) {
                link = &(*link)->next;
            }
            *link = thread->next;
        }
    }
    return session;
}

static void *run_thread(void *context)
{
    struct worker_thread *thread = context;
    struct listener *listener = thread->listener;
    struct listener_session *session;
    lock(listener);
    while ((session = await_session_locked(thread))) {
        const bool is_new = session->state == SESSION_NEW;
        session->state = is_new ? SESSION_HANDSHAKE : SESSION_SERVED;
        session->since_s = clock_monotonic_s();
        listener->serving++;
        session->woken = session->read_paused = false;
        session->wake_s = INFINITY;
        listener_set_waiting(session, is_new); /* a handshake is mostly waiting for the peer */
        unlock(listener);
        if ((is_new && !admit(session)) || !listener->options.serve(session) || !park(session)) {
            end_session(session);
        }
        lock(listener);
    }
    listener->threads--;
    thread->next = listener->ended;
    listener->ended = thread;
    pthread_cond_broadcast(&listener->thread_ended);
    unlock(listener);
    return NULL;
}

static void join_ended_threads(struct listener *listener)
{
    lock(listener);
    struct worker_thread *thread = listener->ended;
    listener->ended = NULL;
    unlock(listener);
    while (thread) {
        struct worker_thread *next = thread->next;
        pthread_join(thread->thread, NULL);
        free_thread(thread);
        thread = next;
    }
}

/* --- The owner's thread: new connections --- */

/* Takes it into the table or the handshake queue, or rejects it: it will retry. */
static void receive(struct listener *listener, const struct pending *pending, bool is_member)
{
    lock(listener);
    const bool taken = (is_member && enqueue_handshake_locked(listener, pending)) ||
                       begin_session_locked(listener, pending, is_member);
    if (!taken && !is_member) {
        admission_end(&listener->admission, &pending->source, 0, clock_monotonic_s());
    }
    unlock(listener);
    if (!taken) {
        reject(listener, REJECT_LOAD, pending, "too many handshakes are in progress");
    }
}

static void receive_unauthenticated(struct listener *listener, const struct pending *pending, bool speaks_tls)
{
    lock(listener);
    const bool may = admission_begin(&listener->admission, &pending->source, clock_monotonic_s());
    unlock(listener);
    if (may) {
        receive(listener, pending, false);
    } else if (speaks_tls) {
        reject(listener, REJECT_RATE, pending,
               "no valid handshake token, and unauthenticated handshakes have used up their CPU time");
    } else {
        reject(listener, REJECT_PLAIN, pending, "it does not speak TLS");
    }
}

static void receive_member(struct listener *listener, const struct pending *pending)
{
    lock(listener);
    const bool is_new = !listener->accept_queue.credentials || admission_is_new(&listener->admission, pending->token);
    unlock(listener);
    if (is_new) {
        receive(listener, pending, true);
    } else {
        receive_unauthenticated(listener, pending, true);
    }
}

static void dispatch(struct listener *listener, enum peer_class class, const struct pending *pending)
{
    switch (class) {
    case PEER_MEMBER:
        receive_member(listener, pending);
        break;
    case PEER_UNAUTHENTICATED:
    case PEER_PLAIN:
        receive_unauthenticated(listener, pending, class == PEER_UNAUTHENTICATED);
        break;
    case PEER_GONE:
        reject(listener, REJECT_SILENT, pending, "it sent no ClientHello in time");
        break;
    case PEER_UNKNOWN:
        break;
    }
}

/* Accepts what is pending, at most ACCEPT_BATCH, so that sessions aren't kept waiting. False: accept failed. */
static bool accept_batch(struct listener *listener)
{
    for (int i = 0; i < ACCEPT_BATCH; i++) {
        struct pending pending = {.since_s = clock_monotonic_s()}, evicted;
        struct error error;
        const enum socket_accepted accepted = socket_accept(listener->fd, &pending.fd, &pending.from, &error);
        if (accepted == SOCKET_FAILED) {
            log_rejection(listener, REJECT_ACCEPT, &error);
        }
        if (accepted != SOCKET_ACCEPTED) {
            return accepted == SOCKET_NONE;
        }
        pending.source = admission_source(&pending.from);
        const enum peer_class class = accept_queue_classify(&listener->accept_queue, &pending);
        if (class != PEER_UNKNOWN) {
            dispatch(listener, class, &pending);
        } else if (accept_queue_add(&listener->accept_queue, &pending, &evicted)) {
            reject(listener, REJECT_SILENT, &evicted, "it sent no ClientHello, and others are waiting");
        }
    }
    return true;
}

/*
 * Rejects connections that were in the handshake queue for too long. If no handshake has succeeded for a while, evicts
 * stalled ones, the oldest first, until as many are ending as are queued.
 */
static void expire_handshakes(struct listener *listener, double now_s)
{
    bool late = true;
    while (late) {
        struct pending pending;
        lock(listener);
        const int count = listener->handshake_queue.count, first = listener->handshake_queue.first;
        late = count > 0 && now_s >= listener->handshake_queue.pending[first].since_s + LISTENER_HANDSHAKE_S;
        if (late) {
            pending = dequeue_handshake_locked(listener);
        } else if (now_s >= listener->admitted_s + LISTENER_UNDER_LOAD_S && count > count_evicted_locked(listener)) {
            evict_handshake_locked(listener, true, now_s);
        }
        unlock(listener);
        if (late) {
            reject(listener, REJECT_LOAD, &pending, "too many handshakes are in progress");
        }
    }
}

/* --- The owner's thread: parked sessions --- */

/* On this thread if that doesn't block, else on a worker thread. */
static void resume(struct listener *listener, struct listener_session *session)
{
    lock(listener);
    const bool is_parked = session->state == SESSION_PARKED;
    const bool is_inline = is_parked && listener->options.try_inline && !session->disconnected;
    if (is_inline) {
        listener->timed -= session->wake_s < INFINITY;
        session->state = SESSION_INLINE;
        session->woken = session->read_paused = false;
        session->wake_s = INFINITY;
    } else if (is_parked) {
        resume_locked(session);
    }
    unlock(listener);
    if (!is_inline) {
        return;
    }
    const enum listener_inline result = listener->options.try_inline(session);
    if (result == INLINE_NEEDS_THREAD) {
        lock(listener);
        listener_set_waiting(session, true);
        resume_locked(session);
        unlock(listener);
    } else if (result == INLINE_CLOSE || !park(session)) {
        end_session(session);
    }
}

/* Adds a thread if the others are slow, so that a session has been ready for too long. True if one is ready at all. */
static bool help_slow_threads(struct listener *listener, double now_s)
{
    lock(listener);
    const struct listener_session *first = listener->ready.first;
    if (first && now_s - first->since_s >= LISTENER_SLOW_S) {
        provide_thread_locked(listener, true);
    }
    unlock(listener);
    return first;
}

/* The next parked session, from *i on, that is due; NULL: no more. */
static struct listener_session *next_expired(struct listener *listener, int *i, double now_s)
{
    struct listener_session *due = NULL;
    lock(listener);
    while (*i < listener->used && listener->timed > 0 && !due) {
        struct listener_session *session = session_at(listener, (*i)++);
        due = session->state == SESSION_PARKED && now_s >= session->wake_s ? session : NULL;
    }
    unlock(listener);
    return due;
}

static void wake_expired(struct listener *listener, double now_s)
{
    struct listener_session *session;
    for (int i = 0; (session = next_expired(listener, &i, now_s));) {
        resume(listener, session);
    }
}

static void housekeeping(struct listener *listener, double now_s)
{
    if (now_s - listener->tidied_s >= TIDY_S) {
        listener->tidied_s = now_s;
        join_ended_threads(listener);
        expire_handshakes(listener, now_s);
        log_suppressed(listener, now_s, false);
    }
    if (now_s - listener->expired_s >= EXPIRE_S) {
        listener->expired_s = now_s;
        wake_expired(listener, now_s);
    }
}

bool listener_accept(struct listener *listener, const struct wake *wake, double deadline_s)
{
    struct pending pending;
    struct listener_session *session;
    enum peer_class class;
    bool connects;
    double now_s = clock_monotonic_s();
    if (now_s < listener->pause_until_s && wake_wait(-1, 0, wake, listener->pause_until_s) == WAKE_RAISED) {
        return false;
    }
    if (help_slow_threads(listener, now_s)) {
        deadline_s = fmin(deadline_s, now_s + LISTENER_SLOW_S);
    }
    enum wake_result how = accept_queue_wait(&listener->accept_queue, listener->fd, wake, deadline_s, &connects);
    now_s = clock_monotonic_s();
    while ((class = accept_queue_next(&listener->accept_queue, now_s, &pending)) != PEER_UNKNOWN) {
        dispatch(listener, class, &pending);
    }
    while ((session = accept_queue_next_ready(&listener->accept_queue))) {
        resume(listener, session);
    }
    if (connects && !accept_batch(listener)) {
        how = wake_wait(-1, 0, wake, now_s + FAILED_S);
    }
    housekeeping(listener, now_s);
    return how != WAKE_RAISED;
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
    listener->handshake_queue.room = options->expected;
    listener->handshake_queue.pending = calloc((size_t)options->expected, sizeof(struct pending));
    if (!listener->sessions || !listener->handshake_queue.pending) {
        return error_set(error, "out of memory");
    }
    return accept_queue_create(&listener->accept_queue, options->self.credentials, room, LISTENER_HANDSHAKE_S, error);
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
    condition_create(&listener->session_ended);
    condition_create(&listener->thread_ended);
    if (!take_memory(listener, error) || !socket_listen(&listener->fd, options->host, options->port, error)) {
        listener_destroy(listener);
        return false;
    }
    allow_files(listener->places + options->expected + listener->accept_queue.room, options->likely);
    *out = listener;
    return true;
}

uint16_t listener_port(const struct listener *listener)
{
    return socket_port(listener->fd);
}

static void wake_all_locked(struct listener *listener, bool disconnect)
{
    for (int i = 0; i < listener->used; i++) {
        struct listener_session *session = session_at(listener, i);
        if (session->state != SESSION_FREE && disconnect) {
            listener_disconnect(session);
        } else if (session->state != SESSION_FREE) {
            listener_wake(session);
        }
    }
}

static void end_threads_locked(struct listener *listener)
{
    listener->over = true;
    while (listener->idle) {
        wake_thread_locked(listener);
    }
    while (listener->threads > 0) {
        pthread_cond_wait(&listener->thread_ended, listener->options.lock);
    }
}

/* Waits until all sessions have ended, or until then. The owner's thread no longer helps slow threads, so this does. */
static void await_all_locked(struct listener *listener, double until_s)
{
    double now_s;
    while (listener->open > 0 && (now_s = clock_monotonic_s()) < until_s) {
        if (listener->ready.count > 0) {
            provide_thread_locked(listener, true);
        }
        condition_wait_for(&listener->session_ended, listener->options.lock, fmin(TIDY_S, until_s - now_s));
    }
}

void listener_end(struct listener *listener, double grace_s)
{
    const double until_s = clock_monotonic_s() + grace_s;
    if (listener->fd >= 0) {
        close(listener->fd);
        listener->fd = -1;
    }
    lock(listener);
    while (listener->handshake_queue.count > 0) {
        const struct pending pending = dequeue_handshake_locked(listener);
        close(pending.fd);
    }
    wake_all_locked(listener, false);
    await_all_locked(listener, until_s);
    listener->ending = true;
    wake_all_locked(listener, true);
    await_all_locked(listener, INFINITY);
    end_threads_locked(listener);
    unlock(listener);
    join_ended_threads(listener);
    log_suppressed(listener, clock_monotonic_s(), true);
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
    pthread_cond_destroy(&listener->thread_ended);
    pthread_cond_destroy(&listener->session_ended);
    accept_queue_destroy(&listener->accept_queue);
    free(listener->handshake_queue.pending);
    free(listener->sessions);
    free(listener);
}
