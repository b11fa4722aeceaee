/* The header of a frame, byte by byte: little-endian, and checked before anything is allocated. */
#include "net/frame.h"

#include <assert.h>
#include <string.h>

#include "net/bytes.h"
#include "net/message.h"

static const uint8_t magic[4] = {'T', 'R', 'N', 'R'};

void frame_encode(const struct frame *frame, uint8_t bytes[FRAME_HEADER])
{
    memcpy(bytes, magic, sizeof magic);
    put_le16(bytes + 4, frame->version);
    put_le16(bytes + 6, frame->type);
    put_le64(bytes + 8, frame->request);
    put_le32(bytes + 16, frame->generation);
    put_le32(bytes + 20, frame->flags);
    put_le32(bytes + 24, frame->message_bytes);
    put_le32(bytes + 28, frame->bulk_bytes);
}

bool frame_decode(const uint8_t bytes[FRAME_HEADER], struct frame *frame, struct error *error)
{
    if (memcmp(bytes, magic, sizeof magic) != 0) {
        return error_set(
            error, "the data received are not a frame of trainer's protocol (they start with %02x %02x %02x %02x)",
            bytes[0], bytes[1], bytes[2], bytes[3]);
    }
    struct frame decoded = {
        .version = get_le16(bytes + 4),
        .type = get_le16(bytes + 6),
        .request = get_le64(bytes + 8),
        .generation = get_le32(bytes + 16),
        .flags = get_le32(bytes + 20),
        .message_bytes = get_le32(bytes + 24),
        .bulk_bytes = get_le32(bytes + 28),
    };
    frame->request = decoded.request;
    if (!message_known(decoded.type)) {
        return error_set(error, "frame of unknown type %u (protocol version %u)", decoded.type, decoded.version);
    }
    if (decoded.flags & ~(uint32_t)FRAME_LAST) {
        return error_set(error, "%s frame with unknown flags 0x%x", message_name(decoded.type), decoded.flags);
    }
    if (decoded.message_bytes > message_max_size(decoded.type)) {
        return error_set(error, "%s frame with a message of %u bytes; at most %u are allowed",
                         message_name(decoded.type), decoded.message_bytes, message_max_size(decoded.type));
    }
    if (decoded.bulk_bytes > message_max_bulk(decoded.type)) {
        return error_set(error, "%s frame with %u bytes of bulk; at most %u are allowed", message_name(decoded.type),
                         decoded.bulk_bytes, message_max_bulk(decoded.type));
    }
    *frame = decoded;
    return true;
}
