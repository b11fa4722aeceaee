/*
 * Allocations that fail on demand, to check that each failure is reported and leaves nothing behind. Leaks, and use of
 * memory that was not allocated, are found by the sanitizers. A test that includes this is linked with memory_link
 * (tests/unit.mk).
 */
#ifndef TESTS_NO_MEMORY_H
#define TESTS_NO_MEMORY_H

#include <limits.h>
#include <stdatomic.h>
#include <stddef.h>

/* Counted from 1 since no_memory_from; those from first up to, but not including, end fail. */
static struct {
    atomic_int calls, first, end;
} no_memory = {.first = INT_MAX, .end = INT_MAX};

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
char *__real_strdup(const char *text);
char *__real_strndup(const char *text, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t size);

/* The first-th allocation from now on fails, and those after it, `count` in all. */
static inline void no_memory_from(int first, int count)
{
    atomic_store(&no_memory.calls, 0);
    atomic_store(&no_memory.end, first + count);
    atomic_store(&no_memory.first, first);
}

/* Memory is available again. Returns the number of allocations. */
static inline int no_memory_end(void)
{
    atomic_store(&no_memory.first, INT_MAX);
    return atomic_load(&no_memory.calls);
}

static inline int no_memory_fails(void)
{
    const int call = atomic_fetch_add(&no_memory.calls, 1) + 1;
    return call >= atomic_load(&no_memory.first) && call < atomic_load(&no_memory.end);
}

void *__wrap_malloc(size_t size)
{
    return no_memory_fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return no_memory_fails() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *old, size_t size)
{
    return no_memory_fails() ? NULL : __real_realloc(old, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    return no_memory_fails() ? NULL : __real_aligned_alloc(alignment, size);
}

char *__wrap_strdup(const char *text)
{
    return no_memory_fails() ? NULL : __real_strdup(text);
}

char *__wrap_strndup(const char *text, size_t size)
{
    return no_memory_fails() ? NULL : __real_strndup(text, size);
}

#endif
