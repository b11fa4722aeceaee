/*
 * Confusions are an image, a square per pair of classes: the darker, the more of a row's class were taken for the
 * column's. The curve is what TensorBoard's PR curves plugin reads: six rows of a tensor, a column per threshold.
 */
#include "worker/summary/curves.h"

#include <stdlib.h>

#include "worker/data/image/image.h"

enum { THRESHOLDS = 101, SIDE = 256, PR_ROWS = 6 };

static void put_confusions(struct event *event, const struct evaluation *evaluation)
{
    int classes = evaluation->classes, square = SIDE / classes > 1 ? SIDE / classes : 1, side = classes * square;
    uint8_t *pixels = malloc((size_t)side * (size_t)side), *png;
    size_t size;
    struct error error;
    for (int i = 0; pixels && i < side * side; i++) {
        int label = i / side / square, predicted = i % side / square;
        int64_t all = evaluation->class_images[label];
        int64_t taken = evaluation->confusions[(size_t)label * (size_t)classes + (size_t)predicted];
        pixels[i] = (uint8_t)(255 - (all > 0 ? 255 * taken / all : 0));
    }
    if (pixels && image_encode_png(pixels, side, side, &png, &size, &error)) {
        event_image(event, "validation/confusion", side, side, png, size);
        free(png);
    }
    free(pixels);
}

static void put_pr_curve(struct event *event, const struct evaluation *evaluation)
{
    float rows[PR_ROWS][THRESHOLDS];
    for (int i = 0; i < THRESHOLDS; i++) {
        struct pr_point point;
        metrics_pr_point(evaluation->ranked, (int)evaluation->images, (double)i / (THRESHOLDS - 1), &point);
        rows[0][i] = (float)point.true_positives;
        rows[1][i] = (float)point.false_positives;
        rows[2][i] = (float)point.true_negatives;
        rows[3][i] = (float)point.false_negatives;
        rows[4][i] = (float)point.precision;
        rows[5][i] = (float)point.recall;
    }
    event_pr_curve(event, "validation/pr_curve", THRESHOLDS, &rows[0][0]);
}

void curves_put(struct event *event, const struct evaluation *evaluation)
{
    if (evaluation->classes > 0 && evaluation->confusions) {
        put_confusions(event, evaluation);
    }
    if (evaluation->ranked && evaluation_is_binary(evaluation)) {
        put_pr_curve(event, evaluation);
    }
}
