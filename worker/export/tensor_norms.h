/* Statistics of a tensor, accumulated in double precision in one pass. */
#ifndef WORKER_EXPORT_TENSOR_NORMS_H
#define WORKER_EXPORT_TENSOR_NORMS_H

#include <stddef.h>
#include <stdint.h>

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
