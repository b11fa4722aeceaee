/* The names in a folder that fit, sorted. */
#ifndef WORKER_DATA_NAMES_H
#define WORKER_DATA_NAMES_H

#include <stdbool.h>

#include "base/error.h"

struct names {
    char **items; /* sorted bytewise; without the folder */
    int count;
};

/*
 * All names in the folder that match the pattern (fnmatch; "*" for all), but none that begins with a dot. A folder that
 * is not there has none. names_free is the caller's, also after a failure.
 */
bool names_list(struct names *names, const char *folder, const char *pattern, struct error *error);
void names_free(struct names *names); /* zeros are fine */

#endif
