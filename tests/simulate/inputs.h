/* How each worker makes inputs of its rows: its preprocessing, as a hash of the text; 0: none, as with images. */
#ifndef TESTS_SIMULATE_INPUTS_H
#define TESTS_SIMULATE_INPUTS_H

#include <stdint.h>

uint64_t inputs_hash(const char *text); /* NULL: 0 */

/* What this worker last agreed to. */
uint64_t inputs_of(int worker);

#endif
