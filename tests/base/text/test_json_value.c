/* JSON values in place: kinds, members, walks, texts; and cJSON finds the same in random documents. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text/json.h"
#include "tests/random.h"

static struct json_value whole(const char *text)
{
    struct json_place place;
    struct error error;
    assert_true(json_check(text, strlen(text), &place, &error));
    return json_whole(text, strlen(text));
}

static void test_kinds(void **state)
{
    static const struct {
        const char *text;
        enum json_kind kind;
    } cases[] = {{"null", JSON_NULL},     {" true ", JSON_TRUE},          {"false", JSON_FALSE},
                 {"-1.5e3", JSON_NUMBER}, {"\"a\\\"]\"", JSON_STRING},    {"[ ]", JSON_ARRAY},
                 {"{}", JSON_OBJECT},     {"\xef\xbb\xbf[1]", JSON_ARRAY}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct json_value value = whole(cases[i].text);
        assert_int_equal(value.kind, cases[i].kind);
        assert_true(strlen(json_kind_name(value.kind)) > 3);
    }
    assert_int_equal(json_whole("", 0).kind, JSON_NONE);
}

/* A text with brackets in it, and a bracket, after numbers of any length, which are skipped eight bytes at a time. */
static void test_the_end_behind_many_numbers(void **state)
{
    (void)state;
    for (int digits = 0; digits < 40; digits++) {
        char text[128];
        const int size = snprintf(text, sizeof text, "{\"a\": [1%0*d, \"]}\", [2]], \"b\": 3}", digits, 0);
        struct json_value root = json_whole(text, (size_t)size);
        assert_int_equal(json_length(json_member(root, "a")), 3);
        assert_int_equal(json_member(root, "b").size, 1);
        assert_int_equal(json_length(root), 2);
    }
}

static void test_members_and_walks(void **state)
{
    const struct json_value root = whole("{ \"a\" : [1, [2, \"]\"], {\"}\": null}] , \"b\\u0041\":true,\"a\":2}");
    struct json_walk walk = json_walk(json_member(root, "a"));
    struct json_value value, name;
    (void)state;
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

static void test_texts_lose_their_escapes(void **state)
{
    static const char text[] = "\"\\\"\\\\\\/\\b\\f\\n\\r\\t \\u00e9\\u20AC\\ud83d\\ude00\"";
    char room[sizeof text];
    const size_t size = json_unescape(whole(text), room);
    static const char wanted[] = "\"\\/\b\f\n\r\t \xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80";
    (void)state;
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

static void test_random_documents_against_cjson(void **state)
{
    static char text[1 << 18];
    struct test_random random = test_random_begin("json_value");
    (void)state;
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_the_end_behind_many_numbers),
        cmocka_unit_test(test_members_and_walks),
        cmocka_unit_test(test_texts_lose_their_escapes),
        cmocka_unit_test(test_random_documents_against_cjson),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
