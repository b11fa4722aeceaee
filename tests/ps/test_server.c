/* A ps as a whole, over plain TCP: whom it lets in, with how many connections each, and when and how it leaves. */
#include "ps/server.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "base/process/signals.h"
#include "net/channel.h"
#include "net/handshake.h"
#include "net/socket.h"
#include "ps/job/job.h"
#include "ps/store/store.h"
#include "tests/locks.h"
#include "tests/worker/remote/story.h"

/* --- A ps of the test's own, on a thread --- */

static atomic_int asked_to_leave; /* by this signal */

int __wrap_signals_pending(void);
int __wrap_signals_pending(void)
{
    return atomic_load(&asked_to_leave);
}

void __wrap_notify_ready(const char *state);
void __wrap_notify_ready(const char *state)
{
    tell("ready: %s\n", state);
}

void __wrap_notify_stopping(void);
void __wrap_notify_stopping(void)
{
    tell("stopping\n");
}

static struct {
    struct config config;
    struct address address;
    pthread_t thread;
    int status;
} ps;

enum { MOST = SERVER_OPERATORS + 1 };

static struct channel clients[MOST];

static void *run(void *unused)
{
    ps.status = server_run(&ps.config);
    tell("left\n");
    return unused;
}

/* extra: one more setting, or of no name. */
static void load(struct config_setting extra)
{
    static char hosts[64];
    struct error error;
    int fd;
    if (!socket_listen(&fd, "127.0.0.1", 0, &error)) {
        fail_msg("%s", error.text);
    }
    snprintf(hosts, sizeof hosts, "127.0.0.1:%d", socket_port(fd));
    close(fd);
    assert_true(address_parse(hosts, &ps.address, &error));
    const struct config_setting settings[] = {
        {"ps_hosts", hosts}, {"worker_hosts", "b:1,c:1"}, {"bind", "127.0.0.1"}, {"job_name", "ps"},
        {"task_index", "0"}, {"layers", "3,4,2"},         {"insecure", "true"},  extra};
    const int count = (int)(sizeof settings / sizeof *settings) - !extra.flag;
    if (!config_load(&ps.config, NULL, settings, count, &error)) {
        fail_msg("%s", error.text);
    }
}

static void begin(struct config_setting extra)
{
    atomic_store(&asked_to_leave, 0);
    told();
    listen_in();
    load(extra);
    assert_int_equal(pthread_create(&ps.thread, NULL, run, NULL), 0);
    assert_true(await_told("ready: "));
}

/* What it logged. */
static const char *end(int status)
{
    assert_true(await_told("left\n"));
    pthread_join(ps.thread, NULL);
    for (int i = 0; i < MOST; i++) {
        channel_close(&clients[i]);
    }
    config_free(&ps.config);
    assert_int_equal(ps.status, status);
    return heard();
}

/* --- Those who come --- */

static const struct config_setting nothing = {NULL, NULL};

static double soon(void)
{
    return clock_monotonic_s() + 10;
}

/* The refusal; 0: welcome. digest NULL: of the job. */
static uint16_t come(int client, enum member_role role, int index, uint64_t incarnation, const char *digest,
                     struct error *error)
{
    struct identity identity;
    struct connection *connection;
    struct peer peer;
    uint16_t reason = 0;
    if (!identity_create(&identity, &ps.config, (struct member){role, index}, error) ||
        !connection_connect(&connection, &ps.address, NULL, NULL, NULL, soon(), error)) {
        fail_msg("%s", error->text);
    }
    channel_close(&clients[client]);
    channel_open(&clients[client], connection);
    struct hello_identity hello = identity.hello;
    hello.incarnation = incarnation;
    hello.digest = digest ? digest : hello.digest;
    hello.job = digest ? "" : hello.job;
    const bool welcome =
        handshake_connect(&clients[client], &hello, &(struct member){MEMBER_PS, 0}, &peer, soon(), &reason, error);
    assert_true(welcome || reason != 0);
    identity_destroy(&identity);
    return reason;
}

static void welcome(int client, enum member_role role, int index, uint64_t incarnation, const char *digest)
{
    struct error error;
    if (come(client, role, index, incarnation, digest, &error) != 0) {
        fail_msg("%s", error.text);
    }
}

static void refused(uint16_t reason, const char *why, enum member_role role, int index, const char *digest)
{
    struct error error;
    assert_int_equal(come(MOST - 1, role, index, 1, digest, &error), reason);
    if (!strstr(error.text, why)) {
        fail_msg("\"%s\" does not say \"%s\"", error.text, why);
    }
}

static bool lives(int client)
{
    struct error error;
    const struct message_ping ping = {.nonce = 5};
    return channel_call(&clients[client], MESSAGE_ping, &ping, MESSAGE_pong, soon(), NULL, &error);
}

/* It says goodbye, and then the connection ends. */
static void goodbye(int client, const char *why)
{
    struct error error;
    if (!channel_receive(&clients[client], soon(), &error)) {
        fail_msg("%s", error.text);
    }
    assert_int_equal(clients[client].frame.type, MESSAGE_leave);
    assert_string_equal(clients[client].message.leave.message, why);
    assert_false(channel_receive(&clients[client], soon(), &error));
}

/* --- The chief's part --- */

static void ask_done(int client, enum message_type type, const void *message)
{
    struct error error;
    if (!channel_call(&clients[client], type, message, MESSAGE_done, soon(), NULL, &error)) {
        fail_msg("%s", error.text);
    }
}

/* Worker 0 gives it a model of zeros. */
static void restore(int client)
{
    static const float zeros[4096];
    struct model model;
    struct error error;
    uint8_t bytes[RANGE_BYTES];
    model_layout(&model, &ps.config.model);
    assert_true(model.float_count <= sizeof zeros / sizeof *zeros);
    clients[client].generation = 1;
    ask_done(client, MESSAGE_begin_restore, &(struct message_begin_restore){.source = "test"});
    range_put(bytes, 0, (struct range){0, (uint32_t)model.float_count});
    const struct message_write write = {.vector = STORE_PARAMETERS, .ranges = {bytes, 1}};
    struct iovec bulk = {(void *)(uintptr_t)zeros, model.float_count * sizeof *zeros};
    const struct outgoing frame = {.type = MESSAGE_write,
                                   .request = ++clients[client].next_request,
                                   .message = &write,
                                   .bulk = &bulk,
                                   .bulk_parts = 1};
    assert_true(channel_send_frame(&clients[client], &frame, soon(), &error));
    assert_true(channel_receive(&clients[client], soon(), &error));
    assert_int_equal(clients[client].frame.type, MESSAGE_done);
    ask_done(client, MESSAGE_end_restore, &(struct message_end_restore){.global_step = 0});
}

static void end_job(int client, enum job_state state)
{
    const struct message_end_job over = {.job_state = (uint8_t)state, .test_accuracy = NAN, .message = ""};
    ask_done(client, MESSAGE_end_job, &over);
}

/* --- Tests --- */

static void who_is_let_in(void **state)
{
    (void)state;
    begin(nothing);
    welcome(0, MEMBER_WORKER, 0, 1, NULL);
    welcome(1, MEMBER_WORKER, 1, 1, NULL);
    welcome(2, MEMBER_OPERATOR, -1, 1, "");
    welcome(3, MEMBER_WORKER, 1, 1, ""); /* guests, who report */
    welcome(4, MEMBER_PS, 0, 1, "");
    refused(REFUSAL_MEMBER, "worker 2", MEMBER_WORKER, 2, NULL);
    refused(REFUSAL_MEMBER, "there is no worker 9: do all members have the same ps_hosts and worker_hosts?",
            MEMBER_WORKER, 9, "");
    refused(REFUSAL_MEMBER, "there is no ps 1: do all members", MEMBER_PS, 1, "");
    refused(REFUSAL_CONFIG, "", MEMBER_WORKER, 1, "0000000000000000000000000000000000000000000000000000000000000000");
    for (int i = 0; i < 5; i++) {
        assert_true(lives(i));
    }
    atomic_store(&asked_to_leave, SIGTERM);
    for (int i = 0; i < 5; i++) {
        goodbye(i, "ps 0 was asked to leave (SIGTERM)");
    }
    const char *log = end(signals_exit_status(SIGTERM));
    assert_non_null(strstr(log, "of 127.0.0.1, for 2 workers; INSECURE: plain text"));
    assert_non_null(strstr(log, "ps 0 leaves at global step 0: ps 0 was asked to leave (SIGTERM)"));
}

/* One more than it may have costs a worker the connection that was silent for longest, and nobody else any. */
static void links_that_died_make_room(void **state)
{
    (void)state;
    begin(nothing);
    welcome(20, MEMBER_WORKER, 0, 1, NULL);
    for (int i = 0; i < SERVER_CONNECTIONS_PER_WORKER; i++) {
        welcome(i, MEMBER_WORKER, 1, 1, NULL);
    }
    for (int i = 0; i < SERVER_CONNECTIONS_PER_WORKER; i++) {
        assert_true(i == 2 || lives(i));
    }
    welcome(10, MEMBER_WORKER, 1, 1, NULL);
    assert_false(lives(2));
    for (int i = 0; i < SERVER_CONNECTIONS_PER_WORKER; i++) {
        assert_true(i == 2 || lives(i));
    }
    for (int i = 11; i < 11 + SERVER_CONNECTIONS_OF_GUEST; i++) {
        welcome(i, MEMBER_WORKER, 1, 1, "");
    }
    assert_true(lives(11));
    welcome(13, MEMBER_WORKER, 1, 2, ""); /* of a guest, whatever its process */
    assert_false(lives(12));
    assert_true(lives(10) && lives(11) && lives(13) && lives(20));
    atomic_store(&asked_to_leave, SIGINT);
    end(signals_exit_status(SIGINT));
}

static void operators_are_bounded(void **state)
{
    (void)state;
    begin(nothing);
    for (int i = 0; i < SERVER_OPERATORS; i++) {
        welcome(i, MEMBER_OPERATOR, -1, 1, "");
    }
    refused(REFUSAL_BUSY, "32 operators' connections are open here already", MEMBER_OPERATOR, -1, "");
    for (int i = 0; i < SERVER_OPERATORS; i++) {
        assert_true(lives(i));
    }
    channel_close(&clients[0]);
    struct error error;
    AWAIT(come(0, MEMBER_OPERATOR, -1, 1, "", &error) == 0); /* who goes makes room */
    atomic_store(&asked_to_leave, SIGTERM);
    end(signals_exit_status(SIGTERM));
}

/* A worker that hung up is replaced at once; one that lives keeps its place. */
static void one_process_each(void **state)
{
    struct error error;
    (void)state;
    begin(nothing);
    welcome(0, MEMBER_WORKER, 1, 1, NULL);
    welcome(1, MEMBER_WORKER, 1, 1, NULL);
    channel_close(&clients[0]);
    channel_close(&clients[1]);
    AWAIT(come(2, MEMBER_WORKER, 1, 2, NULL, &error) == 0);
    assert_true(lives(2));
    atomic_store(&asked_to_leave, SIGTERM);
    end(signals_exit_status(SIGTERM));
}

/* Done or failed, it goes when all have gone. */
static void a_job_that_is_over(void **state)
{
    static const enum job_state ends[] = {JOB_DONE, JOB_FAILED};
    (void)state;
    for (int i = 0; i < 2; i++) {
        begin(nothing);
        welcome(0, MEMBER_WORKER, 0, 1, NULL);
        welcome(1, MEMBER_WORKER, 1, 1, NULL);
        restore(0);
        end_job(0, ends[i]);
        ask_done(0, MESSAGE_leave, &(struct message_leave){.message = ""});
        channel_close(&clients[0]);
        assert_true(lives(1)); /* it is waited for */
        ask_done(1, MESSAGE_leave, &(struct message_leave){.message = ""});
        channel_close(&clients[1]);
        const char *log = end(i == 0 ? 0 : 1);
        assert_non_null(strstr(log, i == 0 ? "leaves at global step 0: the job is done"
                                           : "leaves at global step 0: the job is over: it failed"));
    }
}

/* Whoever stops all members at once wants a last checkpoint, for which worker 0 needs it. */
static void it_leaves_after_the_chief(void **state)
{
    (void)state;
    begin((struct config_setting){"leave_secs", "30"});
    welcome(0, MEMBER_WORKER, 0, 1, NULL);
    welcome(1, MEMBER_WORKER, 1, 1, NULL);
    restore(0);
    atomic_store(&asked_to_leave, SIGTERM);
    AWAIT(strstr(heard_so_far(), "waits up to 30 s for worker 0 to leave first"));
    assert_true(lives(0) && lives(1));
    assert_false(was_told("stopping"));
    channel_close(&clients[0]);
    goodbye(1, "ps 0 was asked to leave (SIGTERM)");
    end(signals_exit_status(SIGTERM));
    begin((struct config_setting){"leave_secs", "0.2"}); /* but not for ever */
    welcome(0, MEMBER_WORKER, 0, 1, NULL);
    restore(0);
    atomic_store(&asked_to_leave, SIGTERM);
    goodbye(0, "ps 0 was asked to leave (SIGTERM)");
    end(signals_exit_status(SIGTERM));
}

static void what_it_can_not_run(void **state)
{
    (void)state;
    atomic_store(&asked_to_leave, 0);
    told();
    listen_in();
    load((struct config_setting){"task_index", "1"});
    assert_int_equal(server_run(&ps.config), 2);
    config_free(&ps.config);
    load((struct config_setting){"bind", "192.0.2.1"}); /* an address that no machine has */
    assert_int_equal(server_run(&ps.config), 1);
    config_free(&ps.config);
    const char *log = heard();
    assert_non_null(strstr(log, "task_index"));
    assert_non_null(strstr(log, "ps 0: can't listen on 192.0.2.1 port "));
    assert_string_equal(told(), "");
}

/* Each connection has its thread, and buffers that messages fill as far as they are long. */
static void memory_by_connections(void **state)
{
    struct model model;
    (void)state;
    listen_in();
    load(nothing);
    model_layout(&model, &ps.config.model);
    const size_t none = server_memory(&model, &ps.config, 0, 0), one = server_memory(&model, &ps.config, 0, 1);
    assert_true(none >= 3 << 20);
    assert_int_equal(one - none, 64 * 1024 + 2 * model.float_count * sizeof(float));
    assert_int_equal(server_memory(&model, &ps.config, 0, 7) - none, 7 * (one - none));
    config_free(&ps.config);
    load((struct config_setting){"layers", "1000,1000,2"});
    model_layout(&model, &ps.config.model);
    assert_int_equal(server_memory(&model, &ps.config, 0, 1) - server_memory(&model, &ps.config, 0, 0),
                     64 * 1024 + 2 * (size_t)CONNECTION_BUFFER);
    config_free(&ps.config);
    heard();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_is_let_in),         cmocka_unit_test(links_that_died_make_room),
        cmocka_unit_test(operators_are_bounded), cmocka_unit_test(one_process_each),
        cmocka_unit_test(a_job_that_is_over),    cmocka_unit_test(it_leaves_after_the_chief),
        cmocka_unit_test(what_it_can_not_run),   cmocka_unit_test(memory_by_connections),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
