/* How much memory this process may use, and allocation: large, randomly accessed memory, and what must be there. */
#ifndef BASE_MEMORY_H
#define BASE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* --- Limits of a container --- */

/*
 * The limits that cgroups set for this process: its own cgroup's, and those of every cgroup above it, by version 2 or
 * version 1. So a systemd unit's MemoryMax= and CPUQuota= count as a container's limits do.
 */

struct cgroup_limits {
    uint64_t memory_bytes; /* the smallest of memory.max, memory.high and memory.limit_in_bytes; UINT64_MAX: none */
    int cpus;              /* the smallest quota, rounded down, but at least 1; 0: none */
};

struct cgroup_limits cgroup_limits(void);

/* For tests: with another membership file than /proc/self/cgroup, and another folder than /sys/fs/cgroup. */
struct cgroup_limits cgroup_read(const char *membership, const char *mounted);

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

/* --- Memory that is kept while nobody uses it --- */

/*
 * Memory that is kept while nobody uses it: poisoned, it ends a program with AddressSanitizer that uses it all the
 * same, as memory that was freed does. Nothing of this is left in the product.
 */

#ifdef __SANITIZE_ADDRESS__ /* gcc */
#define ADDRESSES_SANITIZED
#elif defined(__has_feature) /* clang */
#if __has_feature(address_sanitizer)
#define ADDRESSES_SANITIZED
#endif
#endif

#ifdef ADDRESSES_SANITIZED
#include <sanitizer/asan_interface.h>
#endif

static inline void sanitizer_poison(const void *bytes, size_t size)
{
    (void)bytes, (void)size;
#ifdef ADDRESSES_SANITIZED
    __asan_poison_memory_region(bytes, size);
#endif
}

static inline void sanitizer_unpoison(const void *bytes, size_t size)
{
    (void)bytes, (void)size;
#ifdef ADDRESSES_SANITIZED
    __asan_unpoison_memory_region(bytes, size);
#endif
}

#endif
