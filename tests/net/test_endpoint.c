/* Names to addresses and back, members by name, listening and connecting. */
#include "net/endpoint.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "net/member.h"
#include "net/socket.h"
#include "tests/net/accepting.h"

static void addresses_as_text(void **state)
{
    (void)state;
    static const char *const texts[] = {"10.0.0.1:2222", "[::1]:65535", "[fe80::1]:1"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct address address;
        struct endpoints endpoints;
        struct error error;
        char text[ENDPOINT_TEXT];
        assert_true(address_parse(texts[i], &address, &error));
        endpoint_format_address(&address, text);
        assert_string_equal(text, texts[i]);
        assert_true(endpoint_resolve(&address, &endpoints, &error));
        endpoint_format(&endpoints.list[0], text);
        assert_string_equal(text, texts[i]);
    }
}

static void mapped_addresses(void **state)
{
    (void)state;
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(80)};
    inet_pton(AF_INET6, "::ffff:10.1.2.3", &six.sin6_addr);
    struct endpoint endpoint = {.size = sizeof six};
    char text[ENDPOINT_TEXT];
    memcpy(&endpoint.address, &six, sizeof six);
    endpoint_format(&endpoint, text);
    assert_string_equal(text, "10.1.2.3:80");
}

static void unknown_names(void **state)
{
    (void)state;
    struct address address = {.host = "no-such-host.invalid", .port = 1};
    struct error error;
    int fd;
    assert_false(socket_connect(&fd, &address, NULL, clock_monotonic_s() + 20, &error));
    assert_non_null(strstr(error.text, "can't connect to no-such-host.invalid:1"));
}

static void members(void **state)
{
    (void)state;
    static const char *const good[] = {"ps:0", "worker:65535", "ps", "worker", "operator"};
    static const char *const bad[] = {
        "",      "ps:",       "ps:-1", "worker:65536",           "worker:01", "operator:1", "worker:1x",
        "chief", "workers:1", "ps 0",  "ps:99999999999999999999"};
    struct member member;
    struct error error;
    char text[MEMBER_TEXT];
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_true(member_parse(good[i], &member, &error));
        member_format(&member, ':', text);
        assert_string_equal(text, good[i]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_false(member_parse(bad[i], &member, &error));
    }
    struct member any = {MEMBER_WORKER, MEMBER_ANY_INDEX}, two = {MEMBER_WORKER, 2}, three = {MEMBER_WORKER, 3};
    struct member all = {MEMBER_NONE, MEMBER_ANY_INDEX}, ps2 = {MEMBER_PS, 2};
    assert_true(member_matches(&any, &two) && member_matches(&two, &two) && member_matches(&all, &two));
    assert_false(member_matches(&two, &three) || member_matches(&two, &any) || member_matches(&any, &ps2));
}

/* Whatever the system's default for connections to other machines. */
static void assert_unpaced(int fd)
{
    char name[16] = "";
    socklen_t size = sizeof name;
    assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &size), 0);
    assert_string_equal(name, "reno");
}

static void connect_through(const char *listen_host, const char *connect_host, bool is_ipv6)
{
    struct error error;
    struct address address = {.is_ipv6 = is_ipv6};
    int listener, client, server;
    char peer[ENDPOINT_TEXT];
    if (!socket_listen(&listener, listen_host, 0, &error)) {
        print_message("skipped: %s\n", error.text); /* machines without IPv6 */
        return;
    }
    strcpy(address.host, connect_host);
    address.port = socket_port(listener);
    assert_true(socket_connect(&client, &address, NULL, clock_monotonic_s() + 5, &error));
    assert_true(accept_in_time(listener, &server, peer, clock_monotonic_s() + 5, &error));
    assert_int_equal(strncmp(peer, is_ipv6 ? "[::1]:" : "127.0.0.1:", 6), 0);
    assert_unpaced(client);
    assert_unpaced(server);
    int second;
    assert_false(socket_listen(&second, listen_host, (uint16_t)address.port, &error));
    assert_non_null(strstr(error.text, "is another process of this job running here?"));
    close(client);
    close(server);
    assert_false(accept_in_time(listener, &server, peer, clock_monotonic_s() + 0.05, &error));
    close(listener);
}

/* Many connect at once while none is accepted: the system queues them, and none has to retry a second later. */
static void a_crowd_waits(void **state)
{
    enum { CROWD = 300 };
    (void)state;
    struct error error;
    struct address address = {.host = "127.0.0.1"};
    int listener, fds[CROWD], came = 0;
    assert_true(socket_listen(&listener, address.host, 0, &error));
    address.port = socket_port(listener);
    while (came < CROWD && socket_connect(&fds[came], &address, NULL, clock_monotonic_s() + 5, &error)) {
        struct tcp_info info;
        socklen_t size = sizeof info;
        assert_int_equal(getsockopt(fds[came++], IPPROTO_TCP, TCP_INFO, &info, &size), 0);
        assert_int_equal(info.tcpi_total_retrans, 0);
    }
    assert_int_equal(came, CROWD);
    while (came > 0) {
        close(fds[--came]);
    }
    close(listener);
}

static int option(int fd, int level, int name)
{
    int value = -1;
    socklen_t size = sizeof value;
    assert_int_equal(getsockopt(fd, level, name, &value, &size), 0);
    return value;
}

/* Small frames are sent at once; a vanished machine is noticed, whether or not data is in flight to it. */
static void sockets_are_prepared(void **state)
{
    (void)state;
    struct error error;
    struct address address = {.host = "127.0.0.1"};
    int listener, fd;
    assert_true(socket_listen(&listener, address.host, 0, &error));
    address.port = socket_port(listener);
    assert_true(socket_connect(&fd, &address, NULL, clock_monotonic_s() + 5, &error));
    assert_int_equal(option(fd, IPPROTO_TCP, TCP_NODELAY), 1);
    assert_int_equal(option(fd, SOL_SOCKET, SO_KEEPALIVE), 1);
    assert_in_range(option(fd, IPPROTO_TCP, TCP_KEEPIDLE) +
                        option(fd, IPPROTO_TCP, TCP_KEEPINTVL) * option(fd, IPPROTO_TCP, TCP_KEEPCNT),
                    5, 60);
    assert_int_equal(option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT), SOCKET_LOST_AFTER_MS);
    assert_int_equal(fcntl(fd, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
    assert_int_equal(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    assert_int_equal(fcntl(listener, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    close(fd);
    close(listener);
}

/* Each failure says what it was and leaves no descriptor open: the next attempt has as many. */
static void no_more_files(void **state)
{
    (void)state;
    struct error error, other;
    struct rlimit before, few;
    struct address address = {.host = "127.0.0.1"};
    int listener, fd = 0;
    assert_true(socket_listen(&listener, address.host, 0, &error));
    address.port = socket_port(listener);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    const int next = dup(listener);
    close(next);
    few = (struct rlimit){(rlim_t)next, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    const bool connected = socket_connect(&fd, &address, NULL, clock_monotonic_s() + 5, &error);
    int second = 0;
    const bool listens = socket_listen(&second, address.host, 0, &other);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_false(connected);
    assert_int_equal(fd, -1);
    assert_non_null(strstr(error.text, "can't connect to 127.0.0.1:"));
    assert_non_null(strstr(error.text, "Too many open files"));
    assert_false(listens);
    assert_int_equal(second, -1);
    assert_non_null(strstr(other.text, "can't listen on 127.0.0.1 port 0: Too many open files"));
    close(listener);
    for (int i = 0; i < 3; i++) {
        fd = listener; /* in any case none is connected */
        assert_false(socket_connect(&fd, &address, NULL, clock_monotonic_s() + 5, &error));
        assert_int_equal(fd, -1);
        assert_non_null(strstr(error.text, "nothing listens there"));
        assert_false(socket_listen(&fd, "192.0.2.1", 0, &error));
    }
    const int again = dup(0);
    close(again);
    assert_int_equal(again, listener);
}

static void *close_later(void *listener)
{
    usleep(300 * 1000);
    close(*(int *)listener);
    return NULL;
}

static void a_port_that_gets_free_in_time(void **state)
{
    (void)state;
    struct error error;
    int first, second;
    pthread_t thread;
    assert_true(socket_listen(&first, "127.0.0.1", 0, &error));
    uint16_t port = socket_port(first);
    assert_int_equal(pthread_create(&thread, NULL, close_later, &first), 0);
    double begin_s = clock_monotonic_s();
    assert_true(socket_listen(&second, "127.0.0.1", port, &error));
    assert_in_range((int)(1000 * (clock_monotonic_s() - begin_s)), 250, 1000 * SOCKET_IN_USE_S);
    pthread_join(thread, NULL);
    close(second);
}

static void listening(void **state)
{
    (void)state;
    connect_through("127.0.0.1", "127.0.0.1", false);
    connect_through(NULL, "127.0.0.1", false);

    connect_through("::1", "::1", true);
    int fd;
    struct error error;
    assert_false(socket_listen(&fd, "192.0.2.1", 0, &error)); /* an address that no machine has */
    assert_non_null(strstr(error.text, "can't listen on 192.0.2.1"));
}

/* If a program has closed its standard input, descriptor 0 is as good as any. */
static void a_socket_of_number_0(void **state)
{
    (void)state;
    struct error error;
    const int input = dup(0);
    int fd;
    close(0);
    const bool listens = socket_listen(&fd, "127.0.0.1", 0, &error);
    const int got = fd;
    if (input >= 0) {
        dup2(input, 0);
        close(input);
    }
    assert_true(listens);
    assert_int_equal(got, 0);
}

/* That nobody connects is no failure of the listener; a descriptor that is no listener is one. */
static void taking(void **state)
{
    (void)state;
    struct error error;
    struct endpoint from;
    int listener, fd, ends[2];
    assert_true(socket_listen(&listener, "127.0.0.1", 0, &error));
    assert_int_equal(socket_take(listener, &fd, &from, &error), SOCKET_NONE);
    assert_int_equal(fd, -1);
    close(listener);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    assert_int_equal(socket_take(ends[0], &fd, &from, &error), SOCKET_FAILED);
    assert_non_null(strstr(error.text, "can't accept connections: "));
    close(ends[0]);
    close(ends[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_crowd_waits),
        cmocka_unit_test(addresses_as_text),
        cmocka_unit_test(mapped_addresses),
        cmocka_unit_test(unknown_names),
        cmocka_unit_test(members),
        cmocka_unit_test(listening),
        cmocka_unit_test(a_port_that_gets_free_in_time),
        cmocka_unit_test(sockets_are_prepared),
        cmocka_unit_test(no_more_files),
        cmocka_unit_test(a_socket_of_number_0),
        cmocka_unit_test(taking),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
