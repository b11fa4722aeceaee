/*
 * Clients whose peer has the key and is hostile: an operator who asks about the fleet and a rollout; a worker that
 * pushes and pulls, and fetches its rows' preprocessing or whole batches; a chief that takes snapshots and restores;
 * and a server that receives a hello. The input is what arrives on one connection after another, mostly in well-formed
 * frames, so that it gets past their decoder. Whatever it is, every client finishes, and floats land within the model.
 *
 * There is no network and no real time: connections are halves of socket pairs that contain everything that will ever
 * arrive, and the clock advances whenever it is read.
 */
#include "tests/fuzz/fuzz.h"

#include <errno.h>
#include <pthread.h>
#include <sodium.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "net/message.h"
#include "ps/rollout/manifest.h"
#include "ps/status.h"
#include "tests/worker/remote/exchange/fake_engine.h"
#include "worker/data/examples.h"
#include "worker/remote/batches.h"
#include "worker/remote/exchange/requests.h"
#include "worker/remote/operator/rollout_client.h"
#include "worker/remote/transfer.h"

FUZZ_MEMORY(16, 2 << 20)

enum { MOST_CONNECTIONS = 8, SIGNED = 0x80 /* a frame's flag: its bulk ends with the operator's signature */ };

static struct stage {
    struct input input;
    double now_s;
    int connections;
    int peers[MOST_CONNECTIONS]; /* the other halves */
} stage;

static struct {
    struct config config;
    struct model model;
    struct identity identity;
    struct traffic traffic;
    uint8_t public_key[OPERATOR_PUBLIC_KEY], secret_key[OPERATOR_SECRET_KEY];
} world;

/* --- Time --- */

double __wrap_clock_monotonic_s(void);
double __wrap_clock_monotonic_s(void)
{
    return stage.now_s += 0.001;
}

enum wake_result __real_wake_wait(int fd, short events, const struct wake *wake, double deadline_s);
enum wake_result __wrap_wake_wait(int fd, short events, const struct wake *wake, double deadline_s);
enum wake_result __wrap_wake_wait(int fd, short events, const struct wake *wake, double deadline_s)
{
    if (fd < 0) {
        stage.now_s = deadline_s > stage.now_s ? deadline_s : stage.now_s;
        return WAKE_TIMEOUT;
    }
    return __real_wake_wait(fd, events, wake, deadline_s);
}

/* --- A second thread, which runs while the first waits --- */

static struct {
    bool wanted, runs, stops;
    void *(*run)(void *context);
    void *context;
} second;

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *context),
                          void *context);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *context),
                          void *context);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *context),
                          void *context)
{
    if (!second.wanted) {
        return __real_pthread_create(thread, attributes, run, context);
    }
    second.run = run;
    second.context = context;
    return 0;
}

int __real_pthread_join(pthread_t thread, void **result);
int __wrap_pthread_join(pthread_t thread, void **result);
int __wrap_pthread_join(pthread_t thread, void **result)
{
    return second.wanted ? 0 : __real_pthread_join(thread, result);
}

/* It runs until it waits itself, or its input ends. */
int __wrap_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until);
int __wrap_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until)
{
    pthread_mutex_unlock(mutex);
    stage.now_s += 0.1;
    if (second.runs) {
        second.stops = true;
    } else if (second.run) {
        second.runs = true;
        second.stops = false;
        second.run(second.context);
        second.runs = false;
    }
    pthread_mutex_lock(mutex);
    return ETIMEDOUT;
}

/* --- What arrives --- */

static void put(int fd, const void *bytes, size_t size)
{
    ssize_t ignored = send(fd, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)ignored; /* what does not fit does not arrive */
}

static void put_frame(int fd, const struct frame *frame, const uint8_t *message, const uint8_t *bulk)
{
    uint8_t header[FRAME_HEADER];
    frame_encode(frame, header);
    put(fd, header, sizeof header);
    put(fd, message, frame->message_bytes);
    put(fd, bulk, frame->bulk_bytes);
}

static void put_welcome(int fd, const struct member *expected)
{
    const union message message = {.welcome = {.version = PROTOCOL_VERSION_MAX,
                                               .program = "trainer",
                                               .role = (uint8_t)expected->role,
                                               .index = expected->index,
                                               .incarnation = 7,
                                               .digest = "",
                                               .lease_ms = 1000}};
    uint8_t bytes[256];
    const size_t size = message_size(PROTOCOL_VERSION_MAX, MESSAGE_welcome, &message);
    message_encode(PROTOCOL_VERSION_MAX, MESSAGE_welcome, &message, bytes, size);
    put_frame(fd,
              &(struct frame){.version = PROTOCOL_VERSION_MAX,
                              .type = MESSAGE_welcome,
                              .request = 1,
                              .flags = FRAME_LAST,
                              .message_bytes = (uint32_t)size},
              bytes, NULL);
}

/* Type, flags, request, generation, two sizes, and that many bytes. False: the connection ends here. */
static bool put_next(int fd)
{
    static uint8_t bulk[1 << 16];
    struct frame frame = {.version = PROTOCOL_VERSION_MAX};
    size_t message_bytes, bulk_bytes;
    frame.type = input_byte(&stage.input);
    if (frame.type == 0) {
        return false;
    }
    const uint8_t flags = input_byte(&stage.input);
    frame.flags = flags & FRAME_LAST;
    frame.request = input_byte(&stage.input);
    frame.generation = input_byte(&stage.input);
    message_bytes = input_byte(&stage.input);
    message_bytes |= (size_t)input_byte(&stage.input) << 8;
    bulk_bytes = input_byte(&stage.input);
    bulk_bytes |= (size_t)input_byte(&stage.input) << 8;
    const uint8_t *message = input_bytes(&stage.input, message_bytes, &message_bytes);
    const uint8_t *from = input_bytes(&stage.input, bulk_bytes, &bulk_bytes);
    memcpy(bulk, from, bulk_bytes);
    if (flags & SIGNED && bulk_bytes >= MANIFEST_SIGNATURE) {
        const size_t text = bulk_bytes - MANIFEST_SIGNATURE;
        crypto_sign_detached(bulk + text, NULL, bulk, text, world.secret_key);
    }
    frame.message_bytes = (uint32_t)message_bytes;
    frame.bulk_bytes = (uint32_t)bulk_bytes;
    put_frame(fd, &frame, message, bulk);
    return true;
}

static bool is_over(void *context)
{
    return input_left(&stage.input) == 0 || stage.connections == MOST_CONNECTIONS;
}

/* A connection with the next part of the input, up to a frame of type 0; starts with a welcome if requested. */
static bool meet(struct connection **connection, const struct member *expected, struct error *error)
{
    int sockets[2], room = 1 << 20;
    *connection = NULL;
    if (is_over(NULL) || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets) != 0) {
        return error_set(error, "nobody is there");
    }
    setsockopt(sockets[1], SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    stage.peers[stage.connections++] = sockets[1];
    if (input_byte(&stage.input) % 8 != 0 && expected) {
        put_welcome(sockets[1], expected);
    }
    while (put_next(sockets[1])) {
    }
    shutdown(sockets[1], SHUT_WR);
    if (!connection_serve(connection, sockets[0], "peer", NULL, NULL, stage.now_s + 10, error)) {
        abort();
    }
    return true;
}

bool __wrap_connection_connect(struct connection **connection, const struct address *address,
                               const struct member *expected, const struct credentials *credentials,
                               const struct wake *wake, double deadline_s, struct error *error);
bool __wrap_connection_connect(struct connection **connection, const struct address *address,
                               const struct member *expected, const struct credentials *credentials,
                               const struct wake *wake, double deadline_s, struct error *error)
{
    return meet(connection, expected, error);
}

/* --- Clients --- */

static void ask_about_rollout(void)
{
    struct rollout_client client;
    struct fleet_view view = {.job = NULL};
    struct error error = {""};
    uint8_t wish[64] = {0};
    const struct operator_keys keys = operator_keys_of(world.public_key);
    if (rollout_client_open(&client, &world.config, &error)) {
        if (rollout_client_reach(&client, &error) && fleet_view_ask(&view, &client, &world.config, &keys, &error)) {
            assert(view.running.fleet.name && strcmp(view.running.fleet.name, world.config.fleet.name) == 0);
            assert(view.earlier && view.earlier_local);
        }
        fleet_view_free(&view);
        if (rollout_client_ask(&client, &error)) {
            rollout_client_propose(&client, wish, sizeof wish, 1, &error);
        }
        if (rollout_client_ask(&client, &error)) {
            rollout_client_abort(&client, "me", wish, sizeof wish, &error);
        }
    }
    rollout_client_close(&client);
}

static void ask_how_they_are(void)
{
    struct status_query *query;
    struct error error;
    if (!status_query_create(&query, &world.config, &error)) {
        abort();
    }
    for (int i = 0; i < 2; i++) {
        int count;
        const struct board_member *entries = status_query_ask(query, 2, &count);
        assert(count >= 2);
        for (int k = 0; k < count; k++) {
            assert(strlen(entries[k].message) < sizeof entries[k].message && entries[k].address[0] != '\0');
        }
    }
    status_query_destroy(query);
}

static void fill(struct outbox *outbox)
{
    const struct gradient_sink sink = outbox_sink(outbox);
    outbox_begin(outbox);
    for (int v = 0; v < world.model.variable_count; v++) {
        const struct variable *variable = &world.model.variables[v];
        float row[64];
        for (int c = 0; c < variable->cols; c++) {
            row[c] = 1;
        }
        sink.block(
            sink.context,
            &(struct gradient_block){
                .variable = v, .row = 0, .rows = 1, .cols = variable->cols, .values = row, .stride = variable->cols});
    }
}

static void train(struct push_pull *exchange)
{
    struct outbox outbox;
    struct push_answer answer;
    struct error error = {""};
    outbox_create(&outbox, &world.model, outbox_form(&world.config), NULL);
    enum exchange_result end = push_pull_join(exchange, &error);
    for (int i = 0; i < 3 && end == EXCHANGE_OK; i++) {
        const struct push_note note = {.base_step = exchange->global_step, .local_step = i, .examples = 1};
        fill(&outbox);
        end = push_pull_exchange(exchange, &outbox, &note, &answer, &error);
    }
    end = end == EXCHANGE_OK ? push_pull_refresh(exchange, &error) : end;
    if (end == EXCHANGE_OK) {
        push_pull_await_step(exchange, exchange->global_step, &error);
    }
    outbox_destroy(&outbox);
}

static void lead(struct push_pull *exchange)
{
    struct checkpoint_state state;
    struct shard_status status;
    struct snapshot_answer answer;
    enum order_state order;
    struct error error = {""};
    int64_t step;
    checkpoint_state_create(&state, &world.model, &world.config.train);
    transfer_status(exchange, &status, &error);
    transfer_newest_step(exchange, &step, &error);
    if (transfer_snapshot(exchange, 3, -1, 100, &answer, &error) == EXCHANGE_OK && answer.taken) {
        transfer_read(exchange, 3, 1, &state, &error);
    }
    transfer_order(exchange, 4, 10, 100, &order, &error);
    if (transfer_restore(exchange, 2, &state, "fuzz", &error) == EXCHANGE_OK) {
        transfer_end_restore(exchange, &(struct transfer_place){.global_step = 5, .epoch_batches = 1}, &error);
    }
    transfer_end_job(exchange, &(struct message_end_job){.job_state = 3, .message = ""}, 0, &error);
    checkpoint_state_destroy(&state);
}

static void exchange_by(void (*use)(struct push_pull *exchange))
{
    struct fake_engine engine = {.engine = {.table = &fake_engine_near}};
    struct push_pull exchange;
    struct error error;
    const struct push_pull_options options = {.config = &world.config,
                                              .model = &world.model,
                                              .engine = &engine.engine,
                                              .identity = &world.identity,
                                              .traffic = &world.traffic,
                                              .given_up = is_over,
                                              .quiet = true};
    engine.parameters = calloc(world.model.float_count, sizeof *engine.parameters); /* a separate block */
    if (!engine.parameters || !push_pull_create(&exchange, &options, &error)) {
        abort();
    }
    use(&exchange);
    push_pull_destroy(&exchange);
    free(engine.parameters);
}

static void learn_about_rows(struct push_pull *exchange)
{
    static char own[] = "{}";
    struct error error = {""};
    for (int worker = 1; worker < 3; worker++) {
        char *text;
        if (preprocessing_fetch(exchange, &text, &error) != EXCHANGE_OK) {
            assert(!text);
        }
        free(text);
        preprocessing_send_stats(exchange, own, &error);
        if (preprocessing_fetch_stats(exchange, worker, &text, &error) != EXCHANGE_OK) {
            assert(!text);
        }
        free(text);
    }
}

static bool fetches_no_more(void *context)
{
    return is_over(context) || (second.runs && second.stops);
}

static void check_batch(const struct batch *batch)
{
    const struct examples *examples = batch->examples;
    assert(batch->count > 0 && batch->count <= world.config.train.batch_size && examples->count == batch->count);
    for (int i = 0; i < batch->count; i++) {
        assert(batch->indexes[i] == i);
        assert(examples->labels[i] >= 0 && examples->labels[i] < world.config.model.layers[2]);
    }
    for (int i = 0; i < examples->count * examples->codes; i++) {
        assert(examples->places[i] == -1 ||
               (examples->places[i] >= 0 && examples->places[i] < examples->inputs - examples->numbers));
    }
}

/* Batches of images or of rows. */
static void fetch_batches(bool of_rows)
{
    const struct examples rows = {.inputs = 6, .numbers = 2, .codes = 2, .classes = 3};
    struct batch_fetcher *fetcher;
    struct batch_fetcher_facts facts;
    struct batch batch;
    struct error error = {""};
    const struct batch_fetcher_options options = {.config = &world.config,
                                                  .like = of_rows ? &rows : NULL,
                                                  .identity = &world.identity,
                                                  .traffic = &world.traffic,
                                                  .given_up = fetches_no_more};
    second.wanted = true;
    second.run = NULL;
    if (!batch_fetcher_create(&fetcher, &options, &error)) {
        abort();
    }
    if (batch_fetcher_ask(fetcher, &facts, &error) == EXCHANGE_OK) {
        assert(facts.train > 0 && facts.validation >= 0 && strlen(facts.description) < sizeof facts.description);
        int64_t number = 0;
        for (int i = 0; i < 12; i++) {
            if (batch_fetcher_take(fetcher, number, &batch, &error) != EXCHANGE_OK) {
                break;
            }
            check_batch(&batch);
            number += i == 7 ? 5 : 1;
        }
    }
    batch_fetcher_destroy(fetcher);
    second.wanted = false;
    second.run = NULL;
}

static void answer_hello(void)
{
    struct connection *connection;
    struct channel channel;
    struct peer peer;
    struct error error = {""};
    struct hello_identity identity = world.identity.hello;
    identity.member = (struct member){MEMBER_PS, 0};
    if (!meet(&connection, NULL, &error)) {
        return;
    }
    channel_open(&channel, connection);
    if (!handshake_accept(&channel, &identity, &(struct handshake_rules){0}, &peer, stage.now_s + 5, &error)) {
        check_beginning(&error, "");
    }
    channel_close(&channel);
}

static void make_world(void)
{
    static const uint8_t seed[crypto_sign_SEEDBYTES] = {1};
    static const struct config_setting settings[] = {
        {"insecure", "true"},   {"layers", "6,20,3"}, {"worker_hosts", "127.0.0.1:1"},
        {"job_name", "worker"}, {"optimizer", "sgd"}, {"ps_hosts", "127.0.0.1:2"}};
    struct error error;
    be_silent();
    crypto_sign_seed_keypair(world.public_key, world.secret_key, seed);
    if (!config_parse(&world.config, NULL, NULL, 0, settings, sizeof settings / sizeof *settings, &error) ||
        !identity_create(&world.identity, &world.config, (struct member){MEMBER_WORKER, 0}, &error)) {
        abort();
    }
    model_layout(&world.model, &world.config.model);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    if (!world.config.origins) {
        make_world();
    }
    stage = (struct stage){.input = input_of(bytes, size), .now_s = 1000};
    world.traffic = (struct traffic){.retries = 0};
    const uint8_t kind = input_byte(&stage.input);
    world.config.cluster.wire_dtype = kind & 0x20 ? WIRE_INT8 : kind & 0x80 ? WIRE_BFLOAT16 : WIRE_FLOAT32;
    world.config.cluster.wire_top = kind & 0x10 ? 0.1 : 1;
    world.config.cluster.issync = kind & 0x40;
    switch (kind % 8) {
    case 0:
        ask_about_rollout();
        break;
    case 1:
        ask_how_they_are();
        break;
    case 2:
        answer_hello();
        break;
    case 3:
        exchange_by(lead);
        break;
    case 6:
        exchange_by(learn_about_rows);
        break;
    case 5:
        fetch_batches(kind & 0x80);
        break;
    default:
        exchange_by(train);
    }
    for (int i = 0; i < stage.connections; i++) {
        close(stage.peers[i]);
    }
    return 0;
}
