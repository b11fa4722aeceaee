/* Heartbeats, and the end of a worker or of the job. */
#include <stdio.h>

#include "base/clock.h"
#include "ps/server/requests/requests.h"

/*
 * Finding out whom the job waits for means a look at all workers. With very many workers the result is reused instead
 * of computed for each that asks. Locked.
 */
static const char *describe(struct server *server, double now_s)
{
    static const double A_WORKER_S = 1e-4; /* maximum age, per worker */
    struct described *described = &server->described;
    if (now_s >= described->until_s || described->state != server->job.state) {
        job_describe(&server->job, now_s, described->text);
        described->state = server->job.state;
        described->until_s = now_s + A_WORKER_S * server->job.worker_count;
    }
    return described->text;
}

bool serve_heartbeat(struct session *session, struct error *error)
{
    struct server *server = session->server;
    struct job *job = &server->job;
    char message[256];
    double now_s = clock_monotonic_s();
    server_lock(server);
    job_heartbeat(job, session->worker, session->incarnation, &session->channel->message.heartbeat, now_s);
    struct message_lease lease = {
        .lease_ms = server->identity.hello.lease_ms,
        .job_state = (uint8_t)job->state,
        .global_step = job_initialised(job) ? job->global_step : -1,
        .test_accuracy = job->test_accuracy,
        .message = message,
    };
    snprintf(message, sizeof message, "%s", describe(server, now_s));
    serve_unlock(session);
    return serve_send(session, MESSAGE_lease, session->channel->frame.request, &lease, error);
}

bool serve_end_job(struct session *session, struct error *error)
{
    struct server *server = session->server;
    struct verdict verdict;
    server_lock(server);
    job_end(&server->job, session->worker, &session->channel->message.end_job, clock_monotonic_s(), &verdict);
    int64_t global_step = server->job.global_step;
    serve_unlock(session);
    return serve_send_verdict(session, session->channel->frame.request, &verdict, global_step, error);
}

bool serve_leave(struct session *session, struct error *error)
{
    struct server *server = session->server;
    server_lock(server);
    if (session->worker >= 0) {
        job_leave(&server->job, session->worker, session->incarnation, session->channel->message.leave.message,
                  clock_monotonic_s());
    }
    int64_t global_step = server->job.global_step;
    server_unlock(server);
    return serve_send_done(session, session->channel->frame.request, global_step, error);
}

bool serve_get_place(struct session *session, struct error *error)
{
    struct server *server = session->server;
    const uint64_t request = session->channel->frame.request, key = session->channel->message.get_place.key;
    struct verdict verdict;
    if (key == 0) {
        return serve_send_error(session, request, ERROR_BAD_REQUEST, "0 is no worker's key", error);
    }
    server_lock(server);
    const struct message_place place = {.index = job_place(&server->job, key, clock_monotonic_s(), &verdict)};
    server_unlock(server);
    return verdict.code != 0 ? serve_send_error(session, request, verdict.code, verdict.message, error)
                             : serve_send(session, MESSAGE_place, request, &place, error);
}

bool serve_ping(struct session *session, struct error *error)
{
    struct message_pong pong = {.nonce = session->channel->message.ping.nonce};
    return serve_send(session, MESSAGE_pong, session->channel->frame.request, &pong, error);
}

bool serve_pong(struct session *session, struct error *error)
{
    struct server *server = session->server;
    (void)error;
    if (session->worker >= 0) {
        server_lock(server);
        job_pong(&server->job, session->worker, session->incarnation, session->channel->message.pong.nonce);
        server_unlock(server);
    }
    return true;
}
