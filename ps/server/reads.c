/* Reads of the shard: changes since a version, single ranges, snapshots. */
#include "ps/server/requests.h"

#include "base/clock.h"

/* With participation below 1: is the worker selected at this step? */
static int64_t token_of(struct session *session, int64_t step)
{
    struct server *server = session->server;
    server_lock(server);
    const bool asks = config_asks_some(&server->job.config.train);
    const int64_t token = asks ? job_token(&server->job, session->worker, step) : -1;
    server_unlock(server);
    return token;
}

/* The floats of one range, a chunk at a time; snapshot 0: the current ones. */
static bool send_range(struct session *session, const struct message_read *read, uint64_t request, struct range range,
                       bool last, struct error *error)
{
    struct shard *shard = session->server->shard;
    const bool pulls = session->channel->frame.type == MESSAGE_pull;
    float chunk[SERVE_CHUNK_FLOATS];
    uint8_t bytes[RANGE_BYTES];
    double deadline_s = serve_deadline();
    while (range.count > 0) {
        const uint32_t most = read->snapshot != 0 ? SERVE_FRAME_FLOATS : SERVE_CHUNK_FLOATS;
        struct range part = {range.first, range.count < most ? range.count : most};
        struct message_values values = {.vector = read->vector, .token = -1, .ranges = {bytes, 1}};
        const float *from = chunk;
        shard_now(shard, &values.version, &values.global_step);
        values.token = pulls ? token_of(session, values.global_step) : -1;
        bool there = read->snapshot != 0 ? shard_snapshot_values(shard, read->snapshot, (enum store_vector)read->vector,
                                                                 part, &from, &values.global_step, error)
                                         : shard_read(shard, (enum store_vector)read->vector, part, chunk, error);
        if (!there) {
            return serve_send_error(session, request, ERROR_NOT_READY, error->text, error);
        }
        range.first += part.count;
        range.count -= part.count;
        range_put(bytes, 0, part);
        struct iovec bulk = {(void *)(uintptr_t)from, part.count * sizeof *from};
        const struct outgoing frame = {.type = MESSAGE_values,
                                       .request = request,
                                       .more = !last || range.count > 0,
                                       .message = &values,
                                       .bulk = &bulk,
                                       .bulk_parts = 1};
        if (!channel_send_frame(session->channel, &frame, deadline_s, error)) {
            return false;
        }
    }
    return true;
}

/* The ranges of a request in turn, or everything that is held. */
static bool send_ranges(struct session *session, const struct message_read *read, uint64_t request, struct error *error)
{
    const struct span *spans;
    const int span_count = shard_spans(session->server->shard, &spans);
    const bool all = read->ranges.count == 0;
    const uint32_t count = all ? (uint32_t)span_count : read->ranges.count;
    if (count == 0) {
        struct message_values none = {.vector = read->vector, .token = -1};
        return serve_send(session, MESSAGE_values, request, &none, error);
    }
    for (uint32_t i = 0; i < count; i++) {
        struct range range =
            all ? (struct range){spans[i].first, (uint32_t)spans[i].count} : range_get(&read->ranges, i);
        if (!send_range(session, read, request, range, i + 1 == count, error)) {
            return false;
        }
    }
    return true;
}

static bool send_pulled(struct session *session, const struct message_pull *pull, uint64_t request, uint32_t generation,
                        struct error *error)
{
    struct changes changes;
    struct stage *stage = shard_stage(session->server->shard, session->worker);
    if (pull->ranges.count > 0) {
        struct message_read read = {.vector = STORE_PARAMETERS, .ranges = pull->ranges};
        return send_ranges(session, &read, request, error);
    }
    if (!serve_take_stage(session, false, error)) {
        return false;
    }
    bool done;
    const struct wanted wanted = serve_wanted(session, pull->dtype, pull->since_version);
    if (shard_changes(session->server->shard, generation, stage, wanted.since_version, wanted.packed, &changes)) {
        struct message_values values = {
            .vector = STORE_PARAMETERS,
            .dtype = serve_dtype(&wanted, &changes),
            .version = changes.version,
            .global_step = changes.global_step,
            .token = token_of(session, changes.global_step),
        };
        done = serve_send_changes(session, MESSAGE_values, request, &values, &values.ranges, &changes, &wanted, error);
    } else {
        done = serve_send_error(session, request, ERROR_OLD_GENERATION, "the model is being restored", error);
    }
    serve_leave_stage(session);
    return done;
}

static bool finish_pull(struct session *session, const struct message_pull *pull, uint64_t request, uint32_t generation,
                        bool alive, const struct verdict *verdict, struct error *error)
{
    if (!alive) {
        return serve_wait_failed(session, "", error);
    }
    return verdict->code != 0 ? serve_send_error(session, request, verdict->code, verdict->message, error)
                              : send_pulled(session, pull, request, generation, error);
}

bool serve_held_pull(struct session *session, bool *rests, struct error *error)
{
    struct server *server = session->server;
    struct held_pull *held = &session->held;
    const double now_s = clock_monotonic_s();
    static const struct verdict go_on;
    server_lock(server);
    bool alive = !server->leaving && !listener_peer_hung_up(&session->base) &&
                 job_is_current(&server->job, session->worker, session->incarnation) &&
                 send_keepalive(session, &held->keepalive_sent_s);
    bool waits = alive && !server_is_selected_or_past(session, held->pull.after_step) && now_s < held->deadline_s;
    if (waits && channel_park(session->channel)) {
        const double keepalive_s = held->keepalive_sent_s + identity_idle_timeout_s(&server->identity) / 4;
        session->base.read_paused = *rests = true;
        listener_wake_at(&session->base, keepalive_s < held->deadline_s ? keepalive_s : held->deadline_s);
        server_unlock(server);
        return true;
    }
    if (waits) { /* something else lies in its buffers, for later */
        alive = serve_wait(session, server_is_selected_or_past, held->pull.after_step, held->deadline_s);
    }
    server_release_held(session);
    serve_unlock(session);
    return finish_pull(session, &held->pull, held->request, held->generation, alive, &go_on, error);
}

bool serve_pull(struct session *session, struct error *error)
{
    struct server *server = session->server;
    const struct message_pull pull = session->channel->message.pull; /* its ranges are overwritten by the next frame */
    const uint64_t request = session->channel->frame.request;
    const uint32_t generation = session->channel->frame.generation;
    double deadline_s = serve_wait_deadline(pull.wait_ms);
    struct verdict verdict;
    server_lock(server);
    job_note_ready(&server->job, session->worker, session->incarnation, clock_monotonic_s());
    if (session->base.state == SESSION_INLINE && !serve_is_ready(session, 0)) { /* this takes a thread */
        session->has_frame = true;
        server_unlock(server);
        return true;
    }
    bool alive = serve_hold(session, serve_is_ready, 0, deadline_s);
    job_pull(&server->job, session->worker, session->incarnation, generation, clock_monotonic_s(), &verdict);
    if (alive && verdict.code == 0 && pull.after_step >= 0) {
        if (session->may_rest && pull.ranges.count == 1 && !server_is_selected_or_past(session, pull.after_step)) {
            server_hold_pull(session, &pull, deadline_s);
            server_unlock(server);
            return true;
        }
        alive = serve_hold(session, pull.ranges.count > 0 ? server_is_selected_or_past : server_is_past_step,
                           pull.after_step, deadline_s);
    }
    serve_unlock(session);
    return finish_pull(session, &pull, request, generation, alive, &verdict, error);
}

bool serve_read(struct session *session, struct error *error)
{
    struct server *server = session->server;
    const uint64_t request = session->channel->frame.request;
    server_lock(server);
    bool there = job_initialised(&server->job);
    bool same = session->channel->frame.generation == server->job.generation;
    serve_unlock(session);
    if (!there) {
        return serve_send_error(session, request, ERROR_NOT_READY, "there is no model yet", error);
    }
    if (!same) {
        return serve_send_error(session, request, ERROR_OLD_GENERATION, "the model was restored since", error);
    }
    return send_ranges(session, &session->channel->message.read, request, error);
}
