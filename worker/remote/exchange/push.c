/* Pushes: sent to all shards first, then their answers are read in whatever order they arrive. */
#include <math.h>
#include <poll.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/profile.h"
#include "base/simulation.h"
#include "net/spans.h"
#include "worker/remote/exchange/internal.h"

enum { FRAME_BYTES = 4 << 20 /* of a frame's bulk, approximately */ };

static const double SLICE_S = 0.25; /* how often to check for a signal and the caller's wish to stop */

/* A frame of a push while it fills. */
struct push_frame {
    uint32_t ranges;
    size_t bytes;
};

static bool send_frame(struct push_pull *exchange, struct shard_part *part, struct message_push *push,
                       struct push_frame *frame, bool last, struct error *error)
{
    push->ranges = (struct ranges){exchange->ranges, frame->ranges};
    const struct outgoing outgoing = {.type = MESSAGE_push,
                                      .request = part->request,
                                      .more = !last,
                                      .message = push,
                                      .bulk = exchange->bulk,
                                      .bulk_parts = (int)frame->ranges};
    bool sent = channel_send_frame(&part->link.channel, &outgoing, clock_monotonic_s() + LINK_ANSWER_S, error);
    *frame = (struct push_frame){0};
    return sent;
}

static bool send_push(struct push_pull *exchange, struct shard_part *part, const struct outbox *outbox,
                      const struct push_note *note, struct error *error)
{
    PROFILE_PEER(SPAN_SEND_PUSH, PROFILE_PS + (int)(part - exchange->parts), (int64_t)part->sequence);
    const bool is_buffered = exchange->config->train.buffer_size > 0; /* each ps weights by its own steps */
    struct message_push push = {.sequence = part->sequence,
                                .base_version = part->version,
                                .base_step = is_buffered ? part->global_step : note->base_step,
                                .token = exchange->config->cluster.issync ? note->base_step : -1,
                                .local_step = note->local_step,
                                .examples = note->examples,
                                .loss = outbox_is_finite(outbox) ? note->loss : NAN,
                                .answer_dtype = (uint8_t)push_pull_dtype(exchange),
                                .dtype = (uint8_t)outbox->dtype};
    struct outbox_cursor cursor = outbox_open(outbox, part->spans, part->span_count);
    struct push_frame frame = {0};
    struct range range;
    const void *floats;
    size_t size;
    part->link.channel.generation = exchange->generation;
    part->request = ++part->link.channel.next_request;
    while (outbox_next(&cursor, &range, &floats, &size)) {
        bool full = frame.ranges == PUSH_FRAME_RANGES || frame.bytes >= FRAME_BYTES;
        RARELY("a push takes many frames", full = frame.ranges > 0);
        if (full && !send_frame(exchange, part, &push, &frame, false, error)) {
            return false;
        }
        union {
            const void *from;
            void *to;
        } bytes = {.from = floats}; /* the bytes are only read, which iovec can't express */
        range_put(exchange->ranges, frame.ranges, range);
        exchange->bulk[frame.ranges++] = (struct iovec){bytes.to, size};
        frame.bytes += size;
    }
    return send_frame(exchange, part, &push, &frame, true, error);
}

/* The push must be sent again, and at once, because the others may be waiting for it. */
static void lose_answer(struct shard_part *part, const char *why)
{
    part->sent = false;
    link_lost(&part->link, why);
}

/* Checks once for answers still due. *part: one with something to read; NULL: none, or one was lost (*lost). */
static void look_for_answer(struct push_pull *exchange, struct shard_part **found, bool *lost)
{
    *found = NULL;
    *lost = false;
    for (int i = 0; i < exchange->count && !*found && !*lost; i++) {
        struct shard_part *part = &exchange->parts[i];
        struct error error;
        bool ready = false;
        if (!part->pending || !part->sent) {
            continue;
        }
        if (!connection_wait(part->link.channel.connection, 0, &ready, &error)) {
            lose_answer(part, error.text);
            *lost = true;
        } else if (ready) {
            *found = part;
        }
    }
}

/* Waits a limited time for anything on a link with an answer due; false: nothing came. */
static bool wait_for_any(struct push_pull *exchange)
{
    for (int i = 0; i < exchange->count; i++) {
        const struct shard_part *part = &exchange->parts[i];
        int fd = part->pending && part->sent ? connection_fd(part->link.channel.connection) : -1;
        exchange->polled[i] = (struct pollfd){.fd = fd, .events = POLLIN};
    }
    return poll(exchange->polled, (nfds_t)exchange->count, (int)(SLICE_S * 1e3)) != 0;
}

static void tell_awaited(struct push_pull *exchange)
{
    double now_s = clock_monotonic_s();
    if (now_s - exchange->pushed_s < LINK_LOGGED_EVERY_S || now_s - exchange->logged_s < LINK_LOGGED_EVERY_S) {
        return;
    }
    exchange->logged_s = now_s;
    for (int i = 0; i < exchange->count; i++) {
        const struct shard_part *part = &exchange->parts[i];
        if (part->pending && part->sent) {
            log_info("waiting for %s to answer push %llu, %.0f s%s%s", part->link.name,
                     (unsigned long long)part->sequence, now_s - exchange->pushed_s,
                     exchange->awaited[0] != '\0' ? ": it is " : "", exchange->awaited);
            return;
        }
    }
}

/*
 * A ps that delays an answer sends a ping now and then, and bytes in flight to it advance: if neither is seen for the
 * link's idle timeout, the connection is dead. Closes all such links at once. True if there were any.
 */
static bool give_up_silent(struct push_pull *exchange)
{
    double now_s = clock_monotonic_s();
    bool any = false;
    for (int i = 0; i < exchange->count; i++) {
        struct shard_part *part = &exchange->parts[i];
        if (!part->pending || !part->sent) {
            continue;
        }
        size_t unsent = connection_unsent(part->link.channel.connection);
        if (unsent != part->unsent) {
            part->unsent = unsent;
            part->moved_s = now_s;
        }
        if (now_s - part->moved_s >= part->link.idle_timeout_s) {
            struct error error;
            error_set(&error, "%s: no sign of life for %.0f s, and a push is not answered", part->link.name,
                      now_s - part->moved_s);
            part->sent = false;
            link_timed_out(&part->link, error.text);
            any = true;
        }
    }
    return any;
}

/*
 * Waits for the first byte of an answer, which may take as long as the slower workers do. *part: whose; NULL: something
 * must be sent again first.
 */
static enum exchange_result await_answer(struct push_pull *exchange, struct shard_part **part, struct error *error)
{
    PROFILE("wait for an answer");
    double looked_s = clock_monotonic_s();
    for (;;) {
        bool lost;
        look_for_answer(exchange, part, &lost);
        if (*part || lost) {
            return EXCHANGE_OK;
        }
        if (wait_for_any(exchange) && clock_monotonic_s() - looked_s < SLICE_S) {
            continue;
        }
        looked_s = clock_monotonic_s();
        if (push_pull_must_stop(exchange)) {
            return EXCHANGE_STOPPED;
        }
        if (push_pull_must_rejoin(exchange, error)) {
            return EXCHANGE_REJOIN;
        }
        if (give_up_silent(exchange)) {
            return EXCHANGE_OK;
        }
        tell_awaited(exchange);
    }
}

static void note_answer(struct push_pull *exchange, struct shard_part *part, const struct message_pushed *pushed,
                        struct push_answer *answer)
{
    part->version = pushed->version;
    part->global_step = pushed->global_step;
    part->over = pushed->outcome == PUSH_NOT_WANTED;
    answer->not_finite = answer->not_finite || pushed->outcome == PUSH_NOT_FINITE;
    answer->stale = answer->stale || pushed->outcome == PUSH_STALE;
    answer->staleness = pushed->staleness > answer->staleness ? pushed->staleness : answer->staleness;
    push_pull_note_step(exchange, pushed->global_step);
    push_pull_note_token(exchange, part, pushed->token);
}

/* *code: of an error answer. True with part->pending: it was only a keepalive. */
static bool receive_answer(struct push_pull *exchange, struct shard_part *part, struct push_answer *answer,
                           uint16_t *code, struct error *error)
{
    PROFILE_PEER(SPAN_RECEIVE_ANSWER, PROFILE_PS + (int)(part - exchange->parts), (int64_t)part->sequence);
    struct channel *channel = &part->link.channel;
    for (;;) {
        bool pinged;
        if (!link_receive_any(&part->link, &pinged, error)) {
            return false;
        }
        if (pinged) {
            part->moved_s = clock_monotonic_s();
            return true;
        }
        if (!channel_check_answer(channel, MESSAGE_push, part->request, MESSAGE_pushed, code, error)) {
            return false;
        }
        struct message_pushed pushed = channel->message.pushed;
        if (!push_pull_land(exchange, part, STORE_PARAMETERS, (enum dtype)pushed.dtype, &pushed.ranges, error)) {
            return false;
        }
        if (channel->frame.flags & FRAME_LAST) {
            note_answer(exchange, part, &pushed, answer);
            part->pending = false;
            return true;
        }
    }
}

static bool is_pending(const struct push_pull *exchange)
{
    bool pending = false;
    for (int i = 0; i < exchange->count; i++) {
        pending = pending || exchange->parts[i].pending;
    }
    return pending;
}

/* Sends to those that don't have it yet; a link that breaks is tried again. */
static enum exchange_result send_pushes(struct push_pull *exchange, const struct outbox *outbox,
                                        const struct push_note *note, struct error *error)
{
    for (int i = 0; i < exchange->count; i++) {
        struct shard_part *part = &exchange->parts[i];
        while (part->pending && !part->sent) {
            enum exchange_result end = push_pull_open_link(exchange, part, error);
            if (end != EXCHANGE_OK) {
                return end;
            }
            part->sent = send_push(exchange, part, outbox, note, error);
            part->moved_s = clock_monotonic_s();
            if (!part->sent) {
                link_lost(&part->link, error->text);
            }
        }
    }
    return EXCHANGE_OK;
}

/* Reads one answer, whichever comes first. */
static enum exchange_result take_answer(struct push_pull *exchange, struct push_answer *answer, struct error *error)
{
    struct shard_part *part;
    uint16_t code = 0;
    enum exchange_result end = await_answer(exchange, &part, error);
    if (end != EXCHANGE_OK || !part) {
        return end;
    }
    if (receive_answer(exchange, part, answer, &code, error)) {
        link_count(&part->link);
    } else if (code == ERROR_TOO_LATE) {
        part->sent = false; /* slower workers are still missing: send the same push again */
        snprintf(exchange->awaited, sizeof exchange->awaited, "%.255s", part->link.channel.message.error.message);
    } else if (code != 0) {
        return push_pull_by_code(code);
    } else {
        lose_answer(part, error->text);
    }
    return EXCHANGE_OK;
}

void push_pull_pack(const struct push_pull *exchange, struct outbox *outbox)
{
    for (int i = 0; i < exchange->count; i++) {
        outbox_pack(outbox, exchange->parts[i].spans, exchange->parts[i].span_count);
    }
    outbox_packed(outbox);
}

enum exchange_result push_pull_exchange(struct push_pull *exchange, const struct outbox *outbox,
                                        const struct push_note *note, struct push_answer *answer, struct error *error)
{
    enum exchange_result end = EXCHANGE_OK;
    *answer = (struct push_answer){.over = true};
    exchange->pushed_s = clock_monotonic_s();
    exchange->awaited[0] = '\0';
    for (int i = 0; i < exchange->count; i++) {
        struct shard_part *part = &exchange->parts[i];
        part->pending = part->span_count > 0;
        part->sent = false;
        part->sequence += part->pending;
    }
    while (end == EXCHANGE_OK && is_pending(exchange)) {
        end = send_pushes(exchange, outbox, note, error);
        end = end == EXCHANGE_OK ? take_answer(exchange, answer, error) : end;
    }
    if (end != EXCHANGE_OK) {
        /* Answers may still arrive on these links; a fresh connection won't get them. */
        for (int i = 0; i < exchange->count; i++) {
            if (exchange->parts[i].pending) {
                link_close(&exchange->parts[i].link);
            }
        }
        return end;
    }
    for (int i = 0; i < exchange->count; i++) {
        answer->over = answer->over && (exchange->parts[i].span_count == 0 || exchange->parts[i].over);
    }
    end = answer->over ? EXCHANGE_OK : push_pull_align(exchange, error);
    answer->global_step = exchange->global_step;
    return end;
}
