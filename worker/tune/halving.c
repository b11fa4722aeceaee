/* Jobs are decided in order, each from the results of all but the window - 1 before it. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "base/memory.h"
#include "worker/tune/tune.h"

void halving_create(struct halving *halving, int trials, int rungs, int factor, int window)
{
    assert(trials >= 1 && trials <= HALVING_MOST_TRIALS && rungs >= 1 && rungs <= HALVING_MOST_RUNGS);
    assert(factor >= 2 && window >= 1);
    *halving = (struct halving){.trials = trials, .rungs = rungs, .factor = factor, .window = window};
    halving->trial = must_zero((size_t)trials, sizeof *halving->trial, "trials: choose fewer (--trials)");
    for (int i = 0; i < trials; i++) {
        halving->trial[i].rung = -1;
    }
}

void halving_free(struct halving *halving)
{
    free(halving->trial);
    free(halving->jobs);
    *halving = (struct halving){.trial = NULL};
}

double halving_score(const struct halving_trial *trial)
{
    double best = NAN;
    for (int i = 0; i < trial->done; i++) {
        best = isnan(best) || trial->score[i] < best ? trial->score[i] : best;
    }
    return best;
}

int halving_best(const struct halving *halving)
{
    int best = -1;
    double lowest = NAN;
    for (int i = 0; i < halving->started; i++) {
        const double score = halving_score(&halving->trial[i]);
        if (!isnan(score) && (best < 0 || score < lowest)) {
            best = i;
            lowest = score;
        }
    }
    return best;
}

/* Is it known to whoever decides on the next job? */
static bool is_seen(const struct halving *halving, const struct halving_trial *trial, int rung)
{
    return rung < trial->done && trial->job[rung] <= halving->job_count - halving->window;
}

/* Does it wait for a promotion from this rung? */
static bool may_rise(const struct halving *halving, const struct halving_trial *trial, int rung)
{
    return trial->rung == rung && rung + 1 < halving->rungs && is_seen(halving, trial, rung) && !trial->has_finished &&
           !isnan(trial->score[rung]);
}

/* Of two trials' results; a failed one is behind all others, and of equal ones the later. */
static bool is_ahead(const struct halving *halving, int one, int other, int rung)
{
    const double a = halving->trial[one].score[rung], b = halving->trial[other].score[rung];
    return isnan(a) || isnan(b) ? !isnan(a) || (isnan(b) && one < other) : a < b || (a == b && one < other);
}

/* How many that have been seen on this rung are ahead of a trial; *all: how many there are. */
static int place_of(const struct halving *halving, int trial, int rung, int *all)
{
    int ahead = 0;
    *all = 0;
    for (int i = 0; i < halving->started; i++) {
        if (is_seen(halving, &halving->trial[i], rung)) {
            ++*all;
            ahead += i != trial && is_ahead(halving, i, trial, rung);
        }
    }
    return ahead;
}

/* The best that may rise from a rung, among its best 1/factor; -1: none. */
static int rising_from(const struct halving *halving, int rung)
{
    int best = -1;
    for (int i = 0; i < halving->started; i++) {
        if (may_rise(halving, &halving->trial[i], rung) && (best < 0 || is_ahead(halving, i, best, rung))) {
            best = i;
        }
    }
    int all;
    const int place = best >= 0 ? place_of(halving, best, rung, &all) : 0;
    return best >= 0 && place < all / halving->factor ? best : -1;
}

/* The best of all that have been seen, if it may rise; -1: it may not. */
static int unfinished_best(const struct halving *halving)
{
    const int best = halving_best(halving);
    return best >= 0 && may_rise(halving, &halving->trial[best], halving->trial[best].rung) ? best : -1;
}

static void add_job(struct halving *halving, int trial, int rung)
{
    if (halving->job_count == halving->job_room) {
        halving->job_room = halving->job_room > 0 ? 2 * halving->job_room : 64;
        halving->jobs = must_grow(halving->jobs, (size_t)halving->job_room, sizeof *halving->jobs, "jobs of trials");
    }
    halving->jobs[halving->job_count++] = (struct halving_job){trial, rung};
}

/* Which trial, if there is something to choose. -1: nothing. */
static int choose(struct halving *halving)
{
    if (halving->started > 0 && may_rise(halving, &halving->trial[0], halving->trial[0].rung)) {
        return 0;
    }
    for (int rung = halving->rungs - 2; rung >= 0; rung--) {
        const int trial = rising_from(halving, rung);
        if (trial >= 0) {
            return trial;
        }
    }
    return halving->started < halving->trials ? halving->started++ : -1;
}

static bool is_done(const struct halving *halving, const struct halving_job *job)
{
    return job->trial < 0 || halving->trial[job->trial].done > job->rung;
}

/*
 * That there is nothing to choose counts as a job, so that the next one sees one more result; after `window` of them
 * everything has been seen.
 */
static bool has_seen_all(const struct halving *halving)
{
    int real = halving->job_count;
    while (real > 0 && halving->jobs[real - 1].trial < 0) {
        real--;
    }
    return halving->job_count - real >= halving->window;
}

enum halving_next halving_next(struct halving *halving, struct halving_job *job)
{
    for (;;) {
        while (halving->settled < halving->job_count && is_done(halving, &halving->jobs[halving->settled])) {
            halving->settled++;
        }
        if (halving->settled <= halving->job_count - halving->window) {
            return HALVING_WAIT;
        }
        const bool is_last = has_seen_all(halving);
        const int trial = is_last ? unfinished_best(halving) : choose(halving);
        if (trial < 0 && is_last) {
            return HALVING_OVER;
        }
        if (trial < 0) {
            add_job(halving, -1, 0);
            continue;
        }
        struct halving_trial *chosen = &halving->trial[trial];
        *job = (struct halving_job){trial, ++chosen->rung};
        chosen->job[chosen->rung] = halving->job_count;
        add_job(halving, trial, chosen->rung);
        return HALVING_JOB;
    }
}

void halving_done(struct halving *halving, const struct halving_job *job, double score, bool has_finished)
{
    struct halving_trial *trial = &halving->trial[job->trial];
    assert(job->rung == trial->done && job->rung == trial->rung);
    trial->score[trial->done++] = score;
    trial->has_finished = has_finished;
}
