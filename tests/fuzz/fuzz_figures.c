/*
 * Statistics that another worker reports of its own rows, merged into a survey of local rows: refused with a one-line
 * message, or the result is a schema that reads back unchanged, and statistics that can be merged in turn.
 */
#include "tests/fuzz/fuzz.h"

#include <math.h>

#include "base/config.h"
#include "worker/data/table/survey_schema.h"

static const char table[] = "number,flag,colour,class\n"
                            "1.5,0,red,yes\n-3e5,1,green,no\n,1,red,maybe\n7,0,,yes\n8,0,blue,no\n9,1,green,yes\n";

/* A value takes at least six bytes of the text, and less than 64 in a table that grows, and in its text again. */
/* The constant has room for two samples of rows, for quantiles (SAMPLE_BYTES in survey.c), with their numbers. */
FUZZ_MEMORY(64, 130 << 20)

static struct config config;

static void survey_table(struct survey *survey)
{
    struct rows *rows;
    struct row row;
    struct error error;
    bool again;
    if (!rows_open_bytes(&rows, "table", table, strlen(table), &(struct config_data){.header = HEADER_YES}, NULL,
                         &error) ||
        !survey_begin(survey, rows, &config, false, &error)) {
        abort();
    }
    while (rows_next(rows, &row, &error) == CSV_ROW) {
        assert(survey_add(survey, rows, &row, &error));
    }
    assert(survey_settle(survey, true, &again, &error) && !again);
    rows_close(rows);
}

static void check_schema(struct survey *survey)
{
    struct schema schema, copy;
    struct error error;
    if (survey_schema(survey, &config, "data.train", &schema, &error)) {
        assert(schema_parse(&copy, schema.text, &error) && schema_same(&schema, &copy, &error));
        for (int i = 0; i < schema.count; i++) {
            const struct schema_column *column = &schema.columns[i];
            assert(isfinite(column->center) && isfinite(column->scale) && isfinite(column->fill));
        }
        schema_free(&copy);
        schema_free(&schema);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct survey survey, other;
    struct error error = {""};
    if (!config.origins) {
        static const struct config_setting target = {"target", "class"};
        be_silent();
        if (!config_parse(&config, NULL, NULL, 0, &target, 1, &error)) {
            abort();
        }
    }
    char *text = text_of(bytes, size);
    survey_table(&survey);
    if (figures_merge(&survey, text, &error) == FIGURES_MERGED) {
        char *merged = figures_text(&survey);
        survey_table(&other);
        assert(merged);
        if (figures_merge(&other, merged, &error) != FIGURES_MERGED) {
            assert(strstr(error.text, "too many"));
        }
        free(merged);
        survey_free(&other);
        check_schema(&survey);
    } else {
        check_beginning(&error, "");
    }
    survey_free(&survey);
    free(text);
    return 0;
}
