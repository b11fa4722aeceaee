/* Several ps, which report what the test wants, and a worker that pushes to them and pulls from them. */
#ifndef TESTS_WORKER_REMOTE_EXCHANGE_SEVERAL_PS_H
#define TESTS_WORKER_REMOTE_EXCHANGE_SEVERAL_PS_H

#include "tests/check.h"
#include "worker/remote/exchange/push_pull.h"

#include <math.h>

#include "tests/own_clock.h"
#include "tests/worker/remote/exchange/fake_engine.h"
#include "tests/worker/remote/fake_member.h"
#include "tests/worker/remote/story.h"

enum {
    MOST_SERVERS = 3,
    TYPES = 45,
    NO_ANSWER = -1,
    OTHER_ANSWER = -2,
    OTHER_REQUEST = -3,
    BEYOND = -4,
    SILENCE = -5,
    HALF = -6,
    NONE = -7,
    TORN = -8 /* all but the last byte, and then the end */
};

static _Atomic(double) jumped_s;

double own_clock_s(void)
{
    return system_clock_s() + atomic_load(&jumped_s);
}

static struct hello_identity self;

/* It answers one request at a time, and the test inspects in between. */
static struct server {
    struct fake_member member;
    struct span spans[PLACEMENT_MAX_SPANS]; /* that it holds */
    int span_count;
    int fails[TYPES]; /* by type of request: the next failure, an enum error_code or one of those above */
    int unready;      /* the number of requests before it has a model */
    uint8_t unready_state;
    uint32_t generation, later_generation; /* of the model; the second from the second request on, unless it is 0 */
    const char *message;                   /* what it waits for then */
    int64_t step, token;
    uint64_t version;
    bool advances; /* a pull that waits for a step gets it */
    uint8_t outcome;
    uint32_t staleness;
    int pings;                                 /* sent before the next answer to a push */
    int64_t float_count, first, count, ranges; /* added to its report of its model */
    float gradient[1024];                      /* of the last push */
    float value;                               /* of all its parameters */
    struct message_push push;
    _Atomic(int) pushes, pings_answered;
    uint32_t wait_ms; /* the last time given to wait for a model */
    struct {
        enum dtype dtype; /* of the next answer to a pull, if bytes > 0 */
        size_t bytes;     /* zeros, for its first span */
    } odd;
    bool knows; /* a peer with its version is told that nothing has changed */
} servers[MOST_SERVERS];

static struct bench {
    struct config config;
    struct model model;
    struct identity identity;
    struct traffic traffic;
    struct fake_engine engine;
    struct push_pull exchange;
    struct outbox outbox;
    int count;
    atomic_bool given_up, needs_rejoin;
} bench;

/* --- A ps --- */

static inline bool say_model(struct server *server, struct channel *channel)
{
    const bool is_ready = server->unready == 0;
    uint8_t bytes[(PLACEMENT_MAX_SPANS + 1) * RANGE_BYTES];
    uint64_t end = 0;
    for (int i = 0; i < server->span_count; i++) {
        const struct range range = {server->spans[i].first + (uint64_t)server->first,
                                    (uint32_t)(server->spans[i].count + (uint64_t)server->count)};
        range_put(bytes, (uint32_t)i, range);
        end = range.first + range.count;
    }
    range_put(bytes, (uint32_t)server->span_count, (struct range){end + 1, 1});
    const struct message_model model = {.state = is_ready ? MODEL_READY : server->unready_state,
                                        .float_count = bench.model.float_count + (uint64_t)server->float_count,
                                        .ranges = {bytes, (uint32_t)(server->span_count + server->ranges)},
                                        .vectors = 1,
                                        .global_step = server->step,
                                        .message = is_ready ? "" : (char *)(uintptr_t)server->message};
    server->unready -= !is_ready;
    if (server->later_generation != 0) {
        server->generation = server->later_generation;
    }
    return fake_member_say(channel, MESSAGE_model, &model);
}

/* All parameters, one frame per span. */
static inline bool send_parameters(struct server *server, struct channel *channel, enum message_type type,
                                   void *message, struct ranges *ranges, int how)
{
    const uint64_t request = channel->frame.request + (how == OTHER_REQUEST);
    struct error error;
    for (int i = 0; i < server->span_count; i++) {
        uint8_t bytes[RANGE_BYTES];
        float values[1024];
        const struct span span = server->spans[i];
        for (size_t k = 0; k < span.count; k++) {
            values[k] = server->value;
        }
        range_put(bytes, 0, (struct range){span.first + (how == BEYOND), (uint32_t)span.count});
        *ranges = (struct ranges){bytes, 1};
        struct iovec bulk = {values, span.count * sizeof *values};
        const struct outgoing frame = {.type = type,
                                       .request = request,
                                       .message = message,
                                       .bulk = &bulk,
                                       .bulk_parts = 1,
                                       .more = i + 1 < server->span_count};
        if (how == TORN) {
            return fake_member_break_off(channel, type, message, values, span.count * sizeof *values);
        }
        if (!channel_send_frame(channel, &frame, fake_member_soon(), &error)) {
            return false;
        }
    }
    return true;
}

/* In another dtype, whose bytes may be invalid. */
static inline bool answer_oddly(struct server *server, struct channel *channel)
{
    uint8_t bytes[RANGE_BYTES], *zeros = calloc(1, server->odd.bytes);
    struct error error;
    range_put(bytes, 0, (struct range){server->spans[0].first, (uint32_t)server->spans[0].count});
    const struct message_values values = {.dtype = (uint8_t)server->odd.dtype, .ranges = {bytes, 1}};
    struct iovec bulk = {zeros, server->odd.bytes};
    const struct outgoing frame = {
        .type = MESSAGE_values, .request = channel->frame.request, .message = &values, .bulk = &bulk, .bulk_parts = 1};
    server->odd.bytes = 0;
    const bool sent = channel_send_frame(channel, &frame, fake_member_soon(), &error) &&
                      connection_flush(channel->connection, fake_member_soon(), &error);
    free(zeros);
    return sent;
}

static inline bool answer_pull(struct server *server, struct channel *channel, int how)
{
    const struct message_pull pull = channel->message.pull;
    uint8_t bytes[RANGE_BYTES];
    struct error error;
    float value = server->value;
    tell("ps %d: pull%s since %llu, after %lld%s\n", server->member.member.index,
         pull.ranges.count > 0 ? " of little" : "", (unsigned long long)pull.since_version, (long long)pull.after_step,
         pull.wait_ms > 0 ? ", waits" : "");
    if (server->advances && pull.after_step >= server->step) {
        server->step = pull.after_step + 1;
        server->version++;
    }
    struct message_values values = {
        .dtype = DTYPE_FLOAT32, .version = server->version, .global_step = server->step, .token = server->token};
    if (server->odd.bytes > 0) {
        return answer_oddly(server, channel);
    }
    if (server->knows && pull.since_version == server->version) {
        return fake_member_say(channel, MESSAGE_values, &values);
    }
    if (pull.ranges.count == 0) {
        return send_parameters(server, channel, MESSAGE_values, &values, &values.ranges, how);
    }
    const struct range range = range_get(&pull.ranges, 0);
    assert_int_equal(range.first, server->spans[0].first);
    assert_int_equal(range.count, 1);
    range_put(bytes, 0, range);
    struct iovec bulk[] = {{&value, sizeof value}, {&value, how == BEYOND ? sizeof value : 0}};
    values.ranges = (struct ranges){bytes, 1};
    const struct outgoing frame = {.type = MESSAGE_values,
                                   .request = channel->frame.request,
                                   .message = &values,
                                   .bulk = bulk,
                                   .bulk_parts = how == BEYOND ? 2 : 1};
    if (how == BEYOND) {
        range_put(bytes, 0, (struct range){range.first, 2});
    }
    if (how == NONE) {
        values.ranges.count = 0;
        return fake_member_say(channel, MESSAGE_values, &values);
    }
    if (how == HALF) {
        return fake_member_break_off(channel, MESSAGE_values, &values, &value, sizeof value);
    }
    return channel_send_frame(channel, &frame, fake_member_soon(), &error);
}

static inline bool take_push(struct server *server, struct channel *channel)
{
    struct error error;
    server->push = channel->message.push;
    for (;;) {
        const struct ranges ranges = channel->message.push.ranges;
        for (uint32_t i = 0; i < ranges.count; i++) {
            const struct range range = range_get(&ranges, i);
            if (!channel_read_bulk(channel, server->gradient + range.first, range.count * sizeof(float),
                                   fake_member_soon(), &error)) {
                return false;
            }
        }
        if (channel->frame.flags & FRAME_LAST) {
            return true;
        }
        if (!channel_receive(channel, fake_member_soon(), &error)) {
            return false;
        }
    }
}

static inline bool answer_push(struct server *server, struct channel *channel, int how)
{
    const struct message_push *push = &server->push;
    const struct message_ping ping = {9};
    tell("ps %d: push %llu at version %llu, step %lld, token %lld\n", server->member.member.index,
         (unsigned long long)push->sequence, (unsigned long long)push->base_version, (long long)push->base_step,
         (long long)push->token);
    for (int i = 0; i < server->pings; i++) {
        struct error error;
        usleep(20000);
        if (!channel_send(channel, MESSAGE_ping, channel->frame.request, &ping, fake_member_soon(), &error) ||
            !channel_receive(channel, fake_member_soon(), &error)) {
            return false;
        }
        atomic_fetch_add(&server->pings_answered, channel->frame.type == MESSAGE_pong);
    }
    server->version++;
    struct message_pushed pushed = {.outcome = server->outcome,
                                    .sequence = push->sequence,
                                    .version = server->version,
                                    .global_step = server->step,
                                    .token = server->token,
                                    .staleness = server->staleness,
                                    .dtype = DTYPE_FLOAT32};
    return send_parameters(server, channel, MESSAGE_pushed, &pushed, &pushed.ranges, how);
}

static inline bool answer(struct fake_member *member, struct channel *channel)
{
    struct server *server = &servers[member->member.index];
    const int type = channel->frame.type, how = server->fails[type];
    const uint64_t request = channel->frame.request;
    const struct message_pong pong = {1};
    server->fails[type] = how == SILENCE ? how : 0;
    channel->generation = server->generation;
    if (type == MESSAGE_push && !take_push(server, channel)) {
        return false;
    }
    channel->frame.request = request;
    atomic_fetch_add(&server->pushes, type == MESSAGE_push);
    if (type == MESSAGE_get_model) {
        server->wait_ms = channel->message.get_model.wait_ms;
        tell("ps %d: get_model\n", member->member.index);
    }
    if (how > 0) {
        return fake_member_object(channel, (enum error_code)how);
    }
    if (how == NO_ANSWER || how == SILENCE) {
        return how == SILENCE;
    }
    if (how == OTHER_ANSWER) {
        return fake_member_say(channel, MESSAGE_pong, &pong);
    }
    return type == MESSAGE_get_model ? say_model(server, channel)
           : type == MESSAGE_pull    ? answer_pull(server, channel, how)
           : type == MESSAGE_push    ? answer_push(server, channel, how)
                                     : true;
}

/* --- The worker --- */

static inline bool write_in_vain(struct engine *engine, enum store_vector vector, size_t first, size_t count,
                                 const float *values, struct error *error)
{
    return error_set(error, "the engine fails");
}

static const struct engine_table engine_that_fails = {.name = "failing", .write = write_in_vain};

static inline bool given_up(void *context)
{
    return atomic_load(&bench.given_up);
}

static inline bool needs_rejoin(void *context, uint32_t generation, double since_s, char why[256])
{
    assert_int_equal(generation, bench.exchange.generation);
    assert_true(since_s == bench.exchange.joined_s);
    snprintf(why, 256, "the model is lost");
    return atomic_load(&bench.needs_rejoin);
}

/* more: settings in pairs, up to a NULL. */
static inline void begin(int count, const char *layers, bool writes_model, const char *const *more)
{
    char hosts[128] = "";
    struct error error;
    memset(&bench, 0, sizeof bench);
    memset(servers, 0, sizeof servers);
    atomic_store(&jumped_s, 0);
    bench.count = count;
    for (int i = 0; i < count; i++) {
        struct server *server = &servers[i];
        fake_member_listen(&server->member, MEMBER_PS, i);
        snprintf(hosts + strlen(hosts), sizeof hosts - strlen(hosts), "%s%s", i > 0 ? "," : "", server->member.host);
        server->generation = 4;
        server->message = "";
        server->step = 10;
        server->token = -1;
        server->version = 20 + (uint64_t)i;
        server->value = 100.0f + (float)i;
    }
    struct config_setting settings[16] = {{"insecure", "true"},
                                          {"local", "false"},
                                          {"layers", layers},
                                          {"ps_hosts", hosts},
                                          {"worker_hosts", "127.0.0.1:1,127.0.0.1:2"},
                                          {"job_name", "worker"},
                                          {"placement", "round_robin"},
                                          {"lease_secs", "60"}};
    int set = 8;
    for (int i = 0; more && more[i]; i += 2) {
        settings[set++] = (struct config_setting){more[i], more[i + 1]};
    }
    listen_in();
    if (!config_load(&bench.config, NULL, settings, set, &error) ||
        !identity_create(&bench.identity, &bench.config, (struct member){MEMBER_WORKER, 0}, &error)) {
        fail_msg("%s", error.text);
    }
    self = bench.identity.hello;
    model_layout(&bench.model, &bench.config.model);
    bench.engine.engine.table = &fake_engine_near;
    bench.engine.parameters = calloc(bench.model.float_count, sizeof(float));
    const struct push_pull_options options = {.config = &bench.config,
                                              .model = &bench.model,
                                              .engine = &bench.engine.engine,
                                              .identity = &bench.identity,
                                              .traffic = &bench.traffic,
                                              .given_up = given_up,
                                              .needs_rejoin = needs_rejoin,
                                              .writes_model = writes_model};
    assert_true(push_pull_create(&bench.exchange, &options, &error));
    outbox_create(&bench.outbox, &bench.model, outbox_form(&bench.config), NULL);
    for (int i = 0; i < count; i++) {
        struct server *server = &servers[i];
        server->span_count = placement_spans(&bench.model, bench.config.cluster.placement, count, i, server->spans);
        fake_member_start(&server->member, &self, answer);
    }
    told();
}

static inline void join(void)
{
    struct error error;
    if (push_pull_join(&bench.exchange, &error) != EXCHANGE_OK) {
        fail_msg("%s", error.text);
    }
    told();
}

static inline void end(void)
{
    push_pull_destroy(&bench.exchange);
    outbox_destroy(&bench.outbox);
    free(bench.engine.parameters);
    for (int i = 0; i < bench.count; i++) {
        fake_member_stop(&servers[i].member);
    }
    identity_destroy(&bench.identity);
    config_free(&bench.config);
    heard();
}

/* The engine's parameters are those of the ps that holds them. */
static inline void assert_landed(void)
{
    for (int i = 0; i < bench.count; i++) {
        const struct shard_part *part = &bench.exchange.parts[i];
        for (int k = 0; k < part->span_count; k++) {
            for (size_t at = 0; at < part->spans[k].count; at++) {
                assert_true(bench.engine.parameters[part->spans[k].first + at] == servers[i].value);
            }
        }
        assert_true(part->span_count == 0 || part->version == servers[i].version);
    }
}

/* A gradient whose every value tells its variable and row; `last` is the very last one. */
static inline enum exchange_result push_with(float last, int64_t base_step, struct push_answer *answer,
                                             struct error *error)
{
    const struct push_note note = {.base_step = base_step, .local_step = 3, .examples = 50, .loss = 0.5f};
    struct gradient_sink sink = outbox_sink(&bench.outbox);
    outbox_begin(&bench.outbox);
    for (int v = 0; v < bench.model.variable_count; v++) {
        const struct variable *variable = &bench.model.variables[v];
        for (int r = 0; r < variable->rows; r++) {
            float row[64];
            for (int c = 0; c < variable->cols; c++) {
                row[c] = (float)(100 * v + r + 1);
            }
            if (v == bench.model.variable_count - 1 && r == variable->rows - 1) {
                row[variable->cols - 1] = last;
            }
            const struct gradient_block block = {
                .variable = v, .row = r, .rows = 1, .cols = variable->cols, .values = row, .stride = variable->cols};
            sink.block(sink.context, &block);
        }
    }
    push_pull_pack(&bench.exchange, &bench.outbox);
    return push_pull_exchange(&bench.exchange, &bench.outbox, &note, answer, error);
}

static inline enum exchange_result push(int64_t base_step, struct push_answer *answer, struct error *error)
{
    return push_with((float)(100 * (bench.model.variable_count - 1) + 1), base_step, answer, error);
}

#endif
