/* The pictures of a part by class, and their order (worker/data/folders/folders.h). */
#ifndef WORKER_DATA_FOLDERS_COLLECTION_H
#define WORKER_DATA_FOLDERS_COLLECTION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "worker/data/files.h"
#include "worker/data/names.h"

/* One picture to be read. */
struct picture {
    char *name;      /* of the file */
    int class_index; /* in the list of classes */
    int64_t number;  /* its name as a number; negative: not a number */
    uint64_t order;  /* sort key if not all names are numbers */
};

struct collection {
    char path[DATA_MAX_PATH];
    struct names classes;
    struct picture *pictures;
    int count, capacity;
    bool numbered;        /* all pictures' names are numbers */
    bool classes_numbers; /* class names are the labels */
};

/* Names of the folders in a folder. */
bool collection_list_classes(struct names *classes, const char *path, struct error *error);

/*
 * All pictures of a part in order. training: the training set's folder, whose classes number those of every part, so
 * that a part that lacks some is numbered alike. The caller calls collection_free, also after a failure.
 */
bool collection_list(struct collection *collection, const char *path, const char *training, struct error *error);

/* True if every name is a number, its label. */
bool collection_are_numbers(const struct names *classes);
void collection_free(struct collection *collection); /* safe on zeros */

int32_t collection_label(const struct collection *collection, int picture);
int32_t collection_classes(const struct collection *collection); /* 1 + the largest label of a picture */
bool collection_path(const struct collection *collection, int picture, char path[DATA_MAX_PATH], struct error *error);

#endif
