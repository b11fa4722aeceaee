/* The model as a GraphDef, so that TensorBoard draws it like TensorFlow's. */
#ifndef WORKER_SUMMARY_GRAPH_H
#define WORKER_SUMMARY_GRAPH_H

#include "base/config.h"
#include "base/encoding/proto.h"
#include "ps/store/model.h"

/* Appends the message to `graph`. */
void graph_encode(struct proto *graph, const struct model *model, const struct config *config);

#endif
