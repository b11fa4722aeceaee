/* In which order workers are ranked by what they found on rows of their own. */
#ifndef PS_WORST_FIRST_H
#define PS_WORST_FIRST_H

#include <math.h>

/* For qsort; score: of which more is better. Of equals the lower number is first; no score (NaN) is worst of all. */
static inline int worst_first(double score, int worker, double other_score, int other_worker)
{
    if (isnan(score) != isnan(other_score)) {
        return isnan(score) ? -1 : 1;
    }
    return score < other_score ? -1 : score > other_score ? 1 : worker - other_worker;
}

#endif
