/* The temperature is found by Newton's method on the log of the factor, kept between bounds by bisection. */
#include "worker/evaluation/calibration.h"

#include <math.h>
#include <stdlib.h>

#include "base/memory.h"

enum { MOST_ROUNDS = 60 };

static const double FARTHEST = 2.302585092994046; /* log 10 */
/* One over the variance that the log of the temperature has. */
static const double SURENESS = 1 / (0.5 * 0.5), SURENESS_OF_BEST = 1 / (0.1 * 0.1);

/* The first two derivatives of the sum of losses by the factor. */
struct slopes {
    double first, second;
};

/* The loss's derivative is the mean output by probability less the label's; the second one is the variance. */
static void add_classes(struct slopes *slopes, const float *logits, int outputs, int32_t label, double factor)
{
    double most = (double)logits[0], sum = 0, mean = 0, squares = 0;
    for (int i = 1; i < outputs; i++) {
        most = (double)logits[i] > most ? (double)logits[i] : most;
    }
    for (int i = 0; i < outputs; i++) {
        const double below = (double)logits[i] - most, weight = exp(factor * below);
        sum += weight;
        mean += weight * below;
        squares += weight * below * below;
    }
    mean /= sum;
    slopes->first += mean - ((double)logits[label] - most);
    slopes->second += squares / sum - mean * mean;
}

static void add_flags(struct slopes *slopes, const float *logits, int outputs, const float *wanted, double factor)
{
    for (int i = 0; i < outputs; i++) {
        const double margin = wanted[i] > 0.5f ? (double)logits[i] : -(double)logits[i];
        const double wrong = 1 / (1 + exp(factor * margin));
        slopes->first -= margin * wrong / outputs;
        slopes->second += margin * margin * wrong * (1 - wrong) / outputs;
    }
}

/* By the log of the factor, with what is known before. */
static struct slopes slopes_at(enum loss_kind loss, const float *logits, int outputs, const struct examples *examples,
                               double sureness, double log_factor)
{
    const double factor = exp(log_factor);
    struct slopes slopes = {0};
    for (int row = 0; row < examples->count; row++) {
        const float *const said = logits + (size_t)row * (size_t)outputs;
        if (loss == LOSS_SOFTMAX) {
            add_classes(&slopes, said, outputs, examples->labels[row], factor);
        } else {
            add_flags(&slopes, said, outputs, examples->target_values + (size_t)row * (size_t)examples->targets,
                      factor);
        }
    }
    return (struct slopes){.first = factor * slopes.first + sureness * log_factor,
                           .second = factor * slopes.first + factor * factor * slopes.second + sureness};
}

double calibration_fit(enum loss_kind loss, const float *logits, int outputs, const struct examples *examples,
                       bool is_best)
{
    const double sureness = is_best ? SURENESS_OF_BEST : SURENESS;
    double low = -FARTHEST, high = FARTHEST, at = 0;
    for (int round = 0; round < MOST_ROUNDS; round++) {
        const struct slopes slopes = slopes_at(loss, logits, outputs, examples, sureness, at);
        if (!isfinite(slopes.first)) {
            return 1;
        }
        *(slopes.first > 0 ? &high : &low) = at;
        const double next = at - slopes.first / slopes.second;
        const bool is_inside = slopes.second > 0 && next >= low && next <= high;
        const double before = at;
        at = is_inside ? next : (low + high) / 2;
        if (fabs(at - before) < 1e-9) {
            break;
        }
    }
    return exp(-at);
}

double calibration_threshold(double threshold, double temperature)
{
    const double odds = log(threshold) - log1p(-threshold);
    return isnan(threshold) ? threshold : 1 / (1 + exp(-odds * calibration_factor(temperature)));
}

static int by_size(const void *one, const void *other)
{
    const double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

bool calibration_interval(double coverage, const float *outputs, const struct examples *examples,
                          struct interval *interval)
{
    const int rows = examples->count;
    const int beyond = (int)((rows + 1) * (1 - coverage) / 2 + 1e-9); /* 0.9 is a little more than nine tenths */
    *interval = (struct interval){.coverage = 0};
    if (beyond < 1) {
        return false;
    }
    double *errors = must_alloc((size_t)rows * sizeof *errors, "validation's errors");
    for (int target = 0; target < examples->targets; target++) {
        const double scale = examples->target_scales ? examples->target_scales[target] : 1;
        for (int row = 0; row < rows; row++) {
            const size_t at = (size_t)row * (size_t)examples->targets + (size_t)target;
            errors[row] = scale * ((double)examples->target_values[at] - (double)outputs[at]);
        }
        qsort(errors, (size_t)rows, sizeof *errors, by_size);
        interval->low[target] = errors[beyond - 1];
        interval->high[target] = errors[rows - beyond];
    }
    free(errors);
    interval->coverage = coverage;
    interval->targets = examples->targets;
    return true;
}
