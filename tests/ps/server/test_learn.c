/* A ps whose config gives hidden layers only: worker 0 sends the other widths, which follow from its data. */
#include "tests/check.h"
#include "tests/ps/running.h"

static void set_up(void)
{
    ps.hidden = "4";
    begin(nothing);
    assert_true(was_told("ready: waiting for worker 0, whose data determine the layer widths"));
}

static const char *tear_down(void)
{
    atomic_store(&asked_to_leave, SIGTERM);
    ps.hidden = NULL;
    return end(signals_exit_status(SIGTERM));
}

static void is_busy(enum member_role role, int index, const char *digest)
{
    struct error error;
    assert_int_equal(come(MOST - 1, role, index, 1, digest, &error), REFUSAL_BUSY);
    assert_non_null(strstr(error.text, "ps 0 is waiting for worker 0, whose data determine the layer widths"));
}

/* False: the connection ended, or an error with that code. */
static bool say(int client, const char *units, uint16_t *code, struct error *error)
{
    const struct message_layers message = {.units = (char *)(uintptr_t)units};
    *code = 0;
    return channel_call(&clients[client], MESSAGE_layers, &message, MESSAGE_layers, soon(), code, error);
}

TEST(others_come_again_later)
{
    set_up();
    is_busy(MEMBER_WORKER, 1, NULL);
    is_busy(MEMBER_OPERATOR, -1, "");
    is_busy(MEMBER_WORKER, 0, ""); /* a guest sends nothing about its data */
    is_busy(MEMBER_PS, 0, NULL);
    const char *log = tear_down();
    assert_non_null(strstr(log, "ps 0 is waiting for worker 0"));
    assert_null(strstr(log, "by worker 0's data"));
    assert_true(was_told("stopping"));
}

TEST(what_worker_0_says_is_how_it_is)
{
    struct error error;
    uint16_t code;
    set_up();
    welcome(0, MEMBER_WORKER, 0, 1, NULL);
    assert_false(say(0, "3,nonsense", &code, &error));
    assert_int_equal(code, ERROR_BAD_REQUEST);
    assert_false(channel_receive(&clients[0], soon(), &error)); /* which ends the connection */
    welcome(0, MEMBER_WORKER, 0, 1, NULL);
    assert_false(say(0, "3,5,2", &code, &error)); /* the config has another hidden layer */
    assert_int_equal(code, ERROR_BAD_REQUEST);
    welcome(0, MEMBER_WORKER, 0, 1, NULL);
    if (!say(0, "3,4,2", &code, &error)) {
        fail_msg("%s", error.text);
    }
    assert_string_equal(clients[0].message.layers.units, "3,4,2");
    assert_true(await_told("listens on port")); /* from now on, to all */
    welcome(0, MEMBER_WORKER, 0, 1, NULL);
    welcome(1, MEMBER_WORKER, 1, 1, NULL);
    assert_true(say(1, "", &code, &error));
    assert_string_equal(clients[1].message.layers.units, "3,4,2");
    const char *log = tear_down();
    assert_non_null(strstr(log, "ps 0: the layers are 3,4,2, by worker 0's data"));
    assert_non_null(strstr(log, "ps 0 holds layer0/weights, layer0/biases, layer1/weights, layer1/biases: 144 floats"));
}

/* They come too early: the worker asks again after sending the widths. */
TEST(other_requests_are_not_answered_before)
{
    set_up();
    welcome(0, MEMBER_WORKER, 0, 1, NULL);
    assert_false(lives(0));
    tear_down();
}

int main(void)
{
    return check_run(NULL, NULL);
}
