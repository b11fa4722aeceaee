/* Rows of each format, and their columns' names. */
#include "worker/data/table/rows.h"

#include <assert.h>
#include <ctype.h>
#include <fnmatch.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/config.h"
#include "base/config/keys.h"
#include "base/error.h"
#include "base/text/text.h"
#include "worker/data/stream.h"
#include "worker/data/table/csv.h"
#include "worker/data/table/dictionary.h"
#include "worker/data/table/notation.h"
#include "worker/data/table/npy.h"
#include "worker/data/table/number.h"
#include "worker/data/table/records.h"
#include "worker/data/table/timestamp.h"

enum { HEAD = SIGNATURE_HEAD };
enum { TOTAL_TEXT = 32, ROWS_ABOVE = 3 /* at least, to be summed up by one below */ };
_Static_assert((int)HEAD >= (int)RECORDS_HEAD, "the head is enough for all formats");
_Static_assert((int)HEAD >= (int)NPY_HEAD, "the head is enough for all formats");
_Static_assert((int)ROWS_MOST_PLAIN == (int)NPY_MOST_PLAIN, "as many as the reader gives");

/* --- the row of names --- */

/*
 * Where a CSV file's column names stand, and what stands around them: titles, comments, units. The row of names is the
 * one with a name that the config or the model knows. Otherwise each column votes: a text above numbers is a name, a
 * number above numbers is not; and if all is text, the first row has the names.
 */

enum { HEADER_NOTE = 200, HEADER_LINE = 60 };

struct csv_header {
    int at;                 /* of the rows that csv_look gives: the one with the names; -1: there is none */
    int data;               /* the first row of data */
    int columns;            /* of a row of data */
    int skipped;            /* fields of the row of names before the first name */
    bool lacks_first;       /* R: the first column, of row names, has no name */
    bool has_comments;      /* the file begins with them */
    int most_empty;         /* empty fields of any of the first rows of data */
    char line[HEADER_LINE]; /* the beginning of the row of names, or of the first row */
    char note[HEADER_NOTE]; /* what is left out: "line 1 (before the names)"; "": nothing */
};

enum { MOST_ROWS = 40, MOST_UNITS = 4 };

/* The first rows, of which only the shape is kept. */
struct shapes {
    struct csv_reader *csv;
    int count;
    int fields[MOST_ROWS];
    uint64_t lines[MOST_ROWS];
    bool is_comment[MOST_ROWS];
    int usual; /* fields of most rows */
    int first; /* the first row that is no comment; count: there is none */
};

/* Looks at the row with that index. */
static bool header_look(struct csv_reader *csv, int index, struct csv_row *row)
{
    struct error ignored;
    csv_rewind(csv);
    for (int i = 0; i <= index; i++) {
        if (csv_look(csv, row, &ignored) != CSV_ROW) {
            return false;
        }
    }
    return true;
}

/* A name without blanks and a comment's sign. */
static const char *header_name(const struct csv_field *field, size_t *size)
{
    const char *text = field->text;
    *size = field->size;
    if (field->column == 1 && *size > 0 && *text == '#') {
        text++;
        (*size)--;
    }
    return csv_trim(text, size);
}

/* A bad row ends it, and is reported when it is read. False if the file can't be read. */
static bool find_shapes(struct shapes *shapes, struct csv_reader *csv, struct error *error)
{
    struct csv_row row;
    enum csv_status status = CSV_ROW;
    int most = 0;
    *shapes = (struct shapes){.csv = csv};
    csv_rewind(csv);
    while (shapes->count < MOST_ROWS && (status = csv_look(csv, &row, error)) == CSV_ROW) {
        shapes->fields[shapes->count] = row.count;
        shapes->lines[shapes->count] = row.line;
        shapes->is_comment[shapes->count++] =
            row.raw_size > 0 && row.raw[0] == '#' && !number_is_mark(row.fields[0].text, row.fields[0].size); /* #N/A */
    }
    if (status == CSV_FAILED) {
        return false;
    }
    while (shapes->first < shapes->count && shapes->is_comment[shapes->first]) {
        shapes->first++;
    }
    if (shapes->first == shapes->count) { /* a file of comments has names that begin with # */
        shapes->first = 0;
        memset(shapes->is_comment, 0, sizeof shapes->is_comment);
    }
    for (int i = shapes->first; i < shapes->count; i++) {
        int alike = 0;
        for (int j = shapes->first; j < shapes->count; j++) {
            alike += shapes->fields[i] == shapes->fields[j];
        }
        if (alike > most) {
            most = alike;
            shapes->usual = shapes->fields[i];
        }
    }
    return true;
}

/* --- by name --- */

static bool is_integer(const char *name)
{
    name += *name == '-';
    for (; isdigit((unsigned char)*name); name++) {
    }
    return *name == '\0';
}

static bool is_in(const struct string_list *names, const char *text, size_t size)
{
    for (int i = 0; names && i < names->count; i++) {
        if (!is_integer(names->items[i]) && strlen(names->items[i]) == size &&
            memcmp(names->items[i], text, size) == 0) {
            return true;
        }
    }
    return false;
}

enum cell_kind { MISSING, NUMBER, TEXT };

static enum cell_kind kind_of(const struct csv_field *field)
{
    double number;
    struct notation_clues ignored = {.points = 0};
    const enum number_kind kind = number_parse(field->text, field->size, &number);
    if (kind == NUMBER_MISSING) {
        return MISSING;
    }
    return kind != NUMBER_TEXT || (notation_look(&ignored, field->text, field->size) && ignored.words == 0) ||
                   timestamp_orders(field->text, field->size) != 0
               ? NUMBER
               : TEXT;
}

/* The row with one of the names; -1: none has. Behind the first row it must have no number. */
static int find_named(const struct shapes *shapes, const struct string_list *names)
{
    struct csv_row row;
    for (int i = 0; names && names->count > 0 && i < shapes->count; i++) {
        bool has_name = false, has_number = false;
        if (!header_look(shapes->csv, i, &row)) {
            break;
        }
        for (int j = 0; j < row.count; j++) {
            size_t size;
            const char *name = header_name(&row.fields[j], &size);
            has_name |= is_in(names, name, size);
            has_number |= i > shapes->first && kind_of(&row.fields[j]) == NUMBER;
        }
        if (has_name && !has_number) {
            return i;
        }
    }
    return -1;
}

/* --- by kind --- */

struct column_tally {
    int numbers, texts;
    uint64_t hash; /* of the text in a row that may hold units */
    enum cell_kind top;
};

static bool holds_numbers(const struct column_tally *tally)
{
    return tally->numbers > tally->texts;
}

/* What the columns hold below a row: in the second half, where there are no units. */
static bool count_below(const struct shapes *shapes, int top, struct column_tally *tallies, int columns)
{
    struct csv_row row;
    struct error ignored;
    if (!header_look(shapes->csv, top, &row)) {
        return false;
    }
    for (int i = 0; i < columns; i++) {
        tallies[i] = (struct column_tally){.top = i < row.count ? kind_of(&row.fields[i]) : MISSING};
    }
    const int below = shapes->count - top - 1;
    for (int i = 0; i < below && csv_look(shapes->csv, &row, &ignored) == CSV_ROW; i++) {
        for (int j = 0; i >= below / 2 && j < columns && j < row.count; j++) {
            const enum cell_kind kind = kind_of(&row.fields[j]);
            tallies[j].numbers += kind == NUMBER;
            tallies[j].texts += kind == TEXT;
        }
    }
    return true;
}

static bool is_header(const struct column_tally *tallies, int columns)
{
    int names = 0, values = 0;
    bool all_named = true;
    for (int i = 0; i < columns; i++) {
        const bool is_nameless = tallies[i].top == MISSING && columns > 1 && i == 0; /* pandas' index */
        all_named &= tallies[i].top == TEXT || is_nameless;
        names += holds_numbers(&tallies[i]) && tallies[i].top == TEXT;
        values += holds_numbers(&tallies[i]) && tallies[i].top == NUMBER;
    }
    return names > values || (values == 0 && all_named);
}

/* The first row of as many fields as most; a logger's own first line is its title. */
static int first_of_table(const struct shapes *shapes)
{
    struct csv_row row;
    int alike = 0;
    for (int i = shapes->first; i < shapes->count; i++) {
        alike += shapes->fields[i] == shapes->usual;
    }
    const bool is_logger = header_look(shapes->csv, shapes->first, &row) && row.fields[0].size == 4 &&
                           memcmp(row.fields[0].text, "TOA5", 4) == 0;
    if (is_logger && shapes->count > shapes->first + 1) {
        return shapes->first + 1;
    }
    for (int i = shapes->first; alike > 1 && i < shapes->count; i++) {
        const bool lacks_one =
            shapes->fields[i] == shapes->usual - 1 && shapes->usual > 2; /* row names, or a delimiter */
        if (shapes->fields[i] == shapes->usual || lacks_one) {
            return i;
        }
    }
    return shapes->first;
}

static int find_header(const struct shapes *shapes, const struct config_data *data, struct column_tally *tallies)
{
    static const char *const none = "inputs";
    const bool learns_inputs = data && data->target.count == 1 && strcmp(data->target.items[0], none) == 0;
    int at = data && !learns_inputs ? find_named(shapes, &data->target) : -1;
    at = at < 0 && data ? find_named(shapes, &data->features) : at;
    at = at < 0 && data ? find_named(shapes, data->known_names) : at;
    if (at >= 0 && data->header != HEADER_NO) {
        return at;
    }
    if (data && data->header != HEADER_AUTO) {
        return data->header == HEADER_YES ? shapes->first : -1;
    }
    at = first_of_table(shapes);
    if (count_below(shapes, at, tallies, shapes->fields[at]) && is_header(tallies, shapes->fields[at])) {
        return at;
    }
    /* numpy writes the names as a comment */
    const int last = shapes->first - 1;
    if (last >= 0 && shapes->fields[last] - csv_has_blanks(shapes->csv) == shapes->usual && shapes->usual > 1 &&
        count_below(shapes, last, tallies, shapes->fields[last]) && is_header(tallies, shapes->fields[last])) {
        return last;
    }
    return -1;
}

/* --- below the names --- */

/* Texts above numbers that no row repeats, and no number: units, or the kind of a mean. */
static bool is_of_units(const struct shapes *shapes, int index, struct column_tally *tallies, int columns)
{
    struct csv_row row;
    struct error ignored;
    bool is_above = false;
    if (!count_below(shapes, index, tallies, columns) || !header_look(shapes->csv, index, &row) ||
        row.count != columns) {
        return false;
    }
    for (int i = 0; i < columns; i++) {
        if (tallies[i].top == NUMBER) {
            return false;
        }
        is_above |= holds_numbers(&tallies[i]) && tallies[i].top == TEXT;
        tallies[i].hash = dictionary_hash(row.fields[i].text, row.fields[i].size);
    }
    while (is_above && csv_look(shapes->csv, &row, &ignored) == CSV_ROW) {
        for (int i = 0; i < columns && i < row.count; i++) {
            const bool is_same = dictionary_hash(row.fields[i].text, row.fields[i].size) == tallies[i].hash;
            if (is_same && !holds_numbers(&tallies[i]) && row.fields[i].size > 0) {
                return false;
            }
        }
        if (row.line > shapes->lines[shapes->count - 1]) {
            break;
        }
    }
    return is_above;
}

static int find_data(const struct shapes *shapes, int header, struct column_tally *tallies, int columns)
{
    int data = header + 1;
    while (data < shapes->count && shapes->is_comment[data]) {
        data++;
    }
    const int first = data;
    while (data < first + MOST_UNITS && data + 1 < shapes->count && is_of_units(shapes, data, tallies, columns)) {
        data++;
    }
    return data;
}

/* Fields that are empty or blank. */
static int count_empty(const struct csv_row *row)
{
    int empty = 0;
    for (int i = 0; i < row->count; i++) {
        size_t size = row->fields[i].size;
        csv_trim(row->fields[i].text, &size);
        empty += size == 0;
    }
    return empty;
}

/* The most in any row of data, but the last one if that ends the file. */
static int find_most_empty(const struct shapes *shapes, int data)
{
    struct csv_row row;
    struct error ignored;
    int most = 0;
    bool is_there = data < shapes->count && header_look(shapes->csv, data, &row);
    for (int i = data; is_there && (i + 1 < shapes->count || shapes->count == MOST_ROWS); i++) {
        const int empty = count_empty(&row);
        most = empty > most ? empty : most;
        is_there = i + 1 < shapes->count && csv_look(shapes->csv, &row, &ignored) == CSV_ROW;
    }
    return most;
}

/* Are the fields from `first` on empty in all rows of data? */
static bool are_empty(const struct shapes *shapes, int data, int first)
{
    struct csv_row row;
    struct error ignored;
    bool done = data < shapes->count && header_look(shapes->csv, data, &row);
    for (int i = data; done && i < shapes->count; i++) {
        for (int j = first; j < row.count; j++) {
            size_t size = row.fields[j].size;
            csv_trim(row.fields[j].text, &size);
            if (size > 0) {
                return false;
            }
        }
        done = i + 1 == shapes->count || csv_look(shapes->csv, &row, &ignored) == CSV_ROW;
    }
    return done;
}

static bool all_have(const struct shapes *shapes, int data, int fields)
{
    for (int i = data; i < shapes->count; i++) {
        if (shapes->fields[i] != fields) {
            return false;
        }
    }
    return data < shapes->count;
}

/* Columns of the data, given the row of names: a delimiter at the end of lines makes none. */
static void find_columns(struct csv_header *header, const struct shapes *shapes)
{
    struct csv_row row;
    const int top = header->at >= 0 ? header->at : header->data;
    if (!header_look(shapes->csv, top, &row)) {
        return;
    }
    size_t size = 0;
    if (header->at >= 0) {
        const char *first = header_name(&row.fields[0], &size);
        header->skipped = row.count > 1 && row.fields[0].size > 0 && size == 0 && *row.fields[0].text == '#' && first &&
                          csv_has_blanks(shapes->csv);
    }
    header->columns = row.count - header->skipped;
    const int names = header->columns;
    while (header->columns > 1 && (header->at >= 0 || header->columns == names)) {
        const struct csv_field *last = &row.fields[header->skipped + header->columns - 1];
        size = last->size;
        csv_trim(last->text, &size);
        if (size > 0 || shapes->count - header->data < 1) {
            break;
        }
        header->columns--;
    }
    if (header->columns < names && !are_empty(shapes, header->data, header->columns)) {
        header->columns = names;
    }
    if (header->at >= 0 && all_have(shapes, header->data, header->columns + 1) &&
        !are_empty(shapes, header->data, header->columns)) {
        header->lacks_first = true;
        header->columns++;
    }
}

static void report_header(struct csv_header *header, const struct shapes *shapes)
{
    const int before = header->at >= 0 ? header->at : header->data;
    const int after = header->at >= 0 ? header->data - header->at - 1 : 0;
    size_t used = 0;
    char *note = header->note;
    if (before > 0) {
        used += (size_t)snprintf(note, HEADER_NOTE, "%llu line%s before %s",
                                 (unsigned long long)(shapes->lines[before] - shapes->lines[0]),
                                 shapes->lines[before] - shapes->lines[0] == 1 ? "" : "s",
                                 header->at >= 0 ? "the column names" : "the data");
    }
    if (after > 0) {
        snprintf(note + used, HEADER_NOTE - used, "%s%d line%s between the column names and the data",
                 used > 0 ? ", " : "", after, after == 1 ? "" : "s");
    }
}

static void keep_line(struct csv_header *header, const struct shapes *shapes)
{
    struct csv_row row;
    if (header_look(shapes->csv, header->at >= 0 ? header->at : header->data, &row)) {
        char raw[HEADER_LINE];
        snprintf(raw, sizeof raw, "%.*s", (int)(row.raw_size < HEADER_LINE ? row.raw_size : HEADER_LINE), row.raw);
        printable(header->line, sizeof header->line, raw);
    }
}

/*
 * Looks at the first rows, which csv_rewind returns to. data: the config's columns and `header`; NULL: no names are
 * known. Fails only if out of memory; header->columns is 0 if there is no row.
 */
static bool header_find(struct csv_header *header, struct csv_reader *csv, const struct config_data *data,
                        struct error *error)
{
    struct shapes shapes;
    int columns = 1;
    *header = (struct csv_header){.at = -1};
    if (!find_shapes(&shapes, csv, error)) {
        return false;
    }
    for (int i = 0; i < shapes.count; i++) {
        columns = shapes.fields[i] > columns ? shapes.fields[i] : columns;
    }
    if (shapes.count == 0) {
        csv_rewind(csv);
        return true;
    }
    struct column_tally *tallies = calloc((size_t)columns, sizeof *tallies);
    if (!tallies) {
        return error_set(error, "%s: out of memory for %d columns", csv_name(csv), columns);
    }
    header->at = find_header(&shapes, data, tallies);
    header->has_comments = shapes.first > 0;
    header->data = header->at >= 0 ? find_data(&shapes, header->at, tallies, shapes.fields[header->at]) : shapes.first;
    free(tallies);
    header->most_empty = find_most_empty(&shapes, header->data);
    find_columns(header, &shapes);
    report_header(header, &shapes);
    keep_line(header, &shapes);
    return true;
}

struct rows {
    struct csv_reader *csv; /* one of them is not NULL */
    struct npy_reader *npy;
    struct records_reader *records;
    char **names; /* [columns] */
    int columns;
    bool has_header, lacks_first;
    struct csv_header header;       /* of a text file */
    struct budget_account *account; /* of the names */
    size_t charged;
    int64_t repeated; /* rows that were the names again */
    int64_t read;     /* rows so far, of a text file */
    bool has_totals;  /* a total's name is the first value of a row that is none */
    int64_t totals;   /* rows of totals at the end */
    char total[TOTAL_TEXT];
    uint64_t sparse_line; /* of the last row if it is much emptier than the others; else 0 */
};

/* --- columns --- */

/* Room for the columns' names, of `bytes` characters in all. */
static bool make_names(struct rows *rows, size_t bytes, struct error *error)
{
    enum { BESIDE = 32 }; /* of each allocation */
    const size_t all = (size_t)rows->columns * (sizeof *rows->names + BESIDE) + bytes;
    if (!budget_charge(rows->account, all, error)) {
        return error_wrap(error, "%s", rows_name(rows));
    }
    rows->charged = all;
    rows->names = calloc((size_t)rows->columns, sizeof *rows->names);
    return rows->names || error_set(error, "%s: out of memory for %d columns", rows_name(rows), rows->columns);
}

/* A field's text without surrounding blanks, or its number if it has none. */
static char *copy_name(const struct csv_field *field, int column)
{
    char number[16];
    snprintf(number, sizeof number, "%d", column);
    size_t size = 0;
    const char *text = field ? header_name(field, &size) : number;
    return size > 0 ? strndup(text, size) : strdup(number);
}

static bool say_twice(const struct rows *rows, uint64_t line, const struct csv_field *field, const char *name,
                      struct error *error)
{
    return error_set(error, "%s:%llu:%u: has two columns called %.64s; rename one", rows_name(rows),
                     (unsigned long long)line, field->column, name);
}

/* header: the row of names; NULL: there is none. */
static bool name_columns(struct rows *rows, const struct csv_row *header, struct error *error)
{
    const int first = rows->header.lacks_first ? 1 : 0, skipped = rows->header.skipped;
    rows->columns = rows->header.columns;
    if (!make_names(rows, header ? header->raw_size : 0, error)) {
        return false;
    }
    for (int i = 0; i < rows->columns; i++) {
        const struct csv_field *field = header && i >= first ? &header->fields[i - first + skipped] : NULL;
        rows->lacks_first |= header && i == 0 && (!field || field->size == 0);
        rows->names[i] = copy_name(field, i);
        if (!rows->names[i]) {
            return error_set(error, "%s: out of memory while reading it", rows_name(rows));
        }
        for (int j = 0; j < i && rows->columns <= 4096; j++) {
            if (field && strcmp(rows->names[i], rows->names[j]) == 0) {
                return say_twice(rows, header->line, field, rows->names[i], error);
            }
        }
    }
    return true;
}

static bool read_header(struct rows *rows, const struct config_data *data, struct error *error)
{
    struct csv_header *header = &rows->header;
    struct csv_row row;
    if (!header_find(header, rows->csv, data, error)) {
        return false;
    }
    if (header->columns == 0) {
        csv_begin(rows->csv, 0, false);
        const enum csv_status status = csv_next(rows->csv, &row, error);
        return status == CSV_END ? error_set(error, "%s: is empty; a table has at least a row", csv_name(rows->csv))
                                 : false;
    }
    rows->has_header = header->at >= 0;
    if (!name_columns(rows, rows->has_header && header_look(rows->csv, header->at, &row) ? &row : NULL, error)) {
        return false;
    }
    csv_rewind(rows->csv);
    if (header->data > 0) {
        header_look(rows->csv, header->data - 1, &row);
    }
    csv_begin(rows->csv, header->columns, header->has_comments);
    return true;
}

static bool open_csv(struct rows **result, struct csv_reader *csv, const struct config_data *data,
                     struct budget_account *account, struct error *error)
{
    struct rows *rows = calloc(1, sizeof *rows);
    if (!rows) {
        error_set(error, "%s: out of memory while reading it", csv_name(csv));
        csv_close(csv);
        return false;
    }
    rows->csv = csv;
    rows->account = account;
    if (!read_header(rows, data, error)) {
        rows_close(rows);
        return false;
    }
    *result = rows;
    return true;
}

static const char *array_column_name(const struct rows *rows, int column, char name[NPY_COLUMN_NAME])
{
    return rows->npy ? npy_column_name(rows->npy, column, name) : records_column_name(rows->records, column);
}

static bool name_array_columns(struct rows *rows, struct error *error)
{
    rows->columns = rows->npy ? npy_columns(rows->npy) : records_columns(rows->records);
    size_t bytes = 0;
    char name[NPY_COLUMN_NAME];
    for (int i = 0; i < rows->columns; i++) {
        bytes += strlen(array_column_name(rows, i, name)) + 1;
    }
    if (!make_names(rows, bytes, error)) {
        return false;
    }
    for (int i = 0; i < rows->columns; i++) {
        rows->names[i] = strdup(array_column_name(rows, i, name));
        if (!rows->names[i]) {
            break;
        }
        rows->has_header |= strcmp(rows->names[i], "0") != 0 && i == 0;
    }
    return rows->names[rows->columns - 1] ||
           error_set(error, "%s: out of memory for %d columns", rows_name(rows), rows->columns);
}

/* Takes ownership of one of the readers. */
static bool open_numbers(struct rows **result, struct npy_reader *npy, struct records_reader *records,
                         struct budget_account *account, struct error *error)
{
    struct rows *rows = calloc(1, sizeof *rows);
    if (!rows) {
        error_set(error, "out of memory while reading a table");
        npy_close(npy);
        records_close(records);
        return false;
    }
    rows->npy = npy;
    rows->records = records;
    rows->account = account;
    if (!name_array_columns(rows, error)) {
        rows_close(rows);
        return false;
    }
    *result = rows;
    return true;
}

/* Takes ownership of the stream. */
static bool open_npy(struct rows **rows, struct stream *stream, const uint8_t head[NPY_HEAD],
                     struct budget_account *account, struct error *error)
{
    struct npy_reader *npy;
    return npy_open(&npy, stream, head, error) && open_numbers(rows, npy, NULL, account, error);
}

/* Looks at the start of the content; closes the stream. */
static bool read_head(struct stream *stream, uint8_t head[HEAD], size_t *size, struct error *error)
{
    const bool done = stream_read(stream, head, HEAD, size, error);
    stream_close(stream);
    return done;
}

/* Arrays of numpy are the only archive, and the only other kind that is not text. */
static bool is_other(const char *name, const uint8_t *head, size_t size, struct error *error)
{
    const struct file_kind *found = signature_find(head, size);
    const bool may_be_arrays = memmem(head, size, ".npy", 4) || fnmatch("*.npz*", name, 0) == 0;
    if (!found || (npy_is_known(head, size) && (may_be_arrays || memcmp(head, "PK", 2) != 0))) {
        return false;
    }
    error_set(error, "%s: is %s; %s", name, found->what,
              strstr(found->what, "picture") ? "this needs a table: CSV, numpy's arrays or TFRecord" : found->remedy);
    return true;
}

static bool open_content(struct rows **rows, const struct stream_content *content, const struct config_data *data,
                         struct error *error)
{
    struct csv_reader *csv;
    struct records_reader *records;
    struct stream *stream;
    uint8_t head[HEAD];
    size_t size;
    if (!stream_open(&stream, content, error) || !read_head(stream, head, &size, error) ||
        is_other(content->name, head, size, error)) {
        return false;
    }
    if (!npy_is_known(head, size) && records_are_known(content->name, head, size)) {
        return records_open(&records, content, data, error) &&
               open_numbers(rows, NULL, records, content->account, error);
    }
    if (!stream_open(&stream, content, error)) {
        return false;
    }
    return npy_is_known(head, size)
               ? open_npy(rows, stream, head, content->account, error)
               : csv_open(&csv, stream, error) && open_csv(rows, csv, data, content->account, error);
}

bool rows_open(struct rows **rows, const char *path, const struct config_data *data, struct error *error)
{
    return open_content(rows, &(struct stream_content){.name = path}, data, error);
}

bool rows_open_bytes(struct rows **rows, const char *name, const void *bytes, size_t size,
                     const struct config_data *data, struct budget_account *account, struct error *error)
{
    return open_content(rows, &(struct stream_content){name, bytes ? bytes : "", size, account}, data, error);
}

void rows_close(struct rows *rows)
{
    if (!rows) {
        return;
    }
    for (int i = 0; rows->names && i < rows->columns; i++) {
        free(rows->names[i]);
    }
    free(rows->names);
    budget_release(rows->account, rows->charged);
    csv_close(rows->csv);
    npy_close(rows->npy);
    records_close(rows->records);
    free(rows);
}

int rows_columns(const struct rows *rows)
{
    return rows->columns;
}

const char *rows_column_name(const struct rows *rows, int column)
{
    return rows->names[column];
}

char rows_number_kind(const struct rows *rows)
{
    return rows->npy ? npy_kind(rows->npy) : '\0';
}

bool rows_has_header(const struct rows *rows)
{
    return rows->has_header;
}

char rows_delimiter(const struct rows *rows)
{
    return rows->csv ? csv_delimiter(rows->csv) : ',';
}

const char *rows_name(const struct rows *rows)
{
    return rows->csv ? csv_name(rows->csv) : rows->npy ? npy_name(rows->npy) : records_name(rows->records);
}

const char *rows_left_out(const struct rows *rows, int index)
{
    return rows->npy ? npy_left_out(rows->npy, index) : rows->records ? records_left_out(rows->records, index) : "";
}

bool rows_is_text(const struct rows *rows)
{
    return rows->csv;
}

bool rows_has_blanks(const struct rows *rows)
{
    return rows->csv && csv_has_blanks(rows->csv);
}

bool rows_lacks_first_name(const struct rows *rows)
{
    return rows->lacks_first;
}

const char *rows_first_line(const struct rows *rows)
{
    return rows->header.line;
}

void rows_note(const struct rows *rows, char note[ROWS_NOTE])
{
    const int64_t longer = rows->csv ? csv_longer_rows(rows->csv) : 0;
    const char *titles = rows->header.note;
    int used = snprintf(note, ROWS_NOTE, "%s%s", titles, titles[0] != '\0' ? " left out" : "");
    if (longer > 0) {
        used += snprintf(note + used, (size_t)(ROWS_NOTE - used),
                         "%sempty fields after the last column left out in %lld row%s", used > 0 ? "; " : "",
                         (long long)longer, longer == 1 ? "" : "s");
    }
    if (rows->repeated > 0) {
        used += snprintf(note + used, (size_t)(ROWS_NOTE - used),
                         "%s%lld line%s that repeat%s the column names left out", used > 0 ? "; " : "",
                         (long long)rows->repeated, rows->repeated == 1 ? "" : "s", rows->repeated == 1 ? "s" : "");
    }
    if (rows->totals > 0) {
        used += snprintf(note + used, (size_t)(ROWS_NOTE - used),
                         "%s%lld line%s of totals at the end left out, \"%s\" (a row of that name stays if it is not "
                         "at the end)",
                         used > 0 ? "; " : "", (long long)rows->totals, rows->totals == 1 ? "" : "s", rows->total);
    }
    if (rows->sparse_line > 0) {
        used += snprintf(note + used, (size_t)(ROWS_NOTE - used),
                         "%sthe last row, line %llu, has far fewer values than those above; remove it if it is a total",
                         used > 0 ? "; " : "", (unsigned long long)rows->sparse_line);
    }
    if (rows->csv && csv_has_blanks(rows->csv)) {
        snprintf(note + used, (size_t)(ROWS_NOTE - used), "%sfields are separated by blanks", used > 0 ? "; " : "");
    }
}

int rows_find_column(const struct rows *rows, const char *name)
{
    for (int i = 0; i < rows->columns; i++) {
        if (strcmp(rows->names[i], name) == 0) {
            return i;
        }
    }
    char *end;
    const long number = strtol(name, &end, 10);
    if (end == name || *end != '\0' || number >= rows->columns || number < -(long)rows->columns) {
        return -1;
    }
    return (int)(number < 0 ? number + rows->columns : number);
}

/* --- rows --- */

static void put_numbers(const struct rows *rows, struct row *row, uint64_t line)
{
    row->fields = NULL;
    row->count = rows->columns;
    row->line = line;
    row->raw = row->numbers;
    row->raw_size = (size_t)rows->columns * sizeof *row->numbers;
    row->plain = 0;
}

/* As where files were written one after another. In a single column a name may be a value, too. */
static bool repeats_names(struct rows *rows, const struct csv_row *row)
{
    if (row->count < 2) {
        return false;
    }
    for (int i = 0; i < row->count; i++) {
        size_t size = row->fields[i].size;
        const char *text = csv_trim(row->fields[i].text, &size);
        if (row->count != rows->columns || strlen(rows->names[i]) != size || memcmp(text, rows->names[i], size) != 0) {
            return false;
        }
    }
    rows->repeated++;
    return true;
}

/* --- the end of a table --- */

/* Spreadsheets and reports sum up the rows above. */
static bool is_of_total(const char *text, size_t size)
{
    static const char *const names[] = {
        "total",         "totals",     "grand total",  "subtotal",      "sub-total", "sum",
        "average",       "mean",       "summe",        "gesamt",        "insgesamt", "gesamtsumme",
        "zwischensumme", "mittelwert", "durchschnitt", "somme",         "moyenne",   "total g\xC3\xA9n\xC3\xA9ral",
        "totale",        "somma",      "suma",         "total general", "promedio",  "soma",
        "totaal",        "gemiddelde"};
    text = csv_trim(text, &size);
    const char *colon = memchr(text, ':', size); /* "Total: 6,634" */
    size = colon ? (size_t)(colon - text) : size;
    csv_trim(text, &size);
    for (size_t i = 0; size > 2 && i < sizeof names / sizeof names[0]; i++) {
        if (strlen(names[i]) == size && strncasecmp(names[i], text, size) == 0) {
            return true;
        }
    }
    return false;
}

/* The first field of a row that is not empty; -1: all are. */
static int first_filled(const struct csv_row *row, size_t *size)
{
    for (int i = 0; i < row->count; i++) {
        *size = row->fields[i].size;
        csv_trim(row->fields[i].text, size);
        if (*size > 0) {
            return i;
        }
    }
    return -1;
}

/* Do the lines up to the end of the file begin like that, too? Two of one name are data. */
static bool are_totals(const struct csv_field *name, const char *rest, size_t size, char delimiter)
{
    for (const char *end = rest + size; rest < end;) {
        while (rest < end && (*rest == delimiter || *rest == ' ' || *rest == '"' || *rest == '\r' || *rest == '\n')) {
            rest++;
        }
        const char *field = rest;
        while (rest < end && *rest != delimiter && *rest != '"' && *rest != '\r' && *rest != '\n') {
            rest++;
        }
        const size_t length = (size_t)(rest - field);
        if (!is_of_total(field, length) || (length == name->size && strncasecmp(field, name->text, length) == 0)) {
            return false;
        }
        const char *line_end = memchr(rest, '\n', (size_t)(end - rest));
        rest = line_end ? line_end : end;
    }
    return true;
}

/* A row of totals at the end of a file is none of the table's; one that is nearly empty may be. Requests have none. */
static bool is_total(struct rows *rows, const struct csv_row *row)
{
    size_t rest_size, size;
    const int first = first_filled(row, &size);
    const bool has_name = first >= 0 && is_of_total(row->fields[first].text, row->fields[first].size);
    const char *rest =
        rows->read > ROWS_ABOVE && row->count > 1 && !rows->account ? csv_rest(rows->csv, &rest_size) : NULL;
    if (has_name && !rows->has_totals && rest &&
        are_totals(&row->fields[first], rest, rest_size, csv_delimiter(rows->csv))) {
        if (rows->totals++ == 0) {
            char text[TOTAL_TEXT];
            snprintf(text, sizeof text, "%.*s", (int)(row->raw_size < TOTAL_TEXT ? row->raw_size : TOTAL_TEXT),
                     row->raw);
            printable(rows->total, sizeof rows->total, text);
        }
        return true;
    }
    rows->has_totals |= has_name;
    const int empty = rest && rest_size == 0 ? count_empty(row) : 0;
    if (2 * empty > row->count && empty > rows->header.most_empty) {
        rows->sparse_line = row->line;
    }
    return false;
}

enum csv_status rows_next(struct rows *rows, struct row *row, struct error *error)
{
    struct csv_row csv;
    if (rows->npy) {
        bool there;
        if (!npy_next(rows->npy, &row->numbers, &there, error)) {
            return CSV_FAILED;
        }
        put_numbers(rows, row, there ? npy_row(rows->npy) : 0);
        row->plain = there ? npy_plain(rows->npy) : 0;
        return there ? CSV_ROW : CSV_END;
    }
    if (rows->records) {
        struct records_row record;
        const enum csv_status status = records_next(rows->records, &record, error);
        if (status == CSV_ROW) {
            row->numbers = record.numbers;
            put_numbers(rows, row, records_row(rows->records));
        }
        if (status == CSV_ROW && record.fields) {
            row->fields = record.fields;
            row->raw = record.raw;
            row->raw_size = record.raw_size;
        }
        return status;
    }
    enum csv_status status;
    do {
        status = csv_next(rows->csv, &csv, error);
        rows->read += status == CSV_ROW;
    } while (status == CSV_ROW && ((rows->has_header && repeats_names(rows, &csv)) || is_total(rows, &csv)));
    if (status == CSV_ROW) {
        *row = (struct row){
            .fields = csv.fields, .count = csv.count, .line = csv.line, .raw = csv.raw, .raw_size = csv.raw_size};
    }
    return status;
}

void rows_skip(struct rows *rows, int count)
{
    assert(rows->npy || count == 0);
    if (rows->npy) {
        npy_skip(rows->npy, count);
    }
}

struct row row_behind(const struct row *row, int index)
{
    struct row behind = *row;
    behind.numbers += (size_t)index * (size_t)row->count;
    behind.raw = behind.numbers;
    behind.line += (uint64_t)index;
    behind.plain -= index;
    return behind;
}

bool reading_is_missing(const struct string_list *missing, const char *text, size_t size)
{
    text = csv_trim(text, &size);
    for (int i = 0; missing && i < missing->count; i++) {
        if (strlen(missing->items[i]) == size && memcmp(missing->items[i], text, size) == 0) {
            return true;
        }
    }
    return false;
}

/* -999 also stands for -999.0. */
static bool is_missing_number(struct column_reading reading, double value)
{
    double number;
    for (int i = 0; i < reading.missing->count; i++) {
        const char *text = reading.missing->items[i];
        if (notation_read(reading.notation, text, strlen(text), &number) == NUMBER_FINITE && number == value) {
            return true;
        }
    }
    return false;
}

enum number_kind row_number(const struct row *row, int column, struct column_reading reading, double *value)
{
    enum number_kind kind;
    const bool has_marks = reading.missing && reading.missing->count > 0;
    if (row->fields) {
        const struct csv_field *field = &row->fields[column];
        if (has_marks && reading_is_missing(reading.missing, field->text, field->size)) {
            return NUMBER_MISSING;
        }
        kind = field->column == 0 ? number_parse(field->text, field->size, value)
                                  : notation_read(reading.notation, field->text, field->size, value);
        if (kind == NUMBER_TEXT && reading.has_marks && number_is_mark(field->text, field->size)) {
            return NUMBER_MISSING;
        }
    } else {
        *value = row->numbers[column];
        kind = isnan(*value) ? NUMBER_MISSING : isinf(*value) ? NUMBER_INFINITE : NUMBER_FINITE;
    }
    return kind == NUMBER_FINITE && has_marks && is_missing_number(reading, *value) ? NUMBER_MISSING : kind;
}

enum number_kind row_plain_number(const struct row *row, int column, double *value)
{
    static const struct notation plain;
    return row_number(row, column, (struct column_reading){.notation = &plain}, value);
}

const char *row_text(const struct row *row, int column, char buffer[ROW_NUMBER_TEXT], size_t *size)
{
    if (row->fields) {
        *size = row->fields[column].size;
        return csv_trim(row->fields[column].text, size);
    }
    const double number = row->numbers[column];
    const int written = fabs(number) < 1e15 && number == trunc(number)
                            ? snprintf(buffer, ROW_NUMBER_TEXT, "%lld", (long long)number)
                            : snprintf(buffer, ROW_NUMBER_TEXT, "%.17g", number);
    *size = (size_t)written;
    return buffer;
}

/* Digits that the number would be printed with. */
static bool is_shortest(const char *text, size_t size)
{
    const size_t sign = size > 1 && text[0] == '-';
    bool is = size > sign && size <= 15 && (text[sign] != '0' || size == 1);
    for (size_t i = sign; i < size && is; i++) {
        is = text[i] >= '0' && text[i] <= '9';
    }
    return is;
}

const char *row_class(const struct row *row, int column, char buffer[ROW_NUMBER_TEXT], size_t *size)
{
    double number;
    const char *text = row_text(row, column, buffer, size);
    if (is_shortest(text, *size) || row_plain_number(row, column, &number) != NUMBER_FINITE) {
        return text;
    }
    config_number_text(number == 0 ? 0 : number, buffer);
    *size = strlen(buffer);
    return buffer;
}

bool row_wrap(const struct rows *rows, const struct row *row, int column, struct error *error)
{
    if (!rows) {
        return error_wrap(error, "row %llu", (unsigned long long)row->line);
    }
    if (row->fields && rows->csv) {
        return error_wrap(error, "%s:%llu:%u", rows_name(rows), (unsigned long long)row->line,
                          row->fields[column].column);
    }
    return error_wrap(error, "%s: row %llu, column %d", rows_name(rows), (unsigned long long)row->line, column);
}
