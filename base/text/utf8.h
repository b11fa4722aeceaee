/* UTF-8, by RFC 3629: no surrogates, no overlong forms, up to U+10FFFF. Pure functions of arbitrary bytes. */
#ifndef BASE_TEXT_UTF8_H
#define BASE_TEXT_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the character that begins at `at` < end; 0: it is not a valid one. */
size_t utf8_length(const uint8_t *at, const uint8_t *end);

/* The code point of a character of that length. */
uint32_t utf8_character(const uint8_t *at, size_t length);

bool utf8_check(const void *bytes, size_t size);

/* Writes '?' over every byte that belongs to no character. */
void utf8_mend(void *bytes, size_t size);

/*
 * How many bytes of a text fit into that many columns of a terminal: in East Asian scripts a character has two, an
 * accent none. *used: their columns.
 */
size_t utf8_fit(const char *text, int columns, int *used);

#endif
