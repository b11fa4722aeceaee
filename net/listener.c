/*
 * The table of sessions. What a stranger can make this process spend is bounded here: places, threads, time, processor
 * time and lines in the log. A session's socket is closed only once the table has forgotten it, for a socket is cut by
 * its number, which the system may have given to another connection by then.
 */
#include "net/listener.h"

#include <assert.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "net/complaints.h"
#include "net/door.h"
#include "net/socket.h"

enum {
    AT_A_TIME = 64,   /* connections taken before others are looked at again */
    SPARE_FILES = 64, /* what a process opens beside its listener's connections */
};

static const double TIDY_S = 0.1;   /* between two looks for threads that ended */
static const double FAILED_S = 0.1; /* without a look, after accept failed: no more files, say */
static const double BUSY_S = 0.005; /* without a look, after some were turned away: they come many at a time, then */

struct listener {
    struct listener_options options;
    int fd;
    int places;
    double tidied_s;
    double busy_until_s;
    struct door door;
    /* Guarded by the lock. */
    char *sessions; /* [places * session_size] */
    uint64_t connections;
    int here;
    int newcomers[2]; /* sessions that are here and not admitted: strangers, members */
    int gone;         /* threads to be joined */
    bool ending;
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

/* --- One connection, by its own thread --- */

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
    listener->newcomers[session->member] -= !session->admitted;
    listener->here--;
    listener->gone++;
    session->life = SESSION_GONE;
    const int fd = session->channel.connection ? -1 : session->fd;
    pthread_cond_broadcast(&listener->left);
    unlock(listener);
    channel_close(&session->channel);
    if (fd >= 0) {
        close(fd);
    }
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
        error_set(error, "refused %s: others want to come in, and it was not done with its handshake", session->peer);
    }
    if (!said) {
        note_refusal(listener, cause, &session->source, session->peer, error);
    }
}

static void *attend(void *context)
{
    struct listener_session *session = context;
    struct listener *listener = session->listener;
    struct error error;
    enum complaint cause;
    const bool welcome = let_in(session, &cause, &error);
    if (!session->member) {
        lock(listener);
        const double cost_s = session->admitted ? 0 : clock_thread_s(); /* it was no stranger, then */
        admission_end(&listener->admission, &session->source, cost_s, clock_monotonic_s());
        unlock(listener);
    }
    if (welcome) {
        listener->options.serve(session);
    } else {
        complain_of(session, cause, &error);
    }
    end_session(session);
    return NULL;
}

/* --- All of them, by the owner's thread --- */

static void tidy_up(struct listener *listener)
{
    lock(listener);
    for (int i = 0; listener->gone > 0 && i < listener->places; i++) {
        struct listener_session *session = session_at(listener, i);
        if (session->life == SESSION_GONE) {
            unlock(listener);
            pthread_join(session->thread, NULL);
            lock(listener);
            session->life = SESSION_FREE;
            listener->gone--;
        }
    }
    unlock(listener);
}

/* Locked. */
static struct listener_session *find_place(struct listener *listener)
{
    for (int i = 0; i < listener->places; i++) {
        if (session_at(listener, i)->life == SESSION_FREE) {
            return session_at(listener, i);
        }
    }
    return NULL;
}

static bool start_thread(struct listener_session *session)
{
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, session->listener->options.stack_size);
    bool started = pthread_create(&session->thread, &attributes, attend, session) == 0;
    pthread_attr_destroy(&attributes);
    return started;
}

/* Who has been in a handshake longest goes, so that a crowd of those keeps nobody out. Locked. */
static void cut_oldest_newcomer(struct listener *listener, bool member)
{
    struct listener_session *oldest = NULL;
    for (int i = 0; i < listener->places; i++) {
        struct listener_session *session = session_at(listener, i);
        if (session->life == SESSION_HERE && !session->admitted && !session->cut && session->member == member &&
            (!oldest || session->came_s < oldest->came_s)) {
            oldest = session;
        }
    }
    if (oldest) {
        listener_cut(oldest);
    }
}

/* Locked. Puts the connection into the table; false if there is no place for it, or no thread. */
static bool take(struct listener *listener, const struct pending *pending, bool member)
{
    const struct listener_options *options = &listener->options;
    const int most = LISTENER_SPARE + (member ? options->expected : 0);
    const bool crowded = listener->newcomers[member] >= most - LISTENER_SPARE / 2;
    if (crowded) {
        cut_oldest_newcomer(listener, member);
    }
    struct listener_session *session = find_place(listener);
    if (!session || listener->newcomers[member] >= most) {
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
    endpoint_format(&pending->from, session->peer);
    socket_prepare(pending->fd, &pending->from);
    options->begin(session, options->context);
    if (!start_thread(session)) {
        return false;
    }
    session->life = SESSION_HERE;
    listener->here++;
    listener->newcomers[member]++;
    return true;
}

/* Gives it a thread, if there is a place, or else turns it away: it comes again. */
static void receive(struct listener *listener, const struct pending *pending, bool member)
{
    lock(listener);
    const bool taken = take(listener, pending, member);
    if (!taken && !member) {
        admission_end(&listener->admission, &pending->source, 0, clock_monotonic_s());
    }
    const bool full = !find_place(listener);
    unlock(listener);
    if (!taken) {
        refuse(listener, COMPLAINT_CROWD, pending, "too many are in their handshakes already");
    }
    if (full) {
        tidy_up(listener);
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
               "it shows no pass, and strangers' handshakes take all the processor time that they may");
    } else {
        refuse(listener, COMPLAINT_PLAIN, pending, "it speaks no TLS");
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
        refuse(listener, COMPLAINT_SILENT, pending, "it did not say who it is");
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
            refuse(listener, COMPLAINT_SILENT, &out, "it did not say who it is, and others want to come in");
        }
    }
    return true;
}

bool listener_accept(struct listener *listener, const struct wake *wake, double deadline_s)
{
    struct pending pending;
    enum door_look look;
    bool comes;
    if (clock_monotonic_s() < listener->busy_until_s && wake_wait(-1, 0, wake, listener->busy_until_s) == WAKE_RAISED) {
        return false;
    }
    enum wake_result how = door_wait(&listener->door, listener->fd, wake, deadline_s, &comes);
    const double now_s = clock_monotonic_s();
    while ((look = door_next(&listener->door, now_s, &pending)) != DOOR_NOTHING) {
        deal_with(listener, look, &pending);
    }
    if (comes && !take_those_who_come(listener)) {
        how = wake_wait(-1, 0, wake, now_s + FAILED_S);
    }
    if (now_s - listener->tidied_s >= TIDY_S) {
        listener->tidied_s = now_s;
        tidy_up(listener);
        complain(listener, now_s, false);
    }
    return how != WAKE_RAISED;
}

/* --- What the owner asks, locked --- */

void listener_admit(struct listener_session *session)
{
    session->admitted = true;
    session->heard_s = clock_monotonic_s();
    session->listener->newcomers[session->member]--;
}

struct listener_session *listener_next(const struct listener *listener, const struct listener_session *session)
{
    const size_t size = listener->options.session_size;
    const char *next = session ? (const char *)session + size : listener->sessions;
    for (int i = (int)((size_t)(next - listener->sessions) / size); i < listener->places; i++) {
        struct listener_session *one = session_at(listener, i);
        if (one->life == SESSION_HERE && one->admitted && !one->cut) {
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
}

void listener_bytes(const struct listener *listener, uint64_t *in, uint64_t *out)
{
    *in = listener->bytes_in;
    *out = listener->bytes_out;
    for (int i = 0; i < listener->places; i++) {
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
static void allow_files(int files)
{
    struct rlimit limit;
    rlim_t wanted = (rlim_t)files + SPARE_FILES;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) {
        return;
    }
    limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur < wanted) {
        log_warning("only %lu files may be open, and %d connections could be: raise the limit (ulimit -n)",
                    (unsigned long)limit.rlim_cur, files);
    }
}

bool listener_create(struct listener **out, const struct listener_options *options, struct error *error)
{
    pthread_condattr_t attributes;
    struct listener *listener = calloc(1, sizeof *listener);
    *out = NULL;
    if (!listener) {
        return error_set(error, "out of memory");
    }
    listener->options = *options;
    listener->fd = -1;
    listener->places = options->members + options->expected + 2 * LISTENER_SPARE;
    listener->sessions = calloc((size_t)listener->places, options->session_size);
    admission_start(&listener->admission, clock_monotonic_s());
    const int room = options->expected + LISTENER_DOOR;
    const bool has_memory =
        door_create(&listener->door, options->self.credentials, room, LISTENER_HANDSHAKE_S) && listener->sessions;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&listener->left, &attributes);
    pthread_condattr_destroy(&attributes);
    if (!has_memory ? !error_set(error, "out of memory")
                    : !socket_listen(&listener->fd, options->host, options->port, error)) {
        listener_destroy(listener);
        return false;
    }
    allow_files(listener->places + room);
    *out = listener;
    return true;
}

uint16_t listener_port(const struct listener *listener)
{
    return socket_port(listener->fd);
}

static void cut_all(struct listener *listener)
{
    for (int i = 0; i < listener->places; i++) {
        if (session_at(listener, i)->life == SESSION_HERE) {
            listener_cut(session_at(listener, i));
        }
    }
}

void listener_end(struct listener *listener, double grace_s)
{
    const double cut_s = clock_monotonic_s() + grace_s;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)((grace_s - (double)(long)grace_s) * 1e9);
    until.tv_sec += (time_t)grace_s + until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    if (listener->fd >= 0) {
        close(listener->fd);
        listener->fd = -1;
    }
    lock(listener);
    while (listener->here > 0 && clock_monotonic_s() < cut_s) {
        pthread_cond_timedwait(&listener->left, listener->options.lock, &until);
    }
    listener->ending = true;
    cut_all(listener);
    while (listener->here > 0) {
        pthread_cond_wait(&listener->left, listener->options.lock);
    }
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
    pthread_cond_destroy(&listener->left);
    door_destroy(&listener->door);
    free(listener->sessions);
    free(listener);
}
