/* The file around the graph, and the layers within it; other parts are onnx_graph.c's and onnx_table.c's. */
#include "worker/export/onnx.h"

#include <stdio.h>

#include "base/version.h"
#include "worker/export/onnx_graph.h"
#include "worker/export/onnx_table.h"

enum {
    IR_VERSION = 7, /* the version of operator set 13; supported by onnxruntime since 1.6 */
    OPSET = 13,
    ML_OPSET = 2,
    MOST_BYTES = 0x7FF00000, /* protobuf's limit of 2 GiB, with room for names */
};

/* ModelProto, GraphProto; OperatorSetIdProto */
enum {
    MODEL_IR = 1,
    MODEL_PRODUCER = 2,
    MODEL_VERSION = 3,
    MODEL_DOC = 6,
    MODEL_GRAPH = 7,
    MODEL_OPSET = 8,
    MODEL_META = 14
};
enum { GRAPH_NAME = 2 };
enum { OPSET_DOMAIN = 1, OPSET_VERSION = 2 };

static void put_variable(struct proto *graph, const struct variable *variable, const float *values)
{
    int64_t shape[2] = {variable->is_weights ? variable->rows : variable->cols, variable->cols};
    size_t raw,
        tensor = onnx_tensor_begin(graph, variable->name, ONNX_FLOAT, shape, variable->is_weights ? 2 : 1, &raw);
    for (int row = 0; row < variable->rows; row++) {
        proto_raw(graph, values + variable->offset + (size_t)row * (size_t)variable->stride,
                  (size_t)variable->cols * sizeof *values);
    }
    onnx_tensor_end(graph, tensor, raw);
}

/* From the first layer's input on; or, for a table, from its sums, which are there already. */
static void put_layers(struct proto *graph, const struct model *model, const char *logits, bool has_first)
{
    static const char *const operators[] = {[ACTIVATION_RELU] = "Relu",
                                            [ACTIVATION_SIGMOID] = "Sigmoid",
                                            [ACTIVATION_TANH] = "Tanh",
                                            [ACTIVATION_IDENTITY] = "Identity"};
    char input[32] = "images", sums[32], name[32], output[32];
    for (int layer = 0; layer < model->layer_count; layer++) {
        bool last = layer == model->layer_count - 1;
        snprintf(sums, sizeof sums, "layer%d/sums", layer);
        snprintf(name, sizeof name, "layer%d/gemm", layer);
        if (layer > 0 || !has_first) {
            onnx_node(graph, "Gemm", name,
                      ONNX_NAMES(input, model->variables[2 * layer].name, model->variables[2 * layer + 1].name),
                      last ? logits : sums);
        }
        if (last) {
            break;
        }
        snprintf(name, sizeof name, "layer%d/activation", layer);
        snprintf(output, sizeof output, "layer%d/activations", layer);
        onnx_node(graph, operators[model->activation], name, ONNX_NAMES(sums), output);
        snprintf(input, sizeof input, "%s", output);
    }
}

static void put_picture_graph(struct proto *graph, const struct model *model)
{
    int classes = model->widths[model->layer_count];
    put_layers(graph, model, "logits", false);
    onnx_node(graph, "Softmax", "softmax", ONNX_NAMES("logits"), "probabilities");
    onnx_value(graph, ONNX_INPUT, "images", ONNX_FLOAT, model->widths[0]);
    onnx_value(graph, ONNX_OUTPUT, "logits", ONNX_FLOAT, classes);
    onnx_value(graph, ONNX_OUTPUT, "probabilities", ONNX_FLOAT, classes);
}

static void put_table_graph(struct proto *graph, const struct onnx_model *model)
{
    const char *sums = model->model->layer_count > 1 ? "layer0/sums" : ONNX_TABLE_OUTPUTS;
    onnx_table_inputs(graph, model->schema, model->model, sums);
    put_layers(graph, model->model, ONNX_TABLE_OUTPUTS, true);
    onnx_table_outputs(graph, model->schema, model->threshold);
}

static void put_opset(struct proto *proto, const char *domain, int version)
{
    size_t opset = proto_begin(proto, MODEL_OPSET);
    proto_text(proto, OPSET_DOMAIN, domain);
    proto_integer(proto, OPSET_VERSION, version);
    proto_end(proto, opset);
}

bool onnx_encode(struct proto *proto, const struct onnx_model *model, struct error *error)
{
    const struct model *layers = model->model;
    *proto = (struct proto){0};
    if (layers->parameter_count * sizeof *model->parameters > MOST_BYTES) {
        return error_set(
            error,
            "the model has %zu MiB of parameters, but an ONNX file holds at most 2 GiB; use --format=safetensors",
            layers->parameter_count * sizeof *model->parameters >> 20);
    }
    if (model->schema && !onnx_table_check(model->schema, error)) {
        return false;
    }
    proto_integer(proto, MODEL_IR, IR_VERSION);
    proto_text(proto, MODEL_PRODUCER, "trainer");
    proto_text(proto, MODEL_VERSION, version_trainer());
    proto_text(proto, MODEL_DOC,
               model->schema
                   ? "one input [batch, 1] per column: float64 for numbers (NaN: missing), text for categories"
                   : "images: float32 [batch, inputs], pixels divided by 255");
    size_t graph = proto_begin(proto, MODEL_GRAPH);
    if (model->schema) {
        put_table_graph(proto, model);
    } else {
        put_picture_graph(proto, layers);
    }
    proto_text(proto, GRAPH_NAME, "trainer");
    for (int i = 0; i < layers->variable_count; i++) {
        put_variable(proto, &layers->variables[i], model->parameters);
    }
    proto_end(proto, graph);
    put_opset(proto, "", OPSET);
    if (model->schema) {
        put_opset(proto, ONNX_ML, ML_OPSET);
    }
    for (int i = 0; i < model->property_count; i++) {
        size_t property = proto_begin(proto, MODEL_META);
        proto_text(proto, 1, model->properties[i].key);
        proto_text(proto, 2, model->properties[i].value);
        proto_end(proto, property);
    }
    return !proto->failed ||
           error_set(error, "out of memory for an ONNX file of %zu parameters", layers->parameter_count);
}
