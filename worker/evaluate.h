/*
 * How well a model does on examples: in total, per class, and which classes it takes for which.
 */
#ifndef WORKER_EVALUATE_H
#define WORKER_EVALUATE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "worker/data/examples.h"
#include "worker/engine.h"

enum { EVALUATION_MAX_CONFUSED = 256 }; /* with more classes than that, no table of confusions is kept */

/* Owned by its creator; the counts are those of the last evaluate(). */
struct evaluation {
    int classes;
    int64_t images, correct;
    double loss;            /* mean cross-entropy; not finite if the model is broken */
    int64_t *class_images;  /* [classes] */
    int64_t *class_correct; /* [classes] */
    int64_t *confusions;    /* [classes (true), classes (predicted)]; NULL with too many classes */
    float *logits;          /* scratch */
    void *memory;
};

/* Takes all memory that evaluating needs. classes: units of the model's last layer. */
bool evaluation_create(struct evaluation *evaluation, int classes, struct error *error);
void evaluation_destroy(struct evaluation *evaluation); /* also fine on zeros */

/* Runs all examples through the model; averaged: through its moving averages. Fails only if the engine does. */
bool evaluate(struct evaluation *evaluation, struct engine *engine, bool averaged, const struct examples *examples,
              struct error *error);

/* correct / images; 0 without images. */
double evaluation_accuracy(const struct evaluation *evaluation);

struct confused_pair {
    int label, predicted;
    int64_t images;
};

/* The most frequent mistakes into pairs[limit], worst first, ties by class; returns how many there are (<= limit). */
int evaluation_worst_pairs(const struct evaluation *evaluation, struct confused_pair *pairs, int limit);

#endif
