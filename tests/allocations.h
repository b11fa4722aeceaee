/*
 * Allocations that a test refuses: those that the program and the libraries linked into it ask for, not libc's own.
 * Leaks, and use of memory that was not allocated, are found by the sanitizers.
 */
#ifndef TESTS_ALLOCATIONS_H
#define TESTS_ALLOCATIONS_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "tests/system.h"

/* Of the test: does this one fail? It was asked for where `place` is the next instruction. */
bool allocation_fails(size_t size, const void *place);

extern const char __executable_start[], etext[];

/* The first ones come before the sanitizers are ready. */
#define ALLOCATION_EARLY __attribute__((no_sanitize("address", "undefined")))

ALLOCATION_EARLY static inline bool allocation_is_refused(size_t size, const void *place)
{
    return (const char *)place >= __executable_start && (const char *)place < etext && allocation_fails(size, place);
}

#define ALLOCATION(type, name, parameters, size, ...)                                                                  \
    ALLOCATION_EARLY type name parameters                                                                              \
    {                                                                                                                  \
        static union {                                                                                                 \
            void *address;                                                                                             \
            __typeof__(&name) function;                                                                                \
        } real;                                                                                                        \
        if (!real.address) {                                                                                           \
            real.address = dlsym(RTLD_NEXT, #name);                                                                    \
        }                                                                                                              \
        return allocation_is_refused(size, __builtin_return_address(0)) ? NULL : real.function(__VA_ARGS__);           \
    }

ALLOCATION(void *, malloc, (size_t size), size, size)
ALLOCATION(void *, calloc, (size_t count, size_t size), count *size, count, size)
ALLOCATION(void *, realloc, (void *old, size_t size), size, old, size)
ALLOCATION(void *, aligned_alloc, (size_t alignment, size_t size), size, alignment, size)
ALLOCATION(char *, strdup, (const char *text), strlen(text) + 1, text)
ALLOCATION(char *, strndup, (const char *text, size_t size), strnlen(text, size) + 1, text, size)

/* Where it fails the text is not to be looked at. */
int asprintf(char **text, const char *format, ...)
{
    va_list arguments;
    int size = -1;
    *text = (char *)1;
    if (!allocation_is_refused(0, __builtin_return_address(0))) {
        va_start(arguments, format);
        size = vasprintf(text, format, arguments);
        va_end(arguments);
    }
    return size;
}

#endif
