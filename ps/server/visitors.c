/* Connections come, are let in or turned away, and go. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/profile.h"
#include "base/threads.h"
#include "ps/server/inside.h"

/* --- One connection, by its own thread --- */

/* Members that come without a digest may report, and no more (ps/rollout/agent.h). */
static bool is_guest(const struct peer *peer)
{
    return peer->digest[0] == '\0' && peer->member.role != MEMBER_OPERATOR;
}

static bool is_of(const struct visitor *visitor, const struct peer *peer)
{
    const struct member *guest = &visitor->guest;
    if (is_guest(peer) || guest->role != MEMBER_NONE) {
        return is_guest(peer) && guest->role == peer->member.role && guest->index == peer->member.index;
    }
    switch (peer->member.role) {
    case MEMBER_WORKER:
        return visitor->worker == peer->member.index && visitor->incarnation == peer->incarnation;
    case MEMBER_PS:
        return visitor->ps == peer->member.index;
    default:
        return visitor->worker < 0 && visitor->ps < 0;
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
    struct visitor *silent = NULL;
    int count = 0;
    for (int i = 0; i < server->visitor_count; i++) {
        struct visitor *visitor = &server->visitors[i];
        if (visitor->life != VISITOR_HERE || !visitor->admitted || visitor->cut || !is_of(visitor, peer)) {
            continue;
        }
        count++;
        silent = silent == NULL || visitor->heard_s < silent->heard_s ? visitor : silent;
    }
    if (count >= most && !is_operator) {
        server_cut(silent);
    }
    return count < most || !is_operator;
}

/* handshake_rules.admit: the job's word on who may come in; asked again while an older process is being probed. */
static uint16_t admit(void *context, const struct peer *peer, struct error *sentence)
{
    struct visitor *visitor = context;
    struct server *server = visitor->server;
    uint16_t refusal = 0;
    const bool guest = is_guest(peer);
    server_lock(server);
    while (!guest) {
        refusal = job_hello(&server->job, &peer->member, peer->incarnation, visitor->peer, peer->program, peer->digest,
                            peer->fleet_version, clock_monotonic_s(), sentence);
        if (refusal != JOB_ASK_AGAIN || server->leaving) {
            break;
        }
        server_wait(server);
    }
    if (refusal == JOB_ASK_AGAIN) {
        refusal = REFUSAL_BUSY;
        error_set(sentence, "ps %d is about to leave", server->index);
    }
    if (refusal == 0 && !make_room(server, peer)) {
        refusal = REFUSAL_BUSY;
        error_set(sentence, "%d operators' connections are open here already", SERVER_OPERATORS);
    }
    if (refusal == 0) {
        visitor->admitted = true;
        visitor->heard_s = clock_monotonic_s();
        visitor->worker = !guest && peer->member.role == MEMBER_WORKER ? peer->member.index : -1;
        visitor->ps = !guest && peer->member.role == MEMBER_PS ? peer->member.index : -1;
        visitor->guest = guest ? peer->member : (struct member){MEMBER_NONE, MEMBER_ANY_INDEX};
        visitor->incarnation = peer->incarnation;
        visitor->channel.generation = server->job.generation;
        server->newcomers--;
    }
    server_unlock(server);
    return refusal;
}

static void open_channel(struct visitor *visitor, struct connection *connection)
{
    struct server *server = visitor->server;
    channel_open(&visitor->channel, connection);
    server_lock(server);
    visitor->connection = connection;
    server_unlock(server);
}

/* handshake_rules.knows */
static bool knows(void *context, const char *digest)
{
    return desk_knows(((struct visitor *)context)->server->desk, digest);
}

/* TLS and hello. */
static bool let_in(struct visitor *visitor, struct error *error)
{
    struct server *server = visitor->server;
    const struct handshake_rules rules = {.knows = knows, .admit = admit, .context = visitor};
    const double deadline_s = visitor->came_s + visitor->patience_s;
    struct connection *connection;
    struct peer peer;
    bool served =
        connection_serve(&connection, visitor->fd, visitor->peer, server->self.credentials, NULL, deadline_s, error);
    open_channel(visitor, connection); /* it is go's to close */
    if (!served) {
        return false;
    }
    if (!handshake_accept(&visitor->channel, self_identity(&server->self), &rules, &peer, deadline_s, error)) {
        return false;
    }
    connection_set_patience(connection, self_patience_s(&server->self));
    return true;
}

/* The table forgets the connection before its socket is closed, so that nobody cuts another one by its number. */
static void go(struct visitor *visitor)
{
    struct server *server = visitor->server;
    server_lock(server);
    if (visitor->connection != NULL) {
        server->bytes_in += connection_bytes_in(visitor->connection);
        server->bytes_out += connection_bytes_out(visitor->connection);
        visitor->connection = NULL;
    }
    if (visitor->admitted && visitor->worker >= 0) {
        job_disconnected(&server->job, visitor->worker, visitor->incarnation, clock_monotonic_s());
    }
    server->newcomers -= !visitor->admitted;
    server->here--;
    visitor->life = VISITOR_GONE;
    const int fd = visitor->channel.connection == NULL ? visitor->fd : -1;
    server_unlock(server);
    channel_close(&visitor->channel);
    if (fd >= 0) {
        close(fd);
    }
}

static void *visit(void *context)
{
    struct visitor *visitor = context;
    struct error error;
    if (visitor->server->config->cluster.issync) { /* all workers wait for the slowest of these threads */
        threads_run_soon();
    }
    if (let_in(visitor, &error)) {
        profile_thread("for %.27s", connection_name(visitor->connection));
        serve(visitor);
    } else if (!visitor->admitted) {
        log_warning("%s", error.text);
    }
    go(visitor);
    return NULL;
}

/* --- All of them, by the main thread --- */

static struct visitor *find_place(struct server *server)
{
    for (int i = 0; i < server->visitor_count; i++) {
        if (server->visitors[i].life == VISITOR_FREE) {
            return &server->visitors[i];
        }
    }
    return NULL;
}

void server_tidy_up(struct server *server)
{
    for (int i = 0; i < server->visitor_count; i++) {
        struct visitor *visitor = &server->visitors[i];
        server_lock(server);
        bool gone = visitor->life == VISITOR_GONE;
        server_unlock(server);
        if (gone) {
            pthread_join(visitor->thread, NULL);
            server_lock(server);
            visitor->life = VISITOR_FREE;
            server_unlock(server);
        }
    }
}

static bool start_thread(struct visitor *visitor)
{
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, SERVER_STACK);
    bool started = pthread_create(&visitor->thread, &attributes, visit, visitor) == 0;
    pthread_attr_destroy(&attributes);
    return started;
}

/* Who has been here longest without saying who he is goes, so that a crowd of those keeps nobody out. Locked. */
static void cut_oldest_newcomer(struct server *server)
{
    struct visitor *oldest = NULL;
    for (int i = 0; i < server->visitor_count; i++) {
        struct visitor *visitor = &server->visitors[i];
        if (visitor->life == VISITOR_HERE && !visitor->admitted && !visitor->cut &&
            (oldest == NULL || visitor->came_s < oldest->came_s)) {
            oldest = visitor;
        }
    }
    if (oldest != NULL) {
        server->turned_away++;
        server_cut(oldest);
    }
}

void server_receive_visitor(struct server *server, int fd, const char *peer)
{
    double now_s = clock_monotonic_s();
    server_lock(server);
    struct visitor *visitor = find_place(server);
    /* All workers may come at once; more than that is somebody who means no good, and gets less time. */
    int workers = server->job.worker_count;
    int most_newcomers = workers + SERVER_SPARE_CONNECTIONS;
    if (server->newcomers >= workers + SERVER_SPARE_CONNECTIONS / 2) {
        cut_oldest_newcomer(server);
    }
    bool room = visitor != NULL && server->newcomers < most_newcomers;
    if (room) {
        memset(visitor, 0, sizeof *visitor);
        visitor->server = server;
        visitor->fd = fd;
        visitor->number = ++server->connections;
        visitor->came_s = now_s;
        visitor->patience_s =
            server->newcomers < workers + SERVER_SPARE_CONNECTIONS / 2 ? SERVER_HANDSHAKE_S : SERVER_CROWDED_S;
        visitor->worker = visitor->ps = -1;
        snprintf(visitor->peer, sizeof visitor->peer, "%s", peer);
        visitor->life = VISITOR_HERE;
        server->here++;
        server->newcomers++;
        if (!start_thread(visitor)) {
            visitor->life = VISITOR_FREE;
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
