/* The frame of a record: length and both masked CRCs, little-endian. */
#include "worker/data/tfrecord/framing.h"

#include "base/encoding/crc32c.h"
#include "net/bytes.h"

void tfrecord_append(struct proto *out, const void *record, size_t size)
{
    uint8_t header[TFRECORD_HEADER], footer[TFRECORD_FOOTER];
    put_le64(header, size);
    put_le32(header + 8, crc32c_masked(header, 8));
    put_le32(footer, crc32c_masked(record, size));
    proto_raw(out, header, sizeof header);
    proto_raw(out, record, size);
    proto_raw(out, footer, sizeof footer);
}

bool tfrecord_length(const uint8_t header[TFRECORD_HEADER], uint64_t *length)
{
    *length = get_le64(header);
    return get_le32(header + 8) == crc32c_masked(header, 8);
}

bool tfrecord_is_whole(const void *record, size_t size, const uint8_t footer[TFRECORD_FOOTER])
{
    return get_le32(footer) == crc32c_masked(record, size);
}
