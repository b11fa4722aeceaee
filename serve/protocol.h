/*
 * The protocols of clients: KServe's Open Inference Protocol 2, TensorFlow Serving's REST interface 1, and plain posts
 * of CSV, NPY and pictures. docs/serving.md has examples.
 */
#ifndef SERVE_PROTOCOL_H
#define SERVE_PROTOCOL_H

#include "base/text/json_value.h"
#include "serve/work.h"
#include "worker/export/outcome.h"

extern const struct protocol protocol_open_inference;
extern const struct protocol protocol_tensorflow_predict;
extern const struct protocol protocol_tensorflow_classify;
extern const struct protocol protocol_tensorflow_regress;
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

#endif
