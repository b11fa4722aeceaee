/* The time of a row: a number, or an ISO 8601 date: 2024-05-01, 2024-05-01 12:30, 2024-05-01T12:30:59.5+02:00. */
#ifndef WORKER_DATA_TABLE_TIMESTAMP_H
#define WORKER_DATA_TABLE_TIMESTAMP_H

#include <stdbool.h>
#include <stddef.h>

/* A date in seconds since 1970, in UTC if it has no zone; a number as it is. False if it is neither. */
bool timestamp_parse(const char *text, size_t size, double *time);

#endif
