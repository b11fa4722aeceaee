/*
 * Any message as arbitrary bytes, after two bytes that choose its type: refused with a one-line message, or decoded
 * such that texts are terminated, ranges are in order, and it encodes to the same bytes. A hello's job config goes on
 * to the comparison that names differences.
 */
#include "tests/fuzz/fuzz.h"

#include "net/handshake.h"
#include "net/message.h"

FUZZ_MEMORY(16, 4 << 10)

static void check_ranges(const struct ranges *ranges)
{
    uint64_t end = 0;
    for (uint32_t i = 0; i < ranges->count; i++) {
        struct range range = range_get(ranges, i);
        assert(range.count > 0 && range.first >= end && range.first + range.count > range.first);
        end = range.first + range.count;
    }
}

static void check_hello(const struct message_hello *hello)
{
    static const char ours[] = "{\"model\":{\"layers\":[784,500,10]},\"train\":{\"seed\":1}}";
    struct error message;
    assert(strlen(hello->program) <= 64 && strlen(hello->job) <= 65536);
    handshake_describe_difference(NULL, "worker 1", hello->job, "ps 0", ours, &message);
    assert(strlen(message.text) < sizeof message.text);
}

static void check(uint16_t version, uint16_t type, uint32_t bulk_bytes, const uint8_t *bytes, size_t size)
{
    union message message;
    struct error error = {""};
    if (!message_decode(version, type, bytes, size, bulk_bytes, &message, &error)) {
        assert(error.text[0] != '\0');
        return;
    }
    if (type == MESSAGE_push) {
        check_ranges(&message.push.ranges);
        assert(dtype_is_packed(message.push.dtype) ||
               ranges_total(&message.push.ranges) * dtype_size(message.push.dtype) == bulk_bytes);
    } else if (type == MESSAGE_hello) {
        check_hello(&message.hello);
    }
    size_t used = message_size(version, type, &message);
    uint8_t *again = malloc(used + 1);
    assert(again && used <= size);
    message_encode(version, type, &message, again, used);
    assert(memcmp(again, bytes, used) == 0);
    free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    for (uint16_t version = PROTOCOL_VERSION_MIN; size >= 2 && version <= PROTOCOL_VERSION_MAX; version++) {
        check(version, bytes[0], bytes[1] * 2U, bytes + 2, size - 2);
    }
    return 0;
}
