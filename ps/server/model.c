/* The model as a whole: whether there is one, the chief's writing of it, and its snapshots. */
#include "ps/server/requests.h"

#include <stdio.h>

#include "base/clock.h"

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
