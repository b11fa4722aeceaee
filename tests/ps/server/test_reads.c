/* What a ps is asked for: values, snapshots, changes, and how its members are. */

#include "tests/check.h"

#include "tests/ps/server/asking.h"

static int locked; /* how often the server's lock was taken */

void lock_taken(const pthread_mutex_t *mutex);
void lock_taken(const pthread_mutex_t *mutex)
{
    locked += mutex == &serving.server.lock;
}

TEST(test_what_is_read)
{
    float values[ALL];
    uint8_t bytes[2 * RANGE_BYTES];
    serving_config();
    serving_begin(0);
    come(0);
    struct serving_session *worker = come(1);
    struct message_read read = {.vector = STORE_PARAMETERS};
    assert_int_equal(values_of(worker, MESSAGE_read, &read, values, ALL), -1 - ERROR_NOT_READY);
    restore(3, 5);
    worker->client.generation = 2;
    assert_int_equal(values_of(worker, MESSAGE_read, &read, values, ALL), -1 - ERROR_OLD_GENERATION);
    worker->client.generation = 3;
    const struct span *spans;
    int floats = 0;
    for (int i = shard_spans(serving.server.shard, &spans) - 1; i >= 0; i--) {
        floats += (int)spans[i].count;
    }
    assert_int_equal(push(worker, 1, 5), PUSH_APPLIED);
    assert_int_equal(values_of(worker, MESSAGE_read, &read, values, ALL), floats);
    assert_int_equal(worker->client.message.values.global_step, 6);
    assert_int_equal(worker->client.message.values.version, 2);
    for (int i = 0; i < floats; i++) {
        assert_true(values[i] == (i < FEW ? -1 : 0));
    }
    range_put(bytes, 0, (struct range){0, 1});
    range_put(bytes, 1, (struct range){FEW - 1, 3});
    read.ranges = (struct ranges){bytes, 1};
    locked = 0;
    assert_int_equal(values_of(worker, MESSAGE_read, &read, values, ALL), 1);
    const int once = locked;
    read.ranges = (struct ranges){bytes, 2};
    locked = 0;
    assert_int_equal(values_of(worker, MESSAGE_read, &read, values, ALL), 4);
    assert_int_equal(locked, once); /* however many parts the values have */
    assert_true(values[0] == -1 && values[1] == -1 && values[2] == 0 && values[3] == 0);
    range_put(bytes, 1, (struct range){1 << 20, 1});
    assert_int_equal(values_of(worker, MESSAGE_read, &read, values, ALL), -1 - ERROR_NOT_READY);
    read = (struct message_read){.vector = STORE_SLOT0};
    assert_int_equal(values_of(worker, MESSAGE_read, &read, values, ALL), -1 - ERROR_NOT_READY);
    serving_end();
}

TEST(test_a_snapshot_is_read_as_it_was)
{
    float values[ALL];
    serving_config();
    serving_begin(0);
    come(0);
    struct serving_session *worker = come(1);
    restore(1, 0);
    const struct message_snapshot take = {.snapshot = 9, .at_step = -1};
    struct message_read read = {.vector = STORE_PARAMETERS, .snapshot = 9};
    assert_int_equal(values_of(chief, MESSAGE_read, &read, values, ALL), -1 - ERROR_NOT_READY);
    assert_int_equal(ask(chief, MESSAGE_snapshot, &take, MESSAGE_done), 0);
    assert_int_equal(push(worker, 1, 0), PUSH_APPLIED);
    assert_true(values_of(chief, MESSAGE_read, &read, values, ALL) > FEW);
    assert_true(values[0] == 0);
    assert_int_equal(chief->client.message.values.global_step, 0);
    read.snapshot = 0;
    assert_true(values_of(chief, MESSAGE_read, &read, values, ALL) > FEW);
    assert_true(values[0] == -1);
    const struct message_release release = {.snapshot = 9};
    assert_int_equal(ask(chief, MESSAGE_release, &release, MESSAGE_done), 0);
    read.snapshot = 9;
    assert_int_equal(values_of(chief, MESSAGE_read, &read, values, ALL), -1 - ERROR_NOT_READY);
    serving_end();
}

static void push_of_another(void)
{
    serving.meanwhile = NULL;
    assert_int_equal(push(&serving.sessions[2], 1, 0), PUSH_APPLIED);
}

/* All, what changed since a version, ranges of it; and one that waits for a step. */
TEST(test_what_is_pulled)
{
    float values[ALL];
    uint8_t bytes[RANGE_BYTES];
    serving_config();
    serving_begin(0);
    come(0);
    struct serving_session *worker = come(1);
    come(2);
    struct message_pull pull = {.after_step = -1};
    assert_int_equal(values_of(worker, MESSAGE_pull, &pull, values, ALL), -1 - ERROR_NOT_READY);
    restore(1, 0);
    worker->client.generation = 1;
    const int floats = values_of(worker, MESSAGE_pull, &pull, values, ALL);
    assert_true(floats > FEW && values[0] == 0);
    const uint64_t version = worker->client.message.values.version;
    pull.since_version = version;
    assert_int_equal(values_of(worker, MESSAGE_pull, &pull, values, ALL), 0);
    pull.after_step = 0;
    pull.wait_ms = 5000;
    serving.meanwhile = push_of_another;
    const double asked_s = serving.now_s;
    const int changed = values_of(worker, MESSAGE_pull, &pull, values, ALL);
    assert_true(changed >= FEW && changed < floats && values[0] == -1);
    assert_int_equal(worker->client.message.values.version, version + 1);
    assert_int_equal(worker->client.message.values.global_step, 1);
    assert_true(serving.now_s < asked_s + 5);
    pull.after_step = 1; /* nobody makes it: in the end it is told what there is */
    pull.since_version = version + 1;
    assert_int_equal(values_of(worker, MESSAGE_pull, &pull, values, ALL), 0);
    assert_true(serving.now_s >= asked_s + 5);
    range_put(bytes, 0, (struct range){FEW - 1, 2});
    pull = (struct message_pull){.after_step = -1, .ranges = {bytes, 1}};
    assert_int_equal(values_of(worker, MESSAGE_pull, &pull, values, ALL), 2);
    assert_true(values[0] == -1 && values[1] == 0);
    worker->client.generation = 7;
    assert_int_equal(values_of(worker, MESSAGE_pull, &pull, values, ALL), -1 - ERROR_OLD_GENERATION);
    serving_end();
}

static struct message_status member_of(struct serving_session *one, int place)
{
    struct message_status status = {.index = -1};
    const struct message_get_status all = {.members = place > 0};
    send_request(one, MESSAGE_get_status, &all);
    assert_true(serving_serve(one));
    for (int i = 0;; i++) {
        assert_int_equal(receive(one), MESSAGE_status);
        status = i == place ? one->client.message.status : status;
        if (one->client.frame.flags & FRAME_LAST) {
            assert_int_equal(i, place > 0 ? SERVING_WORKERS : 0);
            return status;
        }
    }
}

TEST(test_what_a_ps_says_of_itself)
{
    serving_config();
    serving_begin(0);
    struct serving_session *guest = come_as(5, MEMBER_OPERATOR, MEMBER_ANY_INDEX, true);
    struct message_status status = member_of(guest, 0);
    assert_int_equal(status.role, MEMBER_PS);
    assert_int_equal(status.index, 0);
    assert_int_equal(status.state, STATE_STARTING);
    assert_int_equal(status.global_step, -1);
    come(0);
    struct serving_session *worker = come(1);
    assert_int_equal(begin_restore(1), 0);
    assert_int_equal(member_of(guest, 0).state, STATE_STARTING);
    while (has_answer(chief)) {
        receive(chief);
    }
    restore(2, 30);
    const struct message_push first = {.sequence = 1, .base_step = 30, .loss = 0.5f};
    send_push(worker, &first, 1);
    assert_true(serving_serve(worker));
    assert_int_equal(outcome(worker), PUSH_APPLIED);
    const struct message_push bad = {.sequence = 2, .base_step = 31, .loss = 0.25f};
    send_push(worker, &bad, NAN);
    serving_serve(worker);
    assert_int_equal(outcome(worker), PUSH_NOT_FINITE);
    status = member_of(guest, 0);
    assert_int_equal(status.state, STATE_READY);
    assert_int_equal(status.generation, 2);
    assert_int_equal(status.global_step, 31);
    assert_int_equal(status.local_step, 1);
    assert_true(status.loss == 0.5f);
    assert_int_equal(status.dropped, 1);
    assert_int_equal(status.fleet_version, 1);
    assert_int_equal(status.incarnation, 1);
    const struct message_end_job end = {.job_state = JOB_FAILED, .message = "it diverged"};
    assert_int_equal(ask(chief, MESSAGE_end_job, &end, MESSAGE_done), 0);
    assert_int_equal(member_of(guest, 0).state, STATE_FAILED);
    serving_end();
}

TEST(test_what_a_ps_says_of_workers)
{
    serving_config();
    serving_begin(0);
    struct serving_session *guest = come_as(5, MEMBER_OPERATOR, MEMBER_ANY_INDEX, true);
    come(0);
    struct serving_session *worker = come(1);
    restore(1, 3);
    const struct message_heartbeat beat = {.state = STATE_TRAINING,
                                           .global_step = 3,
                                           .local_step = 7,
                                           .steps_per_s = 12,
                                           .loss = 0.75f,
                                           .staleness = 2,
                                           .retries = 4,
                                           .bytes_in = 1000,
                                           .bytes_out = 2000,
                                           .host = "north",
                                           .device = "cpu, 2 threads",
                                           .message = "busy",
                                           .memory_bytes = 1 << 20,
                                           .cpu_percent = 150,
                                           .gpu_percent = 25};
    assert_int_equal(ask(worker, MESSAGE_heartbeat, &beat, MESSAGE_lease), 0);
    serving.now_s += 2.5;
    struct message_status status = member_of(guest, 2);
    assert_int_equal(status.role, MEMBER_WORKER);
    assert_int_equal(status.index, 1);
    assert_int_equal(status.incarnation, 101);
    assert_int_equal(status.state, STATE_TRAINING);
    assert_in_range(status.silent_ms, 2500, 2600);
    assert_int_equal(status.global_step, 3);
    assert_int_equal(status.local_step, 7);
    assert_true(status.steps_per_s == 12 && status.loss == 0.75f);
    assert_int_equal(status.staleness, 2);
    assert_int_equal(status.retries, 4);
    assert_int_equal(status.bytes_in, 1000);
    assert_int_equal(status.bytes_out, 2000);
    assert_int_equal(status.dropped, 0);
    assert_true(status.memory_bytes == 1 << 20 && status.cpu_percent == 150 && status.gpu_percent == 25);
    assert_int_equal(status.link, STATUS_LINK_TLS);
    char own[256];
    assert_int_equal(gethostname(own, sizeof own), 0);
    status = member_of(guest, 0); /* the ps itself */
    assert_string_equal(status.host, own);
    assert_true(status.memory_bytes > 1 << 20 && isnan(status.gpu_percent));
    status = member_of(guest, 4); /* never seen */
    assert_true(status.memory_bytes == 0 && isnan(status.cpu_percent) && isnan(status.gpu_percent));
    assert_int_equal(status.link, STATUS_LINK_UNKNOWN);
    assert_int_equal(status.index, 3);
    assert_int_equal(status.incarnation, 0);
    assert_int_equal(status.state, STATE_ABSENT);
    assert_int_equal(status.silent_ms, UINT32_MAX);
    serving.now_s += 1;
    assert_int_equal(push(worker, 1, 3), PUSH_APPLIED);
    status = member_of(guest, 2);
    assert_int_equal(status.silent_ms, 0);
    assert_int_equal(status.local_step, 7); /* its own count is higher */
    assert_int_equal(status.staleness, 0);
    serving_end();
}

int main(void)
{
    return check_run(NULL, NULL);
}
