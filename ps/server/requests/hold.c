/* Requests that are held until something has happened, and the stages that pushes and pulls take turns at. */
#include <poll.h>

#include "base/clock.h"
#include "base/profile.h"
#include "ps/server/requests/requests.h"

double serve_hold_deadline(const struct server *server)
{
    double lease_s = server->config->cluster.lease_secs;
    return clock_monotonic_s() + (lease_s < SERVER_HOLD_S ? lease_s : SERVER_HOLD_S);
}

double serve_wait_deadline(uint32_t wait_ms)
{
    return clock_monotonic_s() + wait_ms / 1000.0;
}

bool serve_peer_hung_up(const struct visitor *visitor)
{
    struct pollfd hangup = {.fd = visitor->fd, .events = POLLRDHUP};
    return poll(&hangup, 1, 0) > 0 && (hangup.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

bool serve_sign(struct visitor *visitor, double *signed_s)
{
    struct server *server = visitor->server;
    struct message_ping ping = {.nonce = visitor->incarnation};
    struct error error;
    double now_s = clock_monotonic_s();
    if (now_s - *signed_s < self_patience_s(&server->self) / 4) {
        return true;
    }
    *signed_s = now_s;
    server_unlock(server);
    bool sent = serve_send(visitor, MESSAGE_ping, 0, &ping, &error);
    server_lock(server);
    return sent;
}

bool serve_hold(struct visitor *visitor, bool (*ready)(struct visitor *visitor, int64_t argument), int64_t argument,
                double deadline_s)
{
    PROFILE("wait for workers");
    struct server *server = visitor->server;
    bool alive = true;
    if (ready(visitor, argument)) {
        return true;
    }
    double signed_s = clock_monotonic_s();
    job_hold(&server->job, visitor->worker, visitor->incarnation, 1, signed_s);
    while (alive && !ready(visitor, argument) && clock_monotonic_s() < deadline_s) {
        server_wait(server);
        alive = !server->leaving && !serve_peer_hung_up(visitor) &&
                job_is_current(&server->job, visitor->worker, visitor->incarnation) && serve_sign(visitor, &signed_s);
    }
    job_hold(&server->job, visitor->worker, visitor->incarnation, -1, clock_monotonic_s());
    return alive;
}

bool serve_is_ready(struct visitor *visitor, int64_t unused)
{
    char sentence[256];
    (void)unused;
    return job_ready(&visitor->server->job, clock_monotonic_s(), sentence);
}

/* Of the shard: what the job has accepted may still be on its way into it. */
bool serve_is_at_step(struct visitor *visitor, int64_t step)
{
    int64_t now;
    shard_now(visitor->server->shard, NULL, &now);
    return visitor->server->job.state != JOB_TRAINING || now >= step;
}

/* --- Stages --- */

static bool stage_is_free(struct visitor *visitor, int64_t unused)
{
    struct visitor **user = &visitor->server->stage_users[visitor->worker];
    (void)unused;
    return *user == NULL || *user == visitor;
}

/* Whoever pushes has given up an earlier push on another connection: that one is cut off. */
bool serve_take_stage(struct visitor *visitor, bool cut, struct error *error)
{
    struct server *server = visitor->server;
    server_lock(server);
    struct visitor *user = server->stage_users[visitor->worker];
    if (cut && user != NULL && user != visitor) {
        server_cut(user);
        pthread_cond_broadcast(&server->stepped);
    }
    bool taken = serve_hold(visitor, stage_is_free, 0, serve_deadline()) && stage_is_free(visitor, 0);
    if (taken) {
        server->stage_users[visitor->worker] = visitor;
    }
    server_unlock(server);
    return taken || error_set(error, "%s has a push or pull under way on another connection",
                              connection_name(visitor->channel.connection));
}

void serve_leave_stage(struct visitor *visitor)
{
    struct server *server = visitor->server;
    server_lock(server);
    server->stage_users[visitor->worker] = NULL;
    server_unlock(server);
}
