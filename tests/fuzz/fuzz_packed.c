/*
 * Packed gradients and parameters as arbitrary bytes: refused, or read within their bounds; and what was packed can be
 * read back.
 */
#include "tests/fuzz/fuzz.h"

#include "ps/store/codec.h"

FUZZ_MEMORY(64, 256 << 10)

static void read_int8(const uint8_t *bytes, size_t size)
{
    size_t n = 0;
    while (int8_size(n + 1) <= size && n < LARGEST_PIECE) {
        n++;
    }
    float *values = malloc((n + 1) * sizeof *values);
    uint8_t *again = malloc(int8_size(n) + 1);
    assert(values && again);
    if (n > 0 && int8_widen(values, bytes, n)) {
        int8_round(again, values, n);
        assert(int8_widen(values, again, n));
    }
    free(values);
    free(again);
}

static void read_largest(const uint8_t *bytes, size_t size, size_t n, enum dtype dtype)
{
    const struct largest_head head = largest_read_head(bytes);
    if (head.count > n || head.gap_bytes > size - LARGEST_HEAD ||
        largest_values_size(dtype, head.count) > size - LARGEST_HEAD - head.gap_bytes) {
        return;
    }
    uint8_t *gaps = malloc(head.gap_bytes + 1u);
    uint16_t *places = malloc((head.count + 1u) * sizeof *places);
    float *values = malloc((head.count + 1u) * sizeof *values);
    assert(gaps && places && values);
    memcpy(gaps, bytes + LARGEST_HEAD, head.gap_bytes);
    if (largest_read_places(places, head, gaps, n) &&
        largest_read_values(values, bytes + LARGEST_HEAD + head.gap_bytes, head.count, dtype)) {
        for (size_t i = 0; i < head.count; i++) {
            assert(places[i] < n && (i == 0 || places[i] > places[i - 1]));
        }
    }
    free(gaps);
    free(places);
    free(values);
}

/* As a ps's answers: the same rules, whatever follows. */
static void learn(const uint8_t *bytes, size_t size, size_t n, enum dtype dtype)
{
    float *known = calloc(n, sizeof *known);
    uint8_t *exact = malloc(size);
    assert(known && exact);
    memcpy(exact, bytes, size);
    const size_t took = sent_model_apply(known, exact, size, n, dtype);
    assert(took <= size);
    if (took > 0) {
        float *again = calloc(n, sizeof *again);
        assert(again && sent_model_apply(again, exact, took, n, dtype) == took);
        assert(memcmp(again, known, n * sizeof *known) == 0);
        free(again);
    }
    free(known);
    free(exact);
}

/* The bytes as floats, of all kinds. */
static void pack(const uint8_t *bytes, size_t size, size_t wanted, enum dtype dtype)
{
    const size_t n = size / sizeof(float) < LARGEST_PIECE ? size / sizeof(float) : LARGEST_PIECE;
    float *values = malloc((n + 1) * sizeof *values);
    uint8_t *packed = malloc(LARGEST_ROOM);
    struct largest_search search;
    assert(values && packed);
    memcpy(values, bytes, n * sizeof *values);
    largest_begin(&search, wanted);
    for (int pass = 0; pass < LARGEST_PASSES; pass++) {
        largest_look(&search, values, n);
        largest_end_pass(&search);
    }
    struct largest chosen = largest_found(&search);
    const size_t took = largest_pack(packed, values, n, &chosen, dtype);
    if (took > 0) {
        const struct largest_head head = largest_read_head(packed);
        uint16_t *places = malloc(head.count * sizeof *places);
        assert(places && head.count <= wanted);
        assert(took == LARGEST_HEAD + head.gap_bytes + largest_values_size(dtype, head.count));
        assert(largest_read_places(places, head, packed + LARGEST_HEAD, n));
        free(places);
    }
    free(values);
    free(packed);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    if (size < 4 + LARGEST_HEAD) {
        return 0;
    }
    const size_t n = 1 + (size_t)(bytes[0] | bytes[1] << 8) % LARGEST_PIECE;
    const enum dtype dtype = (enum dtype)(DTYPE_LARGEST_FLOAT32 + bytes[2] % 3);
    read_int8(bytes + 4, size - 4);
    read_largest(bytes + 4, size - 4, n, dtype);
    learn(bytes + 4, size - 4, n, dtype);
    learn(bytes + 4, size - 4, n, DTYPE_INT8);
    pack(bytes + 4, size - 4, n, dtype);
    return 0;
}
