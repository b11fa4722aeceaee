/* One pass in double precision; numbers that are not finite are counted and left out of sums and limits. */
#include "worker/export/tensor_norms.h"

#include <math.h>
#include <stdbool.h>

static uint64_t finite_count(const struct tensor_norms *norms)
{
    return norms->count - norms->not_finite;
}

void tensor_norms_add(struct tensor_norms *norms, const float *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float value = values[i];
        if (!isfinite(value)) {
            norms->not_finite++;
            norms->count++;
            continue;
        }
        bool first = finite_count(norms) == 0;
        norms->minimum = first || value < norms->minimum ? value : norms->minimum;
        norms->maximum = first || value > norms->maximum ? value : norms->maximum;
        norms->largest = fmax(norms->largest, fabs((double)value));
        norms->zeros += value == 0;
        norms->sum += (double)value;
        norms->squares += (double)value * (double)value;
        norms->count++;
    }
}

double tensor_norms_l2(const struct tensor_norms *norms)
{
    return sqrt(norms->squares);
}

double tensor_norms_mean(const struct tensor_norms *norms)
{
    uint64_t count = finite_count(norms);
    return count > 0 ? norms->sum / (double)count : 0;
}

double tensor_norms_stddev(const struct tensor_norms *norms)
{
    uint64_t count = finite_count(norms);
    double mean = tensor_norms_mean(norms);
    return count > 0 ? sqrt(fmax(0, norms->squares / (double)count - mean * mean)) : 0;
}
