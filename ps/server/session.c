/* What requests of all kinds need of their session: frames, bulk, waiting, and turns at the worker's stage. */
#include "ps/server/requests.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/profile.h"
#include "net/message.h"
#include "ps/store/codec.h"

/* --- Frames --- */

double serve_deadline(void)
{
    return clock_monotonic_s() + SERVER_FRAME_S;
}

void serve_unlock(struct session *session)
{
    session->channel->generation = session->server->job.generation;
    server_unlock(session->server);
}

bool serve_send(struct session *session, enum message_type type, uint64_t request, const void *message,
                struct error *error)
{
    return channel_send(session->channel, type, request, message, serve_deadline(), error);
}

bool serve_send_done(struct session *session, uint64_t request, int64_t global_step, struct error *error)
{
    struct message_done done = {.global_step = global_step};
    return serve_send(session, MESSAGE_done, request, &done, error);
}

bool serve_send_error(struct session *session, uint64_t request, uint16_t code, const char *message,
                      struct error *error)
{
    if (!channel_send_error(session->channel, request, (enum error_code)code, serve_deadline(), error, "%s", message)) {
        return false;
    }
    if (code == ERROR_BAD_REQUEST) {
        log_warning("dropped %s: %s", connection_name(session->channel->connection), message);
        return error_set(error, "%s", message);
    }
    return true;
}

bool serve_send_verdict(struct session *session, uint64_t request, const struct verdict *verdict, int64_t global_step,
                        struct error *error)
{
    return verdict->code != 0 ? serve_send_error(session, request, verdict->code, verdict->message, error)
                              : serve_send_done(session, request, global_step, error);
}

bool serve_receive(struct session *session, struct error *error)
{
    struct channel *channel = session->channel;
    struct error ignored;
    if (channel_receive(channel, serve_deadline(), error)) {
        return true;
    }
    if (connection_state(channel->connection) == CONNECTION_OPEN) { /* the connection is fine, the frame is not */
        log_warning("dropped %s", error->text);
        channel_send_error(channel, channel->frame.request, ERROR_BAD_REQUEST, serve_deadline(), &ignored, "%s",
                           error->text);
    }
    return false;
}

/* --- Waiting for something to happen --- */

double serve_hold_deadline(const struct server *server)
{
    double lease_s = server->config->cluster.lease_secs;
    return clock_monotonic_s() + (lease_s < SERVER_HOLD_S ? lease_s : SERVER_HOLD_S);
}

double serve_wait_deadline(uint32_t wait_ms)
{
    return clock_monotonic_s() + wait_ms / 1000.0;
}

bool serve_wait_failed(const struct session *session, const char *for_what, struct error *error)
{
    return error_set(error, "%s was given up while it waited%s", connection_name(session->channel->connection),
                     for_what);
}

bool send_keepalive(struct session *session, double *keepalive_sent_s)
{
    struct server *server = session->server;
    struct message_ping ping = {.nonce = session->incarnation};
    struct error error;
    double now_s = clock_monotonic_s();
    if (now_s - *keepalive_sent_s < identity_idle_timeout_s(&server->identity) / 4) {
        return true;
    }
    *keepalive_sent_s = now_s;
    server_unlock(server);
    bool sent = serve_send(session, MESSAGE_ping, 0, &ping, &error);
    server_lock(server);
    return sent;
}

bool serve_wait(struct session *session, bool (*ready)(struct session *session, int64_t argument), int64_t argument,
                double deadline_s)
{
    struct server *server = session->server;
    bool alive = true;
    double keepalive_sent_s = clock_monotonic_s();
    listener_set_waiting(&session->base, true);
    while (alive && !ready(session, argument) && clock_monotonic_s() < deadline_s) {
        server_wait(server);
        alive = !server->leaving && !listener_peer_hung_up(&session->base) &&
                job_is_current(&server->job, session->worker, session->incarnation) &&
                send_keepalive(session, &keepalive_sent_s);
    }
    listener_set_waiting(&session->base, false);
    return alive;
}

bool serve_hold(struct session *session, bool (*ready)(struct session *session, int64_t argument), int64_t argument,
                double deadline_s)
{
    PROFILE("wait for workers");
    struct server *server = session->server;
    if (ready(session, argument)) {
        return true;
    }
    job_hold(&server->job, session->worker, session->incarnation, 1, clock_monotonic_s());
    bool alive = serve_wait(session, ready, argument, deadline_s);
    job_hold(&server->job, session->worker, session->incarnation, -1, clock_monotonic_s());
    return alive;
}

bool serve_is_ready(struct session *session, int64_t unused)
{
    char message[256];
    (void)unused;
    return job_ready(&session->server->job, clock_monotonic_s(), message);
}

/* Of the shard, not the job: what the job has accepted may not have reached the shard yet. */
bool serve_is_at_step(struct session *session, int64_t step)
{
    int64_t now;
    shard_now(session->server->shard, NULL, &now);
    return session->server->job.state != JOB_TRAINING || now >= step;
}

/* The same, for a request. */
void serve_wait_step(struct session *session)
{
    listener_set_waiting(&session->base, true);
    server_wait_step(session->server);
    listener_set_waiting(&session->base, false);
}

/* --- Stages --- */

static bool stage_is_free(struct session *session, int64_t unused)
{
    struct session **user = &session->server->stage_users[session->worker];
    (void)unused;
    return !*user || *user == session;
}

/* A worker that pushes has abandoned any earlier push on another connection: that connection is cut. */
bool serve_take_stage(struct session *session, bool cut, struct error *error)
{
    struct server *server = session->server;
    server_lock(server);
    struct session *user = server->stage_users[session->worker];
    if (cut && user && user != session) {
        listener_disconnect(&user->base);
        pthread_cond_broadcast(&server->stepped);
    }
    bool taken = serve_hold(session, stage_is_free, 0, serve_deadline()) && stage_is_free(session, 0);
    if (taken) {
        server->stage_users[session->worker] = session;
    }
    server_unlock(server);
    return taken || error_set(error, "%s has a push or pull in progress on another connection",
                              connection_name(session->channel->connection));
}

void serve_leave_stage(struct session *session)
{
    struct server *server = session->server;
    server_lock(server);
    server->stage_users[session->worker] = NULL;
    server_unlock(server);
}

/* --- Bulk: floats between a connection and memory, in frames; and any other, as a whole --- */

enum {
    FRAME_RANGES = 8192,       /* of a frame of an answer */
    DIFFERENCES_RANGES = 1024, /* of a frame of differences, which also passes through the stack */
};

/* What other connections of the same worker are receiving. Locked. */
static size_t bulk_of_worker_locked(const struct session *session)
{
    size_t bytes = 0;
    if (session->worker >= 0) {
        for (const struct session *one = session->server->sessions_of[session->worker]; one;
             one = one->next_of_worker) {
            bytes += one->bulk_bytes;
        }
    }
    return bytes;
}

/*
 * Counts a bulk before there is memory for it, since its sender may take its time: all of them together, and those of
 * one worker, which is never more than one large bulk. False: too many; the sender's link tries again.
 */
static bool begin_bulk(struct session *session, size_t size, struct error *error)
{
    struct server *server = session->server;
    server_lock(server);
    const size_t own = bulk_of_worker_locked(session);
    const bool fits = size <= SERVER_BULK - server->bulk_bytes && (own == 0 || own + size <= SERVER_BULK / 4);
    if (fits) {
        server->bulk_bytes += size;
        session->bulk_bytes = size;
    }
    server_unlock(server);
    return fits || error_set(error, "%s sends %zu KiB while others are sending too much: at most %d MiB at a time",
                             connection_name(session->channel->connection), size >> 10, SERVER_BULK >> 20);
}

static void end_bulk(struct session *session)
{
    server_lock(session->server);
    session->server->bulk_bytes -= session->bulk_bytes;
    session->bulk_bytes = 0;
    server_unlock(session->server);
}

bool serve_read_bulk(struct session *session, uint8_t **bytes, size_t *size, struct error *error)
{
    *size = session->channel->bulk_left;
    if (!begin_bulk(session, *size, error)) {
        return false;
    }
    *bytes = malloc(*size > 0 ? *size : 1);
    bool done = *bytes || error_set(error, "out of memory for %zu bytes of a request", *size);
    if (done && !channel_read_bulk(session->channel, *bytes, *size, serve_deadline(), error)) {
        free(*bytes);
        done = false;
    }
    end_bulk(session);
    return done;
}

bool serve_read_floats(struct session *session, enum dtype dtype, float *values, size_t count, double deadline_s,
                       struct error *error)
{
    uint16_t halves[SERVE_CHUNK_FLOATS];
    if (dtype == DTYPE_FLOAT32) {
        return channel_read_bulk(session->channel, values, count * sizeof *values, deadline_s, error);
    }
    while (count > 0) {
        size_t chunk = count < SERVE_CHUNK_FLOATS ? count : SERVE_CHUNK_FLOATS;
        if (!channel_read_bulk(session->channel, halves, chunk * sizeof *halves, deadline_s, error)) {
            return false;
        }
        bfloat16_to_floats(values, halves, chunk);
        values += chunk;
        count -= chunk;
    }
    return true;
}

/* How far the packed values have been split into frames. */
struct values_cut {
    uint32_t floats, ranges;    /* limits of a frame */
    uint32_t next;              /* the range that the next frame starts with */
    uint32_t offset;            /* floats of it already sent */
    uint8_t piece[RANGE_BYTES]; /* a piece of a range that is too large for one frame */
};

/* Selects the ranges of the next frame; returns its number of floats. */
static uint64_t cut_frame(const struct ranges *all, struct values_cut *cut, struct ranges *ranges)
{
    uint64_t floats = 0;
    *ranges = (struct ranges){all->bytes + (size_t)cut->next * RANGE_BYTES, 0};
    while (cut->offset == 0 && cut->next < all->count && ranges->count < cut->ranges &&
           floats + range_get(all, cut->next).count <= cut->floats) {
        floats += range_get(all, cut->next++).count;
        ranges->count++;
    }
    if (floats > 0 || cut->next == all->count) {
        return floats;
    }
    struct range range = range_get(all, cut->next);
    uint32_t left = range.count - cut->offset;
    struct range part = {range.first + cut->offset, left < cut->floats ? left : cut->floats};
    range_put(cut->piece, 0, part);
    *ranges = (struct ranges){cut->piece, 1};
    cut->offset = part.count < left ? cut->offset + part.count : 0;
    cut->next += cut->offset == 0;
    return part.count;
}

struct wanted serve_wanted(const struct session *session, uint8_t dtype, uint64_t since_version)
{
    const struct stage *stage = shard_stage(session->server->shard, session->worker);
    struct wanted wanted = {(enum dtype)dtype, (enum dtype)dtype, since_version, false};
    if (dtype_is_packed(wanted.dtype) && !shard_compresses_answers(session->server->shard)) {
        wanted.dtype = wanted.packed = DTYPE_FLOAT32;
    }
    if (dtype == DTYPE_DIFFERENCES) {
        wanted.packed = DTYPE_BFLOAT16;
        wanted.dtype = stage_keeps_known(stage) ? DTYPE_DIFFERENCES : DTYPE_BFLOAT16;
        wanted.in_full = stage_keeps_known(stage) && !stage_is_known_to(stage, session->base.number);
        wanted.since_version = wanted.in_full ? 0 : since_version;
    }
    return wanted;
}

/*
 * Packs pieces into the form in which they are sent, then moves them together, because what lies between them is not
 * sent.
 */
static bool send_pieces(struct session *session, enum message_type type, uint64_t request, const void *message,
                        struct ranges *ranges, const struct changes *changes, struct error *error)
{
    uint8_t bytes[SENT_FRAME_RANGES * RANGE_BYTES];
    uint8_t *at = (uint8_t *)(uintptr_t)changes->values, *const end = at + changes->value_count; /* the stage's */
    const double deadline_s = serve_deadline();
    bool sent;
    do {
        uint8_t *const begin = at, *packed = at;
        uint64_t behind = 0;
        *ranges = (struct ranges){bytes, 0};
        while (at < end && ranges->count < SENT_FRAME_RANGES) {
            const struct sent_piece piece = sent_piece_at(at);
            if (piece.range.first < behind || (size_t)(packed - begin) + piece.size > SENT_FRAME_BYTES) {
                break; /* the next range has another version, or the frame is full */
            }
            range_put(bytes, ranges->count++, piece.range);
            behind = piece.range.first + piece.range.count;
            at += SENT_HEAD + piece.size;
            memmove(packed, piece.bytes, piece.size);
            packed += piece.size;
        }
        struct iovec bulk = {begin, (size_t)(packed - begin)};
        const struct outgoing frame = {.type = type,
                                       .request = request,
                                       .message = message,
                                       .bulk = &bulk,
                                       .bulk_parts = ranges->count > 0 ? 1 : 0,
                                       .more = at < end};
        sent = channel_send_frame(session->channel, &frame, deadline_s, error);
    } while (sent && at < end);
    *ranges = (struct ranges){NULL, 0};
    return sent;
}

bool serve_send_changes(struct session *session, enum message_type type, uint64_t request, const void *message,
                        struct ranges *ranges, const struct changes *changes, const struct wanted *wanted,
                        struct error *error)
{
    PROFILE(SPAN_SEND_CHANGES);
    if (dtype_is_packed(changes->dtype)) {
        return send_pieces(session, type, request, message, ranges, changes, error);
    }
    uint8_t encoded[DIFFERENCES_FLOATS * sizeof(uint16_t) + DIFFERENCES_FLOATS / BFLOAT16_BLOCK + BFLOAT16_BLOCK + 1 +
                    DIFFERENCES_RANGES];
    struct stage *stage = shard_stage(session->server->shard, session->worker);
    const struct ranges all = {changes->ranges, changes->range_count};
    const uint8_t *values = changes->values;
    const double deadline_s = serve_deadline();
    const bool is_delta = wanted->dtype == DTYPE_DIFFERENCES;
    struct values_cut cut = {.floats = is_delta ? DIFFERENCES_FLOATS : SERVE_FRAME_FLOATS,
                             .ranges = is_delta ? DIFFERENCES_RANGES : FRAME_RANGES};
    bool sent;
    do {
        uint64_t floats = cut_frame(&all, &cut, ranges);
        size_t bytes = floats * dtype_size(changes->dtype);
        /* The channel only reads it, but iovec has no const. */
        struct iovec bulk = {(void *)(uintptr_t)values, bytes};
        if (is_delta) {
            const uint16_t *halves = (const uint16_t *)(const void *)values;
            size_t size = stage_encode_delta(stage, session->base.number, ranges, halves, wanted->in_full, encoded);
            bulk = (struct iovec){encoded, size};
        }
        const struct outgoing frame = {
            .type = type,
            .request = request,
            .message = message,
            .bulk = &bulk,
            .bulk_parts = floats > 0 ? 1 : 0,
            .more = cut.next != all.count,
        };
        sent = channel_send_frame(session->channel, &frame, deadline_s, error);
        values += bytes;
    } while (sent && cut.next < all.count);
    *ranges = (struct ranges){NULL, 0};
    return sent;
}
