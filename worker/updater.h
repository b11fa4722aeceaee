/*
 * An updater takes training steps for the loop (worker/training.h), and knows where the model lives:
 *
 *     local     (worker/local_run.h)            in the engine, which trains by itself, many steps at once
 *     remote    (worker/remote/remote_worker.h) in the shards of a cluster, one push and pull at a time
 *
 * The loop alone decides what is due, measures, reports and decides when to stop. Every operation is called by the
 * training thread. One that fails, or finds that training must end, calls training_stop or training_fail and returns
 * false.
 */
#ifndef WORKER_UPDATER_H
#define WORKER_UPDATER_H

#include <stdbool.h>
#include <stdint.h>

#include "ps/checkpoint/checkpoint.h"
#include "worker/checkpoints.h"
#include "worker/evaluation/evaluate.h"
#include "worker/evaluation/validation.h"
#include "worker/summary/summary.h"

/* Where training begins. */
struct updater_start {
    const char *restored_from;     /* a checkpoint's path, the updater's; NULL: none */
    int64_t global_step;           /* of the model found or restored */
    struct checkpoint_info record; /* its info about earlier validations */
};

/* A model of one step in the engine, which does not change until it is released. */
struct held_model {
    int64_t global_step;
    struct checkpoint_info *record; /* what the next checkpoint will say; the loop updates it */
};

/* The record of the run. */
struct updater_record {
    double best_score; /* of train.best_metric, by validation; NaN: none */
    int64_t best_step;
    double threshold;            /* the model's decision threshold; NaN: none */
    double temperature;          /* by which its outputs are divided; 0: by none */
    struct interval interval;    /* around its predicted numbers */
    bool checkpoint_failed;      /* some checkpoint was not written (already logged): the run must not exit with 0 */
    const char *last_checkpoint; /* the newest good one, the updater's; NULL: none */
    int64_t last_checkpoint_step;
};

struct updater;

struct updater_table {
    bool is_shared; /* other processes take steps of the same job, even while this one validates */

    /* Brings the model to where training begins or continues, and sets the training's global_step. */
    bool (*join)(struct updater *updater, struct updater_start *start);

    /* Stops training if its last step is reached, or if another process has ended it. */
    void (*look_for_end)(struct updater *updater);

    /*
     * Takes at least one step, and calls training_account for the steps taken. False: some or all were not taken;
     * unless training was stopped, the next call tries again.
     */
    bool (*step)(struct updater *updater);

    /* Between two steps: saves a checkpoint if one is due, and the best model if is_best. NULL: a thread does it. */
    void (*save)(struct updater *updater, bool is_best);

    /*
     * Hold the model for a validation. `hold` returns false, without stopping training, if no model of a single step is
     * available now. Between the two only `record` may be called. is_best: this is the best model so far, worth
     * keeping.
     */
    bool (*hold)(struct updater *updater, struct held_model *held);
    void (*release)(struct updater *updater, bool is_best);

    /*
     * While a model is held and evaluated: adds other workers' results on their own rows to `evaluation`. False:
     * training is stopped. NULL: nobody else validates.
     */
    bool (*gather)(struct updater *updater, int64_t global_step, enum metric metric, struct evaluation *evaluation,
                   struct validators *validators);

    /* Fills in the cluster's part of a summary, over the steps since the last one. NULL: none. */
    void (*summarise)(struct updater *updater, int64_t steps, struct summary_cluster *cluster);

    /* After the last step: waits for pushes in flight, and updates global_step. NULL: there never are any. */
    void (*settle)(struct updater *updater);

    /*
     * Called when training has ended, for training->end: writes the last checkpoint, and brings the final state into
     * the engine if this process is to test it. It may set another end, including TRAINING_REJOINS.
     */
    void (*finish)(struct updater *updater);

    /*
     * After a divergence, between two steps: training goes back to this model, with its record, or to the newest
     * checkpoint if no validation has found a best model. Later checkpoints are replaced by those that follow; where
     * steps are shared, training joins again. False: it can't, or training has failed. NULL: it never can.
     */
    bool (*go_back)(struct updater *updater, const struct good_model *good);

    /* Brings the best model from train_dir into the engine, with its whole state. False: training has failed. */
    bool (*load_best)(struct updater *updater);

    /* Tells the other members the result. test_accuracy: NaN if there is none. NULL: there are no others. */
    void (*conclude)(struct updater *updater, bool failed, double test_accuracy, const char *why);

    /* Waits for a checkpoint being written. Not while a model is held. */
    void (*record)(struct updater *updater, struct updater_record *record);
};

/* Every updater begins with this. */
struct updater {
    const struct updater_table *table;
};

#endif
