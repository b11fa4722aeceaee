/*
 * The chief's requests to all ps, on the wire: their order and contents, and what each kind of failure means: again on
 * a new connection, again later, or never.
 */
#include "worker/remote/transfer.h"

#include <math.h>

#include "tests/check.h"

#include "base/log.h"
#include "tests/own_clock.h"
#include "tests/worker/remote/fake_member.h"
#include "tests/worker/remote/story.h"

enum { SERVERS = 2, TYPES = 40, NO_ANSWER = -1, OTHER_ANSWER = -2, BEYOND = -3, HALF = -4, PAST = -5, TORN = -6 };
enum { OTHER_REQUEST = -7 };
enum { WAIT_MS = 60000 }; /* never over before all have answered */

static struct hello_identity self;

/* Only one is asked at a time, and the test inspects in between. */
static struct server {
    struct fake_member member;
    int fails[TYPES]; /* by type of request: the next failure, an enum error_code or one of those above */
    uint8_t state, job_state;
    uint32_t generation;
    int64_t step;
    uint32_t wait_ms;                 /* that the last snapshot was asked with */
    float *vectors[STORE_PS_VECTORS]; /* [float_count], as they were written */
} servers[SERVERS];

static struct bench {
    struct config config;
    struct model model;
    struct identity identity;
    struct traffic traffic;
    struct push_pull exchange;
    struct checkpoint_state state;
    bool given_up;
} bench;

/* While it is set, this thread's clock stands still: no link's next try comes due. */
static _Thread_local double stopped_s;

double own_clock_s(void)
{
    return stopped_s > 0 ? stopped_s : system_clock_s();
}

static bool take_write(struct server *server, struct channel *channel)
{
    const struct message_write write = channel->message.write;
    const struct range range = range_get(&write.ranges, 0);
    struct error error;
    assert_int_equal(write.ranges.count, 1);
    assert_int_equal(write.dtype, DTYPE_FLOAT32);
    tell("ps %d: write vector %u, %u at %llu\n", server->member.member.index, write.vector, range.count,
         (unsigned long long)range.first);
    return channel_read_bulk(channel, server->vectors[write.vector] + range.first, range.count * sizeof(float),
                             fake_member_soon(), &error);
}

/* All that this ps holds of a vector, in one frame per span. */
static bool send_vector(struct server *server, struct channel *channel, int how)
{
    const struct message_read read = channel->message.read;
    const uint64_t request = channel->frame.request;
    const struct shard_part *part = &bench.exchange.parts[server->member.member.index];
    struct error error;
    for (int i = 0; i < part->span_count; i++) {
        uint8_t bytes[RANGE_BYTES];
        const struct span span = part->spans[i];
        const uint64_t first = how == BEYOND ? bench.model.float_count - span.count + 1
                               : how == PAST ? bench.model.float_count + 1
                                             : span.first;
        range_put(bytes, 0, (struct range){first, (uint32_t)span.count});
        const struct message_values values = {
            .dtype = how == HALF ? DTYPE_BFLOAT16 : DTYPE_FLOAT32, .global_step = server->step, .ranges = {bytes, 1}};
        struct iovec bulk = {server->vectors[read.vector] + span.first,
                             span.count * (how == HALF ? sizeof(uint16_t) : sizeof(float))};
        const struct outgoing frame = {.type = MESSAGE_values,
                                       .request = request,
                                       .message = &values,
                                       .bulk = &bulk,
                                       .bulk_parts = 1,
                                       .more = i + 1 < part->span_count};
        if (how == TORN) {
            return fake_member_break_off(channel, MESSAGE_values, &values, bulk.iov_base, bulk.iov_len);
        }
        if (!channel_send_frame(channel, &frame, fake_member_soon(), &error)) {
            return false;
        }
    }
    return true;
}

static void tell_request(int index, const struct channel *channel)
{
    const union message *message = &channel->message;
    switch (channel->frame.type) {
    case MESSAGE_begin_restore:
        tell("ps %d: begin %s, generation %u\n", index, message->begin_restore.source, channel->frame.generation);
        break;
    case MESSAGE_end_restore:
        tell("ps %d: end at %lld, epoch of %lld\n", index, (long long)message->end_restore.global_step,
             (long long)message->end_restore.epoch_batches);
        break;
    case MESSAGE_snapshot:
        servers[index].wait_ms = message->snapshot.wait_ms;
        tell("ps %d: snapshot %llu at %lld%s\n", index, (unsigned long long)message->snapshot.snapshot,
             (long long)message->snapshot.at_step, message->snapshot.wait_ms > 0 ? ", waits" : "");
        break;
    case MESSAGE_read:
        tell("ps %d: read %llu vector %u\n", index, (unsigned long long)message->read.snapshot, message->read.vector);
        break;
    case MESSAGE_release:
        tell("ps %d: release %llu\n", index, (unsigned long long)message->release.snapshot);
        break;
    case MESSAGE_end_job:
        tell("ps %d: end %u at %lld, %g: %s\n", index, message->end_job.job_state,
             (long long)message->end_job.global_step, (double)message->end_job.test_accuracy, message->end_job.message);
        break;
    case MESSAGE_heartbeat:
        tell("ps %d: heartbeat, %s at %lld\n", index, member_state_name(message->heartbeat.state),
             (long long)message->heartbeat.global_step);
        break;
    case MESSAGE_get_model:
        tell("ps %d: get_model\n", index);
        break;
    default:
        break;
    }
}

static bool answer(struct fake_member *member, struct channel *channel)
{
    struct server *server = &servers[member->member.index];
    const int type = channel->frame.type, how = server->fails[type];
    const struct message_model model = {
        .state = server->state, .global_step = server->step, .message = "", .float_count = bench.model.float_count};
    const struct message_lease lease = {.lease_ms = 1000, .job_state = server->job_state, .message = ""};
    const struct message_done done = {server->step};
    const struct message_pong pong = {1};
    tell_request(member->member.index, channel);
    server->fails[type] = 0;
    channel->generation = server->generation;
    channel->frame.request += how == OTHER_REQUEST;
    if (type == MESSAGE_write && how == 0 && !take_write(server, channel)) {
        return false;
    }
    if (how > 0) {
        return fake_member_object(channel, (enum error_code)how);
    }
    if (how == NO_ANSWER) {
        return false;
    }
    if (how == OTHER_ANSWER) {
        return fake_member_say(channel, MESSAGE_pong, &pong);
    }
    if (type == MESSAGE_heartbeat) {
        return fake_member_say(channel, MESSAGE_lease, &lease);
    }
    return type == MESSAGE_get_model ? fake_member_say(channel, MESSAGE_model, &model)
           : type == MESSAGE_read    ? send_vector(server, channel, how)
                                     : fake_member_say(channel, MESSAGE_done, &done);
}

static bool given_up(void *context)
{
    return ((struct bench *)context)->given_up;
}

static void begin(const char *layers, const char *optimizer)
{
    char hosts[80];
    struct error error;
    memset(&bench, 0, sizeof bench);
    memset(servers, 0, sizeof servers);
    for (int i = 0; i < SERVERS; i++) {
        fake_member_listen(&servers[i].member, MEMBER_PS, i);
        servers[i].generation = 4;
        servers[i].state = MODEL_READY;
        servers[i].job_state = JOB_TRAINING;
        servers[i].step = 10 + i;
    }
    snprintf(hosts, sizeof hosts, "%s,%s", servers[0].member.host, servers[1].member.host);
    const struct config_setting settings[] = {{"insecure", "true"},
                                              {"local", "false"},
                                              {"layers", layers},
                                              {"ps_hosts", hosts},
                                              {"worker_hosts", "127.0.0.1:1"},
                                              {"job_name", "worker"},
                                              {"optimizer", optimizer},
                                              {"placement", "round_robin"},
                                              {"lease_secs", "60"}};
    listen_in();
    if (!config_load(&bench.config, NULL, settings, sizeof settings / sizeof *settings, &error) ||
        !identity_create(&bench.identity, &bench.config, (struct member){MEMBER_WORKER, 0}, &error)) {
        fail_msg("%s", error.text);
    }
    self = bench.identity.hello;
    model_layout(&bench.model, &bench.config.model);
    const struct push_pull_options options = {.config = &bench.config,
                                              .model = &bench.model,
                                              .identity = &bench.identity,
                                              .traffic = &bench.traffic,
                                              .given_up = given_up,
                                              .context = &bench};
    checkpoint_state_create(&bench.state, &bench.model, &bench.config.train);
    if (!push_pull_create(&bench.exchange, &options, &error)) {
        fail_msg("%s", error.text);
    }
    for (int i = 0; i < SERVERS; i++) {
        for (int v = 0; v < STORE_PS_VECTORS; v++) {
            servers[i].vectors[v] = calloc(bench.model.float_count, sizeof(float));
        }
        fake_member_start(&servers[i].member, &self, answer);
    }
    told();
}

static void end(void)
{
    for (int i = 0; i < SERVERS; i++) {
        fake_member_stop(&servers[i].member); /* one may still be sending the exchange's spans */
    }
    push_pull_destroy(&bench.exchange);
    checkpoint_state_destroy(&bench.state);
    for (int i = 0; i < SERVERS; i++) {
        for (int v = 0; v < STORE_PS_VECTORS; v++) {
            free(servers[i].vectors[v]);
        }
    }
    identity_destroy(&bench.identity);
    config_free(&bench.config);
    heard();
}

static int connections(int index)
{
    return atomic_load(&servers[index].member.connections);
}

/* The shards' reports about themselves. */
TEST(status)
{
    struct shard_status found[SERVERS];
    struct error error;
    int64_t step;
    (void)state;
    begin("6,20,3", "sgd");
    servers[1].generation = 5;
    servers[1].job_state = JOB_DONE;
    assert_int_equal(transfer_status(&bench.exchange, found, &error), EXCHANGE_OK);
    assert_string_equal(told(), "ps 0: get_model\nps 0: heartbeat, starting at -1\n"
                                "ps 1: get_model\nps 1: heartbeat, starting at -1\n");
    assert_true(found[0].ready && !found[0].over && found[0].generation == 4 && found[0].global_step == 10);
    assert_true(found[1].ready && found[1].over && found[1].generation == 5 && found[1].global_step == 11);
    servers[0].state = MODEL_BEING_WRITTEN;
    servers[0].step = -1;
    servers[1].job_state = JOB_FAILED;
    assert_int_equal(transfer_status(&bench.exchange, found, &error), EXCHANGE_OK);
    assert_true(!found[0].ready && found[0].global_step == -1 && found[1].over);
    assert_int_equal(transfer_newest_step(&bench.exchange, &step, &error), EXCHANGE_OK);
    assert_int_equal(step, 11);
    servers[0].step = 30;
    assert_int_equal(transfer_newest_step(&bench.exchange, &step, &error), EXCHANGE_OK);
    assert_int_equal(step, 30);
    bench.given_up = true; /* an open link is used anyway; a closed one is not waited for */
    assert_int_equal(transfer_newest_step(&bench.exchange, &step, &error), EXCHANGE_OK);
    link_close(&bench.exchange.parts[1].link);
    bench.exchange.parts[1].link.next_try_s = INFINITY;
    assert_int_equal(transfer_newest_step(&bench.exchange, &step, &error), EXCHANGE_STOPPED);
    assert_int_equal(transfer_status(&bench.exchange, found, &error), EXCHANGE_STOPPED);
    end();
}

/* One request of each kind. */
static enum exchange_result ask(enum message_type type, struct error *error)
{
    struct shard_status found[SERVERS];
    struct snapshot_answer answer;
    enum order_state order;
    int64_t step;
    switch (type) {
    case MESSAGE_get_model:
        return transfer_newest_step(&bench.exchange, &step, error);
    case MESSAGE_heartbeat:
        return transfer_status(&bench.exchange, found, error);
    case MESSAGE_begin_restore:
    case MESSAGE_write:
        return transfer_restore(&bench.exchange, 9, &bench.state, "x", error);
    case MESSAGE_end_restore:
        return transfer_end_restore(&bench.exchange, &(struct transfer_place){7, 70, 1}, error);
    case MESSAGE_snapshot:
        return transfer_snapshot(&bench.exchange, 5, -1, 0, &answer, error);
    case MESSAGE_read:
        return transfer_read(&bench.exchange, 5, 1, &bench.state, error);
    default:
        return transfer_order(&bench.exchange, SNAPSHOT_ORDER | 5, 50, 0, &order, error);
    }
}

/*
 * After broken connections, and invalid requests or answers, it tries again on another connection, for a restore at
 * once; after refusals never.
 */
TEST(failures)
{
    static const enum message_type types[] = {MESSAGE_get_model, MESSAGE_heartbeat,   MESSAGE_begin_restore,
                                              MESSAGE_write,     MESSAGE_end_restore, MESSAGE_snapshot,
                                              MESSAGE_read};
    static const struct {
        int how;
        enum exchange_result wanted;
        bool breaks;
    } cases[] = {{NO_ANSWER, EXCHANGE_REJOIN, true},
                 {OTHER_ANSWER, EXCHANGE_REJOIN, true},
                 {OTHER_REQUEST, EXCHANGE_REJOIN, true},
                 {ERROR_BAD_REQUEST, EXCHANGE_REJOIN, true},
                 {ERROR_NOT_ALLOWED, EXCHANGE_FAILED, false},
                 {ERROR_NOT_READY, EXCHANGE_REJOIN, false},
                 {ERROR_OLD_GENERATION, EXCHANGE_REJOIN, false}};
    struct error error;
    (void)state;
    begin("6,20,3", "sgd");
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            assert_int_equal(ask(types[t], &error), EXCHANGE_OK);
            bench.exchange.broken = false;
            servers[1].fails[types[t]] = cases[i].how;
            const bool goes_on = cases[i].how < 0 && (types[t] == MESSAGE_begin_restore || types[t] == MESSAGE_write ||
                                                      types[t] == MESSAGE_end_restore);
            assert_int_equal(ask(types[t], &error), goes_on ? EXCHANGE_OK : cases[i].wanted);
            assert_int_equal(bench.exchange.broken, cases[i].breaks && !goes_on);
            assert_int_equal(link_is_open(&bench.exchange.parts[1].link), goes_on || !cases[i].breaks);
            assert_non_null(strstr(error.text, "ps 1 ("));
            bench.exchange.parts[1].link.next_try_s = 0;
        }
    }
    assert_int_equal(connections(0), 1);
    assert_int_equal(connections(1), 1 + 4 * 7);
    assert_int_equal(atomic_load(&bench.traffic.retries), 4 * 7);
    end();
}

/* It is pointless to wait for a link whose peer refuses us. */
TEST(refusals)
{
    static const enum message_type types[] = {MESSAGE_get_model,   MESSAGE_heartbeat, MESSAGE_begin_restore,
                                              MESSAGE_end_restore, MESSAGE_snapshot,  MESSAGE_read};
    struct error error;
    (void)state;
    begin("6,20,3", "sgd");
    atomic_store(&servers[1].member.refusal, REFUSAL_MEMBER);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        bench.exchange.parts[1].link.next_try_s = 0;
        assert_int_equal(ask(types[t], &error), EXCHANGE_FAILED);
        assert_non_null(strstr(error.text, "as the test wants"));
    }
    end();
}

/* All vectors of the state, each to the ps that holds it, in a new generation; then the release. */
TEST(a_restore)
{
    struct error error;
    (void)state;
    begin("6,20,3", "momentum");
    for (int v = 0; v < STORE_VECTORS; v++) {
        for (size_t i = 0; bench.state.vectors[v] && i < bench.model.float_count; i++) {
            bench.state.vectors[v][i] = (float)(1000 * v) + (float)i;
        }
    }
    assert_int_equal(transfer_restore(&bench.exchange, 9, &bench.state, "anew", &error), EXCHANGE_OK);
    assert_string_equal(told(), "ps 0: begin anew, generation 9\n"
                                "ps 0: write vector 0, 288 at 0\nps 0: write vector 0, 320 at 336\n"
                                "ps 0: write vector 1, 288 at 0\nps 0: write vector 1, 320 at 336\n"
                                "ps 1: begin anew, generation 9\n"
                                "ps 1: write vector 0, 48 at 288\nps 1: write vector 0, 16 at 656\n"
                                "ps 1: write vector 1, 48 at 288\nps 1: write vector 1, 16 at 656\n");
    for (size_t i = 0; i < bench.model.float_count; i++) {
        const bool first = i < 288 || (i >= 336 && i < 656);
        assert_true(servers[!first].vectors[0][i] == (float)i);
        assert_true(servers[!first].vectors[1][i] == (float)(1000 + i));
        assert_true(servers[first].vectors[0][i] == 0);
    }
    assert_int_equal(transfer_end_restore(&bench.exchange, &(struct transfer_place){7, 70, 1}, &error), EXCHANGE_OK);
    assert_string_equal(told(), "ps 0: end at 7, epoch of 70\nps 1: end at 7, epoch of 70\n");
    end();
}

/* A vector too long for a frame is sent in several. */
TEST(a_large_model)
{
    struct error error;
    (void)state;
    begin("1100,1000", "sgd");
    bench.state.vectors[0][(1 << 20) + 5] = 3;
    bench.state.vectors[0][(1 << 20) - 1] = 4;
    assert_int_equal(transfer_restore(&bench.exchange, 9, &bench.state, "anew", &error), EXCHANGE_OK);
    const char *text = told();
    assert_non_null(strstr(text, "ps 0: write vector 0, 1048576 at 0\nps 0: write vector 0, "));
    assert_non_null(strstr(text, " at 1048576\nps 1: begin"));
    assert_true(servers[0].vectors[0][(1 << 20) + 5] == 3 && servers[0].vectors[0][(1 << 20) - 1] == 4);
    end();
}

/* A broken connection costs what was in flight, and later requests are smaller; nothing else is sent twice. */
TEST(a_restore_over_connections_that_break)
{
    struct error error;
    (void)state;
    begin("200,100", "momentum");
    for (int v = 0; v < 2; v++) {
        for (size_t i = 0; i < bench.model.float_count; i++) {
            bench.state.vectors[v][i] = (float)(v + 1) * (float)i;
        }
    }
    servers[0].fails[MESSAGE_begin_restore] = NO_ANSWER;
    servers[0].fails[MESSAGE_write] = NO_ANSWER;
    servers[1].fails[MESSAGE_end_restore] = NO_ANSWER;
    assert_int_equal(transfer_restore(&bench.exchange, 9, &bench.state, "anew", &error), EXCHANGE_OK);
    const char *text = told();
    assert_ptr_equal(strstr(text, "ps 0: begin anew, generation 9\nps 0: begin anew, generation 9\n"
                                  "ps 0: write vector 0, 11200 at 0\nps 0: write vector 0, 11200 at 11200\n"
                                  "ps 0: write vector 1, 11200 at 0\nps 0: write vector 1, 11200 at 11200\n"
                                  "ps 1: begin"),
                     text);
    for (size_t i = 0; i < bench.exchange.parts[0].spans[0].count; i++) {
        assert_true(servers[0].vectors[0][i] == (float)i && servers[0].vectors[1][i] == 2 * (float)i);
    }
    assert_int_equal(transfer_end_restore(&bench.exchange, &(struct transfer_place){7, 70, 1}, &error), EXCHANGE_OK);
    assert_string_equal(told(), "ps 0: end at 7, epoch of 70\nps 1: end at 7, epoch of 70\n"
                                "ps 1: end at 7, epoch of 70\n");
    assert_int_equal(connections(0), 3);
    assert_int_equal(connections(1), 2);
    bench.given_up = true; /* nobody insists beyond that */
    servers[0].fails[MESSAGE_write] = NO_ANSWER;
    stopped_s = clock_monotonic_s();
    const enum exchange_result result = transfer_restore(&bench.exchange, 10, &bench.state, "anew", &error);
    stopped_s = 0;
    assert_int_equal(result, EXCHANGE_STOPPED);
    end();
}

/* It is halved as long as the rest is worth a request. */
TEST(how_little_is_sent_at_once)
{
    struct error error;
    (void)state;
    begin("100,100", "sgd");
    bench.state.vectors[0][0] = 1;
    servers[0].fails[MESSAGE_write] = NO_ANSWER;
    assert_int_equal(transfer_restore(&bench.exchange, 9, &bench.state, "anew", &error), EXCHANGE_OK);
    const unsigned all = (unsigned)bench.exchange.parts[0].spans[0].count, half = all / 2;
    char wanted[128];
    assert_true(half > 4096 && all / 3 < 4096);
    snprintf(wanted, sizeof wanted, "ps 0: write vector 0, %u at 0\nps 0: write vector 0, %u at %u\n", half, half,
             half);
    assert_non_null(strstr(told(), wanted));
    end();
    begin("60,60", "sgd");
    bench.state.vectors[0][0] = 1;
    servers[0].fails[MESSAGE_write] = NO_ANSWER;
    assert_int_equal(transfer_restore(&bench.exchange, 9, &bench.state, "anew", &error), EXCHANGE_OK);
    assert_non_null(strstr(told(), "ps 0: write vector 0, 4096 at 0\nps 0: write vector 0, 704 at 4096\n"));
    end();
}

/* All learn of a snapshot before any is waited for; steps may differ, and some may not be reached in time. */
TEST(snapshots)
{
    struct snapshot_answer answer;
    struct error error;
    (void)state;
    begin("6,20,3", "sgd");
    assert_int_equal(transfer_snapshot(&bench.exchange, 5, -1, WAIT_MS, &answer, &error), EXCHANGE_OK);
    assert_string_equal(told(), "ps 0: snapshot 5 at -1\nps 1: snapshot 5 at -1\n");
    assert_true(answer.taken && !answer.same && answer.global_step == 11);
    servers[0].step = 11;
    assert_int_equal(transfer_snapshot(&bench.exchange, 6, 11, WAIT_MS, &answer, &error), EXCHANGE_OK);
    assert_true(answer.taken && answer.same && answer.global_step == 11);
    told();
    servers[0].fails[MESSAGE_snapshot] = ERROR_TOO_LATE;
    assert_int_equal(transfer_snapshot(&bench.exchange, 7, 12, WAIT_MS, &answer, &error), EXCHANGE_OK);
    assert_string_equal(told(), "ps 0: snapshot 7 at 12\nps 1: snapshot 7 at 12\n"
                                "ps 0: snapshot 7 at 12, waits\nps 1: snapshot 7 at 12, waits\n");
    for (int i = 0; i < SERVERS; i++) {
        assert_in_range(servers[i].wait_ms, WAIT_MS - 20000, WAIT_MS);
    }
    assert_true(answer.taken && answer.same);
    servers[1].fails[MESSAGE_snapshot] = ERROR_PASSED;
    assert_int_equal(transfer_snapshot(&bench.exchange, 8, 12, 0, &answer, &error), EXCHANGE_OK);
    assert_string_equal(told(), "ps 0: snapshot 8 at 12\nps 1: snapshot 8 at 12\n");
    assert_true(!answer.taken && answer.global_step == 11);
    servers[0].fails[MESSAGE_snapshot] = ERROR_TOO_LATE;
    assert_int_equal(transfer_snapshot(&bench.exchange, 9, -1, WAIT_MS, &answer, &error), EXCHANGE_OK);
    assert_string_equal(told(), "ps 0: snapshot 9 at -1\nps 1: snapshot 9 at -1\n"); /* the current state: no waiting */
    assert_false(answer.taken);
    end();
}

/* An ordered one is taken once all have it, and lost if one has not. */
TEST(orders)
{
    enum order_state order;
    struct error error;
    (void)state;
    begin("6,20,3", "sgd");
    assert_int_equal(transfer_order(&bench.exchange, 5, 50, 0, &order, &error), EXCHANGE_OK);
    assert_int_equal(order, ORDER_TAKEN);
    servers[0].fails[MESSAGE_snapshot] = ERROR_TOO_LATE;
    told();
    assert_int_equal(transfer_order(&bench.exchange, 5, 50, WAIT_MS, &order, &error), EXCHANGE_OK);
    assert_string_equal(told(), "ps 0: snapshot 5 at 50, waits\nps 1: snapshot 5 at 50, waits\n");
    for (int i = 0; i < SERVERS; i++) {
        assert_in_range(servers[i].wait_ms, WAIT_MS - 20000, WAIT_MS);
    }
    assert_int_equal(order, ORDER_PENDING);
    servers[0].fails[MESSAGE_snapshot] = ERROR_PASSED;
    assert_int_equal(transfer_order(&bench.exchange, 5, 50, 0, &order, &error), EXCHANGE_OK);
    assert_string_equal(told(), "ps 0: snapshot 5 at 50\n"); /* the others need not be told */
    assert_int_equal(order, ORDER_LOST);
    servers[0].fails[MESSAGE_snapshot] = ERROR_TOO_LATE;
    servers[1].fails[MESSAGE_snapshot] = ERROR_PASSED;
    assert_int_equal(transfer_order(&bench.exchange, 5, 50, 0, &order, &error), EXCHANGE_OK);
    assert_int_equal(order, ORDER_LOST);
    servers[0].fails[MESSAGE_snapshot] = NO_ANSWER;
    assert_int_equal(transfer_order(&bench.exchange, 5, 50, 0, &order, &error), EXCHANGE_REJOIN);
    end();
}

/* What is read goes straight to its place; the snapshot is released only after all of it has arrived. */
TEST(reading)
{
    struct error error;
    (void)state;
    begin("6,20,3", "momentum");
    for (int i = 0; i < SERVERS; i++) {
        for (size_t k = 0; k < bench.model.float_count; k++) {
            servers[i].vectors[0][k] = (float)k;
            servers[i].vectors[1][k] = (float)(1000 + k);
        }
    }
    assert_int_equal(transfer_read(&bench.exchange, 5, ~0u, &bench.state, &error), EXCHANGE_OK);
    assert_string_equal(told(), "ps 0: read 5 vector 0\nps 0: read 5 vector 1\n"
                                "ps 1: read 5 vector 0\nps 1: read 5 vector 1\nps 0: release 5\nps 1: release 5\n");
    for (size_t k = 0; k < bench.model.float_count; k++) {
        assert_true(bench.state.vectors[0][k] == (float)k && bench.state.vectors[1][k] == (float)(1000 + k));
    }
    assert_true(atomic_load(&bench.traffic.bytes_in) > 2 * sizeof(float) * 672);
    assert_int_equal(transfer_read(&bench.exchange, 6, 2, &bench.state, &error), EXCHANGE_OK);
    assert_string_equal(told(), "ps 0: read 6 vector 1\nps 1: read 6 vector 1\nps 0: release 6\nps 1: release 6\n");
    const int ways[] = {NO_ANSWER, HALF, TORN, PAST, BEYOND};
    for (int i = 0; i < 5; i++) {
        servers[1].fails[MESSAGE_read] = ways[i];
        assert_int_equal(transfer_read(&bench.exchange, 7, 1, &bench.state, &error), EXCHANGE_REJOIN);
        assert_string_equal(told(), "ps 0: read 7 vector 0\nps 1: read 7 vector 0\n");
        assert_false(link_is_open(&bench.exchange.parts[1].link));
        bench.exchange.parts[1].link.next_try_s = 0;
    }
    assert_non_null(strstr(error.text, "are beyond the model's 672"));
    servers[0].fails[MESSAGE_read] = NO_ANSWER; /* the others need not be asked */
    assert_int_equal(transfer_read(&bench.exchange, 7, 3, &bench.state, &error), EXCHANGE_REJOIN);
    assert_string_equal(told(), "ps 0: read 7 vector 0\n");
    end();
}

/* A ps without parameters is sent no requests. */
TEST(a_ps_without_parameters)
{
    struct snapshot_answer answer;
    enum order_state order;
    struct error error;
    (void)state;
    begin("6,20,3", "sgd");
    bench.exchange.parts[0].span_count = 0;
    assert_int_equal(transfer_snapshot(&bench.exchange, 5, -1, 0, &answer, &error), EXCHANGE_OK);
    assert_true(answer.taken && answer.same && answer.global_step == 11);
    assert_int_equal(transfer_order(&bench.exchange, SNAPSHOT_ORDER | 6, 50, 0, &order, &error), EXCHANGE_OK);
    assert_int_equal(order, ORDER_TAKEN);
    assert_int_equal(transfer_read(&bench.exchange, 5, 1, &bench.state, &error), EXCHANGE_OK);
    const char *text = told();
    assert_int_equal(times(text, "ps 0: "), 0);
    assert_int_equal(times(text, "ps 1: "), 4);
    assert_int_equal(connections(0), 0);
    end();
}

/* The sent model is written and read with the rest, unless it equals the parameters, which a ps takes for it anyway. */
TEST(what_workers_were_told)
{
    struct error error;
    (void)state;
    begin("6,20,3", "sgd");
    float *parameters = bench.state.vectors[STORE_PARAMETERS],
          *sent_model = calloc(bench.model.float_count, sizeof(float));
    bench.state.vectors[STORE_SENT] = sent_model;
    for (size_t i = 0; i < bench.model.float_count; i++) {
        parameters[i] = sent_model[i] = (float)i;
    }
    sent_model[288] = -1; /* of ps 1 */
    assert_int_equal(transfer_restore(&bench.exchange, 9, &bench.state, "anew", &error), EXCHANGE_OK);
    char wanted[64];
    snprintf(wanted, sizeof wanted, "write vector %d, ", STORE_SENT);
    const char *text = told();
    assert_int_equal(times(text, wanted), 2);
    assert_non_null(strstr(strstr(text, "ps 1: begin"), wanted));
    assert_true(servers[1].vectors[STORE_SENT][288] == -1 && servers[1].vectors[STORE_SENT][289] == 289);
    memset(sent_model, 0, bench.model.float_count * sizeof *sent_model);
    memset(servers[0].vectors[STORE_SENT], 0, bench.model.float_count * sizeof(float));
    servers[0].vectors[STORE_SENT][3] = 5;
    told();
    assert_int_equal(transfer_read(&bench.exchange, 5, ~0u, &bench.state, &error), EXCHANGE_OK);
    snprintf(wanted, sizeof wanted, "read 5 vector %d\n", STORE_SENT);
    assert_int_equal(times(told(), wanted), 2);
    assert_true(sent_model[3] == 5 && sent_model[4] == 0);
    assert_true(sent_model[288] == -1 && sent_model[656] == 656);
    for (size_t i = 0; i < bench.model.float_count; i++) {
        sent_model[i] = parameters[i];
    }
    assert_int_equal(transfer_restore(&bench.exchange, 10, &bench.state, "anew", &error), EXCHANGE_OK);
    snprintf(wanted, sizeof wanted, "ps 1: write vector %d, ", STORE_SENT);
    assert_null(strstr(told(), wanted));
    bench.state.vectors[STORE_SENT] = NULL;
    free(sent_model);
    end();
}

/* A lost release is sent again, once; a refused one is not, and an absent ps is skipped. */
TEST(releases)
{
    begin("6,20,3", "sgd");
    servers[0].fails[MESSAGE_release] = ERROR_NOT_READY;
    transfer_release(&bench.exchange, 5);
    assert_string_equal(told(), "ps 0: release 5\nps 1: release 5\n");
    assert_int_equal(atomic_load(&bench.traffic.retries), 0);
    servers[0].fails[MESSAGE_release] = NO_ANSWER;
    stopped_s = clock_monotonic_s();
    transfer_release(&bench.exchange, 6);
    stopped_s = 0;
    assert_int_equal(atomic_load(&bench.traffic.retries), 1);
    assert_string_equal(told(), "ps 0: release 6\nps 1: release 6\n"); /* not before its next try is due */
    link_close(&bench.exchange.parts[0].link);
    bench.exchange.parts[0].link.next_try_s = INFINITY;
    transfer_release(&bench.exchange, 7);
    assert_string_equal(told(), "ps 1: release 7\n");
    end();
}

/* All are told of the end, if only at the second attempt, and those that can't be are reported. */
TEST(the_end)
{
    const struct message_end_job message = {
        .job_state = JOB_DONE, .global_step = 90, .test_accuracy = 0.5f, .message = "well"};
    struct error error;
    (void)state;
    begin("6,20,3", "sgd");
    assert_true(transfer_end_job(&bench.exchange, &message, 0, &error));
    assert_string_equal(told(), "ps 0: end 3 at 90, 0.5: well\nps 1: end 3 at 90, 0.5: well\n");
    servers[0].fails[MESSAGE_end_job] = NO_ANSWER; /* the connection is cut */
    assert_true(transfer_end_job(&bench.exchange, &message, fake_member_soon(), &error));
    assert_string_equal(told(),
                        "ps 0: end 3 at 90, 0.5: well\nps 0: end 3 at 90, 0.5: well\nps 1: end 3 at 90, 0.5: well\n");
    servers[0].fails[MESSAGE_end_job] = ERROR_NOT_READY; /* after a refusal no second attempt */
    assert_false(transfer_end_job(&bench.exchange, &message, fake_member_soon(), &error));
    assert_string_equal(told(), "ps 0: end 3 at 90, 0.5: well\nps 1: end 3 at 90, 0.5: well\n");
    assert_non_null(strstr(error.text, "as the test wants"));
    link_close(&bench.exchange.parts[0].link);
    bench.exchange.parts[0].link.next_try_s = INFINITY;
    assert_false(transfer_end_job(&bench.exchange, &message, 0, &error));
    assert_string_equal(told(), "ps 1: end 3 at 90, 0.5: well\n");
    bench.exchange.parts[0].link.next_try_s = 0;
    atomic_store(&servers[0].member.refusal, REFUSAL_MEMBER); /* nor will it be told later */
    const double begun_s = clock_monotonic_s();
    assert_false(transfer_end_job(&bench.exchange, &message, begun_s + 60, &error));
    assert_true(clock_monotonic_s() - begun_s < 45);
    assert_string_equal(told(), "ps 1: end 3 at 90, 0.5: well\n");
    end();
}

int main(void)
{
    return check_run(NULL, NULL);
}
