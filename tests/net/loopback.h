/*
 * Two ends of a connection in one test: a listener on a port chosen by the system, and one thread that serves its
 * connections. Keys are made in the test's own folder.
 */
#ifndef TESTS_NET_LOOPBACK_H
#define TESTS_NET_LOOPBACK_H

#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "net/connection.h"
#include "tests/net/accepting.h"

/* What the serving thread does with an established connection; it may close it and set it to NULL. */
typedef void loopback_serve(struct connection **connection, void *context);

struct loopback {
    int listener;
    struct address address;
    const struct credentials *credentials; /* the server's */
    loopback_serve *serve;
    void *context;
    double deadline_s; /* of the server's handshake; 0: a minute from its start */
    bool served;       /* the server's handshake succeeded */
    struct error error;
    pthread_t thread;
};

static inline void *loopback_thread(void *argument)
{
    struct loopback *loopback = argument;
    char peer[ENDPOINT_TEXT];
    int fd;
    struct connection *connection;
    double deadline_s = clock_monotonic_s() + 60;
    if (!accept_in_time(loopback->listener, &fd, peer, deadline_s, &loopback->error)) {
        return NULL;
    }
    loopback->served = connection_serve(&connection, fd, peer, loopback->credentials, NULL,
                                        loopback->deadline_s > 0 ? loopback->deadline_s : deadline_s, &loopback->error);
    if (loopback->served) {
        if (loopback->serve) {
            loopback->serve(&connection, loopback->context);
        }
    }
    if (connection || loopback->served) {
        connection_close(connection);
    } else { /* no memory for a connection */
        close(fd);
    }
    return NULL;
}

static inline void loopback_listen(struct loopback *loopback)
{
    struct error error;
    bool listening = socket_listen(&loopback->listener, "127.0.0.1", 0, &error);
    assert(listening);
    snprintf(loopback->address.host, sizeof loopback->address.host, "127.0.0.1");
    loopback->address.port = socket_port(loopback->listener);
}

static inline void loopback_start(struct loopback *loopback, const struct credentials *credentials,
                                  loopback_serve *serve, void *context)
{
    loopback_listen(loopback);
    loopback->credentials = credentials;
    loopback->serve = serve;
    loopback->context = context;
    loopback->served = false;
    loopback->error.text[0] = '\0';
    int result = pthread_create(&loopback->thread, NULL, loopback_thread, loopback);
    assert(result == 0);
}

static inline void loopback_end(struct loopback *loopback)
{
    pthread_join(loopback->thread, NULL);
    close(loopback->listener);
}

/* A connection whose peer is gone, for its buffers. */
static inline struct connection *loopback_alone(void)
{
    int ends[2];
    struct error error;
    struct connection *connection;
    bool made = socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0;
    assert(made);
    close(ends[1]);
    made = connection_serve(&connection, ends[0], "nobody", NULL, NULL, INFINITY, &error);
    assert(made);
    return connection;
}

/* A fresh folder for a test's files, and its removal with everything in it. */
static inline void loopback_make_folder(char folder[64])
{
    snprintf(folder, 64, "/tmp/trainer-test-XXXXXX");
    char *made = mkdtemp(folder);
    assert(made);
}

/* A file in it; valid until the fourth call after this one. */
static inline const char *loopback_file(const char *folder, const char *name)
{
    static char paths[4][160];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static inline void loopback_remove_folder(const char *folder)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    int result = system(command);
    assert(result == 0);
}

/* A client's first flight, as sent to a silent server, into hello; returns its size. */
static inline size_t loopback_hello(const struct credentials *credentials, uint8_t *hello, size_t size)
{
    struct loopback client = {.listener = -1};
    struct error error;
    struct connection *connection;
    char peer[ENDPOINT_TEXT];
    int fd;
    ssize_t got = 0;
    double patience_s = 0.025;
    loopback_listen(&client);
    while (got <= 0) { /* it may end before it has said anything */
        patience_s *= 2;
        bool connected = connection_connect(&connection, &client.address, NULL, credentials, NULL,
                                            clock_monotonic_s() + patience_s, &error);
        assert(!connected && patience_s < 60);
        if (accept_in_time(client.listener, &fd, peer, clock_monotonic_s() + patience_s, &error)) {
            wake_wait(fd, POLLIN, NULL, clock_monotonic_s() + patience_s);
            got = recv(fd, hello, size, 0);
            close(fd);
        }
    }
    assert(got > 43);
    close(client.listener);
    return (size_t)got;
}

#endif
