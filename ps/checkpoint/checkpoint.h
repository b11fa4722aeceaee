/*
 * Checkpoints: one safetensors file each, that any safetensors reader opens.
 *
 * Tensors are plain row-major float32 without padding, biases one-dimensional, named as TensorFlow's Saver names them:
 * "layer0/weights", "layer0/weights/Momentum" (or "/Adam" and "/Adam_1", ...),
 * "layer0/weights/ExponentialMovingAverage". The header's "__metadata__" holds strings: format, format_version,
 * trainer_version, global_step, seed, layers, activation, optimizer, validation_accuracy, best_accuracy (of another
 * metric validation_METRIC, best_METRIC, and best_metric says which), best_loss, best_step, bad_validations, retries
 * (after divergences) and first_rate (the learning rate before any), threshold of a binary model or an anomaly
 * detector, temperature of a calibrated model, interval ("0.9 -1.5 2.25": its coverage, then low and high of each
 * target), of a model of tables loss (with huber_delta and quantile, of numbers) and preprocessing, of pictures
 * image_shape (height, width, channels) and image_fit (how others are fitted: scale or digits), and if their folders
 * have names class_names, test_share, group and time (by which a test is held out of tables or folders of pictures),
 * data (the fingerprint of the training set: worker/data/fingerprint.h) and data_since (the step since which it was
 * trained on these), kept_rows (a few held-out rows with the model's answers: worker/evaluation/kept_rows.h),
 * config_digest, fleet_version, and "digest": BLAKE2b-256 in hex over the whole file, with the digest's own 64
 * characters taken as '0'. It is verified before anything else is trusted. With a key (checkpoint_use_key) the digest
 * is BLAKE2b's keyed one, and digest_key says with which key: then it proves not only that the file is intact, but that
 * someone with the key wrote it.
 */
#ifndef PS_CHECKPOINT_CHECKPOINT_H
#define PS_CHECKPOINT_CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/config.h"
#include "base/error.h"
#include "ps/checkpoint/safetensors.h"
#include "ps/store/model.h"
#include "ps/store/store.h"

enum { CHECKPOINT_MAX_PATH = 4096, CHECKPOINT_DATA_TEXT = 192 };

enum { INTERVAL_MOST_TARGETS = 16, INTERVAL_TEXT = 1024 };

/*
 * Intervals around predicted numbers (worker/evaluation/calibration.h): from prediction + low to prediction + high, of
 * each target in its own unit.
 */
struct interval {
    double coverage; /* the share of true numbers that they are to contain; 0: there are none */
    int targets;
    double low[INTERVAL_MOST_TARGETS], high[INTERVAL_MOST_TARGETS];
};

/* The content of a checkpoint besides its tensors. */
struct checkpoint_info {
    int64_t global_step;
    int64_t seed;
    enum metric metric;      /* of the next two fields; METRIC_AUTO: accuracy */
    double validation_score; /* NaN: not measured at this step */
    double best_score;       /* best so far, NaN: none; patience needs it, with best_step and bad_validations */
    int64_t best_step;
    double best_loss;    /* the loss then; of equal scores the lower one is better */
    int bad_validations; /* validations in a row without a new best */
    int retries;         /* times that the learning rate was lowered after a divergence... */
    double first_rate;   /* ...from this one, which was configured; 0: not recorded */
    bool has_threshold;
    double threshold;             /* on a binary model's score, or on reconstruction errors, from the last validation */
    double temperature;           /* by which outputs are divided before they are probabilities; 0: by none */
    struct interval interval;     /* likewise, from the last validation */
    enum loss_kind loss;          /* the loss of training; LOSS_AUTO: not recorded */
    double huber_delta, quantile; /* of losses of numbers */
    char config_digest[CONFIG_DIGEST_HEX + 1];
    int64_t fleet_version;
    const char *preprocessing; /* JSON, of a table's columns; NULL: none. Borrowed; a file's, while it is open */
    /* For a table: the rows held out of training. */
    double test_share;               /* negative: not recorded */
    char *group, *time;              /* columns; NULL or "": none. Borrowed, too */
    struct image_shape shape;        /* of pictures; height 0: none, or not recorded */
    const char *class_names;         /* JSON; NULL: labels are numbers. Borrowed, too */
    char data[CHECKPOINT_DATA_TEXT]; /* without quotes; "": not recorded */
    int64_t data_since;
    const char *kept_rows; /* JSON without quotes; NULL: none. Borrowed, too */
};

/* "0.9 -1.5 2.25", as in the metadata. */
void checkpoint_interval_text(const struct interval *interval, char text[INTERVAL_TEXT]);

/* A consistent copy of an engine's state, taken between two steps: every vector of the model, in its layout. */
struct checkpoint_state {
    const struct model *model;        /* borrowed */
    const struct config_train *train; /* borrowed */
    /* [model->float_count] each, 64-byte aligned, or NULL, as in struct store. STORE_SENT: the caller's, in no file. */
    float *vectors[STORE_PS_VECTORS];
    void *memory;
};

void checkpoint_state_create(struct checkpoint_state *state, const struct model *model,
                             const struct config_train *train);
void checkpoint_state_destroy(struct checkpoint_state *state);

/* Copies the vectors that both have, of the same model. */
void checkpoint_state_copy(struct checkpoint_state *to, const struct checkpoint_state *from);

/*
 * From now on every digest in this process is made with the secret in this file (output.checkpoint_key; "": none), and
 * only files with such a digest are opened. Call it before other threads use checkpoints; later calls change nothing.
 */
bool checkpoint_use_key(const char *path, struct error *error);

/*
 * Writes a checkpoint to `path`, atomically (base/file.h). Any thread. Takes little extra memory: tensors are written
 * straight from the state.
 */
bool checkpoint_write(const char *path, const struct checkpoint_state *state, const struct checkpoint_info *info,
                      struct error *error);

/* An open checkpoint, verified to be complete and unaltered. One thread at a time. */
struct checkpoint_file;

enum checkpoint_status {
    CHECKPOINT_OPENED,
    CHECKPOINT_DAMAGED,    /* torn, altered, or not written by this program */
    CHECKPOINT_UNREADABLE, /* for another reason: no such file, no permission, a newer format, no memory */
};

/* Opens and verifies; unless the status is CHECKPOINT_OPENED, *file is NULL and the error names the file. */
enum checkpoint_status checkpoint_open(struct checkpoint_file **file, const char *path, struct error *error);
void checkpoint_close(struct checkpoint_file *file); /* NULL is fine */

const char *checkpoint_path(const struct checkpoint_file *file);

/* In hex: what distinguishes checkpoints, since a run that is trained anew ends at the same step. */
enum { CHECKPOINT_DIGEST_HEX = 64 };
const char *checkpoint_digest(const struct checkpoint_file *file);
const struct checkpoint_info *checkpoint_file_info(const struct checkpoint_file *file);

/* The trained model: sets layers, layer_count and activation; the rest of `config` stays. */
void checkpoint_file_model(const struct checkpoint_file *file, struct config_model *config);

/*
 * Fills every vector of the state. Fails if the file does not fit the state's model and optimizer: the error then says
 * what differs (layer1/weights is [300,10] there and [500,10] here), and the state is unchanged. If reading fails, the
 * state is lost.
 */
bool checkpoint_load(struct checkpoint_file *file, struct checkpoint_state *state, struct error *error);

/*
 * Fills every vector as far as the file fits: what the file lacks gets its initial value, and what has no place is
 * skipped. Parameters that do not fit keep the caller's values (a new model's). lost: a message about all of that, ""
 * if no parameters are lost.
 */
bool checkpoint_load_fitting(struct checkpoint_file *file, struct checkpoint_state *state, char *lost, size_t size,
                             struct error *error);

/* Which of a checkpoint's weights to load: the trained ones, or their moving averages. */
enum checkpoint_weights {
    CHECKPOINT_BEST_WEIGHTS /* the averages if the file has them */,
    CHECKPOINT_RAW,
    CHECKPOINT_AVERAGED
};

/*
 * For evaluation, whatever the file's optimizer: reads parameters, or their averages (*averaged, if not NULL, says
 * which), into values [model->float_count]. Fails for CHECKPOINT_AVERAGED if the file has none.
 */
bool checkpoint_load_parameters(struct checkpoint_file *file, const struct model *model, enum checkpoint_weights which,
                                float *values, bool *averaged, struct error *error);

/* Tensors and metadata as they are in the header, valid while the file is open. */
const struct safetensors *checkpoint_file_tensors(const struct checkpoint_file *file);

/* Reads elements [first, first + count) of one of those tensors, row-major without padding. */
bool checkpoint_read_tensor(struct checkpoint_file *file, const struct safetensors_tensor *tensor, uint64_t first,
                            size_t count, float *values, struct error *error);

#endif
