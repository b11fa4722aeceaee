/*
 * The protocols of clients: KServe's Open Inference Protocol 2, TensorFlow Serving's REST interface 1, and plain posts
 * of CSV, NPY and pictures. docs/serving.md has examples.
 */
#ifndef SERVE_PROTOCOL_H
#define SERVE_PROTOCOL_H

#include "base/text/json.h"
#include "serve/work.h"
#include "worker/export/outcome.h"

extern const struct protocol protocol_open_inference;
extern const struct protocol protocol_tensorflow_predict;
extern const struct protocol protocol_tensorflow_classify;
extern const struct protocol protocol_tensorflow_regress;
extern const struct protocol protocol_tensorflow_explain;
extern const struct protocol protocol_plain;

/* Write a model's metadata: inputs, outputs, their types and shapes. */
void open_inference_describe(struct text_buffer *text, const struct served *served, const struct version *version);
void open_inference_configure(struct text_buffer *text, const struct served *served, const struct version *version);
void tensorflow_describe(struct text_buffer *text, const struct served *served, const struct version *version);

/* --- Shared by the protocols (json.c) --- */

/* A JSON body, validated and read in place. Unescaped copies of texts live as long as it is open. */
struct json_body {
    struct json_value root;
    size_t size;
    char *texts; /* [size], charged to the call; NULL until one is needed */
    size_t used;
    struct call *call;
};
/* Of the first `size` bytes of the call's body. */
bool json_open_body(struct json_body *body, struct call *call, size_t size, struct error *error);
void json_close_body(struct json_body *body);

/* Copies a string to `room`, truncated to its size; false: not a string. */
bool json_text(struct json_value value, char *room, size_t size);

/* Writes value `index` of an outcome; a probability as float32, like in binary answers. */
void json_outcome(struct text_buffer *text, const struct outcome *outcome, int index);

/* Reads an integer from 0 to 2^30. */
bool json_count(struct json_value value, int64_t *count);

/* --- Tensors --- */

/*
 * Typed values: every route decodes its values here, so that they mean the same in each. A tensor's type is declared
 * once and decides: what it cannot hold is an error, not another value. JSON without a declared type (TENSOR_ANY) has
 * texts and numbers as a table's file has them; for pictures its largest value decides (intake_add_undeclared).
 */

enum tensor_type {
    TENSOR_ANY,
    TENSOR_BOOL,
    TENSOR_UINT8,
    TENSOR_UINT16,
    TENSOR_UINT32,
    TENSOR_UINT64,
    TENSOR_INT8,
    TENSOR_INT16,
    TENSOR_INT32,
    TENSOR_INT64,
    TENSOR_FP16,
    TENSOR_BF16,
    TENSOR_FP32,
    TENSOR_FP64,
    TENSOR_BYTES,
    TENSOR_TYPES
};

/* Values of one input, in JSON or as bytes. */
struct tensor {
    struct json_value name;
    enum tensor_type type;
    int64_t rows;
    size_t width;           /* values per row */
    const uint8_t *bytes;   /* little-endian; NULL: they are in `data` */
    size_t size;            /* of the bytes; for TENSOR_BYTES each value is its length, 4 bytes, followed by itself */
    struct json_value data; /* nested or flat */
};

const char *tensor_type_name(enum tensor_type type);
size_t tensor_type_size(enum tensor_type type);                        /* bytes of a value; 0: they vary */
bool tensor_type_find(struct json_value name, enum tensor_type *type); /* "FP32"; false: there is no such type */

/* Add a tensor of pictures; or a table's columns, one tensor each, or one of all of them in order. */
bool tensor_add_pictures(struct intake *intake, const struct tensor *tensor, struct error *error);
bool tensor_add_table(struct json_body *body, struct intake *intake, const struct tensor *tensors, int count,
                      struct error *error);

/* Adds a picture of values already read, as its type says. values: [inputs], overwritten. */
bool tensor_add_picture(struct intake *intake, enum tensor_type type, float *values, int64_t row, struct error *error);

/*
 * Adds rows of JSON without a declared type: objects by column name, arrays in the columns' order, pictures flat or as
 * arrays of lines.
 */
bool tensor_add_rows(struct json_body *body, struct intake *intake, struct json_value rows, struct error *error);

#endif
