/* A ps whose steps another one decides: what it reports, and how it carries out decisions. */
#include "tests/check.h"
#include "tests/ps/running.h"

#include "tests/worker/remote/fake_member.h"

/* --- The ps that decides --- */

enum { CHANNELS = 3 }; /* a follower's: it reports on one, and listens on another; its agent reports */

static struct fake_member decides[CHANNELS]; /* at one address */
static struct identity identity;

static struct {
    pthread_mutex_t lock;
    char staged[100];    /* the last report: "step 3: 0-1, not finite 2-2" */
    uint32_t generation; /* of that */
    int64_t asked;       /* the step that it last asked about */
    enum error_code staged_error, asked_error;
    int64_t decided;     /* -1: none */
    struct range set[2]; /* of that step */
    uint32_t set_count;
    int reports, questions, pings;
} heard_of = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void add_ranges(char *text, size_t size, const struct ranges *ranges)
{
    for (uint32_t i = 0; i < ranges->count; i++) {
        const struct range range = range_get(ranges, i);
        snprintf(text + strlen(text), size - strlen(text), " %d-%d", (int)range.first,
                 (int)(range.first + range.count - 1));
    }
}

static bool answer_staged(struct channel *channel)
{
    const struct message_staged *staged = &channel->message.staged;
    char *text = heard_of.staged;
    const size_t size = sizeof heard_of.staged;
    snprintf(text, size, "step %d:", (int)staged->step);
    add_ranges(text, size, &staged->finite);
    snprintf(text + strlen(text), size - strlen(text), "%s", staged->not_finite.count > 0 ? ", not finite" : "");
    add_ranges(text, size, &staged->not_finite);
    heard_of.generation = channel->frame.generation;
    heard_of.reports++;
    const struct message_done done = {.global_step = staged->step};
    return heard_of.staged_error ? fake_member_object(channel, heard_of.staged_error)
                                 : fake_member_say(channel, MESSAGE_done, &done);
}

static bool answer_question(struct channel *channel)
{
    uint8_t bytes[2 * RANGE_BYTES];
    const int64_t step = channel->message.get_aggregate.step;
    heard_of.asked = step;
    heard_of.questions++;
    if (heard_of.asked_error) {
        return fake_member_object(channel, heard_of.asked_error);
    }
    if (step != heard_of.decided) {
        usleep(10000);
        return fake_member_object(channel, ERROR_TOO_LATE);
    }
    for (uint32_t i = 0; i < heard_of.set_count; i++) {
        range_put(bytes, i, heard_of.set[i]);
    }
    const struct message_aggregate aggregate = {.step = step, .workers = {bytes, heard_of.set_count}};
    channel->generation = channel->frame.generation;
    return fake_member_say(channel, MESSAGE_aggregate, &aggregate);
}

static bool answer(struct fake_member *member, struct channel *channel)
{
    bool goes_on = false;
    pthread_mutex_lock(&heard_of.lock);
    if (channel->frame.type == MESSAGE_staged) {
        goes_on = answer_staged(channel);
    } else if (channel->frame.type == MESSAGE_get_aggregate) {
        goes_on = answer_question(channel);
    } else if (channel->frame.type == MESSAGE_ping) {
        const struct message_pong pong = {.nonce = channel->message.ping.nonce};
        heard_of.pings++;
        goes_on = fake_member_say(channel, MESSAGE_pong, &pong);
    } else if (channel->frame.type == MESSAGE_report) {
        const struct message_rollout idle = {.message = "", .members = "", .job = "", .local = ""};
        goes_on = fake_member_say(channel, MESSAGE_rollout, &idle);
    }
    pthread_mutex_unlock(&heard_of.lock);
    return goes_on;
}

static void decide(int64_t step, uint32_t count, struct range first, struct range second)
{
    pthread_mutex_lock(&heard_of.lock);
    heard_of.decided = step;
    heard_of.set_count = count;
    heard_of.set[0] = first;
    heard_of.set[1] = second;
    pthread_mutex_unlock(&heard_of.lock);
}

static int count_of(const int *counter)
{
    pthread_mutex_lock(&heard_of.lock);
    const int count = *counter;
    pthread_mutex_unlock(&heard_of.lock);
    return count;
}

static bool was_staged(const char *what)
{
    pthread_mutex_lock(&heard_of.lock);
    const bool same = strcmp(heard_of.staged, what) == 0;
    pthread_mutex_unlock(&heard_of.lock);
    return same;
}

/* So far: those that were given up and made again, as on a busy machine, count too. */
static int connections(void)
{
    int count = 0;
    for (int i = 0; i < CHANNELS; i++) {
        count += atomic_load(&decides[i].connections);
    }
    return count;
}

/* --- The following ps, and its workers --- */

static const struct range none;

static void start_deciding(void)
{
    for (int i = 0; i < CHANNELS; i++) {
        fake_member_start(&decides[i], &identity.hello, answer);
    }
}

static void set_up_with(const char *lease, bool decides_now)
{
    struct error error;
    const struct config_setting more[] = {
        {"issync", "true"}, {"replicas_to_aggregate", "2"}, {"lease_secs", lease}, {NULL, NULL}};
    pthread_mutex_init(&heard_of.lock, NULL);
    heard_of.staged[0] = '\0';
    heard_of.staged_error = heard_of.asked_error = 0;
    heard_of.reports = heard_of.questions = heard_of.pings = 0;
    heard_of.decided = -1;
    listen_in();
    fake_member_listen(&decides[0], MEMBER_PS, 0);
    for (int i = 1; i < CHANNELS; i++) {
        decides[i] = decides[0];
    }
    ps.first = decides[0].host;
    load_with(more);
    if (!identity_create(&identity, &ps.config, (struct member){MEMBER_PS, 0}, &error)) {
        fail_msg("%s", error.text);
    }
    if (decides_now) {
        start_deciding();
    }
    launch();
}

static void set_up_follower(void)
{
    set_up_with("20", true);
    welcome(0, MEMBER_WORKER, 0, 1, NULL);
    welcome(1, MEMBER_WORKER, 1, 1, NULL);
}

static const char *tear_down_follower(void)
{
    atomic_store(&asked_to_leave, SIGTERM);
    const char *log = end(signals_exit_status(SIGTERM));
    for (int i = 1; i < CHANNELS; i++) {
        atomic_store(&decides[i].stopping, true);
        pthread_join(decides[i].thread, NULL);
    }
    fake_member_stop(&decides[0]); /* closes the listening sockets of both */
    identity_destroy(&identity);
    memset(&identity, 0, sizeof identity);
    ps.first = NULL;
    return log;
}

static struct range mine; /* the range that it holds */

static void restore_follower(uint32_t generation)
{
    static const float zeros[4096];
    const struct message_get_model request = {.wait_ms = 0};
    struct error error;
    uint8_t bytes[RANGE_BYTES];
    assert_true(channel_call(&clients[0], MESSAGE_get_model, &request, MESSAGE_model, soon(), NULL, &error));
    const struct ranges held = clients[0].message.model.ranges;
    struct range ranges[8];
    for (uint32_t i = 0; i < held.count; i++) {
        ranges[i] = range_get(&held, i);
    }
    const uint32_t count = held.count;
    mine = ranges[0];
    clients[0].generation = generation;
    ask_done(0, MESSAGE_begin_restore, &(struct message_begin_restore){.source = "test"});
    for (uint32_t i = 0; i < count; i++) {
        range_put(bytes, 0, ranges[i]);
        const struct message_write write = {.vector = STORE_PARAMETERS, .ranges = {bytes, 1}};
        struct iovec bulk = {(void *)(uintptr_t)zeros, ranges[i].count * sizeof *zeros};
        const struct outgoing frame = {.type = MESSAGE_write,
                                       .request = ++clients[0].next_request,
                                       .message = &write,
                                       .bulk = &bulk,
                                       .bulk_parts = 1};
        assert_true(channel_send_frame(&clients[0], &frame, soon(), &error));
        assert_true(channel_receive(&clients[0], soon(), &error));
        assert_int_equal(clients[0].frame.type, MESSAGE_done);
    }
    ask_done(0, MESSAGE_end_restore, &(struct message_end_restore){.global_step = 0});
    clients[1].generation = generation;
}

static void push(int worker, int64_t step, float value)
{
    struct error error;
    uint8_t bytes[RANGE_BYTES];
    range_put(bytes, 0, (struct range){mine.first, 1});
    const struct message_push message = {
        .sequence = (uint64_t)step + 1, .base_step = step, .token = step, .ranges = {bytes, 1}};
    struct iovec bulk = {&value, sizeof value};
    const struct outgoing frame = {.type = MESSAGE_push,
                                   .request = ++clients[worker].next_request,
                                   .message = &message,
                                   .bulk = &bulk,
                                   .bulk_parts = 1};
    assert_true(channel_send_frame(&clients[worker], &frame, soon(), &error));
    assert_true(connection_flush(clients[worker].connection, soon(), &error));
}

static void pushed(int worker, enum push_outcome outcome, int64_t step)
{
    struct error error;
    do {
        if (!channel_receive(&clients[worker], soon(), &error)) {
            fail_msg("%s", error.text);
        }
    } while (clients[worker].frame.type == MESSAGE_ping);
    assert_int_equal(clients[worker].frame.type, MESSAGE_pushed);
    assert_int_equal(clients[worker].message.pushed.outcome, outcome);
    assert_int_equal(clients[worker].message.pushed.global_step, step);
    while (!(clients[worker].frame.flags & FRAME_LAST)) {
        assert_true(channel_receive(&clients[worker], soon(), &error));
    }
}

/* From a worker that waits for no answer. */
static float parameter_of(int worker)
{
    float value = NAN;
    uint8_t bytes[RANGE_BYTES];
    struct error error;
    range_put(bytes, 0, (struct range){mine.first, 1});
    const struct message_read read = {.vector = STORE_PARAMETERS, .ranges = {bytes, 1}};
    assert_true(channel_call(&clients[worker], MESSAGE_read, &read, MESSAGE_values, soon(), NULL, &error));
    assert_true(channel_read_bulk(&clients[worker], &value, sizeof value, soon(), &error));
    return value;
}

/* --- Tests --- */

TEST(it_tells_what_is_staged_and_steps_as_it_is_told)
{
    set_up_follower();
    restore_follower(1);
    push(1, 0, 1);
    AWAIT(was_staged("step 0: 1-1"));
    assert_int_equal(heard_of.generation, 1);
    push(0, 0, 3);
    AWAIT(was_staged("step 0: 0-1"));
    decide(0, 1, (struct range){0, 2}, none);
    pushed(0, PUSH_APPLIED, 1);
    pushed(1, PUSH_APPLIED, 1);
    const float after = parameter_of(1);
    assert_true(after < 0);
    push(0, 1, NAN);
    AWAIT(was_staged("step 1:, not finite 0-0"));
    push(1, 1, 2);
    AWAIT(was_staged("step 1: 1-1, not finite 0-0"));
    decide(1, 1, (struct range){1, 1}, none);
    pushed(1, PUSH_APPLIED, 2);
    assert_true(parameter_of(1) < after);
    AWAIT(heard_of.asked == 2);
    AWAIT(connections() >= CHANNELS);
    tear_down_follower();
}

/* It may be another process, without any state. */
TEST(a_new_connection_is_told_all_again)
{
    set_up_follower();
    restore_follower(1);
    push(1, 0, 1);
    AWAIT(was_staged("step 0: 1-1"));
    const int before = count_of(&heard_of.reports);
    usleep(50000);
    assert_int_equal(count_of(&heard_of.reports), before); /* once is enough */
    AWAIT(connections() >= CHANNELS);
    const int connected = connections();
    for (int i = 0; i < CHANNELS; i++) {
        atomic_store(&decides[i].cut, true);
    }
    AWAIT(count_of(&heard_of.reports) > before);
    assert_true(was_staged("step 0: 1-1"));
    AWAIT(connections() >= connected + CHANNELS);
    decide(0, 1, (struct range){1, 1}, none);
    pushed(1, PUSH_APPLIED, 1);
    tear_down_follower();
}

/* One of the two is being restored, or is behind: that breaks no connection. Anything else is unexpected. */
TEST(an_old_generation_is_no_reason_to_leave)
{
    set_up_follower();
    restore_follower(1);
    heard_of.staged_error = heard_of.asked_error = ERROR_OLD_GENERATION;
    push(1, 0, 1);
    AWAIT(was_staged("step 0: 1-1"));
    const int asked = count_of(&heard_of.questions);
    AWAIT(count_of(&heard_of.questions) > asked);
    AWAIT(connections() >= CHANNELS);
    const int before = connections();
    heard_of.staged_error = heard_of.asked_error = ERROR_NOT_ALLOWED;
    push(0, 0, 1);
    AWAIT(connections() > before + 1);
    heard_of.staged_error = heard_of.asked_error = 0;
    AWAIT(was_staged("step 0: 0-1"));
    decide(0, 1, (struct range){0, 2}, none);
    pushed(0, PUSH_APPLIED, 1);
    tear_down_follower();
}

/* Of workers that don't exist, of gradients that are not here, or an empty set. */
TEST(decisions_that_can_not_be_are_not_followed)
{
    static const struct range nonsense[] = {{2, 1}, {1, 2}, {UINT64_MAX - 1, 1}, {0, 1}, {0, 2}};
    set_up_follower();
    restore_follower(1);
    push(1, 0, 1);
    AWAIT(was_staged("step 0: 1-1"));
    for (size_t i = 0; i <= sizeof nonsense / sizeof *nonsense; i++) {
        const int before = connections();
        const bool is_empty = i == sizeof nonsense / sizeof *nonsense;
        decide(0, is_empty ? 0 : 1, is_empty ? none : nonsense[i], none);
        AWAIT(connections() > before);
    }
    assert_true(parameter_of(0) == 0);
    decide(0, 1, (struct range){1, 1}, none);
    pushed(1, PUSH_APPLIED, 1);
    tear_down_follower();
}

TEST(a_restored_model_is_told_of_anew)
{
    set_up_follower();
    restore_follower(1);
    restore_follower(2);
    push(1, 0, 1);
    AWAIT(was_staged("step 0: 1-1"));
    assert_int_equal(heard_of.generation, 2);
    decide(0, 1, (struct range){1, 1}, none);
    pushed(1, PUSH_APPLIED, 1);
    tear_down_follower();
}

/* So that a dead connection is noticed before it is needed. */
TEST(it_pings_while_there_is_nothing_to_tell)
{
    set_up_with("2", true);
    AWAIT(count_of(&heard_of.pings) >= 2);
    assert_int_equal(count_of(&heard_of.reports), 0);
    assert_int_equal(count_of(&heard_of.questions), 0); /* there is nothing to decide */
    AWAIT(connections() >= CHANNELS);
    tear_down_follower();
}

TEST(who_decides_is_waited_for_by_name)
{
    set_up_with("20", false);
    welcome(0, MEMBER_WORKER, 0, 1, NULL);
    char awaited[120];
    snprintf(awaited, sizeof awaited, "waiting for ps 0 (%s), which decides on the steps, ", ps.first);
    AWAIT(strstr(heard_so_far(), awaited));
    start_deciding();
    AWAIT(connections() >= CHANNELS);
    assert_true(lives(0));
    assert_int_equal(times(tear_down_follower(), awaited), 1); /* though two wait */
}

int main(void)
{
    return check_run(NULL, NULL);
}
