/*
 * Messages in frames: one buffer in each direction, which grows with what arrives, so that steady use allocates
 * nothing.
 */
#include "net/channel.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHANNEL_FIRST_BUFFER = 1024 };

void channel_open(struct channel *channel, struct connection *connection)
{
    *channel = (struct channel){.connection = connection, .version = PROTOCOL_VERSION_MIN};
}

void channel_close(struct channel *channel)
{
    connection_close(channel->connection);
    free(channel->received.bytes);
    free(channel->sent.bytes);
    *channel = (struct channel){.connection = NULL};
}

bool channel_park(struct channel *channel)
{
    if (channel->bulk_left > 0 || !connection_park(channel->connection)) {
        return false;
    }
    free(channel->received.bytes);
    free(channel->sent.bytes);
    channel->received = channel->sent = (struct channel_buffer){NULL, 0};
    return true;
}

bool channel_resume(struct channel *channel, struct error *error)
{
    return connection_resume(channel->connection, error);
}

static bool reserve(struct channel *channel, struct channel_buffer *buffer, size_t size, struct error *error)
{
    if (buffer->bytes && size <= buffer->size) { /* an empty message has an address, too */
        return true;
    }
    size_t wanted = size < CHANNEL_FIRST_BUFFER ? CHANNEL_FIRST_BUFFER : size;
    uint8_t *bytes = realloc(buffer->bytes, wanted);
    if (!bytes) {
        return error_set(error, "out of memory for a message of %zu bytes with %s", size,
                         connection_name(channel->connection));
    }
    buffer->bytes = bytes;
    buffer->size = wanted;
    return true;
}

/* The extra time allowed for that many bytes. */
static double allow(double deadline_s, size_t bytes)
{
    return deadline_s + (double)bytes / CHANNEL_LEAST_RATE;
}

bool channel_send_frame(struct channel *channel, const struct outgoing *outgoing, double deadline_s,
                        struct error *error)
{
    uint8_t header[FRAME_HEADER];
    size_t bulk_bytes = 0, size = message_size(channel->version, outgoing->type, outgoing->message);
    for (int i = 0; i < outgoing->bulk_parts; i++) {
        bulk_bytes += outgoing->bulk[i].iov_len;
    }
    assert(bulk_bytes <= message_max_bulk(outgoing->type));
    if (!reserve(channel, &channel->sent, size, error)) {
        return false;
    }
    message_encode(channel->version, outgoing->type, outgoing->message, channel->sent.bytes, size);
    struct frame frame = {.version = channel->version,
                          .type = (uint16_t)outgoing->type,
                          .request = outgoing->request,
                          .generation = channel->generation,
                          .flags = outgoing->more ? 0 : FRAME_LAST,
                          .message_bytes = (uint32_t)size,
                          .bulk_bytes = (uint32_t)bulk_bytes};
    frame_encode(&frame, header);
    struct iovec head[] = {{header, sizeof header}, {channel->sent.bytes, size}};
    deadline_s = allow(deadline_s, size + bulk_bytes);
    return connection_write_more(channel->connection, head, 2, deadline_s, error) &&
           connection_write_more(channel->connection, outgoing->bulk, outgoing->bulk_parts, deadline_s, error) &&
           (outgoing->more || connection_flush(channel->connection, deadline_s, error));
}

bool channel_send(struct channel *channel, enum message_type type, uint64_t request, const void *message,
                  double deadline_s, struct error *error)
{
    const struct outgoing outgoing = {.type = type, .request = request, .message = message};
    return channel_send_frame(channel, &outgoing, deadline_s, error);
}

static bool drop_bulk(struct channel *channel, double deadline_s, struct error *error)
{
    uint8_t dropped[4096];
    while (channel->bulk_left > 0) {
        size_t size = channel->bulk_left < sizeof dropped ? channel->bulk_left : sizeof dropped;
        if (!channel_read_bulk(channel, dropped, size, deadline_s, error)) {
            return false;
        }
    }
    return true;
}

bool channel_has_frame(const struct channel *channel, uint16_t *type)
{
    const uint8_t *bytes;
    struct frame frame;
    struct error error;
    const size_t there = connection_peek(channel->connection, &bytes);
    if (channel->bulk_left > 0 || there < FRAME_HEADER || !frame_decode(bytes, &frame, &error)) {
        return false;
    }
    *type = frame.type;
    return frame.bulk_bytes == 0 && there - FRAME_HEADER >= frame.message_bytes;
}

/* Reads the bytes of one frame up to its bulk, into channel->frame and channel->received. */
static bool receive_frame(struct channel *channel, double deadline_s, struct error *error)
{
    uint8_t header[FRAME_HEADER];
    if (!drop_bulk(channel, deadline_s, error) ||
        !connection_read(channel->connection, header, sizeof header, deadline_s, error)) {
        return false;
    }
    if (!frame_decode(header, &channel->frame, error)) {
        return error_wrap(error, "%s", connection_name(channel->connection));
    }
    if (!reserve(channel, &channel->received, channel->frame.message_bytes, error) ||
        !connection_read(channel->connection, channel->received.bytes, channel->frame.message_bytes,
                         allow(deadline_s, channel->frame.message_bytes), error)) {
        return false;
    }
    channel->bulk_left = channel->frame.bulk_bytes;
    return true;
}

bool channel_receive(struct channel *channel, double deadline_s, struct error *error)
{
    if (!receive_frame(channel, deadline_s, error)) {
        return false;
    }
    const struct frame *frame = &channel->frame;
    const char *name = connection_name(channel->connection);
    /* A peer with another protocol version must still receive the error, and the agreed version comes in a welcome. */
    bool greeting = frame->type == MESSAGE_hello || frame->type == MESSAGE_refused || frame->type == MESSAGE_welcome;
    if (frame->version != channel->version && !greeting) {
        return error_set(error, "%s: frame of protocol version %u, and %u was agreed on", name, frame->version,
                         channel->version);
    }
    return message_decode(frame->version, frame->type, channel->received.bytes, frame->message_bytes, frame->bulk_bytes,
                          &channel->message, error) ||
           error_wrap(error, "%s", name);
}

bool channel_read_bulk(struct channel *channel, void *bytes, size_t size, double deadline_s, struct error *error)
{
    assert(size <= channel->bulk_left);
    channel->bulk_left -= (uint32_t)size;
    return connection_read(channel->connection, bytes, size, allow(deadline_s, channel->frame.bulk_bytes), error);
}

bool channel_is_late(const struct channel *channel, uint64_t request)
{
    return channel->frame.request < request;
}

bool channel_check_answer(const struct channel *channel, enum message_type type, uint64_t request,
                          enum message_type answer, uint16_t *code, struct error *error)
{
    const struct frame *frame = &channel->frame;
    const char *name = connection_name(channel->connection);
    if (code) {
        *code = 0;
    }
    if (frame->request > request || channel_is_late(channel, request)) {
        return error_set(error, "%s: answer to a request that was not made", name);
    }
    if (frame->type == MESSAGE_error) {
        if (code) {
            *code = channel->message.error.code;
        }
        return error_set(error, "%s: %s", name, channel->message.error.message);
    }
    return frame->type == answer ||
           error_set(error, "%s: answered %s with %s", name, message_name((uint16_t)type), message_name(frame->type));
}

bool channel_call(struct channel *channel, enum message_type type, const void *message, enum message_type answer,
                  double deadline_s, uint16_t *code, struct error *error)
{
    uint64_t request = ++channel->next_request;
    if (code) {
        *code = 0;
    }
    if (!channel_send(channel, type, request, message, deadline_s, error)) {
        return false;
    }
    do {
        if (!channel_receive(channel, deadline_s, error)) {
            return false;
        }
    } while (channel_is_late(channel, request));
    return channel_check_answer(channel, type, request, answer, code, error);
}

bool channel_send_error(struct channel *channel, uint64_t request, enum error_code code, double deadline_s,
                        struct error *error, const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    struct message_error message = {.code = (uint16_t)code, .message = text};
    return channel_send(channel, MESSAGE_error, request, &message, deadline_s, error);
}
