/* The ranking of workers by their scores on their own rows. */
#ifndef PS_WORST_FIRST_H
#define PS_WORST_FIRST_H

#include <math.h>

/* For qsort. Higher scores are better. Among equals the lower number comes first; no score (NaN) is worst of all. */
static inline int worst_first(double score, int worker, double other_score, int other_worker)
{
    if (isnan(score) != isnan(other_score)) {
        return isnan(score) ? -1 : 1;
    }
    return score < other_score ? -1 : score > other_score ? 1 : worker - other_worker;
}

#endif
