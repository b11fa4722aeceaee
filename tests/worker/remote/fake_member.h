/*
 * A member of a cluster that does what its test says, over plain TCP: it welcomes or refuses every peer, and passes
 * each frame to the test's function. One connection at a time, on a thread of its own; the next one replaces it.
 */
#ifndef TESTS_WORKER_REMOTE_FAKE_MEMBER_H
#define TESTS_WORKER_REMOTE_FAKE_MEMBER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "net/channel.h"
#include "net/handshake.h"
#include "net/socket.h"
#include "tests/net/accepting.h"

struct fake_member {
    struct member member;
    /* Answers the frame in the channel; false: the connection is cut. On the member's thread. */
    bool (*answer)(struct fake_member *member, struct channel *channel);
    void (*idle)(struct fake_member *member, struct channel *channel); /* between frames; NULL: nothing */
    const struct hello_identity *self;                                 /* except the member and the next */
    atomic_ullong incarnation;
    atomic_bool absent; /* every peer is cut at once */
    atomic_int refusal; /* enum refusal, for every peer; 0: welcome */
    atomic_bool cut;    /* the open connection must end */
    atomic_int connections;
    struct peer peer; /* the last peer */
    int listener;
    char host[32]; /* "127.0.0.1:40001" */
    pthread_t thread;
    atomic_bool stopping;
    bool runs;
};

static inline double fake_member_soon(void)
{
    return clock_monotonic_s() + 60;
}

static inline uint16_t fake_member_admit(void *context, const struct peer *peer, struct error *message)
{
    struct fake_member *member = context;
    const int refusal = atomic_load(&member->refusal);
    member->peer = *peer;
    if (refusal != 0) {
        error_set(message, "as the test wants");
    }
    return (uint16_t)refusal;
}

/* Requests on a connection have increasing numbers; the member's own answers use the request's. */
static inline void fake_member_check_number(struct channel *channel, uint64_t *last)
{
    if (channel->frame.type == MESSAGE_pong) {
        return;
    }
    if (channel->frame.request <= *last) {
        fprintf(stderr, "%s by number %llu, and the last one was %llu\n", message_name(channel->frame.type),
                (unsigned long long)channel->frame.request, (unsigned long long)*last);
        abort();
    }
    *last = channel->frame.request;
}

static inline void fake_member_serve(struct fake_member *member, struct channel *channel)
{
    uint64_t last = 0;
    struct hello_identity identity = *member->self;
    const struct handshake_rules rules = {.admit = fake_member_admit, .context = member};
    struct peer peer;
    struct error error;
    identity.member = member->member;
    identity.incarnation = atomic_load(&member->incarnation);
    bool open = handshake_accept(channel, &identity, &rules, &peer, fake_member_soon(), &error);
    while (open && !atomic_load(&member->stopping) && !atomic_exchange(&member->cut, false)) {
        bool ready = false;
        open = connection_wait(channel->connection, clock_monotonic_s() + 0.005, &ready, &error);
        if (open && ready) {
            open = channel_receive(channel, fake_member_soon(), &error);
            if (open) {
                fake_member_check_number(channel, &last);
                open = member->answer(member, channel);
            }
        }
        if (open && member->idle) {
            member->idle(member, channel);
        }
    }
}

static inline void *fake_member_run(void *context)
{
    struct fake_member *member = context;
    while (!atomic_load(&member->stopping)) {
        char name[ENDPOINT_TEXT];
        struct connection *connection;
        struct channel channel;
        struct error error;
        int fd;
        if (!accept_in_time(member->listener, &fd, name, clock_monotonic_s() + 0.02, &error)) {
            continue;
        }
        if (atomic_load(&member->absent)) {
            close(fd);
        } else if (connection_serve(&connection, fd, name, NULL, NULL, fake_member_soon(), &error)) {
            atomic_fetch_add(&member->connections, 1);
            channel_open(&channel, connection);
            fake_member_serve(member, &channel);
            channel_close(&channel);
        }
    }
    return NULL;
}

/* From here on its address is known; it answers once it runs. */
static inline void fake_member_listen(struct fake_member *member, enum member_role role, int index)
{
    struct error error;
    memset(member, 0, sizeof *member);
    member->member = (struct member){role, index};
    atomic_store(&member->incarnation, 100 + (unsigned)index);
    if (!socket_listen(&member->listener, "127.0.0.1", 0, &error)) {
        fprintf(stderr, "a member of the test: %s\n", error.text);
        abort();
    }
    snprintf(member->host, sizeof member->host, "127.0.0.1:%d", socket_port(member->listener));
}

static inline void fake_member_start(struct fake_member *member, const struct hello_identity *self,
                                     bool (*answer)(struct fake_member *member, struct channel *channel))
{
    member->self = self;
    member->answer = answer;
    member->runs = pthread_create(&member->thread, NULL, fake_member_run, member) == 0;
    if (!member->runs) {
        abort();
    }
}

static inline void fake_member_stop(struct fake_member *member)
{
    atomic_store(&member->stopping, true);
    if (member->runs) {
        pthread_join(member->thread, NULL);
    }
    close(member->listener);
    member->runs = false;
}

/* Answers the frame in the channel. */
static inline bool fake_member_say(struct channel *channel, enum message_type type, const void *message)
{
    struct error error;
    return channel_send(channel, type, channel->frame.request, message, fake_member_soon(), &error);
}

/* All of an answer but the last byte of its bulk; then the connection ends. */
static inline bool fake_member_break_off(struct channel *channel, enum message_type type, const void *message,
                                         const void *bulk, size_t bulk_size)
{
    const size_t size = message_size(channel->version, type, message);
    uint8_t *sent = malloc(FRAME_HEADER + size);
    struct error error;
    const struct frame header = {.version = channel->version,
                                 .type = type,
                                 .request = channel->frame.request,
                                 .generation = channel->generation,
                                 .flags = FRAME_LAST,
                                 .message_bytes = (uint32_t)size,
                                 .bulk_bytes = (uint32_t)bulk_size};
    frame_encode(&header, sent);
    message_encode(channel->version, type, message, sent + FRAME_HEADER, size);
    struct iovec parts[] = {{sent, FRAME_HEADER + size}, {(void *)(uintptr_t)bulk, bulk_size - 1}};
    if (connection_write_more(channel->connection, parts, 2, fake_member_soon(), &error)) {
        connection_flush(channel->connection, fake_member_soon(), &error);
    }
    free(sent);
    return false;
}

static inline bool fake_member_object(struct channel *channel, enum error_code code)
{
    struct error error;
    return channel_send_error(channel, channel->frame.request, code, fake_member_soon(), &error, "as the test wants");
}

#endif
