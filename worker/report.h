/*
 * Reports about a run to the user, in text and in JSON (base/log.h): its start, its progress, its result.
 *
 * JSON events, each one line: "start", "step", "validation", "checkpoint", "interrupted", "evaluation", "done". Fields
 * that appear in several mean the same in all of them. Any thread may call; only the training thread does.
 */
#ifndef WORKER_REPORT_H
#define WORKER_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"
#include "ps/store/model.h"
#include "worker/evaluation/evaluate.h"
#include "worker/evaluation/validation.h"

/* For printing: a NaN without its sign, which depends on the kernels and means nothing. */
double report_number(double value);

/* The setup of a run; strings are borrowed. */
struct report_start {
    const struct config *config;
    const struct model *model;
    const char *data;          /* which data, in words */
    const char *engine;        /* engine, kernels, threads */
    const char *digest;        /* of the job's config */
    const char *restored_from; /* a checkpoint's path; NULL: a new run */
    int64_t global_step;       /* where it starts */
    int64_t last_step;         /* where it ends; INT64_MAX: unbounded */
    double epochs;             /* until then */
    enum metric metric;        /* by which patience counts */
    int patience;              /* validations; 0: none */
    bool keeps_nothing;        /* the chief writes checkpoints, not this process */
};
void report_start(const struct report_start *start);

struct report_step {
    int worker;
    int64_t epoch, global_step, local_step; /* local: since this process started */
    double loss;                            /* mean over the steps since the last report, without L2 */
    double learning_rate;
    double ms_per_batch, examples_per_s; /* over the same steps */
};
void report_step(const struct report_step *step);

struct report_validation {
    int worker;
    int64_t epoch, global_step;
    const struct evaluation *evaluation;
    enum metric metric; /* that decides which model is best */
    double best_score;  /* of it */
    int64_t best_step;
    const struct validators *validators;
    bool quiet; /* no text: a progress line shows it */
};
void report_validation(const struct report_validation *validation);

struct report_checkpoint {
    const char *path;
    int64_t global_step;
    bool is_best; /* kept because it is the best by validation */
    bool quiet;
};
void report_checkpoint(const struct report_checkpoint *checkpoint);

void report_interrupted(const char *signal, int64_t global_step, const char *checkpoint /* NULL: none */);

/* The result of eval: accuracy per class and in total, and the most frequent mistakes; for tables all metrics. */
void report_evaluation(const struct evaluation *evaluation, const char *checkpoint, int64_t global_step);

struct report_done {
    const struct evaluation *test; /* NULL: there was none */
    const char *reason;            /* why it stopped, in words */
    int64_t steps;                 /* the global step reached */
    int64_t local_steps;
    double epochs;
    double steps_per_s;        /* of training alone, without the first 100 steps */
    double global_steps_per_s; /* of all workers together, likewise; 0: local training */
    double seconds;            /* since the process started */
    enum metric metric;        /* that decides which model is best */
    double best_score;         /* of it, by validation; NaN: none */
    int64_t best_step;
    bool tests_best; /* the test is of that model, not of the newest */
};
void report_done(const struct report_done *done);

#endif
