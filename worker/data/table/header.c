/*
 * The row of names is the one with a name that the config or the model knows. Otherwise each column votes: a text above
 * numbers is a name, a number above numbers is not; and if all is text, the first row has the names.
 */
#include "worker/data/table/header.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text/text.h"
#include "worker/data/table/dictionary.h"
#include "worker/data/table/notation.h"
#include "worker/data/table/number.h"
#include "worker/data/table/timestamp.h"

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

bool header_look(struct csv_reader *csv, int index, struct csv_row *row)
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

const char *header_name(const struct csv_field *field, size_t *size)
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

int header_count_empty(const struct csv_row *row)
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
        const int empty = header_count_empty(&row);
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

bool header_find(struct csv_header *header, struct csv_reader *csv, const struct config_data *data, struct error *error)
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
