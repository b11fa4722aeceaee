/* Requests to a ps, one by one and in wrong orders: who may ask, what is answered, and what a liar leaves behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/ps/server/asking.h"

/* --- Restoring --- */

/* It stays to be written until it ends well, whatever the chief ends it with. */
static void test_a_restore_that_ends_badly_is_still_open(void **state)
{
    static const int64_t bad[] = {-1, -MESSAGE_MAX_SIGNED, JOB_MAX_STEP + 1, MESSAGE_MAX_SIGNED};
    (void)state;
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

/* Of another generation, or without the chief: nothing is opened, and writing goes on. */
static void test_an_end_that_is_refused_opens_nothing(void **state)
{
    (void)state;
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
    assert_true(connection_write_more(chief->client.connection, parts, 3, INFINITY, &error));
    assert_true(connection_flush(chief->client.connection, INFINITY, &error));
}

static void chief_comes_again(void)
{
    const uint32_t generation = chief->client.generation;
    serving_hang_up(chief);
    come(0);
    chief->client.generation = generation;
}

/* Whatever was lost with a connection is asked for again, and what was written stays; no other process may go on so. */
static void test_a_restore_goes_on_where_its_connection_broke(void **state)
{
    (void)state;
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
static void test_what_broke_off_is_not_written(void **state)
{
    (void)state;
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

static void test_another_chief_does_not_go_on_with_a_restore(void **state)
{
    (void)state;
    serving_config();
    serving_begin(0);
    come(0);
    assert_int_equal(begin_restore(5), 0);
    write_all(1, FRAME_LAST);
    assert_int_equal(receive(chief), MESSAGE_done);
    chief_comes_again();
    chief->session.incarnation++;
    assert_int_equal(begin_restore(5), ERROR_OLD_GENERATION);
    assert_int_equal(begin_restore(6), 0);
    assert_int_equal(end_restore(7), ERROR_BAD_REQUEST); /* nothing is written of this one */
    serving_end();
}

static void test_a_write_is_answered_at_its_last_frame(void **state)
{
    (void)state;
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

/* --- Pushes --- */

static int changes_packed;

bool __wrap_shard_changes(struct shard *shard, uint32_t generation, struct stage *stage, uint64_t since_version,
                          enum dtype dtype, struct changes *changes);
bool __real_shard_changes(struct shard *shard, uint32_t generation, struct stage *stage, uint64_t since_version,
                          enum dtype dtype, struct changes *changes);

bool __wrap_shard_changes(struct shard *shard, uint32_t generation, struct stage *stage, uint64_t since_version,
                          enum dtype dtype, struct changes *changes)
{
    changes_packed++;
    return __real_shard_changes(shard, generation, stage, since_version, dtype, changes);
}

static void push_of_the_slowest(void)
{
    serving.meanwhile = NULL;
    assert_int_equal(push(&serving.sessions[1], 1, 0), PUSH_APPLIED);
}

/* The answer is what the push itself left, unless it had to wait for others: then theirs is in it as well. */
static void test_an_answer_is_given_at_once_or_is_fresh(void **state)
{
    (void)state;
    serving_config()->cluster.max_staleness = 1;
    serving_begin(0);
    struct serving_session *fast = come(0);
    come(1);
    restore(1, 0);
    const struct message_pull pull = {.after_step = -1, .wait_ms = 0};
    for (int i = 0; i < 2; i++) { /* both take part */
        serving.sessions[i].client.generation = 1;
        assert_int_equal(ask(&serving.sessions[i], MESSAGE_pull, &pull, MESSAGE_values), 0);
    }
    changes_packed = 0;
    assert_int_equal(push(fast, 1, 0), PUSH_APPLIED);
    assert_int_equal(changes_packed, 0);
    assert_int_equal(fast->client.message.pushed.version, 2);
    const struct message_push second = {.sequence = 2};
    serving.meanwhile = push_of_the_slowest;
    send_push(fast, &second, 1);
    assert_true(serving_serve(fast));
    assert_int_equal(outcome(fast), PUSH_APPLIED);
    assert_int_equal(changes_packed, 1);
    assert_int_equal(fast->client.message.pushed.version, 4); /* the slow one's is the fourth change */
    serving_end();
}

static void test_frames_of_a_push_belong_together(void **state)
{
    static const struct {
        enum message_type type;
        uint64_t sequence, request;
        uint32_t generation;
    } next[] = {{MESSAGE_push, 1, 0, 2}, {MESSAGE_push, 2, 0, 1}, {MESSAGE_push, 1, 1, 1}, {MESSAGE_ping, 1, 0, 1}};
    (void)state;
    serving_config();
    serving_begin(0);
    come(0);
    restore(1, 0);
    for (size_t i = 0; i < sizeof next / sizeof next[0]; i++) {
        struct serving_session *one = come(1);
        const struct message_push first = {.sequence = 1}, second = {.sequence = next[i].sequence};
        const struct message_ping ping = {.nonce = 1};
        one->client.generation = 1;
        one->client.next_request++;
        send_part(one, MESSAGE_push, &first, 0, NULL, 0);
        one->client.generation = next[i].generation;
        one->client.next_request += next[i].request;
        const void *message = next[i].type == MESSAGE_ping ? (const void *)&ping : &second;
        send_part(one, next[i].type, message, FRAME_LAST, NULL, 0);
        assert_false(serving_serve(one));
        assert_int_equal(receive(one), MESSAGE_error);
        assert_int_equal(one->client.message.error.code, ERROR_BAD_REQUEST);
        serving_hang_up(one);
    }
    assert_int_equal(serving.server.job.global_step, 0);
    serving_end();
}

static struct serving_session *stalled;

/* As the thread of a session whose connection was cut off. */
static void leave_stage_if_cut(void)
{
    if (stalled->session.base.cut) {
        serving.server.stage_users[1] = NULL;
    }
}

/* A push that begins means that an earlier one on another connection was given up; a pull means nothing of the kind. */
static void test_a_push_cuts_off_the_one_before_it(void **state)
{
    (void)state;
    serving_config();
    serving_begin(0);
    come(0);
    restore(1, 0);
    stalled = come(1);
    struct serving_session *again = &serving.sessions[2];
    const struct member who = {MEMBER_WORKER, 1};
    assert_int_equal(serving_admit(again, &who, stalled->session.incarnation, false), 0);
    serving.server.stage_users[1] = &stalled->session;
    serving.meanwhile = leave_stage_if_cut;
    const struct message_pull pull = {.after_step = -1};
    again->client.generation = 1;
    send_request(again, MESSAGE_pull, &pull);
    assert_false(serving_serve(again)); /* it waits in vain */
    assert_false(stalled->session.base.cut);
    serving_hang_up(again);
    assert_int_equal(serving_admit(again, &who, stalled->session.incarnation, false), 0);
    again->client.generation = 1;
    assert_int_equal(push(again, 1, 0), PUSH_APPLIED);
    assert_true(stalled->session.base.cut);
    assert_null(serving.server.stage_users[1]);
    serving.meanwhile = NULL;
    serving_end();
}

/* --- Synchronous steps --- */

static void test_a_loss_that_is_not_finite_counts_as_the_gradient(void **state)
{
    (void)state;
    begin_synchronous(1);
    struct serving_session *worker = come(1);
    struct message_push message = {.sequence = 1, .loss = NAN};
    send_push(worker, &message, 1);
    serving.config.cluster.min_replicas = 1;
    serving.server.job.gathered.least = SERVING_WORKERS; /* so that nobody waits for another of its */
    serving_serve(worker);
    assert_int_equal(outcome(worker), PUSH_NOT_FINITE);
    assert_int_equal(serving.server.job.workers[1].not_finite, 1);
    assert_int_equal(serving.server.job.global_step, 0);
    serving.server.job.gathered.least = 1;
    assert_int_equal(push(worker, 2, 0), PUSH_APPLIED);
    assert_true(parameter() == -1);
    serving_end();
}

static void test_reports_name_workers_that_there_are(void **state)
{
    static const struct {
        struct range range;
        bool fine;
    } named[] = {{{0, SERVING_WORKERS}, true},      {{SERVING_WORKERS - 1, 1}, true},  {{SERVING_WORKERS, 1}, false},
                 {{SERVING_WORKERS - 1, 2}, false}, {{0, SERVING_WORKERS + 1}, false}, {{UINT64_MAX - 5, 5}, false},
                 {{1, UINT32_MAX}, false}};
    (void)state;
    begin_synchronous(SERVING_PS);
    for (size_t i = 0; i < sizeof named / sizeof named[0]; i++) {
        for (int which = 0; which < 2; which++) {
            uint8_t bytes[RANGE_BYTES];
            struct serving_session *other = come_as(3, MEMBER_PS, 1, false);
            struct message_staged staged = {.step = 5}; /* of no step that is gathered */
            range_put(bytes, 0, named[i].range);
            *(which == 0 ? &staged.finite : &staged.not_finite) = (struct ranges){bytes, 1};
            other->client.generation = 1;
            assert_int_equal(ask(other, MESSAGE_staged, &staged, MESSAGE_done), named[i].fine ? 0 : ERROR_BAD_REQUEST);
            serving_hang_up(other);
        }
    }
    serving_end();
}

/* --- Validations of workers' own rows --- */

static void tell(struct serving_session *worker, uint32_t generation, const struct message_validated *told, float bulk)
{
    worker->client.generation = generation;
    worker->client.next_request++;
    send_part(worker, MESSAGE_validated, told, FRAME_LAST, &bulk, bulk > 0);
    assert_true(serving_serve(worker));
    assert_int_equal(receive(worker), MESSAGE_done);
}

/* What the chief hears of a step, a digit for each worker, and who is missing. */
static void hears(int64_t step, const char *workers, uint32_t missing)
{
    const struct message_validate question = {.step = step, .examples = 10, .score = 0.5f, .rises = 1};
    char heard[16] = "";
    chief->client.generation = serving.server.job.generation;
    send_request(chief, MESSAGE_validate, &question);
    assert_true(serving_serve(chief));
    for (;;) {
        struct error error;
        float bulk = 0;
        assert_int_equal(receive(chief), MESSAGE_validation);
        const struct message_validation one = chief->client.message.validation;
        if (chief->client.frame.flags & FRAME_LAST) {
            assert_int_equal(one.worker, -1);
            assert_int_equal(one.missing, missing);
            break;
        }
        assert_int_equal(chief->client.bulk_left, sizeof bulk);
        assert_true(channel_read_bulk(&chief->client, &bulk, sizeof bulk, INFINITY, &error));
        assert_true(bulk == (float)one.worker && one.examples == 20 && one.score == 0.25f);
        heard[strlen(heard)] = (char)('0' + one.worker);
    }
    assert_string_equal(heard, workers);
}

static void test_the_chief_hears_what_workers_found(void **state)
{
    (void)state;
    begin_synchronous(1);
    const struct message_validated told = {.step = 1, .examples = 20, .score = 0.25f, .rises = 1};
    const struct message_validated other = {.step = 2, .examples = 20, .score = 0.25f, .rises = 1};
    struct serving_session *workers[] = {chief, come(1), come(2), come(3)};
    assert_int_equal(push(workers[1], 1, 0), PUSH_APPLIED);
    hears(1, "", 1); /* its first heartbeat may come late; the others were not part of step 1 */
    tell(workers[1], 7, &told, 1);
    hears(1, "", 1); /* of another generation */
    tell(workers[1], 1, &told, 1);
    tell(workers[3], 1, &told, 3);
    tell(workers[2], 1, &other, 2);
    hears(1, "13", 0);
    struct job_worker *job = serving.server.job.workers;
    const struct validation *kept = serving.server.validations;
    assert_true(kept[1].is_worst && !kept[0].is_worst && !kept[3].is_worst); /* of equals the first */
    assert_int_equal(kept[0].examples, 10);
    hears(2, "2", 0);
    tell(workers[1], 1, &other, 1); /* takes the place of what it said before */
    hears(2, "12", 0);
    job[2].taken_step = 2;
    hears(3, "", 1);
    serving.server.tells[2] = false; /* of an earlier version */
    hears(3, "", 0);
    const struct message_validated due = {.step = 4, .examples = 20, .score = 0.25f, .rises = 1};
    serving.server.tells[2] = true;
    tell(workers[2], 1, &due, 2);
    job[2].taken_step = 4;
    hears(5, "", 0); /* the chief came late to what was due at step 4: no other word will come */
    job[2].taken_step = 6;
    hears(7, "", 1);
    hears(7, "", 1); /* asked again, it is still awaited */
    assert_int_equal(serving.server.validation_bytes, 3 * sizeof(float));
    serving_end();
}

/* --- How rows become inputs --- */

/* What a worker is told, "digest text"; its own digest, and a text if it is not 0. */
static const char *describe(struct serving_session *one, char *digest, float text)
{
    static char heard[100];
    const struct message_describe message = {.digest = digest};
    one->client.next_request++;
    send_part(one, MESSAGE_describe, &message, FRAME_LAST, &text, text > 0);
    assert_true(serving_serve(one));
    assert_int_equal(receive(one), MESSAGE_description);
    float known = 0;
    struct error error;
    snprintf(heard, sizeof heard, "%s", one->client.message.description.digest);
    if (one->client.bulk_left > 0) {
        assert_int_equal(one->client.bulk_left, sizeof known);
        assert_true(channel_read_bulk(&one->client, &known, sizeof known, INFINITY, &error));
        snprintf(heard + strlen(heard), sizeof heard - strlen(heard), " %g", (double)known);
    }
    return heard;
}

/* Also to a chief that is started again: what it says takes the place of that, and its question does not. */
static void test_what_the_chief_said_is_kept(void **state)
{
    char nothing[] = "", first[] = "a1", second[] = "b2";
    (void)state;
    begin_synchronous(1);
    struct serving_session *worker = come(1);
    assert_string_equal(describe(chief, nothing, 0), "");
    assert_string_equal(describe(worker, first, 7), ""); /* which means nothing to the others */
    assert_string_equal(describe(chief, first, 1), "a1");
    assert_string_equal(describe(worker, nothing, 0), "a1 1");
    assert_string_equal(describe(worker, first, 0), "a1");
    assert_string_equal(describe(chief, nothing, 0), "a1 1");
    assert_string_equal(describe(chief, second, 2), "b2");
    assert_string_equal(describe(worker, first, 0), "b2 2");
    const struct message_end_job over = {.job_state = JOB_DONE, .message = ""};
    assert_int_equal(ask(chief, MESSAGE_end_job, &over, MESSAGE_done), 0);
    assert_string_equal(describe(chief, nothing, 0), ""); /* it begins another job */
    assert_string_equal(describe(worker, nothing, 0), "b2 2");
    serving_end();
}

/* --- Who may ask for what --- */

enum asker { THE_CHIEF, A_WORKER, A_PS, AN_OPERATOR, A_GUEST, ONE_WITHOUT_NUMBER, ASKERS };

static struct serving_session *come_as_asker(enum asker asker)
{
    switch (asker) {
    case THE_CHIEF:
        return come_as(5, MEMBER_WORKER, 0, false);
    case A_WORKER:
        return come_as(5, MEMBER_WORKER, 1, false);
    case A_PS:
        return come_as(5, MEMBER_PS, 1, false);
    case AN_OPERATOR:
        return come_as(5, MEMBER_OPERATOR, MEMBER_ANY_INDEX, false);
    case ONE_WITHOUT_NUMBER:
        return come_as(5, MEMBER_WORKER, MEMBER_ANY_INDEX, true);
    default:
        return come_as(5, MEMBER_WORKER, 2, true);
    }
}

static void test_who_may_ask_for_what(void **state)
{
    static const struct {
        enum message_type type;
        const char *by; /* a letter for each asker that may */
    } rules[] = {
        {MESSAGE_ping, "cwpog"},        {MESSAGE_leave, "cwpog"},     {MESSAGE_get_status, "cwpog"},
        {MESSAGE_report, "cwpog"},      {MESSAGE_propose, "o"},       {MESSAGE_abort_rollout, "o"},
        {MESSAGE_snapshot, "c"},        {MESSAGE_release, "c"},       {MESSAGE_end_restore, "c"},
        {MESSAGE_write, "c"},           {MESSAGE_begin_restore, "c"}, {MESSAGE_staged, "p"},
        {MESSAGE_read, "cw"},           {MESSAGE_get_aggregate, "p"}, {MESSAGE_get_model, "cw"},
        {MESSAGE_heartbeat, "cw"},      {MESSAGE_pull, "cw"},         {MESSAGE_push, "cw"},
        {MESSAGE_end_job, "c"},         {MESSAGE_get_batches, "cw"},  {MESSAGE_welcome, "cw"},
        {MESSAGE_describe, "cw"},       {MESSAGE_offer_program, "o"}, {MESSAGE_put_program, "o"},
        {MESSAGE_get_program, "cwpog"}, {MESSAGE_layers, "cw"},       {MESSAGE_figures, "cw"},
        {MESSAGE_validated, "cw"},      {MESSAGE_validate, "c"},      {MESSAGE_get_place, "n"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        for (int asker = 0; asker < ASKERS; asker++) {
            struct config *config = serving_config();
            config->cluster.issync = true;
            config->cluster.ps_hosts.count = SERVING_PS;
            serving_begin(0);
            const bool may = strchr(rules[i].by, "cwpogn"[asker]);
            struct serving_session *one = come_as_asker((enum asker)asker);
            union message zeros;
            memset(&zeros, 0, sizeof zeros);
            send_request(one, rules[i].type, &zeros);
            serving_serve(one);
            uint16_t got = receive(one);
            const bool refused = got == MESSAGE_error && one->client.message.error.code == ERROR_NOT_ALLOWED;
            if (refused == may) {
                fail_msg("%s by %d: %s", message_name(rules[i].type), asker, refused ? "refused" : "let through");
            }
            serving_end();
        }
    }
}

/* --- Silence, and the end --- */

/* A worker that has a claim on its place is asked whether it lives; who says so keeps it. */
static void answer_probe(void)
{
    struct serving_session *one = &serving.sessions[1];
    if (one->session.ping_wanted) {
        const struct message_pong pong = {.nonce = job_probe_nonce(&serving.server.job, 1)};
        one->session.ping_wanted = false;
        send_request(one, MESSAGE_pong, &pong);
        assert_true(serving_serve(one));
    }
}

static void test_a_place_is_kept_by_who_lives(void **state)
{
    const struct member who = {MEMBER_WORKER, 1};
    (void)state;
    serving_config();
    serving_begin(0);
    come(0);
    struct serving_session *first = come(1);
    serving.meanwhile = answer_probe;
    assert_int_equal(serving_admit(&serving.sessions[2], &who, 7, false), REFUSAL_DUPLICATE);
    assert_false(first->session.base.cut);
    serving.meanwhile = NULL;
    assert_int_equal(serving_admit(&serving.sessions[2], &who, 8, false), 0);
    assert_true(first->session.base.cut);
    assert_false(serving.sessions[2].session.base.cut);
    serving_end();
}

static void test_requests_of_a_job_that_is_over(void **state)
{
    (void)state;
    serving_config();
    serving_begin(0);
    come(0);
    struct serving_session *worker = come(1);
    const struct message_end_job bad = {.job_state = JOB_TRAINING}, end = {.job_state = JOB_DONE, .message = "enough"};
    assert_int_equal(ask(worker, MESSAGE_end_job, &end, MESSAGE_done), ERROR_NOT_ALLOWED);
    assert_int_equal(push(worker, 1, 0), -1 - ERROR_NOT_READY);
    restore(1, 0);
    assert_int_equal(push(worker, 1, 0), PUSH_APPLIED);
    assert_int_equal(push(worker, 1, 0), PUSH_APPLIED_BEFORE);
    assert_int_equal(ask(chief, MESSAGE_end_job, &end, MESSAGE_done), 0);
    assert_int_equal(push(worker, 2, 1), PUSH_NOT_WANTED);
    const struct message_pull pull = {.after_step = -1};
    assert_int_equal(ask(worker, MESSAGE_pull, &pull, MESSAGE_values), ERROR_JOB_OVER);
    const struct message_heartbeat beat = {.state = STATE_TRAINING};
    assert_int_equal(ask(worker, MESSAGE_heartbeat, &beat, MESSAGE_lease), 0);
    assert_int_equal(worker->client.message.lease.job_state, JOB_DONE);
    assert_string_equal(worker->client.message.lease.message, "enough");
    assert_true(parameter() == -1);
    assert_int_equal(ask(chief, MESSAGE_end_job, &bad, MESSAGE_done), ERROR_BAD_REQUEST);
    serving_end();
}

/* --- What is there --- */

static int locked; /* how often the server's lock was taken */

void __wrap_server_lock(struct server *server);
void __real_server_lock(struct server *server);

void __wrap_server_lock(struct server *server)
{
    locked++;
    __real_server_lock(server);
}

static void test_what_is_read(void **state)
{
    (void)state;
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

static void test_a_snapshot_is_read_as_it_was(void **state)
{
    (void)state;
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
static void test_what_is_pulled(void **state)
{
    (void)state;
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

static void test_what_a_ps_says_of_itself(void **state)
{
    (void)state;
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

static void test_what_a_ps_says_of_workers(void **state)
{
    (void)state;
    serving_config();
    serving_begin(0);
    struct serving_session *guest = come_as(5, MEMBER_OPERATOR, MEMBER_ANY_INDEX, true);
    come(0);
    struct serving_session *worker = come(1);
    restore(1, 0);
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
    status = member_of(guest, 0); /* the ps itself */
    assert_true(status.memory_bytes > 1 << 20 && isnan(status.gpu_percent));
    status = member_of(guest, 4); /* never seen */
    assert_true(status.memory_bytes == 0 && isnan(status.cpu_percent) && isnan(status.gpu_percent));
    assert_int_equal(status.index, 3);
    assert_int_equal(status.incarnation, 0);
    assert_int_equal(status.state, STATE_ABSENT);
    assert_int_equal(status.silent_ms, UINT32_MAX);
    serving.now_s += 1;
    assert_int_equal(push(worker, 1, 0), PUSH_APPLIED);
    status = member_of(guest, 2);
    assert_int_equal(status.silent_ms, 0);
    assert_int_equal(status.local_step, 7); /* its own count is higher */
    assert_int_equal(status.staleness, 0);
    serving_end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_restore_that_ends_badly_is_still_open),
        cmocka_unit_test(test_an_end_that_is_refused_opens_nothing),
        cmocka_unit_test(test_a_restore_goes_on_where_its_connection_broke),
        cmocka_unit_test(test_what_broke_off_is_not_written),
        cmocka_unit_test(test_another_chief_does_not_go_on_with_a_restore),
        cmocka_unit_test(test_a_write_is_answered_at_its_last_frame),
        cmocka_unit_test(test_an_answer_is_given_at_once_or_is_fresh),
        cmocka_unit_test(test_frames_of_a_push_belong_together),
        cmocka_unit_test(test_a_push_cuts_off_the_one_before_it),
        cmocka_unit_test(test_a_loss_that_is_not_finite_counts_as_the_gradient),
        cmocka_unit_test(test_reports_name_workers_that_there_are),
        cmocka_unit_test(test_the_chief_hears_what_workers_found),
        cmocka_unit_test(test_what_the_chief_said_is_kept),
        cmocka_unit_test(test_who_may_ask_for_what),
        cmocka_unit_test(test_a_place_is_kept_by_who_lives),
        cmocka_unit_test(test_requests_of_a_job_that_is_over),
        cmocka_unit_test(test_what_is_read),
        cmocka_unit_test(test_a_snapshot_is_read_as_it_was),
        cmocka_unit_test(test_what_is_pulled),
        cmocka_unit_test(test_what_a_ps_says_of_itself),
        cmocka_unit_test(test_what_a_ps_says_of_workers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
