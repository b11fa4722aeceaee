/*
 * The HTTP server alone: requests cut anywhere and pipelined, bodies, answers from other threads, streams, and its
 * limits of memory and connections.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "net/socket.h"
#include "observe/http/server.h"
#include "tests/check.h"
#include "tests/random.h"

enum {
    MOST_BODY = 100,
    MOST_LARGE = 1 << 20,
    ROOM = 1 << 16,
    BIG = 16 << 20, /* bytes of an answer that no socket takes at once */
    MOST_BYTES = BIG + BIG / 2,
    CONNECTIONS = 24, /* open at once */
};

static struct http_server *server;
static struct address address;
static atomic_int deferred;         /* requests that threads have not answered yet */
static atomic_bool is_held;         /* until it is cleared, they do not answer */
static atomic_int big_under_way;    /* answers whose memory is still in use */
static atomic_int streams_closed;   /* according to their handler */
static struct http_stream *lasting; /* used by the server's thread only */
static uint8_t big[BIG];

/* --- Routes --- */

static void answer_text(struct http_request *request, const char *text)
{
    char *copy = strdup(text);
    assert_non_null(copy);
    http_answer(
        request,
        &(struct http_answer){
            .status = 200, .type = "text/plain", .body = copy, .size = strlen(copy), .release = free, .owner = copy});
}

/* The path, a parameter, and the body. */
static void echo(void *context, struct http_request *request)
{
    char text[512], value[32] = "";
    size_t size;
    const uint8_t *body = http_request_body(request, &size);
    http_request_parameter(request, "q", value, sizeof value);
    snprintf(text, sizeof text, "<%s|%s|%.*s>", http_request_path(request), value, (int)size,
             body ? (const char *)body : "");
    answer_text(request, text);
}

static void *answer_later(void *context)
{
    do {
        clock_pause(clock_monotonic_s() + 0.02);
    } while (atomic_load(&is_held));
    answer_text(context, "<later>");
    atomic_fetch_sub(&deferred, 1);
    return NULL;
}

static void defer(void *context, struct http_request *request)
{
    pthread_t thread;
    atomic_fetch_add(&deferred, 1);
    assert_int_equal(pthread_create(&thread, NULL, answer_later, request), 0);
    pthread_detach(thread);
}

static void release_big(void *owner)
{
    atomic_fetch_sub(&big_under_way, 1);
}

static void answer_big(void *context, struct http_request *request)
{
    atomic_fetch_add(&big_under_way, 1);
    http_answer(request,
                &(struct http_answer){
                    .status = 200, .type = "text/plain", .body = big, .size = sizeof big, .release = release_big});
}

/* "/tail?body=N&tail=M": sizes of body and tail. */
static void answer_tail(void *context, struct http_request *request)
{
    char body[16] = "", tail[16] = "";
    http_request_parameter(request, "body", body, sizeof body);
    http_request_parameter(request, "tail", tail, sizeof tail);
    atomic_fetch_add(&big_under_way, 1);
    http_answer(request, &(struct http_answer){.status = 200,
                                               .type = "text/plain",
                                               .body = big,
                                               .size = strtoul(body, NULL, 10),
                                               .tail = big + BIG / 2,
                                               .tail_size = strtoul(tail, NULL, 10),
                                               .release = release_big});
}

static volatile uint8_t behind; /* a body */

/* A body's length and digest; the slack after it is read, too. */
static void add_up(void *context, struct http_request *request)
{
    char text[64];
    size_t size;
    uint64_t sum = 0;
    const uint8_t *body = http_request_body(request, &size);
    for (size_t i = 0; i < size; i++) {
        sum = sum * 31 + body[i];
    }
    if (size > 0) {
        behind = body[size + HTTP_BODY_SLACK - 1];
    }
    snprintf(text, sizeof text, "<%zu %016llx>", size, (unsigned long long)sum);
    answer_text(request, text);
}

static void on_closed(void *owner, struct http_stream *stream)
{
    atomic_fetch_add(&streams_closed, 1);
    lasting = NULL;
}

static void tick(void *context)
{
    if (lasting && http_stream_unsent(lasting) == 0) {
        http_stream_end(lasting);
    }
}

static void stream(void *context, struct http_request *request)
{
    const bool is_short = strcmp(http_request_path(request), "/stream/short") == 0;
    const bool ticks = strcmp(http_request_path(request), "/stream/second") == 0;
    struct http_stream *begun = http_stream_begin(request, "text/plain", on_closed, NULL);
    assert_non_null(begun);
    assert_true(http_stream_send(begun, "a", 1));
    assert_true(http_stream_send(begun, "bc", 2));
    if (is_short) {
        http_stream_end(begun);
    }
    lasting = ticks ? begun : NULL;
}

static const struct http_route routes[] = {
    {.path = "/echo/*", .methods = HTTP_METHOD_GET | HTTP_METHOD_POST, .most_body = MOST_BODY, .handle = echo},
    {.path = "/later", .methods = HTTP_METHOD_GET, .handle = defer},
    {.path = "/tail", .methods = HTTP_METHOD_GET, .handle = answer_tail},
    {.path = "/sum", .methods = HTTP_METHOD_POST, .most_body = MOST_LARGE, .handle = add_up},
    {.path = "/big", .methods = HTTP_METHOD_GET, .handle = answer_big},
    {.path = "/stream/*", .methods = HTTP_METHOD_GET, .handle = stream},
    {.path = NULL},
};

static int begin(void **state)
{
    struct error error;
    const struct http_options options = {
        .host = "127.0.0.1", .routes = routes, .tick = tick, .most_bytes = MOST_BYTES, .most_connections = CONNECTIONS};
    atomic_store(&streams_closed, 0);
    assert_true(http_server_start(&server, &options, &error));
    address = (struct address){.host = "127.0.0.1", .port = http_server_port(server)};
    return 0;
}

static void until_none(atomic_int *count)
{
    while (atomic_load(count) > 0) {
        clock_pause(clock_monotonic_s() + 0.001);
    }
}

static void until_connections(int wanted)
{
    struct http_counts counts;
    do {
        clock_pause(clock_monotonic_s() + 0.001);
        http_server_counts(server, &counts);
    } while (counts.connections != wanted);
}

static int end(void **state)
{
    until_none(&deferred);
    http_server_stop(server);
    assert_int_equal(atomic_load(&big_under_way), 0);
    return 0;
}

/* --- A client --- */

static int connect_to_it(void)
{
    struct error error;
    int fd;
    if (!socket_connect(&fd, &address, NULL, clock_monotonic_s() + 30, &error)) {
        fail_msg("%s", error.text);
    }
    return fd;
}

static void put(int fd, const char *text, size_t size)
{
    while (size > 0) {
        assert_int_equal(wake_wait(fd, POLLOUT, NULL, clock_monotonic_s() + 30), WAKE_READY);
        const ssize_t n = send(fd, text, size, MSG_NOSIGNAL);
        assert_true(n > 0);
        text += n;
        size -= (size_t)n;
    }
}

/* Until the server closes the connection. */
static const char *rest(int fd)
{
    static char text[ROOM];
    size_t size = 0;
    ssize_t n;
    do {
        assert_int_equal(wake_wait(fd, POLLIN, NULL, clock_monotonic_s() + 30), WAKE_READY);
        n = recv(fd, text + size, sizeof text - 1 - size, 0);
        size += n > 0 ? (size_t)n : 0;
    } while (n > 0);
    text[size] = '\0';
    close(fd);
    return text;
}

static const char *say(const char *request)
{
    const int fd = connect_to_it();
    put(fd, request, strlen(request));
    return rest(fd);
}

static void holds(const char *text, const char *part)
{
    if (!strstr(text, part)) {
        fail_msg("no \"%s\" in: %s", part, text);
    }
}

static int count_of(const char *text, const char *part)
{
    int count = 0;
    for (const char *at = text; (at = strstr(at, part)); at += strlen(part)) {
        count++;
    }
    return count;
}

#define HOST "Host: 127.0.0.1\r\n"
#define LAST HOST "Connection: close\r\n"

/* --- Tests --- */

static const char three[] = "GET /echo/a?q=%31+x HTTP/1.1\r\n" HOST "\r\n"
                            "POST /echo/b HTTP/1.1\r\n" HOST "Content-Length: 5\r\n\r\nhello"
                            "POST /echo/c HTTP/1.1\r\n" LAST "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";

TEST_WITH(test_requests_cut_anywhere, begin, end)
{
    struct test_random random = test_random_begin("requests cut anywhere");
    for (int round = 0; round < 40; round++) {
        const int fd = connect_to_it();
        for (size_t at = 0; at < sizeof three - 1;) {
            const size_t left = sizeof three - 1 - at,
                         want = (size_t)test_random_below(&random, round == 0 ? 2 : 80) + 1;
            const size_t piece = want < left ? want : left;
            put(fd, three + at, piece);
            at += piece;
        }
        const char *told = rest(fd);
        const char *a = strstr(told, "</echo/a|1 x|>"), *b = strstr(told, "</echo/b||hello>");
        const char *c = strstr(told, "</echo/c||abc>");
        assert_true(a && b && c && a < b && b < c);
        assert_int_equal(count_of(told, "HTTP/1.1 200"), 3);
    }
}

/* Bodies received in place, with and without a part that came with the head; then another request. */
TEST_WITH(test_large_bodies, begin, end)
{
    static char request[MOST_LARGE + 1024];
    struct test_random random = test_random_begin("large bodies");
    for (int round = 0; round < 30; round++) {
        const size_t size = (size_t)test_random_below(&random, round % 3 == 0   ? 1000
                                                               : round % 3 == 1 ? 40000
                                                                                : MOST_LARGE);
        size_t end = (size_t)sprintf(request, "POST /sum HTTP/1.1\r\n" HOST "Content-Length: %zu\r\n\r\n", size);
        uint64_t sum = 0;
        for (size_t i = 0; i < size; i++, end++) {
            request[end] = (char)test_random_next(&random);
            sum = sum * 31 + (uint8_t)request[end];
        }
        end += (size_t)sprintf(request + end, "POST /sum HTTP/1.1\r\n" LAST "Content-Length: 2\r\n\r\nab");
        const int fd = connect_to_it(), most = test_random_below(&random, 3) == 0 ? 1 << 20 : 1 << 15;
        for (size_t at = 0; at < end;) {
            const size_t left = end - at, want = (size_t)test_random_below(&random, most) + 1;
            put(fd, request + at, want < left ? want : left);
            at += want < left ? want : left;
        }
        char wanted[64];
        const char *told = rest(fd);
        snprintf(wanted, sizeof wanted, "<%zu %016llx>", size, (unsigned long long)sum);
        holds(told, wanted);
        holds(told, "<2 0000000000000c21>"); /* 'a' x 31 + 'b' */
    }
}

TEST_WITH(test_answers_in_two_parts, begin, end)
{
    static const int sizes[] = {0, 1, 100, 4000, 4096, 4097, 20000};
    for (size_t i = 0; i < BIG / 2; i++) {
        big[i] = 'b';
        big[BIG / 2 + i] = 't';
    }
    for (int i = 0; i < 49; i++) {
        const int body = sizes[i / 7], tail = sizes[i % 7];
        char request[256], length[64];
        snprintf(request, sizeof request, "GET /tail?body=%d&tail=%d HTTP/1.1\r\n" LAST "\r\n", body, tail);
        const char *told = say(request);
        snprintf(length, sizeof length, "Content-Length: %d\r\n", body + tail);
        holds(told, length);
        const char *at = strstr(told, "\r\n\r\n") + 4;
        assert_int_equal(strlen(at), body + tail);
        assert_int_equal(strspn(at, "b"), body);
        assert_int_equal(strspn(at + body, "t"), tail);
        snprintf(request, sizeof request, "HEAD /tail?body=%d&tail=%d HTTP/1.1\r\n" LAST "\r\n", body, tail);
        told = say(request);
        holds(told, length);
        assert_string_equal(strstr(told, "\r\n\r\n"), "\r\n\r\n");
    }
    until_none(&big_under_way);
    memset(big, 0, sizeof big);
}

TEST_WITH(test_answers_of_other_threads_keep_their_order, begin, end)
{
    const char *told = say("GET /later HTTP/1.1\r\n" HOST "\r\nGET /echo/x HTTP/1.1\r\n" LAST "\r\n");
    const char *later = strstr(told, "<later>"), *echoed = strstr(told, "</echo/x||>");
    assert_true(later && echoed && later < echoed);
}

TEST_WITH(test_one_who_leaves_before_the_answer, begin, end)
{
    static const char request[] = "GET /later HTTP/1.1\r\n" HOST "\r\n";
    for (int i = 0; i < 20; i++) {
        const int fd = connect_to_it();
        put(fd, request, sizeof request - 1);
        close(fd);
    }
    holds(say("GET /later HTTP/1.1\r\n" LAST "\r\n"), "<later>");
    until_connections(0);
}

/* A child that is just being started holds copies of all sockets: what the server has closed still lives there. */
TEST_WITH(test_a_child_holds_a_closed_socket, begin, end)
{
    static const char request[] = "GET /echo/a HTTP/1.1\r\n" HOST "\r\n";
    int status;
    const int fd = connect_to_it();
    put(fd, request, sizeof request - 1);
    assert_int_equal(wake_wait(fd, POLLIN, NULL, clock_monotonic_s() + 30), WAKE_READY); /* it was accepted */
    const pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* it must not outlive a test that fails */
        pause();
        _exit(0);
    }
    shutdown(fd, SHUT_RDWR);
    until_connections(0);
    for (int i = 0; i < 3; i++) { /* the server waits for events again, and its memory has other uses */
        holds(say("GET /echo/b HTTP/1.1\r\n" LAST "\r\n"), "/echo/b");
    }
    close(fd);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
}

TEST_WITH(test_what_is_refused, begin, end)
{
    static const struct {
        const char *request, *answer;
    } cases[] = {
        {"GET /nothing HTTP/1.1\r\n" LAST "\r\n", "HTTP/1.1 404"},
        {"POST /later HTTP/1.1\r\n" LAST "Content-Length: 0\r\n\r\n", "HTTP/1.1 405"},
        {"POST /echo/a HTTP/1.1\r\n" HOST "Content-Length: 101\r\n\r\n", "HTTP/1.1 413"},
        {"GET /echo/a HTTP/1.1\r\n" HOST "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", "HTTP/1.1 400"},
        {"GET /echo/a HTTP/1.1\r\n\r\n", "HTTP/1.1 400"}, /* whose? */
        {"GET /echo/%ff HTTP/1.1\r\n" LAST "\r\n", "HTTP/1.1 400"},
        {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/1.1 505"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        holds(say(cases[i].request), cases[i].answer);
    }
}

TEST_WITH(test_heads_have_a_limit, begin, end)
{
    static char request[HTTP_MOST_HEAD + 200] = "GET /echo/a HTTP/1.1\r\n" HOST "X: ";
    const size_t size = strlen(request);
    memset(request + size, 'x', sizeof request - 1 - size);
    holds(say(request), "HTTP/1.1 431");
}

TEST_WITH(test_streams_end_once, begin, end)
{
    struct http_counts counts;
    holds(say("GET /stream/short HTTP/1.1\r\n" HOST "\r\n"), "\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n");
    holds(say("GET /stream/short HTTP/1.0\r\n\r\n"), "\r\n\r\nabc");
    assert_int_equal(atomic_load(&streams_closed), 2);
    const double began_s = clock_monotonic_s();
    holds(say("GET /stream/second HTTP/1.0\r\n\r\n"), "\r\n\r\nabc");
    assert_true(clock_monotonic_s() - began_s < HTTP_MOVE_S / 2.0); /* the end is announced, not found by a deadline */
    const int fd = connect_to_it();
    static const char request[] = "GET /stream/long HTTP/1.1\r\n" HOST "\r\n";
    put(fd, request, sizeof request - 1);
    do {
        http_server_counts(server, &counts);
    } while (counts.streams != 1);
    close(fd);
    until_connections(0);
    http_server_counts(server, &counts);
    assert_int_equal(counts.streams, 0);
    assert_int_equal(atomic_load(&streams_closed), 4);
}

TEST_WITH(test_the_longest_idle_connection_makes_room, begin, end)
{
    int idle[CONNECTIONS];
    for (int i = 0; i < CONNECTIONS; i++) {
        idle[i] = connect_to_it();
        until_connections(i + 1);
    }
    holds(say("GET /echo/x HTTP/1.1\r\n" LAST "\r\n"), "</echo/x||>");
    assert_string_equal(rest(idle[0]), "");
    put(idle[1], "GET /echo/y HTTP/1.1\r\n" LAST "\r\n", strlen("GET /echo/y HTTP/1.1\r\n" LAST "\r\n"));
    holds(rest(idle[1]), "</echo/y||>");
    for (int i = 2; i < CONNECTIONS; i++) {
        close(idle[i]);
    }
}

static const char later[] = "GET /later HTTP/1.1\r\n" HOST "\r\n";

static int ask_later(int open)
{
    struct http_counts counts;
    const int busy = connect_to_it();
    do {
        http_server_counts(server, &counts);
    } while (counts.connections < open);
    const int before = atomic_load(&deferred);
    put(busy, later, sizeof later - 1);
    while (atomic_load(&deferred) == before) {
        clock_pause(clock_monotonic_s() + 0.001);
    }
    return busy;
}

/* Whoever comes and says nothing pushes out others of that kind, and nobody who is being answered. */
TEST_WITH(test_who_says_nothing_interrupts_no_answer, begin, end)
{
    enum { COME = 3 * CONNECTIONS };
    int silent[COME];
    atomic_store(&is_held, true);
    const int busy = ask_later(1);
    for (int i = 0; i < COME; i++) {
        silent[i] = connect_to_it();
    }
    for (struct http_counts counts = {.evicted = 0}; counts.evicted < COME + 1 - CONNECTIONS;) {
        http_server_counts(server, &counts);
    }
    atomic_store(&is_held, false);
    assert_int_equal(shutdown(busy, SHUT_WR), 0);
    holds(rest(busy), "<later>");
    for (int i = 0; i < COME; i++) {
        close(silent[i]);
    }
}

/* But work holds no more than half of the places, however long it takes. */
TEST_WITH(test_answers_do_not_keep_all_places, begin, end)
{
    int busy[CONNECTIONS];
    atomic_store(&is_held, true);
    for (int i = 0; i < CONNECTIONS; i++) {
        busy[i] = ask_later(i + 1);
    }
    for (int i = 0; i < 3; i++) {
        holds(say("GET /echo/x HTTP/1.1\r\n" LAST "\r\n"), "</echo/x||>");
    }
    atomic_store(&is_held, false);
    for (int i = 0; i < CONNECTIONS; i++) {
        close(busy[i]);
    }
}

/* Memory for one such answer, not two; the memory of a client that does not read is freed when it leaves. */
TEST_WITH(test_memory_has_a_limit, begin, end)
{
    static const char request[] = "GET /big HTTP/1.1\r\n" HOST "\r\n", last[] = "GET /big HTTP/1.1\r\n" LAST "\r\n";
    struct http_counts counts;
    const int slow = connect_to_it();
    put(slow, request, sizeof request - 1);
    do {
        http_server_counts(server, &counts);
    } while (counts.requests < 1);
    const char *told = say(last);
    holds(told, "HTTP/1.1 503");
    holds(told, "Retry-After: 1");
    holds(told, "24.0 MiB of memory");
    holds(say("GET /echo/x HTTP/1.1\r\n" LAST "\r\n"), "</echo/x||>");
    close(slow);
    until_none(&big_under_way);
    const int again = connect_to_it();
    char head[12];
    put(again, request, sizeof request - 1);
    assert_int_equal(wake_wait(again, POLLIN, NULL, clock_monotonic_s() + 30), WAKE_READY);
    assert_int_equal(recv(again, head, sizeof head, MSG_WAITALL), sizeof head);
    assert_memory_equal(head, "HTTP/1.1 200", sizeof head);
    close(again);
    until_none(&big_under_way);
}

TEST_WITH(test_a_drained_server_lets_go, begin, end)
{
    const int idle = connect_to_it(), busy = connect_to_it();
    atomic_store(&is_held, true);
    put(busy, later, sizeof later - 1);
    for (struct http_counts counts = {.bytes_in = 0}; counts.connections < 2 || counts.bytes_in < sizeof later - 1;) {
        http_server_counts(server, &counts);
    }
    http_server_drain(server, clock_monotonic_s() + 0.1); /* in vain: an answer is to come */
    atomic_store(&is_held, false);
    close(idle);
    const char *told = rest(busy);
    holds(told, "<later>");
    holds(told, "Connection: close");
}

int main(void)
{
    return check_run(NULL, NULL);
}
