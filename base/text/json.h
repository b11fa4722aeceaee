/*
 * Strict JSON with positions, neither of which cJSON, the parser that builds the values, provides.
 *
 * cJSON accepts more than RFC 8259 allows, and reports only where it gave up. So text is checked here first, then
 * passed to cJSON; errors about a value are reported at its line and column, found by scanning the text again. Pure
 * functions of arbitrary bytes; only json_build and json_put allocate.
 */
#ifndef BASE_TEXT_JSON_H
#define BASE_TEXT_JSON_H

#include <stdbool.h>
#include <stddef.h>

#include <cJSON.h>

#include "base/error.h"

enum {
    JSON_MAX_DEPTH = 16,       /* nesting of arrays and objects */
    JSON_COMPARED_NAMES = 128, /* an object's first names, which no later one may repeat */
};

/* Both count from 1; a column is a character (code point), as editors count. */
struct json_place {
    int line, column;
};

/*
 * True if the bytes are one JSON value and nothing else: UTF-8 (a leading byte order mark is allowed), no NUL in
 * strings, escapes of whole code points only, at most JSON_MAX_DEPTH deep, no name twice in an object (as spelled; of
 * its first JSON_COMPARED_NAMES; who reads larger objects compares names itself). Otherwise sets place and error.
 */
bool json_check(const char *text, size_t size, struct json_place *place, struct error *error);

/* The same for data: NaN, Infinity and -Infinity are numbers as well, as Python and others write them. */
bool json_check_data(const char *text, size_t size, struct json_place *place, struct error *error);

/* The same for text in an encoding that is not known, of which only the ASCII characters matter. */
bool json_check_bytes(const char *text, size_t size, struct json_place *place, struct error *error);

/* The value of checked text, which the caller deletes; NULL: out of memory. */
cJSON *json_build(const char *text, size_t size);

/*
 * Adds a value to an object, or to the end of a list. If memory has run out (either may be NULL then), deletes the
 * value and returns false.
 */
bool json_put(cJSON *object, const char *name, cJSON *value);
bool json_append(cJSON *list, cJSON *value);

/*
 * The place of a value inside checked text: path[0] is the index of a child of the outermost array or object, path[1]
 * that of a child of it, and so on; depth 0 is the whole value. With `name`, the place of a member's name instead of
 * its value. False if there is no such child.
 */
bool json_find(const char *text, size_t size, const int *path, int depth, bool name, struct json_place *place);

/* --- Values in place --- */

/*
 * Values of JSON text that json_check has accepted, read in place: nothing is copied or built, so that a request of a
 * million numbers costs one pass over its bytes. Numbers stay text.
 *
 * Pure functions; a value points into the text and is valid as long as the text is.
 */

enum json_kind { JSON_NONE, JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

/* text: its first byte; size: its bytes, quotes and brackets included. JSON_NONE: no value. */
struct json_value {
    enum json_kind kind;
    const char *text;
    size_t size;
};

/* The whole of a checked text. */
struct json_value json_whole(const char *text, size_t size);

/* "a number", "an array", "nothing", ... */
const char *json_kind_name(enum json_kind kind);

/* The first member of that name; JSON_NONE: no such member, or not an object. */
struct json_value json_member(struct json_value object, const char *name);

/*
 * Iterates: struct json_walk walk = json_walk(array); while (json_next(&walk, &value)) ... For objects,
 * json_next_member gives each member's name as well. Anything else has no elements.
 */
struct json_walk {
    const char *at, *end;
};
struct json_walk json_walk(struct json_value container);
bool json_next(struct json_walk *walk, struct json_value *value);
bool json_next_member(struct json_walk *walk, struct json_value *name, struct json_value *value);

/* The number of an array's values or an object's members. */
size_t json_length(struct json_value container);

/* True if the string equals this text. */
bool json_is(struct json_value string, const char *text);

/*
 * Writes a string without quotes and escapes into `text`, which has room for string.size bytes; returns its length. It
 * contains no NUL: json_check refuses those.
 */
size_t json_unescape(struct json_value string, char *text);

#endif
