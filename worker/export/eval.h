/* Following a train_dir: every new checkpoint is evaluated, as TensorFlow's evaluator does. */
#ifndef WORKER_EVAL_H
#define WORKER_EVAL_H

#include <stdint.h>

#include "base/config.h"
#include "base/error.h"

enum { EVAL_DEFAULT_TIMEOUT_S = 86400 };

struct eval_follow {
    const char *train_dir;
    double interval_s; /* between two checks of the folder */
    double timeout_s;  /* after this time without a new checkpoint it gives up, with status 1 */
    int64_t last_step; /* a checkpoint of this step or a later one is the last; 0: go on until a signal */
};

/* How good a checkpoint is on the rows held out for the test. */
struct eval_score {
    enum metric metric; /* train.best_metric, which compares models of its kind */
    double score;
    int64_t rows;
};

/* wanted: as trained_open's. */
bool eval_score(const struct config *config, const char *wanted, struct eval_score *score, struct error *error);

/* Returns the exit status; reports its own errors. The folder need not exist yet. */
int eval_follow_run(const struct config *config, const struct eval_follow *follow);

#endif
