/*
 * Asynchronous pushes: received into a stage, decided on by the job, applied to the shard, and answered by what
 * changed.
 */
#include <math.h>

#include "base/clock.h"
#include "base/profile.h"
#include "ps/store/int8.h"
#include "ps/store/largest.h"
#include "ps/server/requests/requests.h"

static bool may_answer(struct session *session, int64_t unused)
{
    (void)unused;
    return job_may_answer(&session->server->job, session->worker);
}

/* The next bytes of the bulk; *bad: there are not so many. */
static bool read_packed(struct session *session, void *bytes, size_t size, double deadline_s, struct error *bad,
                        struct error *error)
{
    if (size > session->channel->bulk_left) {
        error_set(bad, "push: its bulk ends within packed floats");
        return true;
    }
    return channel_read_bulk(session->channel, bytes, size, deadline_s, error);
}

static bool receive_int8(struct session *session, struct stage *stage, struct range range, double deadline_s,
                         struct error *bad, struct error *error)
{
    uint8_t bytes[PACKED_FLOATS + PACKED_FLOATS / INT8_BLOCK * sizeof(float)];
    float *values;
    if (!stage_claim(stage, range, &values, bad)) {
        return true;
    }
    if (!read_packed(session, bytes, int8_size(range.count), deadline_s, bad, error)) {
        return false;
    }
    if (bad->text[0] == '\0' && !int8_widen(values, bytes, range.count)) {
        error_set(bad, "push: a scale is negative or infinite");
    } else if (bad->text[0] == '\0') {
        stage_check(stage, values, range.count);
    }
    return true;
}

/* The places of the chosen ones, and how many there are. */
static bool receive_places(struct session *session, struct range range, uint16_t *places, size_t *count,
                           double deadline_s, struct error *bad, struct error *error)
{
    uint8_t bytes[PACKED_FLOATS * LARGEST_GAP] = {0};
    if (!read_packed(session, bytes, LARGEST_HEAD, deadline_s, bad, error)) {
        return false;
    }
    const struct largest_head head = largest_read_head(bytes);
    *count = head.count;
    if (bad->text[0] == '\0' && (head.count > range.count || head.gap_bytes > sizeof bytes)) {
        error_set(bad, "push: %u of %u floats in %u bytes is impossible", head.count, range.count, head.gap_bytes);
    }
    if (bad->text[0] == '\0' && !read_packed(session, bytes, head.gap_bytes, deadline_s, bad, error)) {
        return false;
    }
    if (bad->text[0] == '\0' && !largest_read_places(places, head, bytes, range.count)) {
        error_set(bad, "push: not all positions of %u floats are within their range of %u", head.count, range.count);
    }
    return true;
}

static bool receive_largest(struct session *session, struct stage *stage, struct range range, enum dtype dtype,
                            double deadline_s, struct error *bad, struct error *error)
{
    uint8_t bytes[PACKED_FLOATS * sizeof(float)];
    uint16_t places[PACKED_FLOATS];
    float values[PACKED_FLOATS];
    size_t count;
    if (!receive_places(session, range, places, &count, deadline_s, bad, error) ||
        (bad->text[0] == '\0' &&
         !read_packed(session, bytes, largest_values_size(dtype, count), deadline_s, bad, error))) {
        return false;
    }
    if (bad->text[0] == '\0' && !largest_read_values(values, bytes, count, dtype)) {
        error_set(bad, "push: a scale is negative or infinite");
    }
    if (bad->text[0] == '\0' && stage_scatter(stage, range, places, values, count, bad)) {
        stage_check(stage, values, count);
    }
    return true;
}

/* A range that is packed. */
static bool receive_packed(struct session *session, struct stage *stage, struct range range, double deadline_s,
                           struct error *bad, struct error *error)
{
    const enum dtype dtype = (enum dtype)session->channel->message.push.dtype;
    return dtype == DTYPE_INT8 ? receive_int8(session, stage, range, deadline_s, bad, error)
                               : receive_largest(session, stage, range, dtype, deadline_s, bad, error);
}

/* One frame's part of the gradient, into the stage. *bad: what is wrong with it, "" if nothing. */
static bool receive_gradient(struct session *session, struct stage *stage, struct error *bad, struct error *error)
{
    const struct message_push *push = &session->channel->message.push;
    double deadline_s = serve_deadline();
    for (uint32_t i = 0; i < push->ranges.count; i++) {
        float *values;
        struct range range = range_get(&push->ranges, i);
        if (dtype_is_packed((enum dtype)push->dtype)) {
            if (!receive_packed(session, stage, range, deadline_s, bad, error)) {
                return false;
            }
            if (bad->text[0] != '\0') {
                return true;
            }
            continue;
        }
        if (!stage_claim(stage, range, &values, bad)) {
            return true;
        }
        if (!serve_read_floats(session, (enum dtype)push->dtype, values, range.count, deadline_s, error)) {
            return false;
        }
        stage_check(stage, values, range.count);
    }
    if (session->channel->bulk_left > 0) {
        error_set(bad, "push: %u bytes more than its floats take", session->channel->bulk_left);
    }
    return true;
}

bool serve_receive_push(struct session *session, struct stage *stage, const struct message_push *first,
                        uint64_t request, bool receive, struct error *bad, struct error *error)
{
    PROFILE("receive push");
    struct channel *channel = session->channel;
    uint32_t generation = channel->frame.generation;
    if (receive) {
        stage_begin(stage);
    }
    bad->text[0] = '\0';
    for (;;) {
        if (receive && !receive_gradient(session, stage, bad, error)) {
            return false;
        }
        if (bad->text[0] != '\0' || (channel->frame.flags & FRAME_LAST) != 0) {
            return true;
        }
        if (!serve_receive(session, error)) {
            return false;
        }
        if (channel->frame.type != MESSAGE_push || channel->frame.request != request ||
            channel->frame.generation != generation || channel->message.push.sequence != first->sequence) {
            error_set(bad, "push %llu is followed by something else before its last frame",
                      (unsigned long long)first->sequence);
            return true;
        }
    }
}

/* What only waits for its step, with others, leaves none. */
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

/* Locked on entry and on return: the decision about a push that is complete. False if the connection is to end. */
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
    if (!serve_hold(session, may_leave_step, 0, INFINITY)) { /* that wait ends by itself, after a lease at most */
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
    if (there && !at_once) { /* others pushed meanwhile: what they changed shall be in the answer */
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
    const struct message_push push = session->channel->message.push; /* its ranges go with the next frame */
    const uint64_t request = session->channel->frame.request;
    const uint32_t generation = session->channel->frame.generation;
    struct stage *stage = shard_stage(server->shard, session->worker);
    struct verdict verdict;
    struct error bad;
    uint32_t staleness;
    if (!serve_take_stage(session, true, error)) {
        return false;
    }
    bool done = serve_receive_push(session, stage, &push, request, true, &bad, error);
    if (done && bad.text[0] != '\0') {
        done = serve_send_error(session, request, ERROR_BAD_REQUEST, bad.text, error);
    } else if (done) {
        server_lock(server);
        bool decided = decide_push(session, &push, generation, stage_is_finite(stage), &verdict, &staleness);
        serve_unlock(session);
        done = !decided ? serve_give_up(session, " for a checkpoint", error)
               : verdict.code != 0
                   ? serve_send_error(session, request, verdict.code, verdict.message, error)
                   : answer_push(session, &push, request, generation, &verdict, staleness, stage, error);
    }
    serve_leave_stage(session);
    return done;
}
