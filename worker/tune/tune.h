/*
 * The parts of trainer tune (tune.c): which configs it tries, and which of them it goes on with.
 *
 * Both are functions of their arguments alone, without clock, processes or files (space_read reads one), so that a
 * search with a seed is always the same one, and a search that was killed goes on as if it had not been.
 */
#ifndef WORKER_TUNE_TUNE_H
#define WORKER_TUNE_TUNE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/config.h"
#include "base/config/keys.h"
#include "base/error.h"

/* --- The space (space.c) --- */

enum { SPACE_MOST_KEYS = 32, SPACE_MOST_VALUES = 256 };

/* One key, and what it may be: one of some values, or a number between two. */
struct space_key {
    const struct config_key *key;
    char **values; /* [value_count], as flag text; NULL: a range */
    int value_count;
    double minimum, maximum;
    bool is_log; /* uniform in its logarithm */
    bool is_integer;
};

struct space {
    struct space_key keys[SPACE_MOST_KEYS];
    int count;
};

/*
 * Reads a space from JSON: {"learning_rate": {"min": 1e-4, "max": 0.1, "log": true}, "hidden": [[128], [256, 256]]}.
 * name: of the file, for errors, which give line and column. config: every value must be one that its key can have
 * there. Only keys of the model, its training and its inputs may be searched, and not those that decide what is
 * compared, or for how long. On failure the space is empty.
 */
bool space_parse(struct space *space, const char *name, const char *text, size_t size, const struct config *config,
                 struct error *error);
bool space_read(struct space *space, const char *path, const struct config *config, struct error *error);

/* The usual space for this kind of data, without the keys that the config sets. on_gpu: only what a GPU trains. */
void space_usual(struct space *space, const struct config *config, bool on_gpu);

/*
 * Leaves nets out of the usual space that this table cannot have. nets: those of a run without flags; "": a single one.
 */
void space_fit(struct space *space, const char *nets);

void space_free(struct space *space);

/*
 * A trial's values by seed and number, as settings over the config; texts: [count], which the caller frees. Trial 0 is
 * the config itself: returns 0. Otherwise returns space->count.
 */
int space_draw(const struct space *space, uint64_t seed, int trial, struct config_setting *settings, char **texts);

/* --- Successive halving (halving.c) --- */

/*
 * Asynchronous successive halving (Li et al., "A system for massively parallel hyperparameter tuning", MLSys 2020).
 * Each trial is trained for a short time, the first rung; of those that have been there, the best 1/factor are promoted
 * to the next rung, which is factor times as long, and so on. Nobody waits for a rung to be full.
 *
 * Whoever finishes first depends on the machine, so decisions do not: the kth job is chosen from the results of the
 * jobs up to k - window alone, in whatever order they arrived. `window` jobs may run at a time. A search that is cut
 * off has done the first jobs of the one that is not.
 *
 * Trial 0 is promoted whatever it scores. When there is nothing else to do, the best trial is promoted, so that it is
 * trained in full in the end.
 */

enum { HALVING_MOST_RUNGS = 8, HALVING_MOST_TRIALS = 10000 };

struct halving_job {
    int trial, rung;
};

enum halving_next { HALVING_JOB, HALVING_WAIT, HALVING_OVER };

struct halving_trial {
    int rung;                         /* the last one it was sent to; -1: none */
    int done;                         /* results; those of rungs 0..done - 1 */
    bool has_finished;                /* it ended by itself: longer training would change nothing */
    double score[HALVING_MOST_RUNGS]; /* the lower the better; NaN: it failed */
    int job[HALVING_MOST_RUNGS];
};

struct halving {
    int trials, rungs, factor, window;
    struct halving_trial *trial; /* [trials] */
    struct halving_job *jobs;    /* [job_count], in order; trial -1: there was nothing to choose */
    int job_count, job_room;
    int started; /* trials */
    int settled; /* jobs before this one are done */
};

/* trials from 1, rungs from 1, factor from 2, window from 1. */
void halving_create(struct halving *halving, int trials, int rungs, int factor, int window);
void halving_free(struct halving *halving);

/* The next job; HALVING_WAIT: only after another result; HALVING_OVER: none, and none is running. */
enum halving_next halving_next(struct halving *halving, struct halving_job *job);

/* The result of a job that was handed out, once. */
void halving_done(struct halving *halving, const struct halving_job *job, double score, bool has_finished);

/* The trial of the lowest score so far; -1: none has one. Of equal ones the first. */
int halving_best(const struct halving *halving);

/* A trial's lowest score; NaN: none. */
double halving_score(const struct halving_trial *trial);

#endif
