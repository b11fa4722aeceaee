/*
 * Numbers are only parsed and summed; distinct values are counted only for texts and possible classes. A column that
 * turns out to differ from its first rows is surveyed a second time.
 */
#include "worker/data/table/survey.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/text/text.h"

enum {
    MOST_VALUES = 1 << 20,  /* distinct values counted in a column */
    MOST_BYTES = 1 << 26,   /* of the values of all columns */
    VALUE_BYTES = 48,       /* of a value in addition to its text */
    SAMPLE_BYTES = 1 << 25, /* of the numbers from which quantiles are computed */
    MOST_COMPARED = 64,     /* columns compared with the target, to find leaks */
    TEXT_SHARE = 10,        /* a tenth of texts among numbers makes categories */
    MOST_OTHERS = 256,      /* distinct texts kept of a column of numbers, of at most OTHER_BYTES */
    OTHER_BYTES = 64,
    MOST_NAMED = 100, /* distinct whole numbers with a unit are classes of a target */
    FEW_OTHERS = 10,  /* so few distinct ones are marks, rather than names among numbers */
    MOST_OFFENDERS = 3,
    OFFENDERS_TEXT = 160,
    MOST_IDS = 1000, /* more texts, each in hardly more than one row, are names */
};

/* --- beginning --- */

static bool is_listed(const struct string_list *list, const struct rows *rows, int column)
{
    for (int i = 0; i < list->count; i++) {
        if (rows_find_column(rows, list->items[i]) == column) {
            return true;
        }
    }
    return false;
}

/* Adds to an error how the names were read; returns false. */
static bool say_header(const struct rows *rows, struct error *error)
{
    const size_t used = strlen(error->text);
    const char delimiter = rows_delimiter(rows);
    char sign[8] = "tab";
    if (!rows_is_text(rows)) {
        return false;
    }
    if (rows_has_blanks(rows)) {
        memcpy(sign, "blanks", sizeof "blanks");
    } else if (delimiter != '\t') {
        snprintf(sign, sizeof sign, "\"%c\"", delimiter);
    }
    snprintf(error->text + used, sizeof error->text - used, "; %s is \"%s\", its delimiter %s%s",
             rows_has_header(rows) ? "its line of names" : "its first line, read as data,", rows_first_line(rows), sign,
             rows_columns(rows) == 1 ? "; fields are separated by , ; tab | or blanks"
             : rows_has_header(rows) ? ""
                                     : "; if that line has the names: --header=yes");
    return false;
}

/* "a, b, c, ..." */
static void list_columns(const struct rows *rows, char *text, size_t size)
{
    enum { MOST_LISTED = 12 };
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < rows_columns(rows) && used < size; i++) {
        const bool is_more = i == MOST_LISTED;
        used += (size_t)snprintf(text + used, size - used, "%s%.32s", i > 0 ? ", " : "",
                                 is_more ? "..." : rows_column_name(rows, i));
        if (is_more) {
            return;
        }
    }
}

/* Names in the config must be columns. */
static bool check_name(const struct rows *rows, const char *key, const char *name, struct error *error)
{
    if (name[0] == '\0' || rows_find_column(rows, name) >= 0) {
        return true;
    }
    struct suggestion suggestion = {.word = name};
    for (int i = 0; i < rows_columns(rows); i++) {
        suggest_offer(&suggestion, rows_column_name(rows, i));
    }
    char names[400];
    list_columns(rows, names, sizeof names);
    error_set(error, "data.%s: %s has no column %.64s among its %d (%s)%s%.64s%s", key, rows_name(rows), name,
              rows_columns(rows), names, suggestion.best ? "; did you mean " : "",
              suggestion.best ? suggestion.best : "", suggestion.best ? "?" : "");
    return say_header(rows, error);
}

static bool check_names(const struct rows *rows, const char *key, const struct string_list *list, struct error *error)
{
    for (int i = 0; i < list->count; i++) {
        if (!check_name(rows, key, list->items[i], error)) {
            return false;
        }
    }
    return true;
}

bool survey_learns_inputs(const struct config_data *data)
{
    return data->target.count == 1 && strcmp(data->target.items[0], "inputs") == 0;
}

static bool check_config(const struct rows *rows, const struct config_data *data, struct error *error)
{
    return (survey_learns_inputs(data) || check_names(rows, "target", &data->target, error)) &&
           check_names(rows, "features", &data->features, error) && check_names(rows, "ignore", &data->ignore, error) &&
           check_names(rows, "categorical", &data->categorical, error) &&
           check_name(rows, "weight", data->weight, error) && check_name(rows, "group", data->group, error) &&
           check_name(rows, "time", data->time, error);
}

static bool is_column(const struct rows *rows, const char *name, int column)
{
    return name[0] != '\0' && rows_find_column(rows, name) == column;
}

static enum survey_use use_of(const struct rows *rows, int column, const struct config_data *data)
{
    if (is_column(rows, data->weight, column)) {
        return USE_WEIGHT;
    }
    if (!survey_learns_inputs(data) && is_listed(&data->target, rows, column)) {
        return USE_TARGET;
    }
    if (data->features.count > 0) {
        return is_listed(&data->features, rows, column) ? USE_FEATURE : USE_NOTHING;
    }
    const bool is_of_split = is_column(rows, data->group, column) || is_column(rows, data->time, column);
    return is_listed(&data->ignore, rows, column) || is_of_split ? USE_NOTHING : USE_FEATURE;
}

/* Are a column's values counted from the first row on? */
static bool is_collected(const struct survey *survey, const struct survey_column *column)
{
    return column->is_category || survey->counts_all || column->may_be_index != INDEX_NEVER ||
           (column->use == USE_TARGET && (survey->loss == LOSS_AUTO || survey->loss == LOSS_SOFTMAX));
}

static void clear_dates(struct survey_dates *dates)
{
    for (int i = 0; i < DATE_PARTS; i++) {
        dates->parts[i] = (struct moments){.count = 0};
        dates->minimum[i] = INFINITY;
        dates->maximum[i] = -INFINITY;
    }
}

void survey_forget(struct survey *survey)
{
    survey->rows = 0;
    survey->files = 0;
    survey->bytes = 0;
    sample_clear(&survey->sample);
    uint64_t targets = 0;
    for (int i = 0; i < survey->count && i < MOST_COMPARED; i++) {
        targets |= (uint64_t)(survey->columns[i].use == USE_TARGET) << i;
    }
    for (int i = 0; i < survey->count; i++) {
        struct survey_column *column = &survey->columns[i];
        struct survey_dates *calendar = column->calendar;
        struct survey_column kept = *column;
        dictionary_free(&column->values);
        dictionary_free(&column->others);
        if (calendar) {
            clear_dates(calendar);
        }
        *column = (struct survey_column){.name = kept.name,
                                         .use = kept.use,
                                         .is_category = kept.is_category,
                                         .is_mixed = kept.is_mixed,
                                         .is_number = kept.is_number,
                                         .may_be_index = kept.may_be_index,
                                         .is_read_again = kept.is_read_again,
                                         .notation = kept.notation,
                                         .dates = kept.dates,
                                         .calendar = calendar,
                                         .orders = ORDER_ANY,
                                         .is_collected = is_collected(survey, column),
                                         .is_integer = true,
                                         .same = column->use == USE_FEATURE ? targets : 0,
                                         .minimum = INFINITY,
                                         .maximum = -INFINITY,
                                         .next_minimum = INFINITY,
                                         .next_maximum = -INFINITY};
        memcpy(column->doubt, kept.doubt, sizeof column->doubt);
    }
}

static bool is_among(const char *name, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (strcasecmp(name, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* "customer_id", "PassengerId", "customerID"; not "PAID". */
static bool ends_with_id(const char *name)
{
    const size_t length = strlen(name);
    if (length < 3 || strcasecmp(name + length - 2, "id") != 0) {
        return false;
    }
    const char before = name[length - 3];
    return strchr("_ -.", before) || (name[length - 2] == 'I' && before >= 'a' && before <= 'z');
}

/*
 * Unless the config names it: the first column without a name, as data frames write their index, and what people call
 * a counter of rows or an identifier. Where each machine has its own rows none can judge all: only the former counts.
 */
static int may_be_index(const struct rows *rows, int column, const struct config_data *data)
{
    static const char *const counters[] = {"nr", "nr.", "no", "no.", "#", "record", "sno", "obs", "serial"};
    static const char *const identifiers[] = {"id",         "index",     "idx",    "row", "rowid",
                                              "row_number", "rownumber", "rownum", "uid"};
    const char *name = rows_column_name(rows, column);
    if (is_listed(&data->features, rows, column) || is_listed(&data->categorical, rows, column)) {
        return INDEX_NEVER;
    }
    if ((column == 0 && rows_lacks_first_name(rows)) || strncmp(name, "Unnamed: 0", 10) == 0) {
        return INDEX_NAMELESS;
    }
    if (data->data_sharding == SHARDING_OWN) {
        return INDEX_NEVER;
    }
    return is_among(name, identifiers, sizeof identifiers / sizeof *identifiers) || ends_with_id(name)
               ? INDEX_IDENTIFIER
           : is_among(name, counters, sizeof counters / sizeof *counters) ? INDEX_COUNTER
                                                                          : INDEX_NEVER;
}

void survey_next_file(struct survey *survey)
{
    survey->files++;
}

/* What the nets of an ensemble take; of a single one, as configured. */
static enum table_encoding encoding_of(const struct config *config)
{
    const struct config_model *model = &config->model;
    bool takes[VIEW_PIECEWISE + 1] = {false};
    for (int i = 0; i < model->net_count; i++) {
        takes[model->views[i]] = true;
    }
    if (model->net_count > 0) {
        return !takes[VIEW_PIECEWISE] ? ENCODING_NONE : takes[VIEW_RAW] ? ENCODING_BOTH : ENCODING_PLE;
    }
    return config->data.encoding == ENCODING_AUTO ? ENCODING_NONE : config->data.encoding;
}

bool survey_begin(struct survey *survey, const struct rows *rows, const struct config *config, bool counts_all,
                  struct error *error)
{
    const int count = rows_columns(rows);
    *survey = (struct survey){
        .counts_all = counts_all, .loss = config->train.loss, .data = &config->data, .delimiter = rows_delimiter(rows)};
    for (int i = 0; rows_left_out(rows, i)[0] != '\0'; i++) {
        log_warning("%s; it is left out", rows_left_out(rows, i));
    }
    if (!check_config(rows, &config->data, error)) {
        return false;
    }
    survey->columns = calloc((size_t)count, sizeof *survey->columns);
    if (!survey->columns) {
        return error_set(error, "%s: out of memory for %d columns", rows_name(rows), count);
    }
    for (int i = 0; i < count; i++) {
        struct survey_column *column = &survey->columns[i];
        column->name = strdup(rows_column_name(rows, i));
        if (!column->name) {
            break;
        }
        survey->count++;
        column->use = use_of(rows, i, &config->data);
        column->is_category = is_listed(&config->data.categorical, rows, i);
        column->may_be_index = column->use == USE_FEATURE ? may_be_index(rows, i, &config->data) : INDEX_NEVER;
        if (config->data.decimal == DECIMAL_COMMA && rows_is_text(rows)) {
            column->notation = (struct notation){.decimal = ',', .group = '.'};
        }
    }
    survey_forget(survey);
    survey->files = 1;
    survey->encoding = encoding_of(config);
    const bool has_quantiles = config->data.scaling == SCALING_ROBUST || survey->encoding != ENCODING_NONE;
    if (has_quantiles && !sample_create(&survey->sample, count, SAMPLE_BYTES)) {
        return error_set(error, "%s: out of memory for the quantiles of %d columns", rows_name(rows), count);
    }
    return survey->count == count || error_set(error, "%s: out of memory for %d columns", rows_name(rows), count);
}

void survey_free(struct survey *survey)
{
    for (int i = 0; i < survey->count; i++) {
        free(survey->columns[i].name);
        free(survey->columns[i].calendar);
        dictionary_free(&survey->columns[i].values);
        dictionary_free(&survey->columns[i].others);
    }
    free(survey->columns);
    sample_free(&survey->sample);
    *survey = (struct survey){.count = 0};
}

/* --- rows --- */

static bool say_text(const struct rows *rows, const struct row *row, int column, enum number_kind kind, bool are_dates,
                     struct error *error)
{
    char buffer[ROW_NUMBER_TEXT];
    size_t size;
    const char *text = row_text(row, column, buffer, &size);
    const char *name = rows_column_name(rows, column);
    if (kind == NUMBER_MISSING) {
        error_set(
            error,
            "column %.64s: \"%.*s\" is no target among numbers; fill it in, remove the row, or learn each value as "
            "a class (--categorical=%.64s); --max_bad_records=N skips N such rows",
            name, (int)(size < 32 ? size : 32), text, name);
    } else if (kind == NUMBER_INFINITE) {
        error_set(error, "column %.64s: %.*s is not finite; leave the field empty if it is missing", name,
                  (int)(size < 32 ? size : 32), text);
    } else if (kind == NUMBER_FINITE) {
        error_set(error, "column %.64s: %.*s is beyond float32; scale the column down", name,
                  (int)(size < 32 ? size : 32), text);
    } else {
        error_set(error,
                  "column %.64s: \"%.*s\" is not a %s, as others in it are; correct it, leave the field empty, name it "
                  "with --missing if it stands for a missing value, or the column with --categorical; "
                  "--max_bad_records=N skips N such rows",
                  name, (int)(size < 32 ? size : 32), text, are_dates ? "date" : "number");
    }
    return row_wrap(rows, row, column, error);
}

static bool is_fault(enum number_kind kind, double number)
{
    return kind == NUMBER_TEXT || kind == NUMBER_INFINITE || (kind == NUMBER_FINITE && fabs(number) > FLT_MAX);
}

/*
 * Too many values. If that already determines what the column is (a text without which the model does better, a target
 * that is no class), they are discarded.
 */
static void stop_counting(struct survey *survey, struct survey_column *column)
{
    column->has_too_many = true;
    if (column->is_category || survey->counts_all || survey->loss == LOSS_SOFTMAX) {
        return;
    }
    column->is_collected = false;
    survey->bytes -= column->bytes;
    column->bytes = 0;
    dictionary_free(&column->values);
}

bool survey_count(struct survey *survey, struct survey_column *column, const char *text, size_t size, int64_t times)
{
    const int before = column->values.count;
    if ((before >= MOST_VALUES || survey->bytes >= MOST_BYTES) && dictionary_find(&column->values, text, size) < 0) {
        stop_counting(survey, column);
        return true;
    }
    const int number = dictionary_add(&column->values, text, size);
    if (number < 0) {
        return false;
    }
    column->values.entries[number].count += times - 1;
    if (column->values.count > before) {
        column->bytes += size + VALUE_BYTES;
        survey->bytes += size + VALUE_BYTES;
    }
    return true;
}

static bool count_value(struct survey *survey, struct survey_column *column, const struct row *row, int index)
{
    char buffer[ROW_NUMBER_TEXT];
    size_t size;
    const bool is_class = column->use == USE_TARGET && !column->is_category;
    const char *text = is_class ? row_class(row, index, buffer, &size) : row_text(row, index, buffer, &size);
    return survey_count(survey, column, text, size, 1);
}

static const struct notation plain_notation;

static struct column_reading reading_of(const struct survey *survey, const struct survey_column *column)
{
    return (struct column_reading){.notation = &column->notation,
                                   .missing = &survey->data->missing,
                                   .has_marks = column->use != USE_TARGET && !column->is_category};
}

/* What a text among numbers, or instead of them, may be in another notation. False if out of memory. */
static bool look_at_text(struct survey_column *column, enum table_dates wanted, const char *text, size_t size)
{
    double time;
    const unsigned orders = wanted == DATES_AUTO                        ? timestamp_orders(text, size)
                            : timestamp_read(text, size, wanted, &time) ? ORDER_ANY
                                                                        : 0;
    column->odd += notation_look(&column->clues, text, size);
    if (orders != 0) {
        column->days++;
        column->times += orders == ORDER_ANY;
        column->orders &= orders;
        column->all_orders |= orders;
    }
    const bool is_new = !column->is_collected && size <= OTHER_BYTES;
    return !is_new || (column->others.count >= MOST_OTHERS && dictionary_find(&column->others, text, size) < 0) ||
           dictionary_add(&column->others, text, size) >= 0;
}

static bool note_fault(struct survey_column *column, enum table_dates wanted, const struct rows *rows,
                       const struct row *row, int index, enum number_kind kind)
{
    struct error error;
    char buffer[ROW_NUMBER_TEXT];
    size_t size;
    const char *text = row_text(row, index, buffer, &size);
    column->texts += kind == NUMBER_TEXT;
    column->marks += kind == NUMBER_MISSING;
    column->infinite += kind == NUMBER_INFINITE || kind == NUMBER_FINITE;
    if (column->first_text[0] == '\0') {
        say_text(rows, row, index, kind, column->dates != DATES_AUTO, &error);
        memcpy(column->first_text, error.text, sizeof column->first_text - 1);
        column->first_text[sizeof column->first_text - 1] = '\0';
    }
    return kind != NUMBER_TEXT || column->is_category || look_at_text(column, wanted, text, size);
}

/* The value of a field: of a date its seconds since 1970. */
static enum number_kind read_value(const struct survey *survey, const struct survey_column *column,
                                   const struct row *row, int index, double *number)
{
    char buffer[ROW_NUMBER_TEXT];
    size_t size;
    if (column->dates == DATES_AUTO) {
        return row_number(row, index, reading_of(survey, column), number);
    }
    const char *text = row_text(row, index, buffer, &size);
    if (number_is_mark(text, size) || reading_is_missing(&survey->data->missing, text, size)) {
        return NUMBER_MISSING;
    }
    return timestamp_read(text, size, column->dates, number) ? NUMBER_FINITE : NUMBER_TEXT;
}

static void add_date(struct survey_dates *dates, double time)
{
    double parts[DATE_PARTS];
    timestamp_parts(time, parts);
    for (int i = 0; i < DATE_PARTS; i++) {
        moments_add(&dates->parts[i], parts[i]);
        dates->minimum[i] = fmin(dates->minimum[i], parts[i]);
        dates->maximum[i] = fmax(dates->maximum[i], parts[i]);
    }
}

/* "-" and the like: missing among numbers, a text among texts. */
static bool is_mark(const struct survey *survey, const struct row *row, int index)
{
    char buffer[ROW_NUMBER_TEXT];
    size_t size;
    const char *text = row_text(row, index, buffer, &size);
    return !number_is_missing(text, size) && !reading_is_missing(&survey->data->missing, text, size);
}

/* A number as target that has more integer values than there can be classes, or is not an integer, is not a class. */
static bool is_no_class(const struct survey_column *column)
{
    return column->use == USE_TARGET && (!column->is_integer || column->values.count > CONFIG_MAX_WIDTH) &&
           column->texts == 0;
}

/* 00123, which a quantity is not written as; 05 may be one. */
static bool is_padded(const struct csv_field *field)
{
    enum { SHORTEST = 3 };
    size_t size = field->size;
    const char *text = csv_trim(field->text, &size);
    bool is_it = size >= SHORTEST && text[0] == '0';
    for (size_t i = 1; i < size && is_it; i++) {
        is_it = text[i] >= '0' && text[i] <= '9';
    }
    return is_it;
}

/* The ends, and what is next to them. */
static void note_ends(struct survey_column *column, double number)
{
    if (number < column->minimum) {
        column->next_minimum = column->minimum;
        column->at_minimum = 0;
    } else if (number > column->minimum && number < column->next_minimum) {
        column->next_minimum = number;
    }
    if (number > column->maximum) {
        column->next_maximum = column->maximum;
        column->at_maximum = 0;
    } else if (number < column->maximum && number > column->next_maximum) {
        column->next_maximum = number;
    }
    column->at_minimum += number <= column->minimum;
    column->at_maximum += number >= column->maximum;
}

static void add_number(struct survey_column *column, const struct row *row, int index, double number)
{
    if (row->fields) {
        note_ends(column, number);
    }
    moments_add(&column->numbers, number);
    column->is_integer = column->is_integer && number == trunc(number);
    column->minimum = number < column->minimum ? number : column->minimum;
    column->maximum = number > column->maximum ? number : column->maximum;
    if (column->calendar) {
        add_date(column->calendar, number);
    } else if (row->fields) {
        column->padded += is_padded(&row->fields[index]);
    }
    if (row->fields && column->notation.unit[0] == '%') { /* without one, 0 is the same */
        column->with_unit += number == 0 || memchr(row->fields[index].text, '%', row->fields[index].size) ||
                             memchr(row->fields[index].text, '\xEF', row->fields[index].size);
    }
}

/* For people to see how the column is written. */
static void keep_example(struct survey_column *column, const struct row *row, int index)
{
    char buffer[ROW_NUMBER_TEXT], example[SURVEY_EXAMPLE];
    size_t size;
    const char *text = row_text(row, index, buffer, &size);
    snprintf(example, sizeof example, "%.*s", (int)(size < SURVEY_EXAMPLE ? size : SURVEY_EXAMPLE), text);
    for (int i = 0; i < SURVEY_EXAMPLES && size > 0; i++) {
        if (column->examples[i][0] == '\0') {
            printable(column->examples[i], SURVEY_EXAMPLE, example);
            return;
        }
        if (strcmp(column->examples[i], example) == 0) {
            return;
        }
    }
}

static bool is_empty(const struct row *row, int index)
{
    char buffer[ROW_NUMBER_TEXT];
    size_t size;
    return !row->fields || (row_text(row, index, buffer, &size), size == 0);
}

/*
 * Records the value in one column of a row; its number goes to *kept, too, unless that is NULL. Fails only if out of
 * memory.
 */
static bool survey_add_value(struct survey *survey, const struct rows *rows, const struct row *row, int index,
                             double *kept)
{
    struct survey_column *column = &survey->columns[index];
    double number = 0;
    const enum number_kind kind = read_value(survey, column, row, index, &number);
    const bool has_numbers = column->numbers.count + column->numbers.in_chunk > 0;
    const bool is_of_target = column->use == USE_TARGET;
    const bool is_marked =
        kind == NUMBER_MISSING && row->fields && !is_of_target && !column->is_category && is_mark(survey, row, index);
    const bool is_class = kind == NUMBER_MISSING && is_of_target && !is_empty(row, index);
    if (survey->counts_all && column->examples[SURVEY_EXAMPLES - 1][0] == '\0') {
        keep_example(column, row, index);
    }
    if (kind == NUMBER_MISSING && !is_marked && !is_class) {
        column->missing++;
        return true;
    }
    if (is_marked) {
        column->marks++;
        column->is_collected |= !has_numbers && column->dates == DATES_AUTO;
    } else if (is_class || is_fault(kind, number)) {
        if (!note_fault(column, survey->data->dates, rows, row, index, kind)) {
            return false;
        }
        column->is_collected |= (is_class || kind == NUMBER_TEXT) && !has_numbers && column->dates == DATES_AUTO;
    } else {
        add_number(column, row, index, number);
        if (kept) {
            *kept = number;
        }
    }
    if (column->is_collected && is_no_class(column) && survey->loss != LOSS_SOFTMAX) {
        stop_counting(survey, column);
    }
    return !column->is_collected || count_value(survey, column, row, index);
}

static bool are_same(const struct row *row, int a, int b)
{
    const struct column_reading plain = {.notation = &plain_notation};
    char buffers[2][ROW_NUMBER_TEXT];
    size_t sizes[2];
    double left, right;
    const char *one = row_text(row, a, buffers[0], &sizes[0]), *other = row_text(row, b, buffers[1], &sizes[1]);
    return (sizes[0] == sizes[1] && memcmp(one, other, sizes[0]) == 0) ||
           (row_number(row, a, plain, &left) == NUMBER_FINITE && row_number(row, b, plain, &right) == NUMBER_FINITE &&
            left == right);
}

/* The targets to which a feature is still equal. */
static void compare_with_targets(struct survey_column *column, const struct row *row, int index)
{
    for (uint64_t left = column->same; left != 0; left &= left - 1) {
        const int target = __builtin_ctzll(left);
        if (!are_same(row, index, target)) {
            column->same &= ~((uint64_t)1 << target);
        }
    }
}

bool survey_add(struct survey *survey, const struct rows *rows, const struct row *row, struct error *error)
{
    double *kept = survey->sample.capacity > 0 ? sample_add(&survey->sample) : NULL;
    survey->rows++;
    for (int i = 0; i < survey->count; i++) {
        struct survey_column *column = &survey->columns[i];
        if (kept) {
            kept[i] = (double)NAN;
        }
        if (column->same != 0) {
            compare_with_targets(column, row, i);
        }
        if ((column->use != USE_NOTHING || survey->counts_all) &&
            !survey_add_value(survey, rows, row, i, kept ? &kept[i] : NULL)) {
            return error_set(error, "%s: out of memory for the values of column %.64s", rows_name(rows), column->name);
        }
    }
    return true;
}

bool survey_accepts(const struct survey *survey, const struct rows *rows, const struct row *row, struct error *error)
{
    for (int i = 0; i < survey->count; i++) {
        const struct survey_column *column = &survey->columns[i];
        const bool must_be = column->use == USE_TARGET || column->use == USE_WEIGHT;
        if (column->use == USE_NOTHING || (!column->is_number && !must_be)) {
            continue;
        }
        double number = 0;
        const enum number_kind kind = read_value(survey, column, row, i, &number);
        const bool is_mark = column->use == USE_TARGET && !column->is_number && !is_empty(row, i);
        if (must_be && kind == NUMBER_MISSING && !is_mark) {
            error_set(error,
                      "column %.64s: is empty; a row needs its %s: fill it in, or remove the row; --max_bad_records=N "
                      "skips N such rows",
                      column->name, column->use == USE_TARGET ? "target" : "weight");
            return row_wrap(rows, row, i, error);
        }
        if ((column->is_number || column->use == USE_WEIGHT) && is_fault(kind, number)) {
            return say_text(rows, row, i, kind, column->dates != DATES_AUTO, error);
        }
    }
    return true;
}

/* --- after the rows --- */

bool survey_is_name(const struct survey_column *column, int64_t rows)
{
    return column->texts > 0 && !column->is_category &&
           (column->has_too_many || (column->values.count > MOST_IDS && 2 * (int64_t)column->values.count > rows));
}

/*
 * The commonest texts of a column that are no numbers, for people: `"n.d." (12), "trace" (3)`; from all its values if
 * they were counted. Returns how many distinct ones there are.
 */
static int find_offenders(const struct survey_column *column, char text[OFFENDERS_TEXT])
{
    const struct dictionary *from = column->is_collected ? &column->values : &column->others;
    int chosen[MOST_OFFENDERS], count = 0, distinct = 0;
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < from->count; i++) {
        const struct dictionary_entry *entry = &from->entries[i];
        double number;
        const char *value = dictionary_text(from, i);
        const bool is_good = column->dates != DATES_AUTO
                                 ? timestamp_read(value, entry->size, column->dates, &number)
                                 : notation_read(&column->notation, value, entry->size, &number) != NUMBER_TEXT;
        if (is_good) {
            continue;
        }
        distinct++;
        int at = count < MOST_OFFENDERS ? count++ : count;
        while (at > 0 && entry->count > from->entries[chosen[at - 1]].count) {
            if (at < MOST_OFFENDERS) {
                chosen[at] = chosen[at - 1];
            }
            at--;
        }
        if (at < MOST_OFFENDERS) {
            chosen[at] = i;
        }
    }
    for (int i = 0; i < count && used < OFFENDERS_TEXT; i++) {
        const struct dictionary_entry *entry = &from->entries[chosen[i]];
        char start[25], shown[48];
        snprintf(start, sizeof start, "%.*s", (int)(entry->size < 24 ? entry->size : 24),
                 dictionary_text(from, chosen[i]));
        used += (size_t)snprintf(text + used, OFFENDERS_TEXT - used, "%s\"%s\" (%lld)", i > 0 ? ", " : "",
                                 printable(shown, sizeof shown, start), (long long)entry->count);
    }
    return distinct;
}

/* A word behind all numbers is their unit. A target of few whole ones is a class, as it is written. */
static bool has_one_unit(const struct survey_column *column, bool *is_mixed)
{
    const struct notation_clues *clues = &column->clues;
    const int64_t fractions = clues->points + clues->commas + clues->unsure_points + clues->unsure_commas;
    const bool may_be_class =
        column->use == USE_TARGET && fractions == 0 && !column->has_too_many && column->values.count <= MOST_NAMED;
    *is_mixed = clues->other_words > 0 && 2 * clues->other_words <= clues->words && clues->words == column->texts;
    return clues->words > 0 && clues->words == column->texts && clues->other_words == 0 &&
           clues->words >= column->numbers.count && !may_be_class;
}

static void note_partial_unit(struct survey_column *column)
{
    if (column->numbers.count > 0) {
        snprintf(column->doubt, sizeof column->doubt,
                 "%lld of its numbers have the unit %s and %lld have none; all are read as if they had it",
                 (long long)column->clues.words, column->notation.unit, (long long)column->numbers.count);
    }
}

/* Numbers in another notation: read so from now on. */
static void take_notation(struct survey *survey, struct survey_column *column)
{
    bool is_unsure;
    const struct notation_hints hints = {.plain = column->numbers.count,
                                         .has_fractions = !column->is_integer,
                                         .largest = fmax(fabs(column->minimum), fabs(column->maximum)),
                                         .delimiter = survey->delimiter,
                                         .decimal = survey->data->decimal};
    column->notation = notation_choose(&column->clues, &hints, &is_unsure);
    if (is_unsure) {
        snprintf(column->doubt, sizeof column->doubt,
                 "its numbers may have a decimal point or a decimal comma; they are read with a decimal %s (--decimal "
                 "sets it)",
                 column->notation.decimal == ',' ? "comma" : "point");
    }
}

/* Texts that are dates: as which order? */
static bool take_dates(struct survey *survey, struct survey_column *column, struct error *error)
{
    const enum table_dates wanted = survey->data->dates;
    const unsigned orders = column->orders;
    column->calendar = malloc(sizeof *column->calendar);
    if (!column->calendar) {
        return error_set(error, "out of memory for the dates of column %.64s", column->name);
    }
    column->dates = wanted != DATES_AUTO ? wanted
                    : orders & ORDER_DMY ? DATES_DMY
                    : orders & ORDER_MDY ? DATES_MDY
                                         : DATES_YMD;
    if (wanted != DATES_AUTO) {
        return true;
    }
    if (orders == 0) {
        return error_set(error,
                         "column %.64s: its dates are in different orders, such as day/month and month/day; write them "
                         "in one, or set --dates=dmy, mdy or ymd and --max_bad_records; --categorical or --ignore "
                         "take the column as it is",
                         column->name);
    }
    if (column->times < column->days && (orders & ORDER_DMY) && (orders & ORDER_MDY)) {
        column->dates = DATES_MDY;
        snprintf(column->doubt, sizeof column->doubt,
                 "its dates may be day/month or month/day; they are read as month/day (--dates=dmy or mdy sets it)");
    }
    return true;
}

static bool say_mixed(const struct survey_column *column, struct error *error)
{
    char offenders[OFFENDERS_TEXT];
    find_offenders(column, offenders);
    error_set(error, "%s", column->first_text);
    const size_t used = strlen(error->text);
    if (offenders[0] != '\0') {
        snprintf(error->text + used, sizeof error->text - used, "; the commonest such texts: %s", offenders);
    }
    return false;
}

/* Texts among numbers: categories, or errors? */
static bool decide_mixed(struct survey_column *column, bool skips_faults, bool *again, struct error *error)
{
    const int64_t numbers = column->numbers.count, texts = column->texts;
    const bool are_many = texts > 0 && TEXT_SHARE * texts >= numbers + texts && column->dates == DATES_AUTO;
    const bool are_most = texts > numbers;
    char offenders[OFFENDERS_TEXT];
    const int64_t marks = column->use == USE_TARGET ? column->marks : 0;
    if (texts + column->infinite + marks == 0 || (numbers == 0 && column->infinite == 0)) {
        return true;
    }
    const int distinct = are_many ? find_offenders(column, offenders) : 0;
    if (are_many && (are_most || column->use == USE_TARGET || column->has_too_many || distinct > FEW_OTHERS)) {
        if (!are_most) {
            log_warning("column %.64s: %lld of its values are numbers and %lld are not, such as %s; all are categories "
                        "(--categorical=%.64s says so; --missing names texts that stand for a missing number; "
                        "--ignore=%.64s leaves it out)",
                        column->name, (long long)numbers, (long long)texts, offenders, column->name, column->name);
        }
        column->is_category = column->is_mixed = *again = true;
        column->notation = plain_notation;
        return true;
    }
    if (!skips_faults) {
        return say_mixed(column, error);
    }
    column->is_number = *again = true;
    return true;
}

/* Some with a percent sign and some without may be of two units. */
static bool check_units(const struct survey_column *column, struct error *error)
{
    return column->notation.unit[0] != '%' || column->with_unit == 0 || column->with_unit == column->numbers.count ||
           error_set(
               error,
               "column %.64s: %lld of its numbers have a percent sign and %lld have none, so that 5%% may also be "
               "written 0.05; write all in one way, or --ignore=%.64s",
               column->name, (long long)column->with_unit, (long long)(column->numbers.count - column->with_unit),
               column->name);
}

static bool decide(struct survey *survey, struct survey_column *column, bool skips_faults, bool *again,
                   struct error *error)
{
    const int64_t numbers = column->numbers.count, texts = column->texts;
    bool is_mixed;
    const bool is_settled = column->notation.unit[0] != '\0' || column->is_read_again || column->dates != DATES_AUTO;
    if (column->is_category) {
        return true;
    }
    if (!is_settled && column->use == USE_FEATURE && numbers == 0 && column->days > 0 && 2 * column->days >= texts) {
        *again = true;
        return take_dates(survey, column, error);
    }
    const bool has_unit = has_one_unit(column, &is_mixed);
    const int64_t odd = column->odd - (has_unit ? 0 : column->clues.words - column->clues.other_words);
    if (!is_settled && odd > 0 && 2 * (numbers + odd) >= numbers + texts) {
        take_notation(survey, column);
        if (has_unit) {
            memcpy(column->notation.unit, column->clues.word, sizeof column->notation.unit);
            note_partial_unit(column);
        }
        column->is_read_again = *again = true;
        return true;
    }
    if (is_mixed && numbers == 0) {
        snprintf(column->doubt, sizeof column->doubt,
                 "its values are numbers with different units, such as %s and others; it is read as text: write all "
                 "with one unit to have them read as numbers",
                 column->clues.word);
    }
    return decide_mixed(column, skips_faults, again, error) && check_units(column, error);
}

/* Marks are missing numbers, or texts. */
static void settle_marks(struct survey_column *column)
{
    if (column->use == USE_TARGET) {
        return;
    }
    const bool is_number = !column->is_category && (column->texts == 0 || column->numbers.count > 0) &&
                           (column->numbers.count > 0 || column->dates != DATES_AUTO);
    column->missing += is_number ? column->marks : 0;
    column->texts += is_number ? 0 : column->marks;
    column->marks = 0;
}

/* A data frame's index begins anew in each file. */
static bool is_nameless_index(const struct survey *survey, const struct survey_column *column)
{
    for (int i = 0; i < column->values.count; i++) {
        if (column->values.entries[i].count > survey->files) {
            return false;
        }
    }
    return !column->has_too_many || column->maximum < 2 * (double)survey->rows;
}

enum { FEW_ROWS = 20 /* so few that also other numbers may all be different */ };

/* Is its whole number another one in each row? */
static bool is_index(const struct survey *survey, const struct survey_column *column)
{
    const int64_t count = column->numbers.count;
    if (column->may_be_index == INDEX_NEVER || column->missing + column->texts + column->infinite > 0 ||
        !column->is_integer || count == 0 || column->minimum < 0) {
        return false;
    }
    if (column->may_be_index == INDEX_NAMELESS) {
        return is_nameless_index(survey, column);
    }
    const bool is_counter = column->maximum - column->minimum + 1 == (double)count;
    const bool are_known = !column->has_too_many, is_identifier = column->may_be_index == INDEX_IDENTIFIER;
    return count >= FEW_ROWS && (is_counter || (is_identifier && are_known)) &&
           (!are_known || column->values.count == count);
}

static void settle_column(struct survey_column *column)
{
    moments_settle(&column->numbers);
    for (int i = 0; column->calendar && i < DATE_PARTS; i++) {
        moments_settle(&column->calendar->parts[i]);
    }
}

bool survey_settle(struct survey *survey, bool skips_faults, bool *again, struct error *error)
{
    *again = false;
    for (int i = 0; i < survey->count; i++) {
        struct survey_column *column = &survey->columns[i];
        settle_column(column);
        if (column->use != USE_NOTHING && !decide(survey, column, skips_faults, again, error)) {
            return false;
        }
    }
    if (*again) {
        survey_forget(survey);
        return true;
    }
    for (int i = 0; i < survey->count; i++) {
        settle_marks(&survey->columns[i]);
        survey->columns[i].is_index = is_index(survey, &survey->columns[i]);
    }
    return true;
}

/* --- plain rows --- */

/*
 * Rows of plain numbers, which make up most large tables: columns are summed side by side, in strips whose sums stay in
 * registers. Each column's numbers are added in the order of survey_add, so the bits are the same.
 */

enum { STRIP = 4 /* neighbouring columns summed side by side */ };

/* Adjacent columns; what moments_add and survey_add_value do, in the same order for each. */
struct strip {
    double shift[STRIP], sum[STRIP], squares[STRIP], minimum[STRIP], maximum[STRIP];
};

static inline __attribute__((always_inline)) void add_rows(struct strip *strip, const double *numbers, size_t stride,
                                                           const int *places, int count, int width)
{
    struct strip sums = *strip;
    for (int i = 0; i < count; i++) {
        const double *row = numbers + (size_t)places[i] * stride;
        for (int j = 0; j < width; j++) {
            const double difference = row[j] - sums.shift[j];
            sums.sum[j] += difference;
            sums.squares[j] += difference * difference;
            sums.minimum[j] = row[j] < sums.minimum[j] ? row[j] : sums.minimum[j];
            sums.maximum[j] = row[j] > sums.maximum[j] ? row[j] : sums.maximum[j];
        }
    }
    *strip = sums;
}

/* Columns [first, first + width), those before `begin` being done already. Every chunk ends with the rows. */
static void add_strip(struct survey *survey, int first, int begin, int width, const double *numbers, const int *places,
                      int count)
{
    struct strip strip = {0};
    struct survey_column *columns = survey->columns + first;
    const double *at = numbers + first;
    for (int i = 0; i < width; i++) {
        const struct moments *moments = &columns[i].numbers;
        const bool begins = moments->in_chunk == 0;
        strip.shift[i] = begins ? at[(size_t)places[0] * (size_t)survey->count + (size_t)i] : moments->shift;
        strip.sum[i] = begins ? 0 : moments->sum;
        strip.squares[i] = begins ? 0 : moments->sum_squares;
        strip.minimum[i] = columns[i].minimum;
        strip.maximum[i] = columns[i].maximum;
    }
    if (width == STRIP) {
        add_rows(&strip, at, (size_t)survey->count, places, count, STRIP);
    } else {
        add_rows(&strip, at, (size_t)survey->count, places, count, width);
    }
    for (int i = begin - first; i < width; i++) {
        struct survey_column *column = &columns[i];
        if (!column->is_summed) {
            continue;
        }
        column->numbers.shift = strip.shift[i];
        column->numbers.sum = strip.sum[i];
        column->numbers.sum_squares = strip.squares[i];
        column->minimum = strip.minimum[i];
        column->maximum = strip.maximum[i];
        column->numbers.in_chunk += count;
        if (column->numbers.in_chunk == MOMENTS_CHUNK) {
            moments_settle(&column->numbers);
        }
    }
}

/* Rows until a column's chunk is full. */
static int rows_of_chunks(const struct survey *survey, int most)
{
    for (int i = 0; i < survey->count; i++) {
        const int left = MOMENTS_CHUNK - survey->columns[i].numbers.in_chunk;
        most = survey->columns[i].is_summed && left < most ? left : most;
    }
    return most;
}

static void sum_columns(struct survey *survey, const double *numbers, const int *places, int count)
{
    for (int done = 0, some; done < count; done += some) {
        some = rows_of_chunks(survey, count - done);
        for (int i = 0; i < survey->count; i += STRIP) {
            const bool fits = i + STRIP <= survey->count;
            const int first = fits || survey->count < STRIP ? i : survey->count - STRIP;
            const int width = survey->count < STRIP ? survey->count : STRIP;
            add_strip(survey, first, i, width, numbers, places + done, some);
        }
    }
}

static void find_fractions(struct survey *survey, const double *numbers, const int *places, int count)
{
    for (int i = 0; i < survey->count; i++) {
        struct survey_column *column = &survey->columns[i];
        for (int j = 0; j < count && column->is_integer && column->is_summed; j++) {
            const double number = numbers[(size_t)places[j] * (size_t)survey->count + (size_t)i];
            column->is_integer = number == trunc(number);
        }
    }
}

static void compare_plain(struct survey *survey, const double *row)
{
    for (int i = 0; i < survey->count; i++) {
        for (uint64_t left = survey->columns[i].same; left != 0; left &= left - 1) {
            const int target = __builtin_ctzll(left);
            if (row[i] != row[target]) {
                survey->columns[i].same &= ~((uint64_t)1 << target);
            }
        }
    }
}

static void keep_plain(struct survey *survey, const double *row)
{
    double *kept = sample_add(&survey->sample);
    for (int i = 0; kept && i < survey->count; i++) {
        const bool counts = survey->columns[i].use != USE_NOTHING || survey->counts_all;
        kept[i] = counts ? row[i] : (double)NAN;
    }
}

/* Columns that are not summed: their values are counted one by one. */
static bool collect_plain(struct survey *survey, const struct rows *rows, const struct row *row, struct error *error)
{
    for (int i = 0; i < survey->count; i++) {
        const struct survey_column *column = &survey->columns[i];
        if (!column->is_summed && (column->use != USE_NOTHING || survey->counts_all) &&
            !survey_add_value(survey, rows, row, i, NULL)) {
            return error_set(error, "%s: out of memory for the values of column %.64s", rows_name(rows), column->name);
        }
    }
    return true;
}

/* The work for each single row, if any. */
static bool add_singly(struct survey *survey, const struct rows *rows, const struct row *row, const int *places,
                       int count, struct error *error)
{
    bool compares = false, collects = false;
    const bool keeps = survey->sample.capacity > 0;
    for (int i = 0; i < survey->count; i++) {
        compares |= survey->columns[i].same != 0;
        collects |= survey->columns[i].is_collected;
    }
    for (int i = 0; (compares || collects || keeps) && i < count; i++) {
        const struct row one = row_behind(row, places[i]);
        if (keeps) {
            keep_plain(survey, one.numbers);
        }
        if (compares) {
            compare_plain(survey, one.numbers);
        }
        if (collects && !collect_plain(survey, rows, &one, error)) {
            return false;
        }
    }
    return true;
}

bool survey_add_plain(struct survey *survey, const struct rows *rows, const struct row *row, const int *places,
                      int count, struct error *error)
{
    for (int i = 0; i < survey->count; i++) {
        struct survey_column *column = &survey->columns[i];
        column->is_summed = !column->is_collected && (column->use != USE_NOTHING || survey->counts_all);
    }
    survey->rows += count;
    if (!add_singly(survey, rows, row, places, count, error)) {
        return false;
    }
    sum_columns(survey, row->numbers, places, count);
    find_fractions(survey, row->numbers, places, count);
    return true;
}
