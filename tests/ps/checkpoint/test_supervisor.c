/* When to save and what to keep, with the test's own clock. */
#include "ps/checkpoint/folder.h"
#include "tests/check.h"

TEST(saves_at_multiples_of_steps)
{
    struct config_output config = {.save_steps = 100};
    struct supervisor supervisor;
    supervisor_begin(&supervisor, &config, 250, 0);
    assert_false(supervisor_should_save(&supervisor, 250, 1e9));
    assert_int_equal(supervisor_steps_to_save(&supervisor, 250), 50);
    assert_false(supervisor_should_save(&supervisor, 299, 1e9));
    assert_true(supervisor_should_save(&supervisor, 300, 0));
    supervisor_save_began(&supervisor, 300, 0);
    assert_false(supervisor_should_save(&supervisor, 400, 0)); /* one at a time */
    supervisor_save_ended(&supervisor, true);
    assert_false(supervisor_should_save(&supervisor, 300, 0));
    assert_int_equal(supervisor_steps_to_save(&supervisor, 300), 100);
    assert_true(supervisor_should_save(&supervisor, 450, 0)); /* 400 was missed while writing */
    assert_false(supervisor_is_time_to_save(&supervisor, 450, 1e9));
    supervisor_begin(&supervisor, &(struct config_output){0}, 0, 0);
    assert_true(supervisor_steps_to_save(&supervisor, 5) == INT64_MAX);
    assert_false(supervisor_should_save(&supervisor, 1000000, 1e9));
}

TEST(saves_by_time_whatever_the_clock_does)
{
    struct config_output config = {.save_model_secs = 10};
    struct supervisor supervisor;
    supervisor_begin(&supervisor, &config, 0, 1000);
    assert_false(supervisor_should_save(&supervisor, 5, 1009.9));
    assert_false(supervisor_should_save(&supervisor, 5, 3)); /* back */
    assert_true(supervisor_should_save(&supervisor, 5, 1010));
    assert_true(supervisor_is_time_to_save(&supervisor, 5, 1010));
    assert_false(supervisor_is_time_to_save(&supervisor, 5, 1009.9));
    assert_false(supervisor_should_save(&supervisor, 0, 2000)); /* nothing new */
    supervisor_save_began(&supervisor, 5, 1e7);                 /* after a jump forward one is due, not many */
    supervisor_save_ended(&supervisor, true);
    assert_false(supervisor_should_save(&supervisor, 6, 1e7 + 9));
    assert_true(supervisor_should_save(&supervisor, 6, 1e7 + 10));
    config.save_model_secs = 0.5;
    supervisor_begin(&supervisor, &config, 0, 1000);
    assert_false(supervisor_should_save(&supervisor, 5, 1000.25));
    assert_true(supervisor_should_save(&supervisor, 5, 1000.5));
}

TEST(takes_other_intervals)
{
    struct supervisor supervisor;
    supervisor_begin(&supervisor, &(struct config_output){.save_steps = 100}, 0, 0);
    supervisor_save_began(&supervisor, 100, 1);
    supervisor_retime(&supervisor, &(struct config_output){.save_model_secs = 10}); /* while one is being written */
    supervisor_save_ended(&supervisor, true);
    assert_true(supervisor_steps_to_save(&supervisor, 150) == INT64_MAX);
    assert_false(supervisor_should_save(&supervisor, 200, 10.9));
    assert_true(supervisor_should_save(&supervisor, 200, 11));
    assert_false(supervisor_is_unsaved(&supervisor, 100));
}

TEST(a_failed_save_leaves_the_step_unsaved)
{
    struct config_output config = {.save_model_secs = 10, .save_steps = 100};
    struct supervisor supervisor;
    supervisor_begin(&supervisor, &config, 0, 0);
    assert_false(supervisor_is_unsaved(&supervisor, 0));
    assert_true(supervisor_is_unsaved(&supervisor, 100));
    supervisor_save_began(&supervisor, 100, 5);
    assert_false(supervisor_is_unsaved(&supervisor, 100));
    supervisor_save_ended(&supervisor, false);
    assert_true(supervisor_is_unsaved(&supervisor, 100));
    assert_false(supervisor_should_save(&supervisor, 100, 6)); /* not again at once */
    assert_true(supervisor_should_save(&supervisor, 100, 15));
    supervisor_save_began(&supervisor, 100, 15);
    supervisor_save_ended(&supervisor, true);
    assert_false(supervisor_is_unsaved(&supervisor, 100));
}

static int kept(const struct config_output *config, struct kept_checkpoint *checkpoints, int count)
{
    int bits = 0;
    supervisor_retain(checkpoints, count, config);
    for (int i = 0; i < count; i++) {
        bits |= checkpoints[i].keep << i;
    }
    return bits;
}

TEST(keeps_the_newest_and_one_of_every_period)
{
    struct kept_checkpoint all[] = {{.step = 1, .written_s = 7200 + 10},  {.step = 2, .written_s = 7200 + 20},
                                    {.step = 3, .written_s = 10800 + 1},  {.step = 4, .written_s = 10800 + 2},
                                    {.step = 5, .written_s = 10800 + 30}, {.step = 6, .written_s = 10800 + 40}};
    struct config_output config = {.max_to_keep = 2};
    assert_int_equal(kept(&config, all, 6), 0x30);
    assert_int_equal(kept(&config, all, 2), 0x03);
    assert_int_equal(kept(&config, all, 0), 0);
    config.keep_every_n_hours = 1;
    assert_int_equal(kept(&config, all, 6), 0x35);
    /* Decided again without the deleted ones, nothing changes. */
    struct kept_checkpoint left[] = {all[0], all[2], all[4], all[5]};
    assert_int_equal(kept(&config, left, 4), 0x0f);
    config.max_to_keep = 0;
    assert_int_equal(kept(&config, all, 6), 0x3f);
    /* A wall clock set back keeps no more than it should. */
    config.max_to_keep = 1;
    struct kept_checkpoint back[] = {
        {.step = 1, .written_s = 10800}, {.step = 2, .written_s = 7200}, {.step = 3, .written_s = 10900}};
    assert_int_equal(kept(&config, back, 3), 0x05);
}

int main(void)
{
    return check_run(NULL, NULL);
}
