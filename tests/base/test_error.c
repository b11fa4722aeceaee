/* An error stays one terminated line however long its pieces are. */
#include "base/error.h"
#include "tests/check.h"

#include <string.h>

TEST(set_and_wrap)
{
    struct error error;
    assert_false(error_set(&error, "%s is %d", "x", 3));
    assert_false(error_wrap(&error, "config.json:%d", 12));
    assert_string_equal(error.text, "config.json:12: x is 3");
}

TEST(long_text_is_cut)
{
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
    return check_run(NULL, NULL);
}
