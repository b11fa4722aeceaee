/* Foreign text as terminals and JSON get it. */
#include "base/text/text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cJSON.h>
#include <cmocka.h>

#include "base/text/json.h"
#include "tests/random.h"

static void test_what_is_harmful_is_shown(void **state)
{
    static const char *const shown[][2] = {
        {"plain text, z\xc3\xbcrich \xe2\x82\xac \xf0\x9f\x8e\x89",
         "plain text, z\xc3\xbcrich \xe2\x82\xac \xf0\x9f\x8e\x89"},
        {"", ""},
        {"\033[2J\033]0;title\a", "\\x1b[2J\\x1b]0;title\\x07"},
        {"one\ntwo\r\tthree", "one two  three"},
        {"\x7f", "\\x7f"},
        {"\xc2\x9b"
         "31m \xc2\x85",
         "\\u009b31m \\u0085"},
        {"\xe2\x80\xaegpj.exe\xe2\x80\xac", "\\u202egpj.exe\\u202c"},
        {"\xe2\x81\xa6 \xe2\x80\x8f \xd8\x9c \xe2\x80\xa8", "\\u2066 \\u200f \\u061c \\u2028"},
        {"\xff"
         "a\xe2\x82",
         "\\xffa\\xe2\\x82"},
    };
    (void)state;
    char text[128];
    for (size_t i = 0; i < sizeof shown / sizeof shown[0]; i++) {
        assert_string_equal(printable(text, sizeof text, shown[i][0]), shown[i][1]);
    }
}

static void test_what_does_not_fit_is_cut_between_characters(void **state)
{
    (void)state;
    char text[8];
    assert_string_equal(printable(text, sizeof text, "abcde\xe2\x82\xac"), "abcde");
    assert_string_equal(printable(text, sizeof text, "abcd\xe2\x82\xac"), "abcd\xe2\x82\xac");
    assert_string_equal(printable(text, sizeof text, "abcd\033"), "abcd");
    assert_string_equal(printable(text, 1, "abcd"), "");
}

/* Any bytes: the result is UTF-8 without control characters, and JSON remains JSON with the same texts. */
static void test_any_bytes(void **state)
{
    (void)state;
    struct test_random random = test_random_begin("any_bytes");
    for (int round = 0; round < 20000; round++) {
        char text[24] = "", shown[256];
        for (int i = 0; i < 16; i++) {
            static const uint8_t likely[] = {0xC2, 0x80, 0x9B, 0xE2, 0x80, 0xAE, 0x1B,
                                             '"',  '\\', 0x7F, 'a',  0xEF, 0xBB, 0xBF};
            text[i] = test_random_below(&random, 3) == 0 ? (char)(1 + test_random_below(&random, 255))
                                                         : (char)likely[test_random_below(&random, (int)sizeof likely)];
        }
        printable(shown, sizeof shown, text);
        assert_true(utf8_check(shown, strlen(shown)));
        for (const char *at = shown; *at != '\0'; at++) {
            assert_true((unsigned char)*at >= ' ' && *at != 0x7F);
        }
        assert_null(strstr(shown, "\xc2\x9b"));
        cJSON *object = cJSON_CreateString(text);
        char *json = printable_json(cJSON_PrintUnformatted(object));
        cJSON_Delete(object);
        struct json_place place;
        struct error error;
        assert_true(json_check(json, strlen(json), &place, &error));
        assert_null(strstr(json, "\xc2\x9b"));
        assert_null(strstr(json, "\xe2\x80\xae"));
        if (utf8_check(text, strlen(text))) {
            cJSON *read = cJSON_Parse(json);
            assert_string_equal(cJSON_GetStringValue(read), text);
            cJSON_Delete(read);
        }
        free(json);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_harmful_is_shown),
        cmocka_unit_test(test_what_does_not_fit_is_cut_between_characters),
        cmocka_unit_test(test_any_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
