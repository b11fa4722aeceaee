/*
 * Confusions are an image with a square per pair of classes: the more examples of the row's class were classified as
 * the column's, the darker; for few classes there is also a table with names and numbers. The curve has the format of
 * TensorBoard's PR curves plugin: six rows of a tensor, a column per threshold.
 */
#include "worker/summary/curves.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/data/image/image.h"

enum { THRESHOLDS = 101, SIDE = 256, PR_ROWS = 6, MOST_NAMED = 32, MOST_NAME = 64 };

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

static void put_text(struct proto *text, const char *part)
{
    proto_raw(text, part, strlen(part));
}

/* The name of a class, escaped for a Markdown table, in bold. */
static void put_name(struct proto *text, const struct evaluation *evaluation, int class)
{
    char number[EVALUATION_NAME];
    const char *name = evaluation_name(evaluation, class, number);
    put_text(text, " | **");
    for (int i = 0; i < MOST_NAME && name[i] != '\0'; i++) {
        const bool is_plain = (unsigned char)name[i] >= ' ';
        if (is_plain && strchr("\\`*_{}[]<>()#+!|", name[i])) {
            proto_raw(text, "\\", 1);
        }
        proto_raw(text, is_plain ? &name[i] : " ", 1);
    }
    put_text(text, "**");
}

static void put_table(struct event *event, const struct evaluation *evaluation)
{
    const int classes = evaluation->classes;
    struct proto text = {0};
    char number[32];
    put_text(&text, "| of a row, taken for a column");
    for (int i = 0; i < classes; i++) {
        put_name(&text, evaluation, i);
    }
    put_text(&text, " |\n|");
    for (int i = 0; i <= classes; i++) {
        put_text(&text, i == 0 ? " --- |" : " ---: |");
    }
    put_text(&text, "\n");
    for (int label = 0; label < classes; label++) {
        put_name(&text, evaluation, label);
        for (int i = 0; i < classes; i++) {
            snprintf(number, sizeof number, " | %" PRId64,
                     evaluation->confusions[(size_t)label * (size_t)classes + (size_t)i]);
            put_text(&text, number);
        }
        put_text(&text, " |\n");
    }
    proto_raw(&text, "", 1); /* NUL-terminates it */
    if (!text.failed) {
        event_text(event, "validation/confusions", (const char *)text.bytes);
    }
    proto_free(&text);
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
        if (evaluation->classes <= MOST_NAMED) {
            put_table(event, evaluation);
        }
    }
    if (evaluation->ranked && !evaluation->is_merged && evaluation_is_binary(evaluation)) {
        put_pr_curve(event, evaluation);
    }
}
