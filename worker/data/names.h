/* The names in a folder that match a pattern, sorted. */
#ifndef WORKER_DATA_NAMES_H
#define WORKER_DATA_NAMES_H

#include <stdbool.h>

#include "base/error.h"

enum { DATA_MAX_PATH = 1024 };

struct names {
    char **items; /* sorted bytewise; without the folder */
    int count;
};

/*
 * All names in the folder that match the pattern (fnmatch; "*" for all), except those that begin with a dot. A missing
 * folder is empty. The caller calls names_free, also after a failure.
 */
bool names_list(struct names *names, const char *folder, const char *pattern, struct error *error);
void names_free(struct names *names); /* safe on zeros */

/* Inserts a copy in sorted order. Fails only if out of memory. */
bool names_add(struct names *names, const char *name);

bool names_have(const struct names *names, const char *name);

#endif
