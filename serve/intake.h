/*
 * Rows of requests on their way into a model: what clients send, encoded as training encoded it, one after another in
 * one set of examples, so that requests that come together are computed together.
 *
 * An intake belongs to a worker thread, and to one version at a time.
 */
#ifndef SERVE_INTAKE_H
#define SERVE_INTAKE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text/json_writer.h"
#include "serve/model.h"
#include "worker/data/table/csv.h"
#include "worker/data/table/encode.h"

struct intake {
    struct version *version; /* borrowed; gone, perhaps, before the next intake_begin */
    uint64_t version_id;
    int worker;             /* whose of the version's engines it is for */
    struct encoder encoder; /* of tables */
    struct examples examples;
    int room;      /* rows that there is memory for; examples.count counts those that are there */
    float *values; /* [room, inputs]: pictures as numbers, 0 to 1; only where `wide` */
    bool wide;     /* some pixels are no whole levels of grey... */
    int last_wide; /* ...the last time in this picture */
    int wide_room;
    void *row;              /* scratch for whoever reads rows: [inputs] floats, or a field for each column */
    bool keeps;             /* rows of tables are kept as they come, too: */
    struct text_buffer raw; /* by request_log_row */
    /* Of the request that is read just now: */
    bool may_lend;             /* its body stays until it is answered, so that pictures may be computed from there */
    struct examples lent;      /* bytes that are, instead of being added; count 0: none */
    const float *lent_numbers; /* of all its rows, of which some are no whole levels of grey; NULL: none */
};

/* Ready for this version's rows, with none yet; keeps its memory where it can. */
bool intake_begin(struct intake *intake, int worker, struct version *version, struct error *error);
void intake_end(struct intake *intake); /* frees all; fine on zeros */

/* Columns that rows are made of, in their order. */
int intake_columns(const struct version *version);
const char *intake_column_name(const struct version *version, int column);
bool intake_column_is_text(const struct version *version, int column);

/* A row of a table, [intake_columns] fields in that order; an empty one is missing. row: its number in the request. */
bool intake_add_fields(struct intake *intake, const struct csv_field *fields, int64_t row, struct error *error);

/* Pictures: bytes 0..255, or numbers of 0..1, [version_inputs]. */
bool intake_add_bytes(struct intake *intake, const uint8_t *pixels, struct error *error);
bool intake_add_numbers(struct intake *intake, const float *pixels, int64_t row, struct error *error);

/*
 * All pictures of a request, from its body. Where it may be lent and they are so many that they are a batch of their
 * own, they are computed from there, and none is copied. `pixels` must be as memory of their type is: numbers aligned,
 * and behind bytes HTTP_BODY_SLACK more. False: nothing was done, and they are to be added one by one; or *failed.
 */
bool intake_lend_bytes(struct intake *intake, const uint8_t *pixels, int64_t rows);
bool intake_lend_numbers(struct intake *intake, const float *pixels, int64_t rows, bool *failed, struct error *error);

/* Takes rows from `count` on out again. */
void intake_cut(struct intake *intake, int count);

#endif
