/*
 * Messages: structs made from the one table (net/message_table.h), and their encoding; and the frames in which they are
 * sent. Pure functions.
 *
 * A decoded message borrows: its texts and ranges point into the bytes that it was decoded from.
 */
#ifndef NET_MESSAGE_H
#define NET_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "net/message.h"
#include "net/message_table.h"

/* MESSAGE_hello = 1, ... */
#define MESSAGE_AS_ENUM(number, name, bulk, text) MESSAGE_##name = (number),
enum message_type { MESSAGE_TABLE(MESSAGE_AS_ENUM) MESSAGE_TYPES };
#undef MESSAGE_AS_ENUM

/* Why a hello is refused. Values on the wire: never renumber. */
enum refusal {
    REFUSAL_VERSION = 1,   /* no protocol version in common */
    REFUSAL_CLUSTER = 2,   /* another cluster's name */
    REFUSAL_MEMBER = 3,    /* not the member that it claims to be, or not the expected one */
    REFUSAL_CONFIG = 4,    /* the job configs differ */
    REFUSAL_DUPLICATE = 5, /* another process has this role and index, and is alive */
    REFUSAL_REPLACED = 6,  /* a newer process took over this role and index */
    REFUSAL_BUSY = 7,      /* no room for another connection */
    REFUSAL_SECURITY = 8,  /* plain text where TLS is wanted */
    REFUSAL_BEHIND = 9,    /* its config is of an older version */
    REFUSAL_AHEAD = 10,    /* its config is of a newer version */
};

/* Why a request is answered by an error. Values on the wire: never renumber. */
enum error_code {
    ERROR_BAD_REQUEST = 1,    /* it is malformed or impossible: a bug or an attack; the connection ends */
    ERROR_NOT_ALLOWED = 2,    /* not from this role */
    ERROR_NOT_READY = 3,      /* no parameters yet */
    ERROR_OLD_GENERATION = 4, /* the training state was restored since; ask for the model again */
    ERROR_JOB_OVER = 5,
    ERROR_TOO_LATE = 6, /* wait_ms has passed */
    ERROR_INTERNAL = 7, /* out of memory and the like */
    ERROR_PASSED = 8,   /* the step of an ordered snapshot is over, and was not kept */
};

/* Flag in a snapshot's number: it is an order, kept beside others until it is released. */
#define SNAPSHOT_ORDER (1ULL << 63)

/* A member's state. Values on the wire: never renumber. */
enum member_state {
    STATE_ABSENT = 0,   /* never seen */
    STATE_STARTING = 1, /* waits for others */
    STATE_READY = 2,    /* a ps that holds parameters */
    STATE_TRAINING = 3,
    STATE_WAITING = 4, /* for a token, or for slower workers */
    STATE_SAVING = 5,
    STATE_DONE = 6,
    STATE_LOST = 7, /* its lease expired; in a worker's own heartbeat: it can't reach every ps */
    STATE_FAILED = 8,
};
const char *member_state_name(enum member_state state); /* "training" */

/* The state of a shard's model, in `model`. Values on the wire: never renumber. */
enum model_state { MODEL_ABSENT = 0, MODEL_BEING_WRITTEN = 1, MODEL_READY = 2 };

/* A job's state, in `lease` and `end_job`. Values on the wire: never renumber. */
enum job_state { JOB_WAITING = 0, JOB_TRAINING = 1, JOB_RESTORING = 2, JOB_DONE = 3, JOB_FAILED = 4 };

/* The outcome of a push, in `pushed`. Values on the wire: never renumber. */
enum push_outcome {
    PUSH_APPLIED = 0,
    PUSH_APPLIED_BEFORE = 1, /* sent again, and counted once */
    PUSH_STAGED = 2,         /* for an aggregate */
    PUSH_STALE = 3,          /* dropped */
    PUSH_NOT_FINITE = 4,     /* refused */
    PUSH_NOT_WANTED = 5,     /* the job is over */
};

/*
 * The encoding of floats. Differences are between bfloat16 values and those sent before on the same connection; a
 * message holds at most DIFFERENCES_FLOATS of them, in a variable number of bytes (ps/store/codec.h).
 */
enum dtype {
    DTYPE_FLOAT32 = 0,
    DTYPE_BFLOAT16 = 1,
    DTYPE_DIFFERENCES = 2,
    DTYPE_INT8 = 3,
    DTYPE_LARGEST_FLOAT32 = 4,
    DTYPE_LARGEST_BFLOAT16 = 5,
    DTYPE_LARGEST_INT8 = 6,
};
enum { DIFFERENCES_FLOATS = 16 * 1024 };
static inline size_t dtype_size(enum dtype dtype) /* of float32 and bfloat16 */
{
    return dtype == DTYPE_FLOAT32 ? 4 : 2;
}

/*
 * int8 and the largest (ps/store/codec.h) are sent in ranges of up to this many floats, each packed
 * by itself.
 */
enum { PACKED_FLOATS = 8192 };
static inline bool dtype_is_packed(enum dtype dtype)
{
    return dtype >= DTYPE_INT8;
}

/* Parts of a flat vector in wire format: RANGE_BYTES each. */
enum { RANGE_BYTES = 12 };
struct ranges {
    const uint8_t *bytes; /* [count * RANGE_BYTES]; need not be aligned */
    uint32_t count;
};
struct range {
    uint64_t first; /* index of its first float */
    uint32_t count; /* floats, at least 1 */
};
struct range range_get(const struct ranges *ranges, uint32_t i); /* i < count */
void range_put(uint8_t *bytes, uint32_t i, struct range range);  /* `bytes` has room for at least i + 1 */
uint64_t ranges_total(const struct ranges *ranges);              /* floats in all of them */

/* struct message_hello { uint16_t version_min; ... }, ... */
#define FIELD_TYPE_U8                            uint8_t
#define FIELD_TYPE_U16                           uint16_t
#define FIELD_TYPE_U32                           uint32_t
#define FIELD_TYPE_U64                           uint64_t
#define FIELD_TYPE_I32                           int32_t
#define FIELD_TYPE_I64                           int64_t
#define FIELD_TYPE_F32                           float
#define FIELD_TYPE_F64                           double
#define FIELD_TYPE_TEXT                          const char *
#define FIELD_TYPE_RANGES                        struct ranges
#define FIELD_AS_MEMBER(kind, name, limit, text) FIELD_TYPE_##kind name;
#define MESSAGE_AS_STRUCT(number, name, bulk, text)                                                                    \
    struct message_##name {                                                                                            \
        MESSAGE_FIELDS_##name(FIELD_AS_MEMBER)                                                                         \
    };
MESSAGE_TABLE(MESSAGE_AS_STRUCT)
#undef MESSAGE_AS_STRUCT
#undef FIELD_AS_MEMBER

/* Any message; the frame's type says which. */
#define MESSAGE_AS_UNION(number, name, bulk, text) struct message_##name name;
union message {
    MESSAGE_TABLE(MESSAGE_AS_UNION)
};
#undef MESSAGE_AS_UNION

#define MESSAGE_MAX_SIGNED (INT64_C(1) << 53) /* largest magnitude of an I64 */

enum { MESSAGE_GROWTH = 4096 }; /* bytes that later versions may append to hello and refused */

bool message_known(uint16_t type);
const char *message_name(uint16_t type);  /* "push"; "unknown" */
uint32_t message_max_size(uint16_t type); /* bytes; 0 for an unknown type */
uint32_t message_max_bulk(uint16_t type);

/*
 * Bytes of the encoded message in that protocol version; `message` points to the struct of that type. A NULL text
 * counts as empty. Exceeding a limit is our own bug, except for texts, which are truncated. Bytes of a text that are
 * not UTF-8 are sent as question marks. Fields newer than the version are left out.
 */
size_t message_size(uint16_t version, uint16_t type, const void *message);
void message_encode(uint16_t version, uint16_t type, const void *message, uint8_t *bytes, size_t size);

/*
 * Decodes exactly `size` bytes. Fails if there are too few or too many, a number or a list exceeds its limit, a text
 * has a zero byte or is not UTF-8, ranges are out of order, or bulk_bytes does not match dtype and ranges. Only hello
 * and refused may have extra bytes, so that later versions can identify themselves. A field that the version does not
 * have is NaN, 0 or NULL. The message borrows from bytes.
 */
bool message_decode(uint16_t version, uint16_t type, const uint8_t *bytes, size_t size, uint32_t bulk_bytes,
                    union message *message, struct error *error);

/* --- Frames --- */

/*
 * Frames, the units sent on a connection: a header of fixed size, then a message, then bulk bytes.
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
enum {
    FRAME_HEADER = 32,        /* bytes */
    FRAME_LAST = 1,           /* flags: the last (or only) frame of this request or answer */
    PROTOCOL_VERSION_MIN = 1, /* what this program speaks */
    PROTOCOL_VERSION_MAX = 1,
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

/* --- Spans --- */

/*
 * Names of the spans by which `trainer profile` pairs a worker's requests with a ps's answers, and so aligns their
 * clocks (worker/export/profile.c). Members' profile files contain them: renaming one makes older profiles unalignable.
 */

/* On the worker. */
#define SPAN_SEND_PUSH      "send push"
#define SPAN_RECEIVE_ANSWER "receive answer"

/* On the ps: a request is named after its message, and the answer to a push or pull lies within it. */
#define SPAN_PUSH         message_name(MESSAGE_push)
#define SPAN_SEND_CHANGES "send changes"

#endif
