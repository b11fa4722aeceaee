/*
 * A data set as folders of pictures: data_dir/train/CLASS/PICTURE and data_dir/test/CLASS/PICTURE (or training,
 * testing), or data_dir/CLASS/PICTURE alone.
 *
 * Class names that are numbers are the labels; otherwise classes are numbered in the order of their names. Pictures are
 * ordered by file name if the names are distinct numbers; else in a fixed order that mixes the classes, so that the
 * images held out for validation cover all of them. Other files are left out with a warning: those that are empty, or
 * neither are called like pictures nor begin like one.
 *
 * Without a folder for the test a share of the training pictures is: by a hash of their bytes, so that it is always the
 * same and equal pictures stay together, but the last picture of a class is for training.
 */
#ifndef WORKER_DATA_FOLDERS_H
#define WORKER_DATA_FOLDERS_H

#include <stdbool.h>

#include "base/config.h"
#include "base/error.h"
#include "worker/data/examples.h"
#include "worker/data/names.h"
#include "worker/data/source.h"

/*
 * The folder of a part; "" if there is none that contains folders. Without a folder train that is data_dir itself, if
 * it holds folders of pictures.
 */
bool folders_find(char path[DATA_MAX_PATH], const char *data_dir, enum dataset_part part, struct error *error);

/* Says which folder, such as val, is of no use, where the training set is in `training`. */
void folders_warn_of_unused(const char *data_dir, const char *training);

/* The class names of a training set, which the caller frees; NULL: they are numbers. */
bool folders_class_names(char **text, const char *training, struct error *error);

/*
 * The shape of all pictures, by the heads of those of the training set: data.color and data.image_size, and what is
 * left open by these: in colour if any is stored so; the pictures' own size if they are all of one, else at most 64x64.
 * inputs: of a model whose layers are given, which decide what the keys leave open; else 0. is_logged: a line of the
 * log says what was found and chosen.
 */
bool folders_shape(struct image_shape *shape, const char *training, const struct config_data *config, int inputs,
                   bool is_logged, struct error *error);

struct folders_part {
    const char *path;
    const char *training; /* the folder of the training set, path itself or its sibling, which defines the classes */
    bool is_test;
    double test_share;  /* of the training pictures, which are the test; 0: it has a folder of its own */
    bool needs_classes; /* two at least */
    int max_bad_records;
};

/*
 * All pictures are fitted to the shape. One that cannot be read is an error that names it, but up to max_bad_records
 * are left out, each with a warning. Pictures that exceed the overflow's limit stream from disk: if some may be bad,
 * all are read once before; otherwise the error comes when the file is read.
 */
bool folders_read(struct examples *examples, const struct folders_part *part, const struct image_shape *shape,
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
