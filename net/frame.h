/*
 * Frames, the units sent on a connection: a header of fixed size, then a message (message.h), then bulk bytes.
 *
 * The header is the same in every protocol version, little-endian:
 *
 *     offset  size  field
 *          0     4  magic, the bytes "TRNR"
 *          4     2  version: of the protocol; the sender's lowest in hello and refused, else the one agreed on
 *          6     2  type of the message
 *          8     8  request: chosen by the side that asks; an answer repeats it
 *         16     4  generation of the training state that the message is about; 0 before there is one
 *         20     4  flags: FRAME_LAST; the rest is zero
 *         24     4  message_bytes: size of the message
 *         28     4  bulk_bytes: size of what follows the message
 *
 * Decoding is a pure function of bytes. Every type has a limit for message and bulk (net/message_table.h), which is
 * checked here, before anything that the header announces is allocated or awaited.
 */
#ifndef NET_FRAME_H
#define NET_FRAME_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

enum {
    FRAME_HEADER = 32,        /* bytes */
    FRAME_LAST = 1,           /* flags: the last (or only) frame of this request or answer */
    PROTOCOL_VERSION_MIN = 1, /* what this program speaks */
    PROTOCOL_VERSION_MAX = 4,
    PROTOCOL_PROGRAMS = 2,    /* first version that rolls out programs: messages 38 to 41 */
    PROTOCOL_ROUNDS = 2,      /* first version whose status may describe rounds: message 43 */
    PROTOCOL_VALIDATIONS = 3, /* first version whose workers report validations: messages 44 to 46 */
    PROTOCOL_SENT_MODEL = 4   /* first version whose answers may be int8 or the largest; adds vector 4 */
};

struct frame {
    uint16_t version;
    uint16_t type; /* enum message_type */
    uint64_t request;
    uint32_t generation;
    uint32_t flags;
    uint32_t message_bytes;
    uint32_t bulk_bytes;
};

void frame_encode(const struct frame *frame, uint8_t bytes[FRAME_HEADER]);

/*
 * Checks magic, type, flags and limits; the caller checks whether the version is the right one. A frame that is refused
 * for anything but its magic still sets frame->request, so that the refusal names the right request.
 */
bool frame_decode(const uint8_t bytes[FRAME_HEADER], struct frame *frame, struct error *error);

/*
 * Generations wrap around, so that no chosen value is the last: one is later than another if it is less than half a
 * cycle ahead of it. 0 is none, before all others.
 */
static inline bool generation_is_later(uint32_t generation, uint32_t than)
{
    return generation != 0 && (than == 0 || (generation != than && generation - than < UINT32_C(1) << 31));
}

static inline uint32_t generation_after(uint32_t generation)
{
    return generation == UINT32_MAX ? 1 : generation + 1;
}

#endif
