/*
 * Successive halving, from scenarios (tests/scenario.h; halving.txt beside this file):
 *
 *     search TRIALS trials RUNGS rungs window WINDOW
 *     gets TRIAL on RUNG                      the next job
 *     waits; is over                          there is none, now or for good
 *     scores TRIAL on RUNG SCORE [finished]   its result; finished: it ended by itself
 *     fails TRIAL on RUNG
 *     best TRIAL|none
 *
 * And at random, where results arrive in any order: the jobs are the same.
 */
#include "tests/scenario.h"

#include <math.h>

#include "tests/random.h"
#include "worker/tune/tune.h"

static struct halving halving;

void scenario_enter(void)
{
}

void scenario_leave(void)
{
    halving_free(&halving);
}

static struct halving_job take_job(struct scenario_words *words)
{
    struct halving_job job = {.trial = (int)scenario_number(words)};
    assert_true(scenario_has(words, "on"));
    job.rung = (int)scenario_number(words);
    return job;
}

static void expect(struct scenario_words *words, enum halving_next wanted)
{
    struct halving_job job;
    const enum halving_next got = halving_next(&halving, &job);
    if (got == HALVING_JOB && wanted != HALVING_JOB) {
        scenario_fail(words, "got trial %d on %d", job.trial, job.rung);
    }
    scenario_expect_number(words, "next", got, wanted);
}

void scenario_statement(struct scenario_words *words)
{
    struct halving_job job;
    if (scenario_has(words, "search")) {
        const int trials = (int)scenario_number(words);
        assert_true(scenario_has(words, "trials"));
        const int rungs = (int)scenario_number(words);
        assert_true(scenario_has(words, "rungs") && scenario_has(words, "window"));
        halving_create(&halving, trials, rungs, 3, (int)scenario_number(words));
    } else if (scenario_has(words, "gets")) {
        const struct halving_job wanted = take_job(words);
        scenario_expect_number(words, "next", halving_next(&halving, &job), HALVING_JOB);
        scenario_expect_number(words, "trial", job.trial, wanted.trial);
        scenario_expect_number(words, "rung", job.rung, wanted.rung);
    } else if (scenario_has(words, "waits")) {
        expect(words, HALVING_WAIT);
    } else if (scenario_has(words, "is")) {
        assert_true(scenario_has(words, "over"));
        expect(words, HALVING_OVER);
    } else if (scenario_has(words, "scores")) {
        job = take_job(words);
        const double score = scenario_number(words);
        halving_done(&halving, &job, score, scenario_has(words, "finished"));
    } else if (scenario_has(words, "fails")) {
        job = take_job(words);
        halving_done(&halving, &job, NAN, true);
    } else if (scenario_has(words, "best")) {
        const int wanted = scenario_has(words, "none") ? -1 : (int)scenario_number(words);
        scenario_expect_number(words, "best", halving_best(&halving), wanted);
    } else {
        scenario_fail(words, "what is \"%s\"?", scenario_word(words));
    }
}

/* --- At random --- */

enum { TRIALS = 40, MOST_JOBS = TRIALS * HALVING_MOST_RUNGS };

/* The score of a trial on a rung, by numbers alone; some fail, some end early. */
static double score_of(const struct halving_job *job, bool *has_finished)
{
    const double place = fmod(job->trial * 7.3 + 3, 11);
    *has_finished = job->trial % 9 == 4;
    return job->trial % 13 == 5 ? NAN : place - 0.5 * job->rung * (job->trial % 3);
}

/* Runs a search whose results arrive in a random order; returns how many jobs there were. */
static int play(struct test_random *random, int window, struct halving_job jobs[MOST_JOBS])
{
    struct halving search;
    struct halving_job job, running[16];
    int count = 0, busy = 0;
    enum halving_next next;
    halving_create(&search, TRIALS, 4, 3, window);
    for (;;) {
        while ((next = halving_next(&search, &job)) == HALVING_JOB) {
            assert_true(busy < window && count < MOST_JOBS);
            jobs[count++] = running[busy++] = job;
            if (test_random_below(random, 3) == 0) {
                break; /* a result comes first */
            }
        }
        if (busy == 0) {
            break;
        }
        const int ends = test_random_below(random, busy);
        bool has_finished;
        const double score = score_of(&running[ends], &has_finished);
        halving_done(&search, &running[ends], score, has_finished);
        running[ends] = running[--busy];
    }
    assert_int_equal(next, HALVING_OVER);
    assert_int_equal(search.started, TRIALS);
    const struct halving_trial *best = &search.trial[halving_best(&search)];
    assert_true(best->done == 4 || best->has_finished);
    halving_free(&search);
    return count;
}

static void order_of_results_does_not_matter(void **state)
{
    struct test_random random = test_random_begin("halving");
    static struct halving_job first[MOST_JOBS], again[MOST_JOBS];
    for (int window = 1; window <= 16; window += 3) {
        const int count = play(&random, window, first);
        for (int i = 0; i < 50; i++) {
            assert_int_equal(play(&random, window, again), count);
            assert_memory_equal(first, again, (size_t)count * sizeof *first);
        }
    }
}

int main(int argc, char **argv)
{
    static const char *const paths[] = {"tests/worker/tune/halving.txt"};
    const struct CMUnitTest tests[] = {cmocka_unit_test(order_of_results_does_not_matter)};
    const int failed = scenario_main(paths, 1, argc, argv);
    return failed + cmocka_run_group_tests_name("random", tests, NULL, NULL);
}
