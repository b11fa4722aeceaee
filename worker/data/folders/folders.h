/*
 * A data set as folders of pictures: data_dir/train/CLASS/PICTURE and data_dir/test/CLASS/PICTURE (or training,
 * testing).
 *
 * Class names that are numbers are the labels; otherwise classes are numbered in the order of their names. Pictures are
 * ordered by file name if the names are distinct numbers; else in a fixed order that mixes the classes, so that the
 * images held out for validation cover all of them. Pictures of the model's input size are used unchanged, others are
 * fitted (worker/data/image/fit.h).
 */
#ifndef WORKER_DATA_FOLDERS_FOLDERS_H
#define WORKER_DATA_FOLDERS_FOLDERS_H

#include <stdbool.h>

#include "base/config.h"
#include "base/error.h"
#include "worker/data/files.h"
#include "worker/data/streaming/overflow.h"
#include "worker/data/examples.h"

/* The folder of a part; "" if there is none that contains folders. */
bool folders_find(char path[DATA_MAX_PATH], const char *data_dir, enum dataset_part part, struct error *error);

/*
 * The class names of a training set (worker/data/folders/class_names.h), which the caller frees; NULL: they are
 * numbers.
 */
bool folders_class_names(char **text, const char *training, struct error *error);

/*
 * training: the folder of the training set (path itself or its sibling), which defines the classes. inputs: of the
 * model. A file that is not a picture is an error that names it. If the pictures exceed the overflow's limit and stream
 * from disk, the error comes when the file is read.
 */
bool folders_read(struct examples *examples, const char *path, const char *training, int inputs,
                  struct overflow *overflow, struct error *error);

#endif
