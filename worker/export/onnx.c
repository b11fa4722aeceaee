/* Field numbers are those of onnx.proto, named in comments where they are used. */
#include "worker/export/onnx.h"

#include <stdio.h>

#include "base/version.h"

enum {
    IR_VERSION = 7, /* the version of operator set 13; supported by onnxruntime since 1.6 */
    OPSET = 13,
    TYPE_FLOAT = 1,          /* TensorProto.DataType */
    MOST_BYTES = 0x7FF00000, /* protobuf's limit of 2 GiB, with room for names */
};

/* ModelProto, GraphProto, NodeProto, TensorProto, ValueInfoProto */
enum {
    MODEL_IR = 1,
    MODEL_PRODUCER = 2,
    MODEL_VERSION = 3,
    MODEL_DOC = 6,
    MODEL_GRAPH = 7,
    MODEL_OPSET = 8,
    MODEL_META = 14
};
enum { GRAPH_NODE = 1, GRAPH_NAME = 2, GRAPH_TENSOR = 5, GRAPH_INPUT = 11, GRAPH_OUTPUT = 12 };
enum { NODE_INPUT = 1, NODE_OUTPUT = 2, NODE_NAME = 3, NODE_OP = 4 };
enum { TENSOR_DIMS = 1, TENSOR_TYPE = 2, TENSOR_NAME = 8, TENSOR_RAW = 9 };

static void put_node(struct proto *proto, const char *op, const char *name, const char *const *inputs, int input_count,
                     const char *output)
{
    size_t node = proto_begin(proto, GRAPH_NODE);
    for (int i = 0; i < input_count; i++) {
        proto_text(proto, NODE_INPUT, inputs[i]);
    }
    proto_text(proto, NODE_OUTPUT, output);
    proto_text(proto, NODE_NAME, name);
    proto_text(proto, NODE_OP, op);
    proto_end(proto, node);
}

static void put_tensor(struct proto *proto, const struct variable *variable, const float *values)
{
    int64_t shape[2] = {variable->is_weights ? variable->rows : variable->cols, variable->cols};
    size_t tensor = proto_begin(proto, GRAPH_TENSOR);
    proto_packed_integers(proto, TENSOR_DIMS, shape, variable->is_weights ? 2 : 1);
    proto_integer(proto, TENSOR_TYPE, TYPE_FLOAT);
    proto_text(proto, TENSOR_NAME, variable->name);
    size_t raw = proto_begin(proto, TENSOR_RAW);
    for (int row = 0; row < variable->rows; row++) {
        proto_raw(proto, values + variable->offset + (size_t)row * (size_t)variable->stride,
                  (size_t)variable->cols * sizeof *values);
    }
    proto_end(proto, raw);
    proto_end(proto, tensor);
}

/* ValueInfoProto of float [batch, width]. */
static void put_value(struct proto *proto, int field, const char *name, int width)
{
    size_t value = proto_begin(proto, field);
    proto_text(proto, 1, name);
    size_t type = proto_begin(proto, 2), tensor = proto_begin(proto, 1); /* TypeProto.tensor_type */
    proto_integer(proto, 1, TYPE_FLOAT);
    size_t shape = proto_begin(proto, 2), batch = proto_begin(proto, 1);
    proto_text(proto, 2, "batch"); /* dim_param */
    proto_end(proto, batch);
    size_t dimension = proto_begin(proto, 1);
    proto_integer(proto, 1, width); /* dim_value */
    proto_end(proto, dimension);
    proto_end(proto, shape);
    proto_end(proto, tensor);
    proto_end(proto, type);
    proto_end(proto, value);
}

static void put_layers(struct proto *proto, const struct model *model)
{
    static const char *const operators[] = {[ACTIVATION_RELU] = "Relu",
                                            [ACTIVATION_SIGMOID] = "Sigmoid",
                                            [ACTIVATION_TANH] = "Tanh",
                                            [ACTIVATION_IDENTITY] = "Identity"};
    char input[32] = "images", sums[32], name[32], output[32];
    for (int layer = 0; layer < model->layer_count; layer++) {
        bool last = layer == model->layer_count - 1;
        snprintf(sums, sizeof sums, last ? "logits" : "layer%d/sums", layer);
        snprintf(name, sizeof name, "layer%d/gemm", layer);
        const char *inputs[] = {input, model->variables[2 * layer].name, model->variables[2 * layer + 1].name};
        put_node(proto, "Gemm", name, inputs, 3, sums);
        if (last) {
            break;
        }
        snprintf(name, sizeof name, "layer%d/activation", layer);
        snprintf(output, sizeof output, "layer%d/activations", layer);
        put_node(proto, operators[model->activation], name, (const char *[]){sums}, 1, output);
        snprintf(input, sizeof input, "%s", output);
    }
    put_node(proto, "Softmax", "softmax", (const char *[]){"logits"}, 1, "probabilities");
}

bool onnx_encode(struct proto *proto, const struct model *model, const float *parameters,
                 const struct onnx_property *properties, int property_count, struct error *error)
{
    int classes = model->widths[model->layer_count];
    *proto = (struct proto){0};
    if (model->parameter_count * sizeof *parameters > MOST_BYTES) {
        return error_set(
            error,
            "the model has %zu MiB of parameters, but an ONNX file holds at most 2 GiB; use --format=safetensors",
            model->parameter_count * sizeof *parameters >> 20);
    }
    proto_integer(proto, MODEL_IR, IR_VERSION);
    proto_text(proto, MODEL_PRODUCER, "trainer");
    proto_text(proto, MODEL_VERSION, version_trainer());
    proto_text(proto, MODEL_DOC, "images: float32 [batch, inputs], pixels divided by 255");
    size_t graph = proto_begin(proto, MODEL_GRAPH);
    put_layers(proto, model);
    proto_text(proto, GRAPH_NAME, "trainer");
    for (int i = 0; i < model->variable_count; i++) {
        put_tensor(proto, &model->variables[i], parameters);
    }
    put_value(proto, GRAPH_INPUT, "images", model->widths[0]);
    put_value(proto, GRAPH_OUTPUT, "logits", classes);
    put_value(proto, GRAPH_OUTPUT, "probabilities", classes);
    proto_end(proto, graph);
    size_t opset = proto_begin(proto, MODEL_OPSET);
    proto_text(proto, 1, "");
    proto_integer(proto, 2, OPSET);
    proto_end(proto, opset);
    for (int i = 0; i < property_count; i++) {
        size_t property = proto_begin(proto, MODEL_META);
        proto_text(proto, 1, properties[i].key);
        proto_text(proto, 2, properties[i].value);
        proto_end(proto, property);
    }
    return !proto->failed ||
           error_set(error, "out of memory for an ONNX file of %zu parameters", model->parameter_count);
}
