/*
 * TLS up to the end of its handshake, as a server and as a client. Half of the inputs are exactly what a peer sends;
 * the others say how an honest peer's flights are modified in transit: bytes are altered, removed, inserted and
 * repeated. Nothing waits: the peer acts when our side would wait. Unmodified handshakes succeed; the rest are refused
 * with a one-line message.
 */
#include "tests/fuzz/fuzz.h"

#include <math.h>
#include <sys/socket.h>

#include <mbedtls/ssl.h>

#include "net/listener_internal.h"
#include "net/tls/stream.h"
#include "net/tls/tls.h"
#include "net/transport.h"

FUZZ_MEMORY(64, 1 << 20)

enum { MOST_FLIGHT = 1 << 14, MOST_EDITS = 4 };

static struct play {
    struct input input;
    mbedtls_ssl_context peer;
    int fd; /* the peer's */
    bool honest, touched, ended;
    uint8_t flight[MOST_FLIGHT]; /* that the peer is about to send */
    size_t size;
} play;

static struct credentials *credentials;

/* --- In transit --- */

static void open_gap(size_t at, size_t size)
{
    size = size < MOST_FLIGHT - play.size ? size : MOST_FLIGHT - play.size;
    memmove(play.flight + at + size, play.flight + at, play.size - at);
    play.size += size;
    for (size_t i = 0; i < size; i++) {
        play.flight[at + i] = input_byte(&play.input);
    }
}

static void edit(void)
{
    const uint8_t kind = input_byte(&play.input);
    size_t at = input_byte(&play.input), count;
    at |= (size_t)input_byte(&play.input) << 8;
    at = play.size > 0 ? at % play.size : 0;
    const size_t behind = play.size - at;
    const uint8_t value = input_byte(&play.input);
    count = value < behind ? value : behind;
    play.touched = true;
    switch (kind % 6) {
    case 0:
        play.flight[at] ^= value;
        break;
    case 1:
        play.flight[at] = value;
        break;
    case 2:
        play.size = at;
        break;
    case 3:
        memmove(play.flight + at, play.flight + at + count, behind - count);
        play.size -= count;
        break;
    case 4:
        open_gap(at, value);
        break;
    default:
        for (size_t i = 0; i < count && play.size < MOST_FLIGHT; i++) {
            play.flight[play.size++] = play.flight[at + i];
        }
    }
}

static void deliver(void)
{
    const int edits = play.size > 0 ? input_byte(&play.input) % MOST_EDITS : 0;
    for (int i = 0; i < edits; i++) {
        edit();
    }
    ssize_t ignored = send(play.fd, play.flight, play.size, MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)ignored;
    play.size = 0;
}

/* --- The honest peer --- */

static int peer_sends(void *context, const unsigned char *bytes, size_t size)
{
    size = size < MOST_FLIGHT - play.size ? size : MOST_FLIGHT - play.size;
    memcpy(play.flight + play.size, bytes, size);
    play.size += size;
    return size > 0 ? (int)size : MBEDTLS_ERR_SSL_WANT_WRITE;
}

static int peer_receives(void *context, unsigned char *bytes, size_t size)
{
    const ssize_t got = recv(play.fd, bytes, size, MSG_DONTWAIT);
    return got > 0 ? (int)got : got == 0 ? MBEDTLS_ERR_SSL_CONN_EOF : MBEDTLS_ERR_SSL_WANT_READ;
}

static void peer_acts(void)
{
    if (play.honest && !play.ended) {
        const int result = mbedtls_ssl_handshake(&play.peer);
        play.ended = result != 0 && result != MBEDTLS_ERR_SSL_WANT_READ && result != MBEDTLS_ERR_SSL_WANT_WRITE;
        deliver();
    }
}

/* Instead of waiting: what is missing after the peer has acted will never arrive. */
bool __wrap_transport_wait(struct connection *connection, double started_s, double deadline_s, struct error *error);
bool __wrap_transport_wait(struct connection *connection, double started_s, double deadline_s, struct error *error)
{
    uint8_t byte;
    peer_acts();
    if (recv(connection->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0) {
        shutdown(play.fd, SHUT_WR);
    }
    return true;
}

static void begin_peer(bool serves)
{
    mbedtls_ssl_init(&play.peer);
    if (mbedtls_ssl_setup(&play.peer, serves ? &credentials->server : &credentials->client) != 0 ||
        (!serves && mbedtls_ssl_set_hostname(&play.peer, NULL) != 0)) {
        abort();
    }
    mbedtls_ssl_set_bio(&play.peer, NULL, peer_sends, peer_receives, NULL);
}

/* --- Our side --- */

static void classify(int fd)
{
    const struct accept_queue queue = {.credentials = credentials};
    struct pending pending = {.fd = fd};
    const enum peer_class class = accept_queue_classify(&queue, &pending);
    assert(class != PEER_MEMBER || handshake_token_check(credentials_token_keys(credentials), pending.token));
}

static void make_credentials(void)
{
    char path[300];
    struct error error;
    snprintf(path, sizeof path, "%s/fleet.key", fuzz_folder());
    if (!credentials_create_fleet_key(path, &error) || !credentials_load(&credentials, path, &error)) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static uint8_t buffers[2][CONNECTION_BUFFER];
    static const struct member expected = {MEMBER_PS, 0};
    struct error error = {""};
    int sockets[2];
    if (!credentials) {
        make_credentials();
    }
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets) != 0) {
        return 0;
    }
    play = (struct play){.input = input_of(bytes, size), .fd = sockets[1]};
    const uint8_t kind = input_byte(&play.input);
    const bool serves = kind & 1;
    play.honest = kind & 2;
    begin_peer(!serves);
    if (play.honest && serves) {
        peer_acts();
    } else if (!play.honest) {
        play.size = input_left(&play.input) < MOST_FLIGHT ? input_left(&play.input) : MOST_FLIGHT;
        memcpy(play.flight, play.input.next, play.size);
        play.input.next = play.input.end;
        deliver();
    }
    struct connection connection = {.transport = &transport_tls,
                                    .fd = sockets[0],
                                    .shaking = true,
                                    .in_due = {.deadline_s = INFINITY},
                                    .in = buffers[0],
                                    .out = buffers[1],
                                    .name = "peer"};
    classify(sockets[0]);
    if (transport_tls.open(&connection, credentials, serves ? NULL : &expected, serves, INFINITY, &error)) {
        assert(play.honest && connection.tls->established);
    } else {
        assert(!play.honest || play.touched);
        check_beginning(&error, "");
    }
    revocations_forget(&connection.watch);
    transport_tls.close(&connection, false);
    mbedtls_ssl_free(&play.peer);
    close(sockets[0]);
    close(sockets[1]);
    return 0;
}
