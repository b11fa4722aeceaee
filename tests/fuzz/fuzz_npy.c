/*
 * Arbitrary NumPy arrays and archives of them: refused with a one-line message that names the file, or rows with one
 * number per column, each with a name and a text that reads back as the same number.
 */
#include "tests/fuzz/fuzz.h"

#include <math.h>

#include "worker/data/table/npy.h"
#include "worker/data/table/rows.h"

/* An archive in room of twice its size, what deflate unpacks it to, and the widest array without rows. */
FUZZ_MEMORY(1032 + 8, 8 * 1024 * 1024)

static void check_row(const struct rows *rows, const struct row *row)
{
    char buffer[ROW_NUMBER_TEXT];
    size_t size;
    double again;
    assert(row->numbers && row->count == rows_columns(rows));
    for (int i = 0; i < row->count && i < 4; i++) {
        const char *text = row_text(row, i, buffer, &size);
        assert(rows_column_name(rows, i)[0] != '\0');
        assert(isnan(row->numbers[i]) || isinf(row->numbers[i]) ||
               (number_parse(text, size, &again) == NUMBER_FINITE && again == row->numbers[i])); /* NOLINT: exactly */
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    enum { MOST_ROWS = 1000 };
    struct error error = {""};
    struct rows *rows;
    struct row row;
    enum csv_status status = CSV_ROW;
    if (!npy_is_known(bytes, size)) {
        return 0; /* text: tests/fuzz/fuzz_table.c */
    }
    if (!rows_open_bytes(&rows, "array", bytes, size, NULL, NULL, &error)) {
        check_beginning(&error, "array: ");
        return 0;
    }
    assert(rows_columns(rows) >= 1 && rows_columns(rows) <= NPY_MAX_COLUMNS);
    for (int i = 0; i < MOST_ROWS && (status = rows_next(rows, &row, &error)) == CSV_ROW; i++) {
        check_row(rows, &row);
    }
    if (status == CSV_FAILED || status == CSV_BAD) {
        check_beginning(&error, "array: ");
    }
    rows_close(rows);
    return 0;
}
