/*
 * Growing text, and JSON in it. Thousands of numbers go into one block of memory, where a tree of values would take
 * fifty times as much.
 *
 * Running out of memory is recorded and reported by text_buffer_take; until then further writes do nothing.
 */
#ifndef BASE_TEXT_JSON_WRITER_H
#define BASE_TEXT_JSON_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/budget.h"

struct text_buffer {
    char *bytes;
    size_t size, room;
    struct budget_account *account; /* its room is charged here, and counts as memory; NULL: nowhere */
    bool failed;
    bool follows; /* a comma is due before the next JSON value */
};

void text_buffer_add(struct text_buffer *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void text_buffer_add_bytes(struct text_buffer *text, const void *bytes, size_t size);

/* Hands over the bytes, which the caller frees: NULL if memory ran out. The text is empty again. A charge for its room
 * passes to the caller, too, unless it returns NULL. */
char *text_buffer_take(struct text_buffer *text, size_t *size);
void text_buffer_free(struct text_buffer *text);

/*
 * JSON: name is NULL inside an array and for the outermost value. Names must be our own, without escapes; texts may
 * hold anything; bytes that are not UTF-8 become '?'.
 */
void json_write_open(struct text_buffer *text, const char *name, char bracket); /* '{' or '[' */
void json_write_close(struct text_buffer *text, char bracket);                  /* '}' or ']' */
/* Writes a foreign name for the next value, which must then be written with name NULL. */
void json_write_name(struct text_buffer *text, const char *name);
void json_write_string(struct text_buffer *text, const char *name, const char *value); /* NULL: null */
void json_write_integer(struct text_buffer *text, const char *name, int64_t value);
void json_write_number(struct text_buffer *text, const char *name, double value); /* 9 digits; not finite: null */
void json_write_time(struct text_buffer *text, const char *name, double value);   /* to the millisecond; 0: null */
void json_write_bool(struct text_buffer *text, const char *name, bool value);
void json_write_null(struct text_buffer *text, const char *name);

#endif
