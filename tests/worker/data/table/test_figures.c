/* Merged surveys of parts equal the survey of the whole; and no text breaks anything. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"
#include "tests/random.h"
#include "worker/data/table/survey_schema.h"

enum { ROWS = 400, PARTS = 5, ROW_TEXT = 96 };

static char nothing[] = "", class_name[] = "class", *target = class_name;
static const struct config config = {.data = {.target = {.items = &target, .count = 1},
                                              .weight = nothing,
                                              .group = nothing,
                                              .time = nothing,
                                              .category_min = 2}};

static const char header[] = "number,flag,colour,class\n";

static void make_row(char text[ROW_TEXT], struct test_random *random)
{
    static const char *const colours[] = {"red", "green", "blue", "rare one", ""};
    static const char *const classes[] = {"yes", "no", "maybe"};
    const bool is_missing = test_random_below(random, 9) == 0;
    char number[32] = "";
    if (!is_missing) {
        snprintf(number, sizeof number, "%.9g", 1e6 + 100 * (double)test_random_float(random));
    }
    const int colour = test_random_below(random, 40);
    snprintf(text, ROW_TEXT, "%s,%d,%s,%s\n", number, test_random_below(random, 2),
             colours[colour < 36   ? colour % 3
                     : colour < 37 ? 3
                                   : 4],
             classes[test_random_below(random, 3)]);
}

static void survey_text(struct survey *survey, const char *text)
{
    struct rows *rows;
    struct row row;
    struct error error;
    bool again = true;
    assert_true(
        rows_open_bytes(&rows, "test", text, strlen(text), &(struct config_data){.header = HEADER_YES}, NULL, &error));
    assert_true(survey_begin(survey, rows, &config, false, &error));
    while (rows_next(rows, &row, &error) == CSV_ROW) {
        assert_true(survey_add(survey, rows, &row, &error));
    }
    assert_true(survey_settle(survey, false, &again, &error));
    assert_false(again);
    rows_close(rows);
}

static void assert_close(double a, double b)
{
    assert_true(fabs(a - b) <= 1e-9 * fmax(fabs(a), fabs(b)));
}

static void check_same(const struct schema *merged, const struct schema *whole)
{
    assert_int_equal(merged->count, whole->count);
    assert_int_equal(merged->inputs, whole->inputs);
    assert_int_equal(merged->classes, whole->classes);
    for (int i = 0; i < whole->count; i++) {
        const struct schema_column *one = &merged->columns[i], *other = &whole->columns[i];
        assert_string_equal(one->name, other->name);
        assert_int_equal(one->may_miss, other->may_miss);
        assert_close(one->center, other->center);
        assert_close(one->scale, other->scale);
        assert_close(one->fill, other->fill);
        assert_int_equal(one->categories.count, other->categories.count);
        for (int k = 0; k < other->categories.count; k++) {
            assert_string_equal(dictionary_text(&one->categories, k), dictionary_text(&other->categories, k));
        }
    }
}

/* Rows of the whole and of random parts; the first part has at least two of everything. */
static void run_split(struct test_random *random)
{
    static char whole[ROWS * ROW_TEXT + 64], parts[PARTS][ROWS * ROW_TEXT + 64];
    struct survey all, merged, other;
    struct schema schemas[2];
    struct error error;
    strcpy(whole, header);
    for (int i = 0; i < PARTS; i++) {
        strcpy(parts[i], header);
    }
    for (int i = 0; i < ROWS; i++) {
        char row[ROW_TEXT];
        make_row(row, random);
        strcat(whole, row);
        strcat(parts[i < 100 ? 0 : 1 + test_random_below(random, PARTS - 1)], row);
    }
    survey_text(&all, whole);
    survey_text(&merged, parts[0]);
    for (int i = 1; i < PARTS; i++) {
        survey_text(&other, parts[i]);
        char *text = figures_text(&other);
        assert_non_null(text);
        if (figures_merge(&merged, text, &error) != FIGURES_MERGED) {
            fail_msg("%s", error.text);
        }
        free(text);
        survey_free(&other);
    }
    assert_int_equal(merged.rows, all.rows);
    assert_true(survey_schema(&all, &config, "test", &schemas[0], &error));
    assert_true(survey_schema(&merged, &config, "test", &schemas[1], &error));
    check_same(&schemas[1], &schemas[0]);
    for (int i = 0; i < 2; i++) {
        schema_free(&schemas[i]);
    }
    survey_free(&all);
    survey_free(&merged);
}

TEST(parts_make_the_whole)
{
    struct test_random random = test_random_begin("figures");
    for (int i = 0; i < 30; i++) {
        run_split(&random);
    }
}

static void try_merge(const char *text, const char *words)
{
    struct survey survey;
    struct error error;
    survey_text(&survey, "number,flag,colour,class\n1,0,red,yes\n2,1,blue,no\n");
    char *before = figures_text(&survey);
    assert_int_equal(figures_merge(&survey, text, &error), FIGURES_REFUSED);
    assert_non_null(strstr(error.text, words));
    char *after = figures_text(&survey);
    assert_string_equal(before, after);
    free(before);
    free(after);
    survey_free(&survey);
}

TEST(what_does_not_fit_is_named)
{
    struct survey other;
    survey_text(&other, "number,flag,hue,class\n1,0,red,yes\n2,1,blue,no\n");
    char *text = figures_text(&other);
    try_merge(text, "column colour is hue there");
    free(text);
    survey_free(&other);
    survey_text(&other, "number,flag,colour,class\n1,0,7,yes\n2,1,8,no\n");
    text = figures_text(&other);
    try_merge(text, "column colour has texts on some workers");
    free(text);
    survey_free(&other);
}

/* Single bytes changed: whatever results is a valid answer. */
TEST(damage_is_an_error)
{
    static const char *const damaged[] = {"",
                                          "{}",
                                          "[]",
                                          "{\"rows\":-1}",
                                          "{\"rows\":1e300}",
                                          "{\"rows\":3,\"columns\":7}",
                                          "{\"rows\":3,\"columns\":[{}]}"};
    struct test_random random = test_random_begin("damage");
    struct survey survey;
    struct error error;
    for (size_t i = 0; i < sizeof damaged / sizeof damaged[0]; i++) {
        survey_text(&survey, "number,flag,colour,class\n1,0,red,yes\n2,1,blue,no\n");
        assert_int_equal(figures_merge(&survey, damaged[i], &error), FIGURES_REFUSED);
        survey_free(&survey);
    }
    for (int i = 0; i < 2000; i++) {
        survey_text(&survey, "number,flag,colour,class\n1,0,red,yes\n2,1,blue,no\n");
        char *text = figures_text(&survey);
        text[test_random_below(&random, (int)strlen(text))] = (char)(1 + test_random_below(&random, 127));
        figures_merge(&survey, text, &error);
        free(text);
        survey_free(&survey);
    }
}

static size_t held; /* bytes that were allocated, whether freed or not */

static void on_malloc(const volatile void *memory, size_t size)
{
    held += size;
}

static void on_free(const volatile void *memory)
{
}

int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void *, size_t),
                                              void (*on_free)(const volatile void *));

/* A text of a million values takes no more than room for one copy of it: no tree is built. */
TEST(a_long_text_takes_no_tree)
{
    enum { VALUES = 1 << 20 };
    static const char head[] = "{\"rows\":3,\"columns\":[0";
    struct survey survey;
    struct error error;
    char *text = calloc(1, sizeof head + 2 * VALUES + 3);
    strcpy(text, head);
    for (size_t i = 0, at = strlen(head); i < VALUES; i++, at += 2) {
        text[at] = ',';
        text[at + 1] = '0';
    }
    strcat(text + 2 * VALUES, "]}");
    survey_text(&survey, "number,flag,colour,class\n1,0,red,yes\n2,1,blue,no\n");
    assert_int_not_equal(__sanitizer_install_malloc_and_free_hooks(on_malloc, on_free), 0);
    held = 0;
    assert_int_equal(figures_merge(&survey, text, &error), FIGURES_REFUSED);
    const size_t taken = held;
    assert_true(taken < strlen(text) + 4096);
    survey_free(&survey);
    free(text);
}

/* Each number is valid, and yet together they have no deviation. */
TEST(numbers_that_are_too_far_apart)
{
    static const char format[] =
        "{\"rows\":6,\"columns\":[{\"name\":\"number\",\"missing\":0,\"texts\":0,\"numbers\":6,"
        "\"notation\":\"plain\",\"dates\":0,\"mean\":%s,\"squares\":%s,\"minimum\":-2,\"maximum\":2,\"values\":[],"
        "\"counts\":[]}]}";
    static const char *const figures[][2] = {{"1.7e308", "0"}, {"-1e200", "1"}, {"0", "1e999"}, {"1e999", "0"}};
    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++) {
        char text[512];
        snprintf(text, sizeof text, format, figures[i][0], figures[i][1]);
        try_merge(text, "column number: its figures are damaged, or too many for this machine");
    }
}

int main(void)
{
    return check_run(NULL, NULL);
}
