/*
 * Rows of plain numbers, which make up most large tables: columns are summed side by side, in strips whose sums stay in
 * registers. Each column's numbers are added in the order of survey_add, so the bits are the same.
 */
#include "worker/data/table/survey.h"

#include <math.h>

enum { STRIP = 4 /* neighbouring columns summed side by side */ };

/* --- Columns of numbers, side by side --- */

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

/* --- The rest, row by row --- */

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
