/* A ps's answers about the model, snapshots, and what it stores for members; and what it shows. */
#include "tests/check.h"
#include "tests/ps/server/asking.h"
#include "tests/worker/remote/story.h"

/* --- Generations --- */

static struct serving_session *worker;

static void begin(void)
{
    serving_config();
    serving_begin(0);
    come(0);
    worker = come(1);
}

/* To a session from before the restore: every answer carries its generation. */
TEST(every_answer_names_the_generation)
{
    static const struct {
        enum message_type type;
        bool by_chief;
    } requests[] = {
        {MESSAGE_push, false},      {MESSAGE_pull, false},         {MESSAGE_read, false},
        {MESSAGE_get_model, false}, {MESSAGE_heartbeat, false},    {MESSAGE_describe, false},
        {MESSAGE_validated, false}, {MESSAGE_validate, true},      {MESSAGE_snapshot, true},
        {MESSAGE_write, true},      {MESSAGE_begin_restore, true}, {MESSAGE_end_restore, true},
        {MESSAGE_end_job, true},
    };
    for (int synchronous = 0; synchronous < 2; synchronous++) {
        for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
            struct config *config = serving_config();
            config->cluster.issync = synchronous;
            config->cluster.replicas_to_aggregate = 1;
            serving_begin(0);
            come(0);
            struct serving_session *other = &serving.sessions[2]; /* the chief's other connection */
            const struct member who = {MEMBER_WORKER, requests[i].by_chief ? 0 : 1};
            assert_int_equal(serving_admit(other, &who, 100 + (uint64_t)who.index, false), 0);
            assert_int_equal(begin_restore(4), 0);
            assert_int_equal(chief->client.frame.generation, 4);
            write_all(0, FRAME_LAST);
            assert_int_equal(receive(chief), MESSAGE_done);
            while (has_answer(chief)) {
                receive(chief);
            }
            assert_int_equal(end_restore(0), 0);
            union message zeros;
            memset(&zeros, 0, sizeof zeros);
            other->client.generation = requests[i].type == MESSAGE_push ? 4 : 3;
            send_request(other, requests[i].type, &zeros);
            serving_serve(other);
            receive(other);
            if (other->client.frame.generation != 4) {
                fail_msg("%s is answered in generation %u", message_name(requests[i].type),
                         other->client.frame.generation);
            }
            serving_end();
        }
    }
}

/* --- The model --- */

static const struct message_model *model_of(struct serving_session *one, uint32_t wait_ms)
{
    const struct message_get_model request = {.wait_ms = wait_ms};
    assert_int_equal(ask(one, MESSAGE_get_model, &request, MESSAGE_model), 0);
    return &one->client.message.model;
}

static void the_chief_finishes(void)
{
    serving.meanwhile = NULL;
    write_all(0, FRAME_LAST);
    while (has_answer(chief)) {
        receive(chief);
    }
    assert_int_equal(end_restore(30), 0);
}

TEST(a_model_is_absent_then_written_then_ready)
{
    begin();
    const struct message_model *model = model_of(worker, 0);
    const double began_s = serving.now_s;
    assert_int_equal(model->state, MODEL_ABSENT);
    assert_non_null(strstr(model->message, "waiting for worker 0 (a:1) to initialise the model"));
    assert_int_equal(model->global_step, -1);
    model = model_of(worker, 2000);
    assert_int_equal(model->state, MODEL_ABSENT);
    assert_true(serving.now_s >= began_s + 2 && serving.now_s < began_s + 3);
    assert_int_equal(begin_restore(1), 0);
    model = model_of(worker, 0);
    assert_int_equal(model->state, MODEL_BEING_WRITTEN);
    assert_non_null(strstr(model->message, "to finish writing the model"));
    serving.meanwhile = the_chief_finishes;
    model = model_of(worker, 60000);
    assert_int_equal(model->state, MODEL_READY);
    assert_string_equal(model->message, "");
    assert_int_equal(model->global_step, 30);
    assert_int_equal(model->version, 1);
    assert_int_equal(model->vectors, 1 << STORE_PARAMETERS);
    assert_int_equal(model->float_count, serving.server.model.float_count);
    const struct span *spans;
    const int count = shard_spans(serving.server.shard, &spans);
    assert_int_equal(model->ranges.count, count);
    for (int i = 0; i < count; i++) {
        const struct range range = range_get(&model->ranges, (uint32_t)i);
        assert_int_equal(range.first, spans[i].first);
        assert_int_equal(range.count, spans[i].count);
    }
    serving_end();
}

TEST(vectors_that_an_optimizer_keeps_are_named)
{
    serving_config()->train.optimizer = OPTIMIZER_ADAM;
    serving_begin(0);
    come(0);
    worker = come(1);
    assert_int_equal(model_of(worker, 0)->vectors, 1 << STORE_PARAMETERS | 1 << STORE_SLOT0 | 1 << STORE_SLOT1);
    serving_end();
}

static void the_worker_hangs_up(void)
{
    channel_close(&worker->client);
}

static void the_ps_leaves(void)
{
    serving.server.leaving = true;
}

static void a_newer_process_comes(void)
{
    struct error error;
    const struct peer peer = {.member = {MEMBER_WORKER, 1}, .incarnation = 999};
    serving.meanwhile = NULL;
    serving.server.job.workers[1].connections = 0; /* the old one is known to be gone */
    job_hello(&serving.server.job, &peer, "10.0.0.1:2", serving.now_s, &error);
    serving.server.job.workers[1].incarnation = 999;
}

/* A worker that waits in vain is released, and soon. */
TEST(who_is_gone_is_not_waited_with)
{
    static void (*const ends[])(void) = {the_worker_hangs_up, the_ps_leaves, a_newer_process_comes};
    static const enum message_type requests[] = {MESSAGE_get_model, MESSAGE_pull};
    for (int i = 0; i < 6; i++) {
        begin();
        union message message;
        memset(&message, 0, sizeof message);
        const enum message_type type = requests[i % 2];
        if (type == MESSAGE_get_model) {
            message.get_model.wait_ms = 600000;
        } else {
            message.pull.wait_ms = 600000;
        }
        const double began_s = serving.now_s;
        serving.meanwhile = ends[i / 2];
        send_request(worker, type, &message);
        assert_false(serving_serve(worker));
        assert_true(serving.now_s < began_s + 2);
        serving.meanwhile = NULL;
        serving_end();
    }
}

/* --- Snapshots --- */

static uint16_t take(uint64_t number, int64_t at_step, uint32_t wait_ms)
{
    const struct message_snapshot wanted = {.snapshot = number, .at_step = at_step, .wait_ms = wait_ms};
    chief->client.generation = serving.server.job.generation;
    return ask(chief, MESSAGE_snapshot, &wanted, MESSAGE_done);
}

static uint64_t order(int number)
{
    return SNAPSHOT_ORDER + (unsigned)number;
}

static void says(const char *what)
{
    assert_string_equal(chief->client.message.error.message, what);
}

static uint64_t pushed;

static void push_once(void)
{
    assert_int_equal(push(worker, ++pushed, serving.server.job.global_step), PUSH_APPLIED);
}

static void push_meanwhile(void)
{
    serving.meanwhile = NULL;
    push_once();
}

TEST(a_snapshot_is_of_its_step)
{
    begin();
    pushed = 0;
    restore(1, 5);
    assert_int_equal(take(3, 7, 0), ERROR_TOO_LATE);
    says("global step 7 is not reached yet");
    push_once();
    serving.meanwhile = push_meanwhile;
    assert_int_equal(take(3, 7, 60000), 0);
    assert_int_equal(chief->client.message.done.global_step, 7);
    assert_int_equal(take(4, 6, 0), ERROR_TOO_LATE);
    says("global step 6 is over already");
    assert_int_equal(take(SNAPSHOT_ORDER | 4, 6, 0), ERROR_PASSED);
    const double began_s = serving.now_s;
    assert_int_equal(take(5, 9, 2000), ERROR_TOO_LATE);
    assert_true(serving.now_s >= began_s + 2 && serving.now_s < began_s + 3);
    assert_int_equal(take(6, -1, 0), 0);
    assert_int_equal(chief->client.message.done.global_step, 7);
    serving.meanwhile = push_meanwhile;
    assert_int_equal(take(7, 8, 1), 0); /* however short the wait */
    assert_int_equal(chief->client.message.done.global_step, 8);
    serving_end();
}

TEST(a_snapshot_without_number_or_step_is_nonsense)
{
    begin();
    restore(1, 5);
    const double began_s = serving.now_s;
    assert_int_equal(take(0, -1, 0), ERROR_BAD_REQUEST);
    serving_hang_up(chief);
    come(0);
    assert_int_equal(take(0, 9, 60000), ERROR_BAD_REQUEST); /* of no step is worth the wait */
    assert_true(serving.now_s == began_s);
    serving_hang_up(chief);
    come(0);
    assert_int_equal(take(SNAPSHOT_ORDER | 1, -1, 0), ERROR_BAD_REQUEST);
    serving_end();
}

static float at_snapshot(uint64_t number)
{
    const float *values;
    int64_t step;
    struct error error;
    if (!shard_snapshot_values(serving.server.shard, number, STORE_PARAMETERS, (struct range){0, 1}, &values, &step,
                               &error)) {
        return NAN;
    }
    return values[0];
}

/* A new chief knows nothing of its predecessor's orders, and will never release them. */
TEST(orders_are_those_of_the_chief_that_lives)
{
    begin();
    pushed = 0;
    restore(1, 0);
    assert_int_equal(take(SNAPSHOT_ORDER | 1, 1, 0), ERROR_TOO_LATE);
    push_once();
    assert_int_equal(take(SNAPSHOT_ORDER | 1, 1, 0), 0);
    assert_true(at_snapshot(SNAPSHOT_ORDER | 1) == -1);
    serving_hang_up(chief);
    const struct member who = {MEMBER_WORKER, 0};
    assert_int_equal(serving_admit(chief, &who, 777, false), 0);
    assert_int_equal(take(SNAPSHOT_ORDER | 2, 2, 0), ERROR_TOO_LATE);
    assert_true(isnan(at_snapshot(SNAPSHOT_ORDER | 1)));
    push_once();
    assert_int_equal(take(SNAPSHOT_ORDER | 2, 2, 0), 0);
    assert_true(at_snapshot(SNAPSHOT_ORDER | 2) == -2);
    serving_end();
}

static double released_s;

static void release_the_first(void)
{
    if (serving.now_s >= released_s) {
        const struct message_release release = {.snapshot = SNAPSHOT_ORDER | 1};
        serving.meanwhile = NULL;
        assert_int_equal(ask(chief, MESSAGE_release, &release, MESSAGE_done), 0);
    }
}

/* There is room for two taken snapshots: an ordered step waits until the chief reads another. */
TEST(a_step_that_is_kept_waits_for_room)
{
    for (int is_released = 0; is_released < 2; is_released++) {
        begin();
        pushed = 0;
        restore(1, 0);
        for (int i = 1; i <= SHARD_ORDERS_KEPT + 1; i++) {
            assert_int_equal(take(order(i), i, 0), ERROR_TOO_LATE);
        }
        for (int i = 1; i <= SHARD_ORDERS_KEPT + 1; i++) {
            push_once();
        }
        const double began_s = serving.now_s;
        released_s = began_s + 3;
        serving.meanwhile = is_released ? release_the_first : NULL;
        push_once(); /* leaves the step to be kept */
        const double waited_s = serving.now_s - began_s;
        const float kept = at_snapshot(order(SHARD_ORDERS_KEPT + 1));
        if (is_released) {
            assert_true(waited_s >= 3 && waited_s < 4 && kept == -(SHARD_ORDERS_KEPT + 1));
        } else { /* for a lease, and then continues without */
            assert_true(waited_s >= SERVING_LEASE_S - 1 && waited_s < SERVING_LEASE_S + 1 && isnan(kept));
        }
        assert_int_equal(serving.server.job.global_step, SHARD_ORDERS_KEPT + 2);
        serving_end();
    }
}

TEST(nobody_waits_for_a_chief_that_is_gone)
{
    begin();
    pushed = 0;
    restore(1, 0);
    for (int i = 1; i <= SHARD_ORDERS_KEPT + 1; i++) {
        assert_int_equal(take(order(i), i, 0), ERROR_TOO_LATE);
    }
    for (int i = 1; i <= SHARD_ORDERS_KEPT + 1; i++) {
        push_once();
    }
    const struct message_leave leave = {.message = "enough"};
    assert_int_equal(ask(chief, MESSAGE_leave, &leave, MESSAGE_done), 0);
    serving_hang_up(chief);
    const double began_s = serving.now_s;
    push_once();
    assert_true(serving.now_s < began_s + 1);
    serving_end();
}

/* --- What is stored for members --- */

static uint16_t tell_figures(struct serving_session *one, float figure)
{
    const struct message_figures message = {.worker = 3}; /* its own index, whatever it claims */
    one->client.next_request++;
    send_part(one, MESSAGE_figures, &message, FRAME_LAST, &figure, 1);
    assert_true(serving_serve(one));
    if (receive(one) == MESSAGE_error) {
        return one->client.message.error.code;
    }
    assert_int_equal(one->client.frame.type, MESSAGE_figures);
    assert_int_equal(one->client.message.figures.worker, one->session.worker);
    assert_int_equal(one->client.bulk_left, 0);
    return 0;
}

/* 0: it has sent none. */
static float figure_of(int whose)
{
    const struct message_figures message = {.worker = whose};
    struct error error;
    float figure = 0;
    assert_int_equal(ask(chief, MESSAGE_figures, &message, MESSAGE_figures), 0);
    assert_int_equal(chief->client.message.figures.worker, whose);
    if (chief->client.bulk_left > 0) {
        assert_int_equal(chief->client.bulk_left, sizeof figure);
        assert_true(channel_read_bulk(&chief->client, &figure, sizeof figure, serving.now_s, &error));
    }
    return figure;
}

TEST(a_single_byte_of_figures_is_told)
{
    const struct message_figures message = {.worker = 1};
    struct error error;
    uint8_t byte = 0;
    begin();
    assert_int_equal(tell_figures(worker, 7), 0);
    serving.server.figures[1].size = 1;
    serving.server.figures[1].bytes[0] = 5;
    assert_int_equal(ask(chief, MESSAGE_figures, &message, MESSAGE_figures), 0);
    assert_int_equal(chief->client.bulk_left, 1);
    assert_true(channel_read_bulk(&chief->client, &byte, 1, serving.now_s, &error));
    assert_int_equal(byte, 5);
    serving_end();
}

/* What is being received counts before it is there: all of it, and each worker's. */
TEST(unfinished_bulk_is_counted)
{
    const float figure = 1;
    begin();
    struct serving_session *other = come(2);
    serving.server.bulk_bytes = SERVER_BULK - 3; /* others' */
    const struct message_figures message = {.worker = 1};
    send_part(worker, MESSAGE_figures, &message, FRAME_LAST, &figure, 1);
    assert_false(serving_serve(worker)); /* it hangs up, and its peer tries again */
    assert_null(serving.server.figures[1].bytes);
    serving_hang_up(worker);
    assert_int_equal(serving.server.bulk_bytes, SERVER_BULK - 3);
    serving.server.bulk_bytes = SERVER_BULK - sizeof figure;
    assert_int_equal(tell_figures(other, 7), 0);
    assert_int_equal(serving.server.bulk_bytes, SERVER_BULK - sizeof figure);
    serving.server.bulk_bytes = 0;
    serving_end();
}

TEST(figures_are_told_by_each_and_asked_for_by_the_chief)
{
    begin();
    assert_true(figure_of(1) == 0);
    assert_int_equal(tell_figures(worker, 7), 0);
    assert_int_equal(tell_figures(chief, 8), 0);
    assert_true(figure_of(1) == 7 && figure_of(0) == 8 && figure_of(SERVING_WORKERS - 1) == 0);
    assert_int_equal(tell_figures(worker, 9), 0);
    assert_true(figure_of(1) == 9);
    assert_int_equal(serving.server.figures_bytes, 2 * sizeof(float));
    serving.server.figures_bytes = 64 << 20;       /* as if the others had sent a lot */
    assert_int_equal(tell_figures(worker, 10), 0); /* replaces its former ones */
    assert_int_equal(tell_figures(come(2), 1), ERROR_INTERNAL);
    assert_true(figure_of(1) == 10 && figure_of(2) == 0);
    struct message_figures message = {.worker = 1};
    assert_int_equal(ask(worker, MESSAGE_figures, &message, MESSAGE_figures), ERROR_BAD_REQUEST);
    message.worker = -1 - 2;
    assert_int_equal(ask(worker, MESSAGE_figures, &message, MESSAGE_figures), ERROR_BAD_REQUEST);
    assert_int_equal(tell_figures(worker, 11), 0);
    assert_true(figure_of(-1 - 1) == 0 && figure_of(1) == 0); /* forgotten */
    static const int nobody[] = {-1 - SERVING_WORKERS, SERVING_WORKERS};
    for (int i = 0; i < 2; i++) {
        message.worker = nobody[i];
        assert_int_equal(ask(chief, MESSAGE_figures, &message, MESSAGE_figures), ERROR_BAD_REQUEST);
        serving_hang_up(chief);
        come(0);
    }
    serving_end();
}

TEST(how_wide_the_layers_are_is_told)
{
    const struct message_layers message = {.units = ""};
    begin();
    assert_int_equal(ask(worker, MESSAGE_layers, &message, MESSAGE_layers), 0);
    assert_string_equal(worker->client.message.layers.units, "6,40,3");
    serving_end();
}

/* --- Signs of life --- */

TEST(a_heartbeat_hears_of_the_job)
{
    const struct message_heartbeat beat = {.state = STATE_TRAINING};
    begin();
    serving.server.identity.hello.lease_ms = 12345;
    assert_int_equal(ask(worker, MESSAGE_heartbeat, &beat, MESSAGE_lease), 0);
    const struct message_lease *lease = &worker->client.message.lease;
    assert_int_equal(lease->lease_ms, 12345);
    assert_int_equal(lease->job_state, JOB_WAITING);
    assert_int_equal(lease->global_step, -1);
    assert_true(isnan(lease->test_accuracy));
    assert_non_null(strstr(lease->message, "to initialise the model, 0 s"));
    serving.now_s += 5;
    assert_int_equal(ask(worker, MESSAGE_heartbeat, &beat, MESSAGE_lease), 0);
    assert_non_null(strstr(lease->message, "to initialise the model, 5 s"));
    assert_int_equal(begin_restore(1), 0);
    assert_int_equal(ask(worker, MESSAGE_heartbeat, &beat, MESSAGE_lease), 0); /* at once, whatever came before */
    assert_non_null(strstr(lease->message, "to finish writing the model"));
    while (has_answer(chief)) {
        receive(chief);
    }
    restore(2, 7);
    assert_int_equal(ask(worker, MESSAGE_heartbeat, &beat, MESSAGE_lease), 0);
    assert_int_equal(lease->job_state, JOB_TRAINING);
    assert_int_equal(lease->global_step, 7);
    assert_string_equal(lease->message, "");
    serving_end();
}

TEST(pings_are_answered_and_pongs_are_not)
{
    const struct message_ping ping = {.nonce = 77};
    const struct message_pong pong = {.nonce = 5};
    begin();
    assert_int_equal(ask(worker, MESSAGE_ping, &ping, MESSAGE_pong), 0);
    assert_int_equal(worker->client.message.pong.nonce, 77);
    send_request(worker, MESSAGE_pong, &pong);
    assert_true(serving_serve(worker));
    struct serving_session *guest = come_as(5, MEMBER_OPERATOR, MEMBER_ANY_INDEX, true);
    send_request(guest, MESSAGE_pong, &pong);
    assert_true(serving_serve(guest));
    assert_false(has_answer(worker) || has_answer(guest));
    serving_end();
}

TEST(who_leaves_has_left)
{
    const struct message_leave leave = {.message = "enough"};
    begin();
    restore(1, 9);
    assert_int_equal(ask(worker, MESSAGE_leave, &leave, MESSAGE_done), 0);
    assert_int_equal(worker->client.message.done.global_step, 9);
    assert_false(serving.server.job.workers[1].present);
    assert_true(serving.server.job.workers[0].present);
    struct serving_session *guest = come_as(5, MEMBER_OPERATOR, MEMBER_ANY_INDEX, true);
    assert_int_equal(ask(guest, MESSAGE_leave, &leave, MESSAGE_done), 0);
    assert_true(serving.server.job.workers[0].present);
    serving_end();
}

/* --- Indexes for workers without one --- */

TEST(places_are_given_by_keys)
{
    struct message_get_place wish = {.key = 5};
    struct config *config = serving_config();
    config->cluster.worker_hosts.count = 2;
    config->cluster.elastic = true;
    config->cluster.elastic_workers = 2;
    serving_begin(0);
    struct serving_session *one = come_as(5, MEMBER_WORKER, MEMBER_ANY_INDEX, true);
    assert_int_equal(ask(one, MESSAGE_get_place, &wish, MESSAGE_place), 0);
    const int place = one->client.message.place.index;
    assert_true(place == 2 || place == 3);
    assert_int_equal(ask(one, MESSAGE_get_place, &wish, MESSAGE_place), 0);
    assert_int_equal(one->client.message.place.index, place);
    wish.key = 0;
    assert_int_equal(ask(one, MESSAGE_get_place, &wish, MESSAGE_place), ERROR_BAD_REQUEST);
    serving_end();
}

/* --- Refusals --- */

TEST(a_refusal_says_whom_it_is_about)
{
    const struct message_end_job message = {.job_state = JOB_DONE, .message = ""};
    static const struct {
        enum member_role role;
        int index;
        bool guest;
        const char *whom;
    } askers[] = {{MEMBER_WORKER, 2, true, "end_job is not for members that connected without a config"},
                  {MEMBER_PS, 1, false, "end_job is not for another ps"},
                  {MEMBER_OPERATOR, MEMBER_ANY_INDEX, false, "end_job is not for operators"},
                  {MEMBER_WORKER, 1, false, "end_job is not for any worker but worker 0, the chief"}};
    for (size_t i = 0; i < sizeof askers / sizeof *askers; i++) {
        serving_config()->cluster.ps_hosts.count = SERVING_PS;
        serving_begin(0);
        struct serving_session *one = come_as(5, askers[i].role, askers[i].index, askers[i].guest);
        assert_int_equal(ask(one, MESSAGE_end_job, &message, MESSAGE_done), ERROR_NOT_ALLOWED);
        assert_string_equal(one->client.message.error.message, askers[i].whom);
        serving_end();
    }
}

TEST(what_is_no_request_ends_the_connection)
{
    const struct message_lease lease = {.message = ""};
    begin();
    assert_int_equal(ask(worker, MESSAGE_lease, &lease, MESSAGE_done), ERROR_BAD_REQUEST);
    assert_string_equal(worker->client.message.error.message, "lease is not a request to a ps");
    serving_end();
}

/* Not even that it may not ask for this: its connection is over. */
TEST(who_can_be_told_nothing_is_gone)
{
    static const enum message_type requests[] = {MESSAGE_release, MESSAGE_read,   MESSAGE_get_model, MESSAGE_get_status,
                                                 MESSAGE_pull,    MESSAGE_layers, MESSAGE_describe,  MESSAGE_heartbeat};
    union message zeros;
    memset(&zeros, 0, sizeof zeros);
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
        begin();
        restore(1, 0);
        worker->client.generation = 1;
        send_request(worker, requests[i], &zeros);
        assert_int_equal(shutdown(worker->client.connection->fd, SHUT_RD), 0);
        if (serving_serve(worker)) {
            fail_msg("%s goes on", message_name(requests[i]));
        }
        serving_end();
    }
}

/* What the job says is logged, from the first line on. */
TEST(who_comes_is_logged)
{
    begin();
    listen_in();
    log_setup(LOG_TEXT, LOG_INFO);
    come(2);
    serving_end();
    assert_int_equal(times(heard(), "worker 2 (10.0.0.1:1) joined"), 1);
}

static int held_meanwhile;

static void look_who_is_held(void)
{
    held_meanwhile = serving.server.job.workers[1].held;
}

/* Nothing is expected of who waits for this ps, and only as long as it waits. */
TEST(who_waits_is_held_until_it_is_answered)
{
    const struct message_get_model wish = {.wait_ms = 1000};
    begin();
    held_meanwhile = 0;
    serving.meanwhile = look_who_is_held;
    assert_int_equal(ask(worker, MESSAGE_get_model, &wish, MESSAGE_model), 0);
    assert_int_equal(held_meanwhile, 1);
    assert_int_equal(serving.server.job.workers[1].held, 0);
    serving_end();
}

/* An unreadable frame ends the connection, with an error for its sender that answers no request. */
TEST(a_frame_that_breaks_the_protocol_is_answered)
{
    begin();
    serving_send_nonsense(worker, MESSAGE_get_status, 77);
    assert_false(serving_serve(worker));
    assert_int_equal(receive(worker), MESSAGE_error);
    assert_int_equal(worker->client.message.error.code, ERROR_BAD_REQUEST);
    assert_int_equal(worker->client.frame.request, 77);
    assert_string_not_equal(worker->client.message.error.message, "");
    serving_end();
}

/* Any message from a worker is a sign of life. */
TEST(whoever_asks_has_been_heard)
{
    const struct message_ping ping = {.nonce = 1};
    begin();
    for (int i = 0; i < 2; i++) {
        struct serving_session *one = i == 0 ? chief : worker;
        serving.now_s += 3;
        assert_int_equal(ask(one, MESSAGE_ping, &ping, MESSAGE_pong), 0);
        assert_true(serving.server.job.workers[i].heard_s == serving.now_s);
        assert_false(one->session.base.waiting);
    }
    serving_end();
}

TEST(numbers_are_ps_0s_to_give)
{
    const struct message_get_place wish = {.key = 5};
    serving_config()->cluster.ps_hosts.count = SERVING_PS;
    serving_begin(1);
    struct serving_session *one = come_as(5, MEMBER_WORKER, MEMBER_ANY_INDEX, true);
    assert_int_equal(ask(one, MESSAGE_get_place, &wish, MESSAGE_place), ERROR_NOT_ALLOWED);
    serving_end();
}

int main(void)
{
    return check_run(NULL, NULL);
}
