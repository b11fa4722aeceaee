/*
 * One end of a TLS connection for tests whose other end is in another language, with nothing on top of it:
 *
 *   peer serve KEY [LIMIT]                 prints its port, echoes data, prints a line at each connection's end
 *   peer connect KEY PORT [LIMIT [MOST]]   sends blocks of bytes, expects them back, prints the result
 *
 * LIMIT: the number of records under one key, instead of 2^24, which takes too long; 0: 2^24. MOST: the largest block,
 * for an end that encrypts in Python.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "net/connection.h"
#include "net/credentials.h"
#include "net/tls/stream.h"
#include "net/transport.h"
#include "tests/net/accepting.h"
#include "tests/net/writing.h"

enum { BLOCK = 100000 };

static struct credentials *credentials;
static uint64_t limit;

static double soon(void)
{
    return clock_monotonic_s() + 30;
}

static void lower_limit(struct connection *connection)
{
    if (limit > 0) {
        connection->tls->out.limit = limit;
    }
}

/* Echoes whatever arrives. */
static void echo(struct connection *connection, struct error *error)
{
    static _Thread_local uint8_t bytes[BLOCK];
    for (;;) {
        ptrdiff_t got = connection->transport->read(connection, bytes, sizeof bytes, error);
        if (got == TRANSPORT_END) {
            error_set(error, "closed");
            return;
        }
        bool ready = true;
        if (got == TRANSPORT_WANTS && !connection_wait(connection, soon(), &ready, error)) {
            return;
        }
        struct iovec part = {bytes, got > 0 ? (size_t)got : 0};
        if (!ready) {
            error_set(error, "nothing came");
            return;
        }
        if (got == TRANSPORT_FAILED || (got > 0 && !write_now(connection, &part, 1, soon(), error))) {
            return;
        }
    }
}

struct visit {
    int fd;
    char peer[ENDPOINT_TEXT];
};

static void *serve(void *argument)
{
    struct visit *visit = argument;
    struct connection *connection;
    struct error error;
    if (connection_serve(&connection, visit->fd, visit->peer, credentials, NULL, soon(), &error)) {
        lower_limit(connection);
        echo(connection, &error);
    }
    connection_close(connection);
    printf("%s: %s\n", visit->peer, error.text);
    free(visit);
    return NULL;
}

static int serve_all(void)
{
    struct error error;
    int listener;
    if (!socket_listen(&listener, "127.0.0.1", 0, &error)) {
        fprintf(stderr, "peer: %s\n", error.text);
        return 1;
    }
    printf("%u\n", socket_port(listener));
    for (;;) {
        struct visit *visit = calloc(1, sizeof *visit);
        pthread_t thread;
        if (!accept_in_time(listener, &visit->fd, visit->peer, clock_monotonic_s() + 3600, &error)) {
            fprintf(stderr, "peer: %s\n", error.text);
            return 1;
        }
        if (pthread_create(&thread, NULL, serve, visit) == 0) {
            pthread_detach(thread);
        }
    }
}

static bool swap(struct connection *connection, size_t size, int salt, struct error *error)
{
    static uint8_t block[BLOCK], back[BLOCK];
    struct iovec part = {block, size};
    for (size_t i = 0; i < size; i++) {
        block[i] = (uint8_t)(i * 7 + (size_t)salt);
    }
    if (!write_now(connection, &part, 1, soon(), error) || !connection_read(connection, back, size, soon(), error)) {
        return false;
    }
    return memcmp(block, back, size) == 0 || error_set(error, "what came back is not what was sent");
}

static int connect_to(uint16_t port, size_t most)
{
    static const size_t sizes[] = {1, 16384, 16385, 3, BLOCK, 1};
    struct address address = {.host = "127.0.0.1", .port = port};
    struct connection *connection;
    struct error error;
    bool done = connection_connect(&connection, &address, NULL, credentials, NULL, soon(), &error);
    if (done) {
        lower_limit(connection);
        for (size_t i = 0; done && i < sizeof sizes / sizeof *sizes; i++) {
            done = swap(connection, sizes[i] < most ? sizes[i] : most, (int)i, &error);
        }
        connection_close(connection);
    }
    printf("%s\n", done ? "well" : error.text);
    return !done;
}

int main(int argc, char **argv)
{
    struct error error = {"peer serve KEY [LIMIT], or peer connect KEY PORT [LIMIT [MOST]]"};
    bool serving = argc > 1 && strcmp(argv[1], "serve") == 0;
    int limit_at = serving ? 3 : 4;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc < limit_at || !credentials_load(&credentials, argv[2], &error)) {
        fprintf(stderr, "peer: %s\n", error.text);
        return 1;
    }
    limit = argc > limit_at ? strtoull(argv[limit_at], NULL, 10) : 0;
    size_t most = !serving && argc > 5 ? strtoull(argv[5], NULL, 10) : BLOCK;
    return serving ? serve_all() : connect_to((uint16_t)strtoul(argv[3], NULL, 10), most);
}
