/*
 * A trained model as an ONNX file: Gemm and the activation for each layer, preceded by a table's preprocessing and
 * followed by the interpretation of the outputs. Format: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto,
 * operator set 13.
 *
 * For pictures: input "images", float32 [batch, inputs]: pixels divided by 255; outputs "logits" and "probabilities",
 * float32 [batch, classes]. Tables: worker/export/onnx.c.
 */
#ifndef WORKER_EXPORT_ONNX_H
#define WORKER_EXPORT_ONNX_H

#include <stdbool.h>
#include <stdint.h>

#include "base/encoding/proto.h"
#include "base/error.h"
#include "ps/store/model.h"

struct schema;

/* One metadata entry. */
struct onnx_property {
    const char *key, *value;
};

struct onnx_model {
    const struct model *model;
    const float *parameters;     /* [model->float_count] in the model's layout */
    const struct schema *schema; /* of a table; NULL: pictures */
    double threshold;            /* as in struct trained, like the next */
    double temperature;
    const struct interval *interval; /* around predicted numbers; coverage 0, or NULL: none */
    const struct onnx_property *properties;
    int property_count;
};

/* The message in `proto` is the whole file; the caller calls proto_free, also after a failure. */
bool onnx_encode(struct proto *proto, const struct onnx_model *model, struct error *error);

#endif
