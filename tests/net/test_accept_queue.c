/* New connections are classified by their first bytes, and closed when their time is over. */
#include "net/listener_internal.h"
#include "tests/check.h"

#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/net/fleet_key.h"

enum { ROOM = 4, TOKEN_AT = 11, FIRST_BYTES = TOKEN_AT + HANDSHAKE_TOKEN_SIZE };

static struct accept_queue queue;
static int listener, peers[16], came;

static int open_queue(void **state)
{
    struct error error;
    came = 0;
    return !accept_queue_create(&queue, fleet_key, ROOM, 10, &error) ||
           !socket_listen(&listener, "127.0.0.1", 0, &error);
}

static int close_queue(void **state)
{
    accept_queue_destroy(&queue);
    close(listener);
    for (int i = 0; i < came; i++) {
        close(peers[i]);
    }
    return 0;
}

/* Number `came`, from an address, at a time. */
static struct pending pending_of(int address, double since_s)
{
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    peers[came++] = ends[1];
    return (struct pending){.fd = ends[0], .since_s = since_s, .source = {{(uint8_t)address}}};
}

static void put(int address, double since_s)
{
    struct pending evicted, pending = pending_of(address, since_s);
    assert_false(accept_queue_add(&queue, &pending, &evicted));
}

static void sends(int peer, const void *bytes, size_t size)
{
    assert_int_equal(send(peers[peer], bytes, size, MSG_NOSIGNAL), size);
}

/* Waits for what has already arrived, and looks at the next connection. */
static enum peer_class next(double now_s, struct pending *pending)
{
    bool connects;
    accept_queue_wait(&queue, listener, NULL, clock_monotonic_s() + 0.01, &connects);
    assert_false(connects);
    return accept_queue_next(&queue, now_s, pending);
}

static void a_first_flight(uint8_t bytes[FIRST_BYTES], const struct credentials *credentials)
{
    memset(bytes, 0, FIRST_BYTES);
    bytes[0] = 22;
    bytes[5] = 1;
    handshake_token_make(credentials_token_keys(credentials), bytes + TOKEN_AT);
}

TEST_WITH(silence_has_an_end, open_queue, close_queue)
{
    struct pending pending;
    put(1, 100);
    put(2, 101);
    assert_int_equal(next(109.9, &pending), PEER_UNKNOWN);
    assert_int_equal(next(110, &pending), PEER_GONE);
    assert_int_equal(pending.source.bytes[0], 1);
    close(pending.fd);
    assert_int_equal(queue.count, 1);
    assert_int_equal(next(110, &pending), PEER_UNKNOWN);
    close(peers[1]); /* a peer that hangs up is removed at once */
    peers[1] = dup(listener);
    assert_int_equal(next(110, &pending), PEER_GONE);
    assert_int_equal(pending.source.bytes[0], 2);
    close(pending.fd);
    assert_int_equal(queue.count, 0);
}

TEST_WITH(first_bytes_classify, open_queue, close_queue)
{
    struct pending pending;
    uint8_t bytes[FIRST_BYTES];
    for (int i = 0; i < 4; i++) {
        put(i, 100);
    }
    a_first_flight(bytes, fleet_key);
    sends(2, bytes, FIRST_BYTES - 1); /* not enough yet */
    sends(0, "GET / HTTP/1.1\r\nHost: a.very.long.name.that.goes.on.and.on\r\n\r\n", 58);
    assert_int_equal(next(100, &pending), PEER_PLAIN);
    assert_int_equal(pending.source.bytes[0], 0);
    close(pending.fd);
    assert_int_equal(next(100, &pending), PEER_UNKNOWN);
    sends(2, bytes + FIRST_BYTES - 1, 1);
    assert_int_equal(next(100, &pending), PEER_MEMBER);
    assert_int_equal(pending.source.bytes[0], 2);
    assert_memory_equal(pending.token, bytes + TOKEN_AT, HANDSHAKE_TOKEN_SIZE);
    close(pending.fd);
    bytes[TOKEN_AT] ^= 1;
    sends(1, bytes, FIRST_BYTES);
    assert_int_equal(next(100, &pending), PEER_UNAUTHENTICATED);
    close(pending.fd);
    bytes[TOKEN_AT] ^= 1;
    bytes[5] = 2; /* a token in another message does not count */
    sends(3, bytes, FIRST_BYTES);
    assert_int_equal(next(100, &pending), PEER_UNAUTHENTICATED);
    close(pending.fd);
}

/* Part of a first flight is not reported; once a connection has passed, each byte is reported again. */
TEST_WITH(half_a_flight_is_not_reported, open_queue, close_queue)
{
    struct pending pending;
    uint8_t bytes[FIRST_BYTES];
    int least = 0;
    socklen_t size = sizeof least;
    a_first_flight(bytes, fleet_key);
    put(1, 100);
    assert_int_equal(getsockopt(queue.pending[0].fd, SOL_SOCKET, SO_RCVLOWAT, &least, &size), 0);
    assert_int_equal(least, FIRST_BYTES);
    sends(0, bytes, FIRST_BYTES);
    assert_int_equal(next(100, &pending), PEER_MEMBER);
    assert_int_equal(getsockopt(pending.fd, SOL_SOCKET, SO_RCVLOWAT, &least, &size), 0);
    assert_int_equal(least, 1);
    close(pending.fd);
}

/* A peer that hangs up midway is not waited for. */
TEST_WITH(half_a_flight_and_gone, open_queue, close_queue)
{
    struct pending pending;
    uint8_t bytes[FIRST_BYTES];
    a_first_flight(bytes, fleet_key);
    put(1, 100);
    sends(0, bytes, FIRST_BYTES - 1);
    close(peers[0]);
    peers[0] = dup(listener);
    assert_int_equal(next(100, &pending), PEER_GONE);
    close(pending.fd);
    assert_int_equal(queue.count, 0);
}

/* Connections that still wait when the queue is destroyed are closed. */
TEST_WITH(the_queue_is_destroyed, open_queue, close_queue)
{
    struct error error;
    char byte;
    put(1, 100);
    put(2, 101);
    accept_queue_destroy(&queue);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(recv(peers[i], &byte, 1, MSG_DONTWAIT), 0);
    }
    assert_true(accept_queue_create(&queue, fleet_key, ROOM, 10, &error)); /* until the end of this test */
}

TEST_WITH(several_send_at_once, open_queue, close_queue)
{
    struct pending pending;
    uint8_t bytes[FIRST_BYTES];
    bool connects;
    a_first_flight(bytes, fleet_key);
    for (int i = 0; i < 4; i++) {
        put(i, 100);
    }
    sends(1, bytes, FIRST_BYTES);
    sends(2, bytes, FIRST_BYTES);
    accept_queue_wait(&queue, listener, NULL, clock_monotonic_s() + 10, &connects);
    for (int i = 1; i < 3; i++) { /* one check after the other, without another wait */
        assert_int_equal(accept_queue_next(&queue, 100, &pending), PEER_MEMBER);
        assert_int_equal(pending.source.bytes[0], i);
        close(pending.fd);
    }
    assert_int_equal(accept_queue_next(&queue, 100, &pending), PEER_UNKNOWN);
    assert_int_equal(queue.count, 2);
}

/* Successive checks cover what each has sent, also those after connections that have passed. */
TEST_WITH(events_belong_to_their_connections, open_queue, close_queue)
{
    struct pending pending;
    uint8_t bytes[FIRST_BYTES];
    bool connects;
    a_first_flight(bytes, fleet_key);
    for (int i = 0; i < 4; i++) {
        put(i, 100);
    }
    sends(0, bytes, FIRST_BYTES);
    close(peers[2]); /* gone; 1 and 3 send nothing */
    peers[2] = dup(listener);
    accept_queue_wait(&queue, listener, NULL, clock_monotonic_s() + 10, &connects);
    assert_int_equal(accept_queue_next(&queue, 100, &pending), PEER_MEMBER);
    assert_int_equal(pending.source.bytes[0], 0);
    close(pending.fd);
    assert_int_equal(accept_queue_next(&queue, 100, &pending), PEER_GONE); /* without another wait */
    assert_int_equal(pending.source.bytes[0], 2);
    close(pending.fd);
    assert_int_equal(accept_queue_next(&queue, 100, &pending), PEER_UNKNOWN);
    assert_int_equal(queue.count, 2);
}

/* A full queue drops its oldest entry; if one address has half of the room, that address's oldest is. */
TEST_WITH(the_oldest_is_evicted, open_queue, close_queue)
{
    struct pending evicted, pending;
    const int from[] = {1, 2, 3, 2};
    for (int i = 0; i < 4; i++) {
        put(from[i], 100 + i);
    }
    pending = pending_of(4, 104);
    assert_true(accept_queue_add(&queue, &pending, &evicted));
    assert_true(evicted.since_s == 100);
    close(evicted.fd); /* left: 2, 3, 2, 4 */
    pending = pending_of(3, 105);
    assert_true(accept_queue_add(&queue, &pending, &evicted));
    assert_true(evicted.since_s == 101);
    close(evicted.fd); /* left: 3, 2, 4, 3 */
    pending = pending_of(2, 106);
    assert_true(accept_queue_add(&queue, &pending, &evicted));
    assert_true(evicted.since_s == 102);
    close(evicted.fd); /* left: 2, 4, 3, 2 */
    pending = pending_of(4, 107);
    assert_true(accept_queue_add(&queue, &pending, &evicted));
    assert_true(evicted.since_s == 103);
    close(evicted.fd); /* left: 4, 3, 2, 4 */
    pending = pending_of(4, 108);
    assert_true(accept_queue_add(&queue, &pending, &evicted));
    assert_true(evicted.since_s == 104);
    close(evicted.fd); /* left: 3, 2, 4, 4 */
    pending = pending_of(4, 109);
    assert_true(accept_queue_add(&queue, &pending, &evicted));
    assert_true(evicted.since_s == 107);
    close(evicted.fd);
    assert_int_equal(queue.count, ROOM);
}

/* A connection with an event that was evicted before it was classified is skipped. */
TEST_WITH(evicted_before_a_look, open_queue, close_queue)
{
    struct pending evicted, pending;
    uint8_t bytes[FIRST_BYTES];
    bool connects;
    a_first_flight(bytes, fleet_key);
    for (int i = 0; i < ROOM; i++) {
        put(i, 100 + i);
        sends(i, bytes, FIRST_BYTES);
    }
    accept_queue_wait(&queue, listener, NULL, clock_monotonic_s() + 10, &connects);
    pending = pending_of(9, 110);
    assert_true(accept_queue_add(&queue, &pending, &evicted));
    assert_int_equal(evicted.source.bytes[0], 0);
    close(evicted.fd);
    for (int i = 1; i < ROOM; i++) {
        assert_int_equal(accept_queue_next(&queue, 100, &pending), PEER_MEMBER);
        assert_int_equal(pending.source.bytes[0], i);
        close(pending.fd);
    }
    assert_int_equal(accept_queue_next(&queue, 100, &pending), PEER_UNKNOWN);
    assert_int_equal(queue.count, 1);
}

/* Parked sessions are told apart from new connections: each is reported once. */
TEST_WITH(parked_sessions, open_queue, close_queue)
{
    struct pending pending;
    uint8_t bytes[FIRST_BYTES];
    uint64_t sessions[2];
    int ends[2][2];
    bool connects;
    const double until_s = clock_monotonic_s() + 10;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends[i]), 0);
        assert_true(accept_queue_park(&queue, ends[i][0], &sessions[i], i == 0)); /* the second one not for input */
        assert_int_equal(send(ends[i][1], "request", 7, MSG_NOSIGNAL), 7);
    }
    a_first_flight(bytes, fleet_key);
    put(1, 100);
    sends(0, bytes, FIRST_BYTES);
    assert_int_equal(accept_queue_wait(&queue, listener, NULL, until_s, &connects), WAKE_READY);
    assert_ptr_equal(accept_queue_next_ready(&queue), &sessions[0]);
    assert_null(accept_queue_next_ready(&queue));
    assert_int_equal(accept_queue_next(&queue, 100, &pending), PEER_MEMBER);
    close(pending.fd);
    assert_int_equal(accept_queue_next(&queue, 100, &pending), PEER_UNKNOWN);
    assert_int_equal(accept_queue_wait(&queue, listener, NULL, clock_monotonic_s(), &connects), WAKE_TIMEOUT);
    assert_null(accept_queue_next_ready(&queue));
    assert_true(accept_queue_park(&queue, ends[0][0], &sessions[0], true)); /* its request is there as ever */
    shutdown(ends[1][1], SHUT_WR);
    assert_int_equal(accept_queue_wait(&queue, listener, NULL, until_s, &connects), WAKE_READY);
    const void *const first = accept_queue_next_ready(&queue), *const second = accept_queue_next_ready(&queue);
    assert_true((first == &sessions[0] && second == &sessions[1]) || (first == &sessions[1] && second == &sessions[0]));
    assert_null(accept_queue_next_ready(&queue));
    for (int i = 0; i < 2; i++) {
        close(ends[i][0]);
        close(ends[i][1]);
    }
    assert_false(accept_queue_park(&queue, ends[0][0], &sessions[0], true));
}

/* A connection to accept is told apart from one that sends. */
TEST_WITH(a_connection_to_accept, open_queue, close_queue)
{
    struct error error;
    struct wake wake;
    struct pending pending;
    struct endpoint from;
    int fd, taken;
    bool connects = true;
    const struct address address = {.host = "127.0.0.1", .port = socket_port(listener)};
    const double until_s = clock_monotonic_s() + 10;
    assert_int_equal(accept_queue_wait(&queue, listener, NULL, clock_monotonic_s(), &connects), WAKE_TIMEOUT);
    assert_false(connects);
    assert_true(socket_connect(&fd, &address, NULL, until_s, &error));
    assert_int_equal(accept_queue_wait(&queue, listener, NULL, until_s, &connects), WAKE_READY);
    assert_true(connects);
    assert_int_equal(accept_queue_next(&queue, 100, &pending), PEER_UNKNOWN);
    assert_true(wake_create(&wake, &error));
    wake_raise(&wake);
    assert_int_equal(accept_queue_wait(&queue, listener, &wake, until_s, &connects), WAKE_RAISED);
    assert_false(connects);
    wake_destroy(&wake);
    assert_int_equal(socket_accept(listener, &taken, &from, &error), SOCKET_ACCEPTED);
    close(taken);
    close(fd);
}

/* In plain text everybody is a member, whatever it says. */
TEST_WITH(without_keys_all_are_members, open_queue, close_queue)
{
    struct error error;
    struct accept_queue plain;
    struct pending pending = pending_of(1, 100);
    assert_true(accept_queue_create(&plain, NULL, ROOM, 10, &error));
    assert_int_equal(accept_queue_classify(&plain, &pending), PEER_MEMBER);
    close(pending.fd);
    accept_queue_destroy(&plain);
}

/* Where a program has closed its input, the lowest number is as good as any; where there is none, it says so. */
TEST(an_epoll_set_of_number_0)
{
    struct error error, other;
    struct rlimit before;
    struct accept_queue lowest, none;
    const int input = dup(0);
    close(0);
    const bool opened = accept_queue_create(&lowest, fleet_key, ROOM, 10, &error);
    const int got = opened ? lowest.epoll : -1;
    accept_queue_destroy(&lowest);
    const bool closed = fcntl(0, F_GETFD) < 0;
    if (input >= 0) {
        dup2(input, 0);
        close(input);
    }
    assert_true(opened && closed);
    assert_int_equal(got, 0);
    const int next = open("/dev/null", O_RDONLY);
    close(next);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &(struct rlimit){(rlim_t)next, before.rlim_max}), 0);
    const bool another = accept_queue_create(&none, fleet_key, ROOM, 10, &other);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    accept_queue_destroy(&none);
    assert_false(another);
    assert_non_null(strstr(other.text, "can't wait for connections: Too many open files"));
}

int main(void)
{
    return check_run(make_key, remove_key);
}
