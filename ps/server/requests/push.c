/*
 * Asynchronous pushes: received into a stage, decided by the job, applied to the shard, and answered with what changed.
 */
#include <math.h>

#include "base/clock.h"
#include "base/profile.h"
#include "ps/store/int8.h"
#include "ps/store/largest.h"
#include "ps/server/requests/requests.h"

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
    float *values;
    if (!stage_claim(stage, range, &values, error)) {
        return MALFORMED;
    }
    if (!serve_read_floats(session, dtype, values, range.count, deadline_s, error)) {
        return BROKEN;
    }
    stage_check(stage, values, range.count);
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

bool serve_receive_push(struct session *session, struct stage *stage, const struct message_push *first,
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

static void note_push(struct server *server, const struct message_push *push, uint32_t staleness)
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
        note_push(server, push, *staleness);
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
            return serve_give_up(session, "", error);
        }
    }
    stage_weigh(stage, push->examples);
    stage_age(stage, staleness);
    bool there = verdict->outcome == PUSH_APPLIED
                     ? shard_apply(server->shard, generation, stage, wanted.since_version, wanted.packed, &changes)
                     : shard_changes(server->shard, generation, stage, wanted.since_version, wanted.packed, &changes);
    server_lock(server);
    bool at_once = may_answer(session, 0);
    bool alive = serve_hold(session, may_answer, 0, serve_hold_deadline(server));
    bool in_time = may_answer(session, 0);
    serve_unlock(session);
    if (!alive) {
        return serve_give_up(session, " for slower workers", error);
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

bool serve_push(struct session *session, struct error *error)
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
    bool done = serve_receive_push(session, stage, &push, request, error);
    if (done) {
        server_lock(server);
        const bool is_finite = stage_is_finite(stage) && isfinite(push.loss);
        bool decided = decide_push(session, &push, generation, is_finite, &verdict, &staleness);
        serve_unlock(session);
        done = !decided ? serve_give_up(session, " for a checkpoint", error)
               : verdict.code != 0
                   ? serve_send_error(session, request, verdict.code, verdict.message, error)
                   : answer_push(session, &push, request, generation, &verdict, staleness, stage, error);
    }
    serve_leave_stage(session);
    return done;
}
