/*
 * A data set as folders of pictures: data_dir/train/CLASS/PICTURE and data_dir/test/CLASS/PICTURE (or training, testing).
 *
 * Classes that are numbers are the labels themselves; others are numbered in the order of their names. Pictures come in
 * the order of their file names if those are numbers, all different; else in an order that mixes the classes and is the
 * same every time, so that those held out for validation are of all classes. Pictures as large as the model's input are
 * taken as they are, others are fitted (worker/data/image/fit.h).
 */
#ifndef WORKER_DATA_FOLDERS_FOLDERS_H
#define WORKER_DATA_FOLDERS_FOLDERS_H

#include <stdbool.h>

#include "base/config.h"
#include "base/error.h"
#include "worker/data/files.h"
#include "worker/data/streaming/overflow.h"
#include "worker/data/examples.h"

/* The folder of a part; "" if there is none with folders in it. */
bool folders_find(char path[DATA_MAX_PATH], const char *data_dir, enum dataset_part part, struct error *error);

/*
 * inputs: of the model. A file that is no picture is an error, by its name; where pictures stay on the disk, because they
 * are more than the overflow's limit, when it is read.
 */
bool folders_read(struct examples *examples, const char *path, int inputs, struct overflow *overflow,
                  struct error *error);

#endif
