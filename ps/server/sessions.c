/* Connections come, are let in or turned away, and go. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/profile.h"
#include "base/threads.h"
#include "ps/server/internal.h"

/* --- One connection, by its own thread --- */

/* Members that come without a digest may report, and no more (ps/rollout/agent.h). */
static bool is_guest(const struct peer *peer)
{
    return peer->digest[0] == '\0' && peer->member.role != MEMBER_OPERATOR;
}

static bool is_of(const struct session *session, const struct peer *peer)
{
    const struct member *guest = &session->guest;
    if (is_guest(peer) || guest->role != MEMBER_NONE) {
        return is_guest(peer) && guest->role == peer->member.role && guest->index == peer->member.index;
    }
    switch (peer->member.role) {
    case MEMBER_WORKER:
        return session->worker == peer->member.index && session->incarnation == peer->incarnation;
    case MEMBER_PS:
        return session->ps == peer->member.index;
    default:
        return session->worker < 0 && session->ps < 0;
    }
}

/* No member takes the places of others. Locked. */
static bool make_room(struct server *server, const struct peer *peer)
{
    const bool is_operator = peer->member.role != MEMBER_WORKER && peer->member.role != MEMBER_PS;
    const int most = is_operator                          ? SERVER_OPERATORS
                     : is_guest(peer)                     ? SERVER_CONNECTIONS_OF_GUEST
                     : peer->member.role == MEMBER_WORKER ? SERVER_CONNECTIONS_PER_WORKER
                                                          : SERVER_CONNECTIONS_PER_PS;
    struct session *silent = NULL;
    int count = 0;
    for (int i = 0; i < server->session_count; i++) {
        struct session *session = &server->sessions[i];
        if (session->life != SESSION_HERE || !session->admitted || session->cut || !is_of(session, peer)) {
            continue;
        }
        count++;
        silent = silent == NULL || session->heard_s < silent->heard_s ? session : silent;
    }
    if (count >= most && !is_operator) {
        server_cut(silent);
    }
    return count < most || !is_operator;
}

/* handshake_rules.admit: the job's word on who may come in; asked again while an older process is being probed. */
static uint16_t admit(void *context, const struct peer *peer, struct error *message)
{
    struct session *session = context;
    struct server *server = session->server;
    uint16_t refusal = 0;
    const bool guest = is_guest(peer);
    server_lock(server);
    while (!guest) {
        refusal = job_hello(&server->job, &peer->member, peer->incarnation, session->peer, peer->program, peer->digest,
                            peer->fleet_version, clock_monotonic_s(), message);
        if (refusal != JOB_ASK_AGAIN || server->leaving) {
            break;
        }
        server_wait(server);
    }
    if (refusal == JOB_ASK_AGAIN) {
        refusal = REFUSAL_BUSY;
        error_set(message, "ps %d is about to leave", server->index);
    }
    if (refusal == 0 && !make_room(server, peer)) {
        refusal = REFUSAL_BUSY;
        error_set(message, "%d operators' connections are open here already", SERVER_OPERATORS);
    }
    if (refusal == 0) {
        session->admitted = true;
        session->heard_s = clock_monotonic_s();
        session->worker = !guest && peer->member.role == MEMBER_WORKER ? peer->member.index : -1;
        session->ps = !guest && peer->member.role == MEMBER_PS ? peer->member.index : -1;
        session->guest = guest ? peer->member : (struct member){MEMBER_NONE, MEMBER_ANY_INDEX};
        session->incarnation = peer->incarnation;
        session->channel.generation = server->job.generation;
        server->newcomers--;
    }
    server_unlock(server);
    return refusal;
}

static void open_channel(struct session *session, struct connection *connection)
{
    struct server *server = session->server;
    channel_open(&session->channel, connection);
    server_lock(server);
    session->connection = connection;
    server_unlock(server);
}

/* handshake_rules.knows */
static bool knows(void *context, const char *digest)
{
    return rollout_coordinator_knows(((struct session *)context)->server->coordinator, digest);
}

/* TLS and hello. */
static bool let_in(struct session *session, struct error *error)
{
    struct server *server = session->server;
    const struct handshake_rules rules = {.knows = knows, .admit = admit, .context = session};
    const double deadline_s = session->came_s + session->timeout_s;
    struct connection *connection;
    struct peer peer;
    bool served = connection_serve(&connection, session->fd, session->peer, server->identity.credentials, NULL,
                                   deadline_s, error);
    open_channel(session, connection); /* it is go's to close */
    if (!served) {
        return false;
    }
    if (!handshake_accept(&session->channel, identity_hello(&server->identity), &rules, &peer, deadline_s, error)) {
        return false;
    }
    connection_set_idle_timeout(connection, identity_idle_timeout_s(&server->identity));
    return true;
}

/* The table forgets the connection before its socket is closed, so that nobody cuts another one by its number. */
static void go(struct session *session)
{
    struct server *server = session->server;
    server_lock(server);
    if (session->connection != NULL) {
        server->bytes_in += connection_bytes_in(session->connection);
        server->bytes_out += connection_bytes_out(session->connection);
        session->connection = NULL;
    }
    if (session->admitted && session->worker >= 0) {
        job_disconnected(&server->job, session->worker, session->incarnation, clock_monotonic_s());
    }
    server->newcomers -= !session->admitted;
    server->here--;
    session->life = SESSION_GONE;
    const int fd = session->channel.connection == NULL ? session->fd : -1;
    server_unlock(server);
    channel_close(&session->channel);
    if (fd >= 0) {
        close(fd);
    }
}

static void *visit(void *context)
{
    struct session *session = context;
    struct error error;
    if (session->server->config->cluster.issync) { /* all workers wait for the slowest of these threads */
        threads_run_soon();
    }
    if (let_in(session, &error)) {
        profile_thread("for %.27s", connection_name(session->connection));
        serve(session);
    } else if (!session->admitted) {
        log_warning("%s", error.text);
    }
    go(session);
    return NULL;
}

/* --- All of them, by the main thread --- */

static struct session *find_place(struct server *server)
{
    for (int i = 0; i < server->session_count; i++) {
        if (server->sessions[i].life == SESSION_FREE) {
            return &server->sessions[i];
        }
    }
    return NULL;
}

void server_tidy_up(struct server *server)
{
    for (int i = 0; i < server->session_count; i++) {
        struct session *session = &server->sessions[i];
        server_lock(server);
        bool gone = session->life == SESSION_GONE;
        server_unlock(server);
        if (gone) {
            pthread_join(session->thread, NULL);
            server_lock(server);
            session->life = SESSION_FREE;
            server_unlock(server);
        }
    }
}

static bool start_thread(struct session *session)
{
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, SERVER_STACK);
    bool started = pthread_create(&session->thread, &attributes, visit, session) == 0;
    pthread_attr_destroy(&attributes);
    return started;
}

/* Who has been here longest without saying who he is goes, so that a crowd of those keeps nobody out. Locked. */
static void cut_oldest_newcomer(struct server *server)
{
    struct session *oldest = NULL;
    for (int i = 0; i < server->session_count; i++) {
        struct session *session = &server->sessions[i];
        if (session->life == SESSION_HERE && !session->admitted && !session->cut &&
            (oldest == NULL || session->came_s < oldest->came_s)) {
            oldest = session;
        }
    }
    if (oldest != NULL) {
        server->turned_away++;
        server_cut(oldest);
    }
}

void server_accept_session(struct server *server, int fd, const char *peer)
{
    double now_s = clock_monotonic_s();
    server_lock(server);
    struct session *session = find_place(server);
    /* All workers may come at once; more than that is somebody who means no good, and gets less time. */
    int workers = server->job.worker_count;
    int most_newcomers = workers + SERVER_SPARE_CONNECTIONS;
    if (server->newcomers >= workers + SERVER_SPARE_CONNECTIONS / 2) {
        cut_oldest_newcomer(server);
    }
    bool room = session != NULL && server->newcomers < most_newcomers;
    if (room) {
        memset(session, 0, sizeof *session);
        session->server = server;
        session->fd = fd;
        session->number = ++server->connections;
        session->came_s = now_s;
        session->timeout_s =
            server->newcomers < workers + SERVER_SPARE_CONNECTIONS / 2 ? SERVER_HANDSHAKE_S : SERVER_CROWDED_S;
        session->worker = session->ps = -1;
        snprintf(session->peer, sizeof session->peer, "%s", peer);
        session->life = SESSION_HERE;
        server->here++;
        server->newcomers++;
        if (!start_thread(session)) {
            session->life = SESSION_FREE;
            server->here--;
            server->newcomers--;
            room = false;
        }
    }
    server->turned_away += !room;
    server_unlock(server);
    if (!room) {
        close(fd);
    }
    if (find_place(server) == NULL) {
        server_tidy_up(server);
    }
}
