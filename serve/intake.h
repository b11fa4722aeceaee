/*
 * Encodes clients' rows as training encoded them, and collects them in one set of examples, so that concurrent requests
 * are computed together.
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

/* Of pixels without a declared type; unknown while all are 0 or 1. */
enum intake_scale { SCALE_UNKNOWN, SCALE_UNIT, SCALE_LEVELS };

struct intake {
    struct version *version; /* borrowed; may be gone before the next intake_begin */
    uint64_t version_id;
    int worker;             /* index of the version's engine that it is for */
    struct encoder encoder; /* of tables */
    struct examples examples;
    size_t row_bytes; /* of the examples */
    size_t inputs;
    int room;      /* rows allocated; examples.count is the number in use */
    float *values; /* [room, inputs]: pictures as numbers, 0 to 1; only where `wide` */
    bool wide;     /* some pixels are not whole levels of grey... */
    int last_wide; /* ...the last time in this picture */
    int wide_room;
    void *row;              /* scratch for reading rows: [inputs] floats, or a field for each column */
    bool keeps;             /* rows of tables are also kept in raw form: */
    struct text_buffer raw; /* by request_log_row */
    /* Of the request being read: */
    struct budget_account *account; /* its rows are charged here; NULL: nowhere */
    size_t charged;
    struct budget_account *shared; /* charged for what all requests of a batch need; used where `account` is set */
    int rows, charged_rows;
    int first_row; /* in the examples */
    enum intake_scale scale;
    bool may_lend;             /* its body stays until it is answered, so pictures may be computed from it */
    struct examples lent;      /* bytes lent instead of added; count 0: none */
    const float *lent_numbers; /* of all its rows, some not whole levels of grey; NULL: none */
};

/*
 * Begins a request's rows. They are charged to its account as they are added, and the caller moves or releases
 * intake->charged. No rows are added for a client that has gone.
 */
void intake_charge(struct intake *intake, struct budget_account *account);

/* Prepares for this version's rows, starting with none; reuses memory where possible. */
bool intake_begin(struct intake *intake, int worker, struct version *version, struct error *error);
void intake_end(struct intake *intake); /* frees all; fine on zeros */

/* The columns of rows, in order. */
int intake_columns(const struct version *version);
const char *intake_column_name(const struct version *version, int column);
bool intake_column_is_text(const struct version *version, int column);

/* What was seen in training, for people: `"categories": [...]`, or `"typical": [low, high]` of a number, if known. */
void intake_describe_column(struct text_buffer *text, const struct version *version, int column);

/*
 * Adds a table row of [intake_columns] fields in that order; an empty one is missing. row: its number in the request.
 */
bool intake_add_fields(struct intake *intake, const struct csv_field *fields, int64_t row, struct error *error);

/* Add a picture: bytes 0..255, or numbers 0..1, [version_inputs]. */
bool intake_add_bytes(struct intake *intake, const uint8_t *pixels, struct error *error);
/* A picture as in a file (worker/data/image.h), of any size; it is fitted as in training. */
bool intake_add_picture(struct intake *intake, const uint8_t *bytes, size_t size, struct error *error);
bool intake_add_numbers(struct intake *intake, const float *pixels, int64_t row, struct error *error);

/*
 * The same for numbers without a declared type, overwritten: all pictures of a request together decide. If one is above
 * 1 they are whole levels of grey, 0..255; else they are 0..1, however they are written.
 */
bool intake_add_undeclared(struct intake *intake, float *pixels, int64_t row, struct error *error);

/*
 * Take all pictures of a request from its body. If the body may be lent and holds enough pictures for a batch of its
 * own, they are computed in place, without a copy. `pixels`: numbers must be aligned; after bytes, HTTP_BODY_SLACK more
 * must be readable. False: nothing was done, and the caller adds them one by one; or *failed.
 */
bool intake_lend_bytes(struct intake *intake, const uint8_t *pixels, int64_t rows);
bool intake_lend_numbers(struct intake *intake, const float *pixels, int64_t rows, bool *failed, struct error *error);

/* Frees memory that many rows took, once they are answered: little is kept for the next requests. */
void intake_shrink(struct intake *intake);

/* Removes the rows from `count` on. */
void intake_cut(struct intake *intake, int count);

#endif
