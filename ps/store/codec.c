/* Packing floats. The loops that this CPU can run are chosen once; the baseline ones are compiled in here. */
#include "ps/store/codec.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/cpu.h"
#include "net/bytes.h"
#include "ps/store/codec_loops.h"

static const struct codec_loops *loops(void)
{
#if defined(__x86_64__)
    const struct cpu_features *cpu = cpu_features_get();
    if (cpu->avx512) {
        return &codec_avx512;
    }
    if (cpu->avx2) {
        return &codec_avx2;
    }
#endif
    return &codec_baseline;
}

/* --- bfloat16 --- */

void bfloat16_from_floats(uint16_t *halves, const float *values, size_t n)
{
    loops()->narrow(halves, values, n);
}

void bfloat16_to_floats(float *values, const uint16_t *halves, size_t n)
{
    loops()->widen(values, halves, n);
}

bool bfloat16_feed_back(uint16_t *halves, float *remainders, const float *values, size_t n)
{
    return loops()->feed_back(halves, remainders, values, n) != 0;
}

size_t bfloat16_encode_delta(uint8_t *encoded, uint16_t *known, const uint16_t *halves, size_t n, bool in_full)
{
    return loops()->encode_delta(encoded, known, halves, n, in_full);
}

size_t bfloat16_apply_delta(uint16_t *known, const uint8_t *encoded, size_t size, size_t n)
{
    return loops()->apply_delta(known, encoded, size, n);
}

/* --- int8 --- */

void int8_round(uint8_t *bytes, float *values, size_t n)
{
    loops()->int8_round(bytes, values, n);
}

bool int8_widen(float *values, const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < int8_blocks(n); i++) {
        float scale;
        memcpy(&scale, bytes + i * sizeof scale, sizeof scale);
        if (scale < 0.0f || isinf(scale)) {
            return false;
        }
    }
    loops()->int8_widen(values, bytes, n);
    return true;
}

/* --- The largest: the threshold --- */

/*
 * It is found by counting, eleven bits of the magnitude at a time from the top, so that no memory and no sorting is
 * needed; ties go to those that come first.
 */

static inline uint32_t magnitude(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits & 0x7fffffffu;
}

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

size_t largest_values_size(enum dtype dtype, size_t count)
{
    return dtype == DTYPE_LARGEST_FLOAT32    ? count * sizeof(float)
           : dtype == DTYPE_LARGEST_BFLOAT16 ? count * sizeof(uint16_t)
                                             : int8_size(count);
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
    put_le16(bytes, (uint16_t)count);
    put_le16(bytes + 2, (uint16_t)(to - bytes - LARGEST_HEAD));
    round_values(to, taken, count, dtype);
    for (size_t i = 0; i < count; i++) {
        values[places[i]] = taken[i];
    }
    return (size_t)(to - bytes) + largest_values_size(dtype, count);
}

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

/* --- The sent model: the packer applies its own pieces, so that it always has what receivers have --- */

_Static_assert((int)LARGEST_PIECE == (int)PACKED_FLOATS && sizeof(float) * PACKED_FLOATS < LARGEST_ROOM,
               "a piece as int8 fits, too");

enum dtype sent_model_gradient_dtype(const struct config_cluster *cluster)
{
    static const enum dtype all[] = {
        [WIRE_FLOAT32] = DTYPE_FLOAT32, [WIRE_BFLOAT16] = DTYPE_BFLOAT16, [WIRE_INT8] = DTYPE_INT8};
    static const enum dtype largest[] = {[WIRE_FLOAT32] = DTYPE_LARGEST_FLOAT32,
                                         [WIRE_BFLOAT16] = DTYPE_LARGEST_BFLOAT16,
                                         [WIRE_INT8] = DTYPE_LARGEST_INT8};
    return (cluster->wire_top > 0 && cluster->wire_top < 1 ? largest : all)[cluster->wire_dtype];
}

bool sent_model_is_kept(const struct config_cluster *cluster)
{
    return cluster->issync && dtype_is_packed(sent_model_gradient_dtype(cluster));
}

size_t sent_model_pack(uint8_t *bytes, float *left, float *known, size_t n, struct largest *chosen, enum dtype dtype)
{
    size_t size = int8_size(n);
    if (dtype == DTYPE_INT8) {
        int8_round(bytes, left, n);
    } else {
        size = largest_pack(bytes, left, n, chosen, dtype);
    }
    const size_t applied = size > 0 ? sent_model_apply(known, bytes, size, n, dtype) : 0;
    assert(applied == size);
    return applied;
}

static void add(float *restrict to, const float *restrict values, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        to[i] += values[i];
    }
}

static size_t apply_int8(float *known, const uint8_t *bytes, size_t size, size_t n)
{
    float values[PACKED_FLOATS];
    if (size < int8_size(n) || !int8_widen(values, bytes, n)) {
        return 0;
    }
    add(known, values, n);
    return int8_size(n);
}

static size_t apply_largest(float *known, const uint8_t *bytes, size_t size, size_t n, enum dtype dtype)
{
    uint16_t places[PACKED_FLOATS];
    float values[PACKED_FLOATS];
    if (size < LARGEST_HEAD) {
        return 0;
    }
    const struct largest_head head = largest_read_head(bytes);
    if (head.count == 0 || head.count > n) {
        return 0;
    }
    const size_t at = LARGEST_HEAD + (size_t)head.gap_bytes, end = at + largest_values_size(dtype, head.count);
    if (size < end || !largest_read_places(places, head, bytes + LARGEST_HEAD, n) ||
        !largest_read_values(values, bytes + at, head.count, dtype)) {
        return 0;
    }
    for (size_t i = 0; i < head.count; i++) {
        known[places[i]] += values[i];
    }
    return end;
}

size_t sent_model_apply(float *known, const uint8_t *bytes, size_t size, size_t n, enum dtype dtype)
{
    assert(n > 0 && n <= PACKED_FLOATS && dtype_is_packed(dtype));
    return dtype == DTYPE_INT8 ? apply_int8(known, bytes, size, n) : apply_largest(known, bytes, size, n, dtype);
}

void sent_packer_begin(struct sent_packer *packer, const struct config_cluster *cluster, size_t values, float *left)
{
    packer->dtype = sent_model_gradient_dtype(cluster);
    packer->chosen = (size_t)ceil(cluster->wire_top * (double)values);
    packer->left = left;
}

static void subtract(float *restrict left, const float *restrict parameters, const float *restrict known, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        left[i] = parameters[i] - known[i];
    }
}

static bool is_zero(const float *values, size_t n)
{
    uint32_t any = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        any |= bits << 1;
    }
    return any == 0;
}

/* A packer's position in its spans. */
struct packer_walk {
    struct sent_packer *packer;
    struct largest chosen;
    const struct sent_sink *sink;
    float *left, *known; /* of the span */
    size_t first;        /* of the span, in the model */
};

static void pack_piece(struct packer_walk *walk, size_t at, size_t n)
{
    struct sent_packer *packer = walk->packer;
    const size_t size =
        sent_model_pack(packer->piece, walk->left + at, walk->known + at, n, &walk->chosen, packer->dtype);
    if (size > 0 && walk->sink) {
        const struct range range = {walk->first + at, (uint32_t)n};
        walk->sink->piece(walk->sink->context, range, packer->piece, size);
    }
}

/* Unchanged floats are left out if that saves a whole block, which costs more than another range. */
static void pack_int8(struct packer_walk *walk, size_t count)
{
    size_t begin = 0, at = 0;
    while (at < count) {
        const size_t n = count - at < INT8_BLOCK ? count - at : INT8_BLOCK;
        const bool rests = is_zero(walk->left + at, n);
        if (at > begin && (rests || at - begin + n > PACKED_FLOATS)) {
            pack_piece(walk, begin, at - begin);
            begin = at;
        }
        at += n;
        begin = rests ? at : begin;
    }
    if (at > begin) {
        pack_piece(walk, begin, at - begin);
    }
}

static void pack_largest(struct packer_walk *walk, size_t count)
{
    for (size_t at = 0; at < count; at += PACKED_FLOATS) {
        pack_piece(walk, at, count - at < PACKED_FLOATS ? count - at : PACKED_FLOATS);
    }
}

static struct largest find_largest(const struct sent_packer *packer, size_t floats)
{
    struct largest_search search;
    largest_begin(&search, packer->chosen);
    for (int pass = 0; pass < LARGEST_PASSES; pass++) {
        largest_look(&search, packer->left, floats);
        largest_end_pass(&search);
    }
    return largest_found(&search);
}

void sent_packer_pack(struct sent_packer *packer, const float *parameters, float *known, const struct span *spans,
                      int span_count, const struct sent_sink *sink)
{
    struct packer_walk walk = {.packer = packer, .sink = sink, .left = packer->left, .known = known};
    size_t floats = 0;
    for (int i = 0; i < span_count; i++) {
        floats += spans[i].count;
    }
    subtract(packer->left, parameters, known, floats);
    if (packer->dtype != DTYPE_INT8) {
        walk.chosen = find_largest(packer, floats);
    }
    for (int i = 0; i < span_count; i++) {
        walk.first = spans[i].first;
        if (packer->dtype == DTYPE_INT8) {
            pack_int8(&walk, spans[i].count);
        } else {
            pack_largest(&walk, spans[i].count);
        }
        walk.left += spans[i].count;
        walk.known += spans[i].count;
    }
}
