/*
 * What clients speak: KServe's Open Inference Protocol 2, TensorFlow Serving's REST interface 1, and plain posts of
 * CSV, NPY and pictures. docs/serving.md has the examples.
 */
#ifndef SERVE_PROTOCOL_H
#define SERVE_PROTOCOL_H

#include "base/text/json_value.h"
#include "serve/work.h"
#include "worker/export/outcome.h"

extern const struct protocol protocol_open_inference;
extern const struct protocol protocol_tensorflow_predict;
extern const struct protocol protocol_tensorflow_classify;
extern const struct protocol protocol_plain;

/* What is to be known before a request: inputs, outputs, their types and shapes. */
void open_inference_describe(struct text_buffer *text, const struct served *served, const struct version *version);
void tensorflow_describe(struct text_buffer *text, const struct served *served, const struct version *version);

/* --- What they share (json.c) --- */

/* A body as JSON: checked, and read where it stands. Texts with escapes are kept without them while it is open. */
struct json_body {
    struct json_value root;
    size_t size;
    char *texts; /* [size]; NULL until one is needed */
    size_t used;
};
bool json_open_body(struct json_body *body, const uint8_t *bytes, size_t size, struct error *error);
void json_close_body(struct json_body *body);

/* A scalar as a field of a table; an array of one scalar counts as that. */
bool json_field(struct json_body *body, struct json_value value, struct csv_field *field, struct error *error);

/* A text, in `room`, cut to its size; false: it is none. */
bool json_text(struct json_value value, char *room, size_t size);

/* Value `index` of an outcome; a probability as the float32 that binary answers have. */
void json_outcome(struct text_buffer *text, const struct outcome *outcome, int index);

/* An integer of 0 to 2^30. */
bool json_count(struct json_value value, int64_t *count);

/* Numbers of an array, nested or flat, up to `most` of them; *whole: all are written as integers. */
bool json_numbers(struct json_value array, float *values, size_t most, size_t *count, bool *whole, struct error *error);

/*
 * Rows as TensorFlow Serving's clients and others send them: objects by column, arrays in the columns' order, pictures
 * flat or as arrays of lines.
 */
bool json_add_rows(struct json_body *body, struct intake *intake, struct json_value rows, struct error *error);

/* Columns of values: {"age": [40, 41], "city": ["Ulm", "Bonn"]}. */
bool json_add_columns(struct json_body *body, struct intake *intake, struct json_value columns, struct error *error);

#endif
