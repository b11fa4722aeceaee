/* Pieces of what is told. The teller learns its own words, so that it can't know anything but what listeners do. */
#include "ps/store/told.h"

#include <assert.h>

#include "ps/store/int8.h"

enum dtype told_gradient_dtype(const struct config_cluster *cluster)
{
    static const enum dtype all[] = {
        [WIRE_FLOAT32] = DTYPE_FLOAT32, [WIRE_BFLOAT16] = DTYPE_BFLOAT16, [WIRE_INT8] = DTYPE_INT8};
    static const enum dtype largest[] = {[WIRE_FLOAT32] = DTYPE_LARGEST_FLOAT32,
                                         [WIRE_BFLOAT16] = DTYPE_LARGEST_BFLOAT16,
                                         [WIRE_INT8] = DTYPE_LARGEST_INT8};
    return (cluster->wire_top > 0 && cluster->wire_top < 1 ? largest : all)[cluster->wire_dtype];
}

bool told_is_kept(const struct config_cluster *cluster)
{
    return cluster->issync && dtype_is_packed(told_gradient_dtype(cluster));
}

size_t told_tell(uint8_t *bytes, float *left, float *known, size_t n, struct largest *chosen, enum dtype dtype)
{
    size_t size = int8_size(n);
    if (dtype == DTYPE_INT8) {
        int8_round(bytes, left, n);
    } else {
        size = largest_pack(bytes, left, n, chosen, dtype);
    }
    const size_t learnt = size > 0 ? told_learn(known, bytes, size, n, dtype) : 0;
    assert(learnt == size);
    return learnt;
}

static void add(float *restrict to, const float *restrict values, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        to[i] += values[i];
    }
}

static size_t learn_int8(float *known, const uint8_t *bytes, size_t size, size_t n)
{
    float values[PACKED_FLOATS];
    if (size < int8_size(n) || !int8_widen(values, bytes, n)) {
        return 0;
    }
    add(known, values, n);
    return int8_size(n);
}

static size_t learn_largest(float *known, const uint8_t *bytes, size_t size, size_t n, enum dtype dtype)
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

size_t told_learn(float *known, const uint8_t *bytes, size_t size, size_t n, enum dtype dtype)
{
    assert(n > 0 && n <= PACKED_FLOATS && dtype_is_packed(dtype));
    return dtype == DTYPE_INT8 ? learn_int8(known, bytes, size, n) : learn_largest(known, bytes, size, n, dtype);
}
