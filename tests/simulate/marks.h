/* Which marks in the program's code (base/simulation.h) simulated clusters reached. */
#ifndef TESTS_SIMULATE_MARKS_H
#define TESTS_SIMULATE_MARKS_H

#include <stdbool.h>

enum { MOST_MARKS = 64 };

/* Adds those of this process. */
void marks_collect(unsigned char passed[MOST_MARKS]);

/* Appends their names to a file, one per line; prints the names of all. */
bool marks_note(const char *path, const unsigned char passed[MOST_MARKS]);
void marks_list(void);

#endif
