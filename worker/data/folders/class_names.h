/*
 * What the classes of pictures are called: a JSON array of names, that of label i at place i. It goes with the model,
 * in its checkpoints, so that whoever asks it hears of cats and not of class 3. Where folders' names are numbers these
 * are the labels, and no text is needed.
 */
#ifndef WORKER_DATA_FOLDERS_CLASS_NAMES_H
#define WORKER_DATA_FOLDERS_CLASS_NAMES_H

#include <stdbool.h>

#include "base/error.h"
#include "worker/data/names.h"

/* The text; NULL if out of memory. Bytes that are no UTF-8 become '?'. The caller frees it. */
char *class_names_text(const struct names *classes);

/* The names in the order of the labels; an error does not name the file. The caller calls names_free. */
bool class_names_parse(struct names *names, const char *text, struct error *error);

/*
 * Do a file at `path`, which knows its classes by one text, and the data mean the same by a label? NULL: labels are
 * numbers, and fit any names.
 */
bool class_names_check(const char *path, const char *there, const char *here, struct error *error);

#endif
