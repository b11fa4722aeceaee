/* The decisions of a rollout, whatever members report in whichever order: what must never happen. */
#include <math.h>

#include "ps/rollout/decide.h"
#include "tests/check.h"
#include "tests/random.h"

enum { PS = 2, WORKERS = 3 };
static const struct rollout_plan live = {.target = 2, .fallback = 1, .kind = ROLLOUT_LIVE, .healthy_s = 5},
                                 whole = {.target = 2, .fallback = 1, .kind = ROLLOUT_JOB, .healthy_s = 5};
static const struct rollout_vitals fine = {.global_step = 1000, .steps_per_s = 100, .loss = 0.5, .training = true};

static struct rollout rollout;
static char message[ROLLOUT_MESSAGE];

static void say(struct member who, enum rollout_phase phase, uint64_t version, double now_s)
{
    const struct rollout_report report = {
        .phase = phase, .version = version, .target = rollout.target, .ready = true, .message = "can't"};
    rollout_on_report(&rollout, who, &report, now_s);
}

/*
 * Whatever members report and however long it takes: nobody is told to switch before all that must have staged, and
 * once it is over, the state says which one version is in force. A worker that was off at the start, whether it has
 * returned or not, need not; all begin that way.
 */
TEST(anything_may_happen)
{
    struct test_random random = test_random_begin("anything_may_happen");
    double now_s = 0;
    assert_true(rollout_create(&rollout, PS, WORKERS, WORKERS));
    double heard_s[PS + WORKERS];
    for (int i = 0; i < PS + WORKERS; i++) {
        heard_s[i] = -ROLLOUT_IDLE_TIMEOUT_S;
    }
    int without = 0;
    for (int run = 0; run < 300; run++) {
        bool staged[PS + WORKERS] = {false};
        bool must[PS + WORKERS];
        for (int i = 0; i < PS + WORKERS; i++) {
            const struct member who = rollout.members[i].who;
            must[i] = who.role == MEMBER_PS || who.index == 0 || now_s - heard_s[i] < ROLLOUT_IDLE_TIMEOUT_S;
        }
        rollout.state = ROLLOUT_IDLE;
        assert_true(rollout_begin(&rollout, &live, &fine, now_s, message));
        for (int event = 0; event < 400 && rollout.state != ROLLOUT_IDLE; event++) {
            struct rollout_vitals vitals = fine;
            int who = test_random_below(&random, PS + WORKERS);
            enum rollout_phase phase = (enum rollout_phase)test_random_below(&random, PHASE_LATE + 1);
            now_s += (double)test_random_below(&random, 100) / 50.0;
            vitals.global_step += (int64_t)(now_s * 100);
            vitals.loss = test_random_below(&random, 40) == 0 ? NAN : 0.5;
            if (test_random_below(&random, 3) > 0) { /* usually what is asked for */
                static const enum rollout_phase asked[] = {PHASE_NONE, PHASE_STAGED, PHASE_SWITCHED, PHASE_BACK,
                                                           PHASE_RESTORED};
                phase = asked[rollout_order(&rollout, rollout.members[who].who)];
            }
            enum rollout_state before = rollout.state;
            staged[who] = before == ROLLOUT_STAGING ? phase == PHASE_STAGED : staged[who];
            heard_s[who] = now_s;
            say(rollout.members[who].who, phase, 1, now_s);
            rollout_tick(&rollout, &vitals, now_s);
            if (before == ROLLOUT_STAGING && rollout.state == ROLLOUT_SWITCHING) {
                for (int i = 0; i < PS + WORKERS; i++) {
                    const bool off = !must[i] && now_s - heard_s[i] >= ROLLOUT_IDLE_TIMEOUT_S;
                    assert_true(staged[i] || off);
                    without += off;
                }
            }
            assert_false(before >= ROLLOUT_GOING_BACK && rollout.state != ROLLOUT_IDLE &&
                         rollout.state < ROLLOUT_GOING_BACK);
            assert_false(before == ROLLOUT_STAGING && rollout.state == ROLLOUT_GOING_BACK);
            if (rollout.state == ROLLOUT_IDLE) {
                assert_int_equal(rollout.outcome, before == ROLLOUT_STAGING    ? OUTCOME_NOT_BEGUN
                                                  : before == ROLLOUT_WATCHING ? OUTCOME_DONE
                                                                               : OUTCOME_WENT_BACK);
            }
        }
        /* For a while only the leader is on, or all are. */
        now_s += 2 * ROLLOUT_IDLE_TIMEOUT_S;
        for (int i = 0; i < PS + WORKERS && test_random_below(&random, 2) > 0; i++) {
            heard_s[i] = now_s;
            say(rollout.members[i].who, PHASE_NONE, 1, now_s);
        }
    }
    rollout_destroy(&rollout);
    assert_true(without > 0);
}

/* A member that mostly does as it is told. */
static void obey(struct test_random *random, struct member who, uint64_t *version, double now_s)
{
    static const enum rollout_phase phases[] = {
        [ORDER_NOTHING] = PHASE_NONE, [ORDER_STAGE] = PHASE_STAGED,   [ORDER_TRY] = PHASE_TRIED,
        [ORDER_SAVE] = PHASE_SAVED,   [ORDER_RESTART] = PHASE_STAGED, [ORDER_RETURN] = PHASE_BACK};
    const enum rollout_order order = rollout_order(&rollout, who);
    enum rollout_phase phase = phases[order];
    *version = order == ORDER_RESTART ? rollout.target : order == ORDER_RETURN ? rollout.fallback : *version;
    if (test_random_below(random, 20) == 0) {
        phase = test_random_below(random, 3) > 0 ? PHASE_NONE : PHASE_FAILED;
    }
    rollout_delivered(&rollout, who);
    say(who, phase, *version, now_s);
}

/*
 * Whatever members report and however often the leader restarts: nobody is told to restart before all present members
 * have staged, nothing is aborted because one that was off is silent, and some rollouts succeed without it.
 */
TEST(anything_may_happen_to_a_job)
{
    enum { SERVERS = 2, LISTED = 4, ALL = SERVERS + LISTED };
    struct test_random random = test_random_begin("anything_may_happen_to_a_job");
    struct rollout_vitals vitals = fine;
    int without = 0;
    for (int run = 0; run < 300; run++) {
        bool off[ALL], staged[ALL] = {false};
        uint64_t version[ALL];
        double now_s = 100;
        rollout_destroy(&rollout);
        assert_true(rollout_create(&rollout, SERVERS, LISTED, LISTED));
        for (int i = 0; i < ALL; i++) {
            off[i] = i > SERVERS && test_random_below(&random, 2) == 0;
            version[i] = 1;
            say(rollout.members[i].who, PHASE_NONE, 1, off[i] ? now_s - ROLLOUT_IDLE_TIMEOUT_S : now_s);
        }
        assert_true(rollout_begin(&rollout, &whole, &vitals, now_s, message));
        for (int event = 0; event < 600 && rollout.state != ROLLOUT_IDLE; event++) {
            const enum rollout_state before = rollout.state;
            const int i = test_random_below(&random, ALL);
            now_s += (double)test_random_below(&random, 100) / 100.0;
            vitals.global_step += 10;
            vitals.loss = test_random_below(&random, 200) == 0 ? NAN : 0.5;
            if (before == ROLLOUT_SWITCHING &&
                test_random_below(&random, 10) == 0) { /* reports received so far are lost */
                struct rollout_plan plan = whole;
                plan.absent = rollout.absent;
                rollout_destroy(&rollout);
                assert_true(rollout_create(&rollout, SERVERS, LISTED, LISTED));
                rollout_resume(&rollout, before, &plan, 0.5, "", now_s);
            }
            if (!off[i] || test_random_below(&random, 20) == 0) {
                obey(&random, rollout.members[i].who, &version[i], now_s);
                staged[i] = staged[i] || rollout.members[i].phase == PHASE_STAGED;
            }
            rollout_tick(&rollout, &vitals, now_s);
            for (int k = 0; k < ALL && before == ROLLOUT_STAGING && rollout.state == ROLLOUT_TRYING; k++) {
                assert_true(staged[k] || off[k]);
            }
            const bool gives_up = before < ROLLOUT_GOING_BACK || before > ROLLOUT_RESTORING;
            if (gives_up && rollout.state != before && rollout.reason[0] != '\0') {
                unsigned worker = 0;
                char did = 0;
                const bool named = sscanf(rollout.reason, "worker %u%c", &worker, &did) == 2 && did == ' ';
                assert_false(named && off[SERVERS + worker]);
            }
        }
        for (int i = 0; i < ALL && rollout.state == ROLLOUT_IDLE && rollout.outcome == OUTCOME_DONE; i++) {
            without += off[i] && version[i] == 1;
        }
    }
    rollout_destroy(&rollout);
    assert_true(without > 0);
}

TEST(no_other_name_is_a_state)
{
    enum rollout_state none;
    assert_string_equal(rollout_state_name((enum rollout_state)(ROLLOUT_SAVING + 1)), "unknown");
    assert_false(rollout_state_by_name("unknown", &none));
}

int main(void)
{
    return check_run(NULL, NULL);
}
