/* What a ps shows on dashboards, and its answers to status queries. */
#include "tests/check.h"
#include "tests/ps/server/asking.h"

#include "ps/status.h"

/* --- Dashboards --- */

/* The other ps' reports on themselves, by index; 0: none yet. */
static struct board_member watched[SERVING_PS];
static int watched_count;
static bool watch_fails;
static int watches;
static char watch_memory;

bool __wrap_fleet_watch_create(struct fleet_watch **watch, const struct config *config, const struct identity *identity,
                               struct error *error);
bool __wrap_fleet_watch_create(struct fleet_watch **watch, const struct config *config, const struct identity *identity,
                               struct error *error)
{
    assert_ptr_equal(config, &serving.config);
    assert_ptr_equal(identity, &serving.server.identity);
    if (watch_fails) {
        return error_set(error, "as the test wants");
    }
    watches++;
    *watch = (struct fleet_watch *)(void *)&watch_memory;
    return true;
}

void __wrap_fleet_watch_destroy(struct fleet_watch *watch);
void __wrap_fleet_watch_destroy(struct fleet_watch *watch)
{
    watches -= watch ? 1 : 0;
}

int __wrap_fleet_watch_members(struct fleet_watch *watch, struct board_member *members, int room);
int __wrap_fleet_watch_members(struct fleet_watch *watch, struct board_member *members, int room)
{
    assert_ptr_equal(watch, &watch_memory);
    assert_int_equal(room, SERVING_PS);
    memcpy(members, watched, (size_t)watched_count * sizeof *members);
    return watched_count;
}

static struct board_member shown[SERVING_PS + SERVING_WORKERS];
static struct board_rollout rollout;
static struct server_report report;

static void look(void)
{
    report = (struct server_report){.members = shown, .rollout = &rollout};
    assert_true(server_most_members(&serving.server) <= (int)(sizeof shown / sizeof *shown));
    server_report(&serving.server, &report);
}

static struct serving_session *worker;

static void begin(int index, int ps_count)
{
    serving_config()->cluster.ps_hosts.count = ps_count;
    serving_begin(index);
    worker = NULL;
    watched_count = 0;
    watch_fails = false;
    server_watch_fleet(&serving.server);
}

static void end(void)
{
    server_unwatch_fleet(&serving.server);
    assert_null(serving.server.watch);
    assert_int_equal(watches, 0);
    serving_end();
}

static void is(int place, const char *role, int task, const char *state)
{
    assert_string_equal(shown[place].role, role);
    assert_int_equal(shown[place].task, task);
    assert_string_equal(shown[place].state, state);
}

TEST(a_ps_shows_itself_and_the_workers_it_knows)
{
    begin(0, 1);
    look();
    assert_int_equal(report.state, JOB_WAITING);
    assert_int_equal(report.global_step, -1);
    assert_int_equal(report.last_step, -1);
    assert_non_null(strstr(report.waits, "waiting for worker 0 (a:1) to initialise the model"));
    come(0);
    worker = come(1);
    assert_int_equal(begin_restore(3), 0);
    look();
    assert_int_equal(report.state, JOB_RESTORING);
    while (has_answer(chief)) {
        receive(chief);
    }
    restore(4, 30);
    const struct message_push good = {.sequence = 1, .base_step = 30, .loss = 0.5f};
    send_push(worker, &good, 1);
    assert_true(serving_serve(worker));
    assert_int_equal(outcome(worker), PUSH_APPLIED);
    const struct message_push bad = {.sequence = 2, .base_step = 31};
    send_push(worker, &bad, NAN);
    assert_true(serving_serve(worker));
    assert_int_equal(outcome(worker), PUSH_NOT_FINITE);
    serving.server.job.workers[2].stale = 3;
    serving.server.job.buffered = 7;
    serving.server.job.last_step = 500;
    look();
    assert_int_equal(report.state, JOB_TRAINING);
    assert_int_equal(report.generation, 4);
    assert_int_equal(report.global_step, 31);
    assert_int_equal(report.last_step, 500);
    assert_int_equal(report.pushes, 1);
    assert_int_equal(report.not_finite, 1);
    assert_int_equal(report.stale, 3);
    assert_int_equal(report.buffered, 7);
    assert_int_equal(report.config_version, 1);
    assert_string_equal(report.digest, "d16e57");
    assert_true(report.bytes_in == 1100 && report.bytes_out == 1200);
    assert_true(shown[0].bytes_in == 1100 && shown[0].bytes_out == 1200);
    assert_string_equal(shown[0].digest, "d16e57");
    assert_true(report.loss == 0.5f);
    assert_string_equal(report.waits, "");
    assert_int_equal(report.member_count, 1 + SERVING_WORKERS);
    is(0, "ps", 0, "ready");
    is(2, "worker", 1, shown[2].state);
    is(4, "worker", 3, "absent");
    assert_string_equal(shown[0].address, "a:1");
    assert_string_equal(shown[2].address, "b:1");
    assert_int_equal(shown[2].local_step, 1);
    const struct message_end_job over = {.job_state = JOB_DONE, .message = ""};
    assert_int_equal(ask(chief, MESSAGE_end_job, &over, MESSAGE_done), 0);
    look();
    assert_int_equal(report.state, JOB_DONE);
    is(0, "ps", 0, "done");
    end();
}

TEST(a_loss_that_nobody_reported_is_not_a_number)
{
    begin(0, 1);
    look();
    assert_true(isnan(report.loss));
    end();
}

TEST(the_other_ps_are_shown_as_they_say)
{
    begin(1, SERVING_PS);
    assert_int_equal(watches, 1);
    look();
    is(0, "ps", 1, "starting"); /* no reports so far */
    assert_int_equal(report.member_count, 1 + SERVING_WORKERS);
    for (int i = 0; i < SERVING_PS; i++) {
        watched[i] = (struct board_member){.role = "ps", .task = i, .state = "elsewhere"};
    }
    watched_count = SERVING_PS;
    look();
    assert_int_equal(report.member_count, SERVING_PS + SERVING_WORKERS);
    is(0, "ps", 0, "elsewhere");
    is(1, "ps", 1, "starting"); /* itself, which it knows better */
    is(2, "worker", 0, "absent");
    end();
}

TEST(without_a_watch_the_others_are_not_shown)
{
    serving_config()->cluster.ps_hosts.count = SERVING_PS;
    serving_begin(0);
    watch_fails = true;
    server_watch_fleet(&serving.server);
    look();
    assert_int_equal(report.member_count, 1 + SERVING_WORKERS);
    end();
}

/* Unlisted ones while they are connected. */
TEST(workers_that_joined_are_shown)
{
    struct config *config = serving_config();
    config->cluster.worker_hosts.count = 2;
    config->cluster.elastic = true;
    config->cluster.elastic_workers = 2;
    serving_begin(0);
    look();
    assert_int_equal(report.member_count, 3);
    come(3);
    look();
    assert_int_equal(report.member_count, 4);
    is(2, "worker", 1, "absent");
    assert_int_equal(shown[3].task, 3);
    end();
}

/* --- Status queries --- */

/* All frames of an answer: a letter for each member, and its index; r for rounds. */
static const char *frames_of(struct serving_session *one, uint8_t members)
{
    static char text[100];
    const struct message_get_status request = {.members = members};
    text[0] = '\0';
    send_request(one, MESSAGE_get_status, &request);
    assert_true(serving_serve(one));
    do {
        const uint16_t type = receive(one);
        const struct message_status *status = &one->client.message.status;
        const struct message_rounds *rounds = &one->client.message.rounds;
        const bool is_rounds = type == MESSAGE_rounds;
        assert_true(is_rounds || type == MESSAGE_status);
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%d ",
                 is_rounds                   ? "r"
                 : status->role == MEMBER_PS ? "p"
                                             : "w",
                 is_rounds ? rounds->worker : status->index);
    } while (!(one->client.frame.flags & FRAME_LAST));
    return text;
}

TEST(as_many_members_are_told_of_as_asked_for)
{
    struct config *config = serving_config();
    config->cluster.worker_hosts.count = 2;
    config->cluster.elastic = true;
    config->cluster.elastic_workers = 2;
    serving_begin(0);
    struct serving_session *one = come_as(5, MEMBER_OPERATOR, MEMBER_ANY_INDEX, true);
    assert_string_equal(frames_of(one, 0), "p0 ");
    assert_string_equal(frames_of(one, 1), "p0 w0 w1 ");
    assert_string_equal(frames_of(one, 2), "p0 w0 r0 w1 r1 ");
    come(3);
    assert_string_equal(frames_of(one, 1), "p0 w0 w1 w3 ");
    assert_string_equal(frames_of(one, 2), "p0 w0 r0 w1 r1 w3 r3 ");
    serving_end();
}

static struct message_rounds rounds_of(struct serving_session *one, int whose)
{
    struct message_rounds found = {.worker = -1};
    const struct message_get_status request = {.members = 2};
    send_request(one, MESSAGE_get_status, &request);
    assert_true(serving_serve(one));
    do {
        const bool is_it = receive(one) == MESSAGE_rounds && one->client.message.rounds.worker == whose;
        found = is_it ? one->client.message.rounds : found;
    } while (!(one->client.frame.flags & FRAME_LAST));
    return found;
}

TEST(how_a_worker_fares_is_told)
{
    serving_config();
    serving_begin(0);
    struct serving_session *one = come_as(5, MEMBER_OPERATOR, MEMBER_ANY_INDEX, true);
    struct job_worker *told = &serving.server.job.workers[1];
    told->applied = 5;
    told->stale = 2;
    struct message_rounds rounds = rounds_of(one, 1);
    assert_true(rounds.asked == 0 && rounds.counted == 0 && rounds.late == 0); /* of no round */
    told->asked = 1;
    told->missed = 3;
    told->cosine = 0.5f;
    told->norm = 2;
    serving.server.validations[1] = (struct validation){.examples = 20, .step = 7, .score = 0.25f, .is_worst = true};
    rounds = rounds_of(one, 1);
    assert_int_equal(rounds.asked, 1);
    assert_int_equal(rounds.counted, 5);
    assert_int_equal(rounds.late, 2);
    assert_int_equal(rounds.missed, 3);
    assert_true(rounds.cosine == 0.5f && rounds.norm == 2 && rounds.score == 0.25f);
    assert_int_equal(rounds.is_asked, 0);
    assert_int_equal(rounds.validated, 20);
    assert_int_equal(rounds.validated_step, 7);
    assert_int_equal(rounds.is_worst, 1);
    assert_int_equal(rounds_of(one, 0).is_worst, 0);
    serving_end();
}

static struct message_status status_of(struct serving_session *one, int whose)
{
    struct message_status found = {.index = -1};
    static char host[256];
    const struct message_get_status request = {.members = 1};
    send_request(one, MESSAGE_get_status, &request);
    assert_true(serving_serve(one));
    do {
        assert_int_equal(receive(one), MESSAGE_status);
        const struct message_status *status = &one->client.message.status;
        if (status->role == MEMBER_WORKER && status->index == whose) {
            found = *status;
            snprintf(host, sizeof host, "%s", status->host);
        }
    } while (!(one->client.frame.flags & FRAME_LAST));
    found.host = host;
    return found;
}

TEST(a_ps_says_what_the_job_waits_for)
{
    const struct message_get_status question = {.members = 0};
    serving_config();
    serving_begin(0);
    struct serving_session *one = come_as(5, MEMBER_OPERATOR, MEMBER_ANY_INDEX, true);
    assert_int_equal(ask(one, MESSAGE_get_status, &question, MESSAGE_status), 0);
    assert_non_null(strstr(one->client.message.status.message, "waiting for worker 0 (a:1) to initialise the model"));
    assert_int_equal(one->client.message.status.global_step, -1);
    serving_end();
}

/* As it reports, or else the address that it came from, or is listed with. */
TEST(a_worker_has_the_best_name_that_is_known)
{
    const struct message_heartbeat beat = {.state = STATE_TRAINING, .host = "south", .staleness = 9};
    serving_config();
    serving_begin(0);
    struct serving_session *one = come_as(5, MEMBER_OPERATOR, MEMBER_ANY_INDEX, true);
    assert_string_equal(status_of(one, 1).host, "b:1");
    come(0);
    worker = come(1);
    assert_string_equal(status_of(one, 1).host, "10.0.0.1:1");
    assert_int_equal(ask(worker, MESSAGE_heartbeat, &beat, MESSAGE_lease), 0);
    assert_string_equal(status_of(one, 1).host, "south");
    assert_int_equal(status_of(one, 1).staleness, 9); /* as reported, while it has pushed nothing here */
    struct job_worker *told = &serving.server.job.workers[1];
    told->applied = 1;
    told->staleness = 4;
    told->stale = 2;
    told->not_finite = 3;
    assert_int_equal(status_of(one, 1).staleness, 4);
    assert_int_equal(status_of(one, 1).dropped, 5);
    serving.now_s += 5e6;
    assert_int_equal(status_of(one, 1).silent_ms, UINT32_MAX);
    serving_end();
}

int main(void)
{
    return check_run(NULL, NULL);
}
