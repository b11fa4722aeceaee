/*
 * Before a ps has a model: where the config gives hidden layers only, the input and output widths follow from data,
 * which a ps never sees. Worker 0 sends them on its first connection; until then all others are told to come back
 * later. The handshake is the usual one, so nobody else can send them.
 */
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/process/notify.h"
#include "base/process/signals.h"
#include "ps/server/internal.h"

enum {
    LEARN_PLACES = SERVER_CONNECTIONS_PER_WORKER, /* connections of worker 0 */
    LEARN_MS = 100,                               /* between two checks for signals */
    LEARN_CLOSE_S = 2,
};

struct learner {
    struct server *server;
    struct listener *listener;
    bool has_learnt; /* guarded by the server's lock */
};

struct learner_session {
    struct listener_session base; /* must be first: the listener's part */
    struct learner *learner;
};

static struct learner *learner_of(struct listener_session *base)
{
    return ((struct learner_session *)(void *)base)->learner;
}

static void begin(struct listener_session *base, void *context)
{
    ((struct learner_session *)(void *)base)->learner = context;
}

static uint16_t admit(struct listener_session *base, const struct peer *peer, struct error *message)
{
    struct server *server = learner_of(base)->server;
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
static bool take_layers(struct learner *learner, struct channel *channel, struct error *error)
{
    struct server *server = learner->server;
    const uint64_t request = channel->frame.request;
    const double deadline_s = clock_monotonic_s() + SERVER_FRAME_S;
    if (channel->frame.type != MESSAGE_layers) {
        return error_set(error, "%s", "");
    }
    pthread_mutex_lock(&server->lock);
    const bool taken =
        learner->has_learnt || model_take_units(&server->filled.model, channel->message.layers.units, error);
    learner->has_learnt = taken;
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

static bool serve_session(struct listener_session *base)
{
    struct channel *channel = &base->channel;
    struct error error;
    while (channel_receive(channel, clock_monotonic_s() + SERVER_FRAME_S, &error) &&
           take_layers(learner_of(base), channel, &error)) {
    }
    return false;
}

static void leave(struct listener_session *base)
{
    (void)base;
}

static bool open_listener(struct learner *learner, struct error *error)
{
    const struct config_cluster *cluster = &learner->server->config->cluster;
    const struct listener_options options = {
        .session_size = sizeof(struct learner_session),
        .members = LEARN_PLACES,
        .expected = cluster->worker_hosts.count + cluster->ps_hosts.count,
        .context = learner,
        .begin = begin,
        .admit = admit,
        .serve = serve_session,
        .leave = leave,
    };
    return server_open(learner->server, &learner->listener, &options, error);
}

static bool has_learnt(struct learner *learner)
{
    pthread_mutex_lock(&learner->server->lock);
    const bool learnt = learner->has_learnt;
    pthread_mutex_unlock(&learner->server->lock);
    return learnt;
}

bool server_learn_layers(struct server *server, struct error *error)
{
    struct learner learner = {.server = server};
    char units[MODEL_UNITS_TEXT];
    if (server->launched->model.hidden_count == CONFIG_AUTO) {
        return true;
    }
    if (!open_listener(&learner, error)) {
        return false;
    }
    log_info("ps %d is waiting for worker 0, whose data determine the layer widths", server->index);
    notify_ready("waiting for worker 0, whose data determine the layer widths");
    while (!has_learnt(&learner) && signals_pending() == 0) {
        listener_accept(learner.listener, NULL, clock_monotonic_s() + LEARN_MS / 1000.0);
        notify_alive();
    }
    listener_end(learner.listener, LEARN_CLOSE_S);
    listener_destroy(learner.listener);
    if (!learner.has_learnt) {
        return error_set(error, "was asked to leave");
    }
    model_units_text(&server->filled.model, units);
    log_info("ps %d: the layers are %s, by worker 0's data", server->index, units);
    return true;
}
