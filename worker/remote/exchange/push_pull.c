/*
 * Links to all shards, and the way of their answers into the engine; pulls; and pushes, which are sent to all shards
 * first.
 */
#include "worker/remote/exchange/push_pull.h"

#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/process/signals.h"
#include "base/profile.h"
#include "base/simulation.h"
#include "net/message.h"
#include "ps/store/codec.h"

/* --- Links --- */

enum { PUSH_FRAME_RANGES = SMALLER(4096, 2) /* per frame of a push */ };
enum { LANDING_BYTES = 64 * 1024 /* small enough for the innermost caches */ };
_Static_assert((int)LANDING_BYTES >= (int)SENT_FRAME_BYTES, "a frame of packed answers lands as a whole");

static const double CHIEF_DELAY_S = 0.1; /* the longest delay between two attempts */

bool push_pull_create(struct push_pull *exchange, const struct push_pull_options *options, struct error *error)
{
    const struct config_cluster *cluster = &options->config->cluster;
    *exchange = (struct push_pull){.config = options->config,
                                   .model = options->model,
                                   .engine = options->engine,
                                   .given_up = options->given_up,
                                   .needs_rejoin = options->needs_rejoin,
                                   .writes_model = options->writes_model,
                                   .context = options->context,
                                   .count = cluster->ps_hosts.count};
    static const char what[] = "connections to the parameter servers";
    const size_t floats = options->model->float_count;
    exchange->parts = must_zero((size_t)exchange->count, sizeof *exchange->parts, what);
    exchange->ranges = must_alloc(PUSH_FRAME_RANGES * RANGE_BYTES, what);
    exchange->bulk = must_zero(PUSH_FRAME_RANGES, sizeof *exchange->bulk, what);
    exchange->landing = must_alloc(LANDING_BYTES, what);
    exchange->widened = must_alloc(LANDING_BYTES / sizeof(uint16_t) * sizeof(float), what);
    const bool keeps_sent = sent_model_is_kept(cluster), halves = !keeps_sent && cluster->wire_dtype != WIRE_FLOAT32;
    exchange->known = halves ? must_zero(floats, sizeof *exchange->known, what) : NULL;
    exchange->sent_model = keeps_sent ? must_zero(floats, sizeof *exchange->sent_model, "the sent model") : NULL;
    exchange->sent_dtype = sent_model_gradient_dtype(cluster);
    exchange->polled = must_zero((size_t)exchange->count, sizeof *exchange->polled, what);
    for (int i = 0; i < exchange->count; i++) {
        struct shard_part *part = &exchange->parts[i];
        part->span_count = placement_spans(options->model, cluster->placement, exchange->count, i, part->spans);
        if (!shard_link_create(&part->link, options->config, i, options->identity, options->traffic, error)) {
            push_pull_destroy(exchange);
            return false;
        }
        part->link.quiet = options->quiet;
        part->link.options.local = cluster->local;
        if (cluster->task_index > 0) {
            part->link.options.return_within_s = pace_return_s(cluster);
        } else { /* only it can write the model to a restarted ps, and all others wait for that */
            part->link.options.longest_delay_s = fmin(part->link.options.longest_delay_s, CHIEF_DELAY_S);
        }
    }
    return true;
}

void push_pull_destroy(struct push_pull *exchange)
{
    for (int i = 0; exchange->parts && i < exchange->count; i++) {
        link_destroy(&exchange->parts[i].link);
    }
    free(exchange->parts);
    free(exchange->polled);
    free(exchange->ranges);
    free(exchange->bulk);
    free(exchange->landing);
    free(exchange->widened);
    free(exchange->known);
    free(exchange->sent_model);
    memset(exchange, 0, sizeof *exchange);
}

bool push_pull_must_stop(const struct push_pull *exchange)
{
    return signals_pending() != 0 || (exchange->given_up && exchange->given_up(exchange->context));
}

/* Is the model lost that this worker trains on, so that waiting is pointless? The error says how. */
static bool push_pull_must_rejoin(const struct push_pull *exchange, struct error *error)
{
    char why[256];
    return exchange->needs_rejoin &&
           exchange->needs_rejoin(exchange->context, exchange->generation, exchange->joined_s, why) &&
           !error_set(error, "%s", why);
}

/* Waits until the link is open. EXCHANGE_REJOIN: the ps is not the process that our parameters are from. */
static enum exchange_result push_pull_open_link(struct push_pull *exchange, struct shard_part *part,
                                                struct error *error)
{
    switch (link_open(&part->link, exchange->given_up, exchange->context, error)) {
    case LINK_OPEN:
        if (part->incarnation != 0 && part->link.incarnation != part->incarnation) {
            error_set(error, "%s is a new process now, without our parameters", part->link.name);
            return EXCHANGE_REJOIN;
        }
        return EXCHANGE_OK;
    case LINK_REFUSED:
        return EXCHANGE_FAILED;
    case LINK_LATER:
        break;
    }
    return EXCHANGE_STOPPED;
}

enum exchange_result shard_call(struct push_pull *exchange, struct shard_part *part, shard_request *request,
                                void *context, uint16_t *code, struct error *error)
{
    for (;;) {
        *code = 0;
        const enum exchange_result end = push_pull_open_link(exchange, part, error);
        if (end != EXCHANGE_OK) {
            return end;
        }
        part->link.channel.generation = exchange->generation;
        if (request(part, context, code, error)) {
            return EXCHANGE_OK;
        }
        if (*code != 0) {
            return EXCHANGE_FAILED;
        }
        link_lost(&part->link, error->text);
    }
}

enum exchange_result push_pull_by_code(uint16_t code)
{
    switch (code) {
    case ERROR_NOT_READY:
    case ERROR_OLD_GENERATION:
    case ERROR_JOB_OVER: /* the heartbeats report this too, with how it ended */
        return EXCHANGE_REJOIN;
    default:
        return EXCHANGE_FAILED;
    }
}

/* Some shard is at this step. */
static void push_pull_note_step(struct push_pull *exchange, int64_t step)
{
    exchange->global_step = step > exchange->global_step ? step : exchange->global_step;
}

/* --- Into the engine --- */

/* Where the engine's parameters lie; NULL: they must be passed to a function. */
static float *place(struct push_pull *exchange, size_t first)
{
    float *parameters = exchange->mirror ? exchange->mirror : engine_parameters_in_place(exchange->engine);
    return parameters ? parameters + first : NULL;
}

/* Stores `count` parameters at `first`, as received. */
static bool put(struct push_pull *exchange, enum dtype dtype, size_t first, size_t count, const void *received,
                struct error *error)
{
    float *there = place(exchange, first);
    if (dtype == DTYPE_BFLOAT16 && there) {
        bfloat16_to_floats(there, received, count);
        return true;
    }
    const float *values = received;
    if (there) {
        memcpy(there, values, count * sizeof *values);
        return true;
    }
    if (dtype == DTYPE_BFLOAT16) {
        bfloat16_to_floats(exchange->widened, received, count);
        values = exchange->widened;
    }
    return exchange->engine->table->write(exchange->engine, STORE_PARAMETERS, first, count, values, error);
}

/* Each ps may only change what it holds. */
static bool check_range(const struct shard_part *part, struct range range, struct error *error)
{
    for (int i = 0; i < part->span_count; i++) {
        const struct span *span = &part->spans[i];
        if (range.first >= span->first && range.first - span->first < span->count &&
            range.count <= span->count - (range.first - span->first)) {
            return true;
        }
    }
    return error_set(error, "%s: floats %llu to %llu are not all its own", part->link.name,
                     (unsigned long long)range.first, (unsigned long long)range.first + range.count - 1);
}

/* The dtype in which a ps sends parameters. */
static enum dtype push_pull_dtype(const struct push_pull *exchange)
{
    return exchange->sent_model ? exchange->sent_dtype : exchange->known ? DTYPE_DIFFERENCES : DTYPE_FLOAT32;
}

/* Reads the whole bulk of a small frame. */
static bool land_bulk(struct push_pull *exchange, struct shard_part *part, size_t *size, struct error *error)
{
    struct channel *channel = &part->link.channel;
    *size = channel->bulk_left;
    if (*size > LANDING_BYTES) {
        return error_set(error, "%s: %zu bytes of packed parameters, more than there can be", part->link.name, *size);
    }
    return channel_read_bulk(channel, exchange->landing, *size, clock_monotonic_s() + LINK_ANSWER_S, error);
}

/*
 * Reads a frame of packed parameters: how they differ from those sent before, as bfloat16 or as the sent model. Until
 * its last frame the sent model has no version.
 */
static bool land_packed(struct push_pull *exchange, struct shard_part *part, enum dtype dtype,
                        const struct ranges *ranges, struct error *error)
{
    const bool halves = dtype == DTYPE_DIFFERENCES;
    const uint8_t *bytes = exchange->landing;
    const char *name = part->link.name;
    size_t left;
    if (halves ? !exchange->known : !exchange->sent_model || dtype != exchange->sent_dtype) {
        return error_set(error, "%s: sent parameters packed in a way that was not requested", name);
    }
    part->has_sent_model = !halves;
    part->version = halves ? part->version : 0;
    if (!land_bulk(exchange, part, &left, error)) {
        return false;
    }
    for (uint32_t i = 0; i < ranges->count; i++) {
        const struct range range = range_get(ranges, i);
        const size_t first = (size_t)range.first;
        if (!check_range(part, range, error)) {
            return false;
        }
        const size_t took = halves ? bfloat16_apply_delta(exchange->known + first, bytes, left, range.count)
                                   : sent_model_apply(exchange->sent_model + first, bytes, left, range.count, dtype);
        const void *values = halves ? (const void *)(exchange->known + first) : exchange->sent_model + first;
        if (took == 0) {
            return error_set(error, "%s: malformed packed parameters at float %zu", name, first);
        }
        bytes += took;
        left -= took;
        if (!put(exchange, halves ? DTYPE_BFLOAT16 : DTYPE_FLOAT32, first, range.count, values, error)) {
            return false;
        }
    }
    return left == 0 || error_set(error, "%s: %zu bytes more than packed parameters take", name, left);
}

/* Copies the sent model into the engine, as far as this ps holds it. */
static bool push_pull_load_sent_model(struct push_pull *exchange, const struct shard_part *part, struct error *error)
{
    for (int i = 0; i < part->span_count; i++) {
        const struct span *span = &part->spans[i];
        const void *sent = exchange->sent_model + span->first;
        if (!put(exchange, DTYPE_FLOAT32, span->first, span->count, sent, error)) {
            return false;
        }
    }
    return true;
}

/*
 * Reads plain values, float32 into the sent model if there is one, and all into the engine: straight to where its
 * parameters lie, or by way of the buffer.
 */
static bool land_plain(struct push_pull *exchange, struct shard_part *part, enum dtype dtype,
                       const struct ranges *ranges, struct error *error)
{
    struct channel *channel = &part->link.channel;
    const double deadline_s = clock_monotonic_s() + LINK_ANSWER_S;
    const bool is_sent = dtype == DTYPE_FLOAT32 && exchange->sent_model;
    size_t size = dtype_size(dtype), at = 0, there = 0;
    if (is_sent) {
        part->version = 0;
        part->has_sent_model = true;
    }
    for (uint32_t i = 0; i < ranges->count; i++) {
        struct range range = range_get(ranges, i);
        size_t first = (size_t)range.first, count = range.count;
        if (!check_range(part, range, error)) {
            return false;
        }
        float *straight = is_sent                  ? exchange->sent_model + first
                          : dtype == DTYPE_FLOAT32 ? place(exchange, first)
                                                   : NULL;
        if (straight) {
            if (!channel_read_bulk(channel, straight, count * size, deadline_s, error) ||
                (is_sent && !put(exchange, DTYPE_FLOAT32, first, count, straight, error))) {
                return false;
            }
            continue;
        }
        while (count > 0) {
            if (at == there) {
                at = 0;
                there = channel->bulk_left < LANDING_BYTES ? channel->bulk_left : LANDING_BYTES;
                if (!channel_read_bulk(channel, exchange->landing, there, deadline_s, error)) {
                    return false;
                }
            }
            size_t now = (there - at) / size < count ? (there - at) / size : count;
            if (!put(exchange, dtype, first, now, exchange->landing + at, error)) {
                return false;
            }
            at += now * size;
            first += now;
            count -= now;
        }
    }
    return true;
}

/* Reads the rest of this ps's frame, `ranges` of `dtype`, into the engine's parameters. The ranges must be its own. */
static bool land(struct push_pull *exchange, struct shard_part *part, enum dtype dtype, const struct ranges *ranges,
                 struct error *error)
{
    return dtype == DTYPE_DIFFERENCES || dtype_is_packed(dtype) ? land_packed(exchange, part, dtype, ranges, error)
                                                                : land_plain(exchange, part, dtype, ranges, error);
}

/* --- Joining, and pulls --- */

enum {
    STEP_WAIT_MS = 1000, /* for a step that others make */
    MODEL_WAIT_MS = 500, /* how often to check for a signal */
};

static const double AGAIN_S = 0.25;     /* before asking again shards that don't fit together */
static const double LOOK_S = 1;         /* how often to check for a signal */
static const double MODEL_AGAIN_S = 10; /* the longest interval at which very many workers ask again for a model */

static void log_model_state(struct push_pull *exchange, const struct shard_part *part, const char *message)
{
    double now_s = clock_monotonic_s();
    if (!part->link.quiet && message[0] != '\0' && now_s - exchange->logged_s >= LINK_LOGGED_EVERY_S) {
        exchange->logged_s = now_s;
        log_info("%s: %s", part->link.name, message);
    }
}

/* The ps and this worker must agree on the layout of floats. */
static bool check_model(const struct push_pull *exchange, const struct shard_part *part,
                        const struct message_model *model, struct error *error)
{
    bool same = model->float_count == exchange->model->float_count && model->ranges.count == (uint32_t)part->span_count;
    for (int i = 0; same && i < part->span_count; i++) {
        struct range range = range_get(&model->ranges, (uint32_t)i);
        same = range.first == part->spans[i].first && range.count == part->spans[i].count;
    }
    return same ||
           error_set(error, "%s holds other parts of the model than it should: is its program the same version%s?",
                     part->link.name,
                     exchange->config->model.hidden_count == CONFIG_AUTO ? "" : ", and are worker 0's data the same");
}

/*
 * The chief, and each of a few workers, asks a ps to answer when the model is there, which takes a thread on the ps.
 * Very many workers poll: the interval; 0: they are few.
 */
static double model_pause_s(const struct push_pull *exchange)
{
    const struct config_cluster *cluster = &exchange->config->cluster;
    const double pace_s = config_pace_s(cluster, MODEL_WAIT_MS / 1e3);
    return pace_s > 1 && cluster->task_index > 0 ? fmin(pace_s, MODEL_AGAIN_S) : 0;
}

/* One request; *ready: the ps has a trainable model, of *generation. */
static enum exchange_result ask_model(struct push_pull *exchange, struct shard_part *part, bool *ready,
                                      uint32_t *generation, struct error *error)
{
    uint16_t code;
    struct channel *channel = &part->link.channel;
    struct message_get_model request = {.wait_ms = model_pause_s(exchange) > 0 ? 0 : MODEL_WAIT_MS};
    *ready = false;
    if (!channel_call(channel, MESSAGE_get_model, &request, MESSAGE_model,
                      clock_monotonic_s() + MODEL_WAIT_MS / 1e3 + LINK_ANSWER_S, &code, error)) {
        if (code == 0) {
            link_lost(&part->link, error->text);
            return EXCHANGE_OK;
        }
        return push_pull_by_code(code);
    }
    const struct message_model *model = &channel->message.model;
    if (!check_model(exchange, part, model, error)) {
        return EXCHANGE_FAILED;
    }
    *ready = model->state == MODEL_READY && model->message[0] == '\0';
    *generation = channel->frame.generation;
    exchange->retries = model->retries;
    if (exchange->writes_model && model->state != MODEL_READY) {
        return EXCHANGE_REJOIN;
    }
    log_model_state(exchange, part, model->message);
    return EXCHANGE_OK;
}

/* Is every shard ready, and all of one generation? */
static enum exchange_result ask_models(struct push_pull *exchange, bool *ready, struct error *error)
{
    uint32_t first = 0;
    *ready = true;
    for (int i = 0; i < exchange->count && *ready; i++) {
        struct shard_part *part = &exchange->parts[i];
        uint32_t generation = 0;
        part->incarnation = 0; /* it may be another process now */
        part->version = 0;
        enum exchange_result end = push_pull_open_link(exchange, part, error);
        end = end == EXCHANGE_OK ? ask_model(exchange, part, ready, &generation, error) : end;
        if (end != EXCHANGE_OK) {
            return end;
        }
        first = i == 0 ? generation : first;
        part->incarnation = part->link.incarnation;
        *ready = *ready && generation == first;
        if (exchange->writes_model && link_is_open(&part->link) && generation != first) {
            return EXCHANGE_REJOIN;
        }
    }
    exchange->generation = first;
    return EXCHANGE_OK;
}

struct shard_part *push_pull_decider(const struct push_pull *exchange)
{
    struct shard_part *part = exchange->parts;
    while (part->span_count == 0) { /* some shard has parameters */
        part++;
    }
    return part;
}

/*
 * A ps answered with this token: the one of the ps that decides on steps, the first with parameters, says whether we
 * are selected.
 */
static void push_pull_note_token(struct push_pull *exchange, const struct shard_part *part, int64_t token)
{
    if (part == push_pull_decider(exchange)) {
        exchange->token = token;
    }
}

/* Reads all frames of one answer to a pull. */
static bool receive_values(struct push_pull *exchange, struct shard_part *part, uint64_t request, uint16_t *code,
                           struct error *error)
{
    struct channel *channel = &part->link.channel;
    do {
        if (!link_receive_answer(&part->link, MESSAGE_pull, request, MESSAGE_values, code, error)) {
            return false;
        }
        const struct message_values *values = &channel->message.values;
        if (!land(exchange, part, (enum dtype)values->dtype, &values->ranges, error)) {
            return false;
        }
    } while (!(channel->frame.flags & FRAME_LAST));
    part->version = channel->message.values.version;
    part->global_step = channel->message.values.global_step;
    push_pull_note_token(exchange, part, channel->message.values.token);
    return true;
}

struct pull_request {
    struct push_pull *exchange;
    uint64_t since;
    int64_t after_step;
};

static bool request_values(struct shard_part *part, void *context, uint16_t *code, struct error *error)
{
    const struct pull_request *pull = context;
    struct channel *channel = &part->link.channel;
    const struct message_pull message = {.dtype = (uint8_t)push_pull_dtype(pull->exchange),
                                         .since_version = part->version == 0 ? 0 : pull->since,
                                         .after_step = pull->after_step,
                                         .wait_ms = pull->after_step >= 0 ? STEP_WAIT_MS : 0};
    const uint64_t request = ++channel->next_request;
    return channel_send(channel, MESSAGE_pull, request, &message, clock_monotonic_s() + LINK_ANSWER_S, error) &&
           receive_values(pull->exchange, part, request, code, error);
}

/*
 * after_step: waits a limited time for a later step; -1: takes the current one. since: only changes after that version.
 */
static enum exchange_result pull_part(struct push_pull *exchange, struct shard_part *part, uint64_t since,
                                      int64_t after_step, struct error *error)
{
    PROFILE(after_step >= 0 ? "wait for a step" : "pull");
    struct pull_request pull = {exchange, since, after_step};
    uint16_t code;
    const enum exchange_result end = shard_call(exchange, part, request_values, &pull, &code, error);
    return code != 0 ? push_pull_by_code(code) : end;
}

/* The shard that is furthest behind; NULL: all with parameters are at the same step. */
static struct shard_part *laggard(struct push_pull *exchange)
{
    struct shard_part *least = NULL;
    for (int i = 0; i < exchange->count; i++) {
        struct shard_part *part = &exchange->parts[i];
        if (part->span_count > 0 && part->global_step < exchange->global_step &&
            (!least || part->global_step < least->global_step)) {
            least = part;
        }
    }
    return least;
}

/*
 * Synchronous: when others are faster, shards answer at different steps; those behind are pulled until all are at one
 * step.
 */
static enum exchange_result push_pull_align(struct push_pull *exchange, struct error *error)
{
    struct shard_part *part;
    enum exchange_result end = EXCHANGE_OK;
    while (exchange->config->cluster.issync && end == EXCHANGE_OK && (part = laggard(exchange))) {
        end = push_pull_must_stop(exchange) ? EXCHANGE_STOPPED
              : push_pull_must_rejoin(exchange, error)
                  ? EXCHANGE_REJOIN /* no ps decides that step any more */
                  : pull_part(exchange, part, part->version, exchange->global_step - 1, error);
        push_pull_note_step(exchange, part->global_step);
    }
    return end;
}

enum exchange_result push_pull_await_step(struct push_pull *exchange, int64_t step, struct error *error)
{
    struct shard_part *part = push_pull_decider(exchange);
    enum exchange_result end = pull_part(exchange, part, part->version, step, error);
    push_pull_note_step(exchange, part->global_step);
    return end == EXCHANGE_OK ? push_pull_align(exchange, error) : end;
}

/* --- Rounds with participation below 1 --- */

bool push_pull_is_asked(const struct push_pull *exchange)
{
    return !config_asks_some(&exchange->config->train) || exchange->token == exchange->global_step;
}

/* The answer may take long: don't wait for it when stopped. */
static bool await_round_answer(struct push_pull *exchange, struct shard_part *part, double wait_s, struct error *error)
{
    struct connection *connection = part->link.channel.connection;
    const double began_s = clock_monotonic_s(), due_s = began_s + wait_s + part->link.idle_timeout_s;
    bool there = false;
    while (!there) {
        if (!connection_wait(connection, fmin(due_s, clock_monotonic_s() + LOOK_S), &there, error)) {
            return false;
        }
        if (!there && (clock_monotonic_s() >= due_s || push_pull_must_stop(exchange))) {
            return error_set(error, "no answer from %s within %.3g s", part->link.name, due_s - began_s);
        }
    }
    return true;
}

/* Reads a single float of the model and discards it: a worker that is not selected needs no more. */
static bool ask_for_round(struct push_pull *exchange, struct shard_part *part, int64_t after_step, uint16_t *code,
                          struct error *error)
{
    const double wait_s = pace_round_s(&exchange->config->cluster);
    struct channel *channel = &part->link.channel;
    uint8_t bytes[RANGE_BYTES];
    float unused;
    const struct message_pull pull = {
        .after_step = after_step, .wait_ms = (uint32_t)(wait_s * 1e3), .ranges = {.bytes = bytes, .count = 1}};
    const uint64_t request = ++channel->next_request;
    range_put(bytes, 0, (struct range){part->spans[0].first, 1});
    channel->generation = exchange->generation;
    if (!channel_send(channel, MESSAGE_pull, request, &pull, clock_monotonic_s() + LINK_ANSWER_S, error)) {
        return false;
    }
    do { /* keepalives may come before it */
        if (!await_round_answer(exchange, part, wait_s, error) || !link_receive(&part->link, error)) {
            return false;
        }
    } while (channel_is_late(channel, request));
    if (!channel_check_answer(channel, MESSAGE_pull, request, MESSAGE_values, code, error)) {
        return false;
    }
    const struct message_values values = channel->message.values;
    if (channel->bulk_left != sizeof unused) {
        return error_set(error, "%s: answered pull with another range", part->link.name);
    }
    if (!channel_read_bulk(channel, &unused, sizeof unused, clock_monotonic_s() + LINK_ANSWER_S, error)) {
        return false;
    }
    push_pull_note_step(exchange, values.global_step);
    exchange->token = values.token;
    return true;
}

enum exchange_result push_pull_await_round(struct push_pull *exchange, int64_t after_step, struct error *error)
{
    PROFILE("wait to be asked");
    struct shard_part *part = push_pull_decider(exchange);
    uint16_t code = 0;
    if (push_pull_must_rejoin(exchange, error)) { /* another ps has lost the model: selected workers wait for it */
        return EXCHANGE_REJOIN;
    }
    enum exchange_result end = push_pull_open_link(exchange, part, error);
    if (end != EXCHANGE_OK) {
        return end;
    }
    if (!ask_for_round(exchange, part, after_step, &code, error)) {
        if (code != 0) {
            return push_pull_by_code(code);
        }
        const bool stops = push_pull_must_stop(exchange);
        link_lost(&part->link, stops ? NULL : error->text); /* its answer may be in flight */
        return stops ? EXCHANGE_STOPPED : EXCHANGE_OK;
    }
    return push_pull_is_asked(exchange) ? push_pull_align(exchange, error) : EXCHANGE_OK;
}

static enum exchange_result refresh_part(struct push_pull *exchange, struct shard_part *part, struct error *error)
{
    const uint64_t since = part->has_sent_model ? part->version : 0;
    if (part->span_count == 0) {
        return EXCHANGE_OK;
    }
    if (since > 0 && !push_pull_load_sent_model(exchange, part, error)) {
        return EXCHANGE_FAILED;
    }
    return pull_part(exchange, part, since, -1, error);
}

enum exchange_result push_pull_refresh(struct push_pull *exchange, struct error *error)
{
    for (int i = 0; i < exchange->count; i++) {
        struct shard_part *part = &exchange->parts[i];
        enum exchange_result end = refresh_part(exchange, part, error);
        if (end != EXCHANGE_OK) {
            return end;
        }
        push_pull_note_step(exchange, part->global_step);
    }
    return push_pull_align(exchange, error);
}

enum exchange_result push_pull_join(struct push_pull *exchange, struct error *error)
{
    PROFILE("join");
    for (;;) {
        bool ready;
        enum exchange_result end = ask_models(exchange, &ready, error);
        if (end == EXCHANGE_OK && ready) {
            exchange->global_step = 0;
            exchange->joined_s = clock_monotonic_s();
            end = push_pull_refresh(exchange, error);
            if (end == EXCHANGE_OK) {
                return end;
            }
        }
        if (end == EXCHANGE_STOPPED || end == EXCHANGE_FAILED) {
            return end;
        }
        if (push_pull_must_stop(exchange)) {
            return EXCHANGE_STOPPED;
        }
        const double pause_s = end == EXCHANGE_REJOIN ? AGAIN_S : ready ? 0 : model_pause_s(exchange);
        const double until_s = clock_monotonic_s() + pause_s;
        for (double now_s; (now_s = clock_monotonic_s()) < until_s && !push_pull_must_stop(exchange);) {
            clock_pause(fmin(until_s, now_s + AGAIN_S));
        }
        if (end == EXCHANGE_REJOIN && exchange->writes_model) {
            return end;
        }
    }
}

/* --- Pushes --- */

/* Pushes: sent to all shards first, then their answers are read in whatever order they arrive. */

enum { FRAME_BYTES = 4 << 20 /* of a frame's bulk, approximately */ };

static const double SLICE_S = 0.25; /* how often to check for a signal and whether the caller gives up */

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

static void log_awaited(struct push_pull *exchange)
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
static enum exchange_result await_push_answer(struct push_pull *exchange, struct shard_part **part, struct error *error)
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
        log_awaited(exchange);
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
        if (!land(exchange, part, (enum dtype)pushed.dtype, &pushed.ranges, error)) {
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
    enum exchange_result end = await_push_answer(exchange, &part, error);
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
