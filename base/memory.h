/* How much memory this process may use, and allocation: large, randomly accessed memory, and what must be there. */
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
 * Whether `bytes` more could be allocated and filled now, for what a server loads while it runs: not having them must
 * be an error there, and not its end. beside: what other threads may take meanwhile; it counts where allocations fail
 * (the limit of the address space, strict overcommit), not against what is free at this moment.
 */
bool memory_is_free(size_t bytes, size_t beside);

/*
 * As aligned_alloc(64, bytes); free() frees. From a few MiB on it asks for huge pages: with small ones, reads of
 * scattered rows would spend as long on TLB misses as on the rows themselves.
 */
void *memory_aligned(size_t bytes);

/* As calloc(), with huge pages as above: filling memory costs a page fault every 2 MiB instead of every 4 KiB. */
void *memory_zeroed(size_t count, size_t size);

/*
 * Memory without which this process cannot go on: what it needs to start, or for a command, in sizes that its config
 * and its code choose. These never return NULL; without memory they log "out of memory: 12.3 MiB for WHAT" and end the
 * process with status 1, whichever thread calls. what: completes that sentence; add what to do where there is something
 * ("activations: choose a smaller --batch_size"). free() frees.
 *
 * Where a peer, a request or a file chooses the size, call malloc and return an error (base/budget.h).
 */
void *must_alloc(size_t bytes, const char *what);
void *must_zero(size_t count, size_t size, const char *what);
void *must_align(size_t bytes, const char *what); /* to 64 bytes */
void *must_grow(void *old, size_t count, size_t size, const char *what);
char *must_copy(const char *text);

/* What another function allocated: `memory`, unless that is NULL. bytes: 0 if not known. */
void *must_have(void *memory, size_t bytes, const char *what);

#endif
