/*
 * Requests of one connection. What is legal is said in one place, the switch of `answer`; what it comes to is the job's
 * decision; bulk goes straight between the connection and the shard's memory.
 *
 * Every function here returns false when the connection is to end, with the reason in *error.
 */
#include "ps/server/serve.h"

#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/profile.h"
#include "ps/bfloat16.h"

enum {
    FRAME_FLOATS = 256 * 1024, /* of an answer's frame */
    FRAME_RANGES = 8192,       /* likewise */
    CHUNK_FLOATS = 8 * 1024,   /* that pass through the stack of a connection's thread */
};

double serve_deadline(void)
{
    return clock_monotonic_s() + SERVER_FRAME_S;
}

void serve_tell_generation(struct visitor *visitor)
{
    visitor->channel.generation = visitor->server->job.generation;
}

double serve_hold_deadline(const struct server *server)
{
    double lease_s = server->config->cluster.lease_secs;
    return clock_monotonic_s() + (lease_s < SERVER_HOLD_S ? lease_s : SERVER_HOLD_S);
}

bool serve_send(struct visitor *visitor, enum message_type type, uint64_t request, const void *message,
                struct error *error)
{
    return channel_send(&visitor->channel, type, request, FRAME_LAST, message, NULL, 0, serve_deadline(), error);
}

static bool send_done(struct visitor *visitor, uint64_t request, int64_t global_step, struct error *error)
{
    struct message_done done = {.global_step = global_step};
    return serve_send(visitor, MESSAGE_done, request, &done, error);
}

bool serve_send_error(struct visitor *visitor, uint64_t request, uint16_t code, const char *sentence,
                      struct error *error)
{
    if (!channel_send_error(&visitor->channel, request, (enum error_code)code, serve_deadline(), error, "%s",
                            sentence)) {
        return false;
    }
    if (code == ERROR_BAD_REQUEST) {
        log_warning("dropped %s: %s", connection_name(visitor->channel.connection), sentence);
        return error_set(error, "%s", sentence);
    }
    return true;
}

bool serve_receive(struct visitor *visitor, struct error *error)
{
    struct channel *channel = &visitor->channel;
    struct error ignored;
    if (channel_receive(channel, serve_deadline(), error)) {
        return true;
    }
    if (connection_state(channel->connection) == CONNECTION_OPEN) { /* it is the frame that is wrong */
        log_warning("dropped %s", error->text);
        channel_send_error(channel, channel->frame.request, ERROR_BAD_REQUEST, serve_deadline(), &ignored, "%s",
                           error->text);
    }
    return false;
}

/* --- Waiting on behalf of a request ------------------------------------------------------------------------------------ */

bool serve_peer_hung_up(const struct visitor *visitor)
{
    struct pollfd hangup = {.fd = visitor->fd, .events = POLLRDHUP};
    return poll(&hangup, 1, 0) > 0 && (hangup.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

bool serve_sign(struct visitor *visitor, double *signed_s)
{
    struct server *server = visitor->server;
    struct message_ping ping = {.nonce = visitor->incarnation};
    struct error error;
    double now_s = clock_monotonic_s();
    if (now_s - *signed_s < self_patience_s(&server->self) / 4) {
        return true;
    }
    *signed_s = now_s;
    server_unlock(server);
    bool sent = serve_send(visitor, MESSAGE_ping, 0, &ping, &error);
    server_lock(server);
    return sent;
}

/*
 * Waits, locked, until ready(visitor, argument) or the deadline. Meanwhile the worker counts as alive, since it is we
 * who keep it waiting. False if the connection is to end.
 */
static bool hold(struct visitor *visitor, bool (*ready)(struct visitor *visitor, int64_t argument), int64_t argument,
                 double deadline_s)
{
    PROFILE("wait for workers");
    struct server *server = visitor->server;
    bool alive = true;
    if (ready(visitor, argument)) {
        return true;
    }
    double signed_s = clock_monotonic_s();
    job_hold(&server->job, visitor->worker, visitor->incarnation, 1, signed_s);
    while (alive && !ready(visitor, argument) && clock_monotonic_s() < deadline_s) {
        server_wait(server);
        alive = !server->leaving && !serve_peer_hung_up(visitor) &&
                job_is_current(&server->job, visitor->worker, visitor->incarnation) && serve_sign(visitor, &signed_s);
    }
    job_hold(&server->job, visitor->worker, visitor->incarnation, -1, clock_monotonic_s());
    return alive;
}

static double wait_deadline(uint32_t wait_ms)
{
    return clock_monotonic_s() + wait_ms / 1000.0;
}

static bool is_ready(struct visitor *visitor, int64_t unused)
{
    char sentence[256];
    (void)unused;
    return job_ready(&visitor->server->job, clock_monotonic_s(), sentence);
}

static bool may_answer(struct visitor *visitor, int64_t unused)
{
    (void)unused;
    return job_may_answer(&visitor->server->job, visitor->worker);
}

static bool is_past_step(struct visitor *visitor, int64_t step)
{
    const struct job *job = &visitor->server->job;
    return job->state != JOB_TRAINING || job->global_step > step;
}

/* Of the shard: what the job has accepted may still be on its way into it. */
static bool is_at_step(struct visitor *visitor, int64_t step)
{
    int64_t now;
    shard_now(visitor->server->shard, NULL, &now);
    return visitor->server->job.state != JOB_TRAINING || now >= step;
}

/* --- Stages ------------------------------------------------------------------------------------------------------------ */

static bool stage_is_free(struct visitor *visitor, int64_t unused)
{
    struct visitor **user = &visitor->server->stage_users[visitor->worker];
    (void)unused;
    return *user == NULL || *user == visitor;
}

/* Whoever pushes has given up an earlier push on another connection: that one is cut off. */
bool serve_take_stage(struct visitor *visitor, bool cut, struct error *error)
{
    struct server *server = visitor->server;
    server_lock(server);
    struct visitor *user = server->stage_users[visitor->worker];
    if (cut && user != NULL && user != visitor) {
        server_cut(user);
        pthread_cond_broadcast(&server->stepped);
    }
    bool taken = hold(visitor, stage_is_free, 0, serve_deadline()) && stage_is_free(visitor, 0);
    if (taken) {
        server->stage_users[visitor->worker] = visitor;
    }
    server_unlock(server);
    return taken || error_set(error, "%s has a push or pull under way on another connection",
                              connection_name(visitor->channel.connection));
}

void serve_leave_stage(struct visitor *visitor)
{
    struct server *server = visitor->server;
    server_lock(server);
    server->stage_users[visitor->worker] = NULL;
    server_unlock(server);
}

/* --- Bulk -------------------------------------------------------------------------------------------------------------- */

/* Reads `count` floats of the frame's bulk to where they belong. */
static bool read_floats(struct visitor *visitor, enum dtype dtype, float *values, size_t count, double deadline_s,
                        struct error *error)
{
    uint16_t halves[CHUNK_FLOATS];
    if (dtype == DTYPE_FLOAT32) {
        return channel_read_bulk(&visitor->channel, values, count * sizeof *values, deadline_s, error);
    }
    while (count > 0) {
        size_t chunk = count < CHUNK_FLOATS ? count : CHUNK_FLOATS;
        if (!channel_read_bulk(&visitor->channel, halves, chunk * sizeof *halves, deadline_s, error)) {
            return false;
        }
        bfloat16_to_floats(values, halves, chunk);
        values += chunk;
        count -= chunk;
    }
    return true;
}

/* How far packed values have been cut into frames. */
struct cut {
    uint32_t next;              /* range that the next frame begins with */
    uint32_t offset;            /* floats of it that were sent */
    uint8_t piece[RANGE_BYTES]; /* of a range that is too large for one frame */
};

/* The ranges of the next frame; returns its floats. */
static uint64_t cut_frame(const struct ranges *all, struct cut *cut, struct ranges *ranges)
{
    uint64_t floats = 0;
    *ranges = (struct ranges){all->bytes + (size_t)cut->next * RANGE_BYTES, 0};
    while (cut->offset == 0 && cut->next < all->count && ranges->count < FRAME_RANGES &&
           floats + range_get(all, cut->next).count <= FRAME_FLOATS) {
        floats += range_get(all, cut->next++).count;
        ranges->count++;
    }
    if (floats > 0 || cut->next == all->count) {
        return floats;
    }
    struct range range = range_get(all, cut->next);
    uint32_t left = range.count - cut->offset;
    struct range part = {range.first + cut->offset, left < FRAME_FLOATS ? left : FRAME_FLOATS};
    range_put(cut->piece, 0, part);
    *ranges = (struct ranges){cut->piece, 1};
    cut->offset = part.count < left ? cut->offset + part.count : 0;
    cut->next += cut->offset == 0;
    return part.count;
}

bool serve_send_changes(struct visitor *visitor, enum message_type type, uint64_t request, const void *message,
                        struct ranges *ranges, const struct changes *changes, struct error *error)
{
    PROFILE("send changes");
    const struct ranges all = {changes->ranges, changes->range_count};
    const uint8_t *values = changes->values;
    const double deadline_s = serve_deadline();
    struct cut cut = {0};
    bool sent;
    do {
        uint64_t floats = cut_frame(&all, &cut, ranges);
        /* The channel only reads from it: iovec has no const. */
        struct iovec bulk = {(void *)(uintptr_t)values, floats * dtype_size(changes->dtype)};
        sent = channel_send(&visitor->channel, type, request, cut.next == all.count ? FRAME_LAST : 0, message, &bulk,
                            floats > 0, deadline_s, error);
        values += bulk.iov_len;
    } while (sent && cut.next < all.count);
    *ranges = (struct ranges){NULL, 0};
    return sent;
}

/* --- Push and pull ----------------------------------------------------------------------------------------------------- */

/* One frame's part of the gradient, into the stage. *bad: what is wrong with it, "" if nothing. */
static bool receive_gradient(struct visitor *visitor, struct stage *stage, struct error *bad, struct error *error)
{
    const struct message_push *push = &visitor->channel.message.push;
    double deadline_s = serve_deadline();
    for (uint32_t i = 0; i < push->ranges.count; i++) {
        float *values;
        struct range range = range_get(&push->ranges, i);
        if (!stage_claim(stage, range, &values, bad)) {
            return true;
        }
        if (!read_floats(visitor, (enum dtype)push->dtype, values, range.count, deadline_s, error)) {
            return false;
        }
        stage_check(stage, values, range.count);
    }
    return true;
}

bool serve_receive_push(struct visitor *visitor, struct stage *stage, const struct message_push *first,
                        uint64_t request, bool receive, struct error *bad, struct error *error)
{
    PROFILE("receive push");
    struct channel *channel = &visitor->channel;
    uint32_t generation = channel->frame.generation;
    if (receive) {
        stage_begin(stage);
    }
    bad->text[0] = '\0';
    for (;;) {
        if (receive && !receive_gradient(visitor, stage, bad, error)) {
            return false;
        }
        if (bad->text[0] != '\0' || (channel->frame.flags & FRAME_LAST) != 0) {
            return true;
        }
        if (!serve_receive(visitor, error)) {
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

static void note_push(struct server *server, const struct message_push *push, uint32_t staleness)
{
    server->pushes++;
    server->last_loss = push->loss;
    server->last_staleness = staleness;
}

/* Locked on entry and on return: the decision about a push that is complete. */
static void decide_push(struct visitor *visitor, const struct message_push *push, uint32_t generation, bool finite,
                        struct verdict *verdict, uint32_t *staleness)
{
    struct server *server = visitor->server;
    const struct job_push event = {
        .generation = generation,
        .sequence = push->sequence,
        .base_step = push->base_step,
        .finite = finite,
    };
    job_push(&server->job, visitor->worker, visitor->incarnation, &event, clock_monotonic_s(), verdict);
    int64_t steps = server->job.workers[visitor->worker].staleness;
    *staleness = steps > UINT32_MAX ? UINT32_MAX : (uint32_t)steps;
    if (verdict->code == 0 && verdict->outcome == PUSH_APPLIED) {
        note_push(server, push, *staleness);
    }
    serve_tell_generation(visitor);
}

static bool answer_push(struct visitor *visitor, const struct message_push *push, uint64_t request, uint32_t generation,
                        const struct verdict *verdict, uint32_t staleness, struct stage *stage, struct error *error)
{
    struct server *server = visitor->server;
    struct changes changes;
    const enum dtype dtype = (enum dtype)push->answer_dtype;
    if (verdict->outcome == PUSH_NOT_WANTED) { /* training ends with this answer: it must be of the last step */
        server_lock(server);
        bool waits = hold(visitor, is_at_step, server->job.global_step, serve_hold_deadline(server));
        server_unlock(server);
        if (!waits) {
            return error_set(error, "%s was given up while it waited", connection_name(visitor->channel.connection));
        }
    }
    bool there = verdict->outcome == PUSH_APPLIED
                     ? shard_apply(server->shard, generation, stage, push->base_version, dtype, &changes)
                     : shard_changes(server->shard, generation, stage, push->base_version, dtype, &changes);
    server_lock(server);
    bool at_once = may_answer(visitor, 0);
    bool alive = hold(visitor, may_answer, 0, serve_hold_deadline(server));
    bool in_time = may_answer(visitor, 0);
    serve_tell_generation(visitor);
    server_unlock(server);
    if (!alive) {
        return error_set(error, "%s was given up while it waited for slower workers",
                         connection_name(visitor->channel.connection));
    }
    if (!in_time) {
        return serve_send_error(
            visitor, request, ERROR_TOO_LATE,
            "waiting for a slower worker, as max_staleness wants (the push counts; send it again to ask on)", error);
    }
    if (there && !at_once) { /* others pushed meanwhile: what they changed shall be in the answer */
        there = shard_changes(server->shard, generation, stage, push->base_version, dtype, &changes);
    }
    if (!there) {
        return serve_send_error(visitor, request, ERROR_OLD_GENERATION, "the model is being restored", error);
    }
    struct message_pushed pushed = {
        .outcome = (uint8_t)verdict->outcome,
        .sequence = push->sequence,
        .version = changes.version,
        .global_step = changes.global_step,
        .token = -1,
        .staleness = staleness,
        .dtype = (uint8_t)dtype,
    };
    return serve_send_changes(visitor, MESSAGE_pushed, request, &pushed, &pushed.ranges, &changes, error);
}

static bool serve_push(struct visitor *visitor, struct error *error)
{
    struct server *server = visitor->server;
    const struct message_push push = visitor->channel.message.push; /* its ranges go with the next frame */
    const uint64_t request = visitor->channel.frame.request;
    const uint32_t generation = visitor->channel.frame.generation;
    struct stage *stage = shard_stage(server->shard, visitor->worker);
    struct verdict verdict;
    struct error bad;
    uint32_t staleness;
    if (!serve_take_stage(visitor, true, error)) {
        return false;
    }
    bool done = serve_receive_push(visitor, stage, &push, request, true, &bad, error);
    if (done && bad.text[0] != '\0') {
        done = serve_send_error(visitor, request, ERROR_BAD_REQUEST, bad.text, error);
    } else if (done) {
        server_lock(server);
        decide_push(visitor, &push, generation, stage_is_finite(stage), &verdict, &staleness);
        server_unlock(server);
        done = verdict.code != 0 ? serve_send_error(visitor, request, verdict.code, verdict.sentence, error)
                                 : answer_push(visitor, &push, request, generation, &verdict, staleness, stage, error);
    }
    serve_leave_stage(visitor);
    return done;
}

/* The floats of one range, a chunk at a time; snapshot 0: as they are now. */
static bool send_range(struct visitor *visitor, const struct message_read *read, uint64_t request, struct range range,
                       bool last, struct error *error)
{
    struct shard *shard = visitor->server->shard;
    float chunk[CHUNK_FLOATS];
    uint8_t bytes[RANGE_BYTES];
    double deadline_s = serve_deadline();
    while (range.count > 0) {
        const uint32_t most = read->snapshot != 0 ? FRAME_FLOATS : CHUNK_FLOATS;
        struct range part = {range.first, range.count < most ? range.count : most};
        struct message_values values = {.vector = read->vector, .token = -1, .ranges = {bytes, 1}};
        const float *from = chunk;
        shard_now(shard, &values.version, &values.global_step);
        bool there = read->snapshot != 0 ? shard_snapshot_values(shard, read->snapshot, (enum store_vector)read->vector,
                                                                 part, &from, &values.global_step, error)
                                         : shard_read(shard, (enum store_vector)read->vector, part, chunk, error);
        if (!there) {
            return serve_send_error(visitor, request, ERROR_NOT_READY, error->text, error);
        }
        range.first += part.count;
        range.count -= part.count;
        range_put(bytes, 0, part);
        struct iovec bulk = {(void *)(uintptr_t)from, part.count * sizeof *from};
        if (!channel_send(&visitor->channel, MESSAGE_values, request, last && range.count == 0 ? FRAME_LAST : 0,
                          &values, &bulk, 1, deadline_s, error)) {
            return false;
        }
    }
    return true;
}

/* The ranges of a request one after another, or all that are held. */
static bool send_ranges(struct visitor *visitor, const struct message_read *read, uint64_t request, struct error *error)
{
    const struct span *spans;
    const int span_count = shard_spans(visitor->server->shard, &spans);
    const bool all = read->ranges.count == 0;
    const uint32_t count = all ? (uint32_t)span_count : read->ranges.count;
    if (count == 0) {
        struct message_values none = {.vector = read->vector, .token = -1};
        return serve_send(visitor, MESSAGE_values, request, &none, error);
    }
    for (uint32_t i = 0; i < count; i++) {
        struct range range =
            all ? (struct range){spans[i].first, (uint32_t)spans[i].count} : range_get(&read->ranges, i);
        if (!send_range(visitor, read, request, range, i + 1 == count, error)) {
            return false;
        }
    }
    return true;
}

static bool send_pulled(struct visitor *visitor, const struct message_pull *pull, uint64_t request, uint32_t generation,
                        struct error *error)
{
    struct changes changes;
    struct stage *stage = shard_stage(visitor->server->shard, visitor->worker);
    if (pull->ranges.count > 0) {
        struct message_read read = {.vector = STORE_PARAMETERS, .ranges = pull->ranges};
        return send_ranges(visitor, &read, request, error);
    }
    if (!serve_take_stage(visitor, false, error)) {
        return false;
    }
    bool done;
    if (shard_changes(visitor->server->shard, generation, stage, pull->since_version, (enum dtype)pull->dtype,
                      &changes)) {
        struct message_values values = {
            .vector = STORE_PARAMETERS,
            .dtype = pull->dtype,
            .version = changes.version,
            .global_step = changes.global_step,
            .token = -1,
        };
        done = serve_send_changes(visitor, MESSAGE_values, request, &values, &values.ranges, &changes, error);
    } else {
        done = serve_send_error(visitor, request, ERROR_OLD_GENERATION, "the model is being restored", error);
    }
    serve_leave_stage(visitor);
    return done;
}

static bool serve_pull(struct visitor *visitor, struct error *error)
{
    struct server *server = visitor->server;
    const struct message_pull pull = visitor->channel.message.pull; /* its ranges stay until the next frame */
    const uint64_t request = visitor->channel.frame.request;
    const uint32_t generation = visitor->channel.frame.generation;
    double deadline_s = wait_deadline(pull.wait_ms);
    struct verdict verdict;
    server_lock(server);
    bool alive = hold(visitor, is_ready, 0, deadline_s);
    job_pull(&server->job, visitor->worker, visitor->incarnation, generation, clock_monotonic_s(), &verdict);
    if (alive && verdict.code == 0 && pull.after_step >= 0) {
        alive = hold(visitor, is_past_step, pull.after_step, deadline_s);
    }
    serve_tell_generation(visitor);
    server_unlock(server);
    if (!alive) {
        return error_set(error, "%s was given up while it waited", connection_name(visitor->channel.connection));
    }
    return verdict.code != 0 ? serve_send_error(visitor, request, verdict.code, verdict.sentence, error)
                             : send_pulled(visitor, &pull, request, generation, error);
}

static bool serve_read(struct visitor *visitor, struct error *error)
{
    struct server *server = visitor->server;
    const uint64_t request = visitor->channel.frame.request;
    server_lock(server);
    bool there = job_initialised(&server->job);
    bool same = visitor->channel.frame.generation == server->job.generation;
    serve_tell_generation(visitor);
    server_unlock(server);
    if (!there) {
        return serve_send_error(visitor, request, ERROR_NOT_READY, "there is no model yet", error);
    }
    if (!same) {
        return serve_send_error(visitor, request, ERROR_OLD_GENERATION, "the model was restored since", error);
    }
    return send_ranges(visitor, &visitor->channel.message.read, request, error);
}

/* --- Model, restoring, snapshots --------------------------------------------------------------------------------------- */

static bool serve_get_model(struct visitor *visitor, struct error *error)
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
    bool alive = hold(visitor, is_ready, 0, wait_deadline(visitor->channel.message.get_model.wait_ms));
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

static bool send_verdict(struct visitor *visitor, uint64_t request, const struct verdict *verdict, int64_t global_step,
                         struct error *error)
{
    return verdict->code != 0 ? serve_send_error(visitor, request, verdict->code, verdict->sentence, error)
                              : send_done(visitor, request, global_step, error);
}

static bool serve_begin_restore(struct visitor *visitor, struct error *error)
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
    return send_verdict(visitor, visitor->channel.frame.request, &verdict, -1, error);
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
        if (!read_floats(visitor, (enum dtype)write->dtype, values, range.count, deadline_s, error)) {
            return false;
        }
    }
    return true;
}

static bool serve_write(struct visitor *visitor, struct error *error)
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
    return send_verdict(visitor, visitor->channel.frame.request, &verdict, -1, error);
}

static bool serve_end_restore(struct visitor *visitor, struct error *error)
{
    struct server *server = visitor->server;
    const struct message_end_restore *end = &visitor->channel.message.end_restore;
    struct verdict verdict;
    struct error bad;
    pthread_mutex_lock(&server->restoring);
    ask_to_write(visitor, &verdict);
    if (verdict.code == 0 && !shard_end_write(server->shard, end->global_step, end->epoch_steps, &bad)) {
        verdict.code = ERROR_BAD_REQUEST;
        snprintf(verdict.sentence, sizeof verdict.sentence, "%.255s", bad.text);
    }
    if (verdict.code == 0) {
        server_lock(server);
        job_end_restore(&server->job, visitor->worker, visitor->channel.frame.generation, end->global_step,
                        end->last_step, end->epoch_steps, clock_monotonic_s(), &verdict);
        server_unlock(server);
    }
    pthread_mutex_unlock(&server->restoring);
    return send_verdict(visitor, visitor->channel.frame.request, &verdict, end->global_step, error);
}

static bool serve_snapshot(struct visitor *visitor, struct error *error)
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
        alive = hold(visitor, is_at_step, wanted.at_step, wait_deadline(wanted.wait_ms));
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
    return send_verdict(visitor, request, &verdict, global_step, error);
}

/* --- Membership -------------------------------------------------------------------------------------------------------- */

static bool serve_heartbeat(struct visitor *visitor, struct error *error)
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

static bool serve_end_job(struct visitor *visitor, struct error *error)
{
    struct server *server = visitor->server;
    struct verdict verdict;
    server_lock(server);
    job_end(&server->job, visitor->worker, &visitor->channel.message.end_job, clock_monotonic_s(), &verdict);
    int64_t global_step = server->job.global_step;
    serve_tell_generation(visitor);
    server_unlock(server);
    return send_verdict(visitor, visitor->channel.frame.request, &verdict, global_step, error);
}

static bool serve_leave(struct visitor *visitor, struct error *error)
{
    struct server *server = visitor->server;
    server_lock(server);
    if (visitor->worker >= 0) {
        job_leave(&server->job, visitor->worker, visitor->incarnation, visitor->channel.message.leave.sentence,
                  clock_monotonic_s());
    }
    int64_t global_step = server->job.global_step;
    server_unlock(server);
    return send_done(visitor, visitor->channel.frame.request, global_step, error);
}

static bool serve_ping(struct visitor *visitor, struct error *error)
{
    struct message_pong pong = {.nonce = visitor->channel.message.ping.nonce};
    return serve_send(visitor, MESSAGE_pong, visitor->channel.frame.request, &pong, error);
}

static bool serve_pong(struct visitor *visitor)
{
    struct server *server = visitor->server;
    if (visitor->worker >= 0) {
        server_lock(server);
        job_pong(&server->job, visitor->worker, visitor->incarnation, visitor->channel.message.pong.nonce);
        server_unlock(server);
    }
    return true;
}

static bool serve_release(struct visitor *visitor, struct error *error)
{
    shard_release(visitor->server->shard, visitor->channel.message.release.snapshot);
    return send_done(visitor, visitor->channel.frame.request, -1, error);
}

static bool serve_get_status(struct visitor *visitor, struct error *error)
{
    const struct channel *channel = &visitor->channel;
    return serve_status(visitor, channel->frame.request, channel->message.get_status.members == 1, serve_deadline(),
                        error);
}

/* --- Dispatch ---------------------------------------------------------------------------------------------------------- */

/* Who may ask for what. In which state of the job it may be done is for the job to say. */
static bool may_ask(const struct visitor *visitor, uint16_t type)
{
    const bool is_guest = visitor->guest.role != MEMBER_NONE;
    switch (type) {
    case MESSAGE_ping:
    case MESSAGE_pong:
    case MESSAGE_leave:
    case MESSAGE_get_status:
    case MESSAGE_report:
        return true;
    case MESSAGE_propose:
    case MESSAGE_abort_rollout:
        return visitor->worker < 0 && visitor->ps < 0 && !is_guest;
    case MESSAGE_begin_restore:
    case MESSAGE_write:
    case MESSAGE_end_restore:
    case MESSAGE_snapshot:
    case MESSAGE_release:
    case MESSAGE_end_job:
        return visitor->worker == 0;
    case MESSAGE_staged:
    case MESSAGE_get_aggregate:
        return visitor->ps >= 0 && visitor->server->job.synchronous &&
               visitor->server->job.coordinator == visitor->server->index;
    default:
        return visitor->worker >= 0;
    }
}

static bool answer(struct visitor *visitor, struct error *error)
{
    char sentence[128];
    const struct frame *frame = &visitor->channel.frame;
    if (!may_ask(visitor, frame->type)) {
        snprintf(sentence, sizeof sentence, "%s is not for %s", message_name(frame->type),
                 visitor->guest.role != MEMBER_NONE ? "members that came without a config"
                 : visitor->ps >= 0                 ? "another ps"
                 : visitor->worker < 0              ? "operators"
                                                    : "any worker but worker 0, the chief");
        return serve_send_error(visitor, frame->request, ERROR_NOT_ALLOWED, sentence, error);
    }
    PROFILE_PEER(message_name(frame->type), visitor->worker >= 0 ? PROFILE_WORKER + visitor->worker : PROFILE_NOBODY,
                 frame->type == MESSAGE_push ? (int64_t)visitor->channel.message.push.sequence : 0);
    switch (frame->type) {
    case MESSAGE_push:
        return visitor->server->job.synchronous ? serve_synchronous_push(visitor, error) : serve_push(visitor, error);
    case MESSAGE_staged:
        return serve_staged(visitor, error);
    case MESSAGE_get_aggregate:
        return serve_get_aggregate(visitor, error);
    case MESSAGE_pull:
        return serve_pull(visitor, error);
    case MESSAGE_read:
        return serve_read(visitor, error);
    case MESSAGE_get_model:
        return serve_get_model(visitor, error);
    case MESSAGE_begin_restore:
        return serve_begin_restore(visitor, error);
    case MESSAGE_write:
        return serve_write(visitor, error);
    case MESSAGE_end_restore:
        return serve_end_restore(visitor, error);
    case MESSAGE_snapshot:
        return serve_snapshot(visitor, error);
    case MESSAGE_release:
        return serve_release(visitor, error);
    case MESSAGE_heartbeat:
        return serve_heartbeat(visitor, error);
    case MESSAGE_end_job:
        return serve_end_job(visitor, error);
    case MESSAGE_leave:
        return serve_leave(visitor, error);
    case MESSAGE_get_status:
        return serve_get_status(visitor, error);
    case MESSAGE_report:
        return serve_report(visitor, error);
    case MESSAGE_propose:
        return serve_propose(visitor, error);
    case MESSAGE_abort_rollout:
        return serve_abort_rollout(visitor, error);
    case MESSAGE_ping:
        return serve_ping(visitor, error);
    case MESSAGE_pong:
        return serve_pong(visitor);
    default:
        snprintf(sentence, sizeof sentence, "%s is not a request to a ps", message_name(frame->type));
        return serve_send_error(visitor, frame->request, ERROR_BAD_REQUEST, sentence, error);
    }
}

/* Between two requests: what the server wants of an idle connection. False if it is to end. */
static bool look_around(struct visitor *visitor, struct error *error)
{
    struct server *server = visitor->server;
    server_lock(server);
    bool ping = visitor->ping_wanted;
    bool leaving = server->leaving;
    visitor->ping_wanted = false;
    struct message_ping question = {.nonce = ping ? job_probe_nonce(&server->job, visitor->worker) : 0};
    server_unlock(server);
    if (leaving) {
        struct message_leave leave = {.sentence = server->farewell};
        serve_send(visitor, MESSAGE_leave, 0, &leave, error);
        return error_set(error, "%s", "");
    }
    return !ping || serve_send(visitor, MESSAGE_ping, 0, &question, error);
}

/* Waits for the next request. */
static bool await_request(struct visitor *visitor, struct error *error)
{
    struct channel *channel = &visitor->channel;
    bool there = false;
    while (!there) {
        if (!look_around(visitor, error) ||
            !connection_wait(channel->connection, clock_monotonic_s() + SERVER_TICK_MS / 1000.0, &there, error)) {
            return false;
        }
    }
    if (!serve_receive(visitor, error)) {
        return false;
    }
    server_lock(visitor->server);
    visitor->heard_s = clock_monotonic_s();
    if (visitor->worker >= 0) {
        job_heard(&visitor->server->job, visitor->worker, visitor->incarnation, visitor->heard_s);
    }
    server_unlock(visitor->server);
    return true;
}

void serve(struct visitor *visitor)
{
    struct error error = {""};
    while (await_request(visitor, &error) && answer(visitor, &error)) {
    }
    enum connection_state state = connection_state(visitor->channel.connection);
    if (state == CONNECTION_BROKEN || state == CONNECTION_TIMED_OUT) {
        log_info("%s", error.text);
    }
}
