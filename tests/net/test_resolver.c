/* Names are looked up before a deadline, whatever the name server does. */
#include "net/resolver.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "net/socket.h"

/* Longer than anything takes except a lookup that never ends. */
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
    usleep(50000); /* the last thread frees its request */
    resolver_lookup = endpoint_resolve;
    return 0;
}

static void dead_name_server(void **state)
{
    (void)state;
    struct endpoints endpoints;
    struct error error;
    /* Returning at all is due to the deadline: the name server answers nobody. */
    double begun_s = clock_monotonic_s();
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
    assert_true(resolver_find(&named, NULL, clock_monotonic_s() + 10, &endpoints, &error));
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
    }
    double deadline_s = clock_monotonic_s() + LONG_S;
    while (atomic_load(&asked) < 1 && clock_monotonic_s() < deadline_s) {
        usleep(1000);
    }
    assert_in_range(atomic_load(&asked), 1, RESOLVER_MOST);
    assert_non_null(strstr(error.text, "too many names are being looked up"));
    /* without_it waits until a name is found again. */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(dead_name_server, with_slow_lookup, without_it),
        cmocka_unit_test_setup_teardown(answer_in_time, with_slow_lookup, without_it),
        cmocka_unit_test_setup_teardown(given_up, with_slow_lookup, without_it),
        cmocka_unit_test_setup_teardown(questions_do_not_pile_up, with_slow_lookup, without_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
