/*
 * The preprocessing of a table, part of the model that was trained on it: which columns become which inputs and
 * targets, how numbers are scaled, which categories have their own input.
 *
 * The inputs of a row are first its numbers, then a place for every category. A number is brought to the range from low
 * to high, which is what training saw and a tenth more on either side, and becomes (x - center) / scale; a missing one
 * becomes `fill`, and sets the column's indicator, one more place. A date becomes several numbers: those of its parts
 * that vary.
 *
 * Encoded piecewise linearly (Gorishniy et al., "On embeddings for numerical features in tabular deep learning", 2022),
 * a number becomes an input for each bin between two edges: 0 below it, 1 above it, and within it the share of it. A
 * part of a date has one bin. A number that was the same in all rows of training has none.
 *
 * In a column of categories exactly one place is 1: the first stands for rare or unseen values, then one for
 * each category in order, then one for missing values if there were any.
 *
 * The checkpoint stores it as JSON. Doubles are written so that they read back with the same bits.
 */
#ifndef WORKER_DATA_TABLE_SCHEMA_H
#define WORKER_DATA_TABLE_SCHEMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/config.h"
#include "base/error.h"
#include "worker/data/table/dictionary.h"
#include "worker/data/table/notation.h"
#include "worker/data/table/timestamp.h"

enum schema_role { SCHEMA_FEATURE, SCHEMA_TARGET, SCHEMA_WEIGHT };
enum schema_kind { SCHEMA_NUMBER, SCHEMA_CATEGORY, SCHEMA_DATE };

/* One input of a date. */
struct schema_part {
    enum date_part part;
    double center, scale, fill;
    double low, high; /* the bin; if numbers are encoded */
};

/* The target to learn. */
enum schema_task {
    TASK_CLASS,   /* one of the categories of the one target */
    TASK_FLAGS,   /* independent targets of 0 or 1 */
    TASK_NUMBERS, /* targets as numbers */
    TASK_INPUTS,  /* the inputs themselves */
};

struct schema_column {
    char *name;
    enum schema_role role;
    enum schema_kind kind;
    bool may_miss; /* values were missing: it has an indicator, or a place for them */
    double center, scale, fill;
    struct notation notation; /* how its numbers are written */
    enum table_dates dates;   /* the order of a date's parts; of SCHEMA_DATE */
    struct schema_part parts[DATE_PARTS];
    int part_count;
    double low, high; /* of a number; infinite: any */
    double *edges;    /* [edge_count]: of a number's bins, ascending; NULL: it has none */
    int edge_count;
    struct dictionary categories; /* in order; of SCHEMA_CATEGORY */
    int input;                    /* index of a number, of a date's first part, or of a target; -1: none */
    int piece;                    /* index among the encoded numbers, of a date's first part; -1: none */
    int bin;                      /* index of its first bin among all; -1: none */
    int place;                    /* its first place, from 0; -1: none */
    int code;                     /* index among a row's codes; -1: none */
};

struct schema {
    struct schema_column *columns; /* [count]: features, then targets, then the weight */
    int count;
    enum schema_task task;
    struct string_list missing;           /* texts that stand for a missing value, besides the usual ones */
    enum table_encoding encoding;         /* which views of numbers its examples have; auto: none */
    int numbers, codes, inputs;           /* as in struct examples; numbers: counted even if there are only bins */
    int piecewise, *bins;                 /* as in struct examples */
    int dense;                            /* inputs before the places */
    int classes, targets;                 /* outputs of the model: classes of TASK_CLASS, else targets */
    double *target_means, *target_scales; /* [targets], of TASK_NUMBERS: a target is mean + scale x value; else NULL */
    char *text;                           /* JSON */
};

/* A zeroed schema may be freed. */
void schema_free(struct schema *schema);

/* Adds a column with a copy of the name; NULL if out of memory. The pointer is valid until the next column is added. */
struct schema_column *schema_add(struct schema *schema, const char *name, enum schema_role role, enum schema_kind kind);

/* Takes a copy of the texts. */
bool schema_set_missing(struct schema *schema, const struct string_list *missing);

/* The number of inputs that a feature has among the numbers. */
static inline int schema_numbers(const struct schema_column *column)
{
    return column->kind == SCHEMA_NUMBER ? 1 : column->kind == SCHEMA_DATE ? column->part_count : 0;
}

/* The number of encoded numbers that a feature has. */
static inline int schema_pieces(const struct schema_column *column)
{
    return column->kind == SCHEMA_NUMBER ? column->edge_count > 1 : schema_numbers(column);
}

/* The edges of an encoded number of a feature, of which the caller says the date's part; *count: at least 2. */
const double *schema_edges(const struct schema_column *column, int part, double of_part[2], int *count);

/* Takes a copy of the edges. */
bool schema_set_edges(struct schema_column *column, const double *edges, int count);

/* Call it after adding all columns: assigns their places and makes the text. */
bool schema_finish(struct schema *schema, struct error *error);

/* Leaves the encoding of numbers out, and finishes again, or for the first time if that has failed. */
bool schema_take_raw(struct schema *schema, struct error *error);

/* Parses the text, which need not be trusted. */
bool schema_parse(struct schema *schema, const char *text, struct error *error);

/* True if both are identical to the bit; otherwise the error names the difference: "column age: its mean ...". */
bool schema_same(const struct schema *there, const struct schema *here, struct error *error);

/* The same for a checkpoint's text; either may be NULL, for pictures. path: of the checkpoint. */
bool schema_check(const char *path, const char *there, const struct schema *here, struct error *error);

/* The number of the model's outputs. */
static inline int schema_outputs(const struct schema *schema)
{
    return schema->task == TASK_CLASS ? schema->classes : schema->targets;
}

/* The loss that suits the task. */
enum loss_kind schema_usual_loss(const struct schema *schema);

/* The number of columns to learn from. */
int schema_features(const struct schema *schema);

/* The name of a class, or of a target. */
const char *schema_output_name(const struct schema *schema, int output);

/* The first target; NULL: TASK_INPUTS. */
const struct schema_column *schema_target(const struct schema *schema, int target);

#endif
