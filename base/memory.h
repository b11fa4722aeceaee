/* How much memory this process may use. */
#ifndef BASE_MEMORY_H
#define BASE_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Bytes this process could use if it started now: available memory plus what it already holds, bounded by its container
 * and its address space limit. False if unknown.
 */
bool memory_for_this_process(uint64_t *bytes);

#endif
