/* Idle sessions are parked, without thread or buffers, and continue when something arrives. */
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/transport.h"
#include "tests/check.h"
#include "tests/net/fleet_key.h"
#include "tests/net/listening.h"
#include "tests/net/slow_clock.h"

enum { MEMBERS = 6 };

static struct listening owner;
static struct channel channels[MEMBERS];

static void await(atomic_int *count, int least)
{
    const double until_s = clock_monotonic_s() + LISTENING_PATIENCE_S;
    while (atomic_load(count) < least && clock_monotonic_s() < until_s) {
        usleep(1000);
    }
    assert_true(atomic_load(count) >= least);
}

static bool ping(struct channel *channel)
{
    struct error error;
    struct message_ping message = {.nonce = 5};
    return channel_call(channel, MESSAGE_ping, &message, MESSAGE_pong, clock_monotonic_s() + LISTENING_PATIENCE_S, NULL,
                        &error);
}

/* All are admitted, and rest. */
static void begin(struct credentials *credentials, double keep_s)
{
    struct error error;
    owner = (struct listening){.keep_s = keep_s};
    listening_start(&owner, credentials, 0);
    for (int i = 0; i < MEMBERS; i++) {
        assert_true(listening_come_in(&channels[i], &owner, i, &error));
    }
    await(&owner.parked, MEMBERS);
}

static int enter(void **state)
{
    begin(fleet_key, 0.01);
    return 0;
}

static int enter_plain(void **state)
{
    begin(NULL, 0.01);
    return 0;
}

static int leave(void **state)
{
    for (int i = 0; i < MEMBERS; i++) {
        channel_close(&channels[i]);
    }
    listening_stop(&owner);
    assert_int_equal(atomic_load(&owner.left), MEMBERS);
    return 0;
}

static struct listener_session *session_of(int worker)
{
    struct listener_session *session = listener_next(owner.listener, NULL);
    while (session && ((struct listening_session *)(void *)session)->worker != worker) {
        session = listener_next(owner.listener, session);
    }
    assert_non_null(session);
    return session;
}

/* Does it rest, without buffers? */
static bool is_parked(int worker)
{
    pthread_mutex_lock(&owner.lock);
    const struct listener_session *session = session_of(worker);
    const bool resting = session->state == SESSION_PARKED;
    const bool empty =
        resting && !session->connection->in && !session->channel.received.bytes && !session->channel.sent.bytes;
    pthread_mutex_unlock(&owner.lock);
    assert_int_equal(resting, empty);
    return resting;
}

static void await_parked(int worker)
{
    const double until_s = clock_monotonic_s() + LISTENING_PATIENCE_S;
    while (!is_parked(worker) && clock_monotonic_s() < until_s) {
        usleep(1000);
    }
    assert_true(is_parked(worker));
}

/* Any number of times. */
static void it_goes_on(void **state)
{
    for (int i = 0; i < 3 * MEMBERS; i++) {
        await_parked(i % MEMBERS);
        assert_true(ping(&channels[i % MEMBERS]));
        assert_true(ping(&channels[i % MEMBERS]));
    }
    for (int i = 0; i < MEMBERS; i++) { /* all at once */
        struct error error;
        struct message_ping message = {.nonce = 7};
        assert_true(channel_send(&channels[i], MESSAGE_ping, 100, &message, clock_monotonic_s() + LISTENING_PATIENCE_S,
                                 &error));
    }
    for (int i = 0; i < MEMBERS; i++) {
        struct error error;
        assert_true(channel_receive(&channels[i], clock_monotonic_s() + LISTENING_PATIENCE_S, &error));
        assert_int_equal(channels[i].frame.type, MESSAGE_pong);
    }
}

static void who_hangs_up_is_gone(void **state)
{
    for (int i = 0; i < MEMBERS; i++) {
        await_parked(i);
    }
    channel_close(&channels[0]); /* in order */
    await(&owner.left, 1);
    close(channels[1].connection->fd); /* silently */
    channels[1].connection->fd = dup(0);
    await(&owner.left, 2);
    pthread_mutex_lock(&owner.lock);
    listener_disconnect(session_of(2)); /* by this side */
    pthread_mutex_unlock(&owner.lock);
    await(&owner.left, 3);
    assert_false(ping(&channels[2]));
    assert_true(ping(&channels[3]));
}

/* The listener ends while all rest: at once, long before the grace period is over. */
static void the_end_comes(void **state)
{
    for (int i = 0; i < MEMBERS; i++) {
        await_parked(i);
    }
    const double begun_s = clock_monotonic_s();
    wake_raise(&owner.wake);
    pthread_join(owner.thread, NULL);
    listener_end(owner.listener, 0.1);
    assert_true(clock_monotonic_s() < begun_s + LISTENING_PATIENCE_S);
    assert_int_equal(atomic_load(&owner.left), MEMBERS);
    bool over = pthread_create(&owner.thread, NULL, listening_run, &owner) == 0; /* for listening_stop */
    assert_true(over);
}

/* A resting session can be woken, now or at a given time. */
static void it_is_roused(void **state)
{
    await_parked(4);
    int served = atomic_load(&owner.served);
    pthread_mutex_lock(&owner.lock);
    listener_wake(session_of(4));
    pthread_mutex_unlock(&owner.lock);
    await(&owner.served, served + 1);
    await_parked(4);
    served = atomic_load(&owner.served);
    usleep(50 * 1000);
    assert_int_equal(atomic_load(&owner.served), served); /* nothing else is */
}

/* At a time, too, whatever others do until then; and once. */
static void it_is_roused_at_a_time(void **state)
{
    for (int i = 0; i < MEMBERS; i++) {
        await_parked(i);
    }
    const int served = atomic_load(&owner.served), rested = atomic_load(&owner.parked);
    atomic_store(&owner.timed, 4);
    assert_true(ping(&channels[4]));
    await(&owner.parked, rested + 1);
    for (int i = 0; i < 3; i++) {
        assert_true(ping(&channels[i]));
        await_parked(i);
    }
    await(&owner.served, served + 5);
    await_parked(4);
}

/* What the owner's thread can do for a resting session takes no thread; a thread does the rest. */
static atomic_int inline_calls;

static enum listener_inline try_inline(struct listener_session *session)
{
    struct error error;
    bool ready;
    atomic_fetch_add(&inline_calls, 1);
    if (!channel_resume(&session->channel, &error) ||
        !connection_wait(session->channel.connection, clock_monotonic_s(), &ready, &error)) {
        return INLINE_CLOSE;
    }
    if (!ready) {
        return channel_park(&session->channel) ? INLINE_PARKED : INLINE_NEEDS_THREAD;
    }
    if (!channel_receive(&session->channel, clock_monotonic_s() + LISTENING_PATIENCE_S, &error) ||
        session->channel.message.ping.nonce == 3) {
        return INLINE_CLOSE;
    }
    const struct message_pong pong = {session->channel.message.ping.nonce + 100};
    const bool said = channel_send(&session->channel, MESSAGE_pong, session->channel.frame.request, &pong,
                                   clock_monotonic_s() + LISTENING_PATIENCE_S, &error);
    return !said                                                   ? INLINE_CLOSE
           : pong.nonce == 102 || !channel_park(&session->channel) ? INLINE_NEEDS_THREAD
                                                                   : INLINE_PARKED;
}

static int enter_inline(void **state)
{
    struct error error;
    owner = (struct listening){.keep_s = 0.01, .try_inline = try_inline};
    atomic_store(&inline_calls, 0);
    listening_start(&owner, NULL, 0);
    for (int i = 0; i < MEMBERS; i++) {
        assert_true(listening_come_in(&channels[i], &owner, i, &error));
    }
    await(&owner.parked, MEMBERS);
    return 0;
}

static uint64_t answer_to(int worker, uint64_t nonce)
{
    struct error error;
    struct message_ping message = {.nonce = nonce};
    return channel_call(&channels[worker], MESSAGE_ping, &message, MESSAGE_pong,
                        clock_monotonic_s() + LISTENING_PATIENCE_S, NULL, &error)
               ? channels[worker].message.pong.nonce
               : 0;
}

static void served_inline(void **state)
{
    for (int i = 0; i < 3 * MEMBERS; i++) {
        await_parked(i % MEMBERS);
        assert_int_equal(answer_to(i % MEMBERS, 1), 101);
    }
    assert_int_equal(atomic_load(&inline_calls), 3 * MEMBERS);
    assert_int_equal(atomic_load(&owner.served), MEMBERS); /* when they came */
    await_parked(2);
    assert_int_equal(answer_to(2, 2), 102); /* a thread continues */
    await(&owner.served, MEMBERS + 1);
    await_parked(2);
    assert_int_equal(answer_to(2, 1), 101);
    await_parked(3);
    assert_int_equal(answer_to(3, 3), 0);
    await(&owner.left, 1);
    int before = atomic_load(&inline_calls);
    atomic_store(&owner.timed, 4);
    assert_int_equal(answer_to(4, 2), 102);
    await(&inline_calls, before + 2); /* its time has come */
    await_parked(4);
    assert_int_equal(answer_to(4, 1), 101);
    await_parked(1);
    before = atomic_load(&inline_calls);
    pthread_mutex_lock(&owner.lock);
    listener_disconnect(session_of(1));
    pthread_mutex_unlock(&owner.lock);
    await(&owner.left, 2); /* by a thread, which finds it closed */
    assert_int_equal(atomic_load(&inline_calls), before);
}

/* A read_paused session notices a hang-up, and leaves data unread until it is woken. */
static void who_is_deaf(void **state)
{
    struct message_ping message = {.nonce = 9};
    struct error error;
    bool ready = false;
    await_parked(1);
    await_parked(2);
    atomic_store(&owner.read_paused, true);
    assert_true(ping(&channels[1]) && ping(&channels[2]));
    await_parked(1);
    await_parked(2);
    atomic_store(&owner.read_paused, false);
    assert_true(
        channel_send(&channels[1], MESSAGE_ping, 200, &message, clock_monotonic_s() + LISTENING_PATIENCE_S, &error));
    assert_true(connection_wait(channels[1].connection, clock_monotonic_s() + 0.2, &ready, &error));
    assert_false(ready);
    assert_true(is_parked(1));
    pthread_mutex_lock(&owner.lock);
    listener_wake(session_of(1));
    pthread_mutex_unlock(&owner.lock);
    assert_true(channel_receive(&channels[1], clock_monotonic_s() + LISTENING_PATIENCE_S, &error));
    assert_int_equal(channels[1].frame.request, 200);
    shutdown(connection_fd(channels[2].connection), SHUT_RDWR);
    await(&owner.left, 1);
}

/* Sends part of a ping; the rest stays to be sent. */
static size_t send_some(struct connection *connection, size_t first, size_t count)
{
    const size_t size = connection->out_end - connection->out_start - first;
    const size_t sent = count < size ? count : size;
    assert_int_equal(send(connection->fd, connection->out + connection->out_start + first, sent, MSG_NOSIGNAL), sent);
    return size - sent;
}

/* Part of a request is in the buffer: no rest until all of it is there. */
static void half_a_request_is_no_rest(void **state)
{
    struct connection *connection = channels[3].connection;
    const struct message_ping message = {.nonce = 11};
    const struct outgoing ping = {.type = MESSAGE_ping, .request = 300, .message = &message, .more = true};
    struct error error;
    await_parked(3);
    assert_true(channel_send_frame(&channels[3], &ping, clock_monotonic_s() + LISTENING_PATIENCE_S, &error));
    assert_true(!connection->transport->finish || connection->transport->finish(connection, &error));
    const int served = atomic_load(&owner.served), rested = atomic_load(&owner.parked);
    assert_true(send_some(connection, 0, 9) > 0);
    await(&owner.served, served + 1);
    usleep(100 * 1000); /* ten times as long as it takes to rest */
    assert_int_equal(atomic_load(&owner.parked), rested);
    assert_false(is_parked(3));
    assert_int_equal(send_some(connection, 9, SIZE_MAX), 0);
    connection->out_start = connection->out_end = 0;
    assert_true(channel_receive(&channels[3], clock_monotonic_s() + LISTENING_PATIENCE_S, &error));
    assert_int_equal(channels[3].frame.request, 300);
    await_parked(3);
}

/* What came with the last request, complete and perhaps decrypted, is answered before the session rests. */
static void requests_that_come_together(void **state)
{
    struct message_ping message = {.nonce = 13};
    struct error error;
    await_parked(5);
    for (uint64_t i = 0; i < 50; i++) {
        const struct outgoing ping = {.type = MESSAGE_ping, .request = 400 + i, .message = &message, .more = i < 49};
        assert_true(channel_send_frame(&channels[5], &ping, clock_monotonic_s() + LISTENING_PATIENCE_S, &error));
    }
    for (uint64_t i = 0; i < 50; i++) {
        assert_true(channel_receive(&channels[5], clock_monotonic_s() + LISTENING_PATIENCE_S, &error));
        assert_int_equal(channels[5].frame.request, 400 + i);
    }
    await_parked(5);
}

/* More peers connect than may be in handshakes at a time: they take turns, and all are admitted. */
enum { CROWD = LISTENER_HANDSHAKES + LISTENER_SPARE / 2 + 40 };

static void *come_and_ping(void *context)
{
    struct channel *channel = context;
    static atomic_int number;
    struct error error;
    bool *good = calloc(1, sizeof *good);
    assert(good);
    *good = listening_come_in(channel, &owner, atomic_fetch_add(&number, 1), &error) && ping(channel);
    if (!*good) {
        print_error("%s\n", error.text);
    }
    return good;
}

static void a_stampede(void **state)
{
    static struct channel crowd[CROWD];
    pthread_t threads[CROWD];
    slow_clock_begin(); /* by it, a handshake that makes no progress while others wait is cut after 2 s */
    owner = (struct listening){.keep_s = 0.001, .members = CROWD, .expected = CROWD};
    listening_start(&owner, fleet_key, 0);
    pthread_mutex_lock(&owner.lock); /* none completes its handshake before all are connected */
    for (int i = 0; i < CROWD; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, come_and_ping, &crowd[i]), 0);
    }
    usleep(100 * 1000);
    pthread_mutex_unlock(&owner.lock);
    int welcome = 0;
    for (int i = 0; i < CROWD; i++) {
        void *good;
        pthread_join(threads[i], &good);
        welcome += *(bool *)good;
        free(good);
    }
    assert_int_equal(welcome, CROWD);
    assert_true(ping(&crowd[0]) && ping(&crowd[CROWD - 1]));
    for (int i = 0; i < CROWD; i++) {
        channel_close(&crowd[i]);
    }
    listening_stop(&owner);
    slow_clock_end();
    assert_int_equal(atomic_load(&owner.left), CROWD);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(it_goes_on, enter, leave),
        cmocka_unit_test_setup_teardown(it_goes_on, enter_plain, leave),
        cmocka_unit_test_setup_teardown(who_hangs_up_is_gone, enter, leave),
        cmocka_unit_test_setup_teardown(the_end_comes, enter, leave),
        cmocka_unit_test_setup_teardown(it_is_roused_at_a_time, enter_plain, leave),
        cmocka_unit_test_setup_teardown(served_inline, enter_inline, leave),
        cmocka_unit_test_setup_teardown(it_is_roused, enter, leave),
        cmocka_unit_test_setup_teardown(who_is_deaf, enter, leave),
        cmocka_unit_test_setup_teardown(half_a_request_is_no_rest, enter, leave),
        cmocka_unit_test_setup_teardown(half_a_request_is_no_rest, enter_plain, leave),
        cmocka_unit_test_setup_teardown(requests_that_come_together, enter, leave),
        cmocka_unit_test(a_stampede),
    };
    return cmocka_run_group_tests(tests, make_key, remove_key);
}
