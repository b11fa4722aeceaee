/* What operators read about a rollout in each of its states. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "ps/rollout/decide.h"

enum { PS = 1, WORKERS = 7 };

static struct rollout rollout;

static int enter(void **state)
{
    (void)state;
    return !rollout_create(&rollout, PS, WORKERS, WORKERS);
}

static int leave(void **state)
{
    (void)state;
    rollout_destroy(&rollout);
    return 0;
}

/* All take part, and those before `in` have reached that phase, in the target. */
static void begin(enum rollout_state now, enum rollout_kind kind, int in, enum rollout_phase phase)
{
    rollout.state = now;
    rollout.kind = kind;
    rollout.target = 4;
    rollout.fallback = 3;
    for (int i = 0; i < rollout.count; i++) {
        rollout.members[i].takes_part = true;
        rollout.members[i].phase = i < in ? phase : PHASE_NONE;
        rollout.members[i].version = 3;
    }
}

static void reads(const char *wanted)
{
    char text[512];
    rollout_describe(&rollout, text, sizeof text);
    assert_string_equal(text, wanted);
}

static void what_became_of_the_last(void **state)
{
    (void)state;
    reads("no rollout since this ps started");
    begin(ROLLOUT_IDLE, ROLLOUT_LIVE, 0, PHASE_NONE);
    snprintf(rollout.reason, sizeof rollout.reason, "worker 2: can't");
    rollout.step = 70;
    rollout.outcome = OUTCOME_DONE;
    reads("version 4 is in force, since step 70");
    rollout.kind = ROLLOUT_JOB;
    reads("version 4 is in force");
    rollout.outcome = OUTCOME_NOT_BEGUN;
    reads("version 4 was not rolled out, version 3 stays in force: worker 2: can't");
    rollout.outcome = OUTCOME_WENT_BACK;
    reads("went back from version 4 to version 3: worker 2: can't");
}

static void what_is_waited_for(void **state)
{
    (void)state;
    begin(ROLLOUT_STAGING, ROLLOUT_LIVE, 2, PHASE_STAGED);
    reads("staging version 4: 2 of 8 members have it, waiting for worker 1");
    rollout.members[7].takes_part = false;
    reads("staging version 4: 2 of 7 members have it, waiting for worker 1");
    begin(ROLLOUT_STAGING, ROLLOUT_LIVE, 8, PHASE_STAGED);
    reads("staging version 4: 8 of 8 members have it, waiting for nobody");
    begin(ROLLOUT_SWITCHING, ROLLOUT_LIVE, 1, PHASE_SWITCHED);
    rollout.step = 90;
    reads("switching to version 4 at step 90: 1 of 8 members done, waiting for worker 0");
    begin(ROLLOUT_GOING_BACK, ROLLOUT_LIVE, 0, PHASE_BACK);
    snprintf(rollout.reason, sizeof rollout.reason, "the loss rose");
    reads("going back to version 3: 0 of 8 members done, waiting for ps 0; the loss rose");
}

static void what_is_under_way(void **state)
{
    (void)state;
    begin(ROLLOUT_TRYING, ROLLOUT_JOB, 0, PHASE_NONE);
    reads("worker 0 tries version 4 on a copy of the checkpoint");
    rollout.state = ROLLOUT_SAVING;
    reads("worker 0 saves the job before the restart in version 4");
    rollout.state = ROLLOUT_RESTORING;
    snprintf(rollout.reason, sizeof rollout.reason, "it died");
    reads("worker 0 restores the checkpoint from before version 4; it died");
    rollout.state = ROLLOUT_WATCHING;
    rollout.healthy_s = 2.5;
    reads("watching version 4 for 2.5 s");
    rollout.waits = true;
    reads("watching version 4 for 2.5 s, once enough workers are present");
}

static void all_that_restart(void **state)
{
    (void)state;
    begin(ROLLOUT_SWITCHING, ROLLOUT_JOB, 0, PHASE_NONE);
    for (int i = 0; i < 3; i++) {
        rollout.members[i].version = 4;
        rollout.members[i].heard_s = 1;
        rollout.members[i].ready = true;
    }
    reads("all restart in version 4: 3 of 8 members done, waiting for worker 2");
    rollout.kind = ROLLOUT_LOCAL;
    rollout.is_paused = true;
    snprintf(rollout.pause, sizeof rollout.pause, "worker 6: can't");
    reads("version 4 is paused, 3 of 8 members run it: worker 6: can't; `trainer rollout resume` continues without, "
          "`trainer rollout abort` rolls back");
}

static void canaries(void **state)
{
    (void)state;
    begin(ROLLOUT_SWITCHING, ROLLOUT_LOCAL, 0, PHASE_NONE);
    rollout.is_first_wave = true;
    reads("restarting in version 4 in waves, the canary first: 0 of 8 members done");
    rollout.is_first_wave = false;
    reads("restarting in version 4 in waves, the canary is well: 0 of 8 members done");
}

/* Absent members are named, as many as fit; only during a rollout. */
static void who_is_off(void **state)
{
    static const char *const ends[] = {"; without worker 1, which is off",
                                       "; without worker 1 and worker 2, which are off",
                                       "; without worker 1, worker 2 and worker 3, which are off",
                                       "; without worker 1, worker 2, worker 3 and 1 more, which are off",
                                       "; without worker 1, worker 2, worker 3 and 2 more, which are off"};
    char wanted[256];
    (void)state;
    begin(ROLLOUT_SAVING, ROLLOUT_JOB, 0, PHASE_NONE);
    for (int i = 0; i < 5; i++) {
        const int worker = i + 1;
        rollout.absent.bits[worker / 8] |= (uint8_t)(1 << worker % 8);
        rollout.members[PS + worker].takes_part = false;
        snprintf(wanted, sizeof wanted, "worker 0 saves the job before the restart in version 4%s", ends[i]);
        reads(wanted);
    }
    rollout.members[PS + 1].takes_part = true; /* it came back */
    reads("worker 0 saves the job before the restart in version 4; without worker 2, worker 3, worker 4 and 1 more, "
          "which are off");
    rollout.members[PS + 2].listed = false;
    reads("worker 0 saves the job before the restart in version 4; without worker 3, worker 4 and worker 5, which are "
          "off");
    for (int i = 3; i < 6; i++) {
        rollout.members[PS + i].takes_part = true;
    }
    reads("worker 0 saves the job before the restart in version 4"); /* and of nobody any more */
    rollout.members[PS + 3].takes_part = false;
    rollout.members[PS + 3].heard_s = 0; /* in the clock's first second */
    rollout.members[PS + 3].version = 2;
    reads("worker 0 saves the job before the restart in version 4; without worker 3, which is behind");
    rollout.state = ROLLOUT_IDLE;
    rollout.outcome = OUTCOME_DONE;
    reads("version 4 is in force");
}

/* The record on disk uses these names. */
static void names_of_states(void **state)
{
    static const char *const names[] = {"idle",       "staging",   "switching", "watching",
                                        "going back", "restoring", "trying",    "saving"};
    enum rollout_state found;
    (void)state;
    for (int i = 0; i < 8; i++) {
        assert_string_equal(rollout_state_name((enum rollout_state)i), names[i]);
        assert_true(rollout_state_by_name(names[i], &found));
        assert_int_equal(found, i);
    }
    assert_string_equal(rollout_state_name((enum rollout_state)8), "unknown");
    assert_false(rollout_state_by_name("unknown", &found));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_became_of_the_last, enter, leave),
        cmocka_unit_test_setup_teardown(what_is_waited_for, enter, leave),
        cmocka_unit_test_setup_teardown(what_is_under_way, enter, leave),
        cmocka_unit_test_setup_teardown(canaries, enter, leave),
        cmocka_unit_test_setup_teardown(all_that_restart, enter, leave),
        cmocka_unit_test_setup_teardown(who_is_off, enter, leave),
        cmocka_unit_test(names_of_states),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
