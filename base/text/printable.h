/*
 * Texts of others, fit for a terminal or a log: what would move the cursor, change colours, begin a line, or turn the
 * direction of writing is shown instead of sent. A text that a peer or a file brought is printed only through
 * here.
 */
#ifndef BASE_TEXT_PRINTABLE_H
#define BASE_TEXT_PRINTABLE_H

#include <stddef.h>

/*
 * Copies text to `to`, of `room` >= 1 bytes: white space as a space, other control characters and bytes that are not
 * UTF-8 as \x1b, C1 controls and those of direction as \u202e. What does not fit is cut off between characters. Returns
 * to.
 */
const char *printable(char *to, size_t room, const char *text);

/*
 * The same of a JSON value as cJSON prints it, which lets through all from 0x7f on: still JSON, of the same meaning but
 * for bytes that are not UTF-8, which become U+FFFD. `json` is malloc'd, and freed if what is returned is another one.
 * NULL without memory.
 */
char *printable_json(char *json);

#endif
