/* The model as a whole: whether there is one, the chief's writing of it, and its snapshots. */
#include <stdio.h>

#include "base/clock.h"
#include "ps/server/requests/requests.h"

bool serve_get_model(struct visitor *visitor, struct error *error)
{
    struct server *server = visitor->server;
    const uint64_t request = visitor->channel.frame.request;
    const struct span *spans;
    const int span_count = shard_spans(server->shard, &spans);
    uint8_t bytes[PLACEMENT_MAX_SPANS * RANGE_BYTES];
    char sentence[256];
    struct message_model model = {
        .float_count = server->model.float_count,
        .ranges = {bytes, (uint32_t)span_count},
        .global_step = -1,
        .sentence = sentence,
    };
    for (int i = 0; i < span_count; i++) {
        range_put(bytes, (uint32_t)i, (struct range){spans[i].first, (uint32_t)spans[i].count});
    }
    for (int vector = 0; vector < STORE_VECTORS; vector++) {
        model.vectors |= (uint8_t)(shard_has(server->shard, (enum store_vector)vector) << vector);
    }
    server_lock(server);
    bool alive =
        serve_hold(visitor, serve_is_ready, 0, serve_wait_deadline(visitor->channel.message.get_model.wait_ms));
    job_ready(&server->job, clock_monotonic_s(), sentence);
    model.state = job_initialised(&server->job) ? 2 : server->job.state == JOB_RESTORING;
    serve_tell_generation(visitor);
    server_unlock(server);
    if (!alive) {
        return error_set(error, "%s was given up while it waited", connection_name(visitor->channel.connection));
    }
    if (model.state == 2) {
        shard_now(server->shard, &model.version, &model.global_step);
    }
    return serve_send(visitor, MESSAGE_model, request, &model, error);
}

bool serve_begin_restore(struct visitor *visitor, struct error *error)
{
    struct server *server = visitor->server;
    struct verdict verdict;
    pthread_mutex_lock(&server->restoring);
    server_lock(server);
    job_begin_restore(&server->job, visitor->worker, visitor->channel.frame.generation,
                      visitor->channel.message.begin_restore.source, clock_monotonic_s(), &verdict);
    serve_tell_generation(visitor);
    server_unlock(server);
    if (verdict.code == 0) {
        shard_begin_write(server->shard, visitor->channel.frame.generation);
    }
    pthread_mutex_unlock(&server->restoring);
    return serve_send_verdict(visitor, visitor->channel.frame.request, &verdict, -1, error);
}

static void ask_to_write(struct visitor *visitor, struct verdict *verdict)
{
    server_lock(visitor->server);
    job_write(&visitor->server->job, visitor->worker, visitor->channel.frame.generation, verdict);
    serve_tell_generation(visitor);
    server_unlock(visitor->server);
}

/* One frame's values, straight into the shard. */
static bool receive_values(struct visitor *visitor, struct verdict *verdict, struct error *error)
{
    const struct message_write *write = &visitor->channel.message.write;
    struct error bad;
    double deadline_s = serve_deadline();
    for (uint32_t i = 0; i < write->ranges.count; i++) {
        float *values;
        struct range range = range_get(&write->ranges, i);
        if (!shard_claim_write(visitor->server->shard, (enum store_vector)write->vector, range, &values, &bad)) {
            verdict->code = ERROR_BAD_REQUEST;
            snprintf(verdict->sentence, sizeof verdict->sentence, "%.255s", bad.text);
            return true;
        }
        if (!serve_read_floats(visitor, (enum dtype)write->dtype, values, range.count, deadline_s, error)) {
            return false;
        }
    }
    return true;
}

bool serve_write(struct visitor *visitor, struct error *error)
{
    struct verdict verdict;
    const bool answers = (visitor->channel.frame.flags & FRAME_LAST) != 0;
    pthread_mutex_lock(&visitor->server->restoring);
    ask_to_write(visitor, &verdict);
    bool done = verdict.code != 0 || receive_values(visitor, &verdict, error);
    pthread_mutex_unlock(&visitor->server->restoring);
    if (!done || (verdict.code == 0 && !answers)) {
        return done;
    }
    return serve_send_verdict(visitor, visitor->channel.frame.request, &verdict, -1, error);
}

bool serve_end_restore(struct visitor *visitor, struct error *error)
{
    struct server *server = visitor->server;
    const struct message_end_restore *end = &visitor->channel.message.end_restore;
    struct verdict verdict;
    struct error bad;
    pthread_mutex_lock(&server->restoring);
    ask_to_write(visitor, &verdict);
    server_lock(server);
    const int64_t epoch_steps = job_epoch_steps(&server->job, &server->job.config, end->epoch_batches);
    server_unlock(server);
    if (verdict.code == 0 && !shard_end_write(server->shard, end->global_step, epoch_steps, &bad)) {
        verdict.code = ERROR_BAD_REQUEST;
        snprintf(verdict.sentence, sizeof verdict.sentence, "%.255s", bad.text);
    }
    if (verdict.code == 0) {
        server_lock(server);
        job_end_restore(&server->job, visitor->worker, visitor->channel.frame.generation, end->global_step,
                        end->epoch_batches, clock_monotonic_s(), &verdict);
        server_unlock(server);
    }
    pthread_mutex_unlock(&server->restoring);
    return serve_send_verdict(visitor, visitor->channel.frame.request, &verdict, end->global_step, error);
}

bool serve_snapshot(struct visitor *visitor, struct error *error)
{
    struct server *server = visitor->server;
    const struct message_snapshot wanted = visitor->channel.message.snapshot;
    const uint64_t request = visitor->channel.frame.request;
    enum snapshot_state state = SNAPSHOT_CLOSED;
    struct verdict verdict;
    int64_t global_step = -1;
    bool alive = true;
    server_lock(server);
    job_snapshot(&server->job, visitor->worker, visitor->channel.frame.generation, &verdict);
    if (verdict.code == 0 && wanted.snapshot == 0) {
        verdict = (struct verdict){.code = ERROR_BAD_REQUEST, .sentence = "snapshots are counted from 1, not 0"};
    }
    serve_tell_generation(visitor);
    server_unlock(server);
    if (verdict.code == 0) {
        state = shard_snapshot(server->shard, wanted.snapshot, wanted.at_step, &global_step);
    }
    if (state == SNAPSHOT_PENDING) {
        server_lock(server);
        alive = serve_hold(visitor, serve_is_at_step, wanted.at_step, serve_wait_deadline(wanted.wait_ms));
        serve_tell_generation(visitor);
        server_unlock(server);
        state = shard_snapshot(server->shard, wanted.snapshot, wanted.at_step, &global_step);
    }
    if (!alive) {
        return error_set(error, "%s was given up while it waited", connection_name(visitor->channel.connection));
    }
    if (verdict.code == 0 && state != SNAPSHOT_TAKEN) {
        verdict.code = state == SNAPSHOT_CLOSED ? ERROR_OLD_GENERATION : ERROR_TOO_LATE;
        snprintf(verdict.sentence, sizeof verdict.sentence, "global step %lld is %s", (long long)wanted.at_step,
                 state == SNAPSHOT_PASSED    ? "over already"
                 : state == SNAPSHOT_PENDING ? "not reached in time"
                                             : "of a model that is being restored");
    }
    return serve_send_verdict(visitor, request, &verdict, global_step, error);
}

bool serve_release(struct visitor *visitor, struct error *error)
{
    shard_release(visitor->server->shard, visitor->channel.message.release.snapshot);
    return serve_send_done(visitor, visitor->channel.frame.request, -1, error);
}
