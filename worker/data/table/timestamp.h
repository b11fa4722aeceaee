/*
 * Dates and times in text: 2024-05-01, 2024-05-01T12:30:59.5+02:00, 1/5/2024 12:30 PM, 1.5.2024, 2024/5/1, 1 May 2024,
 * May 1, 2024, 12:30. Without a zone they are UTC; a time alone is one of 1970-01-01.
 */
#ifndef WORKER_DATA_TABLE_TIMESTAMP_H
#define WORKER_DATA_TABLE_TIMESTAMP_H

#include <stdbool.h>
#include <stddef.h>

#include "base/config.h"

/* Orders of a date's parts, as a set. A date that names its month, or begins with a year of four digits, has all. */
enum { ORDER_DMY = 1 << DATES_DMY, ORDER_MDY = 1 << DATES_MDY, ORDER_YMD = 1 << DATES_YMD };
enum { ORDER_ANY = ORDER_DMY | ORDER_MDY | ORDER_YMD };

/* The orders in which a text is a date; 0: it is none. */
unsigned timestamp_orders(const char *text, size_t size);

/* Seconds since 1970, in UTC. False if the text is no date of that order. */
bool timestamp_read(const char *text, size_t size, enum table_dates order, double *time);

/* The time of a row (data.time): a number as it is, or a date, whose order must be evident if it is DATES_AUTO. */
bool timestamp_parse(const char *text, size_t size, enum table_dates order, double *time);

/* What a model learns of a date. */
enum date_part { DATE_YEAR, DATE_MONTH, DATE_DAY, DATE_WEEKDAY, DATE_HOUR, DATE_SECONDS, DATE_PARTS };
extern const char *const date_part_names[];

/* All parts of a time: weekdays from 0 for Monday, hours with fractions, seconds since 1970. */
void timestamp_parts(double time, double parts[DATE_PARTS]);

#endif
