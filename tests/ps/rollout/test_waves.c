/* Which worker restarts with which wave, how many a budget spares, and how speeds are compared. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>

#include "ps/rollout/decide.h"

enum { PS = 2, WORKERS = 10 };

static struct rollout rollout;
static struct rollout_member *worker; /* the first */

static int enter(void **state)
{
    (void)state;
    if (!rollout_create(&rollout, PS, WORKERS, WORKERS)) {
        return 1;
    }
    worker = &rollout.members[PS];
    rollout.state = ROLLOUT_SWITCHING;
    rollout.kind = ROLLOUT_LOCAL;
    rollout.brings_program = true;
    return 0;
}

static int leave(void **state)
{
    (void)state;
    rollout_destroy(&rollout);
    return 0;
}

/* --- The order --- */

static int place(int index)
{
    return waves_place(&rollout, (struct member){MEMBER_WORKER, index});
}

static void workers_go_by_number_and_every_ps_last(void **state)
{
    (void)state;
    assert_int_equal(waves_workers(&rollout), WORKERS);
    for (int i = 0; i < WORKERS; i++) {
        assert_int_equal(place(i), WORKERS - 1 - i);
    }
    assert_int_equal(waves_place(&rollout, (struct member){MEMBER_PS, 0}), WORKERS);
    assert_int_equal(waves_place(&rollout, (struct member){MEMBER_PS, 1}), WORKERS + 1);
    worker[4].takes_part = false;
    assert_int_equal(waves_workers(&rollout), WORKERS - 1);
    assert_int_equal(place(9), 0);
    assert_int_equal(place(3), 5);
    assert_int_equal(waves_place(&rollout, (struct member){MEMBER_PS, 0}), WORKERS - 1);
}

static void who_would_be_missed_goes_first_and_who_came_late_last(void **state)
{
    (void)state;
    worker[9].awaited = worker[8].awaited = worker[7].awaited = false;
    worker[9].is_late = true;
    assert_int_equal(place(6), 0);
    assert_int_equal(place(0), 6);
    assert_int_equal(place(8), 7);
    assert_int_equal(place(7), 8);
    assert_int_equal(place(9), 9);
    rollout.brings_program = false; /* of a config alone nobody is a canary for others of its kind */
    assert_int_equal(place(9), 0);
    assert_int_equal(place(8), 1);
}

static void canaries_go_before_all_others(void **state)
{
    (void)state;
    worker[0].architecture = worker[1].architecture = 1;
    assert_int_equal(place(9), 0);
    assert_int_equal(place(1), 1);
    assert_int_equal(place(8), 2);
    assert_int_equal(place(0), 9);
    assert_int_equal(waves_next(&rollout), 2); /* of each kind one, and no more */
    worker[5].architecture = ROLLOUT_ARCHITECTURES - 1;
    assert_int_equal(waves_next(&rollout), 3);
    worker[5].takes_part = false;
    assert_int_equal(waves_next(&rollout), 2);
    rollout.brings_program = false;
    assert_int_equal(waves_next(&rollout), 1);
    assert_int_equal(place(1), 7);
}

static void waves_double_where_nothing_is_planned(void **state)
{
    static const int program[] = {1, 3, 7, 10, 21}, config[] = {1, 3, 7, 15};
    (void)state;
    for (int i = 0; i < 5; i++) {
        assert_int_equal(waves_next(&rollout), program[i]);
        rollout.wave = program[i];
    }
    rollout.brings_program = false;
    rollout.wave = 0;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(waves_next(&rollout), config[i]);
        rollout.wave = config[i];
    }
}

static void waves_are_planned_by_numbers_and_shares(void **state)
{
    static const int waves[] = {1, 2, 4, 5, 10};
    (void)state;
    rollout.waves = (struct rollout_waves){
        .count = 5, .items = {1, 2, ROLLOUT_PERCENT | 31, ROLLOUT_PERCENT | 50, ROLLOUT_PERCENT | 50}};
    for (int i = 0; i < 5; i++) {
        assert_int_equal(waves_next(&rollout), waves[i]);
        rollout.wave = waves[i];
    }
    rollout.wave = 0;
    rollout.waves = (struct rollout_waves){.count = 1, .items = {1000}}; /* more than there are */
    assert_int_equal(waves_next(&rollout), WORKERS);
}

/* Two of three are two thirds: 67% are a third one begun. And a table that is full ends, too. */
static void a_share_is_rounded_up(void **state)
{
    (void)state;
    rollout.waves = (struct rollout_waves){.count = ROLLOUT_MAX_WAVES};
    for (int i = 0; i < ROLLOUT_MAX_WAVES; i++) {
        rollout.waves.items[i] = 1;
    }
    rollout.wave = 1;
    assert_int_equal(waves_next(&rollout), WORKERS);
    rollout.wave = 0;
    for (int i = 3; i < WORKERS; i++) {
        worker[i].takes_part = false;
    }
    rollout.waves = (struct rollout_waves){.count = 1, .items = {ROLLOUT_PERCENT | 67}};
    assert_int_equal(waves_next(&rollout), 3);
    rollout.waves.items[0] = ROLLOUT_PERCENT | 66;
    assert_int_equal(waves_next(&rollout), 2);
}

static void a_budget_bounds_each_wave_but_the_first(void **state)
{
    (void)state;
    rollout.waves = (struct rollout_waves){.count = 2, .items = {3, ROLLOUT_PERCENT | 100}, .budget = 2};
    assert_int_equal(waves_next(&rollout), 3);
    rollout.wave = 3;
    assert_int_equal(waves_next(&rollout), 5);
    rollout.waves.budget = ROLLOUT_PERCENT | 31; /* 3.1 of 10 are 4 */
    assert_int_equal(waves_next(&rollout), 7);
    worker[0].is_out = worker[1].is_out = true;
    assert_int_equal(waves_next(&rollout), 5);
    worker[2].is_out = worker[3].is_out = worker[4].is_out = true; /* one at a time goes on all the same */
    assert_int_equal(waves_next(&rollout), 4);
    rollout.wave = 9;
    assert_int_equal(waves_next(&rollout), 10);
    worker[0].is_out = worker[1].is_out = worker[2].is_out = worker[3].is_out = worker[4].is_out = false;
    rollout.wave = 3;
    rollout.waves.budget = 1;
    assert_int_equal(waves_next(&rollout), 4);
}

/* --- Who can't follow --- */

static void only_workers_of_later_waves_are_borne(void **state)
{
    (void)state;
    const uint64_t changes = rollout.changes;
    rollout.waves.budget = 2;
    strcpy(rollout.reason, "it failed");
    assert_false(waves_within_budget(&rollout, &worker[0])); /* it saves the job */
    assert_false(waves_within_budget(&rollout, &rollout.members[1]));
    rollout.is_first_wave = true;
    assert_false(waves_within_budget(&rollout, &worker[9]));
    rollout.is_first_wave = false;
    rollout.ps_turn = PS_WAITS_FOR_SAVE;
    assert_false(waves_within_budget(&rollout, &worker[9]));
    rollout.ps_turn = PS_STAYS;
    rollout.state = ROLLOUT_WATCHING;
    assert_false(waves_within_budget(&rollout, &worker[9]));
    rollout.state = ROLLOUT_SWITCHING;
    rollout.kind = ROLLOUT_JOB;
    assert_false(waves_within_budget(&rollout, &worker[9]));
    rollout.kind = ROLLOUT_LOCAL;
    rollout.waves.budget = 0;
    assert_false(waves_within_budget(&rollout, &worker[9]));
    rollout.waves.budget = 2;
    assert_false(rollout.is_paused);
    assert_int_equal(rollout.changes, changes);
    assert_true(waves_within_budget(&rollout, &worker[9]));
    assert_true(rollout.is_paused && worker[9].is_out);
    assert_string_equal(rollout.pause, "it failed");
    assert_int_equal(rollout.changes, changes + 1);
    assert_true(waves_within_budget(&rollout, &worker[9])); /* the same again costs no more */
    assert_int_equal(rollout.changes, changes + 1);
    worker[8].who.index = ROLLOUT_MAX_LISTED; /* what is beyond the list can't be noted as off */
    assert_false(waves_within_budget(&rollout, &worker[8]));
    worker[8].who.index = ROLLOUT_MAX_LISTED - 1;
    assert_true(waves_within_budget(&rollout, &worker[8]));
    assert_false(waves_within_budget(&rollout, &worker[7]));
    assert_false(worker[7].is_out);
}

static void a_budget_of_one_bears_one(void **state)
{
    (void)state;
    rollout.waves.budget = 1;
    assert_true(waves_within_budget(&rollout, &worker[9]));
    assert_false(waves_within_budget(&rollout, &worker[8]));
}

static void a_pause_ends_once_nobody_is_out(void **state)
{
    (void)state;
    assert_false(waves_is_paused(&rollout));
    rollout.is_paused = true;
    worker[3].is_out = true;
    const uint64_t changes = rollout.changes;
    assert_true(waves_is_paused(&rollout));
    assert_int_equal(rollout.changes, changes);
    worker[3].is_out = false;
    assert_false(waves_is_paused(&rollout));
    assert_false(rollout.is_paused);
    assert_int_equal(rollout.changes, changes + 1);
    assert_false(waves_is_paused(&rollout));
    assert_int_equal(rollout.changes, changes + 1);
    worker[3].is_out = true; /* one that takes no part holds up nobody */
    worker[3].takes_part = false;
    assert_false(waves_is_paused(&rollout));
}

static void who_is_left_behind_is_off_and_frees_its_place(void **state)
{
    (void)state;
    rollout.wave = 4;
    worker[9].is_out = worker[2].is_out = true; /* places 0 and 7 */
    worker[1].is_out = true;
    worker[1].takes_part = false; /* it has left by itself */
    waves_exclude_failed(&rollout);
    assert_int_equal(rollout.wave, 3);
    assert_false(worker[9].takes_part || worker[9].awaited || worker[2].takes_part || worker[2].awaited);
    assert_true(worker[1].awaited && worker[3].takes_part);
    assert_true(rollout_is_absent(&rollout.absent, worker[9].who));
    assert_true(rollout_is_absent(&rollout.absent, worker[2].who));
    assert_false(rollout_is_absent(&rollout.absent, worker[1].who));
    assert_int_equal(place(8), 0);
}

/* Who was still to come leaves no place, not even the one that is next. */
static void only_a_place_in_the_wave_is_freed(void **state)
{
    (void)state;
    rollout.wave = 4;
    worker[9].is_out = worker[8].is_out = worker[5].is_out = true; /* places 0, 1 and 4 */
    waves_exclude_failed(&rollout);
    assert_int_equal(rollout.wave, 2);
}

static void who_is_left_behind_is_noted_by_its_number(void **state)
{
    static const int numbers[] = {1, 7, 8, 17, 26, ROLLOUT_MAX_LISTED - 1};
    (void)state;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        rollout.absent = (struct rollout_absent){{0}};
        worker[5].who.index = numbers[i];
        worker[5].is_out = worker[5].takes_part = true;
        waves_exclude_failed(&rollout);
        for (int k = 0; k < ROLLOUT_MAX_LISTED; k++) {
            assert_int_equal(rollout_is_absent(&rollout.absent, (struct member){MEMBER_WORKER, k}), k == numbers[i]);
        }
    }
}

/* --- How fast --- */

static void hear(int index, int64_t steps, bool of_target, double now_s)
{
    worker[index].steps = steps;
    worker[index].runs_target = of_target;
    pace_on_report(&rollout, &worker[index], now_s);
}

static void a_pace_is_known_after_ten_steps_and_a_second(void **state)
{
    const struct rollout_pace *pace = &worker[9].pace;
    (void)state;
    rollout.state = ROLLOUT_IDLE;
    hear(9, 0, false, 0);
    hear(9, 0, false, 1); /* it counts from the last time on that it had made none */
    assert_true(pace->rate < 0 && pace->since_s == 1 && pace->steps == 0);
    hear(9, 20, false, 1.75);
    assert_true(pace->rate < 0);
    hear(9, 20, false, 2);
    assert_true(pace->rate == 20 && pace->before == 20 && pace->seconds == 1);
    hear(9, 29, false, 4); /* nine are too few */
    assert_true(pace->rate == 20 && pace->since_s == 2);
    hear(9, 30, false, 4);
    assert_true(pace->rate == 5 && pace->seconds == 2);
    assert_true(fabs(pace->before - (0.3 * 5 + 0.7 * 20)) < 1e-12);
    hear(9, 31, false, 18.75); /* or 15 seconds, however few they are */
    assert_true(pace->since_s == 4);
    hear(9, 32, false, 19);
    assert_true(pace->since_s == 19 && fabs(pace->rate - 2.0 / 15) < 1e-12);
    hear(9, 3, false, 20); /* another process */
    assert_true(pace->rate < 0 && pace->since_s == 20 && pace->steps == 3 && pace->before > 0);
    rollout.state = ROLLOUT_SWITCHING; /* what is measured now is compared with that, and does not change it */
    const double before = pace->before;
    hear(9, 3 + 1000, false, 30);
    assert_true(pace->rate == 100 && pace->before == before);
    hear(9, 3 + 1001, true, 31); /* another program */
    assert_true(pace->rate < 0 && pace->of_target);
}

static void what_was_made_before_the_first_report_does_not_count(void **state)
{
    const struct rollout_pace *pace = &worker[8].pace;
    (void)state;
    hear(8, 1000, false, 5);
    assert_true(pace->rate < 0 && pace->since_s == 5 && pace->steps == 1000);
}

/* Just as fast as it must be is fast enough. */
static void a_pace_at_the_bound_is_known_at_once(void **state)
{
    struct rollout_pace *pace = &worker[9].pace;
    (void)state;
    rollout.waves.least_speed = 50;
    hear(9, 1, true, 0);
    pace->before = 20;
    hear(9, 20, true, 2); /* 19 of at least 20 */
    assert_true(pace->rate < 0);
    hear(9, 21, true, 2);
    assert_true(pace->rate == 10);
}

/* No bound is set to the old program, nor to what nothing is known of. */
static void a_pace_without_a_bound_is_known_as_soon(void **state)
{
    static const double before[] = {20, -1, 0, 0.5};
    static const double rates[] = {9.5, 9.5, 9.5, -1}; /* a step is expected in the last case: it takes longer */
    (void)state;
    rollout.waves.least_speed = 50;
    for (int i = 0; i < 4; i++) {
        worker[i].pace.since_s = -1;
        hear(i, 1, false, 0);
        worker[i].pace.before = before[i];
        hear(i, 20, false, 2);
        assert_true(fabs(worker[i].pace.rate - rates[i]) < 1e-12);
    }
}

/* Not that its pace is unknown. */
static void who_makes_no_step_has_a_pace(void **state)
{
    (void)state;
    hear(9, 5, true, 0);
    hear(9, 5, true, 14.75);
    assert_true(worker[9].pace.rate < 0);
    hear(9, 5, true, 15);
    assert_true(worker[9].pace.rate >= 0 && worker[9].pace.rate <= 0 && worker[9].pace.seconds == 15);
}

/* A former pace counts, however low. */
static void a_low_pace_is_averaged_too(void **state)
{
    static const double before[] = {0.5, 0};
    (void)state;
    rollout.state = ROLLOUT_IDLE;
    for (int i = 0; i < 2; i++) {
        worker[i].pace.since_s = -1;
        hear(i, 1, false, 0);
        worker[i].pace.before = before[i];
        hear(i, 21, false, 2);
        assert_true(fabs(worker[i].pace.before - (0.3 * 10 + 0.7 * before[i])) < 1e-12);
    }
}

/* A canary whose pace was 100 a second, and its verdict. */
static enum pace_verdict verdict(double rate, double seconds, char why[256])
{
    const struct rollout_vitals vitals = {.in_step = true};
    why[0] = '\0';
    worker[9].runs_target = true;
    worker[9].pace =
        (struct rollout_pace){.since_s = 50, .of_target = true, .rate = rate, .before = 100, .seconds = seconds};
    return pace_of_canaries(&rollout, &vitals, why);
}

static void a_canary_is_slow_beyond_chance_alone(void **state)
{
    char why[256];
    (void)state;
    rollout.waves.least_speed = 50;
    rollout.slow_since_s = -1;
    assert_int_equal(verdict(100, 1, why), PACE_FINE);
    assert_int_equal(verdict(-1, 1, why), PACE_UNKNOWN);
    /* Of 50 due steps in a second 34 + 2 + 2 sqrt(35) = 47.8 are too few, 36 + 2 + 2 sqrt(37) = 50.2 not. */
    assert_int_equal(verdict(36, 1, why), PACE_FINE);
    assert_string_equal(why, "");
    assert_int_equal(verdict(0.5, 100, why), PACE_SLOW);
    assert_int_equal(verdict(34, 1, why), PACE_SLOW);
    assert_string_equal(why, "worker 9 makes 34 steps/s in the new program, but made 100 before: less than 50%");
    rollout.slow_since_s = 40; /* measured again since */
    assert_int_equal(verdict(34, 1, why), PACE_STILL_SLOW);
    rollout.slow_since_s = 50;
    assert_int_equal(verdict(34, 1, why), PACE_SLOW);
    rollout.slow_since_s = 0;
    assert_int_equal(verdict(34, 1, why), PACE_STILL_SLOW);
    rollout.waits = true; /* nobody makes steps then */
    assert_int_equal(verdict(34, 1, why), PACE_FINE);
    rollout.waits = false;
    rollout.waves.least_speed = 0;
    assert_int_equal(verdict(1, 1, why), PACE_FINE);
    rollout.waves.least_speed = 50;
    assert_int_equal(verdict(34, 1, why), PACE_STILL_SLOW);
    worker[9].pace.before = 0; /* what it made before is not known */
    const struct rollout_vitals vitals = {.in_step = true};
    assert_int_equal(pace_of_canaries(&rollout, &vitals, why), PACE_FINE);
    worker[9].pace.rate = -1; /* and nothing is waited for */
    assert_int_equal(pace_of_canaries(&rollout, &vitals, why), PACE_FINE);
}

static void a_canary_is_judged_by_what_it_does_now(void **state)
{
    const struct rollout_vitals vitals = {.in_step = true};
    char why[256];
    (void)state;
    rollout.slow_since_s = -1;
    rollout.waves.least_speed = 0; /* no speed is demanded: nor is one waited for */
    assert_int_equal(verdict(-1, 1, why), PACE_FINE);
    rollout.waves.least_speed = 50;
    /* Of 50 due steps 35 + 2 + 2 sqrt(36) = 49 are too few. */
    assert_int_equal(verdict(35, 1, why), PACE_SLOW);
    assert_int_equal(verdict(0, 1, why), PACE_SLOW); /* it makes none */
    worker[9].pace.of_target = false;                /* it is of the old program */
    assert_int_equal(pace_of_canaries(&rollout, &vitals, why), PACE_UNKNOWN);
    worker[9].pace = (struct rollout_pace){.since_s = 50, .of_target = true, .rate = 0, .before = 0.5, .seconds = 100};
    assert_int_equal(pace_of_canaries(&rollout, &vitals, why), PACE_SLOW); /* as low as it was before */
}

/* Not of who takes no part, of whom nothing is known yet; of who makes a step now and then, too. */
static void only_others_that_are_there_excuse_it(void **state)
{
    char why[256];
    const struct rollout_vitals vitals = {.in_step = false};
    (void)state;
    rollout.waves.least_speed = 50;
    rollout.slow_since_s = -1;
    verdict(34, 1, why);
    worker[8].pace = (struct rollout_pace){.rate = 0, .before = 100};
    worker[8].takes_part = false;
    assert_int_equal(pace_of_canaries(&rollout, &vitals, why), PACE_SLOW);
    worker[8].takes_part = true;
    assert_int_equal(pace_of_canaries(&rollout, &vitals, why), PACE_FINE);
    worker[8].pace.rate = -1;
    worker[7].pace = (struct rollout_pace){.rate = 95, .before = 100};
    verdict(34, 1, why); /* 47.8 may have been due, and 47.5 are */
    assert_int_equal(pace_of_canaries(&rollout, &vitals, why), PACE_FINE);
    verdict(33, 1, why);
    assert_int_equal(pace_of_canaries(&rollout, &vitals, why), PACE_SLOW);
    worker[7].pace = (struct rollout_pace){.rate = 0, .before = 0.5};
    assert_int_equal(pace_of_canaries(&rollout, &vitals, why), PACE_FINE);
}

static void others_that_are_slower_too_excuse_it(void **state)
{
    char why[256];
    const struct rollout_vitals vitals = {.in_step = false};
    (void)state;
    rollout.waves.least_speed = 50;
    rollout.slow_since_s = -1;
    verdict(34, 1, why);
    assert_int_equal(pace_of_canaries(&rollout, &vitals, why), PACE_SLOW); /* of others nothing is known */
    worker[8].pace = (struct rollout_pace){.rate = 60, .before = 100};
    worker[7].pace = (struct rollout_pace){.rate = 0, .before = 100};
    assert_int_equal(pace_of_canaries(&rollout, &vitals, why), PACE_FINE); /* 30%, of which half is 15 */
    worker[7].pace.rate = 300; /* others that are faster prove nothing against it */
    assert_int_equal(verdict(36, 1, why), PACE_FINE);
    assert_int_equal(pace_of_canaries(&rollout, &vitals, why), PACE_FINE);
    worker[8].pace.rate = 100;
    worker[7].pace.rate = 0; /* half as fast together, of which half is 25: 15 may have been 25 */
    verdict(15, 1, why);
    assert_int_equal(pace_of_canaries(&rollout, &vitals, why), PACE_FINE);
    verdict(14, 1, why);
    assert_int_equal(pace_of_canaries(&rollout, &vitals, why), PACE_SLOW);
    worker[8].pace = (struct rollout_pace){.rate = 50, .before = 100};
    worker[7].pace = (struct rollout_pace){.rate = 50, .before = 0}; /* of which nothing is known */
    verdict(15, 1, why);
    assert_int_equal(pace_of_canaries(&rollout, &vitals, why), PACE_FINE);
    worker[8].runs_target = worker[7].runs_target = true; /* they run it, too */
    worker[8].pace.rate = worker[7].pace.rate = 1;
    verdict(34, 1, why);
    assert_int_equal(pace_of_canaries(&rollout, &vitals, why), PACE_SLOW);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, enter, leave)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(workers_go_by_number_and_every_ps_last),
        TEST(who_would_be_missed_goes_first_and_who_came_late_last),
        TEST(canaries_go_before_all_others),
        TEST(waves_double_where_nothing_is_planned),
        TEST(waves_are_planned_by_numbers_and_shares),
        TEST(a_budget_bounds_each_wave_but_the_first),
        TEST(a_share_is_rounded_up),
        TEST(only_workers_of_later_waves_are_borne),
        TEST(a_pause_ends_once_nobody_is_out),
        TEST(a_budget_of_one_bears_one),
        TEST(who_is_left_behind_is_off_and_frees_its_place),
        TEST(who_is_left_behind_is_noted_by_its_number),
        TEST(only_a_place_in_the_wave_is_freed),
        TEST(a_pace_is_known_after_ten_steps_and_a_second),
        TEST(what_was_made_before_the_first_report_does_not_count),
        TEST(a_pace_at_the_bound_is_known_at_once),
        TEST(a_low_pace_is_averaged_too),
        TEST(who_makes_no_step_has_a_pace),
        TEST(a_pace_without_a_bound_is_known_as_soon),
        TEST(a_canary_is_slow_beyond_chance_alone),
        TEST(others_that_are_slower_too_excuse_it),
        TEST(only_others_that_are_there_excuse_it),
        TEST(a_canary_is_judged_by_what_it_does_now),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
