/* A checkpoint's preprocessing, possibly written by another program. */
#include "tests/check.h"
#include "worker/data/table/schema.h"

#include <string.h>

#define FEATURE                                                                                                        \
    "{\"name\":\"a\",\"role\":\"feature\",\"kind\":\"number\",\"may_miss\":true,\"center\":0,\"scale\":1,\"fill\":0}"
#define TARGET                                                                                                         \
    "{\"name\":\"y\",\"role\":\"target\",\"kind\":\"number\",\"may_miss\":true,\"center\":1,\"scale\":2,\"fill\":0}"
#define CLASS(names) "{\"name\":\"y\",\"role\":\"target\",\"kind\":\"category\",\"categories\":[" names "]}"

/* What is understood is written again unchanged: a row without a target is not trained on. */
TEST(only_features_may_miss)
{
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

TEST(damaged)
{
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

/* --- bins --- */

#define ENCODED(task, encoding, edges)                                                                                 \
    "{\"version\":1,\"task\":\"" task "\",\"encoding\":\"" encoding "\",\"columns\":["                                 \
    "{\"name\":\"a\",\"role\":\"feature\",\"kind\":\"number\",\"may_miss\":true,\"center\":0,\"scale\":1,\"fill\":0"   \
    ",\"edges\":" edges "}," FEATURE_B "," TARGET "]}"
#define FEATURE_B                                                                                                      \
    "{\"name\":\"b\",\"role\":\"feature\",\"kind\":\"number\",\"may_miss\":false,\"center\":0,\"scale\":1,\"fill\":0"  \
    ",\"edges\":[0.10000000000000001,7]}"

TEST(bins_are_inputs)
{
    struct schema schema, again, both, other;
    struct error error = {""};
    assert_true(schema_parse(&schema, ENCODED("numbers", "ple", "[-1,0.5,2,1e30]"), &error));
    assert_int_equal(schema.inputs, 3 + 1 + 1); /* and the place of a's missing values */
    assert_int_equal(schema.dense, 4);
    assert_true(schema.piecewise == 2 && schema.bins[0] == 3 && schema.bins[1] == 1);
    assert_true(schema_parse(&again, schema.text, &error) && schema_same(&schema, &again, &error));
    assert_string_equal(schema.text, again.text);
    assert_true(schema_parse(&both, ENCODED("numbers", "both", "[-1,0.5,2,1e30]"), &error));
    assert_true(both.inputs == 3 && both.dense == 2 && both.piecewise == 2);
    assert_false(schema_same(&schema, &both, &error));
    assert_string_equal(error.text, "data.encoding is ple there and both here");
    assert_true(schema_parse(&other, ENCODED("numbers", "ple", "[-1,0.5,3,1e30]"), &error));
    assert_false(schema_same(&schema, &other, &error));
    assert_string_equal(error.text, "column a has 3 bins there and 3 here, or other edges of them");
    schema_free(&schema);
    schema_free(&again);
    schema_free(&both);
    schema_free(&other);
}

TEST(bins_that_make_no_sense)
{
    static const char *const texts[] = {ENCODED("numbers", "ple", "[1]"),       ENCODED("numbers", "ple", "[]"),
                                        ENCODED("numbers", "ple", "[1,1]"),     ENCODED("numbers", "ple", "[2,1]"),
                                        ENCODED("numbers", "ple", "[0,1e300]"), ENCODED("numbers", "ple", "[0,\"1\"]"),
                                        ENCODED("numbers", "ple", "7"),         ENCODED("numbers", "auto", "[0,1]"),
                                        ENCODED("numbers", "often", "[0,1]"),   ENCODED("inputs", "ple", "[0,1]")};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct schema schema;
        struct error error = {""};
        assert_false(schema_parse(&schema, texts[i], &error));
        assert_true(error.text[0] != '\0' && schema.count == 0);
    }
}

int main(void)
{
    return check_run(NULL, NULL);
}
