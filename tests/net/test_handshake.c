/* Hello, welcome, refused: who is admitted, who is not, and what both sides report. Calls and their errors too. */
#include "net/handshake.h"
#include "tests/check.h"

#include <sys/socket.h>

#include "net/bytes.h"
#include "net/transport.h"
#include "tests/net/loopback.h"
#include "tests/net/writing.h"

static const struct hello_identity ps0 = {.member = {MEMBER_PS, 0},
                                          .incarnation = 11,
                                          .program = "trainer 1.0",
                                          .cluster = "digits",
                                          .fleet_version = 3,
                                          .digest = "d1",
                                          .job = "{\"model\":{\"layers\":[784,500,10]},\"seed\":1}",
                                          .lease_ms = 10000};
static const struct hello_identity worker1 = {.member = {MEMBER_WORKER, 1},
                                              .incarnation = 22,
                                              .program = "trainer 1.0",
                                              .cluster = "digits",
                                              .fleet_version = 3,
                                              .digest = "d1",
                                              .job = "{\"model\":{\"layers\":[784,500,10]},\"seed\":1}"};
static const struct member ps_0 = {MEMBER_PS, 0};

/* What the server does, and the outcome. */
struct service {
    struct handshake_rules rules;
    const struct member *named; /* the name in the peer's certificate; NULL: the connection's */
    bool accepted;
    struct peer peer;
    char name[CONNECTION_NAME];
    struct error error;
};

static double soon(void)
{
    return clock_monotonic_s() + 60;
}

static void serve(struct connection **connection, void *context)
{
    struct service *service = context;
    struct channel channel;
    if (service->named) {
        (*connection)->credential = *service->named;
    }
    channel_open(&channel, *connection);
    *connection = NULL;
    service->accepted = handshake_accept(&channel, &ps0, &service->rules, &service->peer, soon(), &service->error);
    struct error error;
    if (service->accepted) {
        snprintf(service->name, sizeof service->name, "%s", connection_name(channel.connection));
    }
    while (service->accepted && channel_receive(&channel, soon(), &error)) {
        struct message_pong pong = {.nonce = channel.message.ping.nonce};
        if (channel.frame.type == MESSAGE_ping) {
            channel_send(&channel, MESSAGE_pong, channel.frame.request, &pong, soon(), &error);
        } else {
            channel_send_error(&channel, channel.frame.request, ERROR_NOT_READY, soon(), &error, "no %s yet", "model");
        }
    }
    channel_close(&channel);
}

struct outcome {
    bool welcome;
    uint16_t reason;
    struct error error;
    struct peer peer;
};

static struct outcome shake(const struct hello_identity *identity, const struct member *expected,
                            struct service *service)
{
    struct loopback loopback = {.listener = -1};
    struct outcome outcome = {.welcome = false};
    struct connection *connection;
    struct channel channel;
    loopback_start(&loopback, NULL, serve, service);
    if (!connection_connect(&connection, &loopback.address, expected, NULL, NULL, soon(), &outcome.error)) {
        fail_msg("%s", outcome.error.text);
    }
    channel_open(&channel, connection);
    outcome.welcome =
        handshake_connect(&channel, identity, expected, &outcome.peer, soon(), &outcome.reason, &outcome.error);
    channel_close(&channel);
    loopback_end(&loopback);
    return outcome;
}

TEST(welcome)
{
    struct service service = {.accepted = false};
    struct outcome outcome = shake(&worker1, &ps_0, &service);
    if (!outcome.welcome) {
        fail_msg("%s", outcome.error.text);
    }
    assert_true(service.accepted);
    assert_int_equal(service.peer.member.role, MEMBER_WORKER);
    assert_int_equal(service.peer.member.index, 1);
    assert_int_equal(service.peer.incarnation, 22);
    assert_non_null(strstr(service.name, "worker 1 (127.0.0.1:"));
    assert_int_equal(service.peer.fleet_version, 3);
    assert_string_equal(service.peer.program, "trainer 1.0");
    assert_string_equal(service.peer.digest, "d1");
    assert_int_equal(outcome.peer.member.role, MEMBER_PS);
    assert_int_equal(outcome.peer.member.index, 0);
    assert_int_equal(outcome.peer.incarnation, 11);
    assert_int_equal(outcome.peer.fleet_version, 3);
    assert_int_equal(outcome.peer.lease_ms, 10000);
    assert_string_equal(outcome.peer.program, "trainer 1.0");
    assert_string_equal(outcome.peer.digest, "d1");
}

static void assert_refused(const struct hello_identity *identity, const struct member *expected,
                           struct service *service, uint16_t reason, const char *message)
{
    struct outcome outcome = shake(identity, expected, service);
    assert_false(outcome.welcome);
    assert_false(service->accepted);
    assert_int_equal(outcome.reason, reason);
    if (!strstr(outcome.error.text, message) || !strstr(service->error.text, message)) {
        fail_msg("client: %s; server: %s", outcome.error.text, service->error.text);
    }
    assert_non_null(strstr(service->error.text, "refused 127.0.0.1:"));
}

TEST(config_mismatch)
{
    struct hello_identity other = worker1;
    struct service service = {.accepted = false};
    other.digest = "d2";
    other.job = "{\"model\":{\"layers\":[784,300,10]},\"seed\":1}";
    assert_refused(&other, &ps_0, &service, REFUSAL_CONFIG,
                   "worker 1 has model.layers=[784,300,10], ps 0 has [784,500,10]");
    other.job = "{\"model\":{\"layers\":[784,500,10]},\"seed\":2,\"more\":true}";
    assert_refused(&other, &ps_0, &service, REFUSAL_CONFIG,
                   "worker 1 has seed=2, ps 0 has 1; worker 1 has more=true, ps 0 has (default)");
    other.job = "no json";
    assert_refused(&other, &ps_0, &service, REFUSAL_CONFIG, "different job configs");
    struct hello_identity operator= other;
    operator.member =(struct member){MEMBER_OPERATOR, MEMBER_ANY_INDEX};
    operator.digest = "";
    assert_true(shake(&operator, & ps_0, &service).welcome);
}

/* A version mismatch is not final: the older side may be upgraded, so the newer one retries. */
TEST(other_versions)
{
    struct hello_identity other = worker1;
    struct service service = {.accepted = false};
    other.digest = "d2";
    other.fleet_version = 2;
    assert_refused(&other, &ps_0, &service, REFUSAL_BEHIND,
                   "worker 1 has version 2 of the config, ps 0 has version 3; it waits for the newer one");
    other.fleet_version = 4;
    assert_refused(&other, &ps_0, &service, REFUSAL_AHEAD,
                   "worker 1 has version 4 of the config, ps 0 has version 3; it waits until that is rolled out");
    other.digest = ""; /* it only asks; the role ensures that nothing else happens */
    assert_true(shake(&other, &ps_0, &service).welcome);
    assert_string_equal(service.peer.digest, "");
}

TEST(other_reasons)
{
    static const struct member ps_7 = {MEMBER_PS, 7};
    struct hello_identity other = worker1;
    struct service service = {.accepted = false};
    other.cluster = "letters";
    assert_refused(&other, &ps_0, &service, REFUSAL_CLUSTER,
                   "worker 1 belongs to cluster \"letters\", ps 0 to \"digits\"");
    assert_refused(&worker1, &ps_7, &service, REFUSAL_MEMBER, "worker 1 expects ps 7 here, but this is ps 0");
    other = worker1;
    other.member.index = 70000;
    assert_refused(&other, &ps_0, &service, REFUSAL_MEMBER, "no member with role 2 and index 70000");
    other.member.index = -1; /* with a digest it wants more than an index */
    assert_refused(&other, &ps_0, &service, REFUSAL_MEMBER, "no member with role 2 and index -1");
    other.digest = ""; /* only a worker may connect without an index, to ask for one */
    assert_true(shake(&other, &ps_0, &service).welcome);
    other.member = (struct member){MEMBER_PS, -1};
    assert_refused(&other, &ps_0, &service, REFUSAL_MEMBER, "no member with role 1 and index -1");
    other.member = (struct member){MEMBER_PS, -2};
    assert_refused(&other, &ps_0, &service, REFUSAL_MEMBER, "no member with role 1 and index -2");
}

/* Which members there can be, and whom one may expect. */
TEST(members_that_can_be)
{
    static const struct member any = {MEMBER_NONE, MEMBER_ANY_INDEX}, any_ps = {MEMBER_PS, MEMBER_ANY_INDEX};
    static const struct member nobody = {MEMBER_PS, -5}, any_worker = {MEMBER_WORKER, MEMBER_ANY_INDEX};
    struct hello_identity other = worker1;
    struct service service = {.accepted = false};
    const int last = MEMBER_MAX_INDEX;
    for (int i = 0; i < 2; i++) {
        other.member = (struct member){i == 0 ? MEMBER_WORKER : MEMBER_PS, last};
        assert_true(shake(&other, &ps_0, &service).welcome);
        assert_int_equal(service.peer.member.index, last);
        other.member.index = 0;
        assert_true(shake(&other, &ps_0, &service).welcome);
        other.member.index = last + 1;
        assert_refused(&other, &ps_0, &service, REFUSAL_MEMBER, " and index 65536");
    }
    other.member = (struct member){MEMBER_OPERATOR, 0};
    assert_refused(&other, &ps_0, &service, REFUSAL_MEMBER, "no member with role 3 and index 0");
    other.member = any;
    assert_refused(&other, &ps_0, &service, REFUSAL_MEMBER, "no member with role 0 and index -1");
    assert_true(shake(&worker1, &any, &service).welcome);
    assert_true(shake(&worker1, &any_ps, &service).welcome);
    assert_refused(&worker1, &nobody, &service, REFUSAL_MEMBER,
                   "worker 1 expects no known member here, but this is ps");
    assert_refused(&worker1, &any_worker, &service, REFUSAL_MEMBER, "worker 1 expects no known member here");
}

static bool knows_d2(void *context, const char *digest)
{
    (*(int *)context)++;
    return strcmp(digest, "d2") == 0;
}

static void tell_difference(void *context, const char *their_name, const char *theirs, const char *our_name,
                            const char *ours, struct error *message)
{
    error_set(message, "%d: %s %s, %s %s", *(int *)context, their_name, theirs, our_name, ours);
}

/* A role may know other configs than its own, whatever their version, and says in its own words what differs. */
TEST(what_a_role_knows)
{
    int asked = 0;
    struct service service = {.rules = {.knows = knows_d2, .describe_difference = tell_difference, .context = &asked}};
    struct hello_identity other = worker1;
    assert_true(shake(&other, &ps_0, &service).welcome);
    other.digest = "d2";
    other.fleet_version = 9;
    asked = 0;
    assert_true(shake(&other, &ps_0, &service).welcome);
    assert_int_equal(asked, 1);
    assert_string_equal(service.peer.digest, "d2");
    assert_int_equal(service.peer.fleet_version, 9);
    other.digest = "d3";
    assert_refused(&other, &ps_0, &service, REFUSAL_AHEAD, "worker 1 has version 9 of the config");
    other.fleet_version = 3;
    other.job = "theirs";
    asked = 0;
    assert_refused(&other, &ps_0, &service, REFUSAL_CONFIG, "1: worker 1 theirs, ps 0 {\"model\"");
}

/* No two processes are one, and none is number 0. */
TEST(incarnations)
{
    uint64_t numbers[4];
    for (int i = 0; i < 4; i++) {
        numbers[i] = handshake_new_incarnation();
        assert_true(numbers[i] != 0 && (i == 0 || numbers[i] != numbers[i - 1]));
    }
}

/* The newest version that both sides speak is agreed on; where there is none, the older one is to be upgraded. */
TEST(versions_in_common)
{
    static const struct {
        uint16_t least, most, agreed; /* 0: none */
    } cases[] = {{0, 0, 0},
                 {0, PROTOCOL_VERSION_MIN, PROTOCOL_VERSION_MIN},
                 {1, PROTOCOL_VERSION_MAX, PROTOCOL_VERSION_MAX},
                 {PROTOCOL_VERSION_MAX, PROTOCOL_VERSION_MAX + 5, PROTOCOL_VERSION_MAX},
                 {PROTOCOL_VERSION_MAX + 1, PROTOCOL_VERSION_MAX + 5, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct loopback loopback = {.listener = -1};
        struct service service = {.accepted = false};
        const struct message_hello hello = {.version_min = cases[i].least,
                                            .version_max = cases[i].most,
                                            .program = "trainer",
                                            .role = MEMBER_WORKER,
                                            .index = 1,
                                            .expected_role = MEMBER_PS,
                                            .cluster = "digits",
                                            .digest = "d1"};
        struct connection *connection;
        struct channel channel;
        struct error error;
        loopback_start(&loopback, NULL, serve, &service);
        assert_true(connection_connect(&connection, &loopback.address, NULL, NULL, NULL, soon(), &error));
        channel_open(&channel, connection);
        assert_true(channel_send(&channel, MESSAGE_hello, 7, &hello, soon(), &error));
        assert_true(channel_receive(&channel, soon(), &error));
        assert_int_equal(channel.frame.request, 7);
        if (cases[i].agreed > 0) {
            assert_int_equal(channel.frame.type, MESSAGE_welcome);
            assert_int_equal(channel.message.welcome.version, cases[i].agreed);
            assert_int_equal(channel.frame.version, cases[i].agreed);
        } else {
            assert_int_equal(channel.frame.type, MESSAGE_refused);
            assert_int_equal(channel.message.refused.reason, REFUSAL_VERSION);
            assert_int_equal(channel.message.refused.version_min, PROTOCOL_VERSION_MIN);
            assert_int_equal(channel.message.refused.version_max, PROTOCOL_VERSION_MAX);
        }
        channel_close(&channel);
        loopback_end(&loopback);
    }
}

static uint16_t say_duplicate(void *context, const struct peer *peer, struct error *message)
{
    error_set(message, "worker %d is there already", peer->member.index);
    return REFUSAL_DUPLICATE;
}

TEST(role_has_the_last_word)
{
    struct service service = {.rules = {.admit = say_duplicate}};
    assert_refused(&worker1, &ps_0, &service, REFUSAL_DUPLICATE, "worker 1 is there already");
}

/* Keeps the version that it received, since what a peer may do can depend on it. */
static uint16_t keep_version(void *context, const struct peer *peer, struct error *message)
{
    *(int *)context = peer->version;
    return 0;
}

TEST(role_knows_the_version)
{
    int version = 0;
    struct service service = {.rules = {.admit = keep_version, .context = &version}};
    const struct outcome outcome = shake(&worker1, &ps_0, &service);
    assert_true(outcome.welcome && service.accepted);
    assert_int_equal(version, PROTOCOL_VERSION_MAX);
    assert_int_equal(outcome.peer.version, PROTOCOL_VERSION_MAX);
    assert_int_equal(service.peer.version, PROTOCOL_VERSION_MAX);
}

/* The server must be the member that its certificate names, even where any member would do. */
TEST(a_certificate_of_another_is_no_welcome)
{
    static const struct member anybody = {MEMBER_NONE, MEMBER_ANY_INDEX}, named[] = {{MEMBER_PS, 0}, {MEMBER_PS, 1}};
    for (int i = 0; i < 2; i++) {
        struct loopback loopback = {.listener = -1};
        struct service service = {.accepted = false};
        struct connection *connection;
        struct channel channel;
        struct peer peer;
        struct error error;
        loopback_start(&loopback, NULL, serve, &service);
        assert_true(connection_connect(&connection, &loopback.address, &anybody, NULL, NULL, soon(), &error));
        connection->credential = named[i];
        channel_open(&channel, connection);
        bool welcome = handshake_connect(&channel, &worker1, &anybody, &peer, soon(), NULL, &error);
        channel_close(&channel);
        loopback_end(&loopback);
        assert_int_equal(welcome, i == 0);
        assert_true(welcome || strstr(error.text, "is not the expected member (role 1, index 0)"));
    }
}

/* And the client must be the one that its own certificate names: one index, or any of the role. */
TEST(a_certificate_of_another_is_refused)
{
    static const struct member itself = {MEMBER_WORKER, 1}, any = {MEMBER_WORKER, MEMBER_ANY_INDEX};
    static const struct member other = {MEMBER_WORKER, 2}, ps = {MEMBER_PS, 1};
    assert_true(shake(&worker1, &ps_0, &(struct service){.named = &itself}).welcome);
    assert_true(shake(&worker1, &ps_0, &(struct service){.named = &any}).welcome);
    assert_refused(&worker1, &ps_0, &(struct service){.named = &other}, REFUSAL_MEMBER,
                   "it claims to be worker 1, but its certificate is for worker:2");
    assert_refused(&worker1, &ps_0, &(struct service){.named = &ps}, REFUSAL_MEMBER,
                   "it claims to be worker 1, but its certificate is for ps:1");
}

/* Sends bytes to a server and returns its answer's frame and message. */
static void exchange_raw(const uint8_t *bytes, size_t size, struct service *service, struct channel *channel,
                         bool *answered)
{
    struct loopback loopback = {.listener = -1};
    struct connection *connection;
    struct error error;
    struct iovec part = {(void *)(uintptr_t)bytes, size};
    loopback_start(&loopback, NULL, serve, service);
    assert_true(connection_connect(&connection, &loopback.address, NULL, NULL, NULL, soon(), &error));
    channel_open(channel, connection);
    assert_true(write_now(connection, &part, 1, soon(), &error));
    *answered = channel_receive(channel, soon(), &error);
    connection_close(channel->connection);
    channel->connection = NULL;
    loopback_end(&loopback);
}

/* A hello of a future version, with an unknown field, gets a message as answer. */
TEST(future_version)
{
    struct message_hello hello = {
        .version_min = 5, .version_max = 9, .program = "trainer 5", .role = 2, .index = 1, .expected_role = 1};
    struct service service = {.accepted = false};
    struct channel channel;
    bool answered;
    uint8_t bytes[FRAME_HEADER + 300];
    size_t size = message_size(PROTOCOL_VERSION_MAX, MESSAGE_hello, &hello);
    message_encode(PROTOCOL_VERSION_MAX, MESSAGE_hello, &hello, bytes + FRAME_HEADER, size);
    memset(bytes + FRAME_HEADER + size, 0x55, 4);
    frame_encode(&(struct frame){.version = 5,
                                 .type = MESSAGE_hello,
                                 .request = 1,
                                 .flags = FRAME_LAST,
                                 .message_bytes = (uint32_t)size + 4},
                 bytes);
    exchange_raw(bytes, FRAME_HEADER + size + 4, &service, &channel, &answered);
    assert_true(answered);
    assert_int_equal(channel.frame.type, MESSAGE_refused);
    assert_int_equal(channel.message.refused.reason, REFUSAL_VERSION);
    assert_string_equal(channel.message.refused.message, "worker 1 (trainer 5) speaks protocol versions 5 to 9, ps 0 "
                                                         "(trainer 1.0) speaks 1 to 1: upgrade the older one");
    assert_non_null(strstr(service.error.text, "speaks protocol versions 5 to 9"));
    channel_close(&channel);
}

TEST(garbage_is_refused)
{
    struct service service = {.accepted = false};
    struct channel channel;
    bool answered;
    static const char text[] = "GET / HTTP/1.1\r\nHost: trainer\r\n\r\n";
    exchange_raw((const uint8_t *)text, sizeof text - 1, &service, &channel, &answered);
    assert_false(answered);
    assert_non_null(strstr(service.error.text, "the data received are not a frame"));
    channel_close(&channel);
    uint8_t bytes[FRAME_HEADER + 8] = {0};
    frame_encode(&(struct frame){.version = 1, .type = MESSAGE_ping, .message_bytes = 8}, bytes);
    exchange_raw(bytes, sizeof bytes, &service, &channel, &answered);
    assert_false(answered);
    assert_non_null(strstr(service.error.text, "its first message is ping, not hello"));
    channel_close(&channel);
}

TEST(calls)
{
    struct loopback loopback = {.listener = -1};
    struct service service = {.accepted = false};
    struct connection *connection;
    struct channel channel;
    struct error error;
    struct peer peer;
    uint16_t code;
    loopback_start(&loopback, NULL, serve, &service);
    assert_true(connection_connect(&connection, &loopback.address, &ps_0, NULL, NULL, soon(), &error));
    channel_open(&channel, connection);
    assert_true(handshake_connect(&channel, &worker1, &ps_0, &peer, soon(), NULL, &error));
    struct message_ping ping = {.nonce = 77};
    assert_true(channel_call(&channel, MESSAGE_ping, &ping, MESSAGE_pong, soon(), &code, &error));
    assert_int_equal(channel.message.pong.nonce, 77);
    struct message_get_model get_model = {.wait_ms = 5};
    assert_false(channel_call(&channel, MESSAGE_get_model, &get_model, MESSAGE_model, soon(), &code, &error));
    assert_int_equal(code, ERROR_NOT_READY);
    assert_non_null(strstr(error.text, "ps 0 (127.0.0.1:"));
    assert_non_null(strstr(error.text, "no model yet"));
    assert_true(channel_call(&channel, MESSAGE_ping, &ping, MESSAGE_pong, soon(), &code, &error));
    channel_close(&channel);
    loopback_end(&loopback);
}

/* A test's own welcome. */
struct greeting {
    uint16_t version, frame_version; /* the version it chooses, and the one it speaks */
    bool hangs_up;                   /* hangs up instead */
};

static void greet(struct connection **connection, void *context)
{
    const struct greeting *greeting = context;
    const struct message_welcome welcome = {
        .version = greeting->version, .program = "trainer", .role = MEMBER_PS, .index = 0, .digest = ""};
    const uint16_t coded = PROTOCOL_VERSION_MAX;
    struct channel channel;
    struct error error;
    uint8_t bytes[FRAME_HEADER + 300];
    channel_open(&channel, *connection);
    *connection = NULL;
    if (!greeting->hangs_up && channel_receive(&channel, soon(), &error)) {
        const size_t size = message_size(coded, MESSAGE_welcome, &welcome);
        frame_encode(&(struct frame){.version = greeting->frame_version,
                                     .type = MESSAGE_welcome,
                                     .request = channel.frame.request,
                                     .flags = FRAME_LAST,
                                     .message_bytes = (uint32_t)size},
                     bytes);
        message_encode(coded, MESSAGE_welcome, &welcome, bytes + FRAME_HEADER, size);
        struct iovec part = {bytes, FRAME_HEADER + size};
        write_now(channel.connection, &part, 1, soon(), &error);
    }
    channel_close(&channel);
}

/* Answers hello with another message: a welcome of this role and index, or what is no answer at all. */
struct answer {
    uint8_t role;
    int32_t index;
    bool is_welcome;
};

static void answer_hello(struct connection **connection, void *context)
{
    const struct answer *answer = context;
    const struct message_welcome welcome = {.version = PROTOCOL_VERSION_MAX,
                                            .program = "trainer",
                                            .role = answer->role,
                                            .index = answer->index,
                                            .digest = ""};
    struct channel channel;
    struct error error;
    channel_open(&channel, *connection);
    *connection = NULL;
    if (channel_receive(&channel, soon(), &error)) {
        channel.version = PROTOCOL_VERSION_MAX;
        channel.generation = 9;
        if (answer->is_welcome) {
            channel_send(&channel, MESSAGE_welcome, channel.frame.request, &welcome, soon(), &error);
        } else {
            channel.version = PROTOCOL_VERSION_MIN;
            channel_send(&channel, MESSAGE_ping, 1, &(struct message_ping){5}, soon(), &error);
        }
    }
    channel_close(&channel);
}

/* Who welcomes us must be whom we came for, and what is no welcome is none. */
TEST(welcomes_of_others)
{
    static const struct {
        struct answer answer;
        const char *words; /* NULL: it is fine */
    } cases[] = {{{MEMBER_PS, 0, true}, NULL},
                 {{MEMBER_PS, 1, true}, "is not the expected member (role 1, index 1)"},
                 {{MEMBER_WORKER, 0, true}, "is not the expected member (role 2, index 0)"},
                 {{MEMBER_PS, MEMBER_ANY_INDEX, true}, "is not the expected member (role 1, index -1)"},
                 {{MEMBER_PS, 0, false}, "answered hello with ping"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct loopback loopback = {.listener = -1};
        struct answer answer = cases[i].answer;
        struct connection *connection;
        struct channel channel;
        struct peer peer;
        struct error error = {""};
        uint16_t reason = 77;
        loopback_start(&loopback, NULL, answer_hello, &answer);
        assert_true(connection_connect(&connection, &loopback.address, &ps_0, NULL, NULL, soon(), &error));
        channel_open(&channel, connection);
        const bool welcome = handshake_connect(&channel, &worker1, &ps_0, &peer, soon(), &reason, &error);
        assert_int_equal(welcome, !cases[i].words);
        assert_int_equal(reason, 0);
        assert_true(welcome || strstr(error.text, cases[i].words));
        assert_int_equal(channel.generation, welcome ? 9 : 0);
        channel_close(&channel);
        loopback_end(&loopback);
    }
}

/* Only what was offered can be agreed on, and the frame that says so speaks it. */
TEST(versions_that_were_not_offered)
{
    static const struct {
        struct greeting greeting;
        bool good;
    } cases[] = {{{PROTOCOL_VERSION_MAX, PROTOCOL_VERSION_MAX, false}, true},
                 {{PROTOCOL_VERSION_MIN - 1, PROTOCOL_VERSION_MIN - 1, false}, false},
                 {{PROTOCOL_VERSION_MAX + 1, PROTOCOL_VERSION_MAX + 1, false}, false},
                 {{PROTOCOL_VERSION_MAX + 1, PROTOCOL_VERSION_MAX, false}, false},
                 {{PROTOCOL_VERSION_MAX, PROTOCOL_VERSION_MAX + 1, false}, false},
                 {{0, 0, true}, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct loopback loopback = {.listener = -1};
        struct greeting greeting = cases[i].greeting;
        struct connection *connection;
        struct channel channel;
        struct peer peer;
        struct error error;
        uint16_t reason = 77; /* from an earlier attempt */
        loopback_start(&loopback, NULL, greet, &greeting);
        assert_true(connection_connect(&connection, &loopback.address, &ps_0, NULL, NULL, soon(), &error));
        channel_open(&channel, connection);
        assert_int_equal(handshake_connect(&channel, &worker1, &ps_0, &peer, soon(), &reason, &error), cases[i].good);
        assert_int_equal(reason, 0); /* no peer refused us */
        assert_int_equal(channel.version, cases[i].good ? greeting.version : PROTOCOL_VERSION_MIN);
        if (!cases[i].good && !greeting.hangs_up) {
            assert_non_null(strstr(error.text, ", which was not offered"));
        }
        channel_close(&channel);
        loopback_end(&loopback);
    }
}

/* Peers lie about lengths: the server waits for the announced bytes until its deadline, without allocating them. */
TEST(bulk_that_does_not_come)
{
    struct service service = {.accepted = false};
    struct channel channel;
    bool answered;
    uint8_t bytes[FRAME_HEADER];
    frame_encode(&(struct frame){.version = 1, .type = MESSAGE_hello, .message_bytes = 80000}, bytes);
    exchange_raw(bytes, sizeof bytes, &service, &channel, &answered);
    assert_false(answered);
    assert_non_null(strstr(service.error.text, "at most "));
    channel_close(&channel);
}

/* Half of a hello, and then the end of the connection: the sender's identity does not matter. */
TEST(a_hello_that_breaks_off)
{
    struct service service = {.accepted = false};
    struct loopback loopback = {.listener = -1};
    struct connection *connection;
    struct error error;
    uint8_t bytes[FRAME_HEADER + 20] = {0};
    frame_encode(&(struct frame){.version = 1, .type = MESSAGE_hello, .flags = FRAME_LAST, .message_bytes = 80}, bytes);
    struct iovec part = {bytes, sizeof bytes};
    loopback_start(&loopback, NULL, serve, &service);
    assert_true(connection_connect(&connection, &loopback.address, NULL, NULL, NULL, soon(), &error));
    assert_true(write_now(connection, &part, 1, soon(), &error));
    connection_close(connection);
    loopback_end(&loopback);
    assert_false(service.accepted);
    assert_non_null(strstr(service.error.text, "closed the connection"));
}

enum { ALLOWED_S = 60, LATE_BYTES = ALLOWED_S * CHANNEL_LEAST_RATE };

/* A frame whose bulk arrives a while after its head. */
static void send_late(struct connection **connection, void *context)
{
    static uint8_t bulk[LATE_BYTES];
    uint8_t bytes[FRAME_HEADER + 256], range[RANGE_BYTES];
    const struct message_values values = {.ranges = {range, 1}};
    struct error error;
    range_put(range, 0, (struct range){0, LATE_BYTES / sizeof(float)});
    const size_t size = message_size(PROTOCOL_VERSION_MIN, MESSAGE_values, &values);
    frame_encode(&(struct frame){.version = PROTOCOL_VERSION_MIN,
                                 .type = MESSAGE_values,
                                 .flags = FRAME_LAST,
                                 .message_bytes = (uint32_t)size,
                                 .bulk_bytes = sizeof bulk},
                 bytes);
    message_encode(PROTOCOL_VERSION_MIN, MESSAGE_values, &values, bytes + FRAME_HEADER, size);
    struct iovec head = {bytes, FRAME_HEADER + size}, rest = {bulk, sizeof bulk};
    write_now(*connection, &head, 1, soon(), &error);
    usleep(100000);
    write_now(*connection, &rest, 1, soon(), &error);
}

/* Large data may take longer: at least a second for what should arrive in one. */
TEST(large_frames_get_more_time)
{
    struct loopback loopback = {.listener = -1};
    struct connection *connection;
    struct channel channel;
    struct error error;
    uint8_t *bulk = malloc(LATE_BYTES);
    loopback_start(&loopback, NULL, send_late, NULL);
    assert_true(connection_connect(&connection, &loopback.address, NULL, NULL, NULL, soon(), &error));
    channel_open(&channel, connection);
    assert_true(channel_receive(&channel, soon(), &error));
    assert_int_equal(channel.bulk_left, LATE_BYTES);
    assert_true(channel_read_bulk(&channel, bulk, LATE_BYTES, clock_monotonic_s() - 0.3 * ALLOWED_S, &error));
    channel_close(&channel);
    loopback_end(&loopback);
    free(bulk);
}

static void differs(const char *theirs, const char *ours, const char *wanted)
{
    struct error message = {"left over"};
    handshake_describe_difference(NULL, "worker 1", theirs, "ps 0", ours, &message);
    assert_string_equal(message.text, wanted);
}

/* By key, with both values, wherever they are: three at most, and how many more differ. */
TEST(differences_are_named)
{
    static const char unknown[] = "worker 1 and ps 0 have different job configs: compare `trainer config show` on both";
    differs("{\"model\":{\"layers\":[784,300,10]}}", "{\"model\":{\"layers\":[784,500,10]}}",
            "worker 1 has model.layers=[784,300,10], ps 0 has [784,500,10]");
    differs("{\"a\":1,\"b\":2}", "{\"b\":2}", "worker 1 has a=1, ps 0 has (default)");
    differs("{\"b\":2}", "{\"a\":\"x\",\"b\":2}", "worker 1 has a=(default), ps 0 has \"x\"");
    differs("{\"a\":1,\"b\":2,\"c\":3}", "{\"c\":4,\"b\":5,\"a\":1}",
            "worker 1 has c=3, ps 0 has 4; worker 1 has b=2, ps 0 has 5");
    differs("{\"a\":1,\"b\":2,\"c\":3}", "{\"a\":2,\"b\":3,\"c\":4}",
            "worker 1 has a=1, ps 0 has 2; worker 1 has b=2, ps 0 has 3; worker 1 has c=3, ps 0 has 4");
    differs("{\"a\":1,\"b\":2,\"c\":3,\"d\":4,\"e\":5}", "{\"a\":2,\"b\":3,\"c\":4,\"d\":5}",
            "worker 1 has a=1, ps 0 has 2; worker 1 has b=2, ps 0 has 3; worker 1 has c=3, ps 0 has 4; and 2 more keys "
            "differ");
    differs("{\"a\":{\"b\":1}}", "{\"a\":{\"b\":1}}", unknown);
    differs("{\"a\":1}", "{\"a\":{\"b\":1}}", "worker 1 has a=1, ps 0 has {\"b\":1}");
    differs("{\"a\":{\"b\":1}}", "{\"a\":1}", "worker 1 has a={\"b\":1}, ps 0 has 1");
    differs("{\"a\":[{\"B\":1}]}", "{\"a\":[{\"b\":1}]}", "worker 1 has a=[{\"B\":1}], ps 0 has [{\"b\":1}]");
    differs("{\"a\":{\"b\":{\"c\":{\"d\":{\"e\":{\"f\":{\"g\":{\"h\":1}}}}}}}}",
            "{\"a\":{\"b\":{\"c\":{\"d\":{\"e\":{\"f\":{\"g\":{\"h\":2}}}}}}}}",
            "worker 1 has a.b.c.d.e.f.g.h=1, ps 0 has 2");
    differs("{\"a\":{\"b\":{\"c\":{\"d\":{\"e\":{\"f\":{\"g\":{\"h\":{\"i\":1}}}}}}}}}",
            "{\"a\":{\"b\":{\"c\":{\"d\":{\"e\":{\"f\":{\"g\":{\"h\":{\"i\":2}}}}}}}}}",
            "worker 1 has a.b.c.d.e.f.g.h={\"i\":1}, ps 0 has {\"i\":2}"); /* deeper levels are shown as they are */
}

int main(void)
{
    return check_run(NULL, NULL);
}
