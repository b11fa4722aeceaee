/* An error stays one terminated line however long its pieces are. */
#include "base/error.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

static void set_and_wrap(void **state)
{
    (void)state;
    struct error error;
    assert_false(error_set(&error, "%s is %d", "x", 3));
    assert_false(error_wrap(&error, "config.json:%d", 12));
    assert_string_equal(error.text, "config.json:12: x is 3");
}

static void long_text_is_cut(void **state)
{
    (void)state;
    struct error error;
    char text[2000];
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    error_set(&error, "%s", text);
    assert_int_equal(strlen(error.text), sizeof error.text - 1);
    error_wrap(&error, "%s", text);
    assert_int_equal(strlen(error.text), sizeof error.text - 1);
    error_wrap(&error, "start");
    assert_int_equal(strlen(error.text), sizeof error.text - 1);
    assert_memory_equal(error.text, "start: aaaa", 11);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(set_and_wrap),
        cmocka_unit_test(long_text_is_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
