/* Counts at the ends of their range, and where a comma begins. */
#include "base/text/text.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

static void groups_of_three(void **state)
{
    (void)state;
    static const struct {
        int64_t number;
        const char *text;
    } cases[] = {
        {0, "0"},
        {999, "999"},
        {1000, "1,000"},
        {-999, "-999"},
        {-1000, "-1,000"},
        {1234567, "1,234,567"},
        {INT64_MAX, "9,223,372,036,854,775,807"},
        {INT64_MIN, "-9,223,372,036,854,775,808"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[COUNT_TEXT];
        assert_string_equal(count_text(text, cases[i].number), cases[i].text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(groups_of_three)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
