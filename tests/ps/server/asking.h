/* Members for tests that send requests to a ps, and what they are answered (serving.h). */
#ifndef TESTS_PS_SERVER_ASKING_H
#define TESTS_PS_SERVER_ASKING_H

#include "tests/check.h"
#include "tests/ps/server/serving.h"

static struct serving_session *const chief = &serving.sessions[0];

static inline struct serving_session *come_as(int place, enum member_role role, int index, bool guest)
{
    const struct member who = {role, index};
    assert_int_equal(serving_admit(&serving.sessions[place], &who, 100 + (uint64_t)place, guest), 0);
    return &serving.sessions[place];
}

/* Worker i on session i. */
static inline struct serving_session *come(int worker)
{
    return come_as(worker, MEMBER_WORKER, worker, false);
}

/* --- Sending and receiving --- */

static inline void send_part(struct serving_session *one, enum message_type type, const void *message, uint32_t flags,
                             const float *bulk, size_t floats)
{
    struct error error;
    struct iovec part = {(void *)(uintptr_t)bulk, floats * sizeof *bulk};
    const struct outgoing frame = {type, one->client.next_request, message, &part, floats > 0, !(flags & FRAME_LAST)};
    if (!channel_send_frame(&one->client, &frame, serving.now_s, &error) ||
        !connection_flush(one->client.connection, serving.now_s, &error)) {
        fail_msg("%s", error.text);
    }
}

static inline void send_request(struct serving_session *one, enum message_type type, const void *message)
{
    one->client.next_request++;
    send_part(one, type, message, FRAME_LAST, NULL, 0);
}

/* The next frame for the peer, except pings. */
static inline uint16_t receive(struct serving_session *one)
{
    struct error error;
    do {
        if (!channel_receive(&one->client, serving.now_s, &error)) {
            fail_msg("no answer: %s", error.text);
        }
    } while (one->client.frame.type == MESSAGE_ping);
    return one->client.frame.type;
}

static inline bool has_answer(struct serving_session *one)
{
    struct pollfd there = {.fd = one->client.connection->fd, .events = POLLIN};
    return one->client.connection->in_end > one->client.connection->in_start || poll(&there, 1, 0) > 0;
}

/* The code of the error that answers the request; 0: another answer, of that type. */
static inline uint16_t ask(struct serving_session *one, enum message_type type, const void *message,
                           enum message_type answer)
{
    send_request(one, type, message);
    bool goes_on = serving_serve(one);
    uint16_t got = receive(one);
    if (got == MESSAGE_error) {
        assert_int_equal(goes_on, one->client.message.error.code != ERROR_BAD_REQUEST);
        return one->client.message.error.code;
    }
    assert_true(goes_on);
    assert_int_equal(got, answer);
    return 0;
}

/* --- The chief's part --- */

static inline uint16_t begin_restore(uint32_t generation)
{
    const struct message_begin_restore begin = {.source = "test"};
    chief->client.generation = generation;
    return ask(chief, MESSAGE_begin_restore, &begin, MESSAGE_done);
}

/* All parameters are `value`; flags: of each frame, which a socket accepts at once. Serves each frame. */
static inline void write_all(float value, uint32_t flags)
{
    enum { MOST = 8192 };
    static float values[MOST];
    const struct span *spans;
    const int count = shard_spans(serving.server.shard, &spans);
    for (int i = 0; i < MOST; i++) {
        values[i] = value;
    }
    for (int i = 0; i < count; i++) {
        for (size_t at = 0; at < spans[i].count; at += MOST) {
            uint8_t bytes[RANGE_BYTES];
            const size_t floats = spans[i].count - at < MOST ? spans[i].count - at : MOST;
            range_put(bytes, 0, (struct range){spans[i].first + at, (uint32_t)floats});
            const struct message_write write = {.vector = STORE_PARAMETERS, .ranges = {bytes, 1}};
            chief->client.next_request++;
            send_part(chief, MESSAGE_write, &write, flags, values, floats);
            assert_true(serving_serve(chief));
        }
    }
}

static inline uint16_t end_restore(int64_t step)
{
    const struct message_end_restore end = {.global_step = step};
    return ask(chief, MESSAGE_end_restore, &end, MESSAGE_done);
}

static inline void restore(uint32_t generation, int64_t step)
{
    assert_int_equal(begin_restore(generation), 0);
    write_all(0, FRAME_LAST);
    while (has_answer(chief)) {
        assert_int_equal(receive(chief), MESSAGE_done);
    }
    assert_int_equal(end_restore(step), 0);
}

/* --- Pushes --- */

enum { FEW = 8 };

static inline void send_push(struct serving_session *one, const struct message_push *push, float value)
{
    uint8_t bytes[RANGE_BYTES];
    float values[FEW];
    struct message_push whole = *push;
    for (int i = 0; i < FEW; i++) {
        values[i] = value;
    }
    range_put(bytes, 0, (struct range){0, FEW});
    whole.ranges = (struct ranges){bytes, 1};
    one->client.generation = serving.server.job.generation;
    one->client.next_request++;
    send_part(one, MESSAGE_push, &whole, FRAME_LAST, values, FEW);
}

/* The ps's answer: the push's outcome, or -1 minus the code of an error. */
static inline int outcome(struct serving_session *one)
{
    uint16_t got = receive(one);
    if (got == MESSAGE_error) {
        return -1 - one->client.message.error.code;
    }
    assert_int_equal(got, MESSAGE_pushed);
    int came_to = one->client.message.pushed.outcome;
    while (!(one->client.frame.flags & FRAME_LAST)) {
        assert_int_equal(receive(one), MESSAGE_pushed);
    }
    return came_to;
}

static inline int push(struct serving_session *one, uint64_t sequence, int64_t step)
{
    const struct message_push message = {.sequence = sequence, .base_step = step, .token = step};
    send_push(one, &message, 1);
    serving_serve(one);
    return outcome(one);
}

static inline float parameter(void)
{
    float value = NAN;
    struct error error;
    assert_true(shard_read(serving.server.shard, STORE_PARAMETERS, (struct range){0, 1}, &value, &error));
    return value;
}

/* The floats of the answer to a request, frame by frame; -1 minus the code of an error. */
static inline int values_of(struct serving_session *one, enum message_type type, const void *message, float *values,
                            int most)
{
    int got = 0;
    send_request(one, type, message);
    serving_serve(one);
    do {
        struct error error;
        if (receive(one) == MESSAGE_error) {
            return -1 - one->client.message.error.code;
        }
        assert_int_equal(one->client.frame.type, MESSAGE_values);
        const int count = (int)(one->client.bulk_left / sizeof *values);
        assert_true(got + count <= most);
        assert_true(count == 0 || channel_read_bulk(&one->client, values + got, (size_t)count * sizeof *values,
                                                    serving.now_s, &error));
        got += count;
    } while (!(one->client.frame.flags & FRAME_LAST));
    return got;
}

enum { ALL = 4096 };

/* --- A ps with synchronous steps --- */

static inline void begin_synchronous(int ps_count)
{
    struct config *config = serving_config();
    config->cluster.issync = true;
    config->cluster.replicas_to_aggregate = 1;
    config->cluster.ps_hosts.count = ps_count;
    serving_begin(0);
    come(0);
    restore(1, 0);
}

#endif
