/*
 * The training loop of local training and of a cluster's workers, like tf.train.MonitoredTrainingSession's:
 *
 *     for (;;) { join; train; if (!finish) break; }
 *
 * The updater takes the steps (worker/updater.h). The loop counts them, logs, validates, writes summaries, and stops at
 * the last step, a target, the end of patience or a signal. All work due at a step is done before that step's
 * checkpoint: a checkpoint holds everything up to its step, and a resumed run gives bit for bit what the uninterrupted
 * one gives.
 *
 * Workers of a cluster share the steps, so work due at a step is done once the global step has reached or passed it.
 * One process of a job, the chief, validates, writes summaries and tests; local training is its own chief.
 */
#ifndef WORKER_TRAINING_H
#define WORKER_TRAINING_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"
#include "base/error.h"
#include "base/progress.h"
#include "ps/job/plan.h"
#include "ps/store/model.h"
#include "worker/checkpoints.h"
#include "worker/data/dataset.h"
#include "worker/engine.h"
#include "worker/evaluation/evaluate.h"
#include "worker/updater.h"

/* Why training ends. */
enum training_end {
    TRAINING_GOES_ON,
    TRAINING_REJOINS,     /* the model was lost or replaced: training joins again and continues */
    TRAINING_LAST_STEP,   /* train_steps or epochs reached; perhaps before the first step */
    TRAINING_TARGET,      /* the validation metric has reached its target */
    TRAINING_PATIENCE,    /* no better validation for long enough */
    TRAINING_TIME,        /* train.time_limit: just long enough is left to validate, test and save */
    TRAINING_INTERRUPTED, /* by a signal; a checkpoint was attempted */
    TRAINING_BY_OTHERS,   /* the job is over, or continues without this process */
    TRAINING_LEAVES,      /* a rollout ends this process, but not the job */
    TRAINING_FAILED,      /* training->error says why */
};

/* Steps and seconds over a period of training. */
struct tally {
    int64_t steps, images, correct; /* of this process */
    double loss_sum;                /* over its steps */
    double seconds;                 /* of training, without validations and waits for a model */
    double begun_s;                 /* when it began, by the clock, ... */
    int64_t begun_step;             /* ... and at which global step */
};

/*
 * Starts as zeros, except the first group of fields, which the owner fills in (dataset, engine and plan only before the
 * updater joins) and keeps alive until training_run returns.
 */
struct training {
    struct updater *updater;
    struct config *config; /* with train.lr_decay_steps filled in (training_plan); live keys change between steps */
    const struct model *model;
    const struct dataset *dataset;
    struct engine *engine;
    const struct examples *test; /* the chief's; NULL: this process is not the chief */
    const char *digest;          /* of the config */
    double begun_s;              /* when the process started */
    int sharers, replicas;       /* with rounds in one process: as for plan_begin_rounds */
    bool validates_as_all;       /* likewise: it validates on the own rows of all workers it simulates */
    bool keeps_best;             /* the best model is kept in memory: for the final test, and to go back to */

    struct plan plan;   /* training_plan */
    enum metric metric; /* that decides which model is best; training_plan */
    int patience;       /* train.patience, in validations; training_plan */
    int64_t data_since; /* the step since which it trains on these data */
    int64_t global_step, local_step;
    enum training_end end;
    struct error error;           /* of TRAINING_FAILED */
    bool has_diverged;            /* TRAINING_FAILED because the loss is not finite */
    int leave_status;             /* exit status of TRAINING_LEAVES */
    struct evaluation evaluation; /* of the validation, later of the test */
    struct progress progress;     /* of local training */

    /* Private to the loop. */
    struct good_model good;
    struct tally all, warm; /* of this process; warm: after the first steps */
    struct tally since_report, since_summary;
    struct summary *summary; /* NULL: none wanted */
    double next_step_s;      /* when the next step may begin, with max_steps_per_s */
    int64_t validated_step;  /* of the last validation; 0: none */
    double evaluation_s;     /* the time of one example in the last one; 0: not known yet */
    double ended_s;          /* when the last step was done... */
    int64_t ended_step;      /* ...and which one that was */
    bool begun;
    bool lacks_interval; /* it was said that validation has too few rows for one */
    double shown_validation, recent_steps_per_s, recent_loss;
};

/* Computes the plan, and train.lr_decay_steps if it is 0, from the config and the data. */
void training_plan(struct training *training);

/* Checks that the metrics the config asks for can be measured on this data. */
bool training_check_data(const struct training *training, struct error *error);

/* Live keys of the config have changed: new plan, new intervals of summaries. */
void training_retime(struct training *training);

/* Trains, from the updater's join to its end. Returns the exit status; errors are logged. */
int training_run(struct training *training);

/* --- For the updater --- */

/* Ends training, for this reason unless there already is one. Returns false. */
bool training_stop(struct training *training, enum training_end end);

/* Fails training, overriding any other reason; training->error says why. Returns false. */
bool training_fail(struct training *training);

/*
 * For a loss that is not finite; what: its name, in words. If the updater can, and has not done so too often
 * (train.divergence_retries), training goes back to its best model and continues at a lower learning rate; otherwise it
 * fails. Returns false.
 */
bool training_diverges(struct training *training, const char *what, double loss, int64_t step);

/* Counts the steps done in `seconds`, the last of them at now_s. global_step must be up to date. */
void training_account(struct training *training, const struct train_result *done, double seconds, double now_s);

/* Adds time spent on other work (a checkpoint, a summary) that counts in the rate of all steps. */
void training_charge(struct training *training, double seconds);

/* Steps until something is due, so that an engine may take that many at once. For global_step < plan.last_step. */
int64_t training_steps_to_due(const struct training *training);

#endif
