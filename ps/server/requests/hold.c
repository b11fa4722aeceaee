/* Requests that wait for something to happen, and turns at the stages for pushes and pulls. */
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

bool serve_give_up(const struct session *session, const char *for_what, struct error *error)
{
    return error_set(error, "%s was given up while it waited%s", connection_name(session->channel->connection),
                     for_what);
}

bool send_keepalive(struct session *session, double *keepalive_sent_s)
{
    struct server *server = session->server;
    struct message_ping ping = {.nonce = session->incarnation};
    struct error error;
    double now_s = clock_monotonic_s();
    if (now_s - *keepalive_sent_s < identity_idle_timeout_s(&server->identity) / 4) {
        return true;
    }
    *keepalive_sent_s = now_s;
    server_unlock(server);
    bool sent = serve_send(session, MESSAGE_ping, 0, &ping, &error);
    server_lock(server);
    return sent;
}

bool serve_wait(struct session *session, bool (*ready)(struct session *session, int64_t argument), int64_t argument,
                double deadline_s)
{
    struct server *server = session->server;
    bool alive = true;
    double keepalive_sent_s = clock_monotonic_s();
    listener_set_waiting(&session->base, true);
    while (alive && !ready(session, argument) && clock_monotonic_s() < deadline_s) {
        server_wait(server);
        alive = !server->leaving && !listener_peer_hung_up(&session->base) &&
                job_is_current(&server->job, session->worker, session->incarnation) &&
                send_keepalive(session, &keepalive_sent_s);
    }
    listener_set_waiting(&session->base, false);
    return alive;
}

bool serve_hold(struct session *session, bool (*ready)(struct session *session, int64_t argument), int64_t argument,
                double deadline_s)
{
    PROFILE("wait for workers");
    struct server *server = session->server;
    if (ready(session, argument)) {
        return true;
    }
    job_hold(&server->job, session->worker, session->incarnation, 1, clock_monotonic_s());
    bool alive = serve_wait(session, ready, argument, deadline_s);
    job_hold(&server->job, session->worker, session->incarnation, -1, clock_monotonic_s());
    return alive;
}

bool serve_is_ready(struct session *session, int64_t unused)
{
    char message[256];
    (void)unused;
    return job_ready(&session->server->job, clock_monotonic_s(), message);
}

/* Of the shard, not the job: what the job has accepted may not have reached the shard yet. */
bool serve_is_at_step(struct session *session, int64_t step)
{
    int64_t now;
    shard_now(session->server->shard, NULL, &now);
    return session->server->job.state != JOB_TRAINING || now >= step;
}

/* --- Stages --- */

static bool stage_is_free(struct session *session, int64_t unused)
{
    struct session **user = &session->server->stage_users[session->worker];
    (void)unused;
    return !*user || *user == session;
}

/* A worker that pushes has abandoned any earlier push on another connection: that connection is cut. */
bool serve_take_stage(struct session *session, bool cut, struct error *error)
{
    struct server *server = session->server;
    server_lock(server);
    struct session *user = server->stage_users[session->worker];
    if (cut && user && user != session) {
        listener_disconnect(&user->base);
        pthread_cond_broadcast(&server->stepped);
    }
    bool taken = serve_hold(session, stage_is_free, 0, serve_deadline()) && stage_is_free(session, 0);
    if (taken) {
        server->stage_users[session->worker] = session;
    }
    server_unlock(server);
    return taken || error_set(error, "%s has a push or pull in progress on another connection",
                              connection_name(session->channel->connection));
}

void serve_leave_stage(struct session *session)
{
    struct server *server = session->server;
    server_lock(server);
    server->stage_users[session->worker] = NULL;
    server_unlock(server);
}
