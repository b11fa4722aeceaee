/* Reads tensors of checkpoints piece by piece, so that large models need no more memory than small ones. */
#ifndef WORKER_EXPORT_TENSOR_WALK_H
#define WORKER_EXPORT_TENSOR_WALK_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "ps/checkpoint/checkpoint.h"
#include "ps/checkpoint/safetensors.h"

enum { TENSOR_WALK_MOST = 2 };

struct tensor_place {
    struct checkpoint_file *file;
    const struct safetensors_tensor *tensor;
};

/* pieces[i]: [floats], the next numbers of tensor i; valid during the call. */
typedef void tensor_visit(void *context, const float *const pieces[TENSOR_WALK_MOST], size_t floats);

/* Walks `count` (at most TENSOR_WALK_MOST) float32 tensors of one shape in parallel. */
bool tensor_walk(const struct tensor_place *places, int count, tensor_visit *visit, void *context, struct error *error);

#endif
