/*
 * What is in the columns of a table: one pass over its training rows. From it and the config follow the types, and the
 * schema.
 */
#ifndef WORKER_DATA_TABLE_SURVEY_H
#define WORKER_DATA_TABLE_SURVEY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"
#include "base/error.h"
#include "worker/data/table/dictionary.h"
#include "worker/data/table/moments.h"
#include "worker/data/table/rows.h"
#include "worker/data/table/sample.h"
#include "worker/data/table/schema.h"

/* What the config has a column for. */
enum survey_use { USE_FEATURE, USE_TARGET, USE_WEIGHT, USE_NOTHING };

struct survey_column {
    char *name;
    enum survey_use use;
    bool is_category;  /* by the config, or by a first pass that found texts among numbers */
    bool is_number;    /* by a first pass that found few texts among numbers, which are faults then */
    bool is_collected; /* its values are counted one by one */
    bool is_summed;    /* with its neighbours, in the plain rows under way */
    bool has_too_many; /* different values to count */
    size_t bytes;      /* of its values, about */
    uint64_t same;     /* of a feature: which of the first 64 columns are targets that have been equal in every row */
    int64_t missing, texts, infinite;
    int64_t commas;  /* texts that are numbers in countries which write 1,5 for one and a half */
    bool is_integer; /* no number is anything else */
    double minimum, maximum;
    struct moments numbers;
    struct dictionary values;
    char first_text[512]; /* where the first text, or infinity, is: an error */
};

struct survey {
    struct survey_column *columns; /* [count] */
    int count;
    int64_t rows;
    bool counts_all;      /* every column's values, for people to see */
    enum loss_kind loss;  /* of the config: which targets may be classes */
    struct sample sample; /* of all columns' numbers, where quantiles are asked for */
    size_t bytes;         /* of all columns' values, about */
};

/* Takes the columns from the first file and their use from the config. */
bool survey_begin(struct survey *survey, const struct rows *rows, const struct config *config, bool counts_all,
                  struct error *error);
void survey_free(struct survey *survey); /* safe on zeros */

/* Takes down one row, whose columns are those of the first file. Fails only if out of memory. */
bool survey_add(struct survey *survey, const struct rows *rows, const struct row *row, struct error *error);

/* The same of `count` of the rows that are plain from this one on, by their places behind it in order. */
bool survey_add_plain(struct survey *survey, const struct rows *rows, const struct row *row, const int *places,
                      int count, struct error *error);

/*
 * After the last row. *again: what was taken for numbers are categories (or has faults to be skipped), so that all rows
 * are to be added once more; then everything but the columns' kinds is forgotten.
 */
bool survey_settle(struct survey *survey, bool skips_faults, bool *again, struct error *error);

/* Does the row hold a fault: text where numbers are, or infinity? The error says where and what to do. */
bool survey_accepts(const struct survey *survey, const struct rows *rows, const struct row *row, struct error *error);

/* The schema that follows; name: of the data, for errors. Logs warnings about columns that teach nothing. */
bool survey_schema(struct survey *survey, const struct config *config, const char *name, struct schema *schema,
                   struct error *error);

#endif
