/* An outer optimizer is a separate train section. */
#include "ps/store/outer.h"

#include <math.h>

struct config_train outer_train(const struct config_train *train)
{
    struct config_train outer = *train;
    if (!config_has_rounds(train)) {
        return outer;
    }
    outer.optimizer = train->outer_optimizer == OUTER_AVERAGE ? OPTIMIZER_SGD
                      : train->outer_optimizer == OUTER_ADAM  ? OPTIMIZER_ADAM
                                                              : OPTIMIZER_MOMENTUM;
    outer.nesterov = train->outer_optimizer == OUTER_NESTEROV;
    outer.lazy_updates = false;
    outer.learning_rate =
        train->outer_learning_rate > 0 ? train->outer_learning_rate : config_default_outer_rate(train->outer_optimizer);
    outer.momentum = outer.beta1 = train->outer_momentum;
    outer.beta2 = 0.99;
    outer.epsilon = 1e-3;
    outer.lr_decay = 1.0;
    outer.lr_warmup_steps = outer.lr_cosine_steps = 0;
    outer.l1 = outer.l2 = outer.weight_decay = 0.0;
    return outer;
}

double outer_squares(double so_far, const float *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        so_far += (double)values[i] * (double)values[i];
    }
    return so_far;
}

double outer_freshness(double staleness)
{
    return 1 / sqrt(1 + staleness);
}

float outer_clip(double squares, double most)
{
    const double norm = sqrt(squares);
    return most > 0 && norm > most ? (float)(most / norm) : 1.0f;
}
