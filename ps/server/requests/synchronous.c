/*
 * Synchronous training: a push is staged, waits for its step with those of the other workers, and is answered with what
 * the step changed. The waiting threads apply the step themselves: the first to find it decided leads, the others help.
 */
#include <math.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/condition.h"
#include "base/profile.h"
#include "ps/server/requests/requests.h"
#include "ps/server/worker_set.h"

/* --- Steps --- */

void server_wait_step(struct server *server)
{
    if (job_has_actions(&server->job)) {
        server_unlock(server);
        server_lock(server);
        return;
    }
    condition_wait_for(&server->stepped, &server->lock, SERVER_TICK_MS / 1000.0);
}

/* The same, for a request. */
static void wait_step(struct session *session)
{
    listener_set_waiting(&session->base, true);
    server_wait_step(session->server);
    listener_set_waiting(&session->base, false);
}

void server_lead(struct server *server)
{
    struct job_step step;
    if (!server_has_step(server) || !job_take_step(&server->job, &step)) {
        return;
    }
    server->stepping = true;
    server->steps_begun++;
    if (shard_wants_help(server->shard) || server->job.gathered.shards > 1) { /* wakes followers' requests at once */
        pthread_cond_broadcast(&server->stepped);
    }
    server_unlock(server);
    bool applied = shard_aggregate(server->shard, step.generation, step.workers, step.count);
    server_lock(server);
    server->stepping = false;
    server->pushes += step.count;
    for (int i = 0; applied && i < step.count; i++) {
        struct job_worker *worker = &server->job.workers[step.workers[i]];
        shard_round_figures(server->shard, step.workers[i], &worker->cosine, &worker->norm);
    }
    job_step_applied(&server->job, &step, applied, clock_monotonic_s());
    pthread_cond_broadcast(&server->stepped);
}

/* Helps with the step being applied, once per step. Locked on entry and on return. */
static bool help(struct server *server, uint64_t *helped)
{
    if (!server->stepping || *helped == server->steps_begun || !shard_wants_help(server->shard)) {
        return false;
    }
    *helped = server->steps_begun;
    server_unlock(server);
    shard_help(server->shard);
    server_lock(server);
    return true;
}

/* --- Pushes --- */

enum wait_end { WAIT_SETTLED, WAIT_TOO_LONG, WAIT_GIVEN_UP };

/* Waits, locked, for the push's step. */
static enum wait_end await_step(struct session *session, const struct job_push *push, struct verdict *verdict)
{
    PROFILE("wait for workers");
    struct server *server = session->server;
    double now_s = clock_monotonic_s(), looked_s = now_s, keepalive_sent_s = now_s;
    const double deadline_s = serve_hold_deadline(server);
    enum wait_end end = WAIT_SETTLED;
    uint64_t helped = 0;
    job_hold(&server->job, session->worker, session->incarnation, 1, now_s);
    while (end == WAIT_SETTLED && !job_settled(&server->job, session->worker, session->incarnation, push, verdict)) {
        if (server_has_step(server)) {
            server_lead(server);
        } else if (!help(server, &helped)) {
            wait_step(session);
            now_s = clock_monotonic_s();
            if (server->leaving ||
                (now_s - looked_s >= SERVER_TICK_MS / 2000.0 && listener_peer_hung_up(&session->base)) ||
                !send_keepalive(session, &keepalive_sent_s)) {
                end = WAIT_GIVEN_UP;
            } else if (now_s >= deadline_s) {
                end = WAIT_TOO_LONG;
            }
            looked_s = now_s;
        }
    }
    job_hold(&server->job, session->worker, session->incarnation, -1, clock_monotonic_s());
    return end;
}

static bool answer_push(struct session *session, const struct message_push *push, uint64_t request,
                        const struct job_push *event, const struct verdict *verdict, struct error *error)
{
    struct server *server = session->server;
    struct stage *stage = shard_stage(server->shard, session->worker);
    struct changes changes;
    const struct wanted wanted = serve_wanted(session, push->answer_dtype, push->base_version);
    if (!shard_answer(server->shard, event->generation, stage, wanted.since_version, wanted.packed, &changes)) {
        return serve_send_error(session, request, ERROR_OLD_GENERATION, "the model is being restored", error);
    }
    server_lock(server);
    const int64_t token = job_token(&server->job, session->worker, changes.global_step);
    server_unlock(server);
    int64_t late = changes.global_step - 1 - push->token;
    struct message_pushed pushed = {
        .outcome = (uint8_t)verdict->outcome,
        .sequence = push->sequence,
        .version = changes.version,
        .global_step = changes.global_step,
        .token = token,
        .staleness = verdict->outcome == PUSH_STALE && late > 0 ? (uint32_t)late : 0,
        .dtype = serve_dtype(&wanted, &changes),
    };
    bool sent = serve_send_changes(session, MESSAGE_pushed, request, &pushed, &pushed.ranges, &changes, &wanted, error);
    shard_answered(server->shard, &changes);
    return sent;
}

/* Everything after the last frame. */
static bool settle_push(struct session *session, const struct message_push *push, uint64_t request,
                        const struct job_push *event, bool received, struct error *error)
{
    struct server *server = session->server;
    struct verdict verdict;
    char message[256] = "";
    enum wait_end end = WAIT_SETTLED;
    server_lock(server);
    job_staged(&server->job, session->worker, session->incarnation, event, received, clock_monotonic_s(), &verdict);
    server->last_loss = push->loss;
    if (server->following) {
        pthread_cond_broadcast(&server->stepped); /* wakes threads that report to the coordinator */
    }
    if (verdict.code == 0) {
        end = await_step(session, event, &verdict);
    }
    if (end == WAIT_TOO_LONG) {
        job_describe_wait(&server->job, clock_monotonic_s(), message);
    } else if (end == WAIT_GIVEN_UP) {
        snprintf(message, sizeof message, " for step %lld", (long long)event->token);
    }
    serve_unlock(session);
    if (end == WAIT_GIVEN_UP) {
        return serve_give_up(session, message, error);
    }
    if (end == WAIT_TOO_LONG) {
        return serve_send_error(session, request, ERROR_TOO_LATE, message, error);
    }
    return verdict.code != 0 ? serve_send_error(session, request, verdict.code, verdict.message, error)
                             : answer_push(session, push, request, event, &verdict, error);
}

bool serve_synchronous_push(struct session *session, struct error *error)
{
    struct server *server = session->server;
    const struct message_push push = session->channel->message.push; /* its ranges are overwritten by the next frame */
    const uint64_t request = session->channel->frame.request;
    struct job_push event = {
        .generation = session->channel->frame.generation,
        .sequence = push.sequence,
        .base_step = push.base_step,
        .token = push.token,
    };
    struct stage *stage = shard_stage(server->shard, session->worker);
    struct verdict verdict;
    bool receive;
    if (!serve_take_stage(session, true, error)) {
        return false;
    }
    server_lock(server);
    /* The shard may be past a step that the job will only hear of soon. */
    while (server->job.state == JOB_TRAINING && server->job.stepping && push.token > server->job.global_step &&
           !server->leaving) {
        wait_step(session);
    }
    job_stage(&server->job, session->worker, session->incarnation, &event, clock_monotonic_s(), &verdict, &receive);
    server_unlock(server);
    bool done = serve_receive_push(session, receive ? stage : NULL, &push, request, error);
    if (done) {
        /* A loss that is not finite means that the gradient was not worth sending. */
        if (receive) {
            stage_weigh(stage, push.examples);
        }
        event.finite = !receive || (stage_is_finite(stage) && isfinite(push.loss));
        done = settle_push(session, &push, request, &event, receive, error);
    }
    serve_leave_stage(session);
    return done;
}

/* --- For followers --- */

bool serve_staged(struct session *session, struct error *error)
{
    struct server *server = session->server;
    const struct message_staged *staged = &session->channel->message.staged;
    const uint64_t request = session->channel->frame.request;
    struct verdict verdict = {0};
    server_lock(server);
    int workers = server->job.worker_count;
    if (!worker_set_read(&staged->finite, server->finite, workers) ||
        !worker_set_read(&staged->not_finite, server->not_finite, workers)) {
        verdict = (struct verdict){.code = ERROR_BAD_REQUEST, .message = "it names workers that do not exist"};
    } else {
        job_report(&server->job, session->who.index, session->channel->frame.generation, staged->step, server->finite,
                   server->not_finite, clock_monotonic_s(), &verdict);
        server_lead(server);
    }
    int64_t global_step = server->job.global_step;
    serve_unlock(session);
    return serve_send_verdict(session, request, &verdict, global_step, error);
}

/* The set of workers of a decided step; false: not decided, or forgotten. */
static bool find_set(const struct server *server, uint32_t generation, int64_t step, uint8_t *bytes, struct ranges *set)
{
    const struct job *job = &server->job;
    *set = (struct ranges){bytes, 0};
    if (generation != job->generation) {
        return false;
    }
    const unsigned char *taken = NULL;
    if (step == job->gathered.step && job->gathered.decided) {
        taken = job->gathered.taken;
    } else if (step == job->last_set_step) {
        taken = job->last_set;
    }
    for (int i = 0; taken && i < job->worker_count; i++) {
        if (taken[i]) {
            worker_set_put(set, bytes, i);
        }
    }
    return taken;
}

bool serve_get_aggregate(struct session *session, struct error *error)
{
    struct server *server = session->server;
    const struct message_get_aggregate wanted = session->channel->message.get_aggregate;
    const uint64_t request = session->channel->frame.request;
    const uint32_t generation = session->channel->frame.generation;
    uint8_t bytes[WORKER_SET_BYTES];
    struct message_aggregate aggregate = {.step = wanted.step};
    double looked_s = clock_monotonic_s();
    const double deadline_s = looked_s + wanted.wait_ms / 1000.0;
    bool alive = true;
    server_lock(server);
    while (alive && !find_set(server, generation, wanted.step, bytes, &aggregate.workers) &&
           generation == server->job.generation && clock_monotonic_s() < deadline_s) {
        wait_step(session);
        double now_s = clock_monotonic_s();
        if (now_s - looked_s >= SERVER_TICK_MS / 2000.0) {
            alive = !listener_peer_hung_up(&session->base);
        }
        alive = alive && !server->leaving;
        looked_s = now_s;
    }
    bool same = generation == server->job.generation;
    serve_unlock(session);
    if (!alive) {
        return serve_give_up(session, "", error);
    }
    if (!same) {
        return serve_send_error(session, request, ERROR_OLD_GENERATION, "the model was restored since", error);
    }
    if (aggregate.workers.count == 0) {
        return serve_send_error(session, request, ERROR_TOO_LATE, "that step is not decided yet", error);
    }
    return serve_send(session, MESSAGE_aggregate, request, &aggregate, error);
}
