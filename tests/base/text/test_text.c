/* Text as people get it. */
#include "base/text/text.h"
#include "tests/check.h"

#include <stdlib.h>
#include <string.h>

#include <cJSON.h>

#include "base/text/json.h"
#include "tests/random.h"

/* --- Printing --- */

/* Foreign text as terminals and JSON get it. */

TEST(test_what_is_harmful_is_shown)
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
    char text[128];
    for (size_t i = 0; i < sizeof shown / sizeof shown[0]; i++) {
        assert_string_equal(printable(text, sizeof text, shown[i][0]), shown[i][1]);
    }
}

TEST(test_what_does_not_fit_is_cut_between_characters)
{
    char text[8];
    assert_string_equal(printable(text, sizeof text, "abcde\xe2\x82\xac"), "abcde");
    assert_string_equal(printable(text, sizeof text, "abcd\xe2\x82\xac"), "abcd\xe2\x82\xac");
    assert_string_equal(printable(text, sizeof text, "abcd\033"), "abcd");
    assert_string_equal(printable(text, 1, "abcd"), "");
}

/* Any bytes: the result is UTF-8 without control characters, and JSON remains JSON with the same texts. */
TEST(test_any_bytes)
{
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

/* --- Counts --- */

/* Counts at the ends of their range, and where a comma begins. */

TEST(groups_of_three)
{
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

/* --- The nearest name --- */

/* Distances computed by hand; suggestions that help, or none. */

TEST(distances)
{
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

TEST(long_words_are_far)
{
    char word[200];
    memset(word, 'a', sizeof word - 1);
    word[sizeof word - 1] = '\0';
    assert_true(suggest_distance(word, word) > 100);
    word[64] = '\0';
    assert_int_equal(suggest_distance(word, word), 0);
}

TEST(nearest)
{
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
    return check_run(NULL, NULL);
}
