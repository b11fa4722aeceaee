/* Connections waiting at the door: told apart by their first bytes, closed when their time is over. */
#include "net/door.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/net/fleet_key.h"

enum { ROOM = 4, PASS_AT = 11, ENOUGH = PASS_AT + PASS_SIZE };

static struct door door;
static int listener, peers[16], came;

static int open_door(void **state)
{
    struct error error;
    (void)state;
    came = 0;
    return !door_create(&door, fleet_key, ROOM, 10, &error) || !socket_listen(&listener, "127.0.0.1", 0, &error);
}

static int close_door(void **state)
{
    (void)state;
    door_destroy(&door);
    close(listener);
    for (int i = 0; i < came; i++) {
        close(peers[i]);
    }
    return 0;
}

/* Number `came`, from an address, at a time. */
static struct pending pending_of(int address, double came_s)
{
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    peers[came++] = ends[1];
    return (struct pending){.fd = ends[0], .came_s = came_s, .source = {{(uint8_t)address}}};
}

static void put(int address, double came_s)
{
    struct pending out, pending = pending_of(address, came_s);
    assert_false(door_put(&door, &pending, &out));
}

static void says(int peer, const void *bytes, size_t size)
{
    assert_int_equal(send(peers[peer], bytes, size, MSG_NOSIGNAL), size);
}

/* Waits for what has already arrived, and looks at the next connection. */
static enum door_look next(double now_s, struct pending *pending)
{
    bool comes;
    door_wait(&door, listener, NULL, clock_monotonic_s() + 0.01, &comes);
    assert_false(comes);
    return door_next(&door, now_s, pending);
}

static void a_first_flight(uint8_t bytes[ENOUGH], const struct credentials *credentials)
{
    memset(bytes, 0, ENOUGH);
    bytes[0] = 22;
    bytes[5] = 1;
    pass_make(credentials_passes(credentials), bytes + PASS_AT);
}

static void silence_has_an_end(void **state)
{
    (void)state;
    struct pending pending;
    put(1, 100);
    put(2, 101);
    assert_int_equal(next(109.9, &pending), DOOR_NOTHING);
    assert_int_equal(next(110, &pending), DOOR_GONE);
    assert_int_equal(pending.source.bytes[0], 1);
    close(pending.fd);
    assert_int_equal(door.count, 1);
    assert_int_equal(next(110, &pending), DOOR_NOTHING);
    close(peers[1]); /* a peer that hangs up is removed at once */
    peers[1] = dup(listener);
    assert_int_equal(next(110, &pending), DOOR_GONE);
    assert_int_equal(pending.source.bytes[0], 2);
    close(pending.fd);
    assert_int_equal(door.count, 0);
}

static void what_is_said_tells(void **state)
{
    (void)state;
    struct pending pending;
    uint8_t bytes[ENOUGH];
    for (int i = 0; i < 4; i++) {
        put(i, 100);
    }
    a_first_flight(bytes, fleet_key);
    says(2, bytes, ENOUGH - 1); /* not enough yet */
    says(0, "GET / HTTP/1.1\r\nHost: a.very.long.name.that.goes.on.and.on\r\n\r\n", 58);
    assert_int_equal(next(100, &pending), DOOR_PLAIN);
    assert_int_equal(pending.source.bytes[0], 0);
    close(pending.fd);
    assert_int_equal(next(100, &pending), DOOR_NOTHING);
    says(2, bytes + ENOUGH - 1, 1);
    assert_int_equal(next(100, &pending), DOOR_MEMBER);
    assert_int_equal(pending.source.bytes[0], 2);
    assert_memory_equal(pending.pass, bytes + PASS_AT, PASS_SIZE);
    close(pending.fd);
    bytes[PASS_AT] ^= 1;
    says(1, bytes, ENOUGH);
    assert_int_equal(next(100, &pending), DOOR_STRANGER);
    close(pending.fd);
    bytes[PASS_AT] ^= 1;
    bytes[5] = 2; /* a pass in another message does not count */
    says(3, bytes, ENOUGH);
    assert_int_equal(next(100, &pending), DOOR_STRANGER);
    close(pending.fd);
}

/* Part of a first flight is not reported; once a connection has passed, each byte is reported again. */
static void half_a_flight_is_no_news(void **state)
{
    (void)state;
    struct pending pending;
    uint8_t bytes[ENOUGH];
    int least = 0;
    socklen_t size = sizeof least;
    a_first_flight(bytes, fleet_key);
    put(1, 100);
    assert_int_equal(getsockopt(door.pending[0].fd, SOL_SOCKET, SO_RCVLOWAT, &least, &size), 0);
    assert_int_equal(least, ENOUGH);
    says(0, bytes, ENOUGH);
    assert_int_equal(next(100, &pending), DOOR_MEMBER);
    assert_int_equal(getsockopt(pending.fd, SOL_SOCKET, SO_RCVLOWAT, &least, &size), 0);
    assert_int_equal(least, 1);
    close(pending.fd);
}

/* A peer that hangs up midway is not waited for. */
static void half_a_flight_and_gone(void **state)
{
    (void)state;
    struct pending pending;
    uint8_t bytes[ENOUGH];
    a_first_flight(bytes, fleet_key);
    put(1, 100);
    says(0, bytes, ENOUGH - 1);
    close(peers[0]);
    peers[0] = dup(listener);
    assert_int_equal(next(100, &pending), DOOR_GONE);
    close(pending.fd);
    assert_int_equal(door.count, 0);
}

/* Connections that still wait when the door closes are hung up on. */
static void the_door_closes(void **state)
{
    (void)state;
    struct error error;
    char byte;
    put(1, 100);
    put(2, 101);
    door_destroy(&door);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(recv(peers[i], &byte, 1, MSG_DONTWAIT), 0);
    }
    assert_true(door_create(&door, fleet_key, ROOM, 10, &error)); /* until the end of this test */
}

static void several_speak_at_once(void **state)
{
    (void)state;
    struct pending pending;
    uint8_t bytes[ENOUGH];
    bool comes;
    a_first_flight(bytes, fleet_key);
    for (int i = 0; i < 4; i++) {
        put(i, 100);
    }
    says(1, bytes, ENOUGH);
    says(2, bytes, ENOUGH);
    door_wait(&door, listener, NULL, clock_monotonic_s() + 10, &comes);
    for (int i = 1; i < 3; i++) { /* one check after the other, without another wait */
        assert_int_equal(door_next(&door, 100, &pending), DOOR_MEMBER);
        assert_int_equal(pending.source.bytes[0], i);
        close(pending.fd);
    }
    assert_int_equal(door_next(&door, 100, &pending), DOOR_NOTHING);
    assert_int_equal(door.count, 2);
}

/* Successive checks cover what each has sent, also those after connections that have passed. */
static void looks_stay_with_their_owners(void **state)
{
    (void)state;
    struct pending pending;
    uint8_t bytes[ENOUGH];
    bool comes;
    a_first_flight(bytes, fleet_key);
    for (int i = 0; i < 4; i++) {
        put(i, 100);
    }
    says(0, bytes, ENOUGH);
    close(peers[2]); /* gone; 1 and 3 send nothing */
    peers[2] = dup(listener);
    door_wait(&door, listener, NULL, clock_monotonic_s() + 10, &comes);
    assert_int_equal(door_next(&door, 100, &pending), DOOR_MEMBER);
    assert_int_equal(pending.source.bytes[0], 0);
    close(pending.fd);
    assert_int_equal(door_next(&door, 100, &pending), DOOR_GONE); /* without another wait */
    assert_int_equal(pending.source.bytes[0], 2);
    close(pending.fd);
    assert_int_equal(door_next(&door, 100, &pending), DOOR_NOTHING);
    assert_int_equal(door.count, 2);
}

/* Without room the oldest is dropped; if one address has half of the room, that address's oldest is. */
static void whose_time_it_is(void **state)
{
    (void)state;
    struct pending out, pending;
    const int from[] = {1, 2, 3, 2};
    for (int i = 0; i < 4; i++) {
        put(from[i], 100 + i);
    }
    pending = pending_of(4, 104);
    assert_true(door_put(&door, &pending, &out));
    assert_true(out.came_s == 100);
    close(out.fd); /* left: 2, 3, 2, 4 */
    pending = pending_of(3, 105);
    assert_true(door_put(&door, &pending, &out));
    assert_true(out.came_s == 101);
    close(out.fd); /* left: 3, 2, 4, 3 */
    pending = pending_of(2, 106);
    assert_true(door_put(&door, &pending, &out));
    assert_true(out.came_s == 102);
    close(out.fd); /* left: 2, 4, 3, 2 */
    pending = pending_of(4, 107);
    assert_true(door_put(&door, &pending, &out));
    assert_true(out.came_s == 103);
    close(out.fd); /* left: 4, 3, 2, 4 */
    pending = pending_of(4, 108);
    assert_true(door_put(&door, &pending, &out));
    assert_true(out.came_s == 104);
    close(out.fd); /* left: 3, 2, 4, 4 */
    pending = pending_of(4, 109);
    assert_true(door_put(&door, &pending, &out));
    assert_true(out.came_s == 107);
    close(out.fd);
    assert_int_equal(door.count, ROOM);
}

/* Who was heard, and had to make room before anybody looked, is passed over. */
static void heard_and_gone(void **state)
{
    (void)state;
    struct pending out, pending;
    uint8_t bytes[ENOUGH];
    bool comes;
    a_first_flight(bytes, fleet_key);
    for (int i = 0; i < ROOM; i++) {
        put(i, 100 + i);
        says(i, bytes, ENOUGH);
    }
    door_wait(&door, listener, NULL, clock_monotonic_s() + 10, &comes);
    pending = pending_of(9, 110);
    assert_true(door_put(&door, &pending, &out));
    assert_int_equal(out.source.bytes[0], 0);
    close(out.fd);
    for (int i = 1; i < ROOM; i++) {
        assert_int_equal(door_next(&door, 100, &pending), DOOR_MEMBER);
        assert_int_equal(pending.source.bytes[0], i);
        close(pending.fd);
    }
    assert_int_equal(door_next(&door, 100, &pending), DOOR_NOTHING);
    assert_int_equal(door.count, 1);
}

/* Those that rest are told apart from those that wait: each is heard once, by its session. */
static void sessions_that_rest(void **state)
{
    (void)state;
    struct pending pending;
    uint8_t bytes[ENOUGH];
    uint64_t sessions[2];
    int ends[2][2];
    bool comes;
    const double until_s = clock_monotonic_s() + 10;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends[i]), 0);
        assert_true(door_rest(&door, ends[i][0], &sessions[i], i == 0)); /* the second one is deaf */
        assert_int_equal(send(ends[i][1], "request", 7, MSG_NOSIGNAL), 7);
    }
    a_first_flight(bytes, fleet_key);
    put(1, 100);
    says(0, bytes, ENOUGH);
    assert_int_equal(door_wait(&door, listener, NULL, until_s, &comes), WAKE_READY);
    assert_ptr_equal(door_stirred(&door), &sessions[0]);
    assert_null(door_stirred(&door));
    assert_int_equal(door_next(&door, 100, &pending), DOOR_MEMBER);
    close(pending.fd);
    assert_int_equal(door_next(&door, 100, &pending), DOOR_NOTHING);
    assert_int_equal(door_wait(&door, listener, NULL, clock_monotonic_s(), &comes), WAKE_TIMEOUT);
    assert_null(door_stirred(&door));
    assert_true(door_rest(&door, ends[0][0], &sessions[0], true)); /* its request is there as ever */
    shutdown(ends[1][1], SHUT_WR);
    assert_int_equal(door_wait(&door, listener, NULL, until_s, &comes), WAKE_READY);
    const void *const first = door_stirred(&door), *const second = door_stirred(&door);
    assert_true((first == &sessions[0] && second == &sessions[1]) || (first == &sessions[1] && second == &sessions[0]));
    assert_null(door_stirred(&door));
    for (int i = 0; i < 2; i++) {
        close(ends[i][0]);
        close(ends[i][1]);
    }
    assert_false(door_rest(&door, ends[0][0], &sessions[0], true));
}

/* Who comes is told apart from who speaks. */
static void somebody_comes(void **state)
{
    (void)state;
    struct error error;
    struct wake wake;
    struct pending pending;
    struct endpoint from;
    int fd, taken;
    bool comes = true;
    const struct address address = {.host = "127.0.0.1", .port = socket_port(listener)};
    const double until_s = clock_monotonic_s() + 10;
    assert_int_equal(door_wait(&door, listener, NULL, clock_monotonic_s(), &comes), WAKE_TIMEOUT);
    assert_false(comes);
    assert_true(socket_connect(&fd, &address, NULL, until_s, &error));
    assert_int_equal(door_wait(&door, listener, NULL, until_s, &comes), WAKE_READY);
    assert_true(comes);
    assert_int_equal(door_next(&door, 100, &pending), DOOR_NOTHING);
    assert_true(wake_create(&wake, &error));
    wake_raise(&wake);
    assert_int_equal(door_wait(&door, listener, &wake, until_s, &comes), WAKE_RAISED);
    assert_false(comes);
    wake_destroy(&wake);
    assert_int_equal(socket_accept(listener, &taken, &from, &error), SOCKET_ACCEPTED);
    close(taken);
    close(fd);
}

/* In plain text everybody is a member, whatever it says. */
static void without_keys_all_are_members(void **state)
{
    (void)state;
    struct error error;
    struct door plain;
    struct pending pending = pending_of(1, 100);
    assert_true(door_create(&plain, NULL, ROOM, 10, &error));
    assert_int_equal(door_look(&plain, &pending), DOOR_MEMBER);
    close(pending.fd);
    door_destroy(&plain);
}

/* Where a program has closed its input, the lowest number is as good as any; where there is none, it says so. */
static void a_door_of_number_0(void **state)
{
    struct error error, other;
    struct rlimit before;
    struct door lowest, none;
    (void)state;
    const int input = dup(0);
    close(0);
    const bool opened = door_create(&lowest, fleet_key, ROOM, 10, &error);
    const int got = opened ? lowest.set : -1;
    door_destroy(&lowest);
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
    const bool another = door_create(&none, fleet_key, ROOM, 10, &other);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    door_destroy(&none);
    assert_false(another);
    assert_non_null(strstr(other.text, "can't wait for connections: Too many open files"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(silence_has_an_end, open_door, close_door),
        cmocka_unit_test_setup_teardown(what_is_said_tells, open_door, close_door),
        cmocka_unit_test_setup_teardown(half_a_flight_is_no_news, open_door, close_door),
        cmocka_unit_test_setup_teardown(half_a_flight_and_gone, open_door, close_door),
        cmocka_unit_test_setup_teardown(the_door_closes, open_door, close_door),
        cmocka_unit_test_setup_teardown(several_speak_at_once, open_door, close_door),
        cmocka_unit_test_setup_teardown(looks_stay_with_their_owners, open_door, close_door),
        cmocka_unit_test_setup_teardown(whose_time_it_is, open_door, close_door),
        cmocka_unit_test_setup_teardown(heard_and_gone, open_door, close_door),
        cmocka_unit_test_setup_teardown(sessions_that_rest, open_door, close_door),
        cmocka_unit_test_setup_teardown(somebody_comes, open_door, close_door),
        cmocka_unit_test_setup_teardown(without_keys_all_are_members, open_door, close_door),
        cmocka_unit_test(a_door_of_number_0),
    };
    return cmocka_run_group_tests(tests, make_key, remove_key);
}
