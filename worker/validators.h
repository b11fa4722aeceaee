/* The workers whose own rows a validation covered. */
#ifndef WORKER_VALIDATORS_H
#define WORKER_VALIDATORS_H

#include <stdint.h>

/* The score on one worker's own rows. */
struct worker_score {
    int worker;
    int64_t examples;
    double score; /* of the metric that decides; NaN: not defined */
};

struct validators {
    const struct worker_score *scores; /* [count], the worst first; borrowed, until the next validation */
    int count;                         /* this process among them; 0: nobody else validates */
    int worst;                         /* of them, the worst tenth; 0 if there is only one */
    int missing;                       /* workers that hold the model but did not report in time */
};

#endif
