/* How long a connection waits, by a clock of its test's own: deadlines, silences, and what counts as a sign of life. */
#include "net/connection.h"
#include "tests/check.h"

#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "net/transport.h"
#include "tests/net/writing.h"
#include "tests/own_clock.h"

static double now_s;
static int looks, other;
static short looked_for;
static void (*happens)(int look); /* while somebody waits; NULL: nothing */

double own_clock_s(void)
{
    return now_s;
}

static int look(struct pollfd *waits, nfds_t count)
{
    return ppoll(waits, count, &(struct timespec){0, 0}, NULL);
}

/* A wait takes as long as it may, unless there is something already. */
int poll(struct pollfd *waits, nfds_t count, int timeout_ms)
{
    int ready = look(waits, count);
    looked_for = waits[count - 1].events;
    if (ready == 0 && timeout_ms > 0) {
        now_s += timeout_ms / 1000.0;
        looks++;
        if (happens) {
            happens(looks);
        }
        ready = look(waits, count);
    }
    return ready;
}

static struct connection *connection;

static int begin(void **state)
{
    struct error error;
    int ends[2];
    now_s = 1000;
    looks = 0;
    happens = NULL;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    assert_int_equal(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
    assert_true(connection_serve(&connection, ends[0], "a peer", NULL, NULL, INFINITY, &error));
    other = ends[1];
    return 0;
}

static int end(void **state)
{
    connection_close(connection);
    close(other);
    return 0;
}

/* A read of four bytes that ends without them, after so long. */
static void read_ends(double deadline_s, double after_s, const char *words)
{
    struct error error;
    const double begun_s = now_s;
    char bytes[4];
    assert_false(connection_read(connection, bytes, sizeof bytes, deadline_s, &error));
    assert_true(fabs(now_s - begun_s - after_s) < 1e-6);
    assert_string_equal(error.text, words);
    assert_int_equal(connection_state(connection), CONNECTION_TIMED_OUT);
    assert_int_equal(looked_for, POLLIN);
}

TEST_WITH(a_deadline, begin, end)
{
    read_ends(1100, 100, "no answer from a peer within 100 s");
    assert_int_equal(looks, 1);
}

TEST_WITH(a_silence, begin, end)
{
    connection_set_idle_timeout(connection, 8);
    read_ends(1100, 8, "no answer from a peer within 8 s");
}

TEST_WITH(a_deadline_within_a_silence, begin, end)
{
    connection_set_idle_timeout(connection, 8);
    read_ends(1002.5, 2.5, "no answer from a peer within 2.5 s");
}

static void say_something(int look)
{
    if (look % 7 == 0) {
        assert_int_equal(send(other, "x", 1, MSG_NOSIGNAL), 1);
    }
}

/* Each byte is a sign of life, until there are no more. */
TEST_WITH(bytes_are_signs_of_life, begin, end)
{
    struct error error;
    char bytes[4];
    connection_set_idle_timeout(connection, 8);
    happens = say_something;
    assert_true(connection_read(connection, bytes, sizeof bytes, 1100, &error));
    assert_true(now_s > 1020 && now_s < 1030);
    assert_true(connection_last_received_s(connection) == now_s);
    happens = NULL;
    read_ends(1100, 8, "no answer from a peer within 8 s");
    assert_true(connection_last_received_s(connection) == now_s - 8);
}

enum { PIECES = 20, PIECE = 100 };

static void take_a_piece(int look)
{
    char bytes[PIECE];
    if (look <= PIECES) {
        assert_int_equal(recv(other, bytes, sizeof bytes, MSG_WAITALL), PIECE);
    }
}

/* Pieces wait for the other side, which takes one at each look. */
static void write_pieces(void)
{
    char bytes[PIECE] = {0};
    struct iovec part = {bytes, sizeof bytes};
    struct error error;
    connection_set_idle_timeout(connection, 8);
    for (int i = 0; i < PIECES; i++) {
        assert_true(write_now(connection, &part, 1, 1100, &error));
    }
    happens = take_a_piece;
}

/* So is what the other side takes, though it says nothing. */
TEST_WITH(what_is_taken_is_a_sign_of_life, begin, end)
{
    write_pieces();
    read_ends(1100, PIECES + 8, "no answer from a peer within 28 s");
}

/* But a deadline is a deadline. */
TEST_WITH(signs_of_life_move_no_deadline, begin, end)
{
    write_pieces();
    read_ends(1012, 12, "no answer from a peer within 12 s");
}

enum { MUCH = 8 << 20 };
static char much[MUCH];

/* Writes more than there is room for, which ends after so long. */
static void write_ends(double deadline_s, double after_s, const char *words)
{
    struct iovec part = {much, sizeof much};
    struct error error;
    const double begun_s = now_s;
    assert_false(connection_write_more(connection, &part, 1, deadline_s, &error));
    assert_true(fabs(now_s - begun_s - after_s) < 1e-6);
    assert_string_equal(error.text, words);
    assert_int_equal(connection_state(connection), CONNECTION_TIMED_OUT);
    assert_int_equal(looked_for, POLLOUT);
}

TEST_WITH(nobody_takes_anything, begin, end)
{
    write_ends(1100, 100, "a peer has accepted no data for 100 s: is it stopped, or do large packets get lost (MTU)?");
}

TEST_WITH(nobody_takes_anything_for_long, begin, end)
{
    connection_set_idle_timeout(connection, 8);
    write_ends(1100, 8, "a peer has accepted no data for 8 s: is it stopped, or do large packets get lost (MTU)?");
}

static char taken[1 << 16];

static void take_much(int look)
{
    assert_true(recv(other, taken, sizeof taken, MSG_DONTWAIT) > 0);
}

/* Whoever takes a little now and then keeps a writer until its deadline, and for one more look. */
TEST_WITH(a_slow_reader, begin, end)
{
    connection_set_idle_timeout(connection, 8);
    happens = take_much;
    struct iovec part = {much, sizeof much};
    struct error error;
    assert_false(connection_write_more(connection, &part, 1, 1005.5, &error));
    assert_true(now_s >= 1005.5 && now_s < 1007);
    assert_string_equal(error.text,
                        "a peer has accepted no data for 5.5 s: is it stopped, or do large packets get lost (MTU)?");
    assert_int_equal(connection_state(connection), CONNECTION_TIMED_OUT);
}

static void take_all(int look)
{
    while (recv(other, taken, sizeof taken, MSG_DONTWAIT) > 0) {
    }
}

/* In time all of it goes, and gets there in order. */
TEST_WITH(a_reader_in_time, begin, end)
{
    struct iovec part = {much, sizeof much};
    struct error error;
    connection_set_idle_timeout(connection, 8);
    happens = take_all;
    assert_true(connection_write_more(connection, &part, 1, 10000, &error));
    assert_int_equal(connection_bytes_out(connection), MUCH);
    assert_int_equal(connection_state(connection), CONNECTION_OPEN);
}

/* A wait for something to read is no failure where nothing comes, and ends with the first byte. */
TEST_WITH(waiting, begin, end)
{
    struct error error;
    bool ready = true;
    assert_true(connection_wait(connection, 1003, &ready, &error));
    assert_true(!ready && now_s == 1003);
    assert_int_equal(connection_state(connection), CONNECTION_OPEN);
    looks = 6;
    happens = say_something;
    assert_true(connection_wait(connection, 1010, &ready, &error));
    assert_true(ready && now_s == 1010); /* in the last moment */
    ready = false;
    assert_true(connection_wait(connection, 1000, &ready, &error)); /* it is there already */
    assert_true(ready && now_s == 1010);
}

int main(void)
{
    return check_run(NULL, NULL);
}
