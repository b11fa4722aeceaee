/* Text from others, and text for people: UTF-8, printing, counts, "did you mean". Pure functions; any thread. */
#ifndef BASE_TEXT_TEXT_H
#define BASE_TEXT_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* --- UTF-8 --- */

/* UTF-8, by RFC 3629: no surrogates, no overlong forms, up to U+10FFFF. Pure functions of arbitrary bytes. */

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

/* --- Printing --- */

/*
 * Makes untrusted text safe for a terminal or a log: characters that would move the cursor, change colours, begin a
 * line or reverse the direction of writing are escaped. Text from a peer or a file is printed only through here.
 */

/*
 * Copies text to `to`, of `room` >= 1 bytes: white space as a space, other control characters and bytes that are not
 * UTF-8 in the form \x1b, C1 and direction controls in the form \u202e. What does not fit is cut off between
 * characters. Returns to.
 */
const char *printable(char *to, size_t room, const char *text);

/*
 * The same for JSON as cJSON prints it, which leaves everything from 0x7f on unescaped. The result is JSON of the same
 * meaning, except that bytes that are not UTF-8 become U+FFFD. `json` is malloc'd, and freed if another text is
 * returned. NULL if out of memory.
 */
char *printable_json(char *json);

/* --- Counts --- */

/* Counts for people: 1234567 as "1,234,567", 1536 bytes as "1.5K". */

enum { COUNT_TEXT = 32 }; /* bytes; enough for any of them */

/* Returns text. */
const char *count_text(char text[COUNT_TEXT], int64_t number);
const char *bytes_text(char text[COUNT_TEXT], double bytes);

/* --- The nearest name --- */

/*
 * "Did you mean": the known name nearest to a mistyped word.
 */

/*
 * Edits (insert, delete, replace, swap two neighbours) that turn one word into the other: the restricted
 * Damerau-Levenshtein distance. Words longer than 64 bytes count as far from everything: 1000.
 */
int suggest_distance(const char *a, const char *b);

/* A search over names, one at a time: begin with {.word = word}, offer each, and read `best`. */
struct suggestion {
    const char *word;
    const char *best; /* NULL: nothing is near enough */
    int distance;
};

void suggest_offer(struct suggestion *suggestion, const char *name);

#endif
