/* How much memory there is, as far as the system tells. */
#ifndef BASE_MEMORY_H
#define BASE_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Bytes that this process could have if it began anew: what is available now, and what it holds itself, but
 * no more than its container or its limit of address space lets it have. False if the system does not say.
 */
bool memory_for_this_process(uint64_t *bytes);

#endif
