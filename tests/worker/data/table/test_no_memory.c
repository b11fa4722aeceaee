/*
 * Tables surveyed, read and described while one allocation after another fails: each failure is reported and leaks
 * nothing, and no result is ever wrong.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "tests/check.h"
#include "tests/net/loopback.h"
#include "tests/no_memory.h"
#include "worker/data/dataset.h"
#include "worker/data/table/survey_schema.h"
#include "worker/data/table/table.h"

enum { MOST_CALLS = 2000, TRAINED = 30, TESTED = 8 };

static struct config config;
static char folder[64];
static char *figures;        /* of the rows */
static struct schema schema; /* of the rows */

/* Each creates something and destroys it again; false: it failed. */
static bool try_survey(struct error *error)
{
    struct survey survey;
    const bool done = table_survey_train(&survey, &config, error);
    assert_true(!done || survey.rows == TRAINED);
    survey_free(&survey);
    return done;
}

static bool try_figures(struct error *error)
{
    struct survey survey;
    char *text = NULL;
    const bool done = table_survey_train(&survey, &config, error) &&
                      ((text = figures_text(&survey)) || error_set(error, "out of memory for figures")) &&
                      figures_merge(&survey, text, error) == FIGURES_MERGED;
    assert_true(!done || (strcmp(text, figures) == 0 && survey.rows == 2 * TRAINED));
    free(text);
    survey_free(&survey);
    return done;
}

static bool try_schema(struct error *error)
{
    struct schema read;
    if (!schema_parse(&read, schema.text, error)) {
        return false;
    }
    assert_string_equal(read.text, schema.text);
    schema_free(&read);
    return true;
}

/* As an owner of rows that stay where they are: by a given schema, or by its own. */
static bool read_with(bool is_given, struct error *error)
{
    struct dataset dataset = {.bytes = 0};
    struct examples test = {.count = 0};
    bool done = true;
    if (is_given) {
        dataset.schema = calloc(1, sizeof *dataset.schema);
        done = dataset.schema ? schema_parse(dataset.schema, schema.text, error)
                              : error_set(error, "out of memory for the columns");
    }
    done = done && dataset_load(&dataset, NULL, &config, error) &&
           dataset_load_test(&test, &config, dataset.schema, error);
    assert_true(!done || (dataset.train.count == TRAINED && test.count == TESTED));
    assert_true(!done || strcmp(dataset.schema->text, schema.text) == 0);
    examples_free(&test);
    dataset_free(&dataset);
    return done;
}

static bool try_own(struct error *error)
{
    return read_with(false, error);
}

static bool try_given(struct error *error)
{
    return read_with(true, error);
}

/* Never a wrong result. */
static bool try_kind(struct error *error)
{
    bool is_table;
    const bool done = dataset_is_table(&is_table, &config, error);
    assert_int_equal(is_table, done);
    return done;
}

static const struct {
    const char *name;
    bool (*make)(struct error *error);
} makers[] = {{"survey", try_survey}, {"figures", try_figures}, {"schema", try_schema},
              {"rows", try_own},      {"given", try_given},     {"kind", try_kind}};

static void one_allocation_fails(void **state)
{
    for (size_t which = 0; which < sizeof makers / sizeof *makers; which++) {
        int failures = 0, at = 1;
        for (; at < MOST_CALLS; at++) {
            struct error error = {""};
            no_memory_from(at, 1);
            const bool done = makers[which].make(&error);
            if (no_memory_end() < at) {
                assert_true(done);
                break;
            }
            failures += !done;
            if (!done && !strstr(error.text, "memory") && !strstr(error.text, "damaged")) {
                fail_msg("%s, allocation %d: %s", makers[which].name, at, error.text);
            }
        }
        if (failures == 0 || at == MOST_CALLS) {
            fail_msg("%s: %d failures in %d", makers[which].name, failures, at);
        }
    }
}

static void write_rows(const char *name, int count)
{
    FILE *file = fopen(loopback_file(folder, name), "w");
    assert_non_null(file);
    fprintf(file, "number,load,colour,class\n");
    for (int i = 0; i < count; i++) {
        fprintf(file, "%g,%s,c%d,%s\n", 0.5 * i, i % 7 == 3 ? "" : "1", i % 5, i % 2 == 0 ? "yes" : "no");
    }
    assert_int_equal(fclose(file), 0);
}

static int begin(void **state)
{
    struct error error;
    struct survey survey;
    loopback_make_folder(folder);
    write_rows("train.csv", TRAINED);
    write_rows("test.csv", TESTED);
    const struct config_setting settings[] = {{"layers", "9,2"},       {"data_dir", folder}, {"target", "class"},
                                              {"category_min", "1"},   {"memory_mb", "64"},  {"batch_size", "4"},
                                              {"validation_size", "0"}};
    if (!config_load(&config, NULL, settings, sizeof settings / sizeof *settings, &error) ||
        !table_survey_train(&survey, &config, &error) || !(figures = figures_text(&survey)) ||
        !survey_schema(&survey, &config, "the rows", &schema, &error)) {
        fail_msg("%s", error.text);
    }
    survey_free(&survey);
    return 0;
}

static int end(void **state)
{
    free(figures);
    schema_free(&schema);
    config_free(&config);
    loopback_remove_folder(folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_allocation_fails)};
    return cmocka_run_group_tests(tests, begin, end);
}
