/*
 * A data set as folders of pictures: data_dir/train/CLASS/PICTURE and data_dir/test/CLASS/PICTURE (or training,
 * testing).
 *
 * Class names that are numbers are the labels; otherwise classes are numbered in the order of their names. Pictures are
 * ordered by file name if the names are distinct numbers; else in a fixed order that mixes the classes, so that the
 * images held out for validation cover all of them. Pictures of the model's input size are used unchanged, others are
 * fitted (worker/data/image.h).
 */
#ifndef WORKER_DATA_FOLDERS_H
#define WORKER_DATA_FOLDERS_H

#include <stdbool.h>

#include "base/config.h"
#include "base/error.h"
#include "worker/data/examples.h"
#include "worker/data/files.h"
#include "worker/data/names.h"
#include "worker/data/streaming/overflow.h"

/* The folder of a part; "" if there is none that contains folders. */
bool folders_find(char path[DATA_MAX_PATH], const char *data_dir, enum dataset_part part, struct error *error);

/* The class names of a training set, which the caller frees; NULL: they are numbers. */
bool folders_class_names(char **text, const char *training, struct error *error);

/*
 * training: the folder of the training set (path itself or its sibling), which defines the classes. inputs: of the
 * model. A file that is not a picture is an error that names it. If the pictures exceed the overflow's limit and stream
 * from disk, the error comes when the file is read.
 */
bool folders_read(struct examples *examples, const char *path, const char *training, int inputs,
                  struct overflow *overflow, struct error *error);

/* --- Names of classes --- */

/*
 * The class names of pictures: a JSON array, the name of label i at index i. It is stored with the model in its
 * checkpoints, so that predictions say "cat" and not class 3. If the folders' names are numbers, these are the labels,
 * and no text is needed.
 */

/* The names in the order of the labels; an error does not name the file. The caller calls names_free. */
bool class_names_parse(struct names *names, const char *text, struct error *error);

/*
 * Checks that labels mean the same in the file at `path`, whose text is `there`, and in the data, whose text is `here`.
 * NULL: labels are numbers, which fit any names.
 */
bool class_names_check(const char *path, const char *there, const char *here, struct error *error);

#endif
