/* JSON: what is refused, where, and what is read of the rest. */
#include "base/text/json.h"
#include "tests/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cJSON.h>

#include "tests/random.h"

/* --- Checked --- */

/* The checker on texts that JSON parsers get wrong, and positions as editors show them. */

static void accept(const char *text)
{
    struct json_place place;
    struct error error;
    if (!json_check(text, strlen(text), &place, &error)) {
        fail_msg("%s: %s", text, error.text);
    }
    cJSON *parsed = json_build(text, strlen(text));
    assert_non_null(parsed);
    cJSON_Delete(parsed);
}

static void refuse_bytes(const char *text, size_t size, int line, int column, const char *reason)
{
    struct json_place place = {0, 0};
    struct error error = {""};
    if (json_check(text, size, &place, &error)) {
        fail_msg("accepted: %s", text);
    }
    assert_non_null(strstr(error.text, reason));
    assert_int_equal(place.line, line);
    assert_int_equal(place.column, column);
}

static void refuse(const char *text, int line, int column, const char *reason)
{
    refuse_bytes(text, strlen(text), line, column, reason);
}

TEST(values)
{
    static const char *const good[] = {"0",
                                       "-0",
                                       "1e5",
                                       "-1.5E-10",
                                       "true",
                                       "null",
                                       "\"\"",
                                       "[]",
                                       "{}",
                                       " [ 1 , 2 ] ",
                                       "{\"a\":{}}",
                                       "\"\\u00e4\\n\\\\\\\"\\/\"",
                                       "\"\\ud83d\\ude00\"",
                                       "\"\xF0\x9F\x98\x80\"",
                                       "\xEF\xBB\xBF[]",
                                       "\xEF\xBB\xBF"
                                       "3",
                                       "[[[[1]]]]\r\n\t"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        accept(good[i]);
    }
}

TEST(numbers)
{
    static const char *const bad[] = {"[01]", "[1.]", "[-]", "[1e]", "[-.5]", "[1e+]", "[00]"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        refuse(bad[i], 1, 2, "invalid number");
    }
    /* The same after numbers, which are skipped together. */
    static const struct {
        const char *text;
        int column;
        const char *reason;
    } late[] = {{"[1,2,01,3]", 6, "invalid number"},      {"[1, 2.5, 3.]", 10, "invalid number"},
                {"[1,2,-,3]", 6, "invalid number"},       {"[1,2,]", 5, "trailing comma"},
                {"[1,2,,3]", 6, "expected a value"},      {"[1,2 3]", 6, "expected a comma"},
                {"[1,-2,3", 8, "a closing ] is missing"}, {"[1, 2, 3e]", 8, "invalid number"},
                {"[1,2,x]", 6, "expected a value"},       {"[1,2, ]", 5, "trailing comma"}};
    for (size_t i = 0; i < sizeof late / sizeof late[0]; i++) {
        refuse(late[i].text, 1, late[i].column, late[i].reason);
    }
    accept("[0,-0,10, -1.5,2e3 ,\n4,[5,6], 7.25]");
    refuse("[.5]", 1, 2, "expected a value");
    refuse("[+1]", 1, 2, "expected a value");
    refuse("[NaN]", 1, 2, "expected a value");
    refuse("[1x]", 1, 3, "expected a comma or ]");
    refuse("[0x10]", 1, 3, "expected a comma or ]");
}

TEST(structure)
{
    refuse("", 1, 1, "the end of the file");
    refuse("{", 1, 2, "a closing } is missing");
    refuse("[1", 1, 3, "a closing ] is missing");
    refuse("{\"a\" 1}", 1, 6, "a colon");
    refuse("{\"a\": 1 \"b\": 2}", 1, 9, "a comma or }");
    refuse("{a: 1}", 1, 2, "a name in double quotes");
    refuse("{'a': 1}", 1, 2, "a name in double quotes");
    refuse("['a']", 1, 2, "double quotes");
    refuse("{\"a\": 1,\n}", 1, 8, "trailing comma");
    refuse("[1,2,]", 1, 5, "trailing comma");
    refuse("[,]", 1, 2, "expected a value");
    refuse("{} {}", 1, 4, "text after the end");
    refuse("[1}", 1, 3, "a comma or ]");
    refuse("{\n \"a\": 1 # one\n}", 2, 9, "no comments");
    refuse("/* x */ {}", 1, 1, "no comments");
}

TEST(names_twice)
{
    accept("{\"a\": {\"b\": 1}, \"b\": [{\"a\": 1}, {\"a\": 2}]}");
    accept("{\"feature_1\": 1, \"feature_2\": 2, \"feature_12\": 3, \"\": 4}");
    refuse("{\"a\": 1,\n \"b\": 2, \"a\": 3}", 2, 10, "duplicate name \"a\"; remove one");
    refuse("[{\"a long name of an object\": 1, \"a long name of an object\": 1}]", 1, 34, "duplicate name");
    refuse("{\"\": 1, \"\": 1}", 1, 9, "duplicate name \"\"");
    /* The first names of a large object are compared with all, and the others don't matter. */
    char large[4096] = "{", name[24];
    for (int i = 0; i < JSON_COMPARED_NAMES + 10; i++) {
        snprintf(name, sizeof name, "\"n%d\": 1,", i);
        strcat(large, name);
    }
    const size_t size = strlen(large);
    strcpy(large + size, "\"x\": 1}");
    accept(large);
    strcpy(large + size, "\"n3\": 1}");
    refuse(large, 1, (int)size + 1, "duplicate name \"n3\"");
}

TEST(strings)
{
    refuse("[\"a\nb\"]", 1, 2, "unterminated string");
    refuse("[\"abc", 1, 2, "unterminated string");
    refuse("[\"a\tb\"]", 1, 4, "control character");
    refuse("[\"a\\x\"]", 1, 4, "invalid escape");
    refuse("[\"\\u12g4\"]", 1, 3, "invalid escape");
    refuse("[\"\\u0000\"]", 1, 3, "\\u0000");
    refuse("[\"\\ud83d\"]", 1, 3, "surrogate");
    refuse("[\"\\ude00\"]", 1, 3, "surrogate");
    refuse("[\"\\ud83d\\u0041\"]", 1, 3, "surrogate");
    refuse("[\"\\", 1, 3, "invalid escape");
}

TEST(bytes)
{
    refuse("\xC3\xA4\xFF", 1, 2, "0xFF is not UTF-8");
    static const char *const bad[] = {"\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\x80", "\xC3"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        refuse(bad[i], 1, 1, "is not UTF-8");
    }
    refuse_bytes("[1,\0 2]", 7, 1, 4, "expected a value");
    refuse_bytes("[]\0", 3, 1, 3, "text after the end");
    refuse_bytes("\"a\0b\"", 5, 1, 3, "control character");
}

TEST(depth)
{
    char text[2 * JSON_MAX_DEPTH + 3];
    memset(text, '[', JSON_MAX_DEPTH);
    memset(text + JSON_MAX_DEPTH, ']', JSON_MAX_DEPTH);
    text[2 * JSON_MAX_DEPTH] = '\0';
    accept(text);
    memset(text, '[', JSON_MAX_DEPTH + 1);
    memset(text + JSON_MAX_DEPTH + 1, ']', JSON_MAX_DEPTH + 1);
    text[2 * JSON_MAX_DEPTH + 2] = '\0';
    refuse(text, 1, JSON_MAX_DEPTH + 1, "nested too deeply");
}

static void find(const char *text, const int *path, int count, bool name, int line, int column)
{
    struct json_place place = {0, 0};
    assert_true(json_find(text, strlen(text), path, count, name, &place));
    assert_int_equal(place.line, line);
    assert_int_equal(place.column, column);
}

TEST(places)
{
    static const char text[] = "{\"a\": [1, {\"\xC3\xA4\xC3\xA4\": 2, \"c\": 3}],\n \"b\": {}}";
    static const int paths[][3] = {{0, 1, 1}, {1, 0, 0}, {0, 0, 0}, {0, 1, 2}};
    find(text, NULL, 0, false, 1, 1);
    find(text, paths[0], 1, true, 1, 2);
    find(text, paths[0], 1, false, 1, 7);
    find(text, paths[0], 2, false, 1, 11);
    find(text, paths[0], 3, true, 1, 21);
    find(text, paths[0], 3, false, 1, 26);
    find(text, paths[1], 1, true, 2, 2);
    find(text, paths[1], 1, false, 2, 7);
    find(text, paths[2], 2, false, 1, 8);
    struct json_place place;
    assert_false(json_find(text, strlen(text), paths[3], 3, false, &place));
    assert_false(json_find(text, strlen(text), paths[1], 2, false, &place));
}

/* As Python writes what is not a finite number: only data may have it. */
TEST(not_finite)
{
    static const char *const good[] = {"NaN", "[1,NaN, Infinity,-Infinity,2]", "{\"a\":NaN}", "[[1,2],[NaN]]"};
    static const char *const bad[] = {"nan", "Nan", "-NaN", "Inf", "[1,-]", "Infinity1", "+Infinity"};
    struct json_place place;
    struct error error;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_true(json_check_data(good[i], strlen(good[i]), &place, &error));
        assert_false(json_check(good[i], strlen(good[i]), &place, &error));
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_false(json_check_data(bad[i], strlen(bad[i]), &place, &error));
    }
}

/* --- Values in place --- */

/* JSON values in place: kinds, members, walks, texts; and cJSON finds the same in random documents. */

static struct json_value whole(const char *text)
{
    struct json_place place;
    struct error error;
    assert_true(json_check(text, strlen(text), &place, &error));
    return json_whole(text, strlen(text));
}

TEST(test_kinds)
{
    static const struct {
        const char *text;
        enum json_kind kind;
    } cases[] = {{"null", JSON_NULL},     {" true ", JSON_TRUE},          {"false", JSON_FALSE},
                 {"-1.5e3", JSON_NUMBER}, {"\"a\\\"]\"", JSON_STRING},    {"[ ]", JSON_ARRAY},
                 {"{}", JSON_OBJECT},     {"\xef\xbb\xbf[1]", JSON_ARRAY}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct json_value value = whole(cases[i].text);
        assert_int_equal(value.kind, cases[i].kind);
        assert_true(strlen(json_kind_name(value.kind)) > 3);
    }
    assert_int_equal(json_whole("", 0).kind, JSON_NONE);
}

/* A text with brackets in it, and a bracket, after numbers of any length, which are skipped eight bytes at a time. */
TEST(test_the_end_behind_many_numbers)
{
    for (int digits = 0; digits < 40; digits++) {
        char text[128];
        const int size = snprintf(text, sizeof text, "{\"a\": [1%0*d, \"]}\", [2]], \"b\": 3}", digits, 0);
        struct json_value root = json_whole(text, (size_t)size);
        assert_int_equal(json_length(json_member(root, "a")), 3);
        assert_int_equal(json_member(root, "b").size, 1);
        assert_int_equal(json_length(root), 2);
    }
}

TEST(test_members_and_walks)
{
    const struct json_value root = whole("{ \"a\" : [1, [2, \"]\"], {\"}\": null}] , \"b\\u0041\":true,\"z\":2}");
    struct json_walk walk = json_walk(json_member(root, "a"));
    struct json_value value, name;
    assert_int_equal(json_length(root), 3);
    assert_int_equal(json_member(root, "bA").kind, JSON_TRUE);
    assert_int_equal(json_member(root, "c").kind, JSON_NONE);
    assert_int_equal(json_member(json_member(root, "bA"), "x").kind, JSON_NONE);
    assert_true(json_next(&walk, &value) && value.kind == JSON_NUMBER && value.size == 1);
    assert_true(json_next(&walk, &value) && value.kind == JSON_ARRAY && json_length(value) == 2);
    assert_true(json_next(&walk, &value) && value.kind == JSON_OBJECT && json_length(value) == 1);
    assert_false(json_next(&walk, &value));
    assert_int_equal(value.kind, JSON_NONE);
    walk = json_walk(root);
    assert_true(json_next_member(&walk, &name, &value) && json_is(name, "a") && !json_is(name, "ab"));
    walk = json_walk(value = whole("7"));
    assert_false(json_next(&walk, &value));
    assert_int_equal(json_length(whole("\"abc\"")), 0);
}

TEST(test_texts_lose_their_escapes)
{
    static const char text[] = "\"\\\"\\\\\\/\\b\\f\\n\\r\\t \\u00e9\\u20AC\\ud83d\\ude00\"";
    char room[sizeof text];
    const size_t size = json_unescape(whole(text), room);
    static const char wanted[] = "\"\\/\b\f\n\r\t \xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80";
    assert_int_equal(size, sizeof wanted - 1);
    assert_memory_equal(room, wanted, size);
}

/* --- compared with cJSON --- */

static void put_random(struct test_random *random, char **at, int depth)
{
    static const char *const scalars[] = {"null", "true", "-12.5", "\"a b\"", "\"\\u00e9,]}\"", "0"};
    const int kind = depth > 4 ? 0 : test_random_below(random, 3);
    if (kind == 0) {
        *at += sprintf(*at, "%s", scalars[test_random_below(random, 6)]);
        return;
    }
    const int count = test_random_below(random, 5);
    *at += sprintf(*at, "%s", kind == 1 ? "[ " : "{");
    for (int i = 0; i < count; i++) {
        *at += sprintf(*at, i > 0 ? " ,\n" : "");
        *at += kind == 2 ? sprintf(*at, "\"m%d\": ", i) : 0;
        put_random(random, at, depth + 1);
    }
    *at += sprintf(*at, "%s", kind == 1 ? "]" : "}");
}

static void expect_same(struct json_value value, const cJSON *other)
{
    char text[64];
    if (cJSON_IsString(other)) {
        assert_int_equal(value.kind, JSON_STRING);
        assert_int_equal(json_unescape(value, text), strlen(other->valuestring));
        assert_memory_equal(text, other->valuestring, strlen(other->valuestring));
    } else if (cJSON_IsNumber(other)) {
        assert_int_equal(value.kind, JSON_NUMBER);
        assert_true(strtod(value.text, NULL) == other->valuedouble);
    } else if (!cJSON_IsArray(other) && !cJSON_IsObject(other)) {
        assert_int_equal(value.kind, cJSON_IsNull(other) ? JSON_NULL : JSON_TRUE);
    } else {
        struct json_walk walk = json_walk(value);
        struct json_value name, child;
        assert_int_equal(value.kind, cJSON_IsArray(other) ? JSON_ARRAY : JSON_OBJECT);
        assert_int_equal(json_length(value), cJSON_GetArraySize(other));
        for (const cJSON *next = other->child; next; next = next->next) {
            if (cJSON_IsArray(other)) {
                assert_true(json_next(&walk, &child));
            } else {
                assert_true(json_next_member(&walk, &name, &child) && json_is(name, next->string));
                assert_ptr_equal(json_member(value, next->string).text, child.text);
            }
            expect_same(child, next);
        }
        assert_false(json_next(&walk, &child));
    }
}

TEST(test_random_documents_against_cjson)
{
    static char text[1 << 18];
    struct test_random random = test_random_begin("json_value");
    for (int i = 0; i < 300; i++) {
        char *end = text;
        put_random(&random, &end, 0);
        cJSON *other = cJSON_Parse(text);
        assert_non_null(other);
        expect_same(whole(text), other);
        cJSON_Delete(other);
    }
}

int main(void)
{
    return check_run(NULL, NULL);
}
