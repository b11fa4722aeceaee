/* Signs of life, and the end: of a worker, or of the job. */
#include "base/clock.h"
#include "ps/server/requests/requests.h"

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
    job_describe(job, now_s, message);
    serve_tell_generation(session);
    server_unlock(server);
    return serve_send(session, MESSAGE_lease, session->channel->frame.request, &lease, error);
}

bool serve_end_job(struct session *session, struct error *error)
{
    struct server *server = session->server;
    struct verdict verdict;
    server_lock(server);
    job_end(&server->job, session->worker, &session->channel->message.end_job, clock_monotonic_s(), &verdict);
    int64_t global_step = server->job.global_step;
    serve_tell_generation(session);
    server_unlock(server);
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

bool serve_ping(struct session *session, struct error *error)
{
    struct message_pong pong = {.nonce = session->channel->message.ping.nonce};
    return serve_send(session, MESSAGE_pong, session->channel->frame.request, &pong, error);
}

bool serve_pong(struct session *session)
{
    struct server *server = session->server;
    if (session->worker >= 0) {
        server_lock(server);
        job_pong(&server->job, session->worker, session->incarnation, session->channel->message.pong.nonce);
        server_unlock(server);
    }
    return true;
}
