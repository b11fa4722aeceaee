/* Counts for people: 1234567 as "1,234,567", 1536 bytes as "1.5K". */
#ifndef BASE_TEXT_COUNT_H
#define BASE_TEXT_COUNT_H

#include <stdint.h>

enum { COUNT_TEXT = 32 }; /* bytes; enough for any of them */

/* Returns text. */
const char *count_text(char text[COUNT_TEXT], int64_t number);
const char *bytes_text(char text[COUNT_TEXT], double bytes);

#endif
