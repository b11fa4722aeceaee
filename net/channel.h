/*
 * A channel: messages in frames on a connection. It owns the connection, and a buffer for one message each way, which
 * grows to the largest message so far, within the type's limit.
 *
 * Requests and answers: the requester chooses a request number, and answers repeat it. An answer of several frames ends
 * with the one flagged FRAME_LAST. Bulk is not buffered: channel_receive leaves it on the connection, for the receiver
 * to read to its destination; the next channel_receive reads and drops the rest.
 *
 * Rules for threads, deadlines and failure are the connection's; large frames get more time, see CHANNEL_LEAST_RATE.
 */
#ifndef NET_CHANNEL_H
#define NET_CHANNEL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/error.h"
#include "net/connection.h"
#include "net/message.h"

/*
 * A frame's deadline depends on its size, so that a slow link can carry a large one: it is extended by the time that
 * the frame takes at this rate, in bytes a second. The size is the header's, within the type's limit.
 */
enum { CHANNEL_LEAST_RATE = 64 * 1024 };

struct channel {
    struct connection *connection; /* NULL: closed */
    uint16_t version;              /* of the protocol, agreed on by the handshake */
    uint32_t generation;           /* put into sent frames */
    uint64_t next_request;         /* of channel_call */
    struct frame frame;            /* the last one received */
    union message message;         /* likewise, until the next channel_receive */
    uint32_t bulk_left;            /* of it, not yet read */
    struct channel_buffer {
        uint8_t *bytes;
        size_t size;
    } received, sent; /* encoded messages */
};

/* Takes over the connection. */
void channel_open(struct channel *channel, struct connection *connection);
void channel_close(struct channel *channel); /* also fine if closed, or all zeros */

/*
 * After connection_wait: true if a whole frame without bulk is buffered, so that receiving it does not block; *type:
 * its type.
 */
bool channel_has_frame(const struct channel *channel, uint16_t *type);

/* As connection_park and connection_resume; channel->message is lost. */
bool channel_park(struct channel *channel);
bool channel_resume(struct channel *channel, struct error *error);

/* Sends a single frame: a whole request or answer without bulk. */
bool channel_send(struct channel *channel, enum message_type type, uint64_t request, const void *message,
                  double deadline_s, struct error *error);

/* A frame to send; it borrows what it points to. */
struct outgoing {
    enum message_type type;
    uint64_t request;
    const void *message;
    const struct iovec *bulk; /* its parts in order; NULL: none */
    int bulk_parts;
    bool more; /* frames of the same request or answer follow: this one may wait in the connection's buffer for them */
};

bool channel_send_frame(struct channel *channel, const struct outgoing *outgoing, double deadline_s,
                        struct error *error);

/* Receives the next frame into channel->frame and channel->message. */
bool channel_receive(struct channel *channel, double deadline_s, struct error *error);

/* Reads the next `size` bytes of the frame's bulk; size must not exceed bulk_left. */
bool channel_read_bulk(struct channel *channel, void *bytes, size_t size, double deadline_s, struct error *error);

/*
 * Sends a request of one frame without bulk and receives the first frame of its answer, which must have type `answer`.
 * If the peer answers with an error, it becomes ours, and *code (may be NULL) is its enum error_code; for failures of
 * the connection *code is 0. Answers to earlier requests are dropped, and so are pings; link_call answers them.
 */
bool channel_call(struct channel *channel, enum message_type type, const void *message, enum message_type answer,
                  double deadline_s, uint16_t *code, struct error *error);

/* True if the last received frame answers a request before `request`, and must be dropped. */
bool channel_is_late(const struct channel *channel, uint64_t request);

/*
 * Checks that the frame received last is an answer, or the next part of one, to request number `request` of type
 * `type`: it must have type `answer`. Errors are as of channel_call.
 */
bool channel_check_answer(const struct channel *channel, enum message_type type, uint64_t request,
                          enum message_type answer, uint16_t *code, struct error *error);

/* Answers a request with an error message. */
bool channel_send_error(struct channel *channel, uint64_t request, enum error_code code, double deadline_s,
                        struct error *error, const char *format, ...) __attribute__((format(printf, 6, 7)));

#endif
