/* A connection's buffers: what gathers in them, what is left in them at an end, and how they come and go with rests. */
#include "net/connection.h"
#include "tests/check.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "net/transport.h"
#include "tests/net/writing.h"

/* A connection over a pair of sockets, and the other end as it is. */
static struct connection *begin(int *other)
{
    struct connection *connection;
    struct error error;
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    assert_int_equal(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
    assert_true(connection_serve(&connection, ends[0], "a peer", NULL, NULL, INFINITY, &error));
    *other = ends[1];
    return connection;
}

static double soon(void)
{
    return clock_monotonic_s() + 60;
}

static void write_more(struct connection *connection, const void *bytes, size_t size)
{
    struct iovec part = {(void *)(uintptr_t)bytes, size};
    struct error error;
    assert_true(connection_write_more(connection, &part, 1, soon(), &error));
}

/* Takes what comes, until the end; the number of bytes, of which each is to be the number of its place. */
static void *take_all(void *context)
{
    uint8_t *bytes = malloc(1 << 16);
    size_t taken = 0;
    ssize_t got;
    while ((got = recv(*(int *)context, bytes, 1 << 16, 0)) > 0) {
        for (ssize_t i = 0; i < got; i++, taken++) {
            if (bytes[i] != (uint8_t)(taken * 2654435761U >> 24)) {
                free(bytes);
                return NULL;
            }
        }
    }
    free(bytes);
    size_t *result = malloc(sizeof *result);
    *result = taken;
    return result;
}

/* Small parts wait for more, up to what the buffer holds; a large one leaves at once, behind those before it. */
TEST(small_parts_gather)
{
    enum { SMALL = CONNECTION_BUFFER / 4, ALL = 3 * CONNECTION_BUFFER };
    uint8_t *bytes = malloc(ALL);
    size_t *taken, at = 0;
    pthread_t thread;
    int other;
    for (size_t i = 0; i < ALL; i++) {
        bytes[i] = (uint8_t)(i * 2654435761U >> 24);
    }
    struct connection *connection = begin(&other);
    assert_int_equal(pthread_create(&thread, NULL, take_all, &other), 0);
    for (; at < CONNECTION_BUFFER; at += SMALL) {
        write_more(connection, bytes + at, SMALL);
        assert_int_equal(connection_bytes_out(connection), 0);
    }
    write_more(connection, bytes + at++, 1); /* it does not fit any more */
    assert_int_equal(connection_bytes_out(connection), at);
    write_more(connection, bytes + at, 100);
    at += 100;
    assert_int_equal(connection_bytes_out(connection), at - 100);
    write_more(connection, bytes + at, SMALL + 1); /* too large to be copied */
    at += SMALL + 1;
    assert_int_equal(connection_bytes_out(connection), at);
    write_more(connection, bytes + at, 100);
    assert_true(connection_flush(connection, soon(), &(struct error){""}));
    connection_close(connection);
    pthread_join(thread, (void **)&taken);
    assert_non_null(taken);
    assert_int_equal(*taken, at + 100);
    free(taken);
    free(bytes);
    close(other);
}

/* Nothing that waits may be forgotten, and what rests has no buffers: the next one gets them. */
TEST(rests_without_buffers)
{
    struct connection *connections[2];
    struct error error;
    int others[2];
    char word[5] = "";
    bool ready;
    for (int i = 0; i < 2; i++) {
        connections[i] = begin(&others[i]);
        assert_true(connection_is_empty(connections[i]));
    }
    write_more(connections[0], "half", 4);
    assert_false(connection_is_empty(connections[0]));
    assert_false(connection_park(connections[0])); /* something is to be sent */
    assert_true(connection_flush(connections[0], soon(), &error));
    assert_int_equal(send(others[0], "word", 4, 0), 4);
    assert_true(connection_wait(connections[0], soon(), &ready, &error) && ready);
    assert_false(connection_park(connections[0])); /* something is to be read */
    assert_true(connection_read(connections[0], word, 3, soon(), &error));
    assert_false(connection_park(connections[0]));
    assert_true(connection_read(connections[0], word + 3, 1, soon(), &error));
    assert_string_equal(word, "word");
    const uint8_t *const before = connections[0]->in;
    assert_true(connection_park(connections[0]));
    assert_true(!connections[0]->in && !connections[0]->out);
    assert_true(connection_park(connections[1]));
    assert_true(connection_resume(connections[1], &error));
    const uint8_t *const taken = connections[1]->in;
    assert_ptr_equal(taken, before);                        /* of the first that rested */
    assert_true(connection_resume(connections[1], &error)); /* once more is fine */
    assert_ptr_equal(connections[1]->in, taken);
    assert_true(connection_resume(connections[0], &error));
    assert_int_equal(send(others[0], "more", 4, 0), 4);
    assert_true(connection_read(connections[0], word, 4, soon(), &error));
    assert_string_equal(word, "more");
    write_more(connections[0], "back", 4);
    assert_true(connection_flush(connections[0], soon(), &error));
    assert_int_equal(recv(others[0], word, 4, MSG_WAITALL), 4);
    assert_string_equal(word, "half");
    assert_int_equal(recv(others[0], word, 4, MSG_WAITALL), 4);
    assert_string_equal(word, "back");
    assert_true(connection_park(connections[0]));
    assert_true(connection_park(connections[1]));
    for (int i = 0; i < 2; i++) {
        connection_close(connections[i]); /* as they rest */
        assert_int_equal(recv(others[i], word, 1, 0), 0);
        close(others[i]);
    }
    connection_close(NULL);
}

/* What lies in the buffer is read from it, in pieces of any size, and more comes behind it. */
TEST(reads_of_any_size)
{
    struct error error;
    uint8_t sent[300], got[300];
    const uint8_t *peeked;
    bool ready;
    int other;
    struct connection *connection = begin(&other);
    for (size_t i = 0; i < sizeof sent; i++) {
        sent[i] = (uint8_t)(i + 1);
    }
    for (size_t piece = 1; piece < 100; piece += 7) {
        assert_int_equal(send(other, sent, 100, 0), 100);
        assert_true(connection_wait(connection, soon(), &ready, &error) && ready);
        assert_int_equal(connection_peek(connection, &peeked), 100);
        assert_memory_equal(peeked, sent, 100);
        assert_true(connection_read(connection, got, piece, soon(), &error));
        assert_int_equal(connection_peek(connection, &peeked), 100 - piece);
        assert_memory_equal(peeked, sent + piece, 100 - piece);
        assert_int_equal(send(other, sent + 100, 200, 0), 200);
        assert_true(connection_wait(connection, soon(), &ready, &error) && ready); /* for what is there already */
        assert_int_equal(connection_peek(connection, NULL), 100 - piece);
        assert_true(connection_read(connection, got + piece, sizeof got - piece, soon(), &error));
        assert_memory_equal(got, sent, sizeof got);
        assert_int_equal(connection_peek(connection, &peeked), 0);
        assert_true(connection_wait(connection, clock_monotonic_s(), &ready, &error) && !ready);
    }
    assert_int_equal(connection_bytes_in(connection), 14 * 300 + 300);
    close(other);
    assert_true(connection_wait(connection, soon(), &ready, &error) && ready);
    assert_false(connection_read(connection, got, 1, soon(), &error));
    assert_string_equal(error.text, "a peer closed the connection");
    connection_close(connection);
}

/* The very first byte tells plain text from TLS, whose alerts are TLS, too; later ones tell nothing. */
TEST(the_first_byte_tells)
{
    struct error error;
    char got[3];
    int other;
    for (int first = 0x14; first <= 0x17; first++) {
        struct connection *connection = begin(&other);
        const bool is_tls = first == 0x15 || first == 0x16;
        assert_int_equal(send(other, (char[]){(char)first, 0x16, 0x15}, 3, 0), 3);
        assert_int_equal(connection_read(connection, got, 3, soon(), &error), !is_tls);
        assert_int_equal(connection_state(connection), is_tls ? CONNECTION_BROKEN : CONNECTION_OPEN);
        assert_int_equal(send(other, (char[]){0x16}, 1, 0), 1);
        if (is_tls) {
            uint8_t alert[8];
            assert_string_equal(error.text, "a peer speaks TLS, but this side was started with --insecure: give both "
                                            "sides the fleet key");
            assert_int_equal(recv(other, alert, sizeof alert, 0), 7);
            assert_memory_equal(alert, ((uint8_t[]){0x15, 3, 3, 0, 2, 2, 71}), 7);
        } else {
            assert_true(connection_read(connection, got, 1, soon(), &error));
        }
        connection_close(connection);
        close(other);
    }
}

/* What the other side's system has not taken yet is known, down to nothing. */
TEST(what_is_unsent)
{
    static uint8_t bytes[1000];
    struct iovec part = {bytes, sizeof bytes};
    struct error error;
    int other;
    struct connection *connection = begin(&other);
    assert_int_equal(connection_unsent(connection), 0);
    assert_true(write_now(connection, &part, 1, soon(), &error));
    assert_true(connection_unsent(connection) >= sizeof bytes);
    assert_int_equal(recv(other, bytes, sizeof bytes, MSG_WAITALL), sizeof bytes);
    assert_int_equal(connection_unsent(connection), 0);
    close(other);
    assert_false(write_now(connection, &part, 1, soon(), &error));
    assert_string_equal(error.text, "lost a peer: Broken pipe");
    assert_int_equal(connection_state(connection), CONNECTION_BROKEN);
    connection_close(connection);
}

/* Names are of those who are known; the rest is called by its address. */
TEST(names)
{
    static const struct member worker = {MEMBER_WORKER, 7}, nobody = {MEMBER_NONE, MEMBER_ANY_INDEX};
    int other;
    struct connection *connection = begin(&other);
    const double before_s = clock_monotonic_s();
    assert_string_equal(connection_name(connection), "a peer");
    connection_rename(connection, &worker);
    assert_string_equal(connection_name(connection), "worker 7 (a peer)");
    connection_rename(connection, &nobody);
    assert_string_equal(connection_name(connection), "a peer");
    assert_string_equal(connection_peer(connection), "a peer");
    assert_string_equal(connection_cipher(connection), "plain TCP");
    assert_true(connection_last_received_s(connection) <= before_s &&
                connection_last_received_s(connection) > before_s - 10);
    write_more(connection, "bye", 3);
    connection_close(connection); /* what was gathered goes with it */
    char word[4] = "";
    assert_int_equal(recv(other, word, sizeof word, MSG_WAITALL), 3);
    assert_string_equal(word, "bye");
    close(other);
}

/* A wait that its deadline ends is told by the time that it took, and one that ends by a wake as what it is. */
TEST(waits_that_end)
{
    struct error error;
    struct wake wake;
    int ends[2];
    char byte;
    bool ready = true;
    assert_true(wake_create(&wake, &error));
    for (int i = 0; i < 2; i++) {
        struct connection *connection;
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
        assert_int_equal(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
        assert_true(connection_serve(&connection, ends[0], "a peer", NULL, &wake, INFINITY, &error));
        if (i == 1) {
            wake_raise(&wake);
            assert_true(connection_wait(connection, soon(), &ready, &error));
            assert_false(ready);
        }
        assert_false(connection_read(connection, &byte, 1, i == 0 ? clock_monotonic_s() - 1 : soon(), &error));
        assert_string_equal(error.text,
                            i == 0 ? "no answer from a peer within 0 s" : "the connection with a peer was given up");
        assert_int_equal(connection_state(connection), i == 0 ? CONNECTION_TIMED_OUT : CONNECTION_WOKEN);
        connection_close(connection);
        assert_int_equal(recv(ends[1], &byte, 1, 0), 0); /* closed, that is */
        close(ends[1]);
    }
    wake_destroy(&wake);
}

int main(void)
{
    return check_run(NULL, NULL);
}
