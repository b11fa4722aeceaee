#include "base/encoding/crc32c.h"

#include <pthread.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <nmmintrin.h>
#endif

static const uint32_t polynomial = 0x82F63B78; /* reflected */
static const uint32_t mask_delta = 0xA282EAD8;

static uint32_t table[256];
static bool has_instruction;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void prepare(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t value = i;
        for (int bit = 0; bit < 8; bit++) {
            value = value >> 1 ^ (value & 1 ? polynomial : 0);
        }
        table[i] = value;
    }
#if defined(__x86_64__)
    uint32_t a, b, c, d;
    has_instruction = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_SSE4_2) != 0;
#endif
}

uint32_t crc32c_reference(const void *bytes, size_t size)
{
    const uint8_t *next = bytes;
    uint32_t crc = UINT32_MAX;
    pthread_once(&once, prepare);
    for (size_t i = 0; i < size; i++) {
        crc = crc >> 8 ^ table[(crc ^ next[i]) & 0xFF];
    }
    return ~crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t by_instruction(const void *bytes, size_t size)
{
    const uint8_t *next = bytes;
    uint64_t crc = UINT32_MAX;
    for (; size >= 8; size -= 8, next += 8) {
        uint64_t word;
        memcpy(&word, next, sizeof word);
        crc = _mm_crc32_u64(crc, word);
    }
    uint32_t rest = (uint32_t)crc;
    for (; size > 0; size--) {
        rest = _mm_crc32_u8(rest, *next++);
    }
    return ~rest;
}
#endif

bool crc32c_is_hardware(void)
{
    pthread_once(&once, prepare);
    return has_instruction;
}

uint32_t crc32c(const void *bytes, size_t size)
{
#if defined(__x86_64__)
    if (crc32c_is_hardware()) {
        return by_instruction(bytes, size);
    }
#endif
    return crc32c_reference(bytes, size);
}

uint32_t crc32c_masked(const void *bytes, size_t size)
{
    uint32_t crc = crc32c(bytes, size);
    return (crc >> 15 | crc << 17) + mask_delta;
}
