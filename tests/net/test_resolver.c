/* Names are looked up before a deadline, whatever the name server does. */
#include "net/resolver.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

static const struct address numeric = {.host = "127.0.0.1", .port = 22}, named = {.host = "box.example", .port = 22};

/* A name server that answers once it is let. */
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

/* Whatever was left behind comes to its end, and frees what it has. */
static int without_it(void **state)
{
    (void)state;
    atomic_store(&answers, true);
    while (atomic_load(&answered) < atomic_load(&asked)) {
        usleep(1000);
    }
    usleep(50000);
    resolver_lookup = endpoint_resolve;
    return 0;
}

static void dead_name_server(void **state)
{
    (void)state;
    struct endpoints endpoints;
    struct error error;
    double begun_s = clock_monotonic_s();
    assert_false(resolver_find(&named, NULL, begun_s + 0.2, &endpoints, &error));
    assert_true(clock_monotonic_s() - begun_s < 2);
    assert_non_null(strstr(error.text, "host box.example: no name server answered within 0.2"));
    int fd;
    assert_false(socket_connect(&fd, &named, NULL, clock_monotonic_s() + 0.1, &error));
    assert_non_null(strstr(error.text, "can't connect to box.example:22: host box.example: no name server answered"));
    assert_true(resolver_find(&numeric, NULL, clock_monotonic_s(), &endpoints, &error)); /* asks nobody */
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
    double begun_s = clock_monotonic_s();
    assert_false(resolver_find(&named, &wake, begun_s + 20, &endpoints, &error));
    assert_true(clock_monotonic_s() - begun_s < 5);
    assert_non_null(strstr(error.text, "was given up"));
    pthread_join(thread, NULL);
    wake_destroy(&wake);
}

/* Tries without end, as a role does that waits for a peer, pile up no threads. */
static void questions_do_not_pile_up(void **state)
{
    (void)state;
    struct endpoints endpoints;
    struct error error;
    for (int i = 0; i < 3 * RESOLVER_MOST; i++) {
        assert_false(resolver_find(&named, NULL, clock_monotonic_s() + 0.001, &endpoints, &error));
    }
    assert_in_range(atomic_load(&asked), 1, RESOLVER_MOST);
    assert_non_null(strstr(error.text, "too many names are being looked up"));
    atomic_store(&answers, true);
    while (atomic_load(&answered) < atomic_load(&asked)) {
        usleep(1000);
    }
    usleep(50000);
    assert_true(resolver_find(&named, NULL, clock_monotonic_s() + 10, &endpoints, &error));
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
