/*
 * Rounds of a worker (train.local_steps): which batches it draws, what it pushes, and what aborts a round. The world
 * around it is that of world.h.
 */
#include "tests/check.h"
#include "tests/worker/remote/worker/bench.h"

static const char *const three_steps[] = {"task_index", "2", "issync", "true", "local_steps", "3", NULL};
static const char *const two_epochs[] = {"task_index", "2", "issync", "true", "local_epochs", "2", NULL};

/* The batches of a round follow from its step; its loss is their mean, and its weight is the worker's examples. */
TEST(a_round)
{
    struct bench bench;
    begin_joined(&bench, three_steps, 5);
    assert_true(step(&bench));
    assert_string_equal(told(), "round of step 5\n2 of batch 15\n4 of batch 16\n4 of batch 17\nround ends\n"
                                "pushes step 5, 0 here, 30 examples, loss 2: 20 at 0\nlooks at 6, loss 2\n");
    assert_int_equal(bench.worker.training.local_step, 3);
    assert_true(step(&bench));
    assert_non_null(strstr(told(), "round of step 6\n4 of batch 18\n"));
    end(&bench);
    assert_true(was_told("rounds go\n"));
}

/* By epochs it is all batches of the worker's share, that many times. */
TEST(a_round_of_epochs)
{
    struct bench bench;
    begin_joined(&bench, two_epochs, 1);
    assert_int_equal(worker_step_batches(&bench.worker), 16);
    assert_true(step(&bench));
    const char *text = told();
    assert_int_equal(times(text, " of batch "), 16);
    assert_non_null(strstr(text, "round of step 1\n4 of batch 16\n"));
    assert_non_null(strstr(text, "2 of batch 31\nround ends\n"));
    end(&bench);
}

/* Asynchronous rounds: each worker continues with what it would have drawn by now if it had been there. */
TEST(asynchronous_rounds)
{
    const char *const flags[] = {"task_index", "2", "local_steps", "3", "buffer_size", "2", NULL};
    struct bench bench;
    begin_joined(&bench, flags, 9);
    assert_int_equal(bench.worker.first_draw, 9 * 2 / 3 * 3);
    assert_true(step(&bench));
    assert_non_null(strstr(told(), "round of step 9\n4 of batch 18\n"));
    assert_true(join(&bench)); /* again: meanwhile it has drawn three */
    assert_int_equal(bench.worker.first_draw + bench.worker.training.local_step, 10 * 2 / 3 * 3);
    end(&bench);
}

/* A loss that is not finite ends the round at once, and an empty push replaces the difference. */
TEST(a_round_that_diverges)
{
    struct bench bench;
    begin_joined(&bench, three_steps, 5);
    world.not_finite_at = 2;
    assert_false(step(&bench));
    assert_string_equal(told(), "round of step 5\n2 of batch 15\n4 of batch 16\nround is given up\n"
                                "looks at 5, loss nan, not finite\n"
                                "pushes step 5, 0 here, 1 examples, loss nan: nothing\n");
    assert_int_equal(bench.worker.training.local_step, 0);
    assert_int_equal(times(heard_so_far(), "the loss is nan at global step 5: nothing is pushed"), 1);
    end(&bench);
}

/* A worker that is told to stop, or learns that the job is over, does not finish the round. */
TEST(a_round_that_is_given_up)
{
    struct bench bench;
    for (int over = 0; over < 2; over++) {
        begin_joined(&bench, three_steps, 5);
        world.signal_after = over ? 0 : 1;
        world.over_after = over ? 1 : 0;
        assert_false(step(&bench));
        assert_string_equal(told(), "round of step 5\n2 of batch 15\nround is given up\n");
        assert_int_equal(bench.worker.training.end, over ? TRAINING_BY_OTHERS : TRAINING_INTERRUPTED);
        end(&bench);
    }
}

/* Wherever the device fails, training does. */
TEST(rounds_that_fail)
{
    static const char *const whys[] = {"it can't be begun", "the device fails", "it can't be ended"};
    struct bench bench;
    for (int i = 0; i < 3; i++) {
        begin_joined(&bench, three_steps, 5);
        world.cannot_begin_round = i == 0;
        world.fails_in_round = i == 1 ? 2 : 0;
        world.cannot_end_round = i == 2;
        assert_false(step(&bench));
        const char *text = told();
        assert_int_equal(bench.worker.training.end, TRAINING_FAILED);
        assert_string_equal(bench.worker.training.error.text, whys[i]);
        assert_null(strstr(text, "pushes"));
        assert_int_equal(times(text, "round is given up\n"), i == 1);
        end(&bench);
    }
}

/* During others' rounds it reports its state now and then. */
TEST(vitals_while_others_are_asked)
{
    struct bench bench;
    begin_joined(&bench, sync_flags, 5);
    world.unasked = 3;
    assert_true(step(&bench));
    assert_string_equal(told(), "waits to be asked after step 5\nlooks at 6, loss nan\nnotes 6\n");
    world.now_s += 0.2;
    assert_true(step(&bench));
    assert_string_equal(told(), "waits to be asked after step 6\nlooks at 7, loss nan\nnotes 7\n"
                                "training at 7, 0 here, 0/s, loss nan, stale 0\nsays: \n");
    world.now_s += 0.125;
    assert_true(step(&bench));
    assert_null(strstr(told(), "says"));
    end(&bench);
}

/* If no step has passed nothing can be due. */
TEST(no_step_has_passed)
{
    struct bench bench;
    begin_joined(&bench, sync_flags, 5);
    world.unasked = 1;
    world.step = 4; /* the answer is of its present step */
    assert_false(step(&bench));
    assert_null(strstr(told(), "looks"));
    assert_int_equal(bench.worker.training.end, TRAINING_GOES_ON);
    end(&bench);
}

/* --- What pushes leave behind --- */

static char folder[64];
static bool was_there;

static bool is_kept(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    const bool there = access(path, F_OK) == 0;
    unlink(path);
    return there;
}

static void look_for_step_10(void)
{
    was_there = was_there || is_kept("residual-worker2-10");
}

/*
 * In step with others it is saved before the push that makes a step with a checkpoint: whichever checkpoint there is,
 * all files exist.
 */
TEST(rest_is_kept_before_the_push)
{
    struct bench bench;
    strcpy(folder, "/tmp/test_rounds.XXXXXX");
    assert_non_null(mkdtemp(folder));
    const char *const flags[] = {"task_index", "2",    "issync",     "true", "wire_dtype", "int8",
                                 "train_dir",  folder, "save_steps", "10",   NULL};
    begin_joined(&bench, flags, 8);
    world.at_push = look_for_step_10;
    was_there = false;
    assert_true(step(&bench)); /* makes step 9 */
    assert_false(was_there);
    assert_true(step(&bench));
    assert_true(was_there);
    world.answer.stale = true; /* what was sent did not count: it is in the residual, too */
    world.step = 19;
    bench.worker.training.global_step = 8;
    assert_true(step(&bench));
    assert_true(is_kept("residual-worker2-20"));
    end(&bench);
    rmdir(folder);
}

/* Otherwise after the answer, which tells what step it made. */
TEST(rest_is_kept_after_the_answer)
{
    struct bench bench;
    strcpy(folder, "/tmp/test_rounds.XXXXXX");
    assert_non_null(mkdtemp(folder));
    const char *const flags[] = {"task_index", "2",    "wire_dtype", "bfloat16", "wire_top", "0.5",
                                 "train_dir",  folder, "save_steps", "10",       NULL};
    begin_joined(&bench, flags, 8);
    world.at_push = look_for_step_10;
    was_there = false;
    assert_true(step(&bench));
    assert_true(step(&bench));
    assert_false(was_there);
    assert_true(is_kept("residual-worker2-10"));
    assert_true(step(&bench));
    assert_false(is_kept("residual-worker2-11"));
    end(&bench);
    rmdir(folder);
}

int main(void)
{
    return check_run(NULL, NULL);
}
