/* What the columns of a table hold, from a pass or two over its training rows. survey_schema.h makes a schema of it. */
#ifndef WORKER_DATA_TABLE_SURVEY_H
#define WORKER_DATA_TABLE_SURVEY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"
#include "base/error.h"
#include "worker/data/table/dictionary.h"
#include "worker/data/table/notation.h"
#include "worker/data/table/rows.h"
#include "worker/data/table/sample.h"
#include "worker/data/table/timestamp.h"

/*
 * Count, mean and deviation of numbers that come one by one. Sums are taken of differences from the first number of
 * each chunk, and chunks are merged by their means (Chan, Golub, LeVeque, 1979), so that a large mean costs no digits.
 */

enum { MOMENTS_CHUNK = 512 };

/* Starts as zeros. */
struct moments {
    int64_t count;        /* of the merged chunks */
    double mean, squares; /* squares: sum of squared differences from the mean */
    int in_chunk;
    double shift, sum, sum_squares; /* of the current chunk */
};

/* Merges the current chunk. Call it before reading count, mean and squares. */
static inline void moments_settle(struct moments *moments)
{
    if (moments->in_chunk == 0) {
        return;
    }
    const double n = moments->in_chunk, before = (double)moments->count, all = before + n;
    const double offset = moments->sum / n, difference = moments->shift + offset - moments->mean;
    moments->squares += moments->sum_squares - moments->sum * offset + difference * difference * before * n / all;
    moments->mean += difference * n / all;
    moments->count += moments->in_chunk;
    moments->in_chunk = 0;
}

static inline void moments_add(struct moments *moments, double number)
{
    if (moments->in_chunk == 0) {
        moments->shift = number;
        moments->sum = moments->sum_squares = 0;
    }
    const double difference = number - moments->shift;
    moments->sum += difference;
    moments->sum_squares += difference * difference;
    if (++moments->in_chunk == MOMENTS_CHUNK) {
        moments_settle(moments);
    }
}

/* What the config uses a column for. */
enum survey_use { USE_FEATURE, USE_TARGET, USE_WEIGHT, USE_NOTHING };

/* The parts of a column of dates. */
struct survey_dates {
    struct moments parts[DATE_PARTS];
    double minimum[DATE_PARTS], maximum[DATE_PARTS];
};

enum { SURVEY_DOUBT = 256 };

enum { SURVEY_EXAMPLES = 3, SURVEY_EXAMPLE = 24 };

struct survey_column {
    char *name;
    enum survey_use use;
    bool is_category; /* by the config, or because a first pass found texts among numbers */
    bool is_mixed;    /* it is a category for the latter reason */
    bool is_number;   /* because a first pass found few texts among numbers; these count as faults */
    /* Whether its whole numbers may identify the rows, by its name. */
    enum { INDEX_NEVER, INDEX_NAMELESS, INDEX_COUNTER, INDEX_IDENTIFIER } may_be_index;
    bool is_index;      /* they do */
    bool is_read_again; /* by a notation that a first pass found */
    /* How a first pass found its values to be written; plain, and DATES_AUTO, until then. */
    struct notation notation;
    enum table_dates dates;
    char doubt[SURVEY_DOUBT]; /* what is not certain about that; "": nothing */
    bool is_collected;        /* its values are counted one by one */
    bool is_summed;           /* together with its neighbours, in the current plain rows */
    bool has_too_many;        /* too many distinct values to count */
    size_t bytes;             /* of its values, approximately */
    uint64_t same; /* of a feature: bit mask of the first 64 columns, for targets equal to it in every row so far */
    int64_t missing, texts, infinite;
    /* Of the texts: which are numbers in another notation, or dates in an order; and marks, which are no texts. */
    int64_t odd, days, times, marks;
    unsigned orders, all_orders; /* those of all dates, and of any */
    struct notation_clues clues;
    int64_t with_unit;             /* of the numbers */
    int64_t padded;                /* of the numbers: whole ones with zeros in front, as codes are written */
    struct survey_dates *calendar; /* NULL: no dates */
    bool is_integer;               /* all numbers are integers */
    double minimum, maximum;
    /* Of a text file: how many numbers are the ends, and the next ones to them. */
    int64_t at_minimum, at_maximum;
    double next_minimum, next_maximum;
    struct moments numbers;
    struct dictionary values;
    char examples[SURVEY_EXAMPLES][SURVEY_EXAMPLE]; /* the first different values, if all are counted for people */
    struct dictionary others;                       /* texts among numbers, the first few */
    char first_text[512];                           /* an error message with the place of the first text or infinity */
};

struct survey {
    struct survey_column *columns; /* [count] */
    int count;
    int64_t rows;
    int files;
    char note[ROWS_NOTE]; /* of the first file with one (rows_note) */
    char delimiter;
    const struct config_data *data; /* borrowed */
    bool counts_all;                /* every column's values, for people to see */
    enum loss_kind loss;            /* from the config; decides which targets may be classes */
    enum table_encoding encoding;   /* of numbers; never ENCODING_AUTO */
    struct sample sample;           /* of all columns' numbers, if quantiles are needed */
    size_t bytes;                   /* of all columns' values, approximately */
};

/* Takes the columns from the first file and their use from the config. */
bool survey_begin(struct survey *survey, const struct rows *rows, const struct config *config, bool counts_all,
                  struct error *error);
void survey_free(struct survey *survey); /* safe on zeros */

/* Another file, with the same columns, follows. */
void survey_next_file(struct survey *survey);
/* All rows are to be added again: everything but the columns' kinds is reset. */
void survey_forget(struct survey *survey);

/* Records one row, whose columns are those of the first file. Fails only if out of memory. */
bool survey_add(struct survey *survey, const struct rows *rows, const struct row *row, struct error *error);

/* The same for `count` of the plain rows from this one on, given their ascending offsets from it. */
bool survey_add_plain(struct survey *survey, const struct rows *rows, const struct row *row, const int *places,
                      int count, struct error *error);

/* Counts a value of a column `times` times, within the limits of distinct values. Fails only if out of memory. */
bool survey_count(struct survey *survey, struct survey_column *column, const char *text, size_t size, int64_t times);

/*
 * Call it after the last row. *again: some columns taken for numbers are categories (or have faults to skip), so that
 * all rows must be added again; everything but the columns' kinds has been reset for that.
 */
bool survey_settle(struct survey *survey, bool skips_faults, bool *again, struct error *error);

/* False if the row has a fault, text among numbers or infinity; the error says where, and what to do. */
bool survey_accepts(const struct survey *survey, const struct rows *rows, const struct row *row, struct error *error);

/* A text that is different in nearly every row: a name, not a category. */
bool survey_is_name(const struct survey_column *column, int64_t rows);

/* True if data.target says that the model learns to reproduce its inputs. */
bool survey_learns_inputs(const struct config_data *data);

#endif
