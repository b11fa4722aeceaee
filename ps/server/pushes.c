/*
 * Pushes: received into a stage, decided by the job, applied to the shard, and answered with what changed. A
 * synchronous push waits in its stage for its step with those of the other workers.
 */
#include "ps/server/requests.h"

#include <math.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/profile.h"
#include "ps/store/codec.h"

/* --- Receiving --- */

enum received {
    RECEIVED,
    MALFORMED, /* *error: what the sender did wrong */
    BROKEN,    /* *error: why the connection ends */
};

/* The next bytes of the bulk. */
static enum received read_packed(struct session *session, void *bytes, size_t size, double deadline_s,
                                 struct error *error)
{
    if (size > session->channel->bulk_left) {
        error_set(error, "push: its bulk ends within packed floats");
        return MALFORMED;
    }
    return channel_read_bulk(session->channel, bytes, size, deadline_s, error) ? RECEIVED : BROKEN;
}

static enum received receive_int8(struct session *session, struct stage *stage, struct range range, double deadline_s,
                                  struct error *error)
{
    uint8_t bytes[PACKED_FLOATS + PACKED_FLOATS / INT8_BLOCK * sizeof(float)];
    float *values;
    if (!stage_claim(stage, range, &values, error)) {
        return MALFORMED;
    }
    const enum received how = read_packed(session, bytes, int8_size(range.count), deadline_s, error);
    if (how != RECEIVED) {
        return how;
    }
    if (!int8_widen(values, bytes, range.count)) {
        error_set(error, "push: a scale is negative or infinite");
        return MALFORMED;
    }
    stage_check(stage, values, range.count);
    return RECEIVED;
}

/* Decodes the positions of the chosen floats; returns how many. */
static enum received receive_places(struct session *session, struct range range, uint16_t *places, size_t *count,
                                    double deadline_s, struct error *error)
{
    uint8_t bytes[PACKED_FLOATS * LARGEST_GAP];
    enum received how = read_packed(session, bytes, LARGEST_HEAD, deadline_s, error);
    if (how != RECEIVED) {
        return how;
    }
    const struct largest_head head = largest_read_head(bytes);
    *count = head.count;
    if (head.count > range.count || head.gap_bytes > sizeof bytes) {
        error_set(error, "push: %u of %u floats in %u bytes is impossible", head.count, range.count, head.gap_bytes);
        return MALFORMED;
    }
    how = read_packed(session, bytes, head.gap_bytes, deadline_s, error);
    if (how == RECEIVED && !largest_read_places(places, head, bytes, range.count)) {
        error_set(error, "push: not all positions of %u floats are within their range of %u", head.count, range.count);
        return MALFORMED;
    }
    return how;
}

static enum received receive_largest(struct session *session, struct stage *stage, struct range range, enum dtype dtype,
                                     double deadline_s, struct error *error)
{
    uint8_t bytes[PACKED_FLOATS * sizeof(float)];
    uint16_t places[PACKED_FLOATS];
    float values[PACKED_FLOATS];
    size_t count;
    enum received how = receive_places(session, range, places, &count, deadline_s, error);
    if (how == RECEIVED) {
        how = read_packed(session, bytes, largest_values_size(dtype, count), deadline_s, error);
    }
    if (how != RECEIVED) {
        return how;
    }
    if (!largest_read_values(values, bytes, count, dtype)) {
        error_set(error, "push: a scale is negative or infinite");
        return MALFORMED;
    }
    if (!stage_scatter(stage, range, places, values, count, error)) {
        return MALFORMED;
    }
    stage_check(stage, values, count);
    return RECEIVED;
}

static enum received receive_floats(struct session *session, struct stage *stage, struct range range, enum dtype dtype,
                                    double deadline_s, struct error *error)
{
    /* From shared memory in pieces, still in the cache when they are checked; a socket gives more at a time. */
    const bool in_pieces = connection_is_local(session->channel->connection);
    const uint32_t most = in_pieces ? SERVE_CHUNK_FLOATS : range.count;
    float *values;
    if (!stage_claim(stage, range, &values, error)) {
        return MALFORMED;
    }
    for (uint32_t done = 0, count; done < range.count; done += count) {
        count = range.count - done < most ? range.count - done : most;
        if (!serve_read_floats(session, dtype, values + done, count, deadline_s, error)) {
            return BROKEN;
        }
        stage_check(stage, values + done, count);
    }
    return RECEIVED;
}

/* Receives one frame's part of the gradient into the stage. */
static enum received receive_gradient(struct session *session, struct stage *stage, struct error *error)
{
    const struct message_push *push = &session->channel->message.push;
    const enum dtype dtype = (enum dtype)push->dtype;
    const double deadline_s = serve_deadline();
    for (uint32_t i = 0; i < push->ranges.count; i++) {
        const struct range range = range_get(&push->ranges, i);
        const enum received how =
            !dtype_is_packed(dtype) ? receive_floats(session, stage, range, dtype, deadline_s, error)
            : dtype == DTYPE_INT8   ? receive_int8(session, stage, range, deadline_s, error)
                                    : receive_largest(session, stage, range, dtype, deadline_s, error);
        if (how != RECEIVED) {
            return how;
        }
    }
    if (session->channel->bulk_left > 0) {
        error_set(error, "push: %u bytes more than its floats take", session->channel->bulk_left);
        return MALFORMED;
    }
    return RECEIVED;
}

/* stage: NULL discards it. */
static enum received receive_frames(struct session *session, struct stage *stage, const struct message_push *first,
                                    uint64_t request, struct error *error)
{
    struct channel *channel = session->channel;
    const uint32_t generation = channel->frame.generation;
    for (;;) {
        const enum received how = stage ? receive_gradient(session, stage, error) : RECEIVED;
        if (how != RECEIVED || (channel->frame.flags & FRAME_LAST) != 0) {
            return how;
        }
        if (!serve_receive(session, error)) {
            return BROKEN;
        }
        if (channel->frame.type != MESSAGE_push || channel->frame.request != request ||
            channel->frame.generation != generation || channel->message.push.sequence != first->sequence) {
            error_set(error, "push %llu is followed by something else before its last frame",
                      (unsigned long long)first->sequence);
            return MALFORMED;
        }
    }
}

/*
 * All frames of a push into the stage; NULL: discards them. first: the message of its first frame, without its ranges.
 * The sender of a malformed push has already got the error.
 */
static bool receive_push(struct session *session, struct stage *stage, const struct message_push *first,
                         uint64_t request, struct error *error)
{
    PROFILE("receive push");
    if (stage) {
        stage_begin(stage);
    }
    const enum received how = receive_frames(session, stage, first, request, error);
    if (how == MALFORMED) {
        const struct error why = *error;
        return serve_send_error(session, request, ERROR_BAD_REQUEST, why.text, error);
    }
    return how == RECEIVED;
}

/* --- Deciding, and answering --- */

static bool may_answer(struct session *session, int64_t unused)
{
    (void)unused;
    return job_may_answer(&session->server->job, session->worker);
}

/* A push that does not complete a step leaves none. */
static bool may_leave_step(struct session *session, int64_t unused)
{
    (void)unused;
    return !job_is_about_to_step(&session->server->job) || !server_keeps_step(session->server);
}

static void record_push(struct server *server, const struct message_push *push, uint32_t staleness)
{
    server->pushes++;
    server->last_loss = push->loss;
    server->last_staleness = staleness;
}

/* Decides about a complete push. Locked on entry and on return. False if the connection must end. */
static bool decide_push(struct session *session, const struct message_push *push, uint32_t generation, bool finite,
                        struct verdict *verdict, uint32_t *staleness)
{
    struct server *server = session->server;
    const struct job_push event = {
        .generation = generation,
        .sequence = push->sequence,
        .base_step = push->base_step,
        .finite = finite,
    };
    if (!serve_hold(session, may_leave_step, 0, INFINITY)) { /* this wait ends by itself within a lease */
        return false;
    }
    job_push(&server->job, session->worker, session->incarnation, &event, clock_monotonic_s(), verdict);
    int64_t steps = server->job.workers[session->worker].staleness;
    *staleness = steps > UINT32_MAX ? UINT32_MAX : (uint32_t)steps;
    if (verdict->code == 0 && verdict->outcome == PUSH_APPLIED) {
        record_push(server, push, *staleness);
    }
    return true;
}

static bool answer_push(struct session *session, const struct message_push *push, uint64_t request, uint32_t generation,
                        const struct verdict *verdict, uint32_t staleness, struct stage *stage, struct error *error)
{
    struct server *server = session->server;
    struct changes changes;
    const struct wanted wanted = serve_wanted(session, push->answer_dtype, push->base_version);
    if (verdict->outcome == PUSH_NOT_WANTED) { /* training ends with this answer: it must be of the last step */
        server_lock(server);
        bool waits = serve_hold(session, serve_is_at_step, server->job.global_step, serve_hold_deadline(server));
        server_unlock(server);
        if (!waits) {
            return serve_wait_failed(session, "", error);
        }
    }
    stage_set_weight(stage, push->examples);
    stage_set_staleness(stage, staleness);
    bool there = verdict->outcome == PUSH_APPLIED
                     ? shard_apply(server->shard, generation, stage, wanted.since_version, wanted.packed, &changes)
                     : shard_changes(server->shard, generation, stage, wanted.since_version, wanted.packed, &changes);
    server_lock(server);
    bool at_once = may_answer(session, 0);
    bool alive = serve_hold(session, may_answer, 0, serve_hold_deadline(server));
    bool in_time = may_answer(session, 0);
    serve_unlock(session);
    if (!alive) {
        return serve_wait_failed(session, " for slower workers", error);
    }
    if (!in_time) {
        return serve_send_error(
            session, request, ERROR_TOO_LATE,
            "waiting for a slower worker because of max_staleness (the push counts; send it again to keep waiting)",
            error);
    }
    if (there && !at_once) { /* others pushed meanwhile: the answer includes what they changed */
        there = shard_changes(server->shard, generation, stage, wanted.since_version, wanted.packed, &changes);
    }
    if (!there) {
        return serve_send_error(session, request, ERROR_OLD_GENERATION, "the model is being restored", error);
    }
    struct message_pushed pushed = {
        .outcome = (uint8_t)verdict->outcome,
        .sequence = push->sequence,
        .version = changes.version,
        .global_step = changes.global_step,
        .token = -1,
        .staleness = staleness,
        .dtype = (uint8_t)wanted.dtype,
    };
    return serve_send_changes(session, MESSAGE_pushed, request, &pushed, &pushed.ranges, &changes, &wanted, error);
}

static bool push_asynchronous(struct session *session, struct error *error)
{
    struct server *server = session->server;
    const struct message_push push = session->channel->message.push; /* its ranges are overwritten by the next frame */
    const uint64_t request = session->channel->frame.request;
    const uint32_t generation = session->channel->frame.generation;
    struct stage *stage = shard_stage(server->shard, session->worker);
    struct verdict verdict;
    uint32_t staleness;
    if (!serve_take_stage(session, true, error)) {
        return false;
    }
    bool done = receive_push(session, stage, &push, request, error);
    if (done) {
        server_lock(server);
        const bool is_finite = stage_is_finite(stage) && isfinite(push.loss);
        bool decided = decide_push(session, &push, generation, is_finite, &verdict, &staleness);
        serve_unlock(session);
        done = !decided ? serve_wait_failed(session, " for a checkpoint", error)
               : verdict.code != 0
                   ? serve_send_error(session, request, verdict.code, verdict.message, error)
                   : answer_push(session, &push, request, generation, &verdict, staleness, stage, error);
    }
    serve_leave_stage(session);
    return done;
}

/* --- Synchronous pushes --- */

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
            server_apply_step(server);
        } else if (!server_help_step(server, &helped)) {
            serve_wait_step(session);
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

static bool answer_staged(struct session *session, const struct message_push *push, uint64_t request,
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
        return serve_wait_failed(session, message, error);
    }
    if (end == WAIT_TOO_LONG) {
        return serve_send_error(session, request, ERROR_TOO_LATE, message, error);
    }
    return verdict.code != 0 ? serve_send_error(session, request, verdict.code, verdict.message, error)
                             : answer_staged(session, push, request, event, &verdict, error);
}

static bool push_synchronous(struct session *session, struct error *error)
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
        serve_wait_step(session);
    }
    job_stage(&server->job, session->worker, session->incarnation, &event, clock_monotonic_s(), &verdict, &receive);
    server_unlock(server);
    bool done = receive_push(session, receive ? stage : NULL, &push, request, error);
    if (done) {
        /* A loss that is not finite means that the gradient was not worth sending. */
        if (receive) {
            stage_set_weight(stage, push.examples);
        }
        event.finite = !receive || (stage_is_finite(stage) && isfinite(push.loss));
        done = settle_push(session, &push, request, &event, receive, error);
    }
    serve_leave_stage(session);
    return done;
}

/* --- Both --- */

bool serve_push(struct session *session, struct error *error)
{
    return session->server->job.synchronous ? push_synchronous(session, error) : push_asynchronous(session, error);
}
