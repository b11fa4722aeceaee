/* Formats that people have their data in, known by their first bytes, for errors that say what a file is. */
#ifndef WORKER_DATA_SIGNATURE_H
#define WORKER_DATA_SIGNATURE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

enum { SIGNATURE_HEAD = 512 /* first bytes that tell all of them */ };

struct signature {
    const char *what;   /* "a JPEG picture" */
    const char *remedy; /* "convert it to PNG"; what to do where it can't be read */
};

/* NULL: none of them. */
const struct signature *signature_find(const void *bytes, size_t size);

/* True with the error "NAME: is WHAT; REMEDY" if it is one of them. */
bool signature_say(const char *name, const void *bytes, size_t size, struct error *error);

#endif
