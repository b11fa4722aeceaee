/*
 * A trained model as an ONNX file: Gemm and the activation for each layer, then Softmax. Format:
 * https://github.com/onnx/onnx/blob/main/onnx/onnx.proto, operator set 13.
 *
 * Input "images", float32 [batch, inputs]: pixels divided by 255. Outputs "logits" and "probabilities", float32
 * [batch, classes].
 */
#ifndef WORKER_EXPORT_ONNX_H
#define WORKER_EXPORT_ONNX_H

#include <stdbool.h>
#include <stdint.h>

#include "base/encoding/proto.h"
#include "base/error.h"
#include "ps/store/model.h"

/* One metadata entry. */
struct onnx_property {
    const char *key, *value;
};

/*
 * parameters: [model->float_count] in the model's layout. The message in `proto` is the whole file; the caller calls
 * proto_free, also after a failure.
 */
bool onnx_encode(struct proto *proto, const struct model *model, const float *parameters,
                 const struct onnx_property *properties, int property_count, struct error *error);

#endif
