/* Whose rows a validation was of, where workers have some of their own. */
#ifndef WORKER_VALIDATORS_H
#define WORKER_VALIDATORS_H

#include <stdint.h>

/* How one worker's own rows fare. */
struct worker_score {
    int worker;
    int64_t examples;
    double score; /* of the metric that decides; NaN: not defined */
};

struct validators {
    const struct worker_score *scores; /* [count], the worst first; borrowed, until the next validation */
    int count;                         /* this process among them; 0: nobody else validates */
    int worst;                         /* of them, the worst tenth; 0 if there is but one */
    int missing;                       /* workers that hold the model and did not tell in time */
};

#endif
