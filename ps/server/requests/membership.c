/* Signs of life, and the end: of a worker, or of the job. */
#include "base/clock.h"
#include "ps/server/requests/requests.h"

bool serve_heartbeat(struct visitor *visitor, struct error *error)
{
    struct server *server = visitor->server;
    struct job *job = &server->job;
    char sentence[256];
    double now_s = clock_monotonic_s();
    server_lock(server);
    job_heartbeat(job, visitor->worker, visitor->incarnation, &visitor->channel.message.heartbeat, now_s);
    struct message_lease lease = {
        .lease_ms = server->self.identity.lease_ms,
        .job_state = (uint8_t)job->state,
        .global_step = job_initialised(job) ? job->global_step : -1,
        .test_accuracy = job->test_accuracy,
        .sentence = sentence,
    };
    job_describe(job, now_s, sentence);
    serve_tell_generation(visitor);
    server_unlock(server);
    return serve_send(visitor, MESSAGE_lease, visitor->channel.frame.request, &lease, error);
}

bool serve_end_job(struct visitor *visitor, struct error *error)
{
    struct server *server = visitor->server;
    struct verdict verdict;
    server_lock(server);
    job_end(&server->job, visitor->worker, &visitor->channel.message.end_job, clock_monotonic_s(), &verdict);
    int64_t global_step = server->job.global_step;
    serve_tell_generation(visitor);
    server_unlock(server);
    return serve_send_verdict(visitor, visitor->channel.frame.request, &verdict, global_step, error);
}

bool serve_leave(struct visitor *visitor, struct error *error)
{
    struct server *server = visitor->server;
    server_lock(server);
    if (visitor->worker >= 0) {
        job_leave(&server->job, visitor->worker, visitor->incarnation, visitor->channel.message.leave.sentence,
                  clock_monotonic_s());
    }
    int64_t global_step = server->job.global_step;
    server_unlock(server);
    return serve_send_done(visitor, visitor->channel.frame.request, global_step, error);
}

bool serve_ping(struct visitor *visitor, struct error *error)
{
    struct message_pong pong = {.nonce = visitor->channel.message.ping.nonce};
    return serve_send(visitor, MESSAGE_pong, visitor->channel.frame.request, &pong, error);
}

bool serve_pong(struct visitor *visitor)
{
    struct server *server = visitor->server;
    if (visitor->worker >= 0) {
        server_lock(server);
        job_pong(&server->job, visitor->worker, visitor->incarnation, visitor->channel.message.pong.nonce);
        server_unlock(server);
    }
    return true;
}
