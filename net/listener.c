/*
 * The table of sessions, and the threads that serve them. What a stranger can make this process spend is bounded here:
 * places, threads, time, processor time and lines in the log. A session's socket is closed only once the table has
 * forgotten it, for a socket is cut by its number, which the system may have given to another connection by then.
 *
 * A session goes round: ready (in a queue), served (by a thread), and rests, until something comes or it is roused;
 * then it is ready again. Members that come faster than their handshakes can be made wait in the lobby, in order.
 */
#include "net/listener.h"

#include <assert.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/condition.h"
#include "base/log.h"
#include "net/complaints.h"
#include "net/door.h"
#include "net/socket.h"

enum {
    AT_A_TIME = 64,   /* connections taken before others are looked at again */
    SPARE_FILES = 64, /* what a process opens beside its listener's connections */
};

static const double TIDY_S = 0.1;    /* between two looks for threads that ended */
static const double FAILED_S = 0.1;  /* without a look, after accept failed: no more files, say */
static const double BUSY_S = 0.005;  /* without a look, after some were turned away: they come many at a time, then */
static const double LINGER_S = 0.25; /* that a thread stays with a session to which nothing comes */
static const double IDLE_S = 10;     /* until a thread without a session ends */
static const double ROUSE_S = 0.5;   /* between two looks for sessions whose time has come */

/* One that serves. */
struct attendant {
    pthread_t thread;
    struct listener *listener;
    struct connection_spare spare;
    pthread_cond_t call;
    bool called;
    struct attendant *next, *before; /* that waits for a call, or ended */
};

struct ready {
    struct listener_session *first, *last;
    int count;
};

struct listener {
    struct listener_options options;
    int fd;
    int places, expected; /* expected: members' handshakes at a time, beyond half of the spare ones */
    double tidied_s, roused_s;
    double busy_until_s;
    struct door door;
    /* Guarded by the lock. */
    char *sessions;                /* [places * session_size] */
    int used;                      /* of them, that ever were somebody's */
    struct listener_session *free; /* of those */
    struct ready ready;
    uint64_t connections;
    int here;
    int timed;         /* sessions that rest until a time */
    int newcomers[2];  /* sessions that are here and not admitted: strangers, members */
    double admitted_s; /* when somebody was admitted last */
    struct {
        struct pending *waits; /* [room]: a ring */
        int room, first, count;
    } lobby;
    int threads, serving;      /* the others look for a session, or will once they have begun to run */
    int working;               /* that serve a session after a rest, and do not wait for others */
    struct attendant *waiting; /* for a call: the last one to begin is called first, for it has the warmest caches */
    struct attendant *ended;   /* to be joined */
    struct connection_spare spare; /* of the owner's thread */
    pthread_cond_t no_more;        /* a thread ended */
    bool ending, over;
    uint64_t bytes_in, bytes_out; /* of connections that ended */
    pthread_cond_t left;          /* a session is gone */
    struct admission admission;
    struct complaints complaints;
};

static struct listener_session *session_at(const struct listener *listener, int i)
{
    return (struct listener_session *)(void *)(listener->sessions + (size_t)i * listener->options.session_size);
}

static void lock(const struct listener *listener)
{
    pthread_mutex_lock(listener->options.lock);
}

static void unlock(const struct listener *listener)
{
    pthread_mutex_unlock(listener->options.lock);
}

/* --- Refusals --- */

static void note_refusal(struct listener *listener, enum complaint cause, const struct admission_source *source,
                         const char *peer, const struct error *error)
{
    lock(listener);
    const bool said = complaints_note(&listener->complaints, cause, source, peer, error, clock_monotonic_s());
    unlock(listener);
    if (said) {
        log_warning("%s", error->text);
    }
}

static void refuse(struct listener *listener, enum complaint cause, const struct pending *pending, const char *why)
{
    struct error error;
    char peer[ENDPOINT_TEXT];
    endpoint_format(&pending->from, peer);
    error_set(&error, "refused %s: %s", peer, why);
    note_refusal(listener, cause, &pending->source, peer, &error);
    close(pending->fd);
    listener->busy_until_s = clock_monotonic_s() + BUSY_S;
}

/* What was only counted, and is due. */
static void complain(struct listener *listener, double now_s, bool last)
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

/* --- Sessions that are ready, and threads for them. Locked. --- */

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

static bool start_thread(struct listener *listener)
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

/* One of those that wait; where there is none, those who are on their way here find what is ready. */
static void call_one(struct listener *listener)
{
    struct attendant *attendant = listener->waiting;
    if (attendant) {
        stop_waiting(attendant);
        attendant->called = true;
        pthread_cond_signal(&attendant->call);
    }
}

/* Sees to it that the session that has been ready for longest is taken by somebody. False: there is no thread. */
static bool call_thread(struct listener *listener, bool at_once)
{
    if (listener->ready.count <= listener->threads - listener->serving) {
        call_one(listener);
        return true;
    }
    return (!at_once && listener->working >= LISTENER_THREADS) || start_thread(listener);
}

static void put_last(struct ready *queue, struct listener_session *session)
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

static void make_ready(struct listener_session *session)
{
    struct listener *listener = session->listener;
    listener->timed -= session->life == SESSION_RESTS && session->rouse_s < INFINITY;
    session->life = SESSION_READY;
    session->since_s = clock_monotonic_s();
    put_last(&listener->ready, session);
    call_thread(listener, false);
}

void listener_rouse(struct listener_session *session)
{
    if (session->life == SESSION_RESTS) {
        make_ready(session);
    } else {
        session->roused = true;
    }
}

void listener_rouse_at(struct listener_session *session, double when_s)
{
    session->rouse_s = when_s;
}

void listener_waits(struct listener_session *session, bool waits)
{
    struct listener *listener = session->listener;
    if (waits == session->waits || !listener) {
        return;
    }
    session->waits = waits;
    listener->working += waits ? -1 : 1;
    if (waits && listener->ready.count > 0) {
        call_thread(listener, false);
    }
}

double listener_linger_s(const struct listener *listener)
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

/* TLS and hello. *cause: of a refusal. */
static bool let_in(struct listener_session *session, enum complaint *cause, struct error *error)
{
    const struct listener_options *options = &session->listener->options;
    const struct introduction *self = &options->self;
    const struct handshake_rules rules = {
        .knows = options->knows ? is_known : NULL, .admit = ask_owner, .context = session};
    const double deadline_s = session->came_s + session->timeout_s;
    struct connection *connection;
    struct peer peer;
    *cause = COMPLAINT_TLS;
    bool served = connection_serve(&connection, session->fd, session->peer, self->credentials, NULL, deadline_s, error);
    open_channel(session, connection); /* it is end_session's to close */
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

static void call_in(struct listener *listener);

/* The table forgets the connection before its socket is closed, so that nobody cuts another one by its number. */
static void end_session(struct listener_session *session)
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
    listener_waits(session, true);
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
    listener->serving -= !session->glanced;
    call_in(listener);
    pthread_cond_broadcast(&listener->left);
    unlock(listener);
}

/* It was not welcome, or had to make room; of those that end with the listener nothing is said. */
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
        note_refusal(listener, cause, &session->source, session->peer, error);
    }
}

/* False: it is not welcome. */
static bool receive_peer(struct listener_session *session)
{
    struct listener *listener = session->listener;
    struct error error;
    enum complaint cause;
    const double begun_s = clock_thread_s();
    const bool welcome = let_in(session, &cause, &error);
    if (!session->member) {
        lock(listener);
        const double cost_s = session->admitted ? 0 : clock_thread_s() - begun_s; /* it was no stranger, then */
        admission_end(&listener->admission, &session->source, cost_s, clock_monotonic_s());
        unlock(listener);
    }
    if (!welcome) {
        complain_of(session, cause, &error);
    }
    return welcome;
}

/* Lets it rest, or look around once more first. False: the system can't. */
static bool rest(struct listener_session *session)
{
    struct listener *listener = session->listener;
    bool good = true;
    lock(listener);
    listener_waits(session, true);
    if (session->roused || session->cut) {
        listener->serving -= !session->glanced;
        make_ready(session);
    } else {
        good = door_rest(&listener->door, session->fd, session, !session->deaf);
        if (good) {
            session->life = SESSION_RESTS;
            listener->timed += session->rouse_s < INFINITY;
            listener->serving -= !session->glanced;
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
    if ((fresh && !receive_peer(session)) || !session->listener->options.serve(session) || !rest(session)) {
        end_session(session);
    }
}

/* Waits, locked, for a session to serve; NULL: there was none for long, or all is over. */
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
        session->spare = &attendant->spare;
        session->since_s = clock_monotonic_s();
        listener->serving++;
        session->fresh = session->roused = session->deaf = session->glanced = false;
        session->rouse_s = INFINITY;
        listener_waits(session, fresh); /* in its handshake it waits for its peer, mostly */
        unlock(listener);
        serve_once(session, fresh);
        lock(listener);
    }
    connection_spare_free(&attendant->spare);
    listener->threads--;
    attendant->next = listener->ended;
    listener->ended = attendant;
    pthread_cond_broadcast(&listener->no_more);
    unlock(listener);
    return NULL;
}

/* --- All of them, by the owner's thread --- */

static void tidy_up(struct listener *listener)
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

/* Locked. One that nobody has; NULL: all are somebody's. */
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

/* It has been served for long enough, and its next step is the peer's: it is not we who are slow. Locked. */
static bool is_kept_waiting(const struct listener_session *session, double now_s)
{
    struct pollfd said = {.fd = session->fd, .events = POLLIN};
    return session->life == SESSION_SERVED && now_s - session->since_s >= LISTENER_CROWDED_S && poll(&said, 1, 0) == 0;
}

static bool is_newcomer(const struct listener_session *session, bool member)
{
    return session->life != SESSION_FREE && !session->admitted && session->member == member;
}

/*
 * Who has been in a handshake longest goes, so that a crowd of those keeps nobody out. now_s: of those alone that keep
 * us waiting; 0: of all. Locked.
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
        listener_cut(oldest);
    }
}

/* Members that had to make room, and have not left yet: on a busy machine that takes its time. Locked. */
static int count_leaving(const struct listener *listener)
{
    int leaving = listener->newcomers[true];
    for (int i = 0; i < listener->used; i++) {
        const struct listener_session *session = session_at(listener, i);
        leaving -= is_newcomer(session, true) && !session->cut;
    }
    return leaving;
}

/* Locked. Puts the connection into the table; false if there is no place for it, or no thread. */
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
    session->timeout_s = crowded && !member ? LISTENER_CROWDED_S : LISTENER_HANDSHAKE_S;
    session->member = member;
    session->source = pending->source;
    session->fresh = session->waits = true;
    session->since_s = clock_monotonic_s();
    session->rouse_s = INFINITY;
    endpoint_format(&pending->from, session->peer);
    socket_prepare(pending->fd, &pending->from);
    options->begin(session, options->context);
    if (listener->ready.count >= listener->threads - listener->serving && !start_thread(listener)) {
        session->next = listener->free;
        listener->free = session;
        return false;
    }
    session->life = SESSION_READY;
    put_last(&listener->ready, session);
    call_one(listener);
    listener->here++;
    listener->newcomers[member]++;
    return true;
}

/* Are as many members in their handshakes as may be at a time, without one having to leave for another? Locked. */
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

static struct pending leave_lobby(struct listener *listener)
{
    const struct pending pending = listener->lobby.waits[listener->lobby.first];
    listener->lobby.first = (listener->lobby.first + 1) % listener->lobby.room;
    listener->lobby.count--;
    return pending;
}

/* Members have their turns as others are done; where there is no place any more, the listener's thread says so. */
static void call_in(struct listener *listener)
{
    while (listener->lobby.count > 0 && !is_lobby_closed(listener)) {
        struct pending pending = leave_lobby(listener);
        pending.came_s = clock_monotonic_s(); /* it has its full time from here on */
        if (!take(listener, &pending, true)) {
            close(pending.fd); /* it comes again */
        }
    }
}

/*
 * Those in the lobby whose time is over leave it; and where nobody ends a handshake, though a crowd is in the middle of
 * one, those that keep us waiting make room for as many as are in the lobby.
 */
static void look_into_lobby(struct listener *listener, double now_s)
{
    bool late = true;
    while (late) {
        struct pending pending;
        lock(listener);
        late = listener->lobby.count > 0 &&
               now_s >= listener->lobby.waits[listener->lobby.first].came_s + LISTENER_HANDSHAKE_S;
        if (late) {
            pending = leave_lobby(listener);
        } else if (now_s >= listener->admitted_s + LISTENER_CROWDED_S &&
                   listener->lobby.count > count_leaving(listener)) {
            cut_oldest_newcomer(listener, true, now_s);
        }
        unlock(listener);
        if (late) {
            refuse(listener, COMPLAINT_CROWD, &pending, "too many handshakes are in progress");
        }
    }
}

/* Lets it in, or to the lobby, if there is a place, or else turns it away: it comes again. */
static void receive(struct listener *listener, const struct pending *pending, bool member)
{
    lock(listener);
    const bool taken = (member && wait_in_lobby(listener, pending)) || take(listener, pending, member);
    if (!taken && !member) {
        admission_end(&listener->admission, &pending->source, 0, clock_monotonic_s());
    }
    unlock(listener);
    if (!taken) {
        refuse(listener, COMPLAINT_CROWD, pending, "too many handshakes are in progress");
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
        refuse(listener, COMPLAINT_SHARE, pending,
               "it shows no pass, and unauthenticated handshakes have used up their CPU time");
    } else {
        refuse(listener, COMPLAINT_PLAIN, pending, "it does not speak TLS");
    }
}

static void deal_with(struct listener *listener, enum door_look look, const struct pending *pending)
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
        refuse(listener, COMPLAINT_SILENT, pending, "it did not identify itself");
        break;
    case DOOR_NOTHING:
        break;
    }
}

/* Those that wait for us, but for so many that others are kept waiting. False if the system can't. */
static bool take_those_who_come(struct listener *listener)
{
    for (int i = 0; i < AT_A_TIME; i++) {
        struct pending pending = {.came_s = clock_monotonic_s()}, out;
        struct error error;
        const enum socket_taken taken = socket_take(listener->fd, &pending.fd, &pending.from, &error);
        if (taken == SOCKET_FAILED) {
            note_refusal(listener, COMPLAINT_ACCEPT, &pending.source, "this machine", &error);
        }
        if (taken != SOCKET_TAKEN) {
            return taken == SOCKET_NONE;
        }
        pending.source = admission_source(&pending.from);
        const enum door_look look = door_look(&listener->door, &pending);
        if (look != DOOR_NOTHING) {
            deal_with(listener, look, &pending);
        } else if (door_put(&listener->door, &pending, &out)) {
            refuse(listener, COMPLAINT_SILENT, &out, "it did not identify itself, and others are waiting");
        }
    }
    return true;
}

/* One that rested, and goes on: at once, if it takes no waiting, else by a thread. */
static void go_on(struct listener *listener, struct listener_session *session)
{
    enum listener_glance how = GLANCE_SERVE;
    lock(listener);
    const bool rested = session->life == SESSION_RESTS;
    if (rested && (!listener->options.glance || session->cut)) {
        make_ready(session);
    }
    const bool glances = rested && session->life == SESSION_RESTS;
    if (glances) {
        listener->timed -= session->rouse_s < INFINITY;
        session->life = SESSION_SERVED;
        session->spare = &listener->spare;
        session->roused = session->deaf = false;
        session->glanced = true;
        session->rouse_s = INFINITY;
    }
    unlock(listener);
    if (!glances) {
        return;
    }
    how = listener->options.glance(session);
    if (how == GLANCE_SERVE) {
        lock(listener);
        listener_waits(session, true);
        make_ready(session);
        unlock(listener);
    } else if (how == GLANCE_ENDS || !rest(session)) {
        end_session(session);
    }
}

/* Those that rested, and go on. */
static void take_stirred(struct listener *listener)
{
    struct listener_session *session;
    while ((session = door_stirred(&listener->door))) {
        go_on(listener, session);
    }
}

/* One more thread, where those that there are keep somebody waiting. True: somebody waits. */
static bool help_slow_threads(struct listener *listener, double now_s)
{
    lock(listener);
    const struct listener_session *first = listener->ready.first;
    if (first && now_s - first->since_s >= LISTENER_SLOW_S) {
        call_thread(listener, true);
    }
    unlock(listener);
    return first;
}

/* The next one from *i on that rests until now; NULL: there are no more. */
static struct listener_session *next_due(struct listener *listener, int *i, double now_s)
{
    struct listener_session *due = NULL;
    lock(listener);
    while (*i < listener->used && listener->timed > 0 && !due) {
        struct listener_session *session = session_at(listener, (*i)++);
        due = session->life == SESSION_RESTS && now_s >= session->rouse_s ? session : NULL;
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
        tidy_up(listener);
        look_into_lobby(listener, now_s);
        complain(listener, now_s, false);
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
        deal_with(listener, look, &pending);
    }
    take_stirred(listener);
    if (comes && !take_those_who_come(listener)) {
        how = wake_wait(-1, 0, wake, now_s + FAILED_S);
    }
    look_after_all(listener, now_s);
    return how != WAKE_RAISED;
}

/* --- What the owner asks, locked --- */

void listener_admit(struct listener_session *session)
{
    session->admitted = true;
    session->heard_s = session->listener->admitted_s = clock_monotonic_s();
    session->listener->newcomers[session->member]--;
    call_in(session->listener);
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
            *silent = !*silent || session->heard_s < (*silent)->heard_s ? session : *silent;
        }
    }
    return count;
}

void listener_cut(struct listener_session *session)
{
    session->cut = true;
    shutdown(session->fd, SHUT_RDWR);
    listener_rouse(session);
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

/* --- Beginning and end --- */

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
    const int room = listener->expected + LISTENER_DOOR;
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
    listener->expected = options->expected < LISTENER_SHAKING ? options->expected : LISTENER_SHAKING;
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

/* All look around; cut: they are cut. Locked. */
static void rouse_all(struct listener *listener, bool cut)
{
    for (int i = 0; i < listener->used; i++) {
        struct listener_session *session = session_at(listener, i);
        if (session->life != SESSION_FREE && cut) {
            listener_cut(session);
        } else if (session->life != SESSION_FREE) {
            listener_rouse(session);
        }
    }
}

/* Locked. */
static void end_threads(struct listener *listener)
{
    listener->over = true;
    while (listener->waiting) {
        call_one(listener);
    }
    while (listener->threads > 0) {
        pthread_cond_wait(&listener->no_more, listener->options.lock);
    }
}

/* Until all have ended, or that time. Who is ready finds a thread, though the listener's thread does nothing else. */
static void await_all(struct listener *listener, double until_s)
{
    double now_s;
    while (listener->here > 0 && (now_s = clock_monotonic_s()) < until_s) {
        if (listener->ready.count > 0) {
            call_thread(listener, true);
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
        const struct pending pending = leave_lobby(listener);
        close(pending.fd);
    }
    rouse_all(listener, false);
    await_all(listener, cut_s);
    listener->ending = true;
    rouse_all(listener, true);
    await_all(listener, INFINITY);
    end_threads(listener);
    unlock(listener);
    tidy_up(listener);
    complain(listener, clock_monotonic_s(), true);
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
    connection_spare_free(&listener->spare);
    free(listener->lobby.waits);
    free(listener->sessions);
    free(listener);
}
