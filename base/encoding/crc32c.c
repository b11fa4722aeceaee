/*
 * The instruction handles 8 bytes but has a latency of three cycles, so three parts are computed in parallel and joined
 * by a table that appends zeros to a CRC.
 */
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
static uint32_t beyond[4][256]; /* the effect of STRETCH more zero bytes on byte 0, 1, 2, 3 of a CRC */
static bool has_instruction;
static pthread_once_t once = PTHREAD_ONCE_INIT;

enum { STRETCH = 256 };

/* The CRC is linear: the images of its 32 single bits determine those of all values. */
static void prepare_beyond(void)
{
    for (int bit = 0; bit < 32; bit++) {
        uint32_t value = (uint32_t)1 << bit;
        for (int i = 0; i < STRETCH; i++) {
            value = value >> 8 ^ table[value & 0xFF];
        }
        for (int byte = 0; byte < 256; byte++) {
            beyond[bit / 8][byte] ^= byte >> bit % 8 & 1 ? value : 0;
        }
    }
}

static void prepare(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t value = i;
        for (int bit = 0; bit < 8; bit++) {
            value = value >> 1 ^ (value & 1 ? polynomial : 0);
        }
        table[i] = value;
    }
    prepare_beyond();
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
static uint64_t word_at(const uint8_t *bytes)
{
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
    return word;
}

static uint64_t go_beyond(uint64_t crc)
{
    return beyond[0][crc & 0xFF] ^ beyond[1][crc >> 8 & 0xFF] ^ beyond[2][crc >> 16 & 0xFF] ^ beyond[3][crc >> 24];
}

/*
 * Three stretches at a time: the instruction has a latency of three cycles and a throughput of one (Gopal et al., "Fast
 * CRC Computation for iSCSI Polynomial Using CRC32 Instruction", Intel 2011).
 */
__attribute__((target("sse4.2"))) static uint64_t three_stretches(uint64_t first, const uint8_t *bytes)
{
    uint64_t second = 0, third = 0;
    for (int i = 0; i < STRETCH; i += 8) {
        first = _mm_crc32_u64(first, word_at(bytes + i));
        second = _mm_crc32_u64(second, word_at(bytes + STRETCH + i));
        third = _mm_crc32_u64(third, word_at(bytes + 2 * STRETCH + i));
    }
    return go_beyond(go_beyond(first) ^ second) ^ third;
}

__attribute__((target("sse4.2"))) static uint32_t by_instruction(const void *bytes, size_t size)
{
    const uint8_t *next = bytes;
    uint64_t crc = UINT32_MAX;
    for (; size >= 3 * STRETCH; size -= 3 * STRETCH, next += 3 * STRETCH) {
        crc = three_stretches(crc, next);
    }
    for (; size >= 8; size -= 8, next += 8) {
        crc = _mm_crc32_u64(crc, word_at(next));
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
