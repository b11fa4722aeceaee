/* Plain rows processed side by side give the same bits as each alone: hashes, surveys, and the model's inputs. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"
#include "tests/random.h"
#include "worker/data/table/encode.h"
#include "worker/data/table/split.h"
#include "worker/data/table/survey.h"

enum { MOST_ROWS = 1500, MOST_COLUMNS = 11, TIMES = 60, HEADER = 128 };

static char nothing[] = "", last_name[] = "-1", middle_name[] = "1", *target = last_name, *ignored = middle_name;

/* --- hashes --- */

TEST(hashes_side_by_side)
{
    uint8_t bytes[9 * 40];
    uint64_t hashes[9];
    struct test_random random = test_random_begin("test_plain");
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (uint8_t)test_random_below(&random, 256);
    }
    for (size_t size = 0; size <= 40; size++) {
        for (int count = 0; count <= 9; count++) {
            dictionary_hashes(bytes, size, count, hashes);
            for (int i = 0; i < count; i++) {
                assert_true(hashes[i] == dictionary_hash(bytes + (size_t)i * size, size));
            }
        }
    }
}

/* Which rows are held out must never change. */
TEST(hashes_are_what_they_were)
{
    static const double rows[4][3] = {{0, 1, 2}, {3, 4, 5}, {-1.5, 1e30, 7}, {0.1, 0.2, 0.3}};
    uint64_t hashes[4];
    dictionary_hashes(rows, sizeof rows[0], 4, hashes);
    assert_true(hashes[0] == 0x71C6B6550AE45FC3u && hashes[1] == 0x1A6165E48F5CDEB1u);
    assert_true(hashes[2] == 0x2EDA004372B75B92u && hashes[3] == 0x6147A7DACD00A3B3u);
}

/* --- tables --- */

struct table {
    uint8_t file[HEADER + sizeof(double) * MOST_ROWS * MOST_COLUMNS];
    size_t size;
    int rows, columns;
};

static double make_number(struct test_random *random, int column, int columns, const double *row)
{
    static const double awkward[] = {(double)NAN, (double)NAN, 1.5e38, -3e38, 3.3e38, 0, -0.0, 1e-300};
    const bool is_last = column == columns - 1;
    if (!is_last && test_random_below(random, 400) == 0) {
        return awkward[test_random_below(random, (int)(sizeof awkward / sizeof awkward[0]))];
    }
    switch (column % 4) {
    case 0:
        return is_last ? test_random_below(random, 3) : 1e6 + (double)test_random_float(random);
    case 1:
        return test_random_below(random, 5) - 2;
    case 2:
        return column > 0 && !is_last ? 7 : test_random_below(random, 2);
    default:
        return is_last ? row[0] : (double)test_random_float(random);
    }
}

/* A file as numpy writes it. */
static void make_table(struct table *table, struct test_random *random)
{
    table->rows = 1 + test_random_below(random, MOST_ROWS);
    table->columns = 2 + test_random_below(random, MOST_COLUMNS - 1);
    char text[HEADER - 9];
    snprintf(text, sizeof text, "{'descr': '<f8', 'fortran_order': False, 'shape': (%d, %d), }", table->rows,
             table->columns);
    memset(table->file, ' ', HEADER);
    memcpy(table->file, "\x93NUMPY\x01\x00\x76\x00", 10);
    memcpy(table->file + 10, text, strlen(text));
    table->file[HEADER - 1] = '\n';
    uint8_t *to = table->file + HEADER;
    for (int i = 0; i < table->rows; i++) {
        double row[MOST_COLUMNS];
        for (int j = 0; j < table->columns; j++) {
            row[j] = make_number(random, j, table->columns, row);
        }
        memcpy(to, row, (size_t)table->columns * sizeof *row);
        to += (size_t)table->columns * sizeof *row;
    }
    table->size = (size_t)(to - table->file);
}

static struct rows *open_table(const struct table *table)
{
    struct rows *rows;
    struct error error;
    if (!rows_open_bytes(&rows, "test", table->file, table->size, NULL, NULL, &error)) {
        fail_msg("%s", error.text);
    }
    return rows;
}

/* --- surveys --- */

/* About every third row is left out, as a test row would be. */
static bool counts(uint64_t line)
{
    return line * 2654435761u >> 8 & 3;
}

static void survey_some(struct survey *survey, const struct rows *rows, const struct row *row, int *taken)
{
    int places[ROWS_MOST_PLAIN], count = 0;
    struct error error;
    *taken = row->plain > 0 ? row->plain : 1;
    for (int i = 0; i < row->plain; i++) {
        if (counts(row->line + (uint64_t)i)) {
            places[count++] = i;
        }
    }
    assert_true(row->plain > 0 ? survey_add_plain(survey, rows, row, places, count, &error)
                               : !counts(row->line) || survey_add(survey, rows, row, &error));
}

static void run_survey(struct survey *survey, const struct table *table, const struct config *config, bool counts_all,
                       bool side_by_side)
{
    struct rows *rows = open_table(table);
    struct row row;
    struct error error;
    assert_true(survey_begin(survey, rows, config, counts_all, &error));
    while (rows_next(rows, &row, &error) == CSV_ROW) {
        int taken = 1;
        if (side_by_side) {
            survey_some(survey, rows, &row, &taken);
        } else if (counts(row.line)) {
            assert_true(survey_add(survey, rows, &row, &error));
        }
        rows_skip(rows, taken - 1);
    }
    for (int i = 0; i < survey->count; i++) {
        moments_settle(&survey->columns[i].numbers);
    }
    rows_close(rows);
}

static void check_column(const struct survey_column *one, const struct survey_column *other)
{
    assert_true(one->missing == other->missing && one->texts == other->texts && one->infinite == other->infinite);
    assert_true(one->is_integer == other->is_integer && one->is_collected == other->is_collected);
    assert_true(one->has_too_many == other->has_too_many && one->bytes == other->bytes && one->same == other->same);
    assert_memory_equal(&one->minimum, &other->minimum, sizeof one->minimum);
    assert_memory_equal(&one->maximum, &other->maximum, sizeof one->maximum);
    assert_true(one->numbers.count == other->numbers.count);
    assert_memory_equal(&one->numbers.mean, &other->numbers.mean, sizeof one->numbers.mean);
    assert_memory_equal(&one->numbers.squares, &other->numbers.squares, sizeof one->numbers.squares);
    assert_int_equal(one->values.count, other->values.count);
    for (int i = 0; i < one->values.count; i++) {
        assert_string_equal(dictionary_text(&one->values, i), dictionary_text(&other->values, i));
        assert_true(one->values.entries[i].count == other->values.entries[i].count);
    }
}

static void check_surveys(const struct survey *one, const struct survey *other)
{
    assert_int_equal(one->count, other->count);
    assert_true(one->rows == other->rows && one->bytes == other->bytes);
    for (int i = 0; i < one->count; i++) {
        check_column(&one->columns[i], &other->columns[i]);
    }
    assert_int_equal(one->sample.count, other->sample.count);
    if (one->sample.count > 0) {
        assert_memory_equal(one->sample.values, other->sample.values,
                            (size_t)one->sample.count * (size_t)one->count * sizeof(double));
    }
}

/* --- encoding --- */

static struct schema make_schema(const struct table *table, bool reversed, enum table_encoding encoding)
{
    static const double edges[] = {-1.5, -0.25, 0, 0.5, 3};
    struct schema schema = {.encoding = encoding};
    struct error error;
    for (int i = 0; i < table->columns; i++) {
        char name[16];
        const int column = reversed && i < table->columns - 1 ? table->columns - 2 - i : i;
        snprintf(name, sizeof name, "%d", column);
        struct schema_column *added =
            schema_add(&schema, name, i < table->columns - 1 ? SCHEMA_FEATURE : SCHEMA_TARGET, SCHEMA_NUMBER);
        assert_non_null(added);
        added->may_miss = column % 3 == 1 && i < table->columns - 1;
        added->center = 0.3 * column;
        added->scale = column % 5 == 0 ? 1e-36 : 0.7 + column; /* some end at the largest float */
        added->fill = column;
        if (column % 2 == 0) { /* which some of the numbers are beyond */
            added->low = -0.5 * column - 1;
            added->high = 1.5 * column + 1;
        }
        if (column % 4 != 3 && encoding != ENCODING_NONE && i < table->columns - 1) { /* others have no bins */
            assert_true(schema_set_edges(added, edges, 2 + column % 4));
        }
    }
    schema.task = TASK_NUMBERS;
    if (!schema_finish(&schema, &error)) {
        fail_msg("%s", error.text);
    }
    return schema;
}

static void check_encoding(const struct table *table, bool reversed, enum table_encoding encoding)
{
    struct schema schema = make_schema(table, reversed, encoding);
    struct rows *rows = open_table(table);
    struct encoder encoder;
    struct examples examples;
    struct row row;
    struct error error, other;
    assert_true(encoder_begin(&encoder, &schema, rows, true, &error));
    assert_true(encoder_allocate(&examples, &schema, 2, true, &error));
    encoder.numbers.is_wide &= table->rows % 2 == 0; /* the loop for every processor, too */
    while (rows_next(rows, &row, &error) == CSV_ROW) {
        const bool done = encoder_add(&encoder, rows, &row, &examples, 0, &error);
        row.plain = 0;
        assert_true(encoder_add(&encoder, rows, &row, &examples, 1, &other) == done);
        if (!done) { /* its target is missing */
            assert_string_equal(error.text, other.text);
            continue;
        }
        assert_true(encoding != ENCODING_PLE || !examples.values);
        if (examples.values) {
            assert_memory_equal(examples.values, examples.values + examples.numbers,
                                (size_t)examples.numbers * sizeof *examples.values);
        }
        if (examples.positions) {
            assert_memory_equal(examples.positions, examples.positions + examples.piecewise,
                                (size_t)examples.piecewise * sizeof *examples.positions);
        }
        assert_memory_equal(&examples.target_values[0], &examples.target_values[1], sizeof *examples.target_values);
        if (examples.codes > 0) {
            assert_memory_equal(examples.places, examples.places + examples.codes,
                                (size_t)examples.codes * sizeof *examples.places);
        }
    }
    examples_free(&examples);
    encoder_end(&encoder);
    rows_close(rows);
    schema_free(&schema);
}

TEST(surveys_and_inputs_are_the_same)
{
    static struct table table;
    struct test_random random = test_random_begin("test_plain");
    for (int i = 0; i < TIMES; i++) {
        struct config config = {.data = {.target = {.items = &target, .count = 1},
                                         .weight = nothing,
                                         .group = nothing,
                                         .time = nothing,
                                         .scaling = i % 3 == 0 ? SCALING_ROBUST : SCALING_STANDARD}};
        struct survey alone, together;
        make_table(&table, &random);
        config.data.ignore = (struct string_list){.items = &ignored, .count = table.columns > 2 && i % 4 == 0};
        config.data.categorical = (struct string_list){.items = &ignored, .count = table.columns > 2 && i % 4 == 1};
        run_survey(&alone, &table, &config, i % 5 == 0, false);
        run_survey(&together, &table, &config, i % 5 == 0, true);
        check_surveys(&alone, &together);
        survey_free(&alone);
        survey_free(&together);
        check_encoding(&table, i % 2, ENCODING_NONE + i % 3);
    }
}

int main(void)
{
    return check_run(NULL, NULL);
}
