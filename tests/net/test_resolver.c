/* Names are looked up before a deadline, whatever the name server does. */
#include "net/resolver.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "net/socket.h"
#include "tests/net/first_look.h"

/* Threads, which there are none of while none_left; the product's own are joined by nobody. */
static atomic_bool none_left;

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *context);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *context);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *context)
{
    int detached = PTHREAD_CREATE_DETACHED;
    if (attributes) {
        pthread_attr_getdetachstate(attributes, &detached);
    }
    assert_int_equal(detached, PTHREAD_CREATE_DETACHED);
    return atomic_load(&none_left) ? EAGAIN : __real_pthread_create(thread, attributes, run, context);
}

static int next_number(void)
{
    const int fd = dup(0);
    close(fd);
    return fd;
}

/* The number of the next file before anything was looked up; threads that look up give theirs back in a moment. */
static int unused;

static int count_files(void **state)
{
    (void)state;
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
    (void)address;
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
    (void)state;
    atomic_store(&answers, false);
    atomic_store(&asked, 0);
    atomic_store(&answered, 0);
    resolver_lookup = slow_lookup;
    return 0;
}

/* All abandoned lookups end and free their memory: as many fit again as before. */
static int without_it(void **state)
{
    (void)state;
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

static void dead_name_server(void **state)
{
    (void)state;
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

static void answer_in_time(void **state)
{
    (void)state;
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

static void given_up(void **state)
{
    (void)state;
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
static void questions_do_not_pile_up(void **state)
{
    (void)state;
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
    (void)endpoints;
    return error_set(error, "host %s: no such host", address->host);
}

/* Who is not there is told by the name server's own words; and what is no name is asked of nobody. */
static void no_such_host(void **state)
{
    (void)state;
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
static void shortages(void **state)
{
    (void)state;
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(dead_name_server, with_slow_lookup, without_it),
        cmocka_unit_test_setup_teardown(answer_in_time, with_slow_lookup, without_it),
        cmocka_unit_test_setup_teardown(given_up, with_slow_lookup, without_it),
        cmocka_unit_test_setup_teardown(questions_do_not_pile_up, with_slow_lookup, without_it),
        cmocka_unit_test(no_such_host),
        cmocka_unit_test_setup_teardown(shortages, with_slow_lookup, without_it),
    };
    return cmocka_run_group_tests(tests, count_files, NULL);
}
