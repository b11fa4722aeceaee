/*
 * What the commands on checkpoint files (inspect, diff) share: their operands, and tensors as people want to see them.
 * Tensors are read piece by piece, so that large models need no more memory than small ones.
 */
#ifndef WORKER_EXPORT_TENSORS_H
#define WORKER_EXPORT_TENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cJSON.h>

#include "base/cli/command.h"
#include "base/error.h"
#include "ps/checkpoint/checkpoint.h"
#include "ps/checkpoint/safetensors.h"

/* --- Operands and flags --- */

/* The flag --json. */
extern const struct command_flag checkpoint_flags[];

/*
 * Opens the `count` checkpoints named by the operands, each a file or a folder with its newest; `misuse` is the error
 * if the number of operands is wrong. On COMMAND_DONE the caller closes them; otherwise returns the exit status, after
 * logging.
 */
int checkpoint_operands(const struct command_call *call, struct checkpoint_file **files, int count, const char *misuse);

/* --- Names and shapes, for people and for JSON --- */

enum { TENSOR_SHAPE_TEXT = 96 };

/* "[784,500]" */
void tensor_shape_text(const struct safetensors_tensor *tensor, char text[TENSOR_SHAPE_TEXT]);
cJSON *tensor_shape_json(const struct safetensors_tensor *tensor);

/* A name or value of the header as an unescaped C string, which the caller frees; NULL if out of memory. */
char *tensor_copy_text(const struct safetensors_text *text);

/* --- Numbers --- */

enum { TENSOR_WALK_MOST = 2 };

struct tensor_place {
    struct checkpoint_file *file;
    const struct safetensors_tensor *tensor;
};

/* pieces[i]: [floats], the next numbers of tensor i; valid during the call. */
typedef void tensor_visit(void *context, const float *const pieces[TENSOR_WALK_MOST], size_t floats);

/* Walks `count` (at most TENSOR_WALK_MOST) float32 tensors of one shape in parallel. */
bool tensor_walk(const struct tensor_place *places, int count, tensor_visit *visit, void *context, struct error *error);

/* --- Statistics --- */

/* Statistics of a tensor, accumulated in double precision in one pass. */
struct tensor_norms {
    uint64_t count, zeros, not_finite; /* numbers; sums and limits skip those that are not finite */
    double sum, squares, largest;      /* of the numbers, of their squares; the largest magnitude */
    float minimum, maximum;            /* 0 if there are no finite numbers */
};

void tensor_norms_add(struct tensor_norms *norms, const float *values, size_t count);

/* The Euclidean norm, the mean, and the standard deviation. */
double tensor_norms_l2(const struct tensor_norms *norms);
double tensor_norms_mean(const struct tensor_norms *norms);
double tensor_norms_stddev(const struct tensor_norms *norms);

#endif
