/*
 * A ps and hostile members with the key: the input is what several sessions send, in any order and also while other
 * requests wait, to the program's own handlers, job and shard (tests/ps/server/serving.h); and, for a ps that follows
 * another's decisions, what that one answers. Whatever is sent, answers can be decoded, no step is lost or counted
 * twice, and nothing that a request held stays held.
 *
 * Most of what is sent is well formed, so that it gets past the decoder, which has its own fuzzer.
 */
#include "tests/fuzz/fuzz.h"

#include "tests/ps/server/serving.h"

FUZZ_MEMORY(64, 8 << 20)

enum { MOST_DEPTH = 4, MOST_RANGES = 4, MOST_FLOATS = 4096, MOST_BULK = 1 << 21, TEXT = 12 };

/* Simulated time of the ps, over all requests of an input, each of which may wait for ten minutes: then all stop. */
enum { MOST_WAITS = 20000 };

static struct input input;

static uint8_t take(void)
{
    return input_byte(&input);
}

/* --- Messages --- */

static int64_t take_step(void)
{
    const uint8_t byte = take();
    switch (byte) {
    case 0x7f:
        return MESSAGE_MAX_SIGNED;
    case 0x80:
        return -MESSAGE_MAX_SIGNED;
    case 0x7e:
        return JOB_MAX_STEP;
    default:
        return serving.server.job.global_step + (int8_t)byte;
    }
}

static uint32_t take_wait(void)
{
    static const uint32_t waits_ms[] = {0, 1000, 20000, 600000};
    return waits_ms[take() % 4];
}

static float take_float(void)
{
    static const float floats[] = {1.0f, 0.0f, -0.0f, -2.5f, NAN, INFINITY, 1e-40f, 3e38f};
    return floats[take() % 8];
}

static const char *take_text(char text[TEXT])
{
    const int count = take() % TEXT;
    for (int i = 0; i < count; i++) {
        text[i] = (char)take();
    }
    text[count] = '\0';
    return text;
}

/* Parts of the vector, or of the list of workers: everything, or a few. */
static struct ranges take_ranges(uint8_t bytes[MOST_RANGES * RANGE_BYTES])
{
    const struct span *spans;
    const int span_count = shard_spans(serving.server.shard, &spans);
    const uint8_t kind = take();
    struct ranges ranges = {bytes, 0};
    if (kind >= 0xc0) {
        for (int i = 0; i < span_count && i < MOST_RANGES; i++) {
            range_put(bytes, ranges.count++, (struct range){spans[i].first, (uint32_t)spans[i].count});
        }
        return ranges;
    }
    uint64_t first = 0;
    for (int i = 0; i < kind % (MOST_RANGES + 1); i++) {
        first += take();
        const uint32_t count = take() % 64;
        range_put(bytes, ranges.count++, (struct range){first, count});
        first += count;
    }
    return ranges;
}

/* Memory that a message borrows. */
struct borrowed {
    uint8_t ranges[2][MOST_RANGES * RANGE_BYTES];
    char text[TEXT], more[TEXT];
    float bulk[MOST_FLOATS];
};

static void make_model_request(uint16_t type, union message *message, struct borrowed *borrowed)
{
    switch (type) {
    case MESSAGE_begin_restore:
        message->begin_restore.source = take_text(borrowed->text);
        break;
    case MESSAGE_write:
        message->write = (struct message_write){.vector = take() % 5, .dtype = take() % 2};
        message->write.ranges = take_ranges(borrowed->ranges[0]);
        break;
    case MESSAGE_end_restore:
        message->end_restore = (struct message_end_restore){
            .global_step = take_step(), .epoch_batches = (int64_t)take() << (take() % 54), .retries = take() % 11};
        break;
    case MESSAGE_snapshot:
        message->snapshot = (struct message_snapshot){take(), take_step(), take_wait()};
        message->snapshot.snapshot |= take() % 2 == 0 ? SNAPSHOT_ORDER : 0;
        break;
    case MESSAGE_release:
        message->release.snapshot = take() | (take() % 2 == 0 ? SNAPSHOT_ORDER : 0);
        break;
    case MESSAGE_read:
        message->read = (struct message_read){take() % 5, take() % 8, {NULL, 0}};
        message->read.snapshot |= message->read.snapshot > 3 ? SNAPSHOT_ORDER : 0;
        message->read.ranges = take_ranges(borrowed->ranges[0]);
        break;
    default:
        message->get_model.wait_ms = take_wait();
    }
}

static void make_training_request(uint16_t type, union message *message, struct borrowed *borrowed)
{
    switch (type) {
    case MESSAGE_push:
        message->push = (struct message_push){.sequence = take() % 16,
                                              .base_version = take(),
                                              .base_step = take_step(),
                                              .token = take_step(),
                                              .loss = take_float(),
                                              .answer_dtype = take() % 7,
                                              .dtype = take() % 7};
        message->push.ranges = take_ranges(borrowed->ranges[0]);
        break;
    case MESSAGE_pull:
        message->pull = (struct message_pull){
            .dtype = take() % 7, .since_version = take(), .after_step = take_step(), .wait_ms = take_wait()};
        message->pull.ranges = take() % 4 == 0 ? take_ranges(borrowed->ranges[0]) : (struct ranges){NULL, 0};
        break;
    case MESSAGE_staged:
        message->staged.step = take_step();
        message->staged.finite = take_ranges(borrowed->ranges[0]);
        message->staged.not_finite = take_ranges(borrowed->ranges[1]);
        break;
    default:
        message->get_aggregate = (struct message_get_aggregate){take_step(), take_wait()};
    }
}

static void make_other_request(uint16_t type, union message *message, struct borrowed *borrowed)
{
    switch (type) {
    case MESSAGE_heartbeat:
        message->heartbeat = (struct message_heartbeat){.state = take() % 9,
                                                        .global_step = take_step(),
                                                        .loss = take_float(),
                                                        .host = take_text(borrowed->text),
                                                        .message = take_text(borrowed->more)};
        break;
    case MESSAGE_end_job:
        message->end_job = (struct message_end_job){take() % 5, take_step(), take_float(), take_text(borrowed->text)};
        break;
    case MESSAGE_leave:
        message->leave.message = take_text(borrowed->text);
        break;
    case MESSAGE_get_status:
        message->get_status.members = take() % 3;
        break;
    case MESSAGE_pong:
        message->pong.nonce = take();
        break;
    case MESSAGE_get_place:
        message->get_place.key = take() % 6;
        break;
    case MESSAGE_figures:
        message->figures.worker = take() % 8 - 1;
        break;
    case MESSAGE_validated:
        message->validated = (struct message_validated){take_step(), take() % 4, take_float(), take() % 2};
        break;
    case MESSAGE_validate:
        message->validate = (struct message_validate){take_step(), take() % 2, take() % 4, take_float(), take() % 2};
        break;
    default:
        break;
    }
}

/* Packed floats, valid or nearly so: a few of each range, and now and then an arbitrary byte. */
static size_t pack_bulk(enum dtype dtype, const struct ranges *ranges, float value, uint8_t bytes[MOST_FLOATS * 4])
{
    size_t size = 0;
    for (uint32_t i = 0; i < ranges->count; i++) {
        const uint32_t count = range_get(ranges, i).count;
        const size_t blocks = (count + 63) / 64;
        if (dtype == DTYPE_INT8) {
            for (size_t k = 0; k < blocks; k++) {
                memcpy(bytes + size + k * sizeof value, &value, sizeof value);
            }
            memset(bytes + size + blocks * sizeof value, take(), count);
            size += blocks * sizeof value + count;
            continue;
        }
        const uint8_t chosen = take() % 4, gap = take();
        const size_t each = dtype == DTYPE_LARGEST_FLOAT32 ? 4 : 2;
        const size_t values = dtype == DTYPE_LARGEST_INT8 ? (chosen > 0) * sizeof value + chosen : chosen * each;
        memcpy(bytes + size, (const uint8_t[]){chosen, 0, chosen, 0, gap % 8, gap / 8 % 8, gap / 64}, 7);
        memset(bytes + size + 4 + chosen, take(), values);
        size += 4 + chosen + values;
    }
    if (size > 0 && take() % 4 == 0) {
        bytes[take() % size] = take();
        size -= take() % 4 == 0;
    }
    return size;
}

static void send_frame(struct serving_session *one)
{
    static const uint16_t types[] = {
        MESSAGE_push,          MESSAGE_push,        MESSAGE_pull,        MESSAGE_begin_restore, MESSAGE_write,
        MESSAGE_end_restore,   MESSAGE_get_model,   MESSAGE_read,        MESSAGE_snapshot,      MESSAGE_release,
        MESSAGE_heartbeat,     MESSAGE_end_job,     MESSAGE_leave,       MESSAGE_get_status,    MESSAGE_staged,
        MESSAGE_get_aggregate, MESSAGE_ping,        MESSAGE_pong,        MESSAGE_report,        MESSAGE_propose,
        MESSAGE_abort_rollout, MESSAGE_get_batches, MESSAGE_welcome,     MESSAGE_done,          MESSAGE_describe,
        MESSAGE_layers,        MESSAGE_figures,     MESSAGE_validated,   MESSAGE_validate,      MESSAGE_get_place,
        MESSAGE_offer_program, MESSAGE_put_program, MESSAGE_get_program,
    };
    static struct borrowed borrowed;
    union message message;
    struct error error;
    const uint16_t type = types[take() % (sizeof types / sizeof types[0])];
    const uint8_t how = take(); /* bit 0: more frames follow; 1: of the same request; 2 and more: generation */
    memset(&message, 0, sizeof message);
    make_other_request(type, &message, &borrowed);
    const struct ranges *ranges = type == MESSAGE_push    ? &message.push.ranges
                                  : type == MESSAGE_write ? &message.write.ranges
                                                          : NULL;
    const bool trains =
        type == MESSAGE_push || type == MESSAGE_pull || type == MESSAGE_staged || type == MESSAGE_get_aggregate;
    if (trains) {
        make_training_request(type, &message, &borrowed);
    } else if ((type >= MESSAGE_get_model && type <= MESSAGE_release) && type != MESSAGE_model) {
        make_model_request(type, &message, &borrowed);
    }
    one->client.generation = serving.server.job.generation + (how >> 2) % 4 - ((how >> 4) % 4);
    one->client.next_request += (how & 2) == 0;
    struct iovec bulk = {borrowed.bulk, 0};
    if (ranges) {
        const float value = take_float();
        const uint64_t floats = ranges_total(ranges);
        const uint8_t dtype = type == MESSAGE_push ? message.push.dtype : message.write.dtype;
        if (floats > MOST_FLOATS) {
            return;
        }
        if (dtype_is_packed((enum dtype)dtype)) {
            bulk.iov_len = pack_bulk((enum dtype)dtype, ranges, value, (uint8_t *)borrowed.bulk);
        } else {
            bulk.iov_len = floats * dtype_size((enum dtype)dtype);
        }
        for (uint64_t i = 0; i < floats && !dtype_is_packed((enum dtype)dtype); i++) {
            borrowed.bulk[i] = value;
        }
    }
    if (type == MESSAGE_figures || type == MESSAGE_validated) { /* some text, or none */
        bulk.iov_len = (size_t)(take() % 4) << (take() % 12);
        memset(borrowed.bulk, '{', bulk.iov_len);
    }
    /* A full pipe counts as a peer that has given up. */
    const struct outgoing frame = {type, one->client.next_request, &message, &bulk, bulk.iov_len > 0, how & 1};
    if (!channel_send_frame(&one->client, &frame, serving.now_s, &error) ||
        !connection_flush(one->client.connection, serving.now_s, &error)) {
        channel_close(&one->client);
    }
}

/* --- Sessions --- */

/* Everything that the ps has sent must be valid. */
static void read_answers(struct serving_session *one)
{
    static uint8_t bulk[MOST_BULK];
    struct error error;
    for (;;) {
        const struct connection *connection = one->client.connection;
        struct pollfd there = {.fd = connection ? connection->fd : -1, .events = POLLIN};
        if (!connection || one->deaf ||
            (connection->in_start == connection->in_end && (poll(&there, 1, 0) <= 0 || !(there.revents & POLLIN)))) {
            return;
        }
        if (!channel_receive(&one->client, serving.now_s, &error) ||
            !channel_read_bulk(&one->client, bulk, one->client.bulk_left, serving.now_s, &error)) {
            /* It was cut, or ended. */
            if (!one->session.base.disconnected &&
                one->session.base.channel.connection) { /* its sender is still connected */
                fprintf(stderr, "what the ps sent is no answer: %s\n", error.text);
                abort();
            }
            channel_close(&one->client);
        }
    }
}

static void serve_all(struct serving_session *one)
{
    while (one->open && !one->busy) {
        const struct connection *connection = one->session.channel->connection;
        struct pollfd there = {.fd = connection->fd, .events = POLLIN};
        if (connection->in_start == connection->in_end && poll(&there, 1, 0) <= 0) {
            return;
        }
        bool goes_on = serving_serve(one);
        if (!goes_on) { /* perhaps in the middle of a frame */
            channel_close(&one->session.base.channel);
        }
        read_answers(one);
        if (!goes_on) {
            serving_hang_up(one);
        }
    }
}

static void open_session(struct serving_session *one)
{
    const uint8_t who = take(), incarnation = take();
    struct member member = {who % 8 < 5   ? MEMBER_WORKER
                            : who % 8 < 7 ? MEMBER_PS
                                          : MEMBER_OPERATOR,
                            who % 8 < 5 ? who % 8 : who % 2};
    member.index = who == 0xf8 ? MEMBER_ANY_INDEX : member.index; /* a worker that needs an index */
    if (one->busy) {
        return;
    }
    serving_hang_up(one);
    serving.depth++;
    one->busy = true; /* it may have to wait for a probe */
    serving_admit(one, &member, incarnation % 32, who >= 0xe0);
    one->busy = false;
    serving.depth--;
}

/* Another ps decides on the step. */
static void decide(void)
{
    struct server *server = &serving.server;
    const uint8_t set = take();
    bool taken[CONFIG_MAX_HOSTS] = {false};
    for (int i = 0; i < server->job.worker_count && i < 8; i++) {
        taken[i] = set >> i & 1;
    }
    server_lock(server);
    job_apply_decision(&server->job, server->job.generation, take_step(), taken);
    server_apply_step(server);
    server_unlock(server);
}

/* --- The ps that this one follows --- */

static struct {
    bool meets;   /* one connection for each that the input provides */
    int patience; /* how long it waits for its follower to leave */
    int threads;
    void *(*run[2])(void *context);
    void *contexts[2];
    int peer;
} leader;

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *context),
                          void *context);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *context),
                          void *context)
{
    assert(leader.threads < 2);
    leader.run[leader.threads] = run;
    leader.contexts[leader.threads++] = context;
    return 0;
}

int __wrap_pthread_join(pthread_t thread, void **result);
int __wrap_pthread_join(pthread_t thread, void **result)
{
    return 0;
}

static void lead_by(int fd, uint16_t type, uint64_t request, const union message *message)
{
    uint8_t header[FRAME_HEADER], bytes[512];
    const size_t size = message_size(PROTOCOL_VERSION_MAX, (enum message_type)type, message);
    assert(size <= sizeof bytes);
    message_encode(PROTOCOL_VERSION_MAX, (enum message_type)type, message, bytes, size);
    frame_encode(&(struct frame){.version = PROTOCOL_VERSION_MAX,
                                 .type = type,
                                 .request = request,
                                 .generation = serving.server.job.generation + take() % 4 / 3,
                                 .flags = FRAME_LAST,
                                 .message_bytes = (uint32_t)size},
                 header);
    ssize_t ignored = send(fd, header, sizeof header, MSG_NOSIGNAL | MSG_DONTWAIT);
    ignored = send(fd, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)ignored;
}

/* Everything that it sends, at once: a welcome, then up to seven answers. */
static void say_what_is_decided(int fd)
{
    union message message = {.welcome = {.version = PROTOCOL_VERSION_MAX,
                                         .program = "trainer",
                                         .role = MEMBER_PS,
                                         .incarnation = 7,
                                         .digest = "",
                                         .lease_ms = 1000}};
    static uint8_t ranges[MOST_RANGES * RANGE_BYTES];
    const int count = take() % 8;
    lead_by(fd, MESSAGE_welcome, 1, &message);
    for (int i = 0; i < count; i++) {
        const uint8_t kind = take();
        memset(&message, 0, sizeof message);
        switch (kind % 4) {
        case 0:
            message.error = (struct message_error){.code = take() % 16, .message = "no"};
            lead_by(fd, MESSAGE_error, (uint64_t)i + 2, &message);
            break;
        case 1:
            lead_by(fd, kind & 4 ? MESSAGE_done : MESSAGE_pong, (uint64_t)i + 2, &message);
            break;
        default: /* of some of the first workers, or of any */
            message.aggregate.step = take_step();
            message.aggregate.workers.bytes = ranges;
            for (int k = 0; k < (kind >> 2) % (MOST_RANGES + 1); k++) {
                const uint8_t which = take();
                range_put(ranges, message.aggregate.workers.count++,
                          (struct range){(size_t)k + (which & 0xf0 ? which : 0), which % 4});
            }
            lead_by(fd, MESSAGE_aggregate, (uint64_t)i + 2, &message);
        }
    }
}

bool __wrap_connection_connect(struct connection **connection, const struct address *address,
                               const struct member *expected, const struct credentials *credentials,
                               const struct wake *wake, double deadline_s, struct error *error);
bool __wrap_connection_connect(struct connection **connection, const struct address *address,
                               const struct member *expected, const struct credentials *credentials,
                               const struct wake *wake, double deadline_s, struct error *error)
{
    int ends[2];
    *connection = NULL;
    if (!leader.meets || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) {
        serving.server.leaving = true; /* its thread has nothing more to do */
        return error_set(error, "nobody is there");
    }
    leader.meets = false;
    leader.peer = ends[1];
    say_what_is_decided(ends[1]);
    shutdown(ends[1], SHUT_WR);
    return connection_serve(connection, ends[0], "the leader", NULL, NULL, INFINITY, error);
}

/* One of the follower's two exchanges, from its connection to its end. */
static void follow(void)
{
    struct server *server = &serving.server;
    struct follower *follower;
    struct error error;
    if (!job_is_follower(&server->job) || serving.depth >= MOST_DEPTH || leader.patience > 0) {
        return;
    }
    leader.threads = 0;
    leader.peer = -1;
    serving.depth++;
    if (!follower_create(&follower, server, &error)) {
        abort();
    }
    const int which = take() % 2;
    const bool left = server->leaving;
    leader.meets = true;
    leader.patience = 9;
    leader.run[which](leader.contexts[which]);
    leader.patience = 0;
    server->leaving = left;
    follower_destroy(follower);
    serving.depth--;
    if (leader.peer >= 0) {
        close(leader.peer);
    }
}

static void act(void)
{
    const uint8_t action = take();
    struct serving_session *one = &serving.sessions[action / 8 % SERVING_SESSIONS];
    switch (action % 8) {
    case 0:
        open_session(one);
        break;
    case 1:
        if (one->busy) {
            channel_close(&one->client);
        } else {
            serving_hang_up(one);
        }
        break;
    case 2:
        serving.now_s += take();
        serving_tick();
        break;
    case 3:
        if (action & 0x80) {
            follow();
        } else {
            decide();
        }
        break;
    case 4: /* it answers pings */
        if (one->open && !one->busy && one->session.worker >= 0 && one->session.ping_wanted) {
            server_lock(&serving.server);
            one->session.ping_wanted = false;
            job_pong(&serving.server.job, one->session.worker, one->session.incarnation,
                     job_probe_nonce(&serving.server.job, one->session.worker));
            server_unlock(&serving.server);
        }
        break;
    default:
        if (one->client.connection && connection_state(one->client.connection) == CONNECTION_OPEN) {
            send_frame(one);
            serve_all(one);
        }
    }
}

/* Is there more to do: input, and time for it? */
static bool has_more(void)
{
    return input.next < input.end && serving.waits < MOST_WAITS;
}

/* Others act during a wait. */
static void act_meanwhile(void)
{
    if (leader.patience > 0 && --leader.patience == 0) {
        serving.server.leaving = true;
    }
    if (serving.depth < MOST_DEPTH && has_more()) {
        act();
    }
}

/* --- Invariants between requests --- */

static struct begun {
    uint32_t generation;
    int64_t step;
} begun;

static void check_counts(void)
{
    const struct job *job = &serving.server.job;
    uint64_t version;
    int64_t step;
    shard_now(serving.server.shard, &version, &step);
    if (job->state == JOB_TRAINING && begun.generation != job->generation) {
        begun = (struct begun){job->generation, job->global_step - (int64_t)(version - 1)};
    }
    if (job->state == JOB_TRAINING) { /* every step of the job is one of the shard, and has a version */
        assert(step == job->global_step);
        assert((int64_t)version - 1 == job->global_step - begun.step);
    }
    assert(job->global_step >= 0 && job->global_step <= MESSAGE_MAX_SIGNED);
}

static void check_idle(void)
{
    const struct server *server = &serving.server;
    for (int i = 0; i < server->job.worker_count; i++) {
        const struct job_worker *worker = &server->job.workers[i];
        int open = 0;
        for (int k = 0; k < SERVING_SESSIONS; k++) {
            const struct serving_session *one = &serving.sessions[k];
            open += one->open && one->session.worker == i && one->session.incarnation == worker->incarnation;
        }
        assert(!server->stage_users[i] && worker->held == 0);
        assert(worker->connections >= 0 && worker->connections <= open);
    }
    assert(!job_has_actions(&server->job) && !server->stepping);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    input = input_of(bytes, size);
    begun = (struct begun){0, 0};
    struct config *config = serving_config();
    const uint8_t kind = take(), more = take();
    config->cluster.issync = kind & 1;
    config->cluster.ps_hosts.count = kind & 2 ? SERVING_PS : 1;
    config->cluster.wire_dtype = !(kind & 8) ? WIRE_FLOAT32 : more & 4 ? WIRE_INT8 : WIRE_BFLOAT16;
    config->cluster.wire_top = more & 2 ? 0.3 : 1;
    config->cluster.max_staleness = kind & 16 ? 1 : 0;
    config->train.optimizer = kind & 32 ? OPTIMIZER_ADAM : OPTIMIZER_SGD;
    config->train.beta1 = config->train.beta2 = 0.5;
    config->train.epsilon = 1e-8;
    config->train.ema_decay = kind & 64 ? 0.5 : 0;
    config->cluster.elastic = kind & 128;
    config->cluster.replicas_to_aggregate = more % 5;
    config->cluster.min_replicas = 1 + more / 8 % 3;
    config->cluster.min_workers = 1 + more / 32 % 3;
    config->train.train_steps = more & 128 ? 12 : 0;
    if (!(kind & 8) && more & 4) { /* rounds; in asynchronous ones several pushes make a step */
        config->train.local_steps = 4;
        config->train.buffer_size = kind & 1 ? 0 : 2 + more / 8 % 3;
        config->train.aggregate = kind & 1 && more & 2 ? AGGREGATE_MEDIAN : AGGREGATE_MEAN;
        config->train.outer_optimizer = kind & 32 ? OUTER_ADAM : OUTER_AVERAGE;
        config->train.outer_learning_rate = 1;
        config->train.clip_difference_norm = more & 64 ? 1 : 0;
    }
    serving_begin((kind & 6) == 6);
    serving.server.identity.hello.program = serving.server.identity.hello.cluster = "";
    serving.server.identity.hello.digest = serving.server.identity.hello.job = "";
    serving.meanwhile = act_meanwhile;
    while (has_more()) {
        act();
        check_counts();
        check_idle();
    }
    serving.meanwhile = NULL;
    serving_end();
    return 0;
}
