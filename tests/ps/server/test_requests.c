/* Other requests to a ps: who may ask for what, what the chief and workers tell each other, and the end of a job. */
#include "tests/check.h"
#include "tests/ps/server/asking.h"

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
        assert_true(channel_read_bulk(&chief->client, &bulk, sizeof bulk, serving.now_s, &error));
        assert_true(bulk == (float)one.worker && one.examples == 20 && one.score == 0.25f);
        heard[strlen(heard)] = (char)('0' + one.worker);
    }
    assert_string_equal(heard, workers);
}

TEST(test_the_chief_hears_what_workers_found)
{
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
    const struct message_validated due = {.step = 4, .examples = 20, .score = 0.25f, .rises = 1};
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
        assert_true(channel_read_bulk(&one->client, &known, sizeof known, serving.now_s, &error));
        snprintf(heard + strlen(heard), sizeof heard - strlen(heard), " %g", (double)known);
    }
    return heard;
}

/* Also to a chief that is started again: what it says takes the place of that, and its question does not. */
TEST(test_what_the_chief_said_is_kept)
{
    char nothing[] = "", first[] = "a", second[] = "b2";
    begin_synchronous(1);
    struct serving_session *worker = come(1);
    assert_string_equal(describe(chief, nothing, 0), "");
    assert_string_equal(describe(worker, first, 7), ""); /* which means nothing to the others */
    assert_string_equal(describe(chief, first, 1), "a");
    assert_string_equal(describe(worker, nothing, 0), "a 1");
    assert_string_equal(describe(worker, first, 0), "a");
    assert_string_equal(describe(chief, nothing, 0), "a 1");
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

TEST(test_who_may_ask_for_what)
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

TEST(test_a_place_is_kept_by_who_lives)
{
    const struct member who = {MEMBER_WORKER, 1};
    serving_config();
    serving_begin(0);
    come(0);
    struct serving_session *first = come(1);
    serving.meanwhile = answer_probe;
    assert_int_equal(serving_admit(&serving.sessions[2], &who, 7, false), REFUSAL_DUPLICATE);
    assert_false(first->session.base.disconnected);
    serving.meanwhile = NULL;
    assert_int_equal(serving_admit(&serving.sessions[2], &who, 8, false), 0);
    assert_true(first->session.base.disconnected);
    assert_false(serving.sessions[2].session.base.disconnected);
    serving_end();
}

TEST(test_requests_of_a_job_that_is_over)
{
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

int main(void)
{
    return check_run(NULL, NULL);
}
