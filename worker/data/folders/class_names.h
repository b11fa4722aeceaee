/*
 * The class names of pictures: a JSON array, the name of label i at index i. It is stored with the model in its
 * checkpoints, so that predictions say "cat" and not class 3. If the folders' names are numbers, these are the labels,
 * and no text is needed.
 */
#ifndef WORKER_DATA_FOLDERS_CLASS_NAMES_H
#define WORKER_DATA_FOLDERS_CLASS_NAMES_H

#include <stdbool.h>

#include "base/error.h"
#include "worker/data/names.h"

/* The text; NULL if out of memory. Bytes that are not UTF-8 become '?'. The caller frees it. */
char *class_names_text(const struct names *classes);

/* The names in the order of the labels; an error does not name the file. The caller calls names_free. */
bool class_names_parse(struct names *names, const char *text, struct error *error);

/*
 * Checks that labels mean the same in the file at `path`, whose text is `there`, and in the data, whose text is `here`.
 * NULL: labels are numbers, which fit any names.
 */
bool class_names_check(const char *path, const char *there, const char *here, struct error *error);

#endif
