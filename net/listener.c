/*
 * The table of sessions. What a stranger can make this process spend is bounded here: places, threads, time and lines
 * in
 * the log. A session's socket is closed only once the table has forgotten it, for a socket is cut by its number, which
 * the system may have given to another connection by then.
 */
#include "net/listener.h"

#include <assert.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "net/socket.h"

static const double TIDY_S = 0.1;   /* between two looks for threads that ended */
static const double FAILED_S = 0.1; /* without a look, after accept failed: no more files, say */

struct listener {
    struct listener_options options;
    int fd;
    int places;
    double tidied_s;
    /* Guarded by the lock. */
    char *sessions; /* [places * session_size] */
    uint64_t connections;
    int here, newcomers;          /* sessions that are here, and those of them that are not admitted */
    int gone;                     /* threads to be joined */
    uint64_t bytes_in, bytes_out; /* of connections that ended */
    pthread_cond_t left;          /* a session is gone */
    double interval_s;            /* when the interval of complaints began */
    int complaints;               /* in it */
    uint64_t unsaid;              /* refusals in it that were only counted */
    uint64_t crowded_out;         /* newcomers that there was no room for */
    struct error latest;          /* of the refusals that were only counted */
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

/* The error names the peer. A stranger that knocks a thousand times a second must not fill the disk with it. */
static void note_refusal(struct listener *listener, const struct error *error)
{
    lock(listener);
    const bool said = listener->complaints < LISTENER_COMPLAINTS;
    if (said) {
        listener->complaints++;
    } else {
        listener->unsaid++;
        listener->latest = *error;
    }
    unlock(listener);
    if (said) {
        log_warning("%s", error->text);
    }
}

/* What was only counted in the interval that is over. */
static void complain(struct listener *listener, double now_s)
{
    lock(listener);
    const double seconds = now_s - listener->interval_s;
    const bool over = seconds >= LISTENER_COMPLAIN_S;
    const uint64_t unsaid = over ? listener->unsaid : 0, crowded_out = over ? listener->crowded_out : 0;
    const struct error latest = listener->latest;
    if (over) {
        listener->interval_s = now_s;
        listener->complaints = 0;
        listener->unsaid = listener->crowded_out = 0;
    }
    unlock(listener);
    if (unsaid > 0) {
        log_warning("refused %llu more connections in %.0f s, the latest: %s", (unsigned long long)unsaid, seconds,
                    latest.text);
    }
    if (crowded_out > 0) {
        log_warning("turned away %llu connections that did not say who they are, for there were too many; does anybody "
                    "connect who should not?",
                    (unsigned long long)crowded_out);
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

/* TLS and hello. */
static bool let_in(struct listener_session *session, struct error *error)
{
    const struct listener_options *options = &session->listener->options;
    const struct introduction *self = &options->self;
    const struct handshake_rules rules = {
        .knows = options->knows ? is_known : NULL, .admit = ask_owner, .context = session};
    const double deadline_s = session->came_s + session->timeout_s;
    struct connection *connection;
    struct peer peer;
    bool served = connection_serve(&connection, session->fd, session->peer, self->credentials, NULL, deadline_s, error);
    open_channel(session, connection); /* it is end_session's to close */
    if (!served) {
        return false;
    }
    const struct hello_identity hello = self->hello(self->context);
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
    listener->newcomers -= !session->admitted;
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

static void *attend(void *context)
{
    struct listener_session *session = context;
    struct listener *listener = session->listener;
    struct error error;
    if (let_in(session, &error)) {
        listener->options.serve(session);
    } else {
        lock(listener);
        const bool said = session->admitted || session->cut; /* what was cut is counted with the crowd */
        unlock(listener);
        if (!said) {
            note_refusal(listener, &error);
        }
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

/* Who has been here longest without saying who he is goes, so that a crowd of those keeps nobody out. Locked. */
static void cut_oldest_newcomer(struct listener *listener)
{
    struct listener_session *oldest = NULL;
    for (int i = 0; i < listener->places; i++) {
        struct listener_session *session = session_at(listener, i);
        if (session->life == SESSION_HERE && !session->admitted && !session->cut &&
            (!oldest || session->came_s < oldest->came_s)) {
            oldest = session;
        }
    }
    if (oldest) {
        listener->crowded_out++;
        listener_cut(oldest);
    }
}

/* Locked. Puts the connection into the table; false if there is no place for it, or no thread. */
static bool take(struct listener *listener, int fd, const char *peer)
{
    const struct listener_options *options = &listener->options;
    const bool crowded = listener->newcomers >= options->expected + LISTENER_SPARE / 2;
    if (crowded) {
        cut_oldest_newcomer(listener);
    }
    struct listener_session *session = find_place(listener);
    if (!session || listener->newcomers >= options->expected + LISTENER_SPARE) {
        return false;
    }
    memset(session, 0, options->session_size);
    session->listener = listener;
    session->fd = fd;
    session->number = ++listener->connections;
    session->came_s = clock_monotonic_s();
    session->timeout_s = crowded ? LISTENER_CROWDED_S : LISTENER_HANDSHAKE_S;
    snprintf(session->peer, sizeof session->peer, "%s", peer);
    options->begin(session, options->context);
    if (!start_thread(session)) {
        return false;
    }
    session->life = SESSION_HERE;
    listener->here++;
    listener->newcomers++;
    return true;
}

static void receive(struct listener *listener, int fd, const char *peer)
{
    lock(listener);
    const bool taken = take(listener, fd, peer);
    listener->crowded_out += !taken;
    const bool full = !find_place(listener);
    unlock(listener);
    if (!taken) {
        close(fd); /* it comes again */
    }
    if (full) {
        tidy_up(listener);
    }
}

bool listener_accept(struct listener *listener, const struct wake *wake, double deadline_s)
{
    int fd;
    char peer[ENDPOINT_TEXT];
    enum wake_result how;
    struct error error;
    if (socket_accept(listener->fd, &fd, peer, wake, deadline_s, &how, &error)) {
        receive(listener, fd, peer);
    } else if (how == WAKE_RAISED) {
        return false;
    } else if (how != WAKE_TIMEOUT) {
        note_refusal(listener, &error);
        how = wake_wait(-1, 0, wake, clock_monotonic_s() + FAILED_S);
    }
    const double now_s = clock_monotonic_s();
    if (now_s - listener->tidied_s >= TIDY_S) {
        listener->tidied_s = now_s;
        tidy_up(listener);
        complain(listener, now_s);
    }
    return how != WAKE_RAISED;
}

/* --- What the owner asks, locked --- */

void listener_admit(struct listener_session *session)
{
    session->admitted = true;
    session->heard_s = clock_monotonic_s();
    session->listener->newcomers--;
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
    listener->places = options->members + options->expected + LISTENER_SPARE;
    listener->sessions = calloc((size_t)listener->places, options->session_size);
    listener->interval_s = clock_monotonic_s();
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&listener->left, &attributes);
    pthread_condattr_destroy(&attributes);
    if (!listener->sessions ? !error_set(error, "out of memory")
                            : !socket_listen(&listener->fd, options->host, options->port, error)) {
        listener_destroy(listener);
        return false;
    }
    *out = listener;
    return true;
}

uint16_t listener_port(const struct listener *listener)
{
    return socket_port(listener->fd);
}

int listener_places(const struct listener *listener)
{
    return listener->places;
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
    cut_all(listener);
    while (listener->here > 0) {
        pthread_cond_wait(&listener->left, listener->options.lock);
    }
    unlock(listener);
    tidy_up(listener);
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
    free(listener->sessions);
    free(listener);
}
