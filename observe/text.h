/*
 * Growing text, and JSON in it. Thousands of numbers go into one block of memory, where a tree of values would take
 * fifty times as much.
 *
 * Running out of memory is recorded and reported by text_take; until then further writes do nothing.
 */
#ifndef OBSERVE_TEXT_H
#define OBSERVE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct text {
    char *bytes;
    size_t size, room;
    bool failed;
    bool follows; /* a comma is due before the next JSON value */
};

void text_add(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void text_add_bytes(struct text *text, const void *bytes, size_t size);

/* Hands over the bytes, which the caller frees: NULL if memory ran out. The text is empty again. */
char *text_take(struct text *text, size_t *size);
void text_free(struct text *text);

/*
 * JSON: name is NULL inside an array and for the outermost value. Names must be our own, without escapes; texts may
 * hold anything; bytes that are not UTF-8 become '?'.
 */
void json_open(struct text *text, const char *name, char bracket); /* '{' or '[' */
void json_close(struct text *text, char bracket);                  /* '}' or ']' */
void json_name(struct text *text, const char *name); /* a foreign name, for the next value, written with name NULL */
void json_string(struct text *text, const char *name, const char *value); /* NULL: null */
void json_integer(struct text *text, const char *name, int64_t value);
void json_number(struct text *text, const char *name, double value); /* 9 digits; not finite: null */
void json_time(struct text *text, const char *name, double value);   /* to the millisecond; 0: null */
void json_bool(struct text *text, const char *name, bool value);
void json_null(struct text *text, const char *name);

#endif
