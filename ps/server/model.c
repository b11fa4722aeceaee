/* The model as a whole: whether there is one, the chief's writing of it, and its snapshots. */
#include <stdio.h>

#include "base/clock.h"
#include "ps/server/requests.h"

bool serve_get_model(struct session *session, struct error *error)
{
    struct server *server = session->server;
    const uint64_t request = session->channel->frame.request;
    const struct span *spans;
    const int span_count = shard_spans(server->shard, &spans);
    uint8_t bytes[PLACEMENT_MAX_SPANS * RANGE_BYTES];
    char message[256];
    struct message_model model = {
        .float_count = server->model.float_count,
        .ranges = {bytes, (uint32_t)span_count},
        .global_step = -1,
        .message = message,
    };
    for (int i = 0; i < span_count; i++) {
        range_put(bytes, (uint32_t)i, (struct range){spans[i].first, (uint32_t)spans[i].count});
    }
    for (int vector = 0; vector < STORE_VECTORS; vector++) {
        model.vectors |= (uint8_t)(shard_has(server->shard, (enum store_vector)vector) << vector);
    }
    server_lock(server);
    job_note_ready(&server->job, session->worker, session->incarnation, clock_monotonic_s());
    bool alive =
        serve_hold(session, serve_is_ready, 0, serve_wait_deadline(session->channel->message.get_model.wait_ms));
    job_ready(&server->job, clock_monotonic_s(), message);
    model.state = job_initialised(&server->job)        ? MODEL_READY
                  : server->job.state == JOB_RESTORING ? MODEL_BEING_WRITTEN
                                                       : MODEL_ABSENT;
    serve_unlock(session);
    if (!alive) {
        return serve_wait_failed(session, "", error);
    }
    if (model.state == MODEL_READY) {
        shard_now(server->shard, &model.version, &model.global_step);
        model.retries = (uint8_t)shard_retries(server->shard);
    }
    return serve_send(session, MESSAGE_model, request, &model, error);
}

/*
 * Did the same process begin this restore already? Then only the answer was lost, with its connection: what it has
 * written stays, and it continues from there. Locked.
 */
static bool is_its_own(const struct session *session)
{
    const struct server *server = session->server;
    return server->restored_by == session->incarnation && server->job.generation == session->channel->frame.generation;
}

bool serve_begin_restore(struct session *session, struct error *error)
{
    struct server *server = session->server;
    struct verdict verdict = {0};
    pthread_mutex_lock(&server->restoring);
    server_lock(server);
    const bool goes_on = is_its_own(session) && server->job.state == JOB_RESTORING;
    if (!goes_on) {
        job_begin_restore(&server->job, session->worker, session->channel->frame.generation,
                          session->channel->message.begin_restore.source, clock_monotonic_s(), &verdict);
    }
    if (!goes_on && verdict.code == 0) {
        server->restored_by = session->incarnation;
    }
    serve_unlock(session);
    if (!goes_on && verdict.code == 0) {
        shard_begin_write(server->shard, session->channel->frame.generation);
    }
    pthread_mutex_unlock(&server->restoring);
    return serve_send_verdict(session, session->channel->frame.request, &verdict, -1, error);
}

static void ask_to_write(struct session *session, struct verdict *verdict)
{
    server_lock(session->server);
    job_write(&session->server->job, session->worker, session->channel->frame.generation, verdict);
    serve_unlock(session);
}

/* Reads one frame's values straight into the shard. */
static bool receive_values(struct session *session, struct verdict *verdict, struct error *error)
{
    const struct message_write *write = &session->channel->message.write;
    struct error bad;
    double deadline_s = serve_deadline();
    for (uint32_t i = 0; i < write->ranges.count; i++) {
        float *values;
        struct range range = range_get(&write->ranges, i);
        if (!shard_claim_write(session->server->shard, (enum store_vector)write->vector, range, &values, &bad)) {
            verdict->code = ERROR_BAD_REQUEST;
            snprintf(verdict->message, sizeof verdict->message, "%.255s", bad.text);
            return true;
        }
        if (!serve_read_floats(session, (enum dtype)write->dtype, values, range.count, deadline_s, error)) {
            return false;
        }
        shard_wrote(session->server->shard, (enum store_vector)write->vector, range);
    }
    return true;
}

bool serve_write(struct session *session, struct error *error)
{
    struct verdict verdict;
    const bool answers = (session->channel->frame.flags & FRAME_LAST) != 0;
    pthread_mutex_lock(&session->server->restoring);
    ask_to_write(session, &verdict);
    bool done = verdict.code != 0 || receive_values(session, &verdict, error);
    pthread_mutex_unlock(&session->server->restoring);
    if (!done || (verdict.code == 0 && !answers)) {
        return done;
    }
    return serve_send_verdict(session, session->channel->frame.request, &verdict, -1, error);
}

bool serve_end_restore(struct session *session, struct error *error)
{
    struct server *server = session->server;
    const struct message_end_restore *end = &session->channel->message.end_restore;
    struct verdict verdict = {0};
    struct error bad;
    pthread_mutex_lock(&server->restoring);
    server_lock(server);
    const bool has_ended = is_its_own(session) && job_initialised(&server->job);
    if (!has_ended) {
        job_check_restored(&server->job, session->worker, session->channel->frame.generation, end->global_step,
                           end->epoch_batches, &verdict);
    }
    const int64_t epoch_steps =
        verdict.code == 0 ? job_epoch_steps(&server->job, &server->job.config, end->epoch_batches) : 0;
    serve_unlock(session);
    if (!has_ended && verdict.code == 0) {
        shard_set_retries(server->shard, end->retries);
    }
    if (!has_ended && verdict.code == 0 && !shard_end_write(server->shard, end->global_step, epoch_steps, &bad)) {
        verdict.code = ERROR_BAD_REQUEST;
        snprintf(verdict.message, sizeof verdict.message, "%.255s", bad.text);
    }
    if (!has_ended && verdict.code == 0) {
        server_lock(server);
        job_end_restore(&server->job, session->worker, session->channel->frame.generation, end->global_step,
                        end->epoch_batches, clock_monotonic_s(), &verdict);
        server_unlock(server);
    }
    pthread_mutex_unlock(&server->restoring);
    return serve_send_verdict(session, session->channel->frame.request, &verdict, end->global_step, error);
}

/* The reason why the chief can't take a snapshot now; code 0: none. Locked. */
static void admit_snapshot(struct session *session, const struct message_snapshot *wanted, struct verdict *verdict)
{
    struct server *server = session->server;
    const bool orders = (wanted->snapshot & SNAPSHOT_ORDER) != 0;
    job_snapshot(&server->job, session->worker, session->channel->frame.generation, orders, verdict);
    if (verdict->code == 0 && (wanted->snapshot == 0 || (orders && wanted->at_step < 0))) {
        *verdict = (struct verdict){.code = ERROR_BAD_REQUEST, .message = "no number, or an order of no step"};
    }
    /* A restarted chief knows nothing of its predecessor's orders and will never release them. */
    if (verdict->code == 0 && server->orders_of != session->incarnation) {
        shard_forget_snapshots(server->shard);
        server->orders_of = session->incarnation;
    }
}

static void describe_snapshot(enum snapshot_state state, const struct message_snapshot *wanted, struct verdict *verdict)
{
    static const char *const why[] = {
        [SNAPSHOT_PENDING] = "not reached yet",
        [SNAPSHOT_PASSED] = "over already",
        [SNAPSHOT_CLOSED] = "of a model that is being restored",
        [SNAPSHOT_NO_MEMORY] = "not kept: out of memory",
    };
    const bool orders = (wanted->snapshot & SNAPSHOT_ORDER) != 0;
    verdict->code = state == SNAPSHOT_CLOSED             ? ERROR_OLD_GENERATION
                    : state == SNAPSHOT_NO_MEMORY        ? ERROR_INTERNAL
                    : state == SNAPSHOT_PASSED && orders ? ERROR_PASSED
                                                         : ERROR_TOO_LATE;
    snprintf(verdict->message, sizeof verdict->message, "global step %lld is %s", (long long)wanted->at_step,
             why[state]);
}

bool serve_snapshot(struct session *session, struct error *error)
{
    struct server *server = session->server;
    const struct message_snapshot wanted = session->channel->message.snapshot;
    const uint64_t request = session->channel->frame.request;
    enum snapshot_state state = SNAPSHOT_CLOSED;
    struct verdict verdict;
    int64_t global_step = -1;
    bool alive = true;
    server_lock(server);
    admit_snapshot(session, &wanted, &verdict);
    serve_unlock(session);
    if (verdict.code == 0) {
        state = shard_snapshot(server->shard, wanted.snapshot, wanted.at_step, &global_step);
    }
    if (state == SNAPSHOT_PENDING && wanted.wait_ms > 0) {
        server_lock(server);
        alive = serve_wait(session, serve_is_at_step, wanted.at_step, serve_wait_deadline(wanted.wait_ms));
        serve_unlock(session);
        state = shard_snapshot(server->shard, wanted.snapshot, wanted.at_step, &global_step);
    }
    if (!alive) {
        return serve_wait_failed(session, "", error);
    }
    if (verdict.code == 0 && state != SNAPSHOT_TAKEN) {
        describe_snapshot(state, &wanted, &verdict);
    }
    return serve_send_verdict(session, request, &verdict, global_step, error);
}

bool serve_release(struct session *session, struct error *error)
{
    struct server *server = session->server;
    shard_release(server->shard, session->channel->message.release.snapshot);
    server_lock(server); /* wakes pushes that wait for room */
    pthread_cond_broadcast(&server->stepped);
    server_unlock(server);
    return serve_send_done(session, session->channel->frame.request, -1, error);
}

/* --- Reading parameters --- */

/* Reads of the shard: changes since a version, single ranges, snapshots. */

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
