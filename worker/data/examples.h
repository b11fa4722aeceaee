/* Examples in memory: images with their labels. */
#ifndef WORKER_DATA_EXAMPLES_H
#define WORKER_DATA_EXAMPLES_H

#include <stdint.h>

/*
 * images: [count, height x width] row-major, uint8 0..255, with 64 readable bytes after the last;
 * labels: [count], 0 <= label < classes.
 */
struct examples {
    uint8_t *images;
    int32_t *labels;
    int count;
    int height, width;
    int classes; /* 1 + the largest label */
};

/* The parts of a data set. */
enum dataset_part { DATASET_TRAIN, DATASET_VALIDATION, DATASET_TEST };

void examples_free(struct examples *examples); /* also fine on examples that are all zeros */

#endif
