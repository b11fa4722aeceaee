/*
 * The parts of an ONNX graph as messages: nodes with attributes, constants, inputs and outputs. Each is appended to
 * `graph`, a GraphProto being written. The order is free, except that a node must precede those that use its value.
 */
#ifndef WORKER_EXPORT_ONNX_GRAPH_H
#define WORKER_EXPORT_ONNX_GRAPH_H

#include <stddef.h>
#include <stdint.h>

#include "base/encoding/proto.h"

/* TensorProto.DataType */
enum onnx_type { ONNX_FLOAT = 1, ONNX_INT64 = 7, ONNX_STRING = 8, ONNX_DOUBLE = 11 };

/* GraphProto's field for onnx_value. */
enum { ONNX_INPUT = 11, ONNX_OUTPUT = 12 };

#define ONNX_ML "ai.onnx.ml" /* the operators of classical machine learning */

/* The names of a node's inputs, ending with NULL. */
#define ONNX_NAMES(...) ((const char *const[]){__VA_ARGS__, NULL})

/* A node without attributes. */
void onnx_node(struct proto *graph, const char *op, const char *name, const char *const *inputs, const char *output);

/*
 * A node with attributes, which are added until onnx_node_end; domain NULL: ONNX's own. It is named after its output.
 */
size_t onnx_node_begin(struct proto *graph, const char *op, const char *domain, const char *const *inputs,
                       const char *output);
void onnx_attribute(struct proto *graph, const char *name, int64_t value);
void onnx_attribute_list(struct proto *graph, const char *name, const int64_t *values, size_t count);
size_t onnx_attribute_texts_begin(struct proto *graph, const char *name);
void onnx_attribute_text(struct proto *graph, const char *text);
void onnx_attribute_end(struct proto *graph, size_t begun);
void onnx_node_end(struct proto *graph, size_t begun);

/* Begins a constant; after its little-endian bytes (proto_raw), onnx_tensor_end ends it. */
size_t onnx_tensor_begin(struct proto *graph, const char *name, enum onnx_type type, const int64_t *sizes,
                         int dimensions, size_t *raw);
void onnx_tensor_end(struct proto *graph, size_t begun, size_t raw);

/* Constants of one dimension. */
void onnx_integers(struct proto *graph, const char *name, const int64_t *values, int count);
void onnx_doubles(struct proto *graph, const char *name, const double *values, int count);

/* An input or output [batch, width] of the graph. */
void onnx_value(struct proto *graph, int field, const char *name, enum onnx_type type, int width);

#endif
