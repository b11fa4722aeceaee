/*
 * Allocations that fail on demand, to check that each failure is reported and leaves nothing behind. Leaks, and use of
 * memory that was not allocated, are found by the sanitizers. A test that includes this is linked with memory_link
 * (tests/unit.mk).
 */
#ifndef TESTS_NO_MEMORY_H
#define TESTS_NO_MEMORY_H

#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "base/config/keys.h"

enum { NO_MEMORY_PLACES = 1000 };

/* Counted from 1 since no_memory_from; those from first up to, but not including, end fail. */
static struct {
    atomic_int calls, first, end;
} no_memory = {.first = INT_MAX, .end = INT_MAX};

/* Of one thread alone: places in the program that allocate. */
static struct {
    const void *seen[NO_MEMORY_PLACES]; /* [count] */
    int count;
    const void *fails; /* at its next call; NULL: none does */
    bool looks;
} no_memory_places;

static _Thread_local bool no_memory_is_mine;

/* In functions that end the process where there is no memory (base/memory.h), nothing fails, and nothing is counted. */
static _Thread_local int no_memory_must;

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
char *__real_strdup(const char *text);
char *__real_strndup(const char *text, size_t size);
int __wrap_asprintf(char **text, const char *format, ...) __attribute__((format(printf, 2, 3)));
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

/* Which places of the program allocate on this thread, from now on until no_memory_seen. */
static inline void no_memory_look(void)
{
    no_memory_places.count = 0;
    no_memory_places.looks = no_memory_is_mine = true;
}

/* How many there were. */
static inline int no_memory_seen(void)
{
    no_memory_places.looks = no_memory_is_mine = false;
    return no_memory_places.count;
}

/* The next allocation of this thread at one of these places fails. */
static inline void no_memory_at(int place)
{
    no_memory_places.fails = no_memory_places.seen[place];
    no_memory_is_mine = true;
}

/* There is memory again. Did it fail? */
static inline bool no_memory_failed(void)
{
    const bool failed = !no_memory_places.fails;
    no_memory_places.fails = NULL;
    no_memory_is_mine = false;
    return failed;
}

static inline void no_memory_note(const void *place)
{
    int i = 0;
    while (i < no_memory_places.count && no_memory_places.seen[i] != place) {
        i++;
    }
    if (i == no_memory_places.count && i < NO_MEMORY_PLACES) {
        no_memory_places.seen[no_memory_places.count++] = place;
    }
}

static inline bool no_memory_here(const void *place)
{
    const bool fails = place == no_memory_places.fails;
    if (no_memory_places.looks) {
        no_memory_note(place);
    } else if (fails) {
        no_memory_places.fails = NULL;
    }
    return fails;
}

static inline bool no_memory_fails(const void *place)
{
    if (no_memory_must > 0) {
        return false;
    }
    const int call = atomic_fetch_add(&no_memory.calls, 1) + 1;
    return (call >= atomic_load(&no_memory.first) && call < atomic_load(&no_memory.end)) ||
           (no_memory_is_mine && no_memory_here(place));
}

void *__wrap_malloc(size_t size)
{
    return no_memory_fails(__builtin_return_address(0)) ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return no_memory_fails(__builtin_return_address(0)) ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *old, size_t size)
{
    return no_memory_fails(__builtin_return_address(0)) ? NULL : __real_realloc(old, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    return no_memory_fails(__builtin_return_address(0)) ? NULL : __real_aligned_alloc(alignment, size);
}

char *__wrap_strdup(const char *text)
{
    return no_memory_fails(__builtin_return_address(0)) ? NULL : __real_strdup(text);
}

char *__wrap_strndup(const char *text, size_t size)
{
    return no_memory_fails(__builtin_return_address(0)) ? NULL : __real_strndup(text, size);
}

/* Where it fails the text is not to be looked at. */
int __wrap_asprintf(char **text, const char *format, ...)
{
    va_list arguments;
    int size = -1;
    *text = (char *)1;
    if (!no_memory_fails(__builtin_return_address(0))) {
        va_start(arguments, format);
        size = vasprintf(text, format, arguments);
        va_end(arguments);
    }
    return size;
}

/* --- What ends the process instead --- */

#define NO_MEMORY_MUST(type, name, parameters, ...)                                                                    \
    type __real_##name parameters;                                                                                     \
    type __wrap_##name parameters;                                                                                     \
    type __wrap_##name parameters                                                                                      \
    {                                                                                                                  \
        no_memory_must++;                                                                                              \
        type result = __real_##name(__VA_ARGS__);                                                                      \
        no_memory_must--;                                                                                              \
        return result;                                                                                                 \
    }

NO_MEMORY_MUST(void *, must_alloc, (size_t bytes, const char *what), bytes, what)
NO_MEMORY_MUST(void *, must_zero, (size_t count, size_t size, const char *what), count, size, what)
NO_MEMORY_MUST(void *, must_align, (size_t bytes, const char *what), bytes, what)
NO_MEMORY_MUST(void *, must_grow, (void *old, size_t count, size_t size, const char *what), old, count, size, what)
NO_MEMORY_MUST(char *, must_copy, (const char *text), text)
NO_MEMORY_MUST(bool, config_parse,
               (struct config * config, const char *name, const uint8_t *bytes, size_t size,
                const struct config_setting *settings, int count, struct error *error),
               config, name, bytes, size, settings, count, error)
NO_MEMORY_MUST(bool, config_in_version,
               (struct config * config, const struct config *here, const struct config_texts *texts,
                struct error *error),
               config, here, texts, error)
NO_MEMORY_MUST(char *, config_job_text, (const struct config *config), config)
NO_MEMORY_MUST(char *, config_key_text, (const struct config_key *key, const struct config *config), key, config)

void __real_config_diff(struct config_diff *diff, const struct config *before, const struct config *after,
                        enum key_scope scope);
void __wrap_config_diff(struct config_diff *diff, const struct config *before, const struct config *after,
                        enum key_scope scope);
void __wrap_config_diff(struct config_diff *diff, const struct config *before, const struct config *after,
                        enum key_scope scope)
{
    no_memory_must++;
    __real_config_diff(diff, before, after, scope);
    no_memory_must--;
}

void __real_config_digest(const struct config *config, char digest[CONFIG_DIGEST_HEX + 1]);
void __wrap_config_digest(const struct config *config, char digest[CONFIG_DIGEST_HEX + 1]);
void __wrap_config_digest(const struct config *config, char digest[CONFIG_DIGEST_HEX + 1])
{
    no_memory_must++;
    __real_config_digest(config, digest);
    no_memory_must--;
}

#endif
