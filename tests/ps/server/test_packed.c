/* Packed messages: gradients as bfloat16, int8 and the largest, and what is sent of the parameters. */
#include "tests/check.h"
#include "tests/ps/server/asking.h"

#include "ps/store/codec.h"

static struct serving_session *worker;
static uint64_t sequence;

/* With this many inputs and hidden units. */
static void begin(bool synchronous, enum wire_dtype wire_dtype, int inputs, int hidden)
{
    struct config *config = serving_config();
    config->cluster.issync = synchronous;
    config->cluster.replicas_to_aggregate = 1;
    config->cluster.wire_dtype = wire_dtype;
    config->cluster.wire_top = 1;
    config->model.layers[0] = inputs;
    config->model.layers[1] = hidden;
    serving_begin(0);
    come(0);
    restore(1, 0);
    worker = come(1);
    worker->client.generation = 1;
    sequence = 0;
}

/* Frames of a push with the first floats of the model; `more`: others follow. */
static void send_floats(const struct message_push *push, struct range range, const void *bytes, size_t size, bool more)
{
    struct error error;
    uint8_t ranges[RANGE_BYTES];
    struct message_push whole = *push;
    struct iovec bulk = {(void *)(uintptr_t)bytes, size};
    range_put(ranges, 0, range);
    whole.ranges = (struct ranges){ranges, 1};
    const struct outgoing frame = {.type = MESSAGE_push,
                                   .request = worker->client.next_request,
                                   .message = &whole,
                                   .bulk = &bulk,
                                   .bulk_parts = size > 0,
                                   .more = more};
    assert_true(channel_send_frame(&worker->client, &frame, serving.now_s, &error));
    assert_true(connection_flush(worker->client.connection, serving.now_s, &error));
}

static struct message_push next_push(enum dtype dtype)
{
    uint64_t version;
    shard_now(serving.server.shard, &version, NULL);
    worker->client.next_request++;
    return (struct message_push){.sequence = ++sequence,
                                 .base_version = version,
                                 .base_step = serving.server.job.global_step,
                                 .token = serving.server.job.global_step,
                                 .dtype = (uint8_t)dtype};
}

/* All floats held, padding between rows included. */
static int held(void)
{
    const struct span *spans;
    size_t floats = 0;
    for (int i = shard_spans(serving.server.shard, &spans) - 1; i >= 0; i--) {
        floats += spans[i].count;
    }
    return (int)floats;
}

/* Is that float of the first variable padding? */
static bool is_padding(int i)
{
    const struct variable *variable = &serving.server.model.variables[0];
    return i % (int)variable->stride >= variable->cols;
}

/* The result of a push of one frame. */
static int push_bytes(enum dtype dtype, struct range range, const void *bytes, size_t size)
{
    const struct message_push push = next_push(dtype);
    send_floats(&push, range, bytes, size, false);
    serving_serve(worker);
    return outcome(worker);
}

/* It is malformed, for this reason, and ends the connection without any effect. */
static void refused(enum dtype dtype, struct range range, const void *bytes, size_t size, const char *why)
{
    const int64_t step = serving.server.job.global_step;
    assert_int_equal(push_bytes(dtype, range, bytes, size), -1 - ERROR_BAD_REQUEST);
    if (!strstr(worker->client.message.error.message, why)) {
        fail_msg("\"%s\" does not say \"%s\"", worker->client.message.error.message, why);
    }
    assert_int_equal(serving.server.job.global_step, step);
    serving_hang_up(worker);
    worker = come(1);
    worker->client.generation = 1;
}

static void read_floats(struct range range, float *values)
{
    struct error error;
    assert_true(shard_read(serving.server.shard, STORE_PARAMETERS, range, values, &error));
}

static void are(uint64_t first, const float *wanted, int count)
{
    float values[64];
    read_floats((struct range){first, (uint32_t)count}, values);
    for (int i = 0; i < count; i++) {
        if (values[i] != wanted[i]) {
            fail_msg("float %llu is %g, not %g", (unsigned long long)first + (unsigned)i, (double)values[i],
                     (double)wanted[i]);
        }
    }
}

/* --- Gradients --- */

TEST(halves_of_a_gradient_are_widened)
{
    static float gradient[10000], now[10000];
    static uint16_t halves[10000];
    begin(false, WIRE_BFLOAT16, 300, 64);
    for (int i = 0; i < 10000; i++) { /* more than are widened at once */
        gradient[i] = (float)(1 + i % 50);
    }
    bfloat16_from_floats(halves, gradient, 10000);
    assert_int_equal(push_bytes(DTYPE_BFLOAT16, (struct range){0, 10000}, halves, sizeof halves), PUSH_APPLIED);
    read_floats((struct range){0, 10000}, now);
    for (int i = 0; i < 10000; i++) {
        if (!is_padding(i) && now[i] != -gradient[i]) {
            fail_msg("float %d is %g, not %g", i, (double)now[i], (double)-gradient[i]);
        }
    }
    halves[7] = 0x7fc0;
    assert_int_equal(push_bytes(DTYPE_BFLOAT16, (struct range){0, 8}, halves, 16), PUSH_NOT_FINITE);
    serving_end();
}

TEST(gradients_of_bytes_count_as_what_they_say)
{
    float gradient[70], negated[70];
    uint8_t bytes[70 + 2 * sizeof(float)];
    begin(false, WIRE_INT8, 6, 128);
    for (int i = 0; i < 70; i++) {
        gradient[i] = (float)(i - 35);
    }
    int8_round(bytes, gradient, 70);
    assert_int_equal(sizeof bytes, int8_size(70));
    assert_true(int8_widen(negated, bytes, 70));
    for (int i = 0; i < 70; i++) {
        negated[i] = -negated[i];
    }
    assert_int_equal(push_bytes(DTYPE_INT8, (struct range){3, 70}, bytes, sizeof bytes), PUSH_APPLIED);
    are(3, negated, 64);
    are(67, negated + 64, 6);
    const float nothing[3] = {0};
    are(0, nothing, 3);
    const float bad = -1;
    memcpy(bytes, &bad, sizeof bad);
    refused(DTYPE_INT8, (struct range){3, 70}, bytes, sizeof bytes, "a scale is negative or infinite");
    const float odd = NAN;
    memcpy(bytes, &odd, sizeof odd);
    assert_int_equal(push_bytes(DTYPE_INT8, (struct range){3, 70}, bytes, sizeof bytes), PUSH_NOT_FINITE);
    refused(DTYPE_INT8, (struct range){1 << 20, 70}, bytes, sizeof bytes, "are not all held here");
    serving_end();
}

/* Positions 1 and 5 of the eight, by hand: a head, two gaps, two values. */
static size_t pack_two(uint8_t *bytes, enum dtype dtype, float first, float second)
{
    const float values[] = {first, second};
    uint16_t halves[2];
    const uint8_t head[] = {2, 0, 2, 0, 1, 3};
    memcpy(bytes, head, sizeof head);
    uint8_t *at = bytes + sizeof head;
    if (dtype == DTYPE_LARGEST_INT8) {
        float left[] = {first, second};
        int8_round(at, left, 2);
    } else if (dtype == DTYPE_LARGEST_BFLOAT16) {
        bfloat16_from_floats(halves, values, 2);
        memcpy(at, halves, sizeof halves);
    } else {
        memcpy(at, values, sizeof values);
    }
    return sizeof head + largest_values_size(dtype, 2);
}

TEST(the_largest_of_a_gradient_fall_in_their_places)
{
    static const enum dtype dtypes[] = {DTYPE_LARGEST_FLOAT32, DTYPE_LARGEST_BFLOAT16, DTYPE_LARGEST_INT8};
    const struct range eight = {8, 8};
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        uint8_t bytes[64] = {0};
        begin(false, WIRE_FLOAT32, 6, 40);
        const size_t size = pack_two(bytes, dtypes[i], 127, -127);
        assert_int_equal(push_bytes(dtypes[i], eight, bytes, size), PUSH_APPLIED);
        const float wanted[] = {0, -127, 0, 0, 0, 127, 0, 0};
        are(8, wanted, 8);
        const float nothing[8] = {0};
        are(0, nothing, 8);
        are(16, nothing, 8);
        pack_two(bytes, dtypes[i], NAN, 1);
        assert_int_equal(push_bytes(dtypes[i], eight, bytes, size), PUSH_NOT_FINITE);
        serving_end();
    }
}

TEST(the_largest_that_make_no_sense_are_refused)
{
    const struct range eight = {8, 8};
    const enum dtype dtype = DTYPE_LARGEST_FLOAT32;
    uint8_t bytes[64] = {0};
    begin(false, WIRE_FLOAT32, 6, 40);
    const size_t size = pack_two(bytes, dtype, 1, 1);
    refused(dtype, eight, bytes, size + 1, "bytes more than its floats take");
    refused(dtype, eight, bytes, size - 1, "its bulk ends within packed floats");
    refused(dtype, eight, bytes, 5, "its bulk ends within packed floats");
    refused(dtype, (struct range){1 << 20, 8}, bytes, size, "are not all held here");
    bytes[5] = 6; /* five after position 1 is the ninth */
    refused(dtype, eight, bytes, size, "not all positions of 2 floats are within their range of 8");
    bytes[5] = 5;
    assert_int_equal(push_bytes(dtype, eight, bytes, size), PUSH_APPLIED);
    bytes[0] = 9;
    refused(dtype, eight, bytes, size, "9 of 8 floats in 2 bytes is impossible");
    bytes[0] = 2;
    bytes[3] = 0xff;
    refused(dtype, eight, bytes, size, "is impossible");
    pack_two(bytes, DTYPE_LARGEST_INT8, 1, 1);
    const float bad = -1;
    memcpy(bytes + 6, &bad, sizeof bad);
    refused(DTYPE_LARGEST_INT8, eight, bytes, 6 + largest_values_size(DTYPE_LARGEST_INT8, 2),
            "a scale is negative or infinite");
    serving_end();
}

/* All of the floats may be sent, and all frames count. */
TEST(frames_of_packed_floats_add_up)
{
    uint8_t bytes[64] = {8, 0, 8, 0}; /* all eight, without gaps */
    float values[8];
    begin(false, WIRE_FLOAT32, 6, 40);
    for (int i = 0; i < 8; i++) {
        values[i] = (float)(i + 1);
    }
    memcpy(bytes + 12, values, sizeof values);
    const struct message_push push = next_push(DTYPE_LARGEST_FLOAT32);
    send_floats(&push, (struct range){0, 8}, bytes, 12 + sizeof values, true);
    send_floats(&push, (struct range){8, 8}, bytes, 12 + sizeof values, false);
    serving_serve(worker);
    assert_int_equal(outcome(worker), PUSH_APPLIED);
    for (int i = 0; i < 8; i++) {
        values[i] = -values[i];
    }
    are(0, values, 8);
    are(8, values, 8);
    assert_int_equal(serving.server.job.global_step, 1);
    serving_end();
}

/* --- Answers --- */

/* One frame of an answer that has arrived: its values or pushed. Returns the bytes of its bulk. */
static size_t bulk_here(uint8_t *bytes, size_t room)
{
    struct error error;
    const size_t size = worker->client.bulk_left;
    assert_true(size <= room);
    assert_true(size == 0 || channel_read_bulk(&worker->client, bytes, size, serving.now_s, &error));
    return size;
}

static uint16_t pull(enum dtype dtype, uint64_t since_version)
{
    const struct message_pull message = {.dtype = (uint8_t)dtype, .since_version = since_version, .after_step = -1};
    send_request(worker, MESSAGE_pull, &message);
    assert_true(serving_serve(worker));
    return receive(worker);
}

enum { MOST_BYTES = 1 << 17 };

static uint8_t bulk[MOST_BYTES];

TEST(what_is_pulled_as_halves_is_rounded)
{
    const float gradient = 1.0f / 3;
    float value;
    uint16_t half, wanted;
    begin(false, WIRE_BFLOAT16, 6, 40);
    assert_int_equal(push_bytes(DTYPE_FLOAT32, (struct range){0, 1}, &gradient, sizeof gradient), PUSH_APPLIED);
    assert_int_equal(pull(DTYPE_BFLOAT16, 0), MESSAGE_values);
    assert_int_equal(worker->client.message.values.dtype, DTYPE_BFLOAT16);
    assert_int_equal(worker->client.message.values.version, 2);
    assert_int_equal(worker->client.message.values.global_step, 1);
    bulk_here(bulk, sizeof bulk);
    memcpy(&half, bulk, sizeof half);
    read_floats((struct range){0, 1}, &value);
    bfloat16_from_floats(&wanted, &value, 1);
    assert_int_equal(half, wanted);
    serving_end();
}

/* Complete at first, and on every new connection; then the changes since. */
TEST(differences_are_told_to_who_knows_the_rest)
{
    static uint16_t known[4096], again[4096];
    const float gradient[4] = {1, 2, 3, 4};
    float values[4];
    uint16_t halves[4];
    begin(false, WIRE_BFLOAT16, 6, 40);
    assert_int_equal(pull(DTYPE_DIFFERENCES, 0), MESSAGE_values);
    assert_int_equal(worker->client.message.values.dtype, DTYPE_DIFFERENCES);
    const uint64_t version = worker->client.message.values.version;
    const struct range all = range_get(&worker->client.message.values.ranges, 0);
    assert_int_equal(all.first, 0);
    size_t size = bulk_here(bulk, sizeof bulk);
    assert_int_equal(bfloat16_apply_delta(known, bulk, size, all.count), size);
    struct message_push push = next_push(DTYPE_FLOAT32);
    push.answer_dtype = DTYPE_DIFFERENCES;
    push.base_version = version;
    send_floats(&push, (struct range){0, 4}, gradient, sizeof gradient, false);
    assert_true(serving_serve(worker));
    assert_int_equal(receive(worker), MESSAGE_pushed);
    assert_int_equal(worker->client.message.pushed.dtype, DTYPE_DIFFERENCES);
    const struct range changed = range_get(&worker->client.message.pushed.ranges, 0);
    assert_true(changed.count < all.count);
    size = bulk_here(bulk, sizeof bulk);
    assert_int_equal(bfloat16_apply_delta(known + changed.first, bulk, size, changed.count), size);
    read_floats((struct range){0, 4}, values);
    bfloat16_from_floats(halves, values, 4);
    assert_memory_equal(known, halves, sizeof halves);
    serving_hang_up(worker);
    worker = come(1);
    worker->client.generation = 1;
    assert_int_equal(pull(DTYPE_DIFFERENCES, version + 1), MESSAGE_values);
    assert_int_equal(range_get(&worker->client.message.values.ranges, 0).count, all.count);
    size = bulk_here(bulk, sizeof bulk);
    assert_int_equal(bfloat16_apply_delta(again, bulk, size, all.count), size);
    assert_memory_equal(again, known, all.count * sizeof *again);
    serving_end();
}

/* If nothing is kept for them, differences are bfloat16, and what would be packed is float32. */
TEST(what_is_not_kept_comes_plain)
{
    begin(false, WIRE_FLOAT32, 6, 40);
    assert_int_equal(pull(DTYPE_DIFFERENCES, 0), MESSAGE_values);
    assert_int_equal(worker->client.message.values.dtype, DTYPE_BFLOAT16);
    bulk_here(bulk, sizeof bulk);
    assert_int_equal(pull(DTYPE_INT8, 0), MESSAGE_values);
    assert_int_equal(worker->client.message.values.dtype, DTYPE_FLOAT32);
    bulk_here(bulk, sizeof bulk);
    serving_end();
}

/* The sent model complete at first, and then the changes of each step. */
TEST(packed_answers_bring_the_told_model_up)
{
    static float sent_model[4096];
    float gradient[FEW];
    begin(true, WIRE_INT8, 6, 40);
    assert_int_equal(pull(DTYPE_INT8, 0), MESSAGE_values);
    assert_int_equal(worker->client.message.values.dtype, DTYPE_FLOAT32);
    const uint64_t version = worker->client.message.values.version;
    bulk_here((uint8_t *)sent_model, sizeof sent_model);
    for (int i = 0; i < FEW; i++) {
        gradient[i] = 127;
    }
    struct message_push push = next_push(DTYPE_FLOAT32);
    push.answer_dtype = DTYPE_INT8;
    push.base_version = version;
    send_floats(&push, (struct range){0, FEW}, gradient, sizeof gradient, false);
    assert_true(serving_serve(worker));
    assert_int_equal(receive(worker), MESSAGE_pushed);
    bool more = true;
    while (more) {
        const struct message_pushed pushed = worker->client.message.pushed;
        more = !(worker->client.frame.flags & FRAME_LAST);
        assert_int_equal(pushed.outcome, PUSH_APPLIED);
        assert_int_equal(pushed.dtype, DTYPE_INT8);
        assert_int_equal(pushed.version, version + 1);
        struct range ranges[SENT_FRAME_RANGES];
        const uint32_t count = pushed.ranges.count;
        for (uint32_t i = 0; i < count; i++) {
            ranges[i] = range_get(&pushed.ranges, i);
        }
        const size_t size = bulk_here(bulk, sizeof bulk);
        size_t at = 0;
        for (uint32_t i = 0; i < count; i++) {
            const size_t took =
                sent_model_apply(sent_model + ranges[i].first, bulk + at, size - at, ranges[i].count, DTYPE_INT8);
            assert_true(took > 0);
            at += took;
        }
        assert_int_equal(at, size);
        if (more) {
            assert_int_equal(receive(worker), MESSAGE_pushed);
        }
    }
    for (int i = 0; i < FEW; i++) {
        assert_true(sent_model[i] == -127);
    }
    serving_end();
}

/* More floats than pass through a stack at once. */
TEST(what_is_long_is_read_piece_by_piece)
{
    static float values[32768];
    float gradient[100];
    begin(false, WIRE_FLOAT32, 300, 64);
    for (int i = 0; i < 100; i++) {
        gradient[i] = (float)-i;
    }
    const struct range there = {SERVE_CHUNK_FLOATS - 50, 100};
    assert_int_equal(push_bytes(DTYPE_FLOAT32, there, gradient, sizeof gradient), PUSH_APPLIED);
    const struct message_pull pull_all = {.after_step = -1};
    const struct message_read read = {.vector = STORE_PARAMETERS};
    const int floats = held();
    assert_true(floats > 2 * SERVE_CHUNK_FLOATS && floats <= 32768);
    for (int i = 0; i < 2; i++) {
        memset(values, 0xff, sizeof values);
        const int got = i == 0 ? values_of(worker, MESSAGE_pull, &pull_all, values, 32768)
                               : values_of(worker, MESSAGE_read, &read, values, 32768);
        assert_true(got > 2 * SERVE_CHUNK_FLOATS && got <= floats);
        for (int k = 0; k < got; k++) {
            const int at = k - (int)there.first;
            assert_true(values[k] == (at >= 0 && at < 100 && !is_padding(k) ? (float)at : 0));
        }
    }
    serving_end();
}

/* Differences, too: a range too long for one frame, piece by piece. */
TEST(what_is_long_is_told_piece_by_piece)
{
    static uint16_t known[32768];
    static float gradient[12000];
    begin(false, WIRE_BFLOAT16, 300, 64);
    for (int i = 0; i < 12000; i++) {
        gradient[i] = (float)-(i % 100);
    }
    for (int i = 0; i < 2; i++) { /* no more than a socket takes */
        const struct range half = {(uint64_t)i * 6000, 6000};
        assert_int_equal(push_bytes(DTYPE_FLOAT32, half, gradient + half.first, half.count * sizeof *gradient),
                         PUSH_APPLIED);
    }
    assert_int_equal(pull(DTYPE_DIFFERENCES, 0), MESSAGE_values);
    uint64_t next = 0;
    for (int frames = 1;; frames++) {
        const bool more = !(worker->client.frame.flags & FRAME_LAST);
        struct range ranges[8];
        const uint32_t count = worker->client.message.values.ranges.count;
        size_t floats = 0, at = 0;
        assert_true(count > 0 && count <= 8);
        for (uint32_t i = 0; i < count; i++) {
            ranges[i] = range_get(&worker->client.message.values.ranges, i);
            floats += ranges[i].count;
        }
        assert_true(floats <= DIFFERENCES_FLOATS);
        const size_t size = bulk_here(bulk, sizeof bulk);
        for (uint32_t i = 0; i < count; i++) {
            assert_int_equal(ranges[i].first, next);
            next += ranges[i].count;
            at += bfloat16_apply_delta(known + ranges[i].first, bulk + at, size - at, ranges[i].count);
        }
        assert_int_equal(at, size);
        if (!more) {
            assert_true(frames > 1);
            break;
        }
        assert_int_equal(receive(worker), MESSAGE_values);
    }
    assert_true(next > DIFFERENCES_FLOATS && next <= (uint64_t)held());
    for (int i = 0; i < 12000; i++) {
        assert_true(bfloat16_widen(known[i]) == (is_padding(i) ? 0 : (float)(i % 100)));
    }
    assert_int_equal(known[12000], 0);
    serving_end();
}

int main(void)
{
    return check_run(NULL, NULL);
}
