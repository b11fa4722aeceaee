/* A restore: written and ended by the chief alone, whatever breaks off meanwhile. */
#include "tests/check.h"
#include "tests/ps/server/asking.h"

/* It stays to be written until it ends well, whatever the chief ends it with. */
TEST(test_a_restore_that_ends_badly_is_still_open)
{
    static const int64_t bad[] = {-1, -MESSAGE_MAX_SIGNED, JOB_MAX_STEP + 1, MESSAGE_MAX_SIGNED};
    serving_config();
    serving_begin(0);
    come(0);
    assert_int_equal(begin_restore(1), 0);
    write_all(1, FRAME_LAST);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        while (has_answer(chief)) {
            receive(chief);
        }
        assert_int_equal(end_restore(bad[i]), ERROR_BAD_REQUEST);
        serving_hang_up(chief);
        come(0);
        chief->client.generation = 1;
        assert_int_equal(serving.server.job.state, JOB_RESTORING);
        write_all(2, FRAME_LAST);
    }
    while (has_answer(chief)) {
        receive(chief);
    }
    assert_int_equal(end_restore(7), 0);
    assert_int_equal(serving.server.job.global_step, 7);
    assert_true(parameter() == 2);
    serving_end();
}

/* What is not held here can't be written here. */
TEST(test_a_stray_write_is_refused)
{
    static const float values[2];
    uint8_t bytes[RANGE_BYTES];
    serving_config();
    serving_begin(0);
    come(0);
    assert_int_equal(begin_restore(1), 0);
    range_put(bytes, 0, (struct range){1 << 20, 2});
    const struct message_write write = {.vector = STORE_PARAMETERS, .ranges = {bytes, 1}};
    chief->client.next_request++;
    send_part(chief, MESSAGE_write, &write, FRAME_LAST, values, 2);
    assert_false(serving_serve(chief));
    assert_int_equal(receive(chief), MESSAGE_error);
    assert_int_equal(chief->client.message.error.code, ERROR_BAD_REQUEST);
    assert_non_null(strstr(chief->client.message.error.message, "are not all held here"));
    serving_end();
}

/* Of another generation, or without the chief: nothing is opened, and writing goes on. */
TEST(test_an_end_that_is_refused_opens_nothing)
{
    serving_config();
    serving_begin(0);
    come(0);
    struct serving_session *other = come(1);
    assert_int_equal(begin_restore(5), 0);
    write_all(1, FRAME_LAST);
    while (has_answer(chief)) {
        receive(chief);
    }
    chief->client.generation = 4;
    assert_int_equal(end_restore(0), ERROR_OLD_GENERATION);
    const struct message_end_restore end = {.global_step = 0};
    other->client.generation = 5;
    assert_int_equal(ask(other, MESSAGE_end_restore, &end, MESSAGE_done), ERROR_NOT_ALLOWED);
    const struct message_read all = {.vector = STORE_PARAMETERS};
    assert_int_equal(ask(other, MESSAGE_read, &all, MESSAGE_values), ERROR_NOT_READY);
    chief->client.generation = 5;
    write_all(3, FRAME_LAST);
    while (has_answer(chief)) {
        receive(chief);
    }
    assert_int_equal(end_restore(0), 0);
    assert_true(parameter() == 3);
    serving_end();
}

/* Values of the first `count` floats alone, in a frame that breaks off behind the first few. */
static void write_first(float value, uint32_t count)
{
    uint8_t bytes[RANGE_BYTES], header[FRAME_HEADER], body[64];
    float values[FEW];
    struct error error;
    for (int i = 0; i < FEW; i++) {
        values[i] = value;
    }
    range_put(bytes, 0, (struct range){0, count});
    const struct message_write write = {.vector = STORE_PARAMETERS, .ranges = {bytes, 1}};
    const size_t size = message_size(chief->client.version, MESSAGE_write, &write);
    assert_true(size <= sizeof body);
    message_encode(chief->client.version, MESSAGE_write, &write, body, size);
    frame_encode(&(struct frame){.version = chief->client.version,
                                 .type = MESSAGE_write,
                                 .request = ++chief->client.next_request,
                                 .generation = chief->client.generation,
                                 .flags = FRAME_LAST,
                                 .message_bytes = (uint32_t)size,
                                 .bulk_bytes = count * (uint32_t)sizeof(float)},
                 header);
    const struct iovec parts[] = {{header, sizeof header}, {body, size}, {values, sizeof values}};
    assert_true(connection_write_more(chief->client.connection, parts, 3, serving.now_s, &error));
    assert_true(connection_flush(chief->client.connection, serving.now_s, &error));
}

static void chief_comes_again(void)
{
    const uint32_t generation = chief->client.generation;
    serving_hang_up(chief);
    come(0);
    chief->client.generation = generation;
}

/* Whatever was lost with a connection is asked for again, and what was written stays; no other process may go on so. */
TEST(test_a_restore_goes_on_where_its_connection_broke)
{
    serving_config();
    serving_begin(0);
    come(0);
    assert_int_equal(begin_restore(5), 0);
    chief_comes_again();
    assert_int_equal(begin_restore(5), 0);
    write_all(1, FRAME_LAST);
    assert_int_equal(receive(chief), MESSAGE_done);
    chief_comes_again();
    write_first(3, FEW);
    assert_true(serving_serve(chief));
    assert_int_equal(receive(chief), MESSAGE_done);
    assert_int_equal(begin_restore(5), 0); /* late, from a connection that was given up */
    assert_int_equal(end_restore(7), 0);
    assert_true(parameter() == 3);
    assert_int_equal(push(chief, 1, 7), PUSH_APPLIED);
    const float pushed = parameter();
    chief_comes_again();
    assert_int_equal(end_restore(7), 0);
    assert_int_equal(begin_restore(5), ERROR_OLD_GENERATION);
    assert_true(parameter() == pushed);
    assert_int_equal(serving.server.job.global_step, 8);
    serving_end();
}

/* Half a frame is no part of it. */
TEST(test_what_broke_off_is_not_written)
{
    serving_config();
    serving_begin(0);
    come(0);
    assert_int_equal(begin_restore(5), 0);
    write_first(3, (uint32_t)shard_floats(serving.server.shard));
    shutdown(chief->client.connection->fd, SHUT_WR);
    assert_false(serving_serve(chief));
    chief_comes_again();
    assert_int_equal(end_restore(7), ERROR_BAD_REQUEST);
    serving_end();
}

TEST(test_another_chief_does_not_go_on_with_a_restore)
{
    serving_config();
    serving_begin(0);
    come(0);
    assert_int_equal(begin_restore(5), 0);
    write_all(1, FRAME_LAST);
    assert_int_equal(receive(chief), MESSAGE_done);
    chief_comes_again();
    chief->session.incarnation++;
    for (int i = 0; i < 2; i++) { /* asking again makes it no other's */
        assert_int_equal(begin_restore(5), ERROR_OLD_GENERATION);
    }
    assert_int_equal(begin_restore(6), 0);
    assert_int_equal(end_restore(7), ERROR_BAD_REQUEST); /* nothing is written of this one */
    serving_end();
}

TEST(test_a_write_is_answered_at_its_last_frame)
{
    serving_config();
    serving_begin(0);
    come(0);
    assert_int_equal(begin_restore(1), 0);
    write_all(1, 0);
    assert_false(has_answer(chief));
    write_all(1, FRAME_LAST);
    assert_int_equal(receive(chief), MESSAGE_done);
    chief->client.generation = 9; /* what is refused is answered at once, for nobody writes on then */
    write_all(1, 0);
    assert_int_equal(receive(chief), MESSAGE_error);
    serving_end();
}

int main(void)
{
    return check_run(NULL, NULL);
}
