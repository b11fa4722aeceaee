/*
 * Arbitrary tables: rows are delivered with as many fields as the first, each inside its row, or refused with a
 * one-line message that names the file. A survey's schema reads back the same, and accepts the same rows.
 */
#include "tests/fuzz/fuzz.h"

#include <math.h>

#include "base/config.h"
#include "worker/data/table/encode.h"
#include "worker/data/table/rows.h"
#include "worker/data/table/schema.h"
#include "worker/data/table/survey_schema.h"

/* A column of a byte has a field, a name, what the survey knows of it, and what its schema does, read twice. */
/* The constant has room for a sample of rows, for quantiles (SAMPLE_BYTES in survey.c), with their numbers. */
FUZZ_MEMORY(512, 68 * 1024 * 1024)

static void expect_named(const struct error *error)
{
    assert(strncmp(error->text, "table", 5) == 0 || strncmp(error->text, "data.", 5) == 0);
}

/* All good rows go through the encoder made from their own schema. */
static void encode(const uint8_t *bytes, size_t size, const struct schema *schema)
{
    struct error error = {""};
    struct rows *rows;
    struct row row;
    struct encoder encoder;
    struct examples examples;
    assert(rows_open_bytes(&rows, "table", bytes, size, NULL, NULL, &error));
    assert(encoder_begin(&encoder, schema, rows, true, &error));
    assert(encoder_allocate(&examples, schema, 1, true, &error));
    for (enum csv_status status; (status = rows_next(rows, &row, &error)) == CSV_ROW || status == CSV_BAD;) {
        if (status == CSV_ROW && encoder_add(&encoder, rows, &row, &examples, 0, &error)) {
            for (int i = 0; i < examples.numbers; i++) {
                assert(isfinite(examples.values[i]));
            }
            for (int i = 0; i < examples.codes; i++) {
                assert(examples.places[i] == -1 ||
                       (examples.places[i] >= 0 && examples.places[i] < examples.inputs - examples.numbers));
            }
        }
    }
    examples_free(&examples);
    encoder_end(&encoder);
    rows_close(rows);
}

static bool survey_rows(struct survey *survey, struct rows *rows, struct error *error)
{
    struct row row;
    for (enum csv_status status; (status = rows_next(rows, &row, error)) != CSV_END;) {
        if (status == CSV_FAILED) {
            return false;
        }
        if (status == CSV_ROW) {
            assert(row.count == rows_columns(rows));
            if (survey_accepts(survey, rows, &row, error)) {
                assert(survey_add(survey, rows, &row, error));
            }
        }
    }
    bool again;
    return survey_settle(survey, true, &again, error) && !again;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static struct config config;
    struct error error = {""};
    struct rows *rows;
    struct survey survey;
    struct schema schema, copy;
    if (!config.origins) {
        const struct config_setting target = {"target", "-1"};
        assert(config_parse(&config, NULL, NULL, 0, &target, 1, &error));
    }
    if (!rows_open_bytes(&rows, "table", bytes, size, NULL, NULL, &error)) {
        expect_named(&error);
        return 0;
    }
    if (survey_begin(&survey, rows, &config, false, &error) && survey_rows(&survey, rows, &error) &&
        survey_schema(&survey, &config, "table", &schema, &error)) {
        assert(schema_parse(&copy, schema.text, &error) && strcmp(copy.text, schema.text) == 0);
        assert(schema_same(&schema, &copy, &error));
        encode(bytes, size, &copy);
        schema_free(&copy);
        schema_free(&schema);
    } else if (error.text[0] != '\0') {
        expect_named(&error);
    }
    survey_free(&survey);
    rows_close(rows);
    return 0;
}
