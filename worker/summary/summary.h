/*
 * Summaries of a run for TensorBoard, as tf.train.SummarySaverHook, StepCounterHook and the Supervisor write them.
 *
 *     loss, cross_entropy, l2_loss, learning_rate                  of the steps since the last summary
 *     train/accuracy, validation/accuracy, validation/loss, test/accuracy
 *     validation/roc_auc ..., test/roc_auc ...: of tables, every metric that is known
 *     validation/confusion: an image of the table of confusions; validation/confusions: as text, with classes' names
 *     validation/pr_curve: precision and recall of a binary model
 *     global_step/sec, examples/sec, sec/batch
 *     cluster/staleness, cluster/dropped_gradients, cluster/bytes_sent, cluster/bytes_received   on a cluster
 *     layer0/weights, layer0/biases ..., each also with /gradient; layer0/activations ..., logits: histograms
 *     input/image/0 ..., config (text), the graph, hyper-parameters (HParams)
 *
 * Scalars come with every summary, histograms with every SUMMARY_HISTOGRAMS-th one, because they cost more. A summary
 * that cannot be written is a warning, once; training continues. Used by one thread. When off (summary_open without a
 * folder), it is NULL, which every function accepts, and costs nothing.
 */
#ifndef WORKER_SUMMARY_SUMMARY_H
#define WORKER_SUMMARY_SUMMARY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/config.h"
#include "base/encoding/proto.h"
#include "base/error.h"
#include "ps/store/model.h"
#include "worker/data/dataset.h"
#include "worker/engine.h"
#include "worker/evaluation/evaluate.h"
#include "worker/evaluation/validation.h"

/* --- Histograms --- */

/*
 * Histograms as in TensorFlow: bucket limits grow by a tenth from 1e-12 to 1e20, on both sides of zero.
 * Source: tensorflow/core/lib/histogram/histogram.cc.
 */

enum {
    HISTOGRAM_SIDE = 775,                       /* limits above zero, the largest double included */
    HISTOGRAM_BUCKETS = 2 * HISTOGRAM_SIDE + 1, /* as many below, and zero */
    HISTOGRAM_LANES = 4,
};

/*
 * Neighbouring values often share a bucket, and their increments would depend on each other; so they are spread over
 * lanes.
 */
struct histogram {
    uint64_t lanes[HISTOGRAM_LANES][HISTOGRAM_BUCKETS]; /* bucket i: limit i - 1 <= value < limit i */
    uint64_t count;                                     /* of finite values; others are ignored */
    double sum, squares;
    float minimum, maximum;
};

void histogram_clear(struct histogram *histogram);

/* Costs about 2 ns per value. */
void histogram_add(struct histogram *histogram, const float *values, size_t count);

/* The number of values in a bucket. */
uint64_t histogram_count(const struct histogram *histogram, int bucket);

/* The upper limit of a bucket. */
double histogram_limit(int bucket);

/* Writes a HistogramProto as that field; runs of empty buckets are merged, as in TensorFlow. */
void histogram_encode(const struct histogram *histogram, struct proto *proto, int field);

enum { SUMMARY_HISTOGRAMS = 5, SUMMARY_IMAGES = 3 };

struct summary;

/* All borrowed, and constant during the summary's lifetime, except live keys of the config. */
struct summary_options {
    const struct config *config; /* with train.lr_decay_steps filled in */
    const struct model *model;
    struct engine *engine; /* asked for its parameters, and for the gradient of a batch, between two steps */
    const struct dataset *dataset;
    const char *digest;  /* of the config */
    int64_t global_step; /* where the run starts */
};

/* *summary is NULL if the config asks for none: no folder, or neither steps nor seconds. */
bool summary_open(struct summary **summary, const struct summary_options *options, struct error *error);

/* Changes the intervals; with both 0, nothing is due. */
void summary_reschedule(struct summary *summary, const struct config_output *output);

/* True if a summary is due: a multiple of save_summaries_steps lies in (before, step], or by the clock. */
bool summary_is_due(const struct summary *summary, int64_t before, int64_t step, double now_s);

/* Steps until the next summary is due by steps, at least 1; INT64_MAX: never. */
int64_t summary_steps_to_due(const struct summary *summary, int64_t step);

/* Values of a cluster; totals since the start. */
struct summary_cluster {
    double staleness;
    int64_t dropped_gradients; /* negative: not known */
    uint64_t bytes_sent, bytes_received;
};

/* Means over the steps since the last summary. */
struct summary_step {
    int64_t global_step;
    double cross_entropy, accuracy; /* of the training batches; NaN: not known */
    double steps_per_s, examples_per_s, seconds_per_batch;
    const struct summary_cluster *cluster; /* NULL: local training */
};

void summary_write(struct summary *summary, const struct summary_step *step);
void summary_validation(struct summary *summary, int64_t global_step, const struct evaluation *evaluation,
                        const struct validators *validators);
void summary_test(struct summary *summary, int64_t global_step, const struct evaluation *evaluation);

/* succeeded: for the run's status on the HParams page. */
void summary_close(struct summary *summary, bool succeeded, bool interrupted);

#endif
