/* Joining, and pulls. */
#include <math.h>

#include "base/clock.h"
#include "base/config/pace.h"
#include "base/log.h"
#include "base/profile.h"
#include "worker/remote/exchange/internal.h"

enum {
    STEP_WAIT_MS = 1000, /* for a step that others make */
    MODEL_WAIT_MS = 500, /* how often to check for a signal */
};

static const double AGAIN_S = 0.25;     /* before asking again shards that don't fit together */
static const double LOOK_S = 1;         /* how often to check for a signal */
static const double MODEL_AGAIN_S = 10; /* the longest interval at which very many workers ask again for a model */

static void tell(struct push_pull *exchange, const struct shard_part *part, const char *message)
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
    if (exchange->writes_model && model->state != MODEL_READY) {
        return EXCHANGE_REJOIN;
    }
    tell(exchange, part, model->message);
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
        if (!push_pull_land(exchange, part, STORE_PARAMETERS, (enum dtype)values->dtype, &values->ranges, error)) {
            return false;
        }
    } while (!(channel->frame.flags & FRAME_LAST));
    part->version = channel->message.values.version;
    part->global_step = channel->message.values.global_step;
    push_pull_note_token(exchange, part, channel->message.values.token);
    return true;
}

/*
 * after_step: waits a limited time for a later step; -1: takes the current one. since: only changes after that version.
 */
static enum exchange_result pull_part(struct push_pull *exchange, struct shard_part *part, uint64_t since,
                                      int64_t after_step, struct error *error)
{
    PROFILE(after_step >= 0 ? "wait for a step" : "pull");
    uint16_t code = 0;
    for (;;) {
        enum exchange_result end = push_pull_open_link(exchange, part, error);
        if (end != EXCHANGE_OK) {
            return end;
        }
        struct channel *channel = &part->link.channel;
        struct message_pull pull = {.dtype = (uint8_t)push_pull_dtype(exchange),
                                    .since_version = part->version == 0 ? 0 : since,
                                    .after_step = after_step,
                                    .wait_ms = after_step >= 0 ? STEP_WAIT_MS : 0};
        uint64_t request = ++channel->next_request;
        channel->generation = exchange->generation;
        if (channel_send(channel, MESSAGE_pull, request, &pull, clock_monotonic_s() + LINK_ANSWER_S, error) &&
            receive_values(exchange, part, request, &code, error)) {
            return EXCHANGE_OK;
        }
        if (code != 0) {
            return push_pull_by_code(code);
        }
        link_lost(&part->link, error->text);
    }
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

enum exchange_result push_pull_align(struct push_pull *exchange, struct error *error)
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

void push_pull_note_token(struct push_pull *exchange, const struct shard_part *part, int64_t token)
{
    if (part == push_pull_decider(exchange)) {
        exchange->token = token;
    }
}

bool push_pull_is_asked(const struct push_pull *exchange)
{
    return !config_asks_some(&exchange->config->train) || exchange->token == exchange->global_step;
}

/* The answer may take long: don't wait for it when told to stop. */
static bool await_answer(struct push_pull *exchange, struct shard_part *part, double wait_s, struct error *error)
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
        if (!await_answer(exchange, part, wait_s, error) || !link_receive(&part->link, error)) {
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
