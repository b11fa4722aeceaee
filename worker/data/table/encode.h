/* Encodes rows of a file as a model's first-layer inputs, by its schema. Columns are matched by name, in any order. */
#ifndef WORKER_DATA_TABLE_ENCODE_H
#define WORKER_DATA_TABLE_ENCODE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "worker/data/examples.h"
#include "worker/data/table/rows.h"
#include "worker/data/table/schema.h"

/* Numbers to scale: the file's column `from` becomes the input `to`. */
struct encoder_numbers {
    int count;
    bool are_neighbours; /* adjacent columns become adjacent inputs */
    bool is_wide;        /* the processor has AVX2 */
    int *from, *to;
    double *centers, *scales, *lows, *highs;
    const struct schema_column **columns;
};

struct encoder {
    const struct schema *schema;    /* borrowed */
    int *sources;                   /* [schema->count]: the file's column of each; -1: missing, allowed for a weight */
    bool learns;                    /* targets are wanted, too */
    bool classes_are_numbers;       /* and compared as such */
    struct encoder_numbers numbers; /* features, of plain rows (struct row) */
    int first_other;                /* the columns before it are such features, without missing values */
};

/* Finds the schema's columns in a file; one that is missing is an error. The caller calls encoder_end in any case. */
bool encoder_begin(struct encoder *encoder, const struct schema *schema, const struct rows *rows, bool learns,
                   struct error *error);

/*
 * For rows that are not from a file: a row has only the schema's features, in their order. encoder_add then takes rows
 * NULL, and its errors begin with "row N: ".
 */
bool encoder_begin_direct(struct encoder *encoder, const struct schema *schema, struct error *error);
void encoder_end(struct encoder *encoder);

/*
 * Encodes the row as example `index` of a set that encoder_allocate made. Fails if a field is not what the schema
 * expects: the error says where, and what to do.
 */
bool encoder_add(const struct encoder *encoder, const struct rows *rows, const struct row *row,
                 struct examples *examples, int index, struct error *error);

/*
 * False if the row's target is a class that the schema lacks; its name is then written to `name`, unless that has text
 * already. True of other schemas, and of rows that say nothing.
 */
bool encoder_knows_class(const struct encoder *encoder, const struct row *row, char *name, size_t size);

/* The shape of examples of this schema, with a count of 0. */
struct examples encoder_shape(const struct schema *schema);

/* Allocates `count` rows, with targets if `learns`, and with weights if the schema has some. */
bool encoder_allocate(struct examples *examples, const struct schema *schema, int count, bool learns,
                      struct error *error);

#endif
