/*
 * A training training, as tf.train.MonitoredTrainingSession and tf.train.Supervisor run one: it initialises the model or
 * restores the newest good checkpoint of train_dir, drives the engine to the end of the run, and on the way logs,
 * validates and keeps checkpoints.
 *
 * The engine trains in slices that end exactly where something is due, and otherwise last about 50 ms, so that signals
 * and clocks are looked at in time. What is done at a step is done before that step's checkpoint: a checkpoint holds
 * everything up to its step, and a resumed run gives bit for bit what the uninterrupted one gives.
 */
#ifndef WORKER_TRAINING_H
#define WORKER_TRAINING_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"
#include "base/error.h"
#include "ps/store/model.h"
#include "worker/dataset.h"
#include "worker/engine.h"

/* Why a training ended. */
enum training_end {
    TRAINING_LAST_STEP,   /* train_steps or epochs reached; perhaps before the first step */
    TRAINING_TARGET,      /* the validation accuracy asked for is reached */
    TRAINING_PATIENCE,    /* no better validation for long enough */
    TRAINING_INTERRUPTED, /* by a signal; a checkpoint was tried */
    TRAINING_FAILED,      /* the loss was not finite, or the engine failed; logged already */
};

struct training_result {
    enum training_end end;
    int64_t global_step;  /* reached */
    int64_t local_steps;  /* done by this training */
    double epochs;        /* of the whole job, done up to global_step */
    double steps_per_s;   /* training and pauses for checkpoints; without the first 100 steps if there are more */
    double best_accuracy; /* by validation, negative: none */
    int64_t best_step;
    int signal;             /* of TRAINING_INTERRUPTED */
    bool checkpoint_failed; /* some checkpoint could not be written, logged already: the run must not end with 0 */
    /* The newest good one in train_dir and its step; NULL and -1: none. The text is the training's. */
    const char *last_checkpoint;
    int64_t last_checkpoint_step;
};

/* All borrowed, and unchanged while the training lives. */
struct training_options {
    const struct config *config; /* with train.lr_decay_steps filled in */
    const struct model *model;
    struct engine *engine; /* created for config, model and dataset->train; driven by the training alone */
    const struct dataset *dataset;
    int64_t epoch_batches; /* of one task: sampler_epoch_batches */
};

struct training;

/*
 * Takes train_dir for this process, brings the engine to the state to start from, and says so (report_start). Fails if
 * train_dir is in use or can't be written, and if its checkpoints are of another model or optimizer.
 */
bool training_open(struct training **training, const struct training_options *options, struct error *error);

/* Trains until the run's end. Afterwards the engine holds the final state and the newest checkpoint is on disk. */
void training_run(struct training *training, struct training_result *result);

/* Tells the summaries what the test set says of the final state. */
void training_tested(struct training *training, double accuracy);

/* Lets go of train_dir; a checkpoint that is being written is finished first. NULL is fine. */
void training_close(struct training *training);

#endif
