/* Connections over TLS and plain TCP: what is written arrives; timeouts, ends and cancellation are told apart. */
#include "net/connection.h"
#include "tests/check.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/memory.h"
#include "net/transport.h"
#include "tests/net/first_look.h"
#include "tests/net/fleet_key.h"
#include "tests/net/loopback.h"
#include "tests/net/writing.h"

static double soon(void)
{
    return clock_monotonic_s() + 60;
}

static struct connection *connect_to(struct loopback *loopback, const struct credentials *credentials)
{
    struct connection *connection;
    struct error error;
    struct member ps = {MEMBER_PS, 0};
    if (!connection_connect(&connection, &loopback->address, &ps, credentials, NULL, soon(), &error)) {
        fail_msg("%s (server: %s)", error.text, loopback->error.text);
    }
    return connection;
}

/* Echoes what arrives, in the same sizes: u32 size, bytes; size 0 ends it. */
static void echo(struct connection **connection, void *context)
{
    struct error error;
    uint32_t size;
    while (connection_read(*connection, &size, sizeof size, soon(), &error) && size > 0) {
        uint8_t *bytes = malloc(size);
        if (connection_read(*connection, bytes, size, soon(), &error)) {
            struct iovec parts[] = {{&size, sizeof size}, {bytes, size / 3}, {bytes + size / 3, size - size / 3}};
            write_now(*connection, parts, 3, soon(), &error);
        }
        free(bytes);
    }
}

static void round_trips(const struct credentials *credentials)
{
    static const uint32_t sizes[] = {1,     2,     7,      8,      16383,  16384,   16385,  32768,
                                     65535, 65536, 262143, 262144, 262145, 1000003, 3000000};
    struct loopback loopback = {.listener = -1};
    struct error error;
    loopback_start(&loopback, credentials, echo, NULL);
    struct connection *connection = connect_to(&loopback, credentials);
    uint64_t bytes = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint32_t size = sizes[i], got_size;
        bytes += sizeof size + size;
        uint8_t *sent = malloc(size), *got = malloc(size);
        for (uint32_t k = 0; k < size; k++) {
            sent[k] = (uint8_t)(k * 2654435761U >> 24);
        }
        struct iovec parts[] = {{&size, sizeof size}, {sent, size}};
        assert_true(write_now(connection, parts, 2, soon(), &error));
        assert_true(connection_read(connection, &got_size, sizeof got_size, soon(), &error));
        assert_int_equal(got_size, size);
        assert_true(connection_read(connection, got, size, soon(), &error));
        assert_memory_equal(got, sent, size);
        free(sent);
        free(got);
    }
    uint32_t end = 0;
    struct iovec last = {&end, sizeof end};
    assert_true(write_now(connection, &last, 1, soon(), &error));
    if (credentials) {
        assert_true(connection_bytes_in(connection) > bytes && connection_bytes_out(connection) > bytes);
    } else {
        assert_int_equal(connection_bytes_in(connection), bytes);
        assert_int_equal(connection_bytes_out(connection), bytes + sizeof end);
    }
    assert_false(connection_read(connection, &end, 1, soon(), &error));
    assert_int_equal(connection_state(connection), CONNECTION_CLOSED);
    assert_non_null(strstr(error.text, "ps 0 (127.0.0.1:"));
    assert_non_null(strstr(error.text, "closed the connection"));
    connection_close(connection);
    loopback_end(&loopback);
}

TEST(round_trips_plain)
{
    round_trips(NULL);
}

TEST(round_trips_tls)
{
    round_trips(fleet_key);
}

/* A socket that accepts little at a time gets each byte once. */
TEST(a_narrow_pipe)
{
    const struct credentials *const keys[] = {NULL, fleet_key};
    for (int i = 0; i < 2; i++) {
        struct loopback loopback = {.listener = -1};
        struct error error;
        uint32_t size = 2000003, got_size, end = 0;
        const int room = 4096;
        uint8_t *sent = malloc(size), *got = malloc(size);
        for (uint32_t k = 0; k < size; k++) {
            sent[k] = (uint8_t)(k * 2654435761U >> 24);
        }
        loopback_start(&loopback, keys[i], echo, NULL);
        struct connection *connection = connect_to(&loopback, keys[i]);
        assert_int_equal(setsockopt(connection_fd(connection), SOL_SOCKET, SO_SNDBUF, &room, sizeof room), 0);
        struct iovec parts[] = {{&size, sizeof size}, {sent, size}};
        assert_true(write_now(connection, parts, 2, soon(), &error));
        assert_true(connection_read(connection, &got_size, sizeof got_size, soon(), &error));
        assert_int_equal(got_size, size);
        assert_true(connection_read(connection, got, size, soon(), &error));
        assert_memory_equal(got, sent, size);
        parts[0] = (struct iovec){&end, sizeof end};
        assert_true(write_now(connection, parts, 1, soon(), &error));
        connection_close(connection);
        loopback_end(&loopback);
        free(sent);
        free(got);
    }
}

/* Many small writes are collected and sent by the flush. */
TEST(writes_gather)
{
    struct loopback loopback = {.listener = -1};
    struct error error;
    loopback_start(&loopback, fleet_key, echo, NULL);
    struct connection *connection = connect_to(&loopback, fleet_key);
    uint64_t before = connection_bytes_out(connection);
    uint32_t size = 50000, got_size, end = 0;
    uint8_t bytes[50000], got[50000];
    for (uint32_t i = 0; i < size; i++) {
        bytes[i] = (uint8_t)i;
    }
    struct iovec part = {&size, sizeof size};
    assert_true(connection_write_more(connection, &part, 1, soon(), &error));
    for (uint32_t i = 0; i < size; i += 10) {
        part = (struct iovec){bytes + i, 10};
        assert_true(connection_write_more(connection, &part, 1, soon(), &error));
    }
    assert_int_equal(connection_bytes_out(connection), before); /* nothing has been sent yet: it fits into the buffer */
    assert_true(connection_flush(connection, soon(), &error));
    assert_true(connection_bytes_out(connection) - before < size + 200); /* 4 records, not 5,000 */
    assert_true(connection_read(connection, &got_size, sizeof got_size, soon(), &error));
    assert_true(connection_read(connection, got, size, soon(), &error));
    assert_memory_equal(got, bytes, size);
    part = (struct iovec){&end, sizeof end};
    assert_true(write_now(connection, &part, 1, soon(), &error));
    connection_close(connection);
    loopback_end(&loopback);
}

/* Until the other end is closed. */
static void hold(struct connection **connection, void *context)
{
    uint8_t byte;
    struct error error;
    connection_read(*connection, &byte, 1, clock_monotonic_s() + 60, &error);
}

/* The seconds that an error's text names after `words`; on a busy machine slightly more than requested. */
static double told_seconds(const struct error *error, const char *words)
{
    const char *found = strstr(error->text, words);
    return found ? strtod(found + strlen(words), NULL) : -1;
}

static void silent_peer(const struct credentials *credentials)
{
    struct loopback loopback = {.listener = -1};
    struct error error;
    loopback_start(&loopback, credentials, hold, NULL);
    struct connection *connection = connect_to(&loopback, credentials);
    bool ready = true;
    uint8_t byte;
    double started_s = clock_monotonic_s();
    assert_true(connection_wait(connection, started_s + 0.05, &ready, &error));
    assert_false(ready);
    assert_int_equal(connection_state(connection), CONNECTION_OPEN);
    assert_false(connection_read(connection, &byte, 1, clock_monotonic_s() + 0.1, &error));
    assert_true(clock_monotonic_s() - started_s > 0.14);
    assert_int_equal(connection_state(connection), CONNECTION_TIMED_OUT); /* the peer is silent, and waits longer */
    assert_non_null(strstr(error.text, "no answer from ps 0 (127.0.0.1:"));
    const double told_s = told_seconds(&error, " within "); /* counted from the call, which came a moment later */
    assert_true(told_s >= 0 && told_s < 0.101);
    connection_close(connection);
    loopback_end(&loopback);
}

TEST(silent_peer_times_out)
{
    silent_peer(NULL);
    silent_peer(fleet_key);
}

static double idle_s; /* more at each try, for busy machines */
enum { DRIPS = 8 };

/* A timeout for silence ends a wait long before its deadline; any sign of life, however small, restarts it. */
static void drip(struct connection **connection, void *context)
{
    bool goes_on = true;
    *(double *)context = clock_monotonic_s();
    for (int i = 0; i < DRIPS && goes_on; i++) {
        uint8_t byte = (uint8_t)(i + 1);
        struct iovec part = {&byte, 1};
        struct error error;
        usleep((useconds_t)(idle_s / 4 * 1e6));
        goes_on = write_now(*connection, &part, 1, soon(), &error);
    }
    if (goes_on) {
        hold(connection, NULL);
    }
}

/* False if this machine was too busy for a peer that sends little by little: then the test is inconclusive. */
static bool idle_timeout_with_drips(const struct credentials *credentials)
{
    struct loopback loopback = {.listener = -1};
    struct error error;
    double dripping_s = 0; /* since when */
    loopback_start(&loopback, credentials, drip, &dripping_s);
    struct connection *connection = connect_to(&loopback, credentials);
    uint8_t bytes[DRIPS + 1] = {0};
    connection_set_idle_timeout(connection, idle_s);
    double started_s = clock_monotonic_s();
    assert_false(connection_read(connection, bytes, sizeof bytes, started_s + 60, &error));
    double ended_s = clock_monotonic_s(), heard_s = connection_last_received_s(connection);
    assert_int_equal(connection_state(connection), CONNECTION_TIMED_OUT);
    assert_true(ended_s < started_s + 60 && ended_s - fmax(heard_s, started_s) > 0.9 * idle_s);
    connection_close(connection);
    loopback_end(&loopback);
    const bool heard_all = bytes[DRIPS - 1] == DRIPS && started_s - dripping_s < idle_s / 4;
    assert_true(!heard_all || heard_s - started_s > 1.5 * idle_s);
    return heard_all;
}

static void check_idle_timeout(const struct credentials *credentials)
{
    idle_s = 0.4;
    while (!idle_timeout_with_drips(credentials)) {
        idle_s *= 1.5;
        assert_true(idle_s < 20); /* this machine is too busy, or waits end too early */
    }
}

TEST(an_idle_timeout_ends_a_wait)
{
    check_idle_timeout(NULL);
    check_idle_timeout(fleet_key);
}

/* An answer ends a wait at once, however long the silence may last. */
TEST(an_answer_ends_a_wait)
{
    struct loopback loopback = {.listener = -1};
    struct error error;
    uint32_t size = 1, got_size, end = 0;
    uint8_t byte = 7;
    loopback_start(&loopback, NULL, echo, NULL);
    struct connection *connection = connect_to(&loopback, NULL);
    struct iovec parts[] = {{&size, sizeof size}, {&byte, 1}};
    connection_set_idle_timeout(connection, 60);
    const double begun_s = clock_monotonic_s();
    for (int i = 0; i < 3; i++) {
        assert_true(write_now(connection, parts, 2, begun_s + 120, &error));
        assert_true(connection_read(connection, &got_size, sizeof got_size, begun_s + 120, &error));
        assert_true(connection_read(connection, &byte, 1, begun_s + 120, &error));
    }
    assert_true(clock_monotonic_s() - begun_s < 50);
    parts[0] = (struct iovec){&end, sizeof end};
    assert_true(write_now(connection, parts, 1, soon(), &error));
    connection_close(connection);
    loopback_end(&loopback);
}

enum { SIPS = 20, SIP_BYTES = 1000 };

/* Reads a little at a time, for longer than the timeout of a peer that reads nothing, and then answers. */
struct sipper {
    int fd;
    double last_s, pause_s; /* since when it pauses, and its longest pause */
};

static void end_pause(struct sipper *sipper)
{
    const double now_s = clock_monotonic_s();
    sipper->pause_s = fmax(sipper->pause_s, now_s - sipper->last_s);
    sipper->last_s = now_s;
}

static void *sip(void *context)
{
    struct sipper *sipper = context;
    for (int i = 0; i < SIPS; i++) {
        uint8_t bytes[SIP_BYTES];
        usleep((useconds_t)(idle_s / 8 * 1e6));
        assert(recv(sipper->fd, bytes, sizeof bytes, MSG_WAITALL) == SIP_BYTES);
        end_pause(sipper);
    }
    assert(send(sipper->fd, "!", 1, 0) == 1);
    end_pause(sipper);
    return NULL;
}

/* False: this machine was too busy for a peer that reads a little now and then. */
static bool waits_for_a_sipper(void)
{
    struct connection *connection;
    struct sipper sipper = {.pause_s = 0};
    struct error error;
    pthread_t thread;
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    assert_int_equal(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0); /* like all sockets of listeners and connects */
    sipper.fd = ends[1];
    assert_true(connection_serve(&connection, ends[0], "a sipper", NULL, NULL, soon(), &error));
    connection_set_idle_timeout(connection, idle_s);
    for (int i = 0; i < SIPS; i++) {
        uint8_t bytes[SIP_BYTES] = {0};
        struct iovec part = {bytes, sizeof bytes};
        assert_true(write_now(connection, &part, 1, soon(), &error));
    }
    sipper.last_s = clock_monotonic_s();
    assert_int_equal(pthread_create(&thread, NULL, sip, &sipper), 0);
    char answer;
    bool answered = connection_read(connection, &answer, 1, clock_monotonic_s() + 60, &error);
    pthread_join(thread, NULL);
    connection_close(connection);
    close(ends[1]);
    assert_true(answered || sipper.pause_s > idle_s / 2);
    return answered;
}

/* A peer whose system acknowledges data is alive, even if it sends nothing. */
TEST(what_is_taken_is_a_sign_of_life)
{
    idle_s = 0.4;
    while (!waits_for_a_sipper()) {
        idle_s *= 1.5;
        assert_true(idle_s < 20);
    }
}

/* Until the writer has given up. */
static void read_nothing(struct connection **connection, void *context)
{
    while (!atomic_load((atomic_bool *)context)) {
        usleep(1000);
    }
}

/* A peer that reads nothing stops a writer at its deadline. */
TEST(full_pipe_times_out)
{
    struct loopback loopback = {.listener = -1};
    struct error error = {""};
    size_t size = 64 << 20;
    atomic_bool given_up = false;
    loopback_start(&loopback, fleet_key, read_nothing, &given_up);
    struct connection *connection = connect_to(&loopback, fleet_key);
    uint8_t *bytes = calloc(1, size);
    struct iovec part = {bytes, size};
    assert_false(write_now(connection, &part, 1, now_for_both_s() + 0.3, &error));
    assert_int_equal(connection_state(connection), CONNECTION_TIMED_OUT);
    atomic_store(&given_up, true);
    assert_true(told_seconds(&error, "has accepted no data for ") >= 0.3);
    free(bytes);
    connection_close(connection);
    loopback_end(&loopback);
}

/* Endlessly, until the other side gives up. */
static void stream(struct connection **connection, void *context)
{
    static uint8_t bytes[1 << 20];
    struct iovec part = {bytes, sizeof bytes};
    struct error error;
    while (write_now(*connection, &part, 1, soon(), &error)) {
    }
}

/* A peer that keeps sending does not extend a deadline: what it owes would take ten times as long. */
static void stream_ends_at_the_deadline(const struct credentials *credentials)
{
    struct loopback loopback = {.listener = -1};
    struct error error;
    const size_t size = 1 << 30;
    loopback_start(&loopback, credentials, stream, NULL);
    struct connection *connection = connect_to(&loopback, credentials);
    uint8_t *bytes = malloc(size);
    const double deadline_s = clock_monotonic_s() + 0.03;
    assert_false(connection_read(connection, bytes, size, deadline_s, &error));
    assert_true(clock_monotonic_s() >= deadline_s);
    assert_int_equal(connection_state(connection), CONNECTION_TIMED_OUT);
    free(bytes);
    connection_close(connection);
    loopback_end(&loopback);
}

TEST(streams_end_at_the_deadline)
{
    stream_ends_at_the_deadline(NULL);
    stream_ends_at_the_deadline(fleet_key);
}

/* Data that has arrived by the deadline is not lost: one more check is made, however late. */
TEST(late_is_not_lost)
{
    struct loopback loopback = {.listener = -1};
    struct error error;
    uint32_t size = 1000, got = 0, end = 0;
    uint8_t bytes[1000] = {7}, echoed[1000];
    loopback_start(&loopback, fleet_key, echo, NULL);
    struct connection *connection = connect_to(&loopback, fleet_key);
    struct iovec parts[] = {{&size, sizeof size}, {bytes, sizeof bytes}};
    const double deadline_s = clock_monotonic_s() + 0.05;
    bool ready = false;
    assert_true(write_now(connection, parts, 2, soon(), &error));
    assert_true(connection_wait(connection, soon(), &ready, &error) && ready);
    while (clock_monotonic_s() < deadline_s) {
        usleep(10000);
    }
    assert_true(connection_read(connection, &got, sizeof got, deadline_s, &error));
    assert_true(connection_read(connection, echoed, sizeof echoed, deadline_s, &error));
    assert_memory_equal(echoed, bytes, sizeof bytes);
    parts[0] = (struct iovec){&end, sizeof end};
    assert_true(write_now(connection, parts, 1, soon(), &error));
    connection_close(connection);
    loopback_end(&loopback);
}

/* A relay between two ends: forwards data, and what the server sends in two pieces, the second on command. */
struct way {
    int listener, server;
    atomic_bool breaks;
    pthread_t thread;
};

static void *hand_on(void *context)
{
    struct way *way = context;
    char peer[ENDPOINT_TEXT];
    struct error error;
    int client;
    if (!accept_in_time(way->listener, &client, peer, soon(), &error)) {
        return NULL;
    }
    struct pollfd ends[] = {{.fd = client, .events = POLLIN}, {.fd = way->server, .events = POLLIN}};
    for (bool open = true; open;) {
        poll(ends, 2, 10000);
        for (int i = 0; i < 2; i++) {
            uint8_t bytes[4096];
            const ssize_t n = ends[i].revents ? recv(ends[i].fd, bytes, sizeof bytes, 0) : 1;
            if (!ends[i].revents) {
                continue;
            }
            open = open && n > 0;
            const ssize_t first = i == 1 && atomic_load(&way->breaks) && n > 3 ? 3 : n;
            if (n > 0 && send(ends[1 - i].fd, bytes, (size_t)first, MSG_NOSIGNAL) == first && first < n) {
                usleep(100 * 1000);
                send(ends[1 - i].fd, bytes + first, (size_t)(n - first), MSG_NOSIGNAL);
            }
        }
    }
    close(client);
    close(way->server);
    return NULL;
}

/* Part of a record is nothing to read yet; if the rest arrives before the deadline, it is in time. */
TEST(a_record_in_pieces_is_waited_for)
{
    struct loopback loopback = {.listener = -1};
    struct way way = {.breaks = false};
    struct address address = {.host = "127.0.0.1"};
    struct error error;
    struct connection *connection;
    uint32_t size = 1000, got = 0, end = 0;
    uint8_t bytes[1000] = {7}, echoed[1000];
    bool ready = false;
    loopback_start(&loopback, fleet_key, echo, NULL);
    assert_true(socket_connect(&way.server, &loopback.address, NULL, soon(), &error));
    assert_true(socket_listen(&way.listener, "127.0.0.1", 0, &error));
    address.port = socket_port(way.listener);
    assert_int_equal(pthread_create(&way.thread, NULL, hand_on, &way), 0);
    assert_true(
        connection_connect(&connection, &address, &(struct member){MEMBER_PS, 0}, fleet_key, NULL, soon(), &error));
    atomic_store(&way.breaks, true);
    struct iovec parts[] = {{&size, sizeof size}, {bytes, sizeof bytes}};
    assert_true(write_now(connection, parts, 2, soon(), &error));
    assert_true(connection_wait(connection, soon(), &ready, &error) && ready);
    assert_true(connection_read(connection, &got, sizeof got, soon(), &error));
    assert_true(connection_read(connection, echoed, sizeof echoed, soon(), &error));
    assert_memory_equal(echoed, bytes, sizeof bytes);
    parts[0] = (struct iovec){&end, sizeof end};
    assert_true(write_now(connection, parts, 1, soon(), &error));
    connection_close(connection);
    pthread_join(way.thread, NULL);
    close(way.listener);
    loopback_end(&loopback);
}

/* Once; anything after that check is too late, however much of it there is. */
TEST(late_is_looked_at_once)
{
    struct connection *connection;
    struct error error;
    char got[4];
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    assert_int_equal(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
    assert_true(connection_serve(&connection, ends[0], "a peer", NULL, NULL, soon(), &error));
    const double passed_s = clock_monotonic_s() - 1;
    assert_int_equal(send(ends[1], "once", 4, 0), 4);
    assert_true(connection_read(connection, got, 4, passed_s, &error));
    assert_memory_equal(got, "once", 4);
    assert_int_equal(send(ends[1], "more", 4, 0), 4);
    assert_false(connection_read(connection, got, 4, passed_s, &error));
    assert_int_equal(connection_state(connection), CONNECTION_TIMED_OUT);
    assert_string_equal(error.text, "a peer did not finish sending in time");
    connection_close(connection);
    close(ends[1]);
}

/* After a refusal the peer's data is read for a moment: closing a socket with unread data would send a reset. */
TEST(who_is_refused_is_heard_out)
{
    struct connection *connection;
    struct error error;
    char bytes[4096] = "what is no TLS, and long", answer[64];
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    assert_int_equal(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
    assert_int_equal(send(ends[1], bytes, sizeof bytes, 0), sizeof bytes);
    const double begun_s = clock_monotonic_s();
    assert_false(connection_serve(&connection, ends[0], "a peer", fleet_key, NULL, soon(), &error));
    assert_true(clock_monotonic_s() - begun_s > 0.45); /* more may be in flight */
    assert_int_equal(connection_state(connection), CONNECTION_BROKEN);
    assert_true(recv(ends[1], answer, sizeof answer, 0) == 7 && answer[0] == 0x15); /* an alert, and then the end */
    assert_int_equal(recv(ends[1], answer, sizeof answer, 0), 0);
    assert_int_equal(recv(ends[0], answer, sizeof answer, MSG_DONTWAIT), -1); /* nothing of it is left unread */
    connection_close(connection);
    close(ends[1]);
}

static void *raise_later(void *wake)
{
    usleep(50000);
    wake_raise(wake);
    return NULL;
}

TEST(wake_ends_waits)
{
    struct loopback loopback = {.listener = -1};
    struct error error;
    struct wake wake;
    struct connection *connection;
    pthread_t thread;
    uint8_t byte;
    assert_true(wake_create(&wake, &error));
    loopback_start(&loopback, fleet_key, hold, NULL);
    assert_true(connection_connect(&connection, &loopback.address, NULL, fleet_key, &wake, soon(), &error));
    pthread_create(&thread, NULL, raise_later, &wake);
    assert_false(connection_read(connection, &byte, 1, soon(), &error));
    assert_int_equal(connection_state(connection), CONNECTION_WOKEN);
    pthread_join(thread, NULL);
    connection_close(connection);
    loopback_end(&loopback);
    wake_destroy(&wake);
}

/*
 * A peer that sends half a message, a byte at a time, holds a handshake up to its deadline and no longer. It never
 * closes its side, which the server must not wait for.
 */
TEST(half_open_handshake_ends)
{
    struct loopback loopback = {.listener = -1};
    struct error error;
    int fd;
    loopback.deadline_s = clock_monotonic_s() + 0.3;
    loopback_start(&loopback, fleet_key, NULL, NULL);
    assert_true(socket_connect(&fd, &loopback.address, NULL, soon(), &error));
    static const uint8_t record[] = {0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3};
    for (size_t i = 0; i < sizeof record && send(fd, record + i, 1, MSG_NOSIGNAL) == 1; i++) {
        usleep(10000);
    }
    loopback_end(&loopback);
    assert_true(clock_monotonic_s() >= loopback.deadline_s);
    assert_false(loopback.served);
    assert_non_null(strstr(loopback.error.text, "refused 127.0.0.1:"));
    const bool late = strstr(loopback.error.text, " did not finish sending in time"); /* who looked away that long */
    assert_true(late || strstr(loopback.error.text, "no answer from 127.0.0.1:"));
    close(fd);
}

/* ChangeCipherSpec records mean nothing in TLS 1.3; a server skips them, up to a limit. */
TEST(handshake_without_end)
{
    struct loopback loopback = {.listener = -1};
    struct error error;
    static const uint8_t record[] = {0x14, 3, 3, 0, 1, 1};
    uint8_t hello[1024], records[1000 * sizeof record];
    int fd;
    size_t size = loopback_hello(fleet_key, hello, sizeof hello);
    for (size_t i = 0; i < sizeof records; i += sizeof record) {
        memcpy(records + i, record, sizeof record);
    }
    loopback.deadline_s = clock_monotonic_s() + 0.3;
    loopback_start(&loopback, fleet_key, NULL, NULL);
    assert_true(socket_connect(&fd, &loopback.address, NULL, soon(), &error));
    assert_int_equal(send(fd, hello, size, MSG_NOSIGNAL), size);
    const double until_s = clock_monotonic_s() + 60;
    uint64_t sent = 0;
    bool cut = false;
    while (!cut && clock_monotonic_s() < until_s) {
        ssize_t taken = send(fd, records, sizeof records, MSG_NOSIGNAL | MSG_DONTWAIT);
        sent += taken > 0 ? (uint64_t)taken : 0;
        cut = taken < 0 && errno != EAGAIN && errno != EWOULDBLOCK;
    }
    assert_true(cut);
    assert_true(sent < 64 << 20); /* the amount it skipped, and the sockets' buffers */
    loopback_end(&loopback);
    assert_false(loopback.served);
    close(fd);
}

/* The peer is cut off in the middle of the announced data. */
static void cut_after_a_byte(struct connection **connection, void *context)
{
    struct error error;
    struct iovec part = {(char[]){"x"}, 1};
    write_now(*connection, &part, 1, soon(), &error);
    struct linger hard = {1, 0};
    setsockopt(connection_fd(*connection), SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    shutdown(connection_fd(*connection), SHUT_RDWR);
}

TEST(cut_is_told)
{
    struct loopback loopback = {.listener = -1};
    struct error error;
    uint8_t bytes[100];
    loopback_start(&loopback, fleet_key, cut_after_a_byte, NULL);
    struct connection *connection = connect_to(&loopback, fleet_key);
    assert_false(connection_read(connection, bytes, sizeof bytes, soon(), &error));
    assert_true(connection_state(connection) == CONNECTION_CLOSED || connection_state(connection) == CONNECTION_BROKEN);
    assert_non_null(strstr(error.text, "ps 0 (127.0.0.1:"));
    connection_close(connection);
    loopback_end(&loopback);
}

TEST(nobody_listens)
{
    struct loopback loopback = {.listener = -1};
    struct connection *connection;
    struct error error;
    loopback_listen(&loopback);
    close(loopback.listener);
    assert_false(connection_connect(&connection, &loopback.address, NULL, fleet_key, NULL, soon(), &error));
    assert_non_null(strstr(error.text, "nothing listens there"));
}

/* Of both sanitizers; gcc has no header for it. */
size_t __sanitizer_get_current_allocated_bytes(void);

/* Of the buffers of those that rest or were closed the next are served; but not all that ever were are kept. */
TEST(idle_buffers_are_used_again)
{
    enum { MANY = CONNECTION_IDLE + 5, PAIR = 2 * CONNECTION_BUFFER };
    struct connection *connections[MANY];
    struct error error;
    const size_t before = __sanitizer_get_current_allocated_bytes();
    for (int i = 0; i < MANY; i++) {
        connections[i] = loopback_alone();
    }
    const size_t open = __sanitizer_get_current_allocated_bytes();
    for (int i = 0; i < MANY; i++) {
        const uint8_t *in = connections[i]->in, *out = connections[i]->out;
        (void)in, (void)out;
        assert_true(connection_park(connections[i]));
        assert_null(connections[i]->in);
#ifdef ADDRESSES_SANITIZED
        assert_true(__asan_address_is_poisoned(in) && __asan_address_is_poisoned(out + CONNECTION_BUFFER - 1));
#endif
    }
    const size_t resting = __sanitizer_get_current_allocated_bytes();
    assert_int_equal((open - resting) / PAIR, MANY - CONNECTION_IDLE); /* each a little larger than asked for */
    for (int i = 0; i < MANY; i++) {
        assert_true(connection_resume(connections[i], &error));
        memset(connections[i]->in, i, CONNECTION_BUFFER);
        memset(connections[i]->out, i, CONNECTION_BUFFER);
    }
    assert_int_equal(__sanitizer_get_current_allocated_bytes(), open);
    for (int i = 0; i < MANY; i++) { /* each has its own */
        assert_true(connections[i]->in[0] == i && connections[i]->out[CONNECTION_BUFFER - 1] == i);
        connection_close(connections[i]);
    }
    const size_t closed = __sanitizer_get_current_allocated_bytes();
    assert_true(closed < before + (CONNECTION_IDLE + 1) * PAIR);
    connection_close(loopback_alone());
    assert_int_equal(__sanitizer_get_current_allocated_bytes(), closed);
}

int main(void)
{
    return check_run(make_key, remove_key);
}
