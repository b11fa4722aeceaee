/*
 * Push and pull with several ps, which say what the test wants: who is asked for what and in which order, when shards
 * fit together, how they come to one step, and what each answer, silence or refusal means.
 */
#include "worker/remote/exchange/push_pull.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

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

double __real_clock_monotonic_s(void);
double __wrap_clock_monotonic_s(void);

double __wrap_clock_monotonic_s(void)
{
    return __real_clock_monotonic_s() + atomic_load(&jumped_s);
}

static struct hello_identity self;

/* It answers one request at a time, and the test looks in between. */
static struct server {
    struct fake_member member;
    struct span spans[PLACEMENT_MAX_SPANS]; /* that it holds */
    int span_count;
    int fails[TYPES]; /* by type of request: how the next one fails, an enum error_code or one of those above */
    int unready;      /* it has no model yet when it is asked so often */
    uint8_t unready_state;
    uint32_t generation, later_generation; /* of the model; the second from the second question on, unless it is 0 */
    const char *message;                   /* what it waits for then */
    int64_t step, token;
    uint64_t version;
    bool advances; /* a pull that waits for a step gets it */
    uint8_t outcome;
    uint32_t staleness;
    int pings;                                 /* before the next answer to a push */
    int64_t float_count, first, count, ranges; /* added to what it says of its model */
    float gradient[1024];                      /* of the last push */
    float value;                               /* of all its parameters */
    struct message_push push;
    _Atomic(int) pushes, pings_answered;
    uint32_t wait_ms; /* that a model was to be waited for last */
    struct {
        enum dtype dtype; /* of the next answer to a pull, if bytes > 0 */
        size_t bytes;     /* zeros, of its first span */
    } odd;
    bool knows; /* who has its version is told that nothing has changed */
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

static bool say_model(struct server *server, struct channel *channel)
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

/* All parameters, in a frame for each span. */
static bool send_parameters(struct server *server, struct channel *channel, enum message_type type, void *message,
                            struct ranges *ranges, int how)
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

/* As another dtype says it, of which the bytes may be nonsense. */
static bool answer_oddly(struct server *server, struct channel *channel)
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

static bool answer_pull(struct server *server, struct channel *channel, int how)
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

static bool take_push(struct server *server, struct channel *channel)
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

static bool answer_push(struct server *server, struct channel *channel, int how)
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

static bool answer(struct fake_member *member, struct channel *channel)
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

static bool write_in_vain(struct engine *engine, enum store_vector vector, size_t first, size_t count,
                          const float *values, struct error *error)
{
    (void)engine, (void)vector, (void)first, (void)count, (void)values;
    return error_set(error, "the engine fails");
}

static const struct engine_table engine_that_fails = {.name = "failing", .write = write_in_vain};

static bool given_up(void *context)
{
    (void)context;
    return atomic_load(&bench.given_up);
}

static bool needs_rejoin(void *context, uint32_t generation, double since_s, char why[256])
{
    (void)context;
    assert_int_equal(generation, bench.exchange.generation);
    assert_true(since_s == bench.exchange.joined_s);
    snprintf(why, 256, "the model is lost");
    return atomic_load(&bench.needs_rejoin);
}

/* more: settings in pairs, up to a NULL. */
static void begin(int count, const char *layers, bool writes_model, const char *const *more)
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
    struct config_setting settings[16] = {{"insecure", "true"},   {"layers", layers},
                                          {"ps_hosts", hosts},    {"worker_hosts", "127.0.0.1:1,127.0.0.1:2"},
                                          {"job_name", "worker"}, {"placement", "round_robin"}};
    int set = 6;
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
    assert_true(outbox_create(&bench.outbox, &bench.model, outbox_form(&bench.config), NULL, &error));
    for (int i = 0; i < count; i++) {
        struct server *server = &servers[i];
        server->span_count = placement_spans(&bench.model, bench.config.cluster.placement, count, i, server->spans);
        fake_member_start(&server->member, &self, answer);
    }
    told();
}

static void join(void)
{
    struct error error;
    if (push_pull_join(&bench.exchange, &error) != EXCHANGE_OK) {
        fail_msg("%s", error.text);
    }
    told();
}

static void end(void)
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

/* The parameters in the engine are those of the ps that holds them. */
static void assert_landed(void)
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

static enum exchange_result push(int64_t base_step, struct push_answer *answer, struct error *error)
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
            const struct gradient_block block = {
                .variable = v, .row = r, .rows = 1, .cols = variable->cols, .values = row, .stride = variable->cols};
            sink.block(sink.context, &block);
        }
    }
    push_pull_pack(&bench.exchange, &bench.outbox);
    return push_pull_exchange(&bench.exchange, &bench.outbox, &note, answer, error);
}

/* --- Joining --- */

/* All have a model of one generation, and then all of it is pulled; ps that hold nothing are asked for nothing. */
static void joining(void **state)
{
    struct error error;
    (void)state;
    begin(3, "6,3", false, NULL);
    servers[1].step = 12;
    servers[2].step = 99;
    assert_int_equal(push_pull_join(&bench.exchange, &error), EXCHANGE_OK);
    assert_string_equal(told(), "ps 0: get_model\nps 1: get_model\nps 2: get_model\n"
                                "ps 0: pull since 0, after -1\nps 1: pull since 0, after -1\n");
    assert_landed();
    assert_int_equal(bench.exchange.generation, 4);
    assert_int_equal(bench.exchange.global_step, 12);
    servers[0].value = 7;
    servers[1].step = 3;
    servers[0].step = 4;
    assert_int_equal(push_pull_join(&bench.exchange, &error), EXCHANGE_OK); /* after a restore, say */
    assert_int_equal(bench.exchange.global_step, 4);
    assert_landed();
    servers[0].value = 8;
    told();
    assert_int_equal(push_pull_refresh(&bench.exchange, &error), EXCHANGE_OK);
    assert_string_equal(told(), "ps 0: pull since 0, after -1\nps 1: pull since 0, after -1\n");
    assert_landed();
    end();
}

/* Who is not ready is asked again, and those behind it are not asked meanwhile; people are told what it waits for. */
static void unready(void **state)
{
    const uint8_t states[] = {MODEL_ABSENT, MODEL_BEING_WRITTEN, MODEL_READY};
    struct error error;
    (void)state;
    for (int i = 0; i < 3; i++) {
        begin(2, "6,20,3", false, NULL);
        servers[0].unready = 2;
        servers[1].unready = 1;
        servers[0].unready_state = servers[1].unready_state = states[i];
        servers[0].message = servers[1].message = "waiting for better days";
        assert_int_equal(push_pull_join(&bench.exchange, &error), EXCHANGE_OK);
        assert_string_equal(told(), "ps 0: get_model\nps 0: get_model\nps 0: get_model\nps 1: get_model\n"
                                    "ps 0: get_model\nps 1: get_model\n"
                                    "ps 0: pull since 0, after -1\nps 1: pull since 0, after -1\n");
        assert_int_equal(times(heard_so_far(), ": waiting for better days\n"), 1); /* not each time */
        assert_landed();
        servers[1].unready = 1;
        bench.exchange.parts[1].link.quiet = true;
        atomic_store(&jumped_s, 11);
        join();
        assert_int_equal(times(heard_so_far(), ": waiting for better days\n"), 1);
        servers[0].unready = 2;
        join();
        assert_int_equal(times(heard_so_far(), ": waiting for better days\n"), 2); /* ten seconds later */
        end();
    }
}

static void *pass_five_seconds(void *context)
{
    (void)context;
    AWAIT(was_told("get_model"));
    usleep(300000);
    tell("five seconds later\n");
    atomic_store(&jumped_s, atomic_load(&jumped_s) + 5);
    return NULL;
}

/* Of very many workers none has a ps wait for it: each asks again later. The chief does not wait so long. */
static void unready_for_very_many(void **state)
{
    struct error error;
    pthread_t thread;
    (void)state;
    for (int is_chief = 0; is_chief < 2; is_chief++) {
        begin(2, "6,20,3", false, NULL);
        const int hosts = bench.config.cluster.worker_hosts.count;
        bench.config.cluster.worker_hosts.count = 1000;
        bench.config.cluster.task_index = is_chief ? 0 : 1;
        servers[1].unready = 1;
        assert_int_equal(pthread_create(&thread, NULL, pass_five_seconds, NULL), 0);
        assert_int_equal(push_pull_join(&bench.exchange, &error), EXCHANGE_OK);
        pthread_join(thread, NULL);
        const char *text = told();
        const char *again = strstr(strstr(text, "ps 1: get_model\n"), "ps 0: get_model\n");
        assert_non_null(again);
        assert_int_equal(again > strstr(text, "five seconds later\n"), !is_chief);
        assert_int_equal(servers[1].wait_ms, is_chief ? 500 : 0);
        bench.config.cluster.worker_hosts.count = hosts;
        end();
    }
}

/* Shards of different generations do not fit together: they are asked again until they do. */
static void generations(void **state)
{
    struct error error;
    (void)state;
    begin(3, "6,20,3", false, NULL);
    servers[0].generation = servers[2].generation = 5;
    servers[1].later_generation = 5;
    assert_int_equal(push_pull_join(&bench.exchange, &error), EXCHANGE_OK);
    assert_string_equal(told(), "ps 0: get_model\nps 1: get_model\nps 0: get_model\nps 1: get_model\nps 2: get_model\n"
                                "ps 0: pull since 0, after -1\nps 1: pull since 0, after -1\n"
                                "ps 2: pull since 0, after -1\n");
    assert_int_equal(bench.exchange.generation, 5);
    assert_landed();
    end();
}

/* Who would have to write the model itself does not wait for it. */
static void who_writes_the_model(void **state)
{
    struct error error;
    (void)state;
    begin(2, "6,20,3", true, NULL);
    servers[1].unready = 1;
    servers[1].message = "a model";
    assert_int_equal(push_pull_join(&bench.exchange, &error), EXCHANGE_REJOIN);
    assert_string_equal(told(), "ps 0: get_model\nps 1: get_model\n");
    servers[1].generation = 5;
    assert_int_equal(push_pull_join(&bench.exchange, &error), EXCHANGE_REJOIN);
    assert_string_equal(told(), "ps 0: get_model\nps 1: get_model\n");
    servers[1].generation = 4;
    servers[1].unready = 1;
    servers[1].unready_state = MODEL_READY; /* for others to wait for */
    assert_int_equal(push_pull_join(&bench.exchange, &error), EXCHANGE_OK);
    assert_landed();
    servers[1].fails[MESSAGE_get_model] = NO_ANSWER; /* says nothing of a model */
    assert_int_equal(push_pull_join(&bench.exchange, &error), EXCHANGE_OK);
    end();
}

/* A ps that holds other parts of the model is of another program, or other data. */
static void other_parts(void **state)
{
    struct error error;
    (void)state;
    for (int i = 0; i < 5; i++) {
        begin(2, "6,20,3", false, NULL);
        servers[1].float_count = i == 0;
        servers[1].first = i == 1;
        servers[1].count = i == 2;
        servers[1].ranges = i == 3 ? 1 : i == 4 ? -1 : 0;
        assert_int_equal(push_pull_join(&bench.exchange, &error), EXCHANGE_FAILED);
        assert_non_null(strstr(error.text, "ps 1 (127.0.0.1:"));
        assert_non_null(strstr(error.text, "holds other parts of the model than it should"));
        assert_null(strstr(error.text, "worker 0's data")); /* layers are given */
        assert_null(strstr(told(), "pull"));
        end();
    }
}

/* What joining makes of errors: some pass, some are for good, and the caller may have enough. */
static void joining_fails(void **state)
{
    const int passing[] = {ERROR_NOT_READY, ERROR_OLD_GENERATION, ERROR_JOB_OVER, NO_ANSWER, OTHER_ANSWER};
    const int types[] = {MESSAGE_get_model, MESSAGE_pull};
    struct error error;
    (void)state;
    for (int t = 0; t < 2; t++) {
        begin(2, "6,20,3", false, NULL);
        for (int i = 0; i < 5; i++) {
            servers[1].fails[types[t]] = passing[i];
            assert_int_equal(push_pull_join(&bench.exchange, &error), EXCHANGE_OK);
            assert_landed();
        }
        assert_int_equal(atomic_load(&servers[1].member.connections), 3);
        assert_int_equal(atomic_load(&bench.traffic.retries), 2);
        servers[1].fails[types[t]] = ERROR_NOT_ALLOWED;
        assert_int_equal(push_pull_join(&bench.exchange, &error), EXCHANGE_FAILED);
        assert_non_null(strstr(error.text, "as the test wants"));
        atomic_store(&bench.given_up, true); /* what is ready is taken all the same */
        assert_int_equal(push_pull_join(&bench.exchange, &error), EXCHANGE_OK);
        servers[1].unready = 1000;
        assert_int_equal(push_pull_join(&bench.exchange, &error), EXCHANGE_STOPPED);
        end();
    }
    begin(2, "6,20,3", false, NULL);
    atomic_store(&servers[1].member.refusal, REFUSAL_MEMBER);
    assert_int_equal(push_pull_join(&bench.exchange, &error), EXCHANGE_FAILED);
    assert_non_null(strstr(error.text, "as the test wants"));
    end();
}

/* An answer that is none of this pull's, or speaks of what the ps does not hold, ends the connection. */
static void pulls_answered_wrongly(void **state)
{
    const int ways[] = {OTHER_REQUEST, BEYOND, OTHER_ANSWER};
    const char *const texts[] = {"answer to a request that was not made", "are not all its own",
                                 "answered pull with pong"};
    struct error error;
    (void)state;
    begin(2, "6,20,3", false, NULL);
    join();
    for (int i = 0; i < 3; i++) {
        servers[1].fails[MESSAGE_pull] = ways[i];
        servers[1].value++;
        assert_int_equal(push_pull_refresh(&bench.exchange, &error), EXCHANGE_OK);
        assert_int_equal(atomic_load(&servers[1].member.connections), 2 + i);
        assert_non_null(strstr(heard_so_far(), texts[i]));
        assert_landed();
    }
    end();
}

/* A step that others make is waited for, the very first one, too. */
static void the_first_step(void **state)
{
    const char *const settings[] = {"issync", "true", NULL};
    struct error error;
    (void)state;
    begin(2, "6,20,3", false, settings);
    servers[0].step = servers[1].step = 0;
    servers[0].advances = servers[1].advances = true;
    join();
    assert_int_equal(push_pull_await_step(&bench.exchange, 0, &error), EXCHANGE_OK);
    assert_string_equal(told(), "ps 0: pull since 20, after 0, waits\nps 1: pull since 21, after 0, waits\n");
    assert_int_equal(bench.exchange.global_step, 1);
    end();
}

/*
 * Where answers are packed, what came in full is what the worker was told. It knows it still when it pulls again, after
 * the engine was used for something else: then it asks for no more than what came since.
 */
static void what_was_told_is_known(void **state)
{
    const char *const settings[] = {"issync", "true", "wire_dtype", "int8", NULL};
    struct error error;
    (void)state;
    begin(2, "6,20,3", false, settings);
    join();
    assert_landed();
    memset(bench.engine.parameters, 0, bench.model.float_count * sizeof(float));
    servers[0].knows = servers[1].knows = true;
    assert_int_equal(push_pull_refresh(&bench.exchange, &error), EXCHANGE_OK);
    assert_string_equal(told(), "ps 0: pull since 20, after -1\nps 1: pull since 21, after -1\n");
    assert_landed();
    servers[1].fails[MESSAGE_pull] = BEYOND; /* what is wrong costs the connection, and all is told again */
    servers[1].knows = false;
    servers[1].value = 7;
    assert_int_equal(push_pull_refresh(&bench.exchange, &error), EXCHANGE_OK);
    assert_string_equal(told(), "ps 0: pull since 20, after -1\nps 1: pull since 21, after -1\n"
                                "ps 1: pull since 0, after -1\n");
    assert_non_null(strstr(heard_so_far(), "are not all its own"));
    assert_landed();
    bench.engine.engine.table = &engine_that_fails;
    assert_int_equal(push_pull_refresh(&bench.exchange, &error), EXCHANGE_FAILED);
    assert_string_equal(error.text, "the engine fails");
    end();
}

/* Answers that break off in the middle of a float, to pulls and to pushes, wherever floats land and however packed. */
static void answers_that_break_off(void **state)
{
    static const char *const plain[] = {"issync", "true", NULL};
    static const char *const packed[] = {"issync", "true", "wire_dtype", "int8", NULL};
    static const struct engine_table *const tables[] = {&fake_engine_near, &fake_engine_far};
    struct push_answer answer;
    struct error error;
    (void)state;
    for (int i = 0; i < 4; i++) {
        begin(2, "6,20,3", false, i < 2 ? plain : packed);
        bench.engine.engine.table = tables[i % 2];
        join();
        assert_landed();
        servers[1].fails[MESSAGE_pull] = TORN;
        servers[1].value = 5;
        assert_int_equal(push_pull_refresh(&bench.exchange, &error), EXCHANGE_OK);
        assert_landed();
        assert_int_equal(atomic_load(&servers[1].member.connections), 2);
        if (i < 2) { /* these servers take no packed pushes */
            servers[1].fails[MESSAGE_push] = TORN;
            servers[1].value = 6;
            assert_int_equal(push(10, &answer, &error), EXCHANGE_OK);
            assert_landed();
            assert_int_equal(atomic_load(&servers[1].pushes), 2);
            assert_int_equal(servers[1].push.sequence, 1);
            assert_int_equal(atomic_load(&servers[1].member.connections), 3);
        }
        assert_int_equal(atomic_load(&servers[0].member.connections), 1);
        end();
    }
}

/* What nobody asked for, or what is more than there can be, costs the connection, and is pulled again. */
static void answers_as_nobody_asked(void **state)
{
    static const char *const plain[] = {"issync", "true", NULL};
    static const char *const halves[] = {"wire_dtype", "bfloat16", NULL};
    static const struct {
        const char *const *settings;
        enum dtype dtype;
        size_t bytes;
        const char *said;
    } cases[] = {{plain, DTYPE_DIFFERENCES, 100, "sent differences that were not requested"},
                 {plain, DTYPE_INT8, 52, "sent parameters packed in a way that was not requested"},
                 {halves, DTYPE_DIFFERENCES, 65537, "65537 bytes of differences, more than there can be"},
                 {halves, DTYPE_DIFFERENCES, 65536, "bytes more of differences than of floats"}};
    struct error error;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        begin(2, "6,20,3", false, cases[i].settings);
        join();
        servers[1].odd.dtype = cases[i].dtype;
        servers[1].odd.bytes = cases[i].bytes;
        servers[1].value = 9;
        assert_int_equal(push_pull_refresh(&bench.exchange, &error), EXCHANGE_OK);
        if (times(heard_so_far(), cases[i].said) != 1) {
            fail_msg("not \"%s\" but %s", cases[i].said, heard());
        }
        assert_landed();
        end();
    }
}

/* --- Pushing --- */

/* Each ps gets its own part of the gradient; answers are of all of them: the worst, and the end only if all end. */
static void pushing(void **state)
{
    struct push_answer answer;
    struct error error;
    (void)state;
    begin(3, "6,3", false, NULL);
    join();
    servers[0].staleness = 4;
    servers[1].staleness = 2;
    servers[1].step = 12;
    servers[0].value = 5;
    assert_int_equal(push(10, &answer, &error), EXCHANGE_OK);
    assert_true(was_told("ps 0: push 1 at version 20, step 10, token -1\n"));
    assert_true(was_told("ps 1: push 1 at version 21, step 10, token -1\n"));
    assert_int_equal(times(told(), "\n"), 2);
    assert_landed();
    assert_true(!answer.over && !answer.stale && !answer.not_finite);
    assert_int_equal(answer.staleness, 4);
    assert_int_equal(answer.global_step, 12);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(servers[i].push.local_step, 3);
        assert_int_equal(servers[i].push.examples, 50);
        assert_true(servers[i].push.loss == 0.5f);
    }
    for (int r = 0; r < 6; r++) {
        for (int c = 0; c < 3; c++) {
            assert_true(servers[0].gradient[r * bench.model.variables[0].stride + c] == (float)(r + 1));
        }
    }
    assert_true(servers[1].gradient[bench.model.variables[1].offset] == 101);
    servers[0].staleness = 1;
    const uint8_t outcomes[] = {PUSH_STALE, PUSH_NOT_FINITE, PUSH_NOT_WANTED};
    for (int i = 0; i < 3; i++) {
        for (int which = 0; which < 2; which++) {
            servers[which].outcome = outcomes[i];
            assert_int_equal(push(10, &answer, &error), EXCHANGE_OK);
            assert_int_equal(answer.stale, i == 0);
            assert_int_equal(answer.not_finite, i == 1);
            assert_int_equal(answer.over, false);
            assert_int_equal(answer.staleness, 2);
            servers[which].outcome = PUSH_APPLIED;
        }
    }
    servers[0].outcome = servers[1].outcome = PUSH_NOT_WANTED;
    assert_int_equal(push(10, &answer, &error), EXCHANGE_OK);
    assert_true(answer.over);
    servers[0].outcome = PUSH_APPLIED;
    assert_int_equal(push(10, &answer, &error), EXCHANGE_OK);
    assert_false(answer.over);
    end();
}

/* In step with others: shards that answer at an earlier step are asked until they are there, too. */
static void steps_in_common(void **state)
{
    const char *const settings[] = {"issync", "true", NULL};
    struct push_answer answer;
    struct error error;
    (void)state;
    begin(3, "6,20,3", false, settings);
    join();
    servers[0].step = 12;
    servers[1].step = 11;
    servers[2].step = 10;
    servers[1].advances = servers[2].advances = true;
    assert_int_equal(push(10, &answer, &error), EXCHANGE_OK);
    assert_int_equal(answer.global_step, 12);
    assert_true(was_told("ps 1: push 1 at version 21, step 10, token 10\n"));
    const char *text = told();
    const char *last = strstr(text, "ps 2: pull since 23, after 11, waits\nps 1: pull since 22, after 11, waits\n");
    assert_non_null(last);
    assert_int_equal(times(text, "pull"), 2);
    assert_landed();
    assert_int_equal(bench.exchange.parts[2].global_step, 12);
    servers[0].advances = true;
    servers[1].step = 12;
    assert_int_equal(push_pull_await_step(&bench.exchange, 12, &error), EXCHANGE_OK);
    assert_string_equal(told(), "ps 0: pull since 21, after 12, waits\nps 1: pull since 23, after 12, waits\n"
                                "ps 2: pull since 24, after 12, waits\n");
    assert_int_equal(bench.exchange.global_step, 13);
    servers[0].step = 20;
    servers[1].advances = false;
    atomic_store(&bench.needs_rejoin, true);
    assert_int_equal(push(13, &answer, &error), EXCHANGE_REJOIN);
    assert_string_equal(error.text, "the model is lost");
    assert_null(strstr(told(), "pull"));
    atomic_store(&bench.given_up, true);
    assert_int_equal(push(13, &answer, &error), EXCHANGE_STOPPED);
    assert_int_equal(answer.global_step, 20);
    servers[0].fails[MESSAGE_pull] = ERROR_OLD_GENERATION;
    assert_int_equal(push_pull_await_step(&bench.exchange, 20, &error), EXCHANGE_REJOIN);
    end();
}

/* Without steps in common nobody waits for a shard that is behind. */
static void steps_of_their_own(void **state)
{
    struct push_answer answer;
    struct error error;
    (void)state;
    begin(2, "6,20,3", false, NULL);
    servers[1].step = 30;
    join();
    assert_int_equal(push(30, &answer, &error), EXCHANGE_OK);
    assert_int_equal(times(told(), "pull"), 0);
    assert_int_equal(answer.global_step, 30);
    end();
}

/* While an answer is held back, pings are answered; whoever waits can give up, or learn that there is nothing to wait
 * for, and connections on which an answer may still come are closed. */
static void waiting_for_answers(void **state)
{
    struct push_answer answer;
    struct error error;
    (void)state;
    begin(2, "6,20,3", false, NULL);
    join();
    servers[1].pings = 3;
    assert_int_equal(push(10, &answer, &error), EXCHANGE_OK);
    assert_int_equal(atomic_load(&servers[1].pings_answered), 3);
    assert_int_equal(atomic_load(&bench.traffic.retries), 0);
    servers[1].pings = 0;
    for (int i = 0; i < 2; i++) {
        servers[1].fails[MESSAGE_push] = SILENCE;
        atomic_store(i == 0 ? &bench.given_up : &bench.needs_rejoin, true);
        assert_int_equal(push(10, &answer, &error), i == 0 ? EXCHANGE_STOPPED : EXCHANGE_REJOIN);
        assert_false(link_is_open(&bench.exchange.parts[1].link));
        atomic_store(i == 0 ? &bench.given_up : &bench.needs_rejoin, false);
        servers[1].fails[MESSAGE_push] = 0;
        bench.exchange.parts[1].link.next_try_s = 0;
        join();
    }
    assert_true(link_is_open(&bench.exchange.parts[0].link));
    end();
}

static void *free_after_two(void *context)
{
    struct server *server = context;
    while (atomic_load(&server->pushes) < 2) {
        usleep(1000);
    }
    server->fails[MESSAGE_push] = 0;
    return NULL;
}

/* A ps that gives no sign of life owes the answer to another connection. */
static void silence(void **state)
{
    struct push_answer answer;
    struct error error;
    pthread_t thread;
    (void)state;
    begin(2, "6,20,3", false, NULL);
    join();
    servers[1].fails[MESSAGE_push] = SILENCE;
    bench.exchange.parts[1].link.idle_timeout_s = 0.1;
    assert_int_equal(pthread_create(&thread, NULL, free_after_two, &servers[1]), 0);
    assert_int_equal(push(10, &answer, &error), EXCHANGE_OK);
    pthread_join(thread, NULL);
    assert_true(atomic_load(&servers[1].pushes) >= 2);
    assert_int_equal(servers[1].push.sequence, 1);
    assert_true(atomic_load(&servers[1].member.connections) >= 2);
    assert_int_equal(atomic_load(&servers[0].member.connections), 1);
    assert_int_equal(atomic_load(&servers[0].pushes), 1);
    assert_int_equal(times(heard_so_far(), "no sign of life for "), atomic_load(&servers[1].member.connections) - 1);
    assert_landed();
    end();
}

static void *pass_time(void *context)
{
    struct server *server = context;
    while (atomic_load(&server->pushes) < 2) {
        usleep(1000);
    }
    usleep(100000);
    atomic_store(&jumped_s, 12);
    usleep(600000);
    atomic_store(&bench.given_up, true);
    return NULL;
}

/* Who waits for long says for whom, and what that ps said of others; once in ten seconds. */
static void long_waits_are_told(void **state)
{
    struct push_answer answer;
    struct error error;
    pthread_t thread;
    (void)state;
    begin(2, "6,20,3", false, NULL);
    join();
    bench.exchange.parts[1].link.idle_timeout_s = 100;
    servers[1].fails[MESSAGE_push] = SILENCE;
    assert_int_equal(pthread_create(&thread, NULL, pass_time, &servers[1]), 0);
    atomic_store(&servers[1].pushes, 1);
    assert_int_equal(push(10, &answer, &error), EXCHANGE_STOPPED);
    pthread_join(thread, NULL);
    assert_int_equal(times(heard_so_far(), "waiting for "), 1);
    assert_non_null(strstr(heard_so_far(), "waiting for ps 1 (127.0.0.1:"));
    assert_non_null(strstr(heard_so_far(), " to answer push 1, 12 s\n"));
    end();
}

/* An answer to another request, or by another message, costs the connection, and the push comes again. */
static void pushes_answered_wrongly(void **state)
{
    const int ways[] = {OTHER_REQUEST, BEYOND, OTHER_ANSWER, NO_ANSWER};
    struct push_answer answer;
    struct error error;
    (void)state;
    begin(2, "6,20,3", false, NULL);
    join();
    for (int i = 0; i < 4; i++) {
        servers[1].fails[MESSAGE_push] = ways[i];
        assert_int_equal(push(10, &answer, &error), EXCHANGE_OK);
        assert_int_equal(atomic_load(&servers[1].member.connections), 2 + i);
        assert_int_equal(atomic_load(&servers[1].pushes), 2 * (i + 1));
        assert_int_equal(servers[1].push.sequence, i + 1);
        assert_int_equal(atomic_load(&servers[0].pushes), i + 1);
        assert_landed();
    }
    atomic_store(&servers[1].member.incarnation, 999); /* another process: it knows nothing of our parameters */
    servers[1].fails[MESSAGE_push] = NO_ANSWER;
    assert_int_equal(push(10, &answer, &error), EXCHANGE_REJOIN);
    assert_non_null(strstr(error.text, "is a new process now"));
    join();
    assert_int_equal(push(10, &answer, &error), EXCHANGE_OK);
    end();
}

/* --- Rounds of some --- */

/* Who is not asked pulls a single float until it is; the ps that decides says who is. */
static void rounds(void **state)
{
    const char *const settings[] = {"issync", "true", "local_steps", "4", "participation", "0.5", NULL};
    struct push_pull *exchange = &bench.exchange;
    struct error error;
    (void)state;
    begin(2, "6,20,3", false, settings);
    servers[0].token = 10;
    servers[1].token = 3;
    join();
    assert_true(push_pull_is_asked(exchange));
    servers[0].token = -1;
    servers[0].step = 11;
    assert_int_equal(push_pull_await_round(exchange, 10, &error), EXCHANGE_OK);
    assert_string_equal(told(), "ps 0: pull of little since 0, after 10, waits\n");
    assert_int_equal(exchange->global_step, 11);
    assert_false(push_pull_is_asked(exchange));
    servers[0].token = 12; /* and then all of it is pulled, from both */
    servers[0].step = 12;
    servers[1].advances = servers[0].advances = true;
    servers[0].value = 55;
    assert_int_equal(push_pull_await_round(exchange, 11, &error), EXCHANGE_OK);
    assert_true(push_pull_is_asked(exchange));
    assert_string_equal(told(), "ps 0: pull of little since 0, after 11, waits\n"
                                "ps 0: pull since 20, after 11, waits\nps 1: pull since 21, after 11, waits\n");
    assert_landed();
    assert_int_equal(exchange->global_step, 12);
    end();
}

static void rounds_fail(void **state)
{
    const char *const settings[] = {"issync", "true", "local_steps", "4", "participation", "0.5", NULL};
    struct push_pull *exchange = &bench.exchange;
    struct error error;
    (void)state;
    begin(2, "6,20,3", false, settings);
    join();
    assert_false(push_pull_is_asked(exchange));
    servers[0].fails[MESSAGE_pull] = ERROR_OLD_GENERATION;
    assert_int_equal(push_pull_await_round(exchange, 10, &error), EXCHANGE_REJOIN);
    servers[0].fails[MESSAGE_pull] = ERROR_NOT_ALLOWED;
    assert_int_equal(push_pull_await_round(exchange, 10, &error), EXCHANGE_FAILED);
    const int ways[] = {NO_ANSWER, OTHER_ANSWER, BEYOND, NONE, HALF};
    for (int i = 0; i < 5; i++) {
        assert_true(link_is_open(&exchange->parts[0].link));
        servers[0].fails[MESSAGE_pull] = ways[i];
        servers[0].token = 10;
        assert_int_equal(push_pull_await_round(exchange, 10, &error), EXCHANGE_OK); /* to be asked again */
        assert_false(link_is_open(&exchange->parts[0].link));
        assert_false(push_pull_is_asked(exchange));
        servers[0].token = -1;
        exchange->parts[0].link.next_try_s = 0;
        assert_int_equal(push_pull_await_round(exchange, 10, &error), EXCHANGE_OK);
    }
    servers[0].fails[MESSAGE_pull] = NO_ANSWER;
    atomic_store(&bench.given_up, true);
    assert_int_equal(push_pull_await_round(exchange, 10, &error), EXCHANGE_STOPPED);
    atomic_store(&bench.needs_rejoin, true);
    told();
    assert_int_equal(push_pull_await_round(exchange, 10, &error), EXCHANGE_REJOIN);
    assert_string_equal(told(), "");
    end();
}

/* Who waits to be asked does not wait for a ps that is silent, nor once it is to stop. */
static void rounds_of_a_silent_ps(void **state)
{
    const char *const settings[] = {"issync", "true", "local_steps", "4", "participation", "0.5", NULL};
    struct push_pull *exchange = &bench.exchange;
    struct error error;
    (void)state;
    for (int stops = 0; stops < 2; stops++) {
        begin(2, "6,20,3", false, settings);
        join();
        servers[0].fails[MESSAGE_pull] = SILENCE;
        exchange->parts[0].link.idle_timeout_s = stops ? 100 : 0.2;
        atomic_store(&bench.given_up, stops);
        const double begun_s = clock_monotonic_s();
        assert_int_equal(push_pull_await_round(exchange, 10, &error), stops ? EXCHANGE_STOPPED : EXCHANGE_OK);
        const double took_s = clock_monotonic_s() - begun_s;
        assert_true(stops ? took_s >= 0.9 && took_s < 20 : took_s >= 1.2);
        assert_false(link_is_open(&exchange->parts[0].link));
        assert_int_equal(times(heard_so_far(), "no answer from ps 0 (127.0.0.1:"), !stops);
        end();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(joining),
        cmocka_unit_test(unready),
        cmocka_unit_test(unready_for_very_many),
        cmocka_unit_test(generations),
        cmocka_unit_test(who_writes_the_model),
        cmocka_unit_test(other_parts),
        cmocka_unit_test(joining_fails),
        cmocka_unit_test(pulls_answered_wrongly),
        cmocka_unit_test(the_first_step),
        cmocka_unit_test(what_was_told_is_known),
        cmocka_unit_test(answers_that_break_off),
        cmocka_unit_test(answers_as_nobody_asked),
        cmocka_unit_test(pushing),
        cmocka_unit_test(steps_in_common),
        cmocka_unit_test(steps_of_their_own),
        cmocka_unit_test(waiting_for_answers),
        cmocka_unit_test(silence),
        cmocka_unit_test(long_waits_are_told),
        cmocka_unit_test(pushes_answered_wrongly),
        cmocka_unit_test(rounds),
        cmocka_unit_test(rounds_fail),
        cmocka_unit_test(rounds_of_a_silent_ps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
