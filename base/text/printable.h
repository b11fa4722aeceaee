/*
 * Makes untrusted text safe for a terminal or a log: characters that would move the cursor, change colours, begin a
 * line or reverse the direction of writing are escaped. Text from a peer or a file is printed only through here.
 */
#ifndef BASE_TEXT_PRINTABLE_H
#define BASE_TEXT_PRINTABLE_H

#include <stddef.h>

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

#endif
