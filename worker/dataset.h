/*
 * Images and labels in memory. Images stay uint8, as in the files; engines scale them by 1/255.
 */
#ifndef WORKER_DATASET_H
#define WORKER_DATASET_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"
#include "base/error.h"

/* images: [count, height x width] row-major, uint8 0..255; labels: [count], 0 <= label < classes. */
struct examples {
    uint8_t *images;
    int32_t *labels;
    int count;
    int height, width;
    int classes; /* 1 + the largest label */
};

enum dataset_part { DATASET_TRAIN, DATASET_VALIDATION, DATASET_TEST };

struct dataset {
    struct examples train;      /* without those held out */
    struct examples validation; /* points into the same memory as train; count 0 if none are held out */
    char description
        [256]; /* "MNIST-like IDX files in DIR: 55,000 training, 5,000 validation images, 28x28, 10 classes" */
};

/*
 * Loads the training set that the config names, and holds out its first validation_size images (as TensorFlow's
 * read_data_sets does). DATA_AUTO: IDX files in data_dir if any are there, else the synthetic digits. Checks that
 * image size and labels fit the model.
 */
bool dataset_load(struct dataset *dataset, const struct config *config, struct error *error);
void dataset_free(struct dataset *dataset);

/* The test set of the same source; loaded only when it is looked at. Freed with examples_free. */
bool dataset_load_test(struct examples *test, const struct config *config, struct error *error);
void examples_free(struct examples *examples);

#endif
