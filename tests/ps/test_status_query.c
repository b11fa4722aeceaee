/* All members' state as the ps report it: whose reports count, and what is shown of members that report nothing. */
#include "tests/check.h"
#include "tests/ps/telling.h"

#include "ps/status.h"
#include "tests/worker/remote/story.h"

static struct status_query *query;
static const struct board_member *members;
static int count;

static void begin(void)
{
    struct error error;
    telling_begin("worker", "0");
    if (!status_query_create(&query, &telling.config, &error)) {
        fail_msg("%s", error.text);
    }
}

/* As a member. */
static void begin_as(enum member_role role, const char *job, const char *index)
{
    static struct identity identity;
    struct error error;
    telling_begin(job, index);
    identity_destroy(&identity);
    memset(&identity, 0, sizeof identity);
    if (!identity_create(&identity, &telling.config, (struct member){role, atoi(index)}, &error) ||
        !status_query_create_for(&query, &telling.config, &identity, &error)) {
        fail_msg("%s", error.text);
    }
    telling.identity.hello.incarnation = 7;
}

static void end(void)
{
    status_query_destroy(query);
    telling_end();
}

static void ask(void)
{
    members = status_query_ask(query, 60, &count);
}

enum { WORKER_0 = TELLING_PS, WORKER_1, BEYOND };

static void is(const struct board_member *member, const char *role, int task, const char *state)
{
    assert_string_equal(member->role, role);
    assert_int_equal(member->task, task);
    assert_string_equal(member->state, state);
}

/* --- What is shown of a message --- */

TEST(all_that_a_ps_says_is_shown)
{
    struct board_member member;
    const struct message_status said = {.role = MEMBER_WORKER,
                                        .index = 3,
                                        .state = STATE_TRAINING,
                                        .silent_ms = 250,
                                        .generation = 4,
                                        .global_step = 100,
                                        .local_step = 90,
                                        .steps_per_s = 8,
                                        .loss = 0.5f,
                                        .staleness = 2,
                                        .dropped = 11,
                                        .retries = 12,
                                        .bytes_in = 13,
                                        .bytes_out = 14,
                                        .fleet_version = 15,
                                        .digest = "abc",
                                        .program = "trainer 1",
                                        .host = "north",
                                        .device = "cpu",
                                        .message = "busy",
                                        .memory_bytes = 4096,
                                        .cpu_percent = 150,
                                        .gpu_percent = 25,
                                        .link = STATUS_LINK_MEMORY};
    (void)state;
    status_show(&member, &said, "d:1");
    is(&member, "worker", 3, "training");
    assert_string_equal(member.address, "d:1");
    assert_string_equal(member.host, "north");
    assert_string_equal(member.device, "cpu");
    assert_string_equal(member.program, "trainer 1");
    assert_string_equal(member.digest, "abc");
    assert_string_equal(member.message, "busy");
    assert_true(!member.is_missing && member.config_version >= 0);
    assert_int_equal(member.silent_ms, 250);
    assert_int_equal(member.generation, 4);
    assert_int_equal(member.global_step, 100);
    assert_int_equal(member.local_step, 90);
    assert_int_equal(member.staleness, 2);
    assert_int_equal(member.config_version, 15);
    assert_true(member.steps_per_s == 8 && member.loss == 0.5);
    assert_true(member.dropped == 11 && member.retries == 12 && member.bytes_in == 13 && member.bytes_out == 14);
    assert_true(member.memory_bytes == 4096 && member.cpu_percent == 150 && member.gpu_percent == 25);
    assert_string_equal(member.link, "shared memory");
    assert_int_equal(member.rounds.asked, 0);
}

TEST(what_nobody_knows_stays_unknown)
{
    struct board_member member;
    struct message_status said = {.role = MEMBER_PS,
                                  .state = STATE_ABSENT,
                                  .silent_ms = UINT32_MAX,
                                  .digest = "",
                                  .program = "",
                                  .host = "",
                                  .device = "",
                                  .message = ""};
    (void)state;
    status_show(&member, &said, "a:1");
    is(&member, "ps", 0, "absent");
    assert_true(member.is_missing && member.config_version < 0);
    assert_int_equal(member.silent_ms, -1);
    assert_true(isnan(member.memory_bytes));
    said.state = STATE_LOST;
    said.memory_bytes = 1;
    said.silent_ms = UINT32_MAX - 1;
    status_show(&member, &said, "a:1");
    assert_true(member.is_missing && member.memory_bytes == 1);
    assert_int_equal(member.silent_ms, UINT32_MAX - 1);
    said.state = STATE_DONE;
    status_show(&member, &said, "a:1");
    assert_false(member.is_missing);
}

TEST(rounds_are_shown_by_who_knows_of_them)
{
    struct board_member member;
    struct message_rounds said = {.worker = 1,
                                  .is_asked = 1,
                                  .asked = 1,
                                  .counted = 5,
                                  .late = 2,
                                  .missed = 3,
                                  .cosine = 0.5f,
                                  .norm = 2,
                                  .validated = 1,
                                  .validated_step = 70,
                                  .score = 0.25f,
                                  .is_worst = 1};
    const struct message_rounds nothing = {.worker = 1, .is_asked = 1, .counted = 9, .score = 9};
    (void)state;
    memset(&member, 0, sizeof member);
    status_show_rounds(&member, &nothing);
    assert_true(!member.rounds.is_asked && member.rounds.counted == 0 && member.own.score == 0);
    status_show_rounds(&member, &said);
    status_show_rounds(&member, &nothing);
    assert_true(member.rounds.is_asked && member.rounds.cosine == 0.5 && member.rounds.norm == 2);
    assert_int_equal(member.rounds.asked, 1);
    assert_int_equal(member.rounds.counted, 5);
    assert_int_equal(member.rounds.late, 2);
    assert_int_equal(member.rounds.missed, 3);
    assert_true(member.own.is_worst && member.own.score == 0.25);
    assert_int_equal(member.own.examples, 1);
    assert_int_equal(member.own.step, 70);
    said.is_asked = said.is_worst = 0;
    status_show_rounds(&member, &said);
    assert_true(!member.rounds.is_asked && !member.own.is_worst);
}

/* --- Whose report counts --- */

TEST(each_ps_speaks_for_itself_and_all_for_workers)
{
    begin();
    telling.says[0].statuses[0].global_step = 40;
    telling.says[1].statuses[0].global_step = 41;
    telling_of(0, MEMBER_PS, 1, STATE_FAILED, 0)->global_step = 99; /* no ps knows another */
    telling_of(0, MEMBER_WORKER, 0, STATE_TRAINING, 500)->global_step = 38;
    telling_of(0, MEMBER_WORKER, 1, STATE_TRAINING, 20)->global_step = 39;
    telling_of(1, MEMBER_WORKER, 0, STATE_TRAINING, 20)->global_step = 40;
    telling_of(1, MEMBER_WORKER, 1, STATE_TRAINING, 20)->global_step = 38;
    ask();
    assert_int_equal(count, 4);
    is(&members[0], "ps", 0, "ready");
    is(&members[1], "ps", 1, "ready");
    is(&members[WORKER_0], "worker", 0, "training");
    is(&members[WORKER_1], "worker", 1, "training");
    assert_string_equal(members[0].address, telling.members[0].host);
    assert_string_equal(members[1].address, telling.members[1].host);
    assert_string_equal(members[WORKER_1].address, "c:1");
    assert_int_equal(members[0].global_step, 40);
    assert_int_equal(members[1].global_step, 41);
    assert_int_equal(members[WORKER_0].global_step, 40); /* the freshest */
    assert_int_equal(members[WORKER_1].global_step, 39); /* the first of equals */
    telling_anew();
    telling_of(0, MEMBER_WORKER, 0, STATE_TRAINING, 1)->global_step = 49;
    telling_of(1, MEMBER_WORKER, 0, STATE_TRAINING, 0)->global_step = 50;
    ask();
    assert_int_equal(members[WORKER_0].global_step, 50); /* it is heard at this very moment */
    telling_anew();
    telling_of(0, MEMBER_WORKER, 0, STATE_TRAINING, 0)->global_step = 50;
    telling_of(1, MEMBER_WORKER, 0, STATE_TRAINING, 1)->global_step = 49;
    ask();
    assert_int_equal(members[WORKER_0].global_step, 50);
    telling_anew();
    telling_of(1, MEMBER_WORKER, 0, STATE_TRAINING, 4000)->global_step = 50;
    ask(); /* a ps that knows a member overrides one that has never seen it */
    assert_int_equal(members[WORKER_0].global_step, 50);
    is(&members[WORKER_1], "worker", 1, "absent");
    assert_true(members[WORKER_1].is_missing && members[WORKER_1].silent_ms == -1);
    assert_true(members[WORKER_1].global_step == -1 && members[WORKER_1].local_step == -1);
    assert_true(isnan(members[WORKER_1].loss) && isnan(members[WORKER_1].cpu_percent));
    assert_true(isnan(members[WORKER_1].gpu_percent));
    end();
}

TEST(who_waits_at_one_ps_stands_still)
{
    begin();
    telling_of(0, MEMBER_WORKER, 0, STATE_WAITING, 500);
    telling_of(0, MEMBER_WORKER, 1, STATE_TRAINING, 500);
    telling_of(1, MEMBER_WORKER, 0, STATE_TRAINING, 20)->global_step = 7;
    telling_of(1, MEMBER_WORKER, 1, STATE_WAITING, 900);
    ask();
    is(&members[WORKER_0], "worker", 0, "waiting");
    assert_int_equal(members[WORKER_0].global_step, 7);
    is(&members[WORKER_1], "worker", 1, "waiting");
    assert_int_equal(members[WORKER_1].silent_ms, 500);
    end();
}

TEST(ps_0_knows_versions_best)
{
    begin();
    struct message_status *first = telling_of(0, MEMBER_WORKER, 0, STATE_TRAINING, 500);
    struct message_status *second = telling_of(1, MEMBER_WORKER, 0, STATE_TRAINING, 20);
    struct message_status *other = telling_of(1, MEMBER_WORKER, 1, STATE_TRAINING, 20);
    telling_of(0, MEMBER_WORKER, 1, STATE_ABSENT, UINT32_MAX);
    first->digest = "beef";
    first->fleet_version = 9;
    second->fleet_version = other->fleet_version = 8;
    other->digest = "cafe";
    ask();
    assert_int_equal(members[WORKER_0].silent_ms, 20);
    assert_int_equal(members[WORKER_0].config_version, 9);
    assert_string_equal(members[WORKER_0].digest, "beef");
    assert_true(members[WORKER_0].config_version >= 0);
    assert_int_equal(members[WORKER_1].config_version, 8); /* ps 0 has never seen it */
    assert_string_equal(members[WORKER_1].digest, "cafe");
    end();
}

TEST(rounds_are_told_by_who_decides_on_them)
{
    begin();
    for (int i = 0; i < TELLING_PS; i++) {
        telling_of(i, MEMBER_WORKER, 0, STATE_TRAINING, i == 0 ? 500 : 20);
        telling_of(i, MEMBER_WORKER, 1, STATE_TRAINING, i == 0 ? 500 : 20);
        telling_rounds(i, 0, i == 0 ? 1 : 0)->validated = i == 0 ? 1 : 0;
        telling_rounds(i, 1, i == 1 ? 4 : 0);
    }
    ask();
    assert_int_equal(members[WORKER_0].rounds.asked, 1);
    assert_int_equal(members[WORKER_0].own.examples, 1);
    assert_int_equal(members[WORKER_1].rounds.asked, 4);
    assert_int_equal(members[WORKER_0].silent_ms, 20);
    assert_int_equal(atomic_load(&telling.says[0].members), 2);
    end();
}

TEST(workers_that_joined_are_shown_behind_the_list)
{
    begin();
    telling_of(0, MEMBER_WORKER, 5, STATE_TRAINING, 20);
    telling_of(1, MEMBER_WORKER, 3, STATE_TRAINING, 20);
    telling_rounds(1, 3, 6);
    ask();
    assert_int_equal(count, 6);
    is(&members[BEYOND], "worker", 3, "training");
    is(&members[BEYOND + 1], "worker", 5, "training");
    assert_int_equal(members[BEYOND].rounds.asked, 6);
    telling_anew();
    ask(); /* they left */
    assert_int_equal(count, 4);
    end();
}

TEST(members_that_can_not_be_are_passed_over)
{
    begin();
    telling_of(0, MEMBER_PS, TELLING_PS, STATE_READY, 0);
    telling_of(0, MEMBER_PS, -1, STATE_READY, 0);
    telling_of(0, MEMBER_WORKER, -1, STATE_TRAINING, 0);
    telling_of(0, MEMBER_WORKER, CONFIG_MAX_WORKERS, STATE_TRAINING, 0);
    telling_of(0, MEMBER_OPERATOR, 0, STATE_TRAINING, 0);
    telling_rounds(0, -1, 1);
    telling_rounds(0, CONFIG_MAX_WORKERS, 1);
    ask();
    assert_int_equal(count, 4);
    is(&members[0], "ps", 0, "ready");
    is(&members[1], "ps", 1, "ready");
    is(&members[WORKER_0], "worker", 0, "absent");
    is(&members[WORKER_1], "worker", 1, "absent");
    end();
}

/* --- Who asks, and how --- */

TEST(an_operator_needs_no_config_of_the_job)
{
    begin();
    ask();
    const struct peer *who = &telling.members[1].peer;
    assert_int_equal(who->member.role, MEMBER_OPERATOR);
    assert_int_equal(who->member.index, MEMBER_ANY_INDEX);
    assert_string_equal(who->digest, "");
    ask();
    ask();
    assert_int_equal(atomic_load(&telling.says[0].asked), 3);
    assert_int_equal(atomic_load(&telling.members[0].connections), 1); /* kept */
    end();
}

TEST(a_worker_asks_as_a_guest)
{
    begin_as(MEMBER_WORKER, "worker", "1");
    telling_of(1, MEMBER_WORKER, 1, STATE_TRAINING, 20);
    ask();
    const struct peer *who = &telling.members[0].peer;
    assert_int_equal(who->member.role, MEMBER_WORKER);
    assert_int_equal(who->member.index, 1);
    assert_string_equal(who->digest, "");
    assert_int_equal(count, 4);
    is(&members[WORKER_1], "worker", 1, "training");
    end();
}

/* A ps knows the workers, and itself. */
TEST(a_ps_asks_the_others_about_themselves)
{
    begin_as(MEMBER_PS, "ps", "1");
    telling_of(0, MEMBER_WORKER, 0, STATE_TRAINING, 20);
    telling_rounds(0, 0, 1);
    ask();
    assert_int_equal(count, 2);
    is(&members[0], "ps", 0, "ready");
    is(&members[1], "ps", 1, "absent");
    assert_int_equal(atomic_load(&telling.says[0].members), 0);
    assert_int_equal(atomic_load(&telling.says[1].asked), 0);
    end();
}

/* --- Members that don't answer --- */

TEST(one_that_does_not_answer_is_absent_and_says_why)
{
    begin();
    ask();
    is(&members[1], "ps", 1, "ready");
    telling_of(0, MEMBER_WORKER, 0, STATE_TRAINING, 20);
    telling_of(1, MEMBER_WORKER, 1, STATE_TRAINING, 20);
    telling.says[1].odd = MESSAGE_pong;
    telling_rounds(1, 0, 1);
    ask();
    is(&members[0], "ps", 0, "ready");
    is(&members[1], "ps", 1, "absent");
    assert_true(members[1].is_missing);
    assert_non_null(strstr(members[1].message, "answered get_status with pong"));
    is(&members[WORKER_0], "worker", 0, "training");
    telling.says[1].odd = 0;
    telling.says[1].misnumbers = true;
    ask(); /* on another connection, as after each of these */
    is(&members[1], "ps", 1, "absent");
    assert_non_null(strstr(members[1].message, "answer to a request that was not made"));
    telling.says[1].misnumbers = false;
    ask();
    is(&members[1], "ps", 1, "ready");
    assert_string_equal(members[1].message, "");
    assert_int_equal(atomic_load(&telling.members[1].connections), 3);
    assert_int_equal(atomic_load(&telling.members[0].connections), 1);
    atomic_store(&telling.members[1].absent, true);
    atomic_store(&telling.members[1].cut, true);
    AWAIT(!atomic_load(&telling.members[1].cut));
    for (int i = 0; i < 2; i++) { /* it is tried each time, however often it has failed */
        ask();
        is(&members[1], "ps", 1, "absent");
        assert_string_not_equal(members[1].message, "");
    }
    atomic_store(&telling.members[1].absent, false);
    ask();
    is(&members[1], "ps", 1, "ready");
    end();
}

TEST(a_refusal_is_not_for_good_to_a_member)
{
    begin_as(MEMBER_WORKER, "worker", "0");
    atomic_store(&telling.members[1].refusal, REFUSAL_BUSY);
    ask();
    is(&members[1], "ps", 1, "absent");
    assert_non_null(strstr(members[1].message, "as the test wants"));
    atomic_store(&telling.members[1].refusal, 0);
    ask();
    is(&members[1], "ps", 1, "ready");
    end();
}

TEST(silence_is_waited_for_as_long_as_asked)
{
    begin();
    telling.says[0].is_silent = telling.says[1].is_silent = true;
    const double began_s = clock_monotonic_s();
    members = status_query_ask(query, 0.5, &count);
    const double took_s = clock_monotonic_s() - began_s;
    assert_true(took_s >= 0.5 && took_s < 8);
    is(&members[0], "ps", 0, "absent");
    is(&members[1], "ps", 1, "absent");
    assert_int_equal(count, 4);
    end();
}

static void interrupt(void)
{
    status_query_interrupt(query);
}

TEST(an_interrupted_one_waits_no_more)
{
    begin();
    telling.says[0].is_silent = telling.says[1].is_silent = true;
    telling.says[0].when_asked = interrupt;
    const double began_s = clock_monotonic_s();
    members = status_query_ask(query, 60, &count);
    members = status_query_ask(query, 60, &count); /* from now on */
    assert_true(clock_monotonic_s() - began_s < 30);
    is(&members[1], "ps", 1, "absent");
    end();
}

TEST(an_address_that_is_none_is_named)
{
    struct error error;
    (void)state;
    telling_begin("worker", "0");
    char *kept = telling.config.cluster.ps_hosts.items[1];
    telling.config.cluster.ps_hosts.items[1] = (char *)(uintptr_t) "nowhere at all";
    assert_false(status_query_create(&query, &telling.config, &error));
    assert_non_null(strstr(error.text, "cluster.ps_hosts: nowhere at all"));
    telling.config.cluster.ps_hosts.items[1] = kept;
    telling_end();
    status_query_destroy(NULL);
}

int main(void)
{
    return check_run(NULL, NULL);
}
