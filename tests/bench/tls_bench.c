/*
 * Throughput of the program's own connections over loopback, with both ends in one process.
 *
 *     tls_bench [bulk|push|plain-bulk|plain-push|handshake] [seconds]
 *
 * bulk: one stream of 1 MiB writes. push: frames of 1.6 MB (397,510 floats) and back again, one round trip at a time.
 * handshake: connections opened and closed. Prints one line.
 */
#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "net/channel.h"
#include "net/credentials.h"
#include "tests/net/accepting.h"
#include "tests/net/writing.h"

enum { BLOCK = 1 << 20, FLOATS = 397510 };

struct bench {
    int listener;
    struct address address;
    struct credentials *credentials;
    double deadline_s;
    const char *mode;
};

static struct error error;

static void check(bool done)
{
    if (!done) {
        fprintf(stderr, "tls_bench: %s\n", error.text);
        exit(1);
    }
}

static struct connection *accept_one(const struct bench *bench)
{
    int fd;
    char peer[ENDPOINT_TEXT];
    struct connection *connection;
    check(accept_in_time(bench->listener, &fd, peer, bench->deadline_s, &error));
    check(connection_serve(&connection, fd, peer, bench->credentials, NULL, bench->deadline_s, &error));
    return connection;
}

static void *serve_bulk(void *argument)
{
    const struct bench *bench = argument;
    struct connection *connection = accept_one(bench);
    uint8_t *block = malloc(BLOCK);
    struct error end;
    while (connection_read(connection, block, BLOCK, bench->deadline_s, &end)) {
    }
    free(block);
    connection_close(connection);
    return NULL;
}

static void *serve_push(void *argument)
{
    const struct bench *bench = argument;
    struct channel channel;
    struct error end;
    uint8_t *floats = malloc(FLOATS * 4);
    channel_open(&channel, accept_one(bench));
    while (channel_receive(&channel, bench->deadline_s, &end)) {
        struct message_pushed pushed = {.ranges = channel.message.push.ranges};
        struct iovec bulk = {floats, channel.bulk_left};
        uint64_t request = channel.frame.request;
        check(channel_read_bulk(&channel, floats, channel.bulk_left, bench->deadline_s, &error));
        const struct outgoing frame = {
            .type = MESSAGE_pushed, .request = request, .message = &pushed, .bulk = &bulk, .bulk_parts = 1};
        check(channel_send_frame(&channel, &frame, bench->deadline_s, &error));
    }
    channel_close(&channel);
    free(floats);
    return NULL;
}

static void *serve_handshakes(void *argument)
{
    for (;;) {
        connection_close(accept_one(argument));
    }
    return NULL;
}

static void bulk(const struct bench *bench, struct connection *connection, double seconds)
{
    uint8_t *block = malloc(BLOCK);
    memset(block, 'x', BLOCK);
    struct iovec part = {block, BLOCK};
    double started_s = clock_monotonic_s();
    uint64_t sent = 0;
    while (clock_monotonic_s() - started_s < seconds) {
        check(write_now(connection, &part, 1, bench->deadline_s, &error));
        sent += BLOCK;
    }
    printf("%s %s %.3f GB/s\n", bench->mode, connection_cipher(connection),
           (double)sent / (clock_monotonic_s() - started_s) / 1e9);
    connection_close(connection);
    free(block);
}

static void push(const struct bench *bench, struct connection *connection, double seconds)
{
    struct channel channel;
    float *floats = calloc(FLOATS, sizeof *floats);
    uint8_t range[RANGE_BYTES];
    int rounds = 0;
    range_put(range, 0, (struct range){0, FLOATS});
    channel_open(&channel, connection);
    struct message_push push_message = {.ranges = {range, 1}};
    struct iovec part = {floats, FLOATS * sizeof *floats};
    double started_s = clock_monotonic_s();
    for (; clock_monotonic_s() - started_s < seconds; rounds++) {
        const struct outgoing frame = {
            .type = MESSAGE_push, .request = 1, .message = &push_message, .bulk = &part, .bulk_parts = 1};
        check(channel_send_frame(&channel, &frame, bench->deadline_s, &error));
        check(channel_receive(&channel, bench->deadline_s, &error));
        check(channel_read_bulk(&channel, floats, channel.bulk_left, bench->deadline_s, &error));
    }
    printf("%s %s %.0f round trips of %d floats a second\n", bench->mode, connection_cipher(connection),
           rounds / (clock_monotonic_s() - started_s), FLOATS);
    channel_close(&channel);
    free(floats);
}

static void handshakes(const struct bench *bench, struct connection *connection, double seconds)
{
    int count = 0;
    double started_s = clock_monotonic_s();
    for (; clock_monotonic_s() - started_s < seconds; count++) {
        connection_close(connection);
        check(connection_connect(&connection, &bench->address, NULL, bench->credentials, NULL, bench->deadline_s,
                                 &error));
    }
    printf("%s %.2f ms\n", bench->mode, (clock_monotonic_s() - started_s) / count * 1e3);
    connection_close(connection);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "bulk";
    double seconds = argc > 2 ? atof(argv[2]) : 3;
    bool plain = strncmp(mode, "plain-", 6) == 0;
    const char *kind = plain ? mode + 6 : mode;
    struct bench bench = {.mode = mode, .deadline_s = clock_monotonic_s() + seconds + 30};
    struct connection *connection;
    pthread_t server;
    char key[64];
    snprintf(key, sizeof key, "/tmp/tls-bench-%d.key", (int)getpid());
    if (!plain) {
        check(credentials_create_fleet_key(key, &error));
        bool loaded = credentials_load(&bench.credentials, key, &error);
        unlink(key);
        check(loaded);
    }
    check(socket_listen(&bench.listener, "127.0.0.1", 0, &error));
    snprintf(bench.address.host, sizeof bench.address.host, "127.0.0.1");
    bench.address.port = socket_port(bench.listener);
    bool is_push = strcmp(kind, "push") == 0, is_handshake = strcmp(kind, "handshake") == 0;
    int result = pthread_create(&server, NULL,
                                is_push        ? serve_push
                                : is_handshake ? serve_handshakes
                                               : serve_bulk,
                                &bench);
    assert(result == 0);
    check(connection_connect(&connection, &bench.address, NULL, bench.credentials, NULL, bench.deadline_s, &error));
    (is_push ? push : is_handshake ? handshakes : bulk)(&bench, connection, seconds);
    return 0;
}
