/* NaN and infinities among many floats. */
#ifndef BASE_FINITE_H
#define BASE_FINITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Written so that it becomes a handful of vector instructions. */
static inline bool all_finite(const float *values, size_t count)
{
    uint32_t found = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        found |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return found == 0;
}

#endif
