/*
 * The chief's requests to all ps, one after another. Callers retry, so each function distinguishes a broken connection
 * or a changed generation (EXCHANGE_REJOIN) from a final refusal, and requests can be repeated safely.
 */
#include "worker/remote/transfer.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/process/signals.h"

/* Floats per frame, at most: fewer the more often connections break. */
enum { WRITE_FLOATS = 1 << 20, WRITE_FEWEST = 1 << 12 };

static double soon(void)
{
    return clock_monotonic_s() + LINK_ANSWER_S;
}

/* Decides what a failed request means. A broken connection is opened again when it is next needed. */
static enum exchange_result failed(struct push_pull *exchange, struct shard_part *part, uint16_t code,
                                   const struct error *error)
{
    switch (code) {
    case 0:
    case ERROR_BAD_REQUEST:
        exchange->broken = true;
        link_lost(&part->link, error->text);
        return EXCHANGE_REJOIN;
    case ERROR_NOT_ALLOWED:
        return EXCHANGE_FAILED;
    default:
        return EXCHANGE_REJOIN;
    }
}

static enum exchange_result need_link(struct push_pull *exchange, struct shard_part *part, struct error *error)
{
    enum link_try result = link_open(&part->link, exchange->given_up, exchange->context, error);
    part->link.channel.generation = exchange->generation;
    return result == LINK_OPEN ? EXCHANGE_OK : result == LINK_REFUSED ? EXCHANGE_FAILED : EXCHANGE_STOPPED;
}

static bool ask_model(struct shard_part *part, struct shard_status *status, uint16_t *code, struct error *error)
{
    struct channel *channel = &part->link.channel;
    struct message_get_model request = {.wait_ms = 0};
    if (!channel_call(channel, MESSAGE_get_model, &request, MESSAGE_model, soon(), code, error)) {
        return false;
    }
    *status = (struct shard_status){.ready = channel->message.model.state == MODEL_READY,
                                    .generation = channel->frame.generation,
                                    .global_step = channel->message.model.global_step,
                                    .retries = channel->message.model.retries};
    return true;
}

static bool ask_status(struct shard_part *part, struct shard_status *status, uint16_t *code, struct error *error)
{
    struct channel *channel = &part->link.channel;
    struct message_heartbeat beat = {
        .state = STATE_STARTING, .global_step = -1, .loss = NAN, .cpu_percent = NAN, .gpu_percent = NAN};
    if (!ask_model(part, status, code, error) ||
        !channel_call(channel, MESSAGE_heartbeat, &beat, MESSAGE_lease, soon(), code, error)) {
        return false;
    }
    status->over = channel->message.lease.job_state >= JOB_DONE;
    return true;
}

enum exchange_result transfer_status(struct push_pull *exchange, struct shard_status *status, struct error *error)
{
    for (int i = 0; i < exchange->count; i++) {
        struct shard_part *part = &exchange->parts[i];
        uint16_t code;
        enum exchange_result end = need_link(exchange, part, error);
        if (end != EXCHANGE_OK) {
            return end;
        }
        if (!ask_status(part, &status[i], &code, error)) {
            return failed(exchange, part, code, error);
        }
    }
    return EXCHANGE_OK;
}

enum exchange_result transfer_newest_step(struct push_pull *exchange, int64_t *global_step, struct error *error)
{
    *global_step = -1;
    for (int i = 0; i < exchange->count; i++) {
        struct shard_part *part = &exchange->parts[i];
        struct shard_status status;
        uint16_t code;
        enum exchange_result end = need_link(exchange, part, error);
        if (end != EXCHANGE_OK) {
            return end;
        }
        if (!ask_model(part, &status, &code, error)) {
            return failed(exchange, part, code, error);
        }
        *global_step = status.global_step > *global_step ? status.global_step : *global_step;
    }
    return EXCHANGE_OK;
}

/* --- Restoring --- */

/* Writes part of one vector, in one request. */
static bool write_range(struct shard_part *part, enum store_vector vector, struct range range, float *values,
                        uint16_t *code, struct error *error)
{
    uint8_t bytes[RANGE_BYTES];
    range_put(bytes, 0, range);
    struct message_write write = {.vector = (uint8_t)vector, .dtype = DTYPE_FLOAT32, .ranges = {bytes, 1}};
    struct iovec bulk = {values, range.count * sizeof *values};
    struct outgoing frame = {.type = MESSAGE_write, .message = &write, .bulk = &bulk, .bulk_parts = 1};
    return link_call(&part->link, &frame, MESSAGE_done, code, error);
}

/* At first a ps takes the parameters themselves for the sent model, unless it gets another. */
static bool is_worth_writing(const struct shard_part *part, const struct checkpoint_state *state, int vector)
{
    bool same = vector == STORE_SENT;
    for (int i = 0; same && i < part->span_count; i++) {
        const size_t first = part->spans[i].first, bytes = part->spans[i].count * sizeof(float);
        same = memcmp(state->vectors[vector] + first, state->vectors[STORE_PARAMETERS] + first, bytes) == 0;
    }
    return !same;
}

struct plain_request {
    enum message_type type;
    const void *message;
};

static bool make_request(struct shard_part *part, void *context, uint16_t *code, struct error *error)
{
    const struct plain_request *request = context;
    return channel_call(&part->link.channel, request->type, request->message, MESSAGE_done, soon(), code, error);
}

/*
 * A broken connection may have lost only the answer. The ps knows what it has of this restore, and accepts it again
 * from the same process: so the request is repeated, over as many connections as it takes; what was answered is not.
 */
static enum exchange_result repeat_request(struct push_pull *exchange, struct shard_part *part, enum message_type type,
                                           const void *message, struct error *error)
{
    struct plain_request request = {type, message};
    uint16_t code;
    const enum exchange_result end = shard_call(exchange, part, make_request, &request, &code, error);
    return code != 0 ? failed(exchange, part, code, error) : end;
}

/* *most: floats per request; reduced after a connection broke, since it may not last for more. */
static enum exchange_result write_span(struct push_pull *exchange, struct shard_part *part, enum store_vector vector,
                                       struct span span, const struct checkpoint_state *state, size_t *most,
                                       struct error *error)
{
    while (span.count > 0) {
        const size_t now = span.count < *most ? span.count : *most;
        const struct range range = {span.first, (uint32_t)now};
        uint16_t code = 0;
        enum exchange_result end = need_link(exchange, part, error);
        if (end != EXCHANGE_OK) {
            return end;
        }
        if (write_range(part, vector, range, state->vectors[vector] + span.first, &code, error)) {
            span.first += now;
            span.count -= now;
        } else if (code != 0) {
            return failed(exchange, part, code, error);
        } else {
            link_lost(&part->link, error->text);
            *most = now / 2 > WRITE_FEWEST ? now / 2 : WRITE_FEWEST;
        }
    }
    return EXCHANGE_OK;
}

static enum exchange_result restore_part(struct push_pull *exchange, struct shard_part *part,
                                         const struct checkpoint_state *state, const char *source, struct error *error)
{
    const struct message_begin_restore begin = {.source = source};
    size_t most = WRITE_FLOATS;
    enum exchange_result end = repeat_request(exchange, part, MESSAGE_begin_restore, &begin, error);
    for (int v = 0; v < STORE_PS_VECTORS && end == EXCHANGE_OK; v++) {
        const bool writes = state->vectors[v] && is_worth_writing(part, state, v);
        for (int i = 0; writes && i < part->span_count && end == EXCHANGE_OK; i++) {
            end = write_span(exchange, part, (enum store_vector)v, part->spans[i], state, &most, error);
        }
    }
    return end;
}

enum exchange_result transfer_restore(struct push_pull *exchange, uint32_t generation,
                                      const struct checkpoint_state *state, const char *source, struct error *error)
{
    enum exchange_result end = EXCHANGE_OK;
    exchange->generation = generation;
    for (int i = 0; i < exchange->count && end == EXCHANGE_OK; i++) {
        end = restore_part(exchange, &exchange->parts[i], state, source, error);
    }
    return end;
}

enum exchange_result transfer_end_restore(struct push_pull *exchange, const struct transfer_place *place,
                                          struct error *error)
{
    const struct message_end_restore end_restore = {
        .global_step = place->global_step, .epoch_batches = place->epoch_batches, .retries = (uint8_t)place->retries};
    enum exchange_result end = EXCHANGE_OK;
    for (int i = 0; i < exchange->count && end == EXCHANGE_OK; i++) {
        end = repeat_request(exchange, &exchange->parts[i], MESSAGE_end_restore, &end_restore, error);
    }
    return end;
}

/* --- Snapshots --- */

/* Asks one shard for a snapshot, with the answer due by until_s. *code: 0 if it has been or will be taken in time. */
static enum exchange_result order_snapshot(struct push_pull *exchange, struct shard_part *part, uint64_t number,
                                           int64_t at_step, double until_s, uint16_t *code, struct error *error)
{
    enum exchange_result end = need_link(exchange, part, error);
    if (end != EXCHANGE_OK) {
        return end;
    }
    double left_s = fmax(0.0, until_s - clock_monotonic_s());
    struct message_snapshot request = {.snapshot = number, .at_step = at_step, .wait_ms = (uint32_t)(left_s * 1e3)};
    return channel_call(&part->link.channel, MESSAGE_snapshot, &request, MESSAGE_done, soon() + left_s, code, error) ||
                   *code == ERROR_TOO_LATE || *code == ERROR_PASSED
               ? EXCHANGE_OK
               : failed(exchange, part, *code, error);
}

/* Asks every shard, each with the time that is left. */
static enum exchange_result ask_for_snapshot(struct push_pull *exchange, uint64_t number, int64_t at_step,
                                             double until_s, struct snapshot_answer *answer, struct error *error)
{
    *answer = (struct snapshot_answer){.taken = true, .same = true, .global_step = -1};
    for (int i = 0; i < exchange->count; i++) {
        struct shard_part *part = &exchange->parts[i];
        uint16_t code = 0;
        if (part->span_count == 0) {
            continue;
        }
        enum exchange_result end = order_snapshot(exchange, part, number, at_step, until_s, &code, error);
        if (end != EXCHANGE_OK) {
            return end;
        }
        if (code != 0) {
            answer->taken = false;
            continue;
        }
        int64_t step = part->link.channel.message.done.global_step;
        answer->same = answer->same && (answer->global_step < 0 || answer->global_step == step);
        answer->global_step = step > answer->global_step ? step : answer->global_step;
    }
    return EXCHANGE_OK;
}

/* Asks all before waiting for any: each must know of it before its step. */
enum exchange_result transfer_snapshot(struct push_pull *exchange, uint64_t number, int64_t at_step, uint32_t wait_ms,
                                       struct snapshot_answer *answer, struct error *error)
{
    double now_s = clock_monotonic_s();
    enum exchange_result end = ask_for_snapshot(exchange, number, at_step, now_s, answer, error);
    if (end == EXCHANGE_OK && !answer->taken && at_step >= 0 && wait_ms > 0) {
        end = ask_for_snapshot(exchange, number, at_step, now_s + wait_ms / 1e3, answer, error);
    }
    return end;
}

static void release_part(struct shard_part *part, uint64_t number)
{
    const struct message_release release = {.snapshot = number};
    struct error error;
    uint16_t code = 0;
    bool done = false;
    for (int tries = 0; tries < 2 && !done && link_try(&part->link, &error) == LINK_OPEN; tries++) {
        done = channel_call(&part->link.channel, MESSAGE_release, &release, MESSAGE_done, soon(), &code, &error);
        if (!done && code != 0) {
            return;
        }
        if (!done) {
            link_lost(&part->link, error.text);
        }
    }
}

void transfer_release(struct push_pull *exchange, uint64_t number)
{
    for (int i = 0; i < exchange->count; i++) {
        if (exchange->parts[i].span_count > 0) {
            release_part(&exchange->parts[i], number);
        }
    }
}

enum exchange_result transfer_order(struct push_pull *exchange, uint64_t number, int64_t step, uint32_t wait_ms,
                                    enum order_state *state, struct error *error)
{
    const double until_s = clock_monotonic_s() + wait_ms / 1e3;
    *state = ORDER_TAKEN;
    for (int i = 0; i < exchange->count && *state != ORDER_LOST; i++) {
        struct shard_part *part = &exchange->parts[i];
        uint16_t code = 0;
        if (part->span_count == 0) {
            continue;
        }
        enum exchange_result end = order_snapshot(exchange, part, number, step, until_s, &code, error);
        if (end != EXCHANGE_OK) {
            return end;
        }
        *state = code == ERROR_PASSED ? ORDER_LOST : code == ERROR_TOO_LATE ? ORDER_PENDING : *state;
    }
    return EXCHANGE_OK;
}

/* Reads all frames of an answer straight to their destination. */
static bool receive_vector(struct push_pull *exchange, struct shard_part *part, uint64_t request, float *vector,
                           uint16_t *code, struct error *error)
{
    struct channel *channel = &part->link.channel;
    do {
        if (!link_receive_answer(&part->link, MESSAGE_read, request, MESSAGE_values, code, error)) {
            return false;
        }
        const struct message_values *values = &channel->message.values;
        if (values->dtype != DTYPE_FLOAT32) {
            return error_set(error, "%s: answered read with other values than floats", part->link.name);
        }
        for (uint32_t i = 0; i < values->ranges.count; i++) {
            struct range range = range_get(&values->ranges, i);
            if (range.first > exchange->model->float_count ||
                range.count > exchange->model->float_count - range.first) {
                return error_set(error, "%s: floats %llu and on are beyond the model's %zu", part->link.name,
                                 (unsigned long long)range.first, exchange->model->float_count);
            }
            if (!channel_read_bulk(channel, vector + range.first, range.count * sizeof *vector, soon(), error)) {
                return false;
            }
        }
    } while (!(channel->frame.flags & FRAME_LAST));
    return true;
}

static enum exchange_result read_part(struct push_pull *exchange, struct shard_part *part, uint64_t number,
                                      unsigned which, struct checkpoint_state *state, struct error *error)
{
    struct channel *channel = &part->link.channel;
    uint16_t code;
    enum exchange_result end = need_link(exchange, part, error);
    for (int v = 0; v < STORE_PS_VECTORS && end == EXCHANGE_OK; v++) {
        if (!state->vectors[v] || !(which >> v & 1)) {
            continue;
        }
        struct message_read read = {.vector = (uint8_t)v, .snapshot = number};
        uint64_t request = ++channel->next_request;
        code = 0;
        if (!channel_send(channel, MESSAGE_read, request, &read, soon(), error) ||
            !receive_vector(exchange, part, request, state->vectors[v], &code, error)) {
            end = failed(exchange, part, code, error);
        }
    }
    link_count(&part->link);
    return end;
}

enum exchange_result transfer_read(struct push_pull *exchange, uint64_t number, unsigned which,
                                   struct checkpoint_state *state, struct error *error)
{
    enum exchange_result end = EXCHANGE_OK;
    for (int i = 0; i < exchange->count && end == EXCHANGE_OK; i++) {
        if (exchange->parts[i].span_count > 0) {
            end = read_part(exchange, &exchange->parts[i], number, which, state, error);
        }
    }
    /* Only after all have been read: until then any can be read again, whatever breaks. */
    if (end == EXCHANGE_OK) {
        transfer_release(exchange, number);
    }
    return end;
}

/* A broken connection may have lost only the answer; a ps answers a repeated request as it did before. */
static bool send_end(struct shard_part *part, const struct message_end_job *message, double deadline_s,
                     struct error *error)
{
    struct link *link = &part->link;
    do {
        uint16_t code;
        switch (link_try(link, error)) {
        case LINK_OPEN:
            if (channel_call(&link->channel, MESSAGE_end_job, message, MESSAGE_done, soon(), &code, error)) {
                return true;
            }
            if (code != 0) {
                return false;
            }
            link_lost(link, error->text);
            break;
        case LINK_LATER:
            link_await_try(link);
            break;
        case LINK_REFUSED:
            return false;
        }
    } while (clock_monotonic_s() < deadline_s && signals_pending() == 0);
    return false;
}

bool transfer_end_job(struct push_pull *exchange, const struct message_end_job *message, double deadline_s,
                      struct error *error)
{
    bool all = true;
    for (int i = 0; i < exchange->count; i++) {
        all = send_end(&exchange->parts[i], message, deadline_s, error) && all;
    }
    return all;
}
