/*
 * cmocka, and what it needs before it. TEST(name) { ... } is a test of its program, TEST_WITH(name, set_up, tear_down)
 * one with a fixture; they run in the order of the file, by check_run.
 */
#ifndef TESTS_CHECK_H
#define TESTS_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

enum { CHECK_MOST = 200 };

static struct CMUnitTest check_tests[CHECK_MOST];
static size_t check_count;

static inline void check_add(const char *name, CMUnitTestFunction test, CMFixtureFunction set_up,
                             CMFixtureFunction tear_down)
{
    if (check_count == CHECK_MOST) {
        abort();
    }
    check_tests[check_count++] = (struct CMUnitTest){name, test, set_up, tear_down, NULL};
}

#define TEST_WITH(name, set_up, tear_down)                                                                             \
    static void name(void **state);                                                                                    \
    __attribute__((constructor)) static void check_add_##name(void)                                                    \
    {                                                                                                                  \
        check_add(#name, name, set_up, tear_down);                                                                     \
    }                                                                                                                  \
    static void name(void **state)

#define TEST(name) TEST_WITH(name, NULL, NULL)

/* All of them; a program's main returns it. The fixture is of all together; NULL: none. */
static inline int check_run(CMFixtureFunction set_up, CMFixtureFunction tear_down)
{
    return _cmocka_run_group_tests("tests", check_tests, check_count, set_up, tear_down);
}

#endif
