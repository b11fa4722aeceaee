/* How fast canaries were before a rollout and are in its program: numbers that no scenario could count out. */
#include <math.h>

#include "ps/rollout/decide.h"
#include "tests/check.h"

enum { PS = 2, WORKERS = 10 };

static struct rollout rollout;
static struct rollout_member *worker; /* the first */

static int enter(void **state)
{
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
    rollout_destroy(&rollout);
    return 0;
}

static void hear(int index, int64_t steps, bool of_target, double now_s)
{
    worker[index].steps = steps;
    worker[index].runs_target = of_target;
    pace_on_report(&rollout, &worker[index], now_s);
}

TEST_WITH(a_pace_is_known_after_ten_steps_and_a_second, enter, leave)
{
    const struct rollout_pace *pace = &worker[9].pace;
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

TEST_WITH(what_was_made_before_the_first_report_does_not_count, enter, leave)
{
    const struct rollout_pace *pace = &worker[8].pace;
    hear(8, 1000, false, 5);
    assert_true(pace->rate < 0 && pace->since_s == 5 && pace->steps == 1000);
}

/* Just as fast as it must be is fast enough. */
TEST_WITH(a_pace_at_the_bound_is_known_at_once, enter, leave)
{
    struct rollout_pace *pace = &worker[9].pace;
    rollout.waves.least_speed = 50;
    hear(9, 1, true, 0);
    pace->before = 20;
    hear(9, 20, true, 2); /* 19 of at least 20 */
    assert_true(pace->rate < 0);
    hear(9, 21, true, 2);
    assert_true(pace->rate == 10);
}

/* No bound is set to the old program, nor to what nothing is known of. */
TEST_WITH(a_pace_without_a_bound_is_known_as_soon, enter, leave)
{
    static const double before[] = {20, -1, 0, 0.5};
    static const double rates[] = {9.5, 9.5, 9.5, -1}; /* a step is expected in the last case: it takes longer */
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
TEST_WITH(who_makes_no_step_has_a_pace, enter, leave)
{
    hear(9, 5, true, 0);
    hear(9, 5, true, 14.75);
    assert_true(worker[9].pace.rate < 0);
    hear(9, 5, true, 15);
    assert_true(worker[9].pace.rate >= 0 && worker[9].pace.rate <= 0 && worker[9].pace.seconds == 15);
}

/* A former pace counts, however low. */
TEST_WITH(a_low_pace_is_averaged_too, enter, leave)
{
    static const double before[] = {0.5, 0};
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

TEST_WITH(a_canary_is_slow_beyond_chance_alone, enter, leave)
{
    char why[256];
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

TEST_WITH(a_canary_is_judged_by_what_it_does_now, enter, leave)
{
    const struct rollout_vitals vitals = {.in_step = true};
    char why[256];
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
TEST_WITH(only_others_that_are_there_excuse_it, enter, leave)
{
    char why[256];
    const struct rollout_vitals vitals = {.in_step = false};
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

TEST_WITH(others_that_are_slower_too_excuse_it, enter, leave)
{
    char why[256];
    const struct rollout_vitals vitals = {.in_step = false};
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

int main(void)
{
    return check_run(NULL, NULL);
}
