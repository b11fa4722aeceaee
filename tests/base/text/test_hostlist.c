/* Hostlists as Slurm writes them, each compared with the output of `scontrol show hostnames`; and hostile ones. */
#include "base/config/scheduler.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/random.h"

enum { MOST = 2048 };

struct found {
    char text[1 << 16];
    size_t used;
    int hosts;
};

static bool add(void *context, const char *host, struct error *error)
{
    struct found *found = context;
    (void)error;
    assert_in_range(strlen(host), 1, HOSTLIST_MAX_HOST);
    found->used += (size_t)snprintf(found->text + found->used, sizeof found->text - found->used, "%s%s",
                                    found->used > 0 ? " " : "", host);
    found->used = found->used < sizeof found->text ? found->used : sizeof found->text - 1;
    found->hosts++;
    return true;
}

static void means(const char *text, const char *hosts)
{
    struct found *found = calloc(1, sizeof *found);
    struct error error = {""};
    bool done = hostlist_expand(text, MOST, add, found, &error);
    assert_string_equal(done ? "" : error.text, "");
    assert_string_equal(found->text, hosts);
    free(found);
}

static void refuses(const char *text, const char *message)
{
    struct found *found = calloc(1, sizeof *found);
    struct error error = {""};
    assert_false(hostlist_expand(text, MOST, add, found, &error));
    assert_string_equal(error.text, message);
    free(found);
}

static void lists(void **state)
{
    (void)state;
    means("n1", "n1");
    means("login,n[1,3-5],x", "login n1 n3 n4 n5 x");
    means("n[08-11]", "n08 n09 n10 n11");
    means("n[8-11]", "n8 n9 n10 n11");
    means("n[099-101],n007", "n099 n100 n101 n007");
    means("rack[0-1]n[1-2]", "rack0n1 rack0n2 rack1n1 rack1n2");
    means("n[3,1-2][0-1]", "n30 n31 n10 n11 n20 n21");
    means("n[3,3]", "n3 n3");
    /* Later releases of Slurm accept more than 22.05. */
    means("rack[0-1]-n[1-2].example", "rack0-n1.example rack0-n2.example rack1-n1.example rack1-n2.example");
    means("[1-2]a,b", "1a 2a b");
}

static void mistakes(void **state)
{
    (void)state;
    static const char *const numbers[] = {"n[]",    "n[a]",  "n[1-]",  "n[-1]",
                                          "n[2-1]", "n[1,]", "n[1;2]", "n[1234567890]"};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        refuses(numbers[i], "brackets hold numbers and ranges of them, as in n[1,3-5]");
    }
    refuses("", "an empty name; write names separated by single commas");
    refuses("a,,b", "an empty name; write names separated by single commas");
    refuses("a,", "an empty name; write names separated by single commas");
    refuses("n[1", "a '[' without its ']'");
    refuses("n]1", "a ']' without its '['");
    refuses("n[1]]", "a ']' without its '['");
    refuses("n[[1]]", "brackets hold numbers and ranges of them, as in n[1,3-5]");
    refuses("n[1][1][1][1][1]", "more than 4 brackets in a name");
    refuses("n[0-999999999]", "too many hosts");
    refuses("n[0-9999][0-9999][0-9999][0-9999]", "too many hosts");
}

static void as_many_as_allowed(void **state)
{
    (void)state;
    struct found *found = calloc(1, sizeof *found);
    struct error error;
    assert_true(hostlist_expand("n[1-2048]", MOST, add, found, &error));
    assert_int_equal(found->hosts, MOST);
    assert_false(hostlist_expand("n[1-2048],x", MOST, add, found, &error));
    free(found);
    char name[HOSTLIST_MAX_HOST + 2];
    memset(name, 'n', sizeof name);
    name[HOSTLIST_MAX_HOST] = '\0';
    means(name, name);
    name[HOSTLIST_MAX_HOST] = 'n';
    name[HOSTLIST_MAX_HOST + 1] = '\0';
    refuses(name, "a host has more than 253 characters");
}

/* Any text of the language's characters: the work is bounded, and every refusal has a message. */
static void hostile(void **state)
{
    (void)state;
    struct test_random random = test_random_begin("hostile");
    for (int i = 0; i < 20000; i++) {
        static const char letters[] = "[]-,,0123456789an.";
        char text[64];
        size_t size = (size_t)test_random_below(&random, sizeof text);
        for (size_t k = 0; k < size; k++) {
            text[k] = letters[test_random_below(&random, sizeof letters - 1)];
        }
        text[size] = '\0';
        struct found *found = calloc(1, sizeof *found);
        struct error error = {""};
        if (hostlist_expand(text, MOST, add, found, &error)) {
            assert_in_range(found->hosts, 1, MOST);
        } else {
            assert_true(error.text[0] != '\0');
        }
        free(found);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists),
        cmocka_unit_test(mistakes),
        cmocka_unit_test(as_many_as_allowed),
        cmocka_unit_test(hostile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
