/* When a row is of: a number, or a date as in ISO 8601: 2024-05-01, 2024-05-01 12:30, 2024-05-01T12:30:59.5+02:00. */
#ifndef WORKER_DATA_TABLE_TIMESTAMP_H
#define WORKER_DATA_TABLE_TIMESTAMP_H

#include <stdbool.h>
#include <stddef.h>

/* Seconds since 1970 of a date, without a zone in UTC; a number as it is. False if it is neither. */
bool timestamp_parse(const char *text, size_t size, double *time);

#endif
