/* Field numbers are those of onnx.proto, named where they are used. */
#include "worker/export/onnx_graph.h"

/* GraphProto, NodeProto, AttributeProto and its types, TensorProto */
enum { GRAPH_NODE = 1, GRAPH_TENSOR = 5 };
enum { NODE_INPUT = 1, NODE_OUTPUT = 2, NODE_NAME = 3, NODE_OP = 4, NODE_ATTRIBUTE = 5, NODE_DOMAIN = 7 };
enum { ATTRIBUTE_NAME = 1, ATTRIBUTE_I = 3, ATTRIBUTE_INTS = 8, ATTRIBUTE_STRINGS = 9, ATTRIBUTE_TYPE = 20 };
enum { TYPE_INT = 2, TYPE_INTS = 7, TYPE_STRINGS = 8 };
enum { TENSOR_DIMS = 1, TENSOR_TYPE = 2, TENSOR_NAME = 8, TENSOR_RAW = 9 };

static size_t begin_node(struct proto *graph, const char *const *inputs, const char *output)
{
    size_t node = proto_begin(graph, GRAPH_NODE);
    for (; *inputs; inputs++) {
        proto_text(graph, NODE_INPUT, *inputs);
    }
    proto_text(graph, NODE_OUTPUT, output);
    return node;
}

void onnx_node(struct proto *graph, const char *op, const char *name, const char *const *inputs, const char *output)
{
    size_t node = begin_node(graph, inputs, output);
    proto_text(graph, NODE_NAME, name);
    proto_text(graph, NODE_OP, op);
    proto_end(graph, node);
}

size_t onnx_node_begin(struct proto *graph, const char *op, const char *domain, const char *const *inputs,
                       const char *output)
{
    size_t node = begin_node(graph, inputs, output);
    proto_text(graph, NODE_NAME, output);
    proto_text(graph, NODE_OP, op);
    if (domain) {
        proto_text(graph, NODE_DOMAIN, domain);
    }
    return node;
}

void onnx_node_end(struct proto *graph, size_t begun)
{
    proto_end(graph, begun);
}

static size_t begin_attribute(struct proto *graph, const char *name, int type)
{
    size_t attribute = proto_begin(graph, NODE_ATTRIBUTE);
    proto_text(graph, ATTRIBUTE_NAME, name);
    proto_integer(graph, ATTRIBUTE_TYPE, type);
    return attribute;
}

void onnx_attribute(struct proto *graph, const char *name, int64_t value)
{
    size_t attribute = begin_attribute(graph, name, TYPE_INT);
    proto_integer(graph, ATTRIBUTE_I, value);
    proto_end(graph, attribute);
}

void onnx_attribute_list(struct proto *graph, const char *name, const int64_t *values, size_t count)
{
    size_t attribute = begin_attribute(graph, name, TYPE_INTS);
    proto_packed_integers(graph, ATTRIBUTE_INTS, values, count);
    proto_end(graph, attribute);
}

size_t onnx_attribute_texts_begin(struct proto *graph, const char *name)
{
    return begin_attribute(graph, name, TYPE_STRINGS);
}

void onnx_attribute_text(struct proto *graph, const char *text)
{
    proto_text(graph, ATTRIBUTE_STRINGS, text);
}

void onnx_attribute_end(struct proto *graph, size_t begun)
{
    proto_end(graph, begun);
}

size_t onnx_tensor_begin(struct proto *graph, const char *name, enum onnx_type type, const int64_t *sizes,
                         int dimensions, size_t *raw)
{
    size_t tensor = proto_begin(graph, GRAPH_TENSOR);
    proto_packed_integers(graph, TENSOR_DIMS, sizes, (size_t)dimensions);
    proto_integer(graph, TENSOR_TYPE, type);
    proto_text(graph, TENSOR_NAME, name);
    *raw = proto_begin(graph, TENSOR_RAW);
    return tensor;
}

void onnx_tensor_end(struct proto *graph, size_t begun, size_t raw)
{
    proto_end(graph, raw);
    proto_end(graph, begun);
}

static void put_list(struct proto *graph, const char *name, enum onnx_type type, const void *values, int count)
{
    const int64_t length = count;
    size_t raw;
    const size_t tensor = onnx_tensor_begin(graph, name, type, &length, 1, &raw);
    proto_raw(graph, values, (size_t)count * 8);
    onnx_tensor_end(graph, tensor, raw);
}

void onnx_integers(struct proto *graph, const char *name, const int64_t *values, int count)
{
    put_list(graph, name, ONNX_INT64, values, count);
}

void onnx_doubles(struct proto *graph, const char *name, const double *values, int count)
{
    put_list(graph, name, ONNX_DOUBLE, values, count);
}

/* ValueInfoProto: name, type.tensor_type with its elem_type and shape, whose dims are a name and a number. */
void onnx_value(struct proto *graph, int field, const char *name, enum onnx_type type, int width)
{
    size_t value = proto_begin(graph, field);
    proto_text(graph, 1, name);
    size_t type_proto = proto_begin(graph, 2), tensor = proto_begin(graph, 1); /* TypeProto.tensor_type */
    proto_integer(graph, 1, type);
    size_t shape = proto_begin(graph, 2), batch = proto_begin(graph, 1);
    proto_text(graph, 2, "batch"); /* dim_param */
    proto_end(graph, batch);
    size_t dimension = proto_begin(graph, 1);
    proto_integer(graph, 1, width); /* dim_value */
    proto_end(graph, dimension);
    proto_end(graph, shape);
    proto_end(graph, tensor);
    proto_end(graph, type_proto);
    proto_end(graph, value);
}
