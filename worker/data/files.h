/* The four IDX files of a data set: their names, and which of them exist. */
#ifndef WORKER_DATA_FILES_H
#define WORKER_DATA_FILES_H

#include <stdbool.h>

#include "base/error.h"

enum data_file { TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS, DATA_FILES };

enum { DATA_MAX_PATH = 1024 };

/* MNIST's names, without .gz. */
extern const char *const data_file_names[DATA_FILES];

struct data_files {
    char path[DATA_FILES][DATA_MAX_PATH]; /* "" if missing */
    int found;
};

/*
 * Looks for each file by its usual name, then with .gz, then for both with a dot, as some archives unpack them
 * (train-images.idx3-ubyte). Fails only if the folder's name is too long.
 */
bool data_files_find(struct data_files *files, const char *folder, struct error *error);

#endif
