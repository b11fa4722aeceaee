/*
 * Strict JSON, with places: what cJSON, which builds the values, does not tell.
 *
 * cJSON takes more than RFC 8259 allows and says of an error only where it gave up. So text is first checked here, and
 * then handed to cJSON; and what is wrong with a value is reported at its line and column, found by walking the text
 * again. Pure functions of bytes, for any bytes at all; nothing is allocated.
 */
#ifndef BASE_TEXT_JSON_H
#define BASE_TEXT_JSON_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

enum { JSON_MAX_DEPTH = 16 }; /* arrays and objects inside each other */

/* Both count from 1; a column is a character (code point), as editors count. */
struct json_place {
    int line, column;
};

/*
 * True if the bytes are one JSON value and nothing else: UTF-8 (a byte order mark in front is let pass), no NUL in
 * strings, escapes of whole code points only, at most JSON_MAX_DEPTH deep. Otherwise the place and what is wrong there.
 * Names that stand twice in one object are the business of whoever reads it.
 */
bool json_check(const char *text, size_t size, struct json_place *place, struct error *error);

/*
 * The place of a value inside checked text: path[0] is the index of a child of the outermost array or object, path[1]
 * that of a child of it, and so on; depth 0 is the whole value. With `name` the place of a member's name instead of its
 * value. False if there is no such child.
 */
bool json_find(const char *text, size_t size, const int *path, int depth, bool name, struct json_place *place);

#endif
