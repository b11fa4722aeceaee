/* Distances computed by hand; suggestions that help, or none. */
#include "base/text/text.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

static void distances(void **state)
{
    (void)state;
    static const struct {
        const char *a, *b;
        int distance;
    } cases[] = {
        {"", "", 0},       {"", "abc", 3},          {"abc", "abc", 0},   {"abc", "acb", 1},
        {"abc", "abd", 1}, {"abc", "ab", 1},        {"ab", "abc", 1},    {"kitten", "sitting", 3},
        {"ca", "abc", 3},  {"wroker", "worker", 1}, {"abcd", "badc", 2}, {"a", "b", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(suggest_distance(cases[i].a, cases[i].b), cases[i].distance);
        assert_int_equal(suggest_distance(cases[i].b, cases[i].a), cases[i].distance);
    }
}

static void long_words_are_far(void **state)
{
    (void)state;
    char word[200];
    memset(word, 'a', sizeof word - 1);
    word[sizeof word - 1] = '\0';
    assert_true(suggest_distance(word, word) > 100);
    word[64] = '\0';
    assert_int_equal(suggest_distance(word, word), 0);
}

static void nearest(void **state)
{
    (void)state;
    struct suggestion suggestion = {.word = "bach_size"};
    suggest_offer(&suggestion, "seed");
    assert_null(suggestion.best);
    suggest_offer(&suggestion, "batch_sizes");
    suggest_offer(&suggestion, "batch_size");
    suggest_offer(&suggestion, "patch_size");
    assert_string_equal(suggestion.best, "batch_size");
    struct suggestion none = {.word = "xyz"};
    suggest_offer(&none, "seed");
    suggest_offer(&none, "l2");
    assert_null(none.best);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(distances),
        cmocka_unit_test(long_words_are_far),
        cmocka_unit_test(nearest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
