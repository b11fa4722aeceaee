/* Differences as arbitrary bytes: refused, or understood; and encoding them again is understood, too. */
#include "tests/fuzz/fuzz.h"

#include "ps/store/codec.h"

FUZZ_MEMORY(8, 16 << 10)

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    enum { MOST = 400 };
    if (size < 2) {
        return 0;
    }
    size_t n = 1 + (size_t)(bytes[0] | bytes[1] << 8) % MOST;
    uint16_t *known = calloc(n, sizeof *known), *again = calloc(n, sizeof *again);
    uint8_t *encoded = malloc(bfloat16_encoded_room(n));
    assert(known && again && encoded);
    size_t took = bfloat16_apply_delta(known, bytes + 2, size - 2, n);
    assert(took <= size - 2);
    if (took > 0) {
        size_t takes = bfloat16_encode_delta(encoded, again, known, n, false);
        memset(again, 0, n * sizeof *again);
        assert(takes <= took && bfloat16_apply_delta(again, encoded, takes, n) == takes);
        assert(memcmp(again, known, n * sizeof *known) == 0);
    }
    free(encoded);
    free(again);
    free(known);
    return 0;
}
