/*
 * Values of JSON text that json_check has accepted, read in place: nothing is copied or built, so that a request of a
 * million numbers costs one pass over its bytes. Numbers stay text.
 *
 * Pure functions; a value points into the text and is valid as long as the text is.
 */
#ifndef BASE_TEXT_JSON_VALUE_H
#define BASE_TEXT_JSON_VALUE_H

#include <stdbool.h>
#include <stddef.h>

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
