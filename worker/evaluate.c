/* Logits come from the engine in chunks of a fixed number of images, so that memory does not grow with the data. */
#include "worker/evaluate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LOGITS_FLOATS = 16384, MAX_CHUNK = 1024 };

static int chunk_images(int classes)
{
    int chunk = LOGITS_FLOATS / classes;
    return chunk < 1 ? 1 : chunk > MAX_CHUNK ? MAX_CHUNK : chunk;
}

bool evaluation_create(struct evaluation *evaluation, int classes, struct error *error)
{
    size_t n = (size_t)classes;
    size_t confusions = classes <= EVALUATION_MAX_CONFUSED ? n * n : 0;
    size_t logits = (size_t)chunk_images(classes) * n;
    *evaluation = (struct evaluation){.classes = classes};
    evaluation->memory = calloc(1, (2 * n + confusions) * sizeof(int64_t) + logits * sizeof(float));
    if (!evaluation->memory) {
        return error_set(error, "out of memory while evaluating %d classes", classes);
    }
    evaluation->class_images = evaluation->memory;
    evaluation->class_correct = evaluation->class_images + n;
    evaluation->confusions = confusions > 0 ? evaluation->class_correct + n : NULL;
    evaluation->logits = (float *)(void *)(evaluation->class_correct + n + confusions);
    return true;
}

void evaluation_destroy(struct evaluation *evaluation)
{
    free(evaluation->memory);
    *evaluation = (struct evaluation){0};
}

static void clear(struct evaluation *evaluation)
{
    size_t n = (size_t)evaluation->classes;
    evaluation->images = evaluation->correct = 0;
    evaluation->loss = 0;
    memset(evaluation->class_images, 0, n * sizeof *evaluation->class_images);
    memset(evaluation->class_correct, 0, n * sizeof *evaluation->class_correct);
    if (evaluation->confusions) {
        memset(evaluation->confusions, 0, n * n * sizeof *evaluation->confusions);
    }
}

/* Adds one image: logits [classes], its label. The loss stays a sum until all are in. */
static void count_image(struct evaluation *evaluation, const float *logits, int32_t label)
{
    int classes = evaluation->classes, best = 0;
    for (int c = 1; c < classes; c++) {
        best = logits[c] > logits[best] ? c : best;
    }
    /* log(sum exp) with the largest logit taken out, whose own share is 1; a NaN anywhere makes it NaN, as it must. */
    double sum = 1;
    for (int c = 0; c < classes; c++) {
        sum += c == best ? 0 : exp((double)logits[c] - (double)logits[best]);
    }
    evaluation->loss += log(sum) + (double)logits[best] - (double)logits[label];
    evaluation->images++;
    evaluation->class_images[label]++;
    if (best == label) {
        evaluation->correct++;
        evaluation->class_correct[label]++;
    }
    if (evaluation->confusions) {
        evaluation->confusions[(size_t)label * (size_t)classes + (size_t)best]++;
    }
}

bool evaluate(struct evaluation *evaluation, struct engine *engine, bool averaged, const struct examples *examples,
              struct error *error)
{
    int chunk = chunk_images(evaluation->classes);
    clear(evaluation);
    for (int first = 0; first < examples->count; first += chunk) {
        int count = examples->count - first < chunk ? examples->count - first : chunk;
        if (!engine->table->forward(engine, averaged, examples, first, count, evaluation->logits, error)) {
            return false;
        }
        for (int i = 0; i < count; i++) {
            count_image(evaluation, evaluation->logits + (size_t)i * (size_t)evaluation->classes,
                        examples->labels[first + i]);
        }
    }
    if (evaluation->images > 0) {
        evaluation->loss /= (double)evaluation->images;
    }
    return true;
}

double evaluation_accuracy(const struct evaluation *evaluation)
{
    return evaluation->images > 0 ? (double)evaluation->correct / (double)evaluation->images : 0;
}

int evaluation_worst_pairs(const struct evaluation *evaluation, struct confused_pair *pairs, int limit)
{
    int found = 0, classes = evaluation->classes;
    for (int cell = 0; evaluation->confusions && cell < classes * classes; cell++) {
        struct confused_pair pair = {cell / classes, cell % classes, evaluation->confusions[cell]};
        if (pair.images == 0 || pair.label == pair.predicted) {
            continue;
        }
        int place = found;
        while (place > 0 && pairs[place - 1].images < pair.images) {
            place--;
        }
        if (place == limit) {
            continue;
        }
        found += found < limit;
        memmove(pairs + place + 1, pairs + place, (size_t)(found - place - 1) * sizeof *pairs);
        pairs[place] = pair;
    }
    return found;
}
