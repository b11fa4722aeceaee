/*
 * A member that tests in other languages connect to: `server KEY` (KEY "-": plain text) prints its port, welcomes peers
 * that pass the handshake, answers pings, echoes a push's bulk, and refuses every other request. Prints one line on
 * standard output for each peer that it refuses.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "net/credentials.h"
#include "net/handshake.h"
#include "tests/net/accepting.h"

struct session {
    int fd;
    char peer[ENDPOINT_TEXT];
    const struct credentials *credentials;
};

static const struct hello_identity identity = {.member = {MEMBER_PS, 0},
                                               .incarnation = 1,
                                               .program = "test server",
                                               .cluster = "test",
                                               .digest = "d",
                                               .job = "{\"model\":{\"layers\":[784,500,10]}}",
                                               .lease_ms = 10000};

static double soon(void)
{
    return clock_monotonic_s() + 10;
}

static bool answer_push(struct channel *channel, struct error *error)
{
    struct message_pushed pushed = {.sequence = channel->message.push.sequence, .ranges = channel->message.push.ranges};
    uint64_t request = channel->frame.request;
    struct iovec bulk = {malloc(channel->bulk_left + 1), channel->bulk_left};
    const struct outgoing frame = {
        .type = MESSAGE_pushed, .request = request, .message = &pushed, .bulk = &bulk, .bulk_parts = 1};
    bool done = bulk.iov_base && channel_read_bulk(channel, bulk.iov_base, bulk.iov_len, soon(), error) &&
                channel_send_frame(channel, &frame, soon(), error);
    free(bulk.iov_base);
    return done;
}

static bool answer(struct channel *channel, struct error *error)
{
    uint64_t request = channel->frame.request;
    struct message_pong pong = {.nonce = channel->message.ping.nonce};
    switch (channel->frame.type) {
    case MESSAGE_ping:
        return channel_send(channel, MESSAGE_pong, request, &pong, soon(), error);
    case MESSAGE_push:
        return answer_push(channel, error);
    default:
        return channel_send_error(channel, request, ERROR_NOT_READY, soon(), error, "no %s here",
                                  message_name(channel->frame.type));
    }
}

static void *serve(void *argument)
{
    struct session *session = argument;
    struct connection *connection;
    struct channel channel;
    struct error error;
    struct peer peer;
    const struct handshake_rules rules = {NULL};
    if (!connection_serve(&connection, session->fd, session->peer, session->credentials, NULL, soon(), &error)) {
        printf("%s\n", error.text);
        connection_close(connection);
        goto out;
    }
    channel_open(&channel, connection);
    if (!handshake_accept(&channel, &identity, &rules, &peer, soon(), &error)) {
        printf("%s\n", error.text);
    } else {
        while (channel_receive(&channel, soon(), &error) && answer(&channel, &error)) {
        }
    }
    channel_close(&channel);
out:
    free(session);
    return NULL;
}

int main(int argc, char **argv)
{
    struct credentials *credentials = NULL;
    struct error error;
    int listener;
    if (argc != 2 || (strcmp(argv[1], "-") != 0 && !credentials_load(&credentials, argv[1], &error)) ||
        !socket_listen(&listener, "127.0.0.1", 0, &error)) {
        fprintf(stderr, "server: %s\n", argc == 2 ? error.text : "say which key");
        return 1;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("%u\n", socket_port(listener));
    for (;;) {
        struct session *session = calloc(1, sizeof *session);
        pthread_t thread;
        session->credentials = credentials;
        if (!accept_in_time(listener, &session->fd, session->peer, clock_monotonic_s() + 3600, &error)) {
            fprintf(stderr, "server: %s\n", error.text);
            return 1;
        }
        if (pthread_create(&thread, NULL, serve, session) == 0) {
            pthread_detach(thread);
        }
    }
}
