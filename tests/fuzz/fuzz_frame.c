/* A frame's header as arbitrary bytes: refused, or within every limit and encoded to the same bytes. */
#include "tests/fuzz/fuzz.h"

#include "net/message.h"

FUZZ_MEMORY(1, 1 << 10)

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct frame frame;
    struct error error = {""};
    uint8_t again[FRAME_HEADER];
    if (size < FRAME_HEADER) {
        return 0;
    }
    if (!frame_decode(bytes, &frame, &error)) {
        assert(error.text[0] != '\0');
        return 0;
    }
    assert(message_known(frame.type));
    assert(frame.message_bytes <= message_max_size(frame.type) && frame.bulk_bytes <= message_max_bulk(frame.type));
    frame_encode(&frame, again);
    assert(memcmp(bytes, again, FRAME_HEADER) == 0);
    return 0;
}
