/* Rows of a file into what a model's first layer sees, by its schema. Columns are matched by name, in any order. */
#ifndef WORKER_DATA_TABLE_ENCODE_H
#define WORKER_DATA_TABLE_ENCODE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "worker/data/examples.h"
#include "worker/data/table/rows.h"
#include "worker/data/table/schema.h"

/* Numbers that are scaled: of the file's column `from` the input `to`. */
struct encoder_numbers {
    int count;
    bool are_neighbours; /* columns one beside another become inputs one beside another */
    bool is_wide;        /* the processor has AVX2 */
    int *from, *to;
    double *centers, *scales;
};

struct encoder {
    const struct schema *schema; /* borrowed */
    int *sources;                /* [schema->count]: the file's column of each; -1: not there, which a weight may be */
    bool learns;                 /* targets are wanted, too */
    struct encoder_numbers numbers; /* features, of plain rows (struct row) */
    int first_other;                /* columns before it are such features, which never miss */
};

/* Finds the schema's columns in a file; one that is missing is an error. The caller calls encoder_end in any case. */
bool encoder_begin(struct encoder *encoder, const struct schema *schema, const struct rows *rows, bool learns,
                   struct error *error);

/*
 * For rows that are no file's: a row has the schema's features alone, in their order. encoder_add then takes no rows,
 * and its errors begin "row N: ".
 */
bool encoder_begin_direct(struct encoder *encoder, const struct schema *schema, struct error *error);
void encoder_end(struct encoder *encoder);

/*
 * Makes the row the example `index` of a set that encoder_allocate made. Fails if a field is not what the schema
 * expects: the error says where, and what to do.
 */
bool encoder_add(const struct encoder *encoder, const struct rows *rows, const struct row *row,
                 struct examples *examples, int index, struct error *error);

/* What examples of this schema look like: none yet. */
struct examples encoder_shape(const struct schema *schema);

/* Room for `count` rows; with targets if they are wanted, and with weights if the schema has some. */
bool encoder_allocate(struct examples *examples, const struct schema *schema, int count, bool learns,
                      struct error *error);

#endif
