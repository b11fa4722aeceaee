/* A whole ps on a thread of a test, over plain TCP; and its peers. */
#ifndef TESTS_PS_RUNNING_H
#define TESTS_PS_RUNNING_H

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
#include "ps/server.h"
#include "ps/store/store.h"
#include "tests/check.h"
#include "tests/worker/remote/story.h"

/* --- The test's own ps, on a thread --- */

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
    const char *hidden; /* widths of hidden layers only; NULL: of all layers */
    const char *first;  /* the address of ps 0 if this is the next one; NULL: this is ps 0 */
    const char *next;   /* the address of the ps after this one; NULL: this is the last one */
    const struct server_observer *observer;
} ps;

enum { MOST = SERVER_OPERATORS + 1 };

static struct channel clients[MOST];

static inline void *run(void *unused)
{
    ps.status = server_run(&ps.config, ps.observer);
    tell("left\n");
    return unused;
}

/* With more settings, up to one without a name. */
static inline void load_with(const struct config_setting *more)
{
    static char hosts[100];
    char own[64];
    struct error error;
    int fd, count = 8;
    if (!socket_listen(&fd, "127.0.0.1", 0, &error)) {
        fail_msg("%s", error.text);
    }
    snprintf(own, sizeof own, "127.0.0.1:%d", socket_port(fd));
    close(fd);
    assert_true(address_parse(own, &ps.address, &error));
    snprintf(hosts, sizeof hosts, "%s%s%s%s%s", ps.first ? ps.first : "", ps.first ? "," : "", own, ps.next ? "," : "",
             ps.next ? ps.next : "");
    struct config_setting settings[16] = {{"ps_hosts", hosts},
                                          {"worker_hosts", "b:1,c:1"},
                                          {"bind", "127.0.0.1"},
                                          {"job_name", "ps"},
                                          {"insecure", "true"},
                                          {ps.hidden ? "hidden" : "layers", ps.hidden ? ps.hidden : "3,4,2"},
                                          {"task_index", ps.first ? "1" : "0"},
                                          {"lease_secs", "60"}};
    for (; more->flag; more++) {
        settings[count++] = *more;
    }
    if (!config_load(&ps.config, NULL, settings, count, &error)) {
        fail_msg("%s", error.text);
    }
}

/* extra: one more setting, or one without a name. */
static inline void load(struct config_setting extra)
{
    const struct config_setting more[] = {extra, {NULL, NULL}};
    load_with(more);
}

static inline void launch(void)
{
    atomic_store(&asked_to_leave, 0);
    told();
    assert_int_equal(pthread_create(&ps.thread, NULL, run, NULL), 0);
    assert_true(await_told("ready: "));
}

static inline void begin(struct config_setting extra)
{
    listen_in();
    load(extra);
    launch();
}

/* Its log. */
static inline const char *end(int status)
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

/* --- Peers --- */

static const struct config_setting nothing = {NULL, NULL};

static inline double soon(void)
{
    return clock_monotonic_s() + 60;
}

/* The refusal; 0: welcome. digest NULL: the job's. */
static inline uint16_t come(int client, enum member_role role, int index, uint64_t incarnation, const char *digest,
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
    const bool welcome = handshake_connect(&clients[client], &hello, &(struct member){MEMBER_PS, ps.first ? 1 : 0},
                                           &peer, soon(), &reason, error);
    assert_true(welcome || reason != 0);
    identity_destroy(&identity);
    return reason;
}

static inline void welcome(int client, enum member_role role, int index, uint64_t incarnation, const char *digest)
{
    struct error error;
    if (come(client, role, index, incarnation, digest, &error) != 0) {
        fail_msg("%s", error.text);
    }
}

static inline bool lives(int client)
{
    struct error error;
    const struct message_ping ping = {.nonce = 5};
    return channel_call(&clients[client], MESSAGE_ping, &ping, MESSAGE_pong, soon(), NULL, &error);
}

/* It sends goodbye, and then the connection ends. */
static inline void goodbye(int client, const char *why)
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

static inline void ask_done(int client, enum message_type type, const void *message)
{
    struct error error;
    if (!channel_call(&clients[client], type, message, MESSAGE_done, soon(), NULL, &error)) {
        fail_msg("%s", error.text);
    }
}

/* Worker 0 writes a model of zeros. */
static inline void restore(int client)
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

#endif
