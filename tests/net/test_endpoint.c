/* Names to addresses and back, before a deadline, whatever the name server does; members by name; sockets. */
#include "net/socket.h"
#include "tests/check.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/member.h"
#include "tests/net/accepting.h"
#include "tests/net/first_look.h"
#include "tests/system.h"

static const double PATIENCE_S = 60; /* with the system, however busy this machine is */

TEST(addresses_as_text)
{
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

TEST(mapped_addresses)
{
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(80)};
    inet_pton(AF_INET6, "::ffff:10.1.2.3", &six.sin6_addr);
    struct endpoint endpoint = {.size = sizeof six};
    char text[ENDPOINT_TEXT];
    memcpy(&endpoint.address, &six, sizeof six);
    endpoint_format(&endpoint, text);
    assert_string_equal(text, "10.1.2.3:80");
    endpoint_format_host(&endpoint, text);
    assert_string_equal(text, "10.1.2.3");
    inet_pton(AF_INET6, "2001:db8::1", &six.sin6_addr);
    memcpy(&endpoint.address, &six, sizeof six);
    endpoint_format_host(&endpoint, text);
    assert_string_equal(text, "2001:db8::1");
    const struct sockaddr_in four = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x0a010204)};
    memcpy(&endpoint.address, &four, sizeof four);
    endpoint_format_host(&endpoint, text);
    assert_string_equal(text, "10.1.2.4");
}

TEST(unknown_names)
{
    struct address address = {.host = "no-such-host.invalid", .port = 1};
    struct error error;
    int fd;
    assert_false(socket_connect(&fd, &address, NULL, clock_monotonic_s() + PATIENCE_S, &error));
    assert_non_null(strstr(error.text, "can't connect to no-such-host.invalid:1"));
}

TEST(members)
{
    static const char *const good[] = {"ps:0", "ps:90", "worker:65535", "ps", "worker", "operator"};
    static const char *const bad[] = {
        "",     "ps:",  "ps:-1", "worker:65536",           "worker:01", "operator:1", "worker:1x", "chief", "workers:1",
        "ps 0", "ps:/", "ps::",  "ps:99999999999999999999"};
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
    assert_true(socket_connect(&client, &address, NULL, clock_monotonic_s() + PATIENCE_S, &error));
    assert_true(accept_in_time(listener, &server, peer, clock_monotonic_s() + PATIENCE_S, &error));
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
TEST(a_crowd_waits)
{
    enum { CROWD = 300 };
    struct error error;
    struct address address = {.host = "127.0.0.1"};
    int listener, fds[CROWD], came = 0;
    assert_true(socket_listen(&listener, address.host, 0, &error));
    address.port = socket_port(listener);
    while (came < CROWD && socket_connect(&fds[came], &address, NULL, clock_monotonic_s() + PATIENCE_S, &error)) {
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
TEST(sockets_are_prepared)
{
    struct error error;
    struct address address = {.host = "127.0.0.1"};
    int listener, fd;
    assert_true(socket_listen(&listener, address.host, 0, &error));
    address.port = socket_port(listener);
    assert_true(socket_connect(&fd, &address, NULL, clock_monotonic_s() + PATIENCE_S, &error));
    assert_int_equal(option(fd, IPPROTO_TCP, TCP_NODELAY), 1);
    assert_int_equal(option(fd, SOL_SOCKET, SO_KEEPALIVE), 1);
    assert_int_equal(option(fd, IPPROTO_TCP, TCP_KEEPIDLE) +
                         option(fd, IPPROTO_TCP, TCP_KEEPINTVL) * option(fd, IPPROTO_TCP, TCP_KEEPCNT),
                     SOCKET_LOST_AFTER_MS / 1000);
    assert_int_equal(option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT), SOCKET_LOST_AFTER_MS);
    assert_int_equal(fcntl(fd, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
    assert_int_equal(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    assert_int_equal(fcntl(listener, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    assert_int_equal(option(listener, SOL_SOCKET, SO_REUSEADDR), 1); /* who restarts listens again at once */
    close(fd);
    close(listener);
}

/* Each failure says what it was and leaves no descriptor open: the next attempt has as many. */
TEST(no_more_files)
{
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
    const bool connected = socket_connect(&fd, &address, NULL, clock_monotonic_s() + PATIENCE_S, &error);
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
        assert_false(socket_connect(&fd, &address, NULL, clock_monotonic_s() + PATIENCE_S, &error));
        assert_int_equal(fd, -1);
        assert_non_null(strstr(error.text, "nothing listens there"));
        assert_false(socket_listen(&fd, "192.0.2.1", 0, &error));
    }
    const int again = dup(0);
    close(again);
    assert_int_equal(again, listener);
}

/* --- A name with several addresses --- */

static struct endpoints several;

static bool find_several(const struct address *address, struct endpoints *endpoints, struct error *error)
{
    *endpoints = several;
    return true;
}

static void add_endpoint(uint16_t port)
{
    const struct sockaddr_in four = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct endpoint *endpoint = &several.list[several.count++];
    memcpy(&endpoint->address, &four, sizeof four);
    endpoint->size = sizeof four;
}

static int next_number(void)
{
    const int fd = dup(0);
    close(fd);
    return fd;
}

/* One that keeps whoever comes waiting: the system has a connection for it already, and takes no more. */
static int listen_and_take_nobody(int *first)
{
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof four;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&four, sizeof four), 0);
    assert_int_equal(listen(fd, 0), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&four, &size), 0);
    *first = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(*first, (struct sockaddr *)&four, sizeof four), 0);
    return fd;
}

/* One after the other, each with its share of the time that is left; what the last one said is told. */
TEST(one_address_after_the_other)
{
    static const struct address name = {.host = "box.example", .port = 22};
    struct error error;
    struct wake wake;
    int good, first, fd = -1;
    const int silent = listen_and_take_nobody(&first);
    assert_true(socket_listen(&good, "127.0.0.1", 0, &error));
    const int unused = next_number();
    const uint16_t silent_port = socket_port(silent), good_port = socket_port(good);
    resolver_lookup = find_several;
    several.count = 0;
    add_endpoint(silent_port);
    add_endpoint(1); /* where nothing listens */
    add_endpoint(silent_port);
    add_endpoint(good_port);
    double begun_s, within_s = 0.2;
    do { /* more than a busy machine takes for the last of them */
        within_s *= 2;
        begun_s = clock_monotonic_s();
    } while (!socket_connect(&fd, &name, NULL, begun_s + within_s, &error) && within_s < PATIENCE_S);
    assert_true(fd >= 0);
    assert_true(clock_monotonic_s() - begun_s >= within_s / 4); /* a quarter of it for the first */
    close(fd);
    several.count = 0;
    add_endpoint(1);
    add_endpoint(silent_port);
    within_s = 0.05;
    do {
        within_s *= 2;
        begun_s = now_for_both_s();
        assert_false(socket_connect(&fd, &name, NULL, begun_s + within_s, &error));
    } while (strstr(error.text, "no name server answered") && within_s < PATIENCE_S);
    assert_true(clock_monotonic_s() - begun_s >= within_s);
    assert_int_equal(fd, -1);
    static const char told[] = "can't connect to box.example:22: no answer within ";
    assert_ptr_equal(strstr(error.text, told), error.text);
    assert_true(strtod(error.text + strlen(told), NULL) >= within_s);
    assert_true(wake_create(&wake, &error));
    wake_raise(&wake);
    assert_false(socket_connect(&fd, &name, &wake, clock_monotonic_s() + PATIENCE_S, &error));
    assert_string_equal(error.text, "can't connect to box.example:22: host box.example: the lookup was cancelled");
    several.count = 0;
    add_endpoint(silent_port);
    add_endpoint(1);
    const struct address numeric = {.host = "127.0.0.1", .port = silent_port};
    assert_false(socket_connect(&fd, &numeric, &wake, clock_monotonic_s() + PATIENCE_S, &error));
    assert_non_null(strstr(error.text, " was cancelled"));
    assert_ptr_equal(strstr(error.text, "connecting to 127.0.0.1:"), error.text);
    wake_destroy(&wake);
    within_s = 0.05;
    do {
        within_s *= 2;
        assert_false(socket_connect(&fd, &name, NULL, clock_monotonic_s() + within_s, &error));
    } while (strstr(error.text, "answer") && within_s < PATIENCE_S);
    assert_string_equal(error.text, "can't connect to box.example:22: Connection refused (nothing listens there)");
    const double until_s = clock_monotonic_s() + PATIENCE_S;
    while (next_number() != unused && clock_monotonic_s() < until_s) { /* a lookup's thread lets go */
        usleep(1000);
    }
    assert_int_equal(next_number(), unused);
    resolver_lookup = endpoint_resolve;
    close(good);
    close(first);
    close(silent);
}

TEST(nowhere_to_listen)
{
    struct error error;
    int fd = 7;
    assert_false(socket_listen(&fd, "::no.address", 22, &error));
    assert_int_equal(fd, -1);
    assert_string_equal(error.text, "can't listen on ::no.address port 22: Name or service not known");
    assert_false(socket_listen(&fd, "192.0.2.1", 22, &error));
    assert_string_equal(error.text, "can't listen on 192.0.2.1 port 22: Cannot assign requested address");
}

/* Only connections within this machine have their own control of congestion. */
TEST(who_is_on_this_machine)
{
    static const struct {
        const char *text;
        bool is_here;
    } cases[] = {{"127.0.0.1", true},
                 {"127.255.0.9", true},
                 {"128.0.0.1", false},
                 {"10.0.0.127", false},
                 {"::1", true},
                 {"::2", false},
                 {"::ffff:127.1.2.3", true},
                 {"::ffff:10.0.0.1", false},
                 {"2001:db8::7f00:1", false}};
    char usual[16] = "", name[16] = "";
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct endpoint endpoint = {.size = sizeof endpoint.address};
        struct sockaddr_in four = {.sin_family = AF_INET};
        struct sockaddr_in6 six = {.sin6_family = AF_INET6};
        socklen_t size = sizeof usual;
        if (inet_pton(AF_INET, cases[i].text, &four.sin_addr) == 1) {
            memcpy(&endpoint.address, &four, sizeof four);
        } else {
            assert_int_equal(inet_pton(AF_INET6, cases[i].text, &six.sin6_addr), 1);
            memcpy(&endpoint.address, &six, sizeof six);
        }
        const int fd = socket(AF_INET, SOCK_STREAM, 0);
        assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, usual, &size), 0);
        socket_set_options(fd, &endpoint);
        size = sizeof name;
        assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &size), 0);
        assert_string_equal(name, cases[i].is_here ? "reno" : usual);
        close(fd);
    }
}

static const double CLOSED_AFTER_S = 0.3;

static void *close_later(void *listener)
{
    usleep((useconds_t)(CLOSED_AFTER_S * 1e6));
    close(*(int *)listener);
    return NULL;
}

/* On a machine that is too busy to close it in time, once more. */
TEST(a_port_that_gets_free_in_time)
{
    struct error error;
    bool listens = false;
    for (int tries = 0; tries < 20 && !listens; tries++) {
        int first, second;
        pthread_t thread;
        assert_true(socket_listen(&first, "127.0.0.1", 0, &error));
        const uint16_t port = socket_port(first);
        const double begun_s = clock_monotonic_s();
        assert_int_equal(pthread_create(&thread, NULL, close_later, &first), 0);
        listens = socket_listen(&second, "127.0.0.1", port, &error);
        const double took_s = clock_monotonic_s() - begun_s;
        pthread_join(thread, NULL);
        assert_true(took_s >= (listens ? CLOSED_AFTER_S : SOCKET_IN_USE_S));
        if (listens) {
            close(second);
        }
    }
    assert_true(listens);
}

TEST(listening)
{
    connect_through("127.0.0.1", "127.0.0.1", false);
    connect_through(NULL, "127.0.0.1", false);

    connect_through("::1", "::1", true);
    int fd;
    struct error error;
    assert_false(socket_listen(&fd, "192.0.2.1", 0, &error)); /* an address that no machine has */
    assert_non_null(strstr(error.text, "can't listen on 192.0.2.1"));
}

/* If a program has closed its standard input, descriptor 0 is as good as any. */
TEST(a_socket_of_number_0)
{
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
TEST(taking)
{
    struct error error;
    struct endpoint from;
    int listener, fd, ends[2];
    assert_true(socket_listen(&listener, "127.0.0.1", 0, &error));
    assert_int_equal(socket_accept(listener, &fd, &from, &error), SOCKET_NONE);
    assert_int_equal(fd, -1);
    close(listener);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    assert_int_equal(socket_accept(ends[0], &fd, &from, &error), SOCKET_FAILED);
    assert_non_null(strstr(error.text, "can't accept connections: "));
    close(ends[0]);
    close(ends[1]);
}

/* --- Lookups with a deadline --- */

/* Threads, which there are none of while none_left; the product's own are joined by nobody. */
static atomic_bool none_left;

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *context)
{
    int detached = PTHREAD_CREATE_DETACHED;
    if (attributes) {
        pthread_attr_getdetachstate(attributes, &detached);
    }
    assert_int_equal(detached, PTHREAD_CREATE_DETACHED);
    return atomic_load(&none_left) ? EAGAIN : SYSTEM(pthread_create)(thread, attributes, run, context);
}

/* The number of the next file before anything was looked up; threads that look up give theirs back in a moment. */
static int unused;

static int count_files(void **state)
{
    unused = next_number();
    return 0;
}

static void await_threads(void)
{
    const double until_s = clock_monotonic_s() + 60;
    while (next_number() != unused && clock_monotonic_s() < until_s) {
        usleep(1000);
    }
    assert_int_equal(next_number(), unused);
}

/* Longer than anything takes but a lookup that nobody ends. */
static const double LONG_S = 60;

static const struct address numeric = {.host = "127.0.0.1", .port = 22}, named = {.host = "box.example", .port = 22};

/* A name server that answers when the test allows it. */
static atomic_bool answers;
static atomic_int asked, answered;

static bool slow_lookup(const struct address *address, struct endpoints *endpoints, struct error *error)
{
    atomic_fetch_add(&asked, 1);
    while (!atomic_load(&answers)) {
        usleep(1000);
    }
    bool found = endpoint_resolve(&numeric, endpoints, error);
    atomic_fetch_add(&answered, 1);
    return found;
}

static int with_slow_lookup(void **state)
{
    atomic_store(&answers, false);
    atomic_store(&asked, 0);
    atomic_store(&answered, 0);
    resolver_lookup = slow_lookup;
    return 0;
}

/* All abandoned lookups end and free their memory: as many fit again as before. */
static int without_it(void **state)
{
    struct endpoints endpoints;
    struct error error;
    atomic_store(&answers, true);
    double deadline_s = clock_monotonic_s() + LONG_S;
    while (atomic_load(&answered) < atomic_load(&asked)) {
        assert_true(clock_monotonic_s() < deadline_s);
        usleep(1000);
    }
    while (!resolver_find(&named, NULL, deadline_s, &endpoints, &error)) {
        assert_true(clock_monotonic_s() < deadline_s);
        usleep(1000);
    }
    await_threads(); /* the last one frees its request */
    resolver_lookup = endpoint_resolve;
    return 0;
}

TEST_WITH(dead_name_server, with_slow_lookup, without_it)
{
    struct endpoints endpoints;
    struct error error;
    /* Returning at all is due to the deadline: the name server answers nobody. */
    double begun_s = now_for_both_s();
    assert_false(resolver_find(&named, NULL, begun_s + 0.2, &endpoints, &error));
    assert_true(clock_monotonic_s() - begun_s >= 0.2);
    static const char told[] = "host box.example: no name server answered within ";
    const char *found = strstr(error.text, told);
    assert_non_null(found);
    assert_true(strtod(found + strlen(told), NULL) >= 0.2);
    int fd;
    assert_false(socket_connect(&fd, &named, NULL, clock_monotonic_s() + 0.1, &error));
    assert_non_null(strstr(error.text, "can't connect to box.example:22: host box.example: no name server answered"));
    assert_true(resolver_find(&numeric, NULL, clock_monotonic_s(), &endpoints, &error)); /* no lookup is needed */
    /* Lookup threads may start after their deadline. */
    while (atomic_load(&asked) < 2 && clock_monotonic_s() < begun_s + LONG_S) {
        usleep(1000);
    }
    assert_int_equal(atomic_load(&asked), 2);
}

TEST_WITH(answer_in_time, with_slow_lookup, without_it)
{
    struct endpoints endpoints;
    struct error error;
    char text[ENDPOINT_TEXT];
    atomic_store(&answers, true);
    assert_true(resolver_find(&named, NULL, clock_monotonic_s() + LONG_S, &endpoints, &error));
    endpoint_format(&endpoints.list[0], text);
    assert_string_equal(text, "127.0.0.1:22");
}

static void *raise_it(void *wake)
{
    usleep(100000);
    wake_raise(wake);
    return NULL;
}

TEST_WITH(given_up, with_slow_lookup, without_it)
{
    struct wake wake;
    struct endpoints endpoints;
    struct error error;
    pthread_t thread;
    assert_true(wake_create(&wake, &error));
    pthread_create(&thread, NULL, raise_it, &wake);
    assert_false(resolver_find(&named, &wake, clock_monotonic_s() + LONG_S, &endpoints, &error));
    assert_non_null(strstr(error.text, "was cancelled"));
    pthread_join(thread, NULL);
    wake_destroy(&wake);
}

/* Endless retries, as by a role that waits for a peer, accumulate no threads. */
TEST_WITH(questions_do_not_pile_up, with_slow_lookup, without_it)
{
    struct endpoints endpoints;
    struct error error;
    for (int i = 0; i < 3 * RESOLVER_MOST; i++) {
        assert_false(resolver_find(&named, NULL, clock_monotonic_s() + 0.001, &endpoints, &error));
        assert_non_null(strstr(error.text, i < RESOLVER_MOST ? "no name server answered within "
                                                             : "too many names are being looked up"));
    }
    double deadline_s = clock_monotonic_s() + LONG_S;
    while (atomic_load(&asked) < 1 && clock_monotonic_s() < deadline_s) {
        usleep(1000);
    }
    assert_in_range(atomic_load(&asked), 1, RESOLVER_MOST);
    assert_non_null(strstr(error.text, "too many names are being looked up"));
    /* without_it waits until a name is found again. */
}

static bool failing_lookup(const struct address *address, struct endpoints *endpoints, struct error *error)
{
    return error_set(error, "host %s: no such host", address->host);
}

/* Who is not there is told by the name server's own words; and what is no name is asked of nobody. */
TEST(no_such_host)
{
    static const struct address six = {.host = "::1", .port = 22, .is_ipv6 = true};
    struct endpoints endpoints = {.count = 0};
    struct error error = {""};
    resolver_lookup = failing_lookup;
    assert_false(resolver_find(&named, NULL, clock_monotonic_s() + LONG_S, &endpoints, &error));
    assert_string_equal(error.text, "host box.example: no such host");
    assert_int_equal(endpoints.count, 0);
    assert_true(resolver_find(&six, NULL, clock_monotonic_s() + LONG_S, &endpoints, &error));
    assert_int_equal(endpoints.count, 1);
    resolver_lookup = endpoint_resolve;
}

/* Where there are no threads, or no files, it says so, keeps nothing, and is as well as ever afterwards. */
TEST_WITH(shortages, with_slow_lookup, without_it)
{
    struct endpoints endpoints;
    struct error error;
    struct rlimit before;
    await_threads();
    atomic_store(&none_left, true);
    for (int i = 0; i < 2 * RESOLVER_MOST; i++) {
        assert_false(resolver_find(&named, NULL, clock_monotonic_s() + LONG_S, &endpoints, &error));
    }
    atomic_store(&none_left, false);
    assert_non_null(strstr(error.text, "too many names are being looked up"));
    assert_int_equal(next_number(), unused);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &(struct rlimit){(rlim_t)unused, before.rlim_max}), 0);
    const bool found = resolver_find(&named, NULL, clock_monotonic_s() + LONG_S, &endpoints, &error);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_false(found);
    assert_string_equal(error.text, "host box.example: out of memory while looking it up");
    atomic_store(&answers, true);
    assert_true(resolver_find(&named, NULL, clock_monotonic_s() + LONG_S, &endpoints, &error));
    await_threads();
}

int main(void)
{
    return check_run(count_files, NULL);
}
