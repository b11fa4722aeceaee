/* A checkpoint's preprocessing, possibly written by another program. */
#include "worker/data/table/schema.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define FEATURE                                                                                                        \
    "{\"name\":\"a\",\"role\":\"feature\",\"kind\":\"number\",\"may_miss\":true,\"center\":0,\"scale\":1,\"fill\":0}"
#define TARGET                                                                                                         \
    "{\"name\":\"y\",\"role\":\"target\",\"kind\":\"number\",\"may_miss\":true,\"center\":1,\"scale\":2,\"fill\":0}"
#define CLASS(names) "{\"name\":\"y\",\"role\":\"target\",\"kind\":\"category\",\"categories\":[" names "]}"

/* What is understood is written again unchanged: a row without a target is not trained on. */
static void only_features_may_miss(void **state)
{
    (void)state;
    static const char text[] = "{\"version\":1,\"task\":\"numbers\",\"columns\":[" FEATURE "," TARGET "]}";
    struct schema schema, again;
    struct error error;
    assert_true(schema_parse(&schema, text, &error));
    assert_true(schema.columns[0].may_miss);
    assert_false(schema.columns[1].may_miss);
    assert_true(schema_parse(&again, schema.text, &error));
    assert_true(schema_same(&schema, &again, &error));
    assert_string_equal(schema.text, again.text);
    schema_free(&again);
    schema_free(&schema);
}

static void damaged(void **state)
{
    (void)state;
    static const char *const texts[] = {"",
                                        "{}",
                                        "{\"version\":1}",
                                        "{\"version\":1,\"task\":\"numbers\",\"columns\":[]}",
                                        "{\"version\":1,\"task\":\"numbers\",\"columns\":[" FEATURE "]}",
                                        "{\"version\":1,\"task\":\"class\",\"columns\":[" FEATURE "," TARGET "]}",
                                        "{\"version\":1,\"task\":\"class\",\"columns\":[" FEATURE "," CLASS("") "]}",
                                        "{\"version\":1,\"task\":\"flags\",\"columns\":[" FEATURE
                                        "," CLASS("\"no\"") "]}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct schema schema;
        struct error error = {""};
        assert_false(schema_parse(&schema, texts[i], &error));
        assert_true(error.text[0] != '\0' && schema.count == 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(only_features_may_miss), cmocka_unit_test(damaged)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
