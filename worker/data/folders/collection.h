/* What pictures there are in the folders of a part, by class, and in which order they count (worker/data/folders/folders.h). */
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
    int64_t number;  /* what its name says, negative: no number */
    uint64_t order;  /* where it stands if not all are numbers */
};

struct collection {
    char path[DATA_MAX_PATH];
    struct names classes;
    struct picture *pictures;
    int count, capacity;
    bool numbered;        /* all pictures' names are numbers */
    bool classes_numbers; /* the classes' own are their labels */
};

/* Names of the folders in a folder. */
bool collection_list_classes(struct names *classes, const char *path, struct error *error);

/* All pictures in their order. collection_free is the caller's, also after a failure. */
bool collection_list(struct collection *collection, const char *path, struct error *error);
void collection_free(struct collection *collection); /* zeros are fine */

int32_t collection_label(const struct collection *collection, int picture);
int32_t collection_classes(const struct collection *collection); /* 1 + the largest label of a picture */
bool collection_path(const struct collection *collection, int picture, char path[DATA_MAX_PATH], struct error *error);

#endif
