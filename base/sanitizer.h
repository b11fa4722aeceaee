/*
 * Memory that is kept while nobody uses it: poisoned, it ends a program with AddressSanitizer that uses it all the
 * same, as memory that was freed does. Nothing of this is left in the product.
 */
#ifndef BASE_SANITIZER_H
#define BASE_SANITIZER_H

#include <stddef.h>

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
