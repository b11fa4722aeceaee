/*
 * What the listener's thread does for a resting session: it answers requests that need no waiting, and leaves the rest
 * to a thread, exactly once.
 */
#include "tests/check.h"
#include "tests/ps/server/serving.h"

static struct serving_session *worker;
static const struct message_ping ping = {.nonce = 5};
static const struct message_heartbeat heartbeat = {.local_step = 7, .loss = 0.5f, .cpu_percent = NAN};
static const struct message_report report = {.version = 1, .digest = "", .message = ""};

static void rest(struct serving_session *one)
{
    assert_true(channel_park(one->session.channel));
}

static int enter(void **state)
{
    const struct member who = {MEMBER_WORKER, 1};
    serving_config();
    serving_begin(0);
    worker = &serving.sessions[1];
    assert_int_equal(serving_admit(worker, &who, 101, false), 0);
    worker->session.may_rest = true; /* a thread has served it */
    rest(worker);
    return 0;
}

static int leave(void **state)
{
    serving_end();
    return 0;
}

static void put(enum message_type type, const void *message)
{
    struct error error;
    worker->client.next_request++;
    assert_true(channel_send(&worker->client, type, worker->client.next_request, message, serving.now_s, &error));
}

/* As the listener does (go_on). */
static enum listener_inline look(void)
{
    worker->session.base.state = SESSION_INLINE;
    worker->session.base.woken = worker->session.base.read_paused = false;
    const int waits = serving.waits;
    const enum listener_inline how = serve_without_waiting(&worker->session);
    assert_int_equal(serving.waits, waits);
    return how;
}

/* And a thread: until the session rests. */
static bool serve_by_a_thread(void)
{
    worker->session.base.state = SESSION_SERVED;
    return serve_until_idle(&worker->session);
}

static bool is_at_rest(void)
{
    return !worker->session.channel->connection->in;
}

static bool has_answer(void)
{
    struct pollfd there = {.fd = worker->client.connection->fd, .events = POLLIN};
    return worker->client.connection->in_end > worker->client.connection->in_start || poll(&there, 1, 0) > 0;
}

/* The next answer is that one, to the request with that number; a waiting peer receives pings. */
static void hears(uint16_t type, uint64_t request)
{
    struct error error;
    do {
        if (!channel_receive(&worker->client, serving.now_s, &error)) {
            fail_msg("no answer: %s", error.text);
        }
    } while (worker->client.frame.type == MESSAGE_ping);
    assert_int_equal(worker->client.frame.type, type);
    assert_int_equal(worker->client.frame.request, request);
}

TEST_WITH(heartbeats_are_answered, enter, leave)
{
    for (uint64_t i = 1; i <= 3; i++) {
        put(MESSAGE_heartbeat, &heartbeat);
        assert_int_equal(look(), INLINE_PARKED);
        assert_true(is_at_rest());
        hears(MESSAGE_lease, i);
        assert_false(has_answer());
    }
    assert_int_equal(serving.server.job.workers[1].local_step, 7);
}

TEST_WITH(pings_are_answered_and_silence_is_none, enter, leave)
{
    assert_int_equal(look(), INLINE_PARKED);
    assert_false(has_answer());
    put(MESSAGE_ping, &ping);
    assert_int_equal(look(), INLINE_PARKED);
    hears(MESSAGE_pong, 1);
}

/* A thread finds the unanswered requests: a report, and whatever came with a heartbeat. */
TEST_WITH(others_are_left_to_a_thread, enter, leave)
{
    put(MESSAGE_report, &report);
    assert_int_equal(look(), INLINE_NEEDS_THREAD);
    assert_false(has_answer());
    assert_int_equal(serving.rollout_requests, 0);
    worker->session.base.waiting = false;
    assert_true(serve_by_a_thread());
    hears(MESSAGE_done, 1);
    assert_int_equal(serving.rollout_requests, 1);
    assert_true(worker->session.base.waiting); /* for its peer, so that it may be cut off for another */
    put(MESSAGE_heartbeat, &heartbeat);
    put(MESSAGE_report, &report);
    put(MESSAGE_ping, &ping);
    assert_int_equal(look(), INLINE_NEEDS_THREAD);
    assert_true(serve_by_a_thread());
    hears(MESSAGE_lease, 2);
    hears(MESSAGE_done, 3);
    hears(MESSAGE_pong, 4);
    assert_false(has_answer());
    assert_int_equal(serving.rollout_requests, 2);
    assert_true(is_at_rest());
}

/* Between requests that are far apart a thread has better to do than to wait; others' next is likely to come soon. */
TEST_WITH(who_asks_seldom_rests_at_once, enter, leave)
{
    serving.keep_thread_s = 1;
    for (int is_seldom = 0; is_seldom < 2; is_seldom++) {
        worker->session.base.last_active_s = serving.now_s - (is_seldom ? 1 : 0.5);
        const double asked_s = serving.now_s;
        put(MESSAGE_report, &report);
        assert_int_equal(look(), INLINE_NEEDS_THREAD);
        assert_true(serve_by_a_thread());
        hears(MESSAGE_done, 1 + (uint64_t)is_seldom);
        assert_true((serving.now_s == asked_s) == is_seldom);
        assert_true(is_at_rest());
    }
}

/* Half a frame has no answer, and the listener's thread does not wait for the rest of it. */
TEST_WITH(half_a_frame_is_left_to_a_thread, enter, leave)
{
    uint8_t bytes[FRAME_HEADER + 8];
    put(MESSAGE_ping, &ping);
    const int fd = worker->session.base.fd;
    const ssize_t size = recv(fd, bytes, sizeof bytes, 0);
    assert_true(size > FRAME_HEADER);
    const int client = worker->client.connection->fd;
    assert_int_equal(send(client, bytes, FRAME_HEADER + 1, 0), FRAME_HEADER + 1);
    assert_int_equal(look(), INLINE_NEEDS_THREAD);
    assert_false(has_answer());
    assert_int_equal(send(client, bytes + FRAME_HEADER + 1, (size_t)size - FRAME_HEADER - 1, 0),
                     size - FRAME_HEADER - 1);
    assert_true(serve_by_a_thread());
    hears(MESSAGE_pong, 1);
}

/* --- Pulls --- */

static uint8_t first_values[RANGE_BYTES];

static struct message_pull pull_after(int64_t step)
{
    range_put(first_values, 0, (struct range){0, 4});
    return (struct message_pull){.after_step = step, .wait_ms = 5000, .ranges = {first_values, 1}};
}

/* There is a model of zeros, and training has begun. */
static void train(int64_t step)
{
    struct job *job = &serving.server.job;
    struct shard *shard = serving.server.shard;
    struct error error;
    const struct span *spans;
    const int count = shard_spans(shard, &spans);
    shard_begin_write(shard, 1);
    for (int i = 0; i < count; i++) {
        float *values;
        const struct range all = {spans[i].first, (uint32_t)spans[i].count};
        assert_true(shard_claim_write(shard, STORE_PARAMETERS, all, &values, &error));
        memset(values, 0, spans[i].count * sizeof *values);
        shard_wrote(shard, STORE_PARAMETERS, all);
    }
    if (!shard_end_write(shard, step, 1, &error)) {
        fail_msg("%s", error.text);
    }
    job->state = JOB_TRAINING;
    job->started = true;
    job->generation = 1;
    job->global_step = step;
    worker->client.generation = 1;
}

/* Held by a resting session, and answered once its worker is selected, or has waited long enough. */
TEST_WITH(a_small_pull_is_held, enter, leave)
{
    float values[4];
    struct error error;
    const struct message_pull pull = pull_after(3);
    train(3);
    put(MESSAGE_pull, &pull);
    assert_int_equal(look(), INLINE_PARKED);
    assert_true(is_at_rest() && worker->session.held.holds && worker->session.base.read_paused);
    assert_false(has_answer());
    assert_int_equal(look(), INLINE_PARKED); /* for nothing */
    assert_true(worker->session.held.holds);
    serving.now_s = worker->session.held.deadline_s + 1;
    assert_int_equal(look(), INLINE_PARKED);
    assert_false(worker->session.held.holds);
    hears(MESSAGE_values, 1);
    assert_int_equal(worker->client.bulk_left, sizeof values);
    assert_true(channel_read_bulk(&worker->client, values, sizeof values, serving.now_s, &error));
    assert_false(has_answer());
}

static void hold_pull(int64_t step)
{
    const struct message_pull pull = pull_after(step);
    train(step);
    put(MESSAGE_pull, &pull);
    assert_int_equal(look(), INLINE_PARKED);
    assert_true(worker->session.held.holds);
}

/* Before either side takes the other for dead; and it counts as alive, because it is kept waiting. */
TEST_WITH(a_held_pull_is_kept_alive, enter, leave)
{
    struct error error;
    hold_pull(3);
    const double quarter_s = identity_idle_timeout_s(&serving.server.identity) / 4, began_s = serving.now_s;
    assert_int_equal(look(), INLINE_PARKED);
    assert_true(worker->session.base.wake_s == began_s + quarter_s);
    assert_int_equal(job_worker_state(&serving.server.job, 1), STATE_WAITING);
    assert_false(has_answer());
    serving.now_s = began_s + quarter_s;
    assert_int_equal(look(), INLINE_PARKED);
    assert_true(channel_receive(&worker->client, serving.now_s, &error));
    assert_int_equal(worker->client.frame.type, MESSAGE_ping);
    assert_int_equal(worker->client.message.ping.nonce, worker->session.incarnation);
    assert_true(worker->session.base.wake_s == began_s + 5); /* by then it has waited long enough */
    assert_false(has_answer());
    serving.now_s = began_s + 5;
    assert_int_equal(look(), INLINE_PARKED);
    hears(MESSAGE_values, 1);
    assert_int_not_equal(job_worker_state(&serving.server.job, 1), STATE_WAITING);
}

/* From the first step on; but a pull of the current values waits for nothing, and a thread answers it. */
TEST_WITH(the_first_step_is_waited_for_too, enter, leave)
{
    hold_pull(0);
    assert_false(has_answer());
    serving.now_s = worker->session.held.deadline_s;
    assert_int_equal(look(), INLINE_PARKED);
    hears(MESSAGE_values, 1);
    struct error error;
    float values[4];
    assert_true(channel_read_bulk(&worker->client, values, sizeof values, serving.now_s, &error));
    const struct message_pull now = pull_after(-1);
    put(MESSAGE_pull, &now);
    assert_int_equal(look(), INLINE_NEEDS_THREAD);
    assert_true(serve_by_a_thread());
    hears(MESSAGE_values, 2);
}

TEST_WITH(whose_step_has_come_is_roused, enter, leave)
{
    struct server *server = &serving.server;
    hold_pull(3);
    assert_int_equal(look(), INLINE_PARKED);
    server_lock(server);
    server_unlock(server); /* nothing has happened */
    assert_false(worker->session.base.woken);
    server_lock(server);
    server->job.global_step = 4;
    server_unlock(server);
    assert_true(worker->session.base.woken);
    assert_int_equal(look(), INLINE_PARKED);
    assert_false(worker->session.held.holds);
    assert_null(server->held);
    hears(MESSAGE_values, 1);
}

static void the_ps_leaves(void)
{
    serving.server.leaving = true;
}

static void it_hangs_up(void)
{
    channel_close(&worker->client);
}

static void a_newer_process_comes(void)
{
    serving.server.job.workers[1].incarnation++;
}

/* Whether the listener's thread finds it, or another. */
TEST_WITH(who_is_gone_is_held_no_longer, enter, leave)
{
    static void (*const ends[])(void) = {the_ps_leaves, it_hangs_up, a_newer_process_comes};
    for (int i = 0; i < 6; i++) {
        hold_pull(3);
        ends[i / 2]();
        if (i % 2 == 0 && i > 0) {
            assert_int_equal(look(), INLINE_CLOSE);
        } else {
            assert_false(serve_by_a_thread());
        }
        assert_false(worker->session.held.holds);
        assert_null(serving.server.held);
        serving_end();
        enter(NULL);
    }
}

/* One of several held pulls goes, wherever it is in the list. */
TEST_WITH(those_that_are_held_go_one_by_one, enter, leave)
{
    struct serving_session *others[3] = {worker};
    struct server *server = &serving.server;
    train(3);
    for (int i = 1; i < 3; i++) {
        const struct member who = {MEMBER_WORKER, i + 1};
        others[i] = worker = &serving.sessions[i + 1];
        assert_int_equal(serving_admit(worker, &who, 101 + (uint64_t)i, false), 0);
        worker->session.may_rest = true;
        rest(worker);
    }
    for (int i = 0; i < 3; i++) {
        worker = others[i];
        hold_pull(3);
    }
    static const int order[] = {1, 0, 2}; /* the middle, the end, the rest */
    for (int i = 0; i < 3; i++) {
        server_lock(server);
        server_release_held(&others[order[i]]->session);
        server_release_held(&others[order[i]]->session); /* which is no longer held */
        int count = 0;
        for (struct session *held = server->held; held; held = held->held.next) {
            assert_true(held->held.holds);
            count++;
        }
        server_unlock(server);
        assert_int_equal(count, 2 - i);
    }
}

/* Nothing of a pull that must wait for a model is lost: the thread that waits for it has the frame. */
TEST_WITH(a_pull_of_no_model_is_left_to_a_thread, enter, leave)
{
    const struct message_pull pull = pull_after(3);
    put(MESSAGE_pull, &pull);
    assert_int_equal(look(), INLINE_NEEDS_THREAD);
    assert_true(worker->session.has_frame);
    assert_false(has_answer());
    assert_true(serve_by_a_thread());
    assert_false(worker->session.has_frame);
    hears(MESSAGE_error, 1);
    assert_int_equal(worker->client.message.error.code, ERROR_NOT_READY);
}

/* At most 256 floats, which a socket surely accepts, in one range. */
TEST_WITH(the_largest_pull_that_is_held, enter, leave)
{
    struct message_pull pull = pull_after(3);
    train(3);
    range_put(first_values, 0, (struct range){0, 256});
    put(MESSAGE_pull, &pull);
    assert_int_equal(look(), INLINE_PARKED);
    assert_true(worker->session.held.holds);
    serving.now_s = worker->session.held.deadline_s;
    assert_int_equal(look(), INLINE_PARKED);
    hears(MESSAGE_values, 1);
    assert_int_equal(worker->client.bulk_left, 256 * sizeof(float));
}

/* A pull larger than what a socket surely accepts is answered by a thread. */
TEST_WITH(a_large_pull_is_left_to_a_thread, enter, leave)
{
    struct message_pull pull = pull_after(-1);
    train(3);
    put(MESSAGE_pull, &pull);
    assert_int_equal(look(), INLINE_NEEDS_THREAD);
    assert_true(worker->session.has_frame);
    assert_false(has_answer());
}

/* Nor is it answered without a thread, once it has waited long enough. */
TEST_WITH(a_pull_beyond_that_is_not_held, enter, leave)
{
    struct message_pull pull = pull_after(3);
    train(3);
    range_put(first_values, 0, (struct range){0, 257});
    put(MESSAGE_pull, &pull);
    assert_int_equal(look(), INLINE_NEEDS_THREAD);
    assert_true(worker->session.has_frame);
    assert_true(serve_by_a_thread());
    assert_true(worker->session.held.holds);
    serving.now_s = worker->session.held.deadline_s;
    assert_int_equal(look(), INLINE_NEEDS_THREAD);
    assert_false(has_answer());
    assert_true(serve_by_a_thread());
    hears(MESSAGE_values, 1);
    assert_int_equal(worker->client.bulk_left, 257 * sizeof(float));
}

/* --- Peers that don't read answers --- */

TEST_WITH(who_reads_nothing_takes_a_thread, enter, leave)
{
    put(MESSAGE_heartbeat, &heartbeat);
    assert_int_equal(look(), INLINE_PARKED);
    put(MESSAGE_heartbeat, &heartbeat);
    assert_int_equal(look(), INLINE_NEEDS_THREAD); /* the first answer is still in flight */
    hears(MESSAGE_lease, 1);
    assert_true(serve_by_a_thread());
    hears(MESSAGE_lease, 2);
}

TEST_WITH(who_sends_no_sense_ends, enter, leave)
{
    serving_send_nonsense(worker, MESSAGE_heartbeat, 7);
    assert_int_equal(look(), INLINE_CLOSE);
    hears(MESSAGE_error, 7);
}

TEST_WITH(who_hangs_up_ends, enter, leave)
{
    channel_close(&worker->client);
    assert_int_equal(look(), INLINE_NEEDS_THREAD);
    assert_false(serve_by_a_thread());
}

TEST_WITH(who_asks_for_what_is_not_his_is_told_so, enter, leave)
{
    const struct member who = {MEMBER_WORKER, 2};
    worker = &serving.sessions[2];
    assert_int_equal(serving_admit(worker, &who, 102, true), 0); /* a guest */
    worker->session.may_rest = true;
    rest(worker);
    put(MESSAGE_heartbeat, &heartbeat);
    assert_int_equal(look(), INLINE_PARKED);
    hears(MESSAGE_error, 1);
    assert_int_equal(worker->client.message.error.code, ERROR_NOT_ALLOWED);
}

/* A thread sends goodbye. */
TEST_WITH(where_the_server_leaves_a_thread_says_so, enter, leave)
{
    put(MESSAGE_heartbeat, &heartbeat);
    serving.server.leaving = true;
    assert_int_equal(look(), INLINE_NEEDS_THREAD);
    assert_false(serve_by_a_thread());
    hears(MESSAGE_leave, 0);
}

int main(void)
{
    return check_run(NULL, NULL);
}
