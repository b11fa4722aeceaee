/*
 * Numbers in text, correctly rounded: the nearest double, as from strtod, but several times faster for numbers as found
 * in tables.
 */
#ifndef WORKER_DATA_TABLE_NUMBER_H
#define WORKER_DATA_TABLE_NUMBER_H

#include <stdbool.h>
#include <stddef.h>

enum number_kind {
    NUMBER_FINITE,
    NUMBER_MISSING, /* empty, or a usual mark for missing: NA, NaN, null, ?, ... */
    NUMBER_INFINITE,
    NUMBER_TEXT, /* not a number */
};

/*
 * Reads a whole field: an optional sign, digits with or without a point, an optional exponent; blanks around it do not
 * count. *value is set for NUMBER_FINITE; a number too large for a double is NUMBER_INFINITE.
 */
enum number_kind number_parse(const char *text, size_t size, double *value);

/* Marks of missing values, in lower case, ending with NULL; they match in any case. */
enum { NUMBER_MARK = 8 };
extern const char *const number_missing_marks[];

/* Whether the field stands for a missing value. */
bool number_is_missing(const char *text, size_t size);

/* Whether it is another usual sign of a missing value, which in a column of numbers means that: "-", ".", "#DIV/0!". */
bool number_is_mark(const char *text, size_t size);

#endif
