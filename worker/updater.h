/*
 * An updater makes steps of training for the loop (worker/training.h), and knows where the model lives:
 *
 *     local     (worker/local_updater.h)          in the engine, which trains by itself, many steps at once
 *     remote    (worker/remote/worker/internal.h) in the shards of a cluster, one push and pull at a time
 *
 * The loop decides what is due, measures, reports and tells when to stop; an updater never does. Every operation is
 * called by the training thread. Where one fails, or finds that training is to end, it says so by training_stop or
 * training_fail and returns false.
 */
#ifndef WORKER_UPDATER_H
#define WORKER_UPDATER_H

#include <stdbool.h>
#include <stdint.h>

#include "ps/checkpoint/checkpoint.h"
#include "worker/evaluate.h"
#include "worker/summary/summary.h"
#include "worker/validators.h"

/* Where training begins. */
struct updater_start {
    const char *restored_from;     /* a checkpoint's path, the updater's; NULL: none */
    int64_t global_step;           /* of the model, as it was found or restored */
    struct checkpoint_info record; /* what it says of earlier validations */
};

/* A model of one step in the engine, which does not change until it is released. */
struct held_model {
    int64_t global_step;
    struct checkpoint_info *record; /* what the next checkpoint says; to be brought up to date */
};

/* What is kept of the run. */
struct updater_record {
    double best_score; /* by validation, of train.best_metric; NaN: none */
    int64_t best_step;
    double threshold;            /* that the model decides by; NaN: none */
    bool checkpoint_failed;      /* some checkpoint was not written: logged already, the run must not end with 0 */
    const char *last_checkpoint; /* the newest good one, the updater's; NULL: none */
    int64_t last_checkpoint_step;
};

struct updater;

struct updater_table {
    bool is_shared; /* others take steps of the same job, also while this process validates */

    /* Brings the model to where training begins or goes on, and sets the training's global_step. */
    bool (*join)(struct updater *updater, struct updater_start *start);

    /* Stops training if its last step is reached, or if somebody else has ended it. */
    void (*look_for_end)(struct updater *updater);

    /*
     * Takes at least one step, and calls training_account for what it took. False: none was taken, or not all of them;
     * if the training was not stopped then the next call tries again.
     */
    bool (*step)(struct updater *updater);

    /* Between two steps: saves a checkpoint if one is due, and if is_best the best model. NULL: a thread sees to it. */
    void (*save)(struct updater *updater, bool is_best);

    /*
     * For a validation: false, without a reason to stop, if there is no model of one step just now. Between the two
     * nothing else is called but record. is_best: it is the best model so far, so that it is worth keeping.
     */
    bool (*hold)(struct updater *updater, struct held_model *held);
    void (*release)(struct updater *updater, bool is_best);

    /*
     * While a model is held and `evaluation` is of it: adds what other workers found on rows of their own. False: the
     * training is stopped. NULL: nobody else validates.
     */
    bool (*gather)(struct updater *updater, int64_t global_step, enum metric metric, struct evaluation *evaluation,
                   struct validators *validators);

    /* What a cluster adds to a summary, over the steps since the last one. NULL: nothing. */
    void (*summarise)(struct updater *updater, int64_t steps, struct summary_cluster *cluster);

    /* After the last step: waits for what is under way, and brings global_step up to date. NULL: nothing ever is. */
    void (*settle)(struct updater *updater);

    /*
     * Training has ended, for training->end: the last checkpoint is written, and the final state is in the engine if
     * this process is to test it. It may find another end instead, TRAINING_REJOINS among them.
     */
    void (*finish)(struct updater *updater);

    /* Tells the others what came of it. test_accuracy: NaN if there is none. NULL: there are no others. */
    void (*conclude)(struct updater *updater, bool failed, double test_accuracy, const char *why);

    /* Not while a model is held. Waits for a checkpoint that is being written. */
    void (*record)(struct updater *updater, struct updater_record *record);
};

/* Every updater begins with this. */
struct updater {
    const struct updater_table *table;
};

#endif
