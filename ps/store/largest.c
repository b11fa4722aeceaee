/*
 * The threshold is found by counting, eleven bits of the magnitude at a time from the top, so that no memory and no
 * sorting is needed; ties go to those that come first.
 */
#include "ps/store/largest.h"

#include <string.h>

#include "ps/store/bfloat16.h"
#include "ps/store/int8.h"

static inline uint32_t magnitude(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits & 0x7fffffffu;
}

/* --- The threshold --- */

/* A magnitude has 31 bits: 11, 11, and then 9. */
static const struct {
    int shift;
    uint32_t mask;
} passes[LARGEST_PASSES] = {{20, 2047}, {9, 2047}, {0, 511}};

void largest_begin(struct largest_search *search, size_t count)
{
    memset(search, 0, sizeof *search);
    search->left = count;
}

void largest_look(struct largest_search *search, const float *values, size_t n)
{
    const int shift = passes[search->pass].shift;
    const uint32_t mask = passes[search->pass].mask;
    for (size_t i = 0; i < n; i++) {
        const uint32_t bits = magnitude(values[i]);
        search->counts[bits >> shift & mask] += bits != 0 && (bits & search->known) == search->prefix;
    }
}

void largest_end_pass(struct largest_search *search)
{
    const int shift = passes[search->pass].shift;
    const uint32_t mask = passes[search->pass].mask;
    uint32_t bucket = mask;
    while (bucket > 0 && search->counts[bucket] <= search->left) {
        search->left -= search->counts[bucket--];
    }
    search->prefix |= bucket << shift;
    search->known |= mask << shift;
    search->pass++;
    memset(search->counts, 0, sizeof search->counts);
}

struct largest largest_found(const struct largest_search *search)
{
    return (struct largest){search->prefix, search->left};
}

/* --- A piece --- */

size_t largest_values_size(enum dtype dtype, size_t count)
{
    return dtype == DTYPE_LARGEST_FLOAT32    ? count * sizeof(float)
           : dtype == DTYPE_LARGEST_BFLOAT16 ? count * sizeof(uint16_t)
                                             : int8_size(count);
}

static void put_16(uint8_t *bytes, size_t value)
{
    bytes[0] = (uint8_t)value;
    bytes[1] = (uint8_t)(value >> 8);
}

/* Writes the values; leaves in them what the written ones lack. */
static void round_values(uint8_t *bytes, float *values, size_t count, enum dtype dtype)
{
    if (dtype == DTYPE_LARGEST_INT8) {
        int8_round(bytes, values, count);
        return;
    }
    if (dtype == DTYPE_LARGEST_FLOAT32) {
        memcpy(bytes, values, count * sizeof *values);
        memset(values, 0, count * sizeof *values);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        const uint16_t half = bfloat16_round(values[i]);
        const float left = values[i] - bfloat16_widen(half);
        values[i] = left - left == 0.0f ? left : 0.0f;
        memcpy(bytes + i * sizeof half, &half, sizeof half); /* at once: packing threads have small stacks */
    }
}

size_t largest_pack(uint8_t *bytes, float *values, size_t n, struct largest *chosen, enum dtype dtype)
{
    uint16_t places[LARGEST_PIECE];
    float taken[LARGEST_PIECE];
    uint8_t *to = bytes + LARGEST_HEAD;
    size_t count = 0, from = 0;
    for (size_t i = 0; i < n; i++) {
        const uint32_t bits = magnitude(values[i]);
        if (bits < chosen->bits || bits == 0 || (bits == chosen->bits && chosen->ties == 0)) {
            continue;
        }
        chosen->ties -= bits == chosen->bits;
        const size_t gap = i - from;
        *to = (uint8_t)((gap & 127) | (gap > 127 ? 128 : 0));
        to[1] = (uint8_t)(gap >> 7); /* overwritten if it is not needed */
        to += gap > 127 ? 2 : 1;
        from = i + 1;
        places[count] = (uint16_t)i;
        taken[count++] = values[i];
    }
    if (count == 0) {
        return 0;
    }
    put_16(bytes, count);
    put_16(bytes + 2, (size_t)(to - bytes) - LARGEST_HEAD);
    round_values(to, taken, count, dtype);
    for (size_t i = 0; i < count; i++) {
        values[places[i]] = taken[i];
    }
    return (size_t)(to - bytes) + largest_values_size(dtype, count);
}

/* --- Reading --- */

struct largest_head largest_read_head(const uint8_t bytes[LARGEST_HEAD])
{
    return (struct largest_head){(uint16_t)(bytes[0] | bytes[1] << 8), (uint16_t)(bytes[2] | bytes[3] << 8)};
}

bool largest_read_places(uint16_t *places, struct largest_head head, const uint8_t *gaps, size_t n)
{
    const uint8_t *end = gaps + head.gap_bytes;
    size_t next = 0;
    for (size_t i = 0; i < head.count; i++) {
        if (gaps == end || (*gaps > 127 && end - gaps < 2)) {
            return false;
        }
        const size_t gap = *gaps > 127 ? (size_t)(*gaps & 127) | (size_t)gaps[1] << 7 : *gaps;
        gaps += *gaps > 127 ? 2 : 1;
        if (gap >= n - next) {
            return false;
        }
        places[i] = (uint16_t)(next + gap);
        next += gap + 1;
    }
    return gaps == end;
}

bool largest_read_values(float *values, const uint8_t *bytes, size_t count, enum dtype dtype)
{
    if (dtype == DTYPE_LARGEST_INT8) {
        return int8_widen(values, bytes, count);
    }
    if (dtype == DTYPE_LARGEST_FLOAT32) {
        memcpy(values, bytes, count * sizeof *values);
        return true;
    }
    for (size_t i = 0; i < count; i++) {
        const uint16_t half = (uint16_t)(bytes[2 * i] | bytes[2 * i + 1] << 8);
        values[i] = bfloat16_widen(half);
    }
    return true;
}
