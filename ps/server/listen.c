/*
 * Who may connect to a ps, and with how many connections: the answers that its listener (net/listener.h) needs. A
 * member whose links died silently comes back on new ones, so each has room for a few, and the one idle for longest is
 * closed.
 *
 * Before a ps has a model only worker 0 may: where the config gives hidden layers only, the input and output widths
 * follow from data, which a ps never sees. Worker 0 sends them on its first connection; until then all others are told
 * to come back later. The handshake is the usual one, so nobody else can send them.
 */
#include "ps/server/requests.h"

#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/process/notify.h"
#include "base/process/signals.h"
#include "base/profile.h"
#include "base/threads.h"
#include "ps/server/coordinator.h"

static struct session *session_of(struct listener_session *base)
{
    return (struct session *)(void *)base;
}

/* Members that connect without a digest may only report (ps/rollout/participant.h). */
static bool is_guest(const struct peer *peer)
{
    return peer->digest[0] == '\0' && peer->member.role != MEMBER_OPERATOR;
}

/* --- How many connections --- */

/* For listener_count: does it belong to the same peer? All operators count as one. */
static bool is_of(const struct listener_session *base, const void *context)
{
    const struct session *session = (const struct session *)(const void *)base;
    const struct peer *peer = context;
    return session->is_guest == is_guest(peer) && session->who.role == peer->member.role &&
           session->who.index == peer->member.index;
}

/* There may be many workers, so each has a list. NULL: none, as it is not one of the job's workers, or has no index. */
static struct session **list_of(const struct server *server, struct member member, bool guest)
{
    if (member.role != MEMBER_WORKER || member.index < 0 || member.index >= server->job.worker_count) {
        return NULL;
    }
    return guest ? &server->guests_of[member.index] : &server->sessions_of[member.index];
}

static struct session **list_of_session(const struct session *session)
{
    return list_of(session->server, session->who, session->is_guest);
}

/* As listener_count. */
static int count_in(struct session *const *list, const struct peer *peer, struct listener_session **silent)
{
    int count = 0;
    *silent = NULL;
    for (struct session *one = *list; one; one = one->next_of_worker) {
        if (!one->base.disconnected && (is_guest(peer) || one->incarnation == peer->incarnation)) {
            count++;
            *silent = !*silent || one->base.last_active_s < (*silent)->last_active_s ? &one->base : *silent;
        }
    }
    return count;
}

static bool is_a_guest(const struct listener_session *base, const void *context)
{
    (void)context;
    return ((const struct session *)(const void *)base)->is_guest;
}

static int members(const struct server *server)
{
    return server->job.worker_count + server->config->cluster.ps_hosts.count;
}

/* --- Operators: whoever has the fleet key can be one, and none keeps another out --- */

/* The address without its port. */
static size_t host_size(const char *peer)
{
    const char *colon = strrchr(peer, ':');
    return colon ? (size_t)(colon - peer) : strlen(peer);
}

static int operators_from(const struct server *server, const struct listener_session *like)
{
    const size_t size = host_size(like->peer);
    int count = 0;
    for (struct listener_session *at = NULL; (at = listener_next(server->listener, at));) {
        count += session_of(at)->who.role == MEMBER_OPERATOR && !at->disconnected && host_size(at->peer) == size &&
                 memcmp(at->peer, like->peer, size) == 0;
    }
    return count;
}

/* An operator's connection that makes way before `other`, which may be NULL. */
static bool makes_way(const struct server *server, struct listener_session *one, struct listener_session *other)
{
    if (!other || session_of(one)->has_signed != session_of(other)->has_signed) {
        return !other || !session_of(one)->has_signed;
    }
    const int ones = operators_from(server, one), others = operators_from(server, other);
    return ones != others ? ones > others : one->last_active_s < other->last_active_s;
}

/* The first to go: without a signature, from the address with most of them, the one silent for longest. Locked. */
static struct listener_session *operator_to_replace(const struct server *server)
{
    struct listener_session *first = NULL;
    for (struct listener_session *at = NULL; (at = listener_next(server->listener, at));) {
        if (session_of(at)->who.role == MEMBER_OPERATOR && !at->disconnected && makes_way(server, at, first)) {
            first = at;
        }
    }
    return first;
}

/*
 * No member takes another's places. Guests may belong to the other version of a rollout, for whose members there are no
 * places: all guests share some. Locked.
 */
static void make_room(struct server *server, const struct peer *peer)
{
    struct listener_session *silent;
    struct session **list = list_of(server, peer->member, is_guest(peer));
    const int count = list                                ? count_in(list, peer, &silent)
                      : member_has_no_index(peer->member) ? 0
                                                          : listener_count(server->listener, is_of, peer, &silent);
    if (peer->member.role == MEMBER_OPERATOR) {
        if (count >= SERVER_OPERATORS) {
            listener_disconnect(operator_to_replace(server));
        }
        return;
    }
    const int most = is_guest(peer)                       ? SERVER_CONNECTIONS_OF_GUEST
                     : peer->member.role == MEMBER_WORKER ? SERVER_CONNECTIONS_PER_WORKER
                                                          : SERVER_CONNECTIONS_PER_PS;
    const int guests = members(server) * SERVER_CONNECTIONS_OF_GUEST;
    bool full = count >= most;
    if (!full && is_guest(peer) && server->guests >= guests) {
        full = listener_count(server->listener, is_a_guest, NULL, &silent) >= guests;
    }
    if (full) {
        listener_disconnect(silent);
    }
}

/* --- What the listener asks --- */

static void begin(struct listener_session *base, void *context)
{
    struct session *session = session_of(base);
    session->server = context;
    session->channel = &base->channel;
    session->who = (struct member){MEMBER_NONE, MEMBER_ANY_INDEX};
    session->worker = -1;
}

static bool knows(struct listener_session *base, const char *digest)
{
    return coordinator_knows_digest(session_of(base)->server->coordinator, digest);
}

/* The job decides who may join; it is asked again while an older process is being probed. */
static uint16_t admit(struct listener_session *base, const struct peer *peer, struct error *message)
{
    struct session *session = session_of(base);
    struct server *server = session->server;
    uint16_t refusal = 0;
    const bool guest = is_guest(peer);
    if (guest && !member_has_no_index(peer->member) && !coordinator_has_member(server->coordinator, peer->member)) {
        char name[MEMBER_TEXT];
        member_format(&peer->member, ' ', name);
        error_set(message, "there is no %s: do all members have the same ps_hosts and worker_hosts?", name);
        return REFUSAL_MEMBER;
    }
    server_lock(server);
    while (!guest) {
        refusal = job_hello(&server->job, peer, base->peer, clock_monotonic_s(), message);
        if (refusal != JOB_RETRY || server->leaving) {
            break;
        }
        server_wait(server);
    }
    if (refusal == JOB_RETRY) {
        refusal = REFUSAL_BUSY;
        error_set(message, "ps %d is about to leave", server->index);
    }
    if (refusal == 0) {
        make_room(server, peer);
        session->who = peer->member;
        session->is_guest = guest;
        session->worker = !guest && peer->member.role == MEMBER_WORKER ? peer->member.index : -1;
        session->incarnation = peer->incarnation;
        session->link = server->identity.credentials ? STATUS_LINK_TLS : STATUS_LINK_PLAIN;
        memcpy(session->program, peer->program, sizeof session->program);
        session->channel->generation = server->job.generation;
        struct session **list = list_of_session(session);
        if (list) {
            session->next_of_worker = *list;
            *list = session;
        }
        server->guests += guest;
        listener_admit(base);
    }
    server_unlock(server);
    return refusal;
}

static bool serve_session(struct listener_session *base)
{
    struct session *session = session_of(base);
    if (session->server->config->cluster.issync) { /* all workers wait for the slowest of these threads */
        threads_run_soon();
    }
    profile_thread("for %.27s", connection_name(session->channel->connection));
    return serve_until_idle(session);
}

static enum listener_inline try_inline(struct listener_session *base)
{
    return serve_without_waiting(session_of(base));
}

static void leave(struct listener_session *base)
{
    struct session *session = session_of(base);
    struct session **at = list_of_session(session);
    if (at) {
        while (*at != session) {
            at = &(*at)->next_of_worker;
        }
        *at = session->next_of_worker;
    }
    session->server->guests -= session->is_guest;
    if (session->worker >= 0) {
        server_release_held(session);
        job_disconnected(&session->server->job, session->worker, session->incarnation, clock_monotonic_s());
    }
}

/* --- Listening --- */

static bool open_listener(struct server *server, struct listener **listener, const struct listener_options *what,
                          struct error *error)
{
    const struct config_cluster *cluster = &server->config->cluster;
    const char *text = cluster->ps_hosts.items[server->index];
    struct listener_options options = *what;
    struct address address, bind;
    if (!address_parse(text, &address, error)) {
        return error_wrap(error, "cluster.ps_hosts: %s", text);
    }
    if (!address_parse_bind(cluster->bind, &bind, error)) {
        return error_wrap(error, "cluster.bind: %s", cluster->bind);
    }
    options.host = bind.host;
    options.port = (uint16_t)(bind.port > 0 ? bind.port : address.port);
    options.self = identity_hello_options(&server->identity);
    options.lock = &server->lock;
    options.stack_size = SERVER_STACK;
    return listener_create(listener, &options, error);
}

bool server_listen(struct server *server, struct error *error)
{
    const int workers = server->job.worker_count, ps = server->config->cluster.ps_hosts.count;
    const struct listener_options options = {
        .session_size = sizeof(struct session),
        .members = workers * SERVER_CONNECTIONS_PER_WORKER + ps * SERVER_CONNECTIONS_PER_PS +
                   members(server) * SERVER_CONNECTIONS_OF_GUEST + SERVER_OPERATORS,
        .expected = workers, /* all may connect at once */
        .likely = workers * SERVER_CONNECTIONS_OF_WORKER + ps * SERVER_CONNECTIONS_OF_PS,
        .context = server,
        .begin = begin,
        .knows = knows,
        .admit = admit,
        .serve = serve_session,
        .try_inline = try_inline,
        .leave = leave,
    };
    return open_listener(server, &server->listener, &options, error);
}

/* --- Before there is a model --- */

enum {
    CHIEF_PLACES = SERVER_CONNECTIONS_PER_WORKER, /* connections of worker 0 */
    CHIEF_MS = 100,                               /* between two checks for signals */
    CHIEF_CLOSE_S = 2,
};

struct layer_wait {
    struct server *server;
    struct listener *listener;
    bool has_layers; /* guarded by the server's lock */
};

struct layer_session {
    struct listener_session base; /* must be first: the listener's part */
    struct layer_wait *layer_wait;
};

static struct layer_wait *layer_wait_of(struct listener_session *base)
{
    return ((struct layer_session *)(void *)base)->layer_wait;
}

static void begin_chief(struct listener_session *base, void *context)
{
    ((struct layer_session *)(void *)base)->layer_wait = context;
}

static uint16_t admit_chief(struct listener_session *base, const struct peer *peer, struct error *message)
{
    struct server *server = layer_wait_of(base)->server;
    if (peer->digest[0] == '\0' || peer->member.role != MEMBER_WORKER || peer->member.index != 0) {
        error_set(message, "ps %d is waiting for worker 0, whose data determine the layer widths", server->index);
        return REFUSAL_BUSY;
    }
    pthread_mutex_lock(&server->lock);
    listener_admit(base);
    pthread_mutex_unlock(&server->lock);
    return 0;
}

/* Worker 0's requests on another connection may come before the widths: they must wait. */
static bool take_layers(struct layer_wait *layer_wait, struct channel *channel, struct error *error)
{
    struct server *server = layer_wait->server;
    const uint64_t request = channel->frame.request;
    const double deadline_s = clock_monotonic_s() + SERVER_FRAME_S;
    if (channel->frame.type != MESSAGE_layers) {
        return error_set(error, "%s", "");
    }
    pthread_mutex_lock(&server->lock);
    const bool taken =
        layer_wait->has_layers || model_take_units(&server->filled.model, channel->message.layers.units, error);
    layer_wait->has_layers = taken;
    pthread_mutex_unlock(&server->lock);
    if (!taken) {
        struct error ignored;
        channel_send_error(channel, request, ERROR_BAD_REQUEST, deadline_s, &ignored, "%s", error->text);
        return false;
    }
    char units[MODEL_UNITS_TEXT];
    model_units_text(&server->filled.model, units);
    return channel_send(channel, MESSAGE_layers, request, &(struct message_layers){.units = units}, deadline_s, error);
}

static bool serve_chief(struct listener_session *base)
{
    struct channel *channel = &base->channel;
    struct error error;
    while (channel_receive(channel, clock_monotonic_s() + SERVER_FRAME_S, &error) &&
           take_layers(layer_wait_of(base), channel, &error)) {
    }
    return false;
}

static void leave_chief(struct listener_session *base)
{
    (void)base;
}

static bool open_for_chief(struct layer_wait *layer_wait, struct error *error)
{
    const struct config_cluster *cluster = &layer_wait->server->config->cluster;
    const struct listener_options options = {
        .session_size = sizeof(struct layer_session),
        .members = CHIEF_PLACES,
        .expected = cluster->worker_hosts.count + cluster->ps_hosts.count,
        .context = layer_wait,
        .begin = begin_chief,
        .admit = admit_chief,
        .serve = serve_chief,
        .leave = leave_chief,
    };
    return open_listener(layer_wait->server, &layer_wait->listener, &options, error);
}

static bool has_layers(struct layer_wait *layer_wait)
{
    pthread_mutex_lock(&layer_wait->server->lock);
    const bool has = layer_wait->has_layers;
    pthread_mutex_unlock(&layer_wait->server->lock);
    return has;
}

bool server_wait_for_layers(struct server *server, struct error *error)
{
    struct layer_wait layer_wait = {.server = server};
    char units[MODEL_UNITS_TEXT];
    if (server->launched->model.hidden_count == CONFIG_AUTO) {
        return true;
    }
    if (!open_for_chief(&layer_wait, error)) {
        return false;
    }
    log_info("ps %d is waiting for worker 0, whose data determine the layer widths", server->index);
    notify_ready("waiting for worker 0, whose data determine the layer widths");
    while (!has_layers(&layer_wait) && signals_pending() == 0) {
        listener_accept(layer_wait.listener, NULL, clock_monotonic_s() + CHIEF_MS / 1000.0);
        notify_alive();
    }
    listener_end(layer_wait.listener, CHIEF_CLOSE_S);
    listener_destroy(layer_wait.listener);
    if (!layer_wait.has_layers) {
        return error_set(error, "was asked to leave");
    }
    model_units_text(&server->filled.model, units);
    log_info("ps %d: the layers are %s, by worker 0's data", server->index, units);
    return true;
}
