/* How much memory this process may use, and allocation of large, randomly accessed memory. */
#ifndef BASE_MEMORY_H
#define BASE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Bytes this process could use if it started now: available memory plus what it already holds, bounded by its container
 * and its address space limit. False if unknown.
 */
bool memory_for_this_process(uint64_t *bytes);

/*
 * As aligned_alloc(64, bytes); free() frees. From a few MiB on it asks for huge pages: with small ones, reads of
 * scattered rows would spend as long on TLB misses as on the rows themselves.
 */
void *memory_aligned(size_t bytes);

/* As calloc(), with huge pages as above: filling memory costs a page fault every 2 MiB instead of every 4 KiB. */
void *memory_zeroed(size_t count, size_t size);

#endif
