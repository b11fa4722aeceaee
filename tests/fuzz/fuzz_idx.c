/*
 * Arbitrary bytes as IDX, plain or gzip: refused with a one-line message that names the file, or decoded to exactly
 * what the header says; never with more memory than the input can need.
 */
#include "tests/fuzz/fuzz.h"

#include "worker/data/idx.h"

FUZZ_MEMORY(1032 + 8, 1 << 20)

static bool decode(struct stream *stream, struct error *error)
{
    struct idx_header header;
    uint8_t *elements = NULL;
    if (!idx_read_header(&header, stream, error)) {
        return false;
    }
    uint64_t product = 1;
    for (int i = 0; i < IDX_MAX_DIMENSIONS; i++) {
        assert(header.sizes[i] > 0 && (i < header.dimensions || header.sizes[i] == 1));
        product *= header.sizes[i];
    }
    assert(product == header.elements && header.bytes <= stream_most_bytes(stream));
    if (!idx_read_elements(&header, stream, &elements, error)) {
        return false;
    }
    uint8_t sum = 0;
    for (uint64_t i = 0; i < header.bytes + EXAMPLES_PADDING; i++) {
        sum = (uint8_t)(sum | (i < header.bytes ? 0 : elements[i]));
    }
    assert(sum == 0);
    free(elements);
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct error error = {""};
    struct stream *stream;
    assert(stream_open_bytes(&stream, "images", bytes, size, &error));
    if (!decode(stream, &error)) {
        check_refusal(&error, "images: ");
    }
    stream_close(stream);
    return 0;
}
