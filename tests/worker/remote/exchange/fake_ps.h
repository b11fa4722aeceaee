/*
 * A parameter server for tests: one shard with the whole model over plain TCP, as simple as possible. A push subtracts
 * its gradient from the parameters, once for each sequence number, and the answer contains them all. The test chooses
 * its errors and when they occur. Several connections may be open; one at a time is served.
 */
#ifndef TESTS_WORKER_REMOTE_EXCHANGE_FAKE_PS_H
#define TESTS_WORKER_REMOTE_EXCHANGE_FAKE_PS_H

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/config.h"
#include "net/channel.h"
#include "net/handshake.h"
#include "tests/net/accepting.h"
#include "ps/store/codec.h"
#include "ps/store/model.h"
#include "ps/identity.h"

enum { FAKE_MOST_PUSHES = 1000 };

struct fake_ps {
    struct config config; /* of the whole cluster, as the worker has it */
    struct model model;
    struct identity identity;
    int listener;
    pthread_t thread;
    atomic_bool stopping;
    float *parameters;
    uint16_t *known;       /* what was sent on the open connection, as bfloat16 */
    bool knows;            /* something was sent */
    float *sent_model;     /* with packed answers: as the worker received it... */
    uint64_t sent_version; /* ...in this version */
    uint32_t generation;
    uint64_t applied; /* highest sequence */
    int64_t steps;
    uint64_t sequences[FAKE_MOST_PUSHES]; /* of all pushes received completely, in order */
    struct push_seen {
        int64_t base_step, local_step;
        uint64_t base_version;
    } seen[FAKE_MOST_PUSHES];
    int pushes, connections, frames; /* frames: of pushes */
    uint64_t sent_floats;            /* in the ranges of pushes */
    atomic_int overlapped;           /* pushes answered while the worker computed */
    atomic_bool all_computed;        /* the worker computes no more steps: stop waiting */

    /* Set these before anything is sent. */
    int delay_ms;          /* before each answer to a push */
    atomic_bool *computes; /* is the worker computing? Awaited after that delay; NULL: it doesn't matter */
    int cut_in_push;       /* connections are cut during this push (counted from 1); once */
    int cut_before_answer; /* likewise, after it was applied */
    int cut_in_answer;     /* likewise, in the middle of its answer */
    int cut_behind;        /* likewise, before the answer's last frame */
    int short_at;          /* after this push, differences or packed values lack their last byte; once */
    int beyond_at;         /* the answer to this push contains a float that the ps does not hold; once */
    int nonsense_at;       /* likewise, or their first byte is invalid */
    int wrong_at;          /* this push is answered by `error`, or by `outcome`; once */
    uint16_t error;
    uint8_t outcome;
};

static inline double fake_soon(void)
{
    return clock_monotonic_s() + 60;
}

static inline bool fake_is_now(int *when, int push)
{
    bool now = *when == push && push > 0;
    *when = now ? 0 : *when;
    return now;
}

/* Packed: the changes that bring the sent model up to the parameters, for a peer that has it; others get it whole. */
static inline enum dtype fake_dtype(struct fake_ps *ps, uint8_t wanted, uint64_t since_version)
{
    if (!dtype_is_packed((enum dtype)wanted) || (since_version > 0 && since_version == ps->sent_version)) {
        return (enum dtype)wanted;
    }
    return DTYPE_FLOAT32;
}

/* The parameters in one frame; or `half` of them, followed by the end of the connection. */
static inline bool fake_send_parameters(struct fake_ps *ps, struct channel *channel, enum message_type type,
                                        uint64_t request, void *message, struct ranges *ranges, enum dtype dtype)
{
    struct error error;
    uint8_t bytes[RANGE_BYTES];
    size_t count = ps->model.float_count;
    uint16_t *halves = malloc(count * sizeof *halves);
    range_put(bytes, 0, (struct range){(uint64_t)fake_is_now(&ps->beyond_at, ps->pushes), (uint32_t)count});
    *ranges = (struct ranges){bytes, 1};
    uint8_t *encoded = malloc(bfloat16_encoded_room(count));
    bfloat16_from_floats(halves, ps->parameters, count);
    struct iovec bulk = {ps->parameters, count * sizeof *ps->parameters};
    if (dtype == DTYPE_DIFFERENCES) {
        bulk = (struct iovec){encoded, bfloat16_encode_delta(encoded, ps->known, halves, count, !ps->knows)};
        ps->knows = true;
        bulk.iov_len -= fake_is_now(&ps->short_at, ps->pushes);
        encoded[0] = fake_is_now(&ps->nonsense_at, ps->pushes) ? 5 : encoded[0];
    }
    uint8_t *packed = malloc(LARGEST_ROOM);
    if (dtype == DTYPE_INT8) {
        float *left = malloc(count * sizeof *left);
        for (size_t i = 0; i < count; i++) {
            left[i] = ps->parameters[i] - ps->sent_model[i];
        }
        bulk = (struct iovec){packed, sent_model_pack(packed, left, ps->sent_model, count, NULL, dtype)};
        bulk.iov_len -= fake_is_now(&ps->short_at, ps->pushes);
        packed[3] |= fake_is_now(&ps->nonsense_at, ps->pushes) ? 0x80 : 0; /* a scale below 0 */
        free(left);
    } else {
        memcpy(ps->sent_model, ps->parameters, count * sizeof *ps->sent_model);
    }
    ps->sent_version = (uint64_t)ps->steps + 1;
    const bool cut = fake_is_now(&ps->cut_behind, ps->pushes);
    const struct outgoing frame = {
        .type = type, .request = request, .message = message, .bulk = &bulk, .bulk_parts = 1, .more = cut};
    bool sent = channel_send_frame(channel, &frame, fake_soon(), &error);
    if (cut) {
        connection_flush(channel->connection, fake_soon(), &error);
    }
    sent = sent && !cut;
    free(packed);
    free(encoded);
    free(halves);
    return sent;
}

static inline bool fake_take_frame(struct fake_ps *ps, struct channel *channel, float *gradient)
{
    struct error error;
    const struct message_push *push = &channel->message.push;
    ps->frames++;
    for (uint32_t i = 0; i < push->ranges.count; i++) {
        struct range range = range_get(&push->ranges, i);
        if (push->dtype == DTYPE_INT8) {
            uint8_t *bytes = malloc(int8_size(range.count));
            bool read = channel_read_bulk(channel, bytes, int8_size(range.count), fake_soon(), &error) &&
                        int8_widen(gradient + range.first, bytes, range.count);
            free(bytes);
            if (!read) {
                return false;
            }
            continue;
        }
        uint16_t *halves = malloc(range.count * sizeof *halves);
        void *to = push->dtype == DTYPE_BFLOAT16 ? (void *)halves : (void *)(gradient + range.first);
        bool read =
            channel_read_bulk(channel, to, range.count * dtype_size((enum dtype)push->dtype), fake_soon(), &error);
        if (read && push->dtype == DTYPE_BFLOAT16) {
            bfloat16_to_floats(gradient + range.first, halves, range.count);
        }
        free(halves);
        if (!read) {
            return false;
        }
        ps->sent_floats += range.count;
    }
    return true;
}

/* For a minute at most, once: steps that do not overlap never will. */
static inline void fake_await_computing(struct fake_ps *ps)
{
    const double until_s = fake_soon();
    while (!atomic_load(ps->computes) && !atomic_load(&ps->all_computed)) {
        atomic_store(&ps->all_computed, clock_monotonic_s() > until_s);
        usleep(1000);
    }
    atomic_fetch_add(&ps->overlapped, atomic_load(ps->computes));
}

static inline bool fake_serve_push(struct fake_ps *ps, struct channel *channel)
{
    struct error error;
    const struct message_push push = channel->message.push;
    const uint64_t request = channel->frame.request;
    float *gradient = calloc(ps->model.float_count, sizeof *gradient);
    bool there = !fake_is_now(&ps->cut_in_push, ps->pushes + 1) && fake_take_frame(ps, channel, gradient);
    while (there && !(channel->frame.flags & FRAME_LAST)) {
        there = channel_receive(channel, fake_soon(), &error) && channel->frame.type == MESSAGE_push &&
                fake_take_frame(ps, channel, gradient);
    }
    if (!there) {
        free(gradient);
        return false;
    }
    ps->seen[ps->pushes] = (struct push_seen){push.base_step, push.local_step, push.base_version};
    ps->sequences[ps->pushes++] = push.sequence;
    bool wrong = fake_is_now(&ps->wrong_at, ps->pushes);
    if (wrong && ps->error != 0 && ps->error != ERROR_TOO_LATE) {
        free(gradient);
        return channel_send_error(channel, request, (enum error_code)ps->error, fake_soon(), &error,
                                  "as the test wants");
    }
    bool first = push.sequence > ps->applied;
    if (first && !(wrong && ps->error == 0)) {
        ps->applied = push.sequence;
        ps->steps++;
        for (size_t i = 0; i < ps->model.float_count; i++) {
            ps->parameters[i] -= gradient[i];
        }
    }
    free(gradient);
    usleep((useconds_t)ps->delay_ms * 1000);
    if (ps->computes) {
        fake_await_computing(ps);
    }
    if (wrong && ps->error == ERROR_TOO_LATE) {
        return channel_send_error(channel, request, ERROR_TOO_LATE, fake_soon(), &error, "others are slower");
    }
    if (fake_is_now(&ps->cut_before_answer, ps->pushes)) {
        return false;
    }
    struct message_pushed pushed = {.outcome = wrong ? ps->outcome : !first,
                                    .sequence = push.sequence,
                                    .version = (uint64_t)ps->steps + 1,
                                    .global_step = ps->steps,
                                    .token = -1,
                                    .staleness = (uint32_t)(ps->steps - 1 - push.base_step),
                                    .dtype = (uint8_t)fake_dtype(ps, push.answer_dtype, push.base_version)};
    if (fake_is_now(&ps->cut_in_answer, ps->pushes)) {
        float garbage[16] = {0};
        uint8_t bytes[RANGE_BYTES];
        range_put(bytes, 0, (struct range){0, 16});
        struct iovec bulk = {garbage, sizeof garbage};
        pushed.ranges = (struct ranges){bytes, 1};
        pushed.dtype = DTYPE_FLOAT32;
        const struct outgoing frame = {.type = MESSAGE_pushed,
                                       .request = request,
                                       .message = &pushed,
                                       .bulk = &bulk,
                                       .bulk_parts = 1,
                                       .more = true};
        channel_send_frame(channel, &frame, fake_soon(), &error);
        connection_flush(channel->connection, fake_soon(), &error);
        return false;
    }
    return fake_send_parameters(ps, channel, MESSAGE_pushed, request, &pushed, &pushed.ranges,
                                (enum dtype)pushed.dtype);
}

static inline bool fake_answer(struct fake_ps *ps, struct channel *channel)
{
    struct error error;
    const uint64_t request = channel->frame.request;
    uint8_t bytes[RANGE_BYTES];
    channel->generation = ps->generation;
    if (channel->frame.type == MESSAGE_get_model) {
        range_put(bytes, 0, (struct range){0, (uint32_t)ps->model.float_count});
        struct message_model model = {.state = 2,
                                      .float_count = ps->model.float_count,
                                      .ranges = {bytes, 1},
                                      .vectors = 1,
                                      .global_step = ps->steps,
                                      .message = ""};
        return channel_send(channel, MESSAGE_model, request, &model, fake_soon(), &error);
    }
    if (channel->frame.type == MESSAGE_pull) {
        const struct message_pull *pull = &channel->message.pull;
        struct message_values values = {.dtype = (uint8_t)fake_dtype(ps, pull->dtype, pull->since_version),
                                        .version = (uint64_t)ps->steps + 1,
                                        .global_step = ps->steps,
                                        .token = -1};
        return fake_send_parameters(ps, channel, MESSAGE_values, request, &values, &values.ranges,
                                    (enum dtype)values.dtype);
    }
    return channel->frame.type == MESSAGE_push && fake_serve_push(ps, channel);
}

static inline void *fake_thread(void *context)
{
    struct fake_ps *ps = context;
    struct hello_identity identity = ps->identity.hello;
    identity.member = (struct member){MEMBER_PS, 0};
    while (!atomic_load(&ps->stopping)) {
        char peer_name[ENDPOINT_TEXT];
        struct connection *connection;
        struct channel channel;
        struct peer peer;
        struct error error;
        int fd;
        if (!accept_in_time(ps->listener, &fd, peer_name, clock_monotonic_s() + 0.05, &error) ||
            !connection_serve(&connection, fd, peer_name, NULL, NULL, fake_soon(), &error)) {
            continue;
        }
        ps->connections++;
        ps->knows = false;
        channel_open(&channel, connection);
        bool open = handshake_accept(&channel, &identity, &(struct handshake_rules){0}, &peer, fake_soon(), &error);
        while (open && !atomic_load(&ps->stopping)) {
            bool ready = false;
            open = connection_wait(connection, clock_monotonic_s() + 0.05, &ready, &error) &&
                   (!ready || (channel_receive(&channel, fake_soon(), &error) && fake_answer(ps, &channel)));
        }
        channel_close(&channel);
    }
    return NULL;
}

/* flags: NULL or more settings, in pairs, up to a NULL. */
static inline void fake_ps_start(struct fake_ps *ps, const char *const *flags)
{
    struct error error;
    char host[32];
    struct config_setting settings[16] = {
        {"insecure", "true"},   {"local", "false"}, {"layers", "6,20,3"}, {"worker_hosts", "127.0.0.1:1"},
        {"job_name", "worker"}, {"ps_hosts", host}, {"lease_secs", "60"}};
    int count = 7;
    memset(ps, 0, sizeof *ps);
    bool good = socket_listen(&ps->listener, "127.0.0.1", 0, &error);
    snprintf(host, sizeof host, "127.0.0.1:%d", socket_port(ps->listener));
    for (int i = 0; flags && flags[i]; i += 2) {
        settings[count++] = (struct config_setting){flags[i], flags[i + 1]};
    }
    good = good && config_load(&ps->config, NULL, settings, count, &error) &&
           identity_create(&ps->identity, &ps->config, (struct member){MEMBER_WORKER, 0}, &error);
    if (!good) {
        fprintf(stderr, "fake ps: %s\n", error.text);
    }
    assert(good);
    model_layout(&ps->model, &ps->config.model);
    ps->parameters = calloc(ps->model.float_count, sizeof *ps->parameters);
    ps->known = calloc(ps->model.float_count, sizeof *ps->known);
    ps->sent_model = calloc(ps->model.float_count, sizeof *ps->sent_model);
    ps->generation = 1;
    int result = pthread_create(&ps->thread, NULL, fake_thread, ps);
    assert(result == 0);
    (void)result;
}

/* Waits for its thread: afterwards the test may look at everything. */
static inline void fake_ps_stop(struct fake_ps *ps)
{
    atomic_store(&ps->stopping, true);
    pthread_join(ps->thread, NULL);
    close(ps->listener);
}

static inline void fake_ps_free(struct fake_ps *ps)
{
    free(ps->parameters);
    free(ps->known);
    free(ps->sent_model);
    identity_destroy(&ps->identity);
    config_free(&ps->config);
}

#endif
