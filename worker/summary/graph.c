/* Format: tensorflow/core/framework/graph.proto, node_def.proto and attr_value.proto. */
#include "worker/summary/graph.h"

#include <stdio.h>
#include <string.h>

enum { GRAPH_NODE = 1, GRAPH_VERSIONS = 4, NODE_NAME = 1, NODE_OP = 2, NODE_INPUT = 3, NODE_ATTRIBUTE = 5 };
enum { TYPE_FLOAT = 1, TYPE_INT32 = 3, ATTRIBUTE_TYPE = 6, ATTRIBUTE_SHAPE = 7, PRODUCER = 27, NAME = 64 };

static void put_type(struct proto *graph, const char *key, int type)
{
    size_t attribute = proto_begin(graph, NODE_ATTRIBUTE);
    proto_text(graph, 1, key);
    size_t value = proto_begin(graph, 2);
    proto_integer(graph, ATTRIBUTE_TYPE, type);
    proto_end(graph, value);
    proto_end(graph, attribute);
}

/* Negative: any number. */
static void put_shape(struct proto *graph, int dimensions, const int64_t *sizes)
{
    size_t attribute = proto_begin(graph, NODE_ATTRIBUTE);
    proto_text(graph, 1, "shape");
    size_t value = proto_begin(graph, 2), shape = proto_begin(graph, ATTRIBUTE_SHAPE);
    for (int i = 0; i < dimensions; i++) {
        size_t dimension = proto_begin(graph, 2);
        proto_integer(graph, 1, sizes[i]);
        proto_end(graph, dimension);
    }
    proto_end(graph, shape);
    proto_end(graph, value);
    proto_end(graph, attribute);
}

/* inputs: ends with NULL. The caller adds attributes and ends the node. */
static size_t begin_node(struct proto *graph, const char *name, const char *op, const char *const *inputs)
{
    size_t node = proto_begin(graph, GRAPH_NODE);
    proto_text(graph, NODE_NAME, name);
    proto_text(graph, NODE_OP, op);
    for (; *inputs; inputs++) {
        proto_text(graph, NODE_INPUT, *inputs);
    }
    return node;
}

static void put_node(struct proto *graph, const char *name, const char *op, const char *const *inputs)
{
    size_t node = begin_node(graph, name, op, inputs);
    put_type(graph, "T", TYPE_FLOAT);
    proto_end(graph, node);
}

static void put_source(struct proto *graph, const char *name, const char *op, int type, int dimensions,
                       const int64_t *sizes)
{
    size_t node = begin_node(graph, name, op, (const char *[]){NULL});
    put_type(graph, "dtype", type);
    put_shape(graph, dimensions, sizes);
    proto_end(graph, node);
}

static void put_layer(struct proto *graph, const struct model *model, const struct config *config, int layer,
                      char input[NAME])
{
    static const char *const operators[] = {[ACTIVATION_RELU] = "Relu",
                                            [ACTIVATION_SIGMOID] = "Sigmoid",
                                            [ACTIVATION_TANH] = "Tanh",
                                            [ACTIVATION_IDENTITY] = "Identity"};
    const struct variable *weights = &model->variables[2 * layer], *biases = weights + 1;
    char product[NAME], sum[NAME];
    snprintf(product, sizeof product, "layer%d/MatMul", layer);
    snprintf(sum, sizeof sum, "layer%d/BiasAdd", layer);
    put_source(graph, weights->name, "VariableV2", TYPE_FLOAT, 2, (int64_t[]){weights->rows, weights->cols});
    put_source(graph, biases->name, "VariableV2", TYPE_FLOAT, 1, (int64_t[]){biases->cols});
    put_node(graph, product, "MatMul", (const char *[]){input, weights->name, NULL});
    put_node(graph, sum, "BiasAdd", (const char *[]){product, biases->name, NULL});
    snprintf(input, NAME, "%s", sum);
    if (layer + 1 < model->layer_count) {
        snprintf(input, NAME, "layer%d/%s", layer, operators[model->activation]);
        put_node(graph, input, operators[model->activation], (const char *[]){sum, NULL});
        if (config->train.dropout > 0) {
            char active[NAME];
            memcpy(active, input, sizeof active);
            snprintf(input, NAME, "layer%d/dropout", layer);
            put_node(graph, input, "Dropout", (const char *[]){active, NULL});
        }
    }
}

/* The mean cross-entropy, plus the L2 term if there is one; `loss` becomes the name of the training loss. */
static void put_loss(struct proto *graph, const struct model *model, const struct config *config, const char *logits,
                     char loss[NAME])
{
    const char *weights[CONFIG_MAX_LAYERS] = {NULL};
    put_node(graph, "loss/cross_entropy", "SparseSoftmaxCrossEntropyWithLogits",
             (const char *[]){logits, "labels", NULL});
    put_node(graph, "loss/mean", "Mean", (const char *[]){"loss/cross_entropy", NULL});
    snprintf(loss, NAME, "loss/mean");
    if (config->train.l2 > 0) {
        for (int layer = 0; layer < model->layer_count; layer++) {
            weights[layer] = model->variables[2 * layer].name;
        }
        put_node(graph, "loss/l2", "L2Loss", weights);
        put_node(graph, "loss/total", "Add", (const char *[]){"loss/mean", "loss/l2", NULL});
        snprintf(loss, NAME, "loss/total");
    }
}

static void put_training(struct proto *graph, const struct model *model, const struct config *config,
                         const char *logits)
{
    static const char *const operators[] = {
        [OPTIMIZER_SGD] = "ApplyGradientDescent", [OPTIMIZER_MOMENTUM] = "ApplyMomentum",
        [OPTIMIZER_ADAGRAD] = "ApplyAdagrad",     [OPTIMIZER_ADADELTA] = "ApplyAdadelta",
        [OPTIMIZER_ADAM] = "ApplyAdam",           [OPTIMIZER_RMSPROP] = "ApplyRMSProp",
        [OPTIMIZER_FTRL] = "ApplyFtrl",
    };
    char loss[NAME];
    put_node(graph, "softmax", "Softmax", (const char *[]){logits, NULL});
    put_loss(graph, model, config, logits, loss);
    for (int i = 0; i < model->variable_count; i++) {
        char name[NAME];
        snprintf(name, sizeof name, "train/%s", model->variables[i].name);
        put_node(graph, name, operators[config->train.optimizer],
                 (const char *[]){model->variables[i].name, loss, NULL});
    }
}

void graph_encode(struct proto *graph, const struct model *model, const struct config *config)
{
    char input[NAME] = "images";
    put_source(graph, "images", "Placeholder", TYPE_FLOAT, 2, (int64_t[]){-1, model->widths[0]});
    put_source(graph, "labels", "Placeholder", TYPE_INT32, 1, (int64_t[]){-1});
    for (int layer = 0; layer < model->layer_count; layer++) {
        put_layer(graph, model, config, layer, input);
    }
    put_training(graph, model, config, input);
    size_t versions = proto_begin(graph, GRAPH_VERSIONS);
    proto_integer(graph, 1, PRODUCER);
    proto_end(graph, versions);
}
