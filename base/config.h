/*
 * The configuration of a run: one struct, filled from defaults, then config.json, then flags.
 *
 * One table (base/config/keys.c) gives for every key its JSON path, type, range, default, description, scope and change
 * class. From it come the JSON parser, the flags (a key's flag is the last part of its path: train.batch_size is
 * --batch_size), `config schema`, `config show` and the reference text of `help`.
 *
 * A struct config owns everything it points to; config_free releases it. It is not changed after start-up, and any
 * thread may read it.
 */
#ifndef BASE_CONFIG_H
#define BASE_CONFIG_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/config.h"
#include "base/config/kinds.h"
#include "base/error.h"
#include "base/log.h"

enum {
    CONFIG_MAX_WIDTH = 65536,    /* units of a layer */
    CONFIG_MAX_INPUTS = 1 << 20, /* units of the input layer: a table has one per category */
    CONFIG_MOST_BINS = 64,       /* of an encoded number */
    CONFIG_MAX_FOLDS = 20,
    CONFIG_MAX_HOSTS = 1024,    /* in one list */
    CONFIG_MAX_WORKERS = 16384, /* in worker_hosts plus, with `elastic`, beyond it */
    CONFIG_ASKED_A_SECOND = 200,
    CONFIG_WORKER_RANGES = CONFIG_MAX_WORKERS / 2, /* ranges (first, count) that describe any set of workers */
    CONFIG_DIGEST_HEX = 64,                        /* BLAKE2b-256 in hex */
    CONFIG_AUTO = -1,                              /* a count determined at run time */
};

#define CONFIG_DEFAULT_PATH "config.json" /* in the current folder, unless --config names another */

enum cluster_source { CLUSTER_BY_KEYS, CLUSTER_BY_SLURM };
enum job_name { JOB_LOCAL, JOB_PS, JOB_WORKER, JOB_EVALUATOR };
enum initializer { INITIALIZER_ZEROS, INITIALIZER_TRUNCATED_NORMAL, INITIALIZER_GLOROT, INITIALIZER_HE };
enum device_kind { DEVICE_AUTO, DEVICE_CPU, DEVICE_GPU };
enum { LAYER_ANYWHERE, LAYER_ON_CPU, LAYER_ON_GPU }; /* train.placement; LAYER_ON_GPU + N: gpu:N */
enum data_source { DATA_AUTO, DATA_IDX, DATA_SYNTHETIC, DATA_TFRECORD, DATA_FOLDERS, DATA_TABLE };
enum label_dtype { LABEL_AUTO, LABEL_UINT8, LABEL_INT32, LABEL_INT64, LABEL_FLOAT32, LABEL_FLOAT64 };
enum picture_color { COLOR_AUTO, COLOR_GRAY, COLOR_RGB };
enum picture_fit { PICTURE_FIT_AUTO, PICTURE_FIT_SCALE, PICTURE_FIT_DIGITS };
enum table_header { HEADER_AUTO, HEADER_YES, HEADER_NO };
/* Values as the order of a numeric date's parts; DATES_AUTO: found in the column. */
enum table_dates { DATES_AUTO, DATES_DMY, DATES_MDY, DATES_YMD };
enum table_decimal { DECIMAL_AUTO, DECIMAL_POINT, DECIMAL_COMMA };
/* How the probabilities of a trained model are corrected. */
enum calibration {
    CALIBRATION_NONE,
    CALIBRATION_TEMPERATURE, /* worker/evaluation/calibration.h */
};

enum table_encoding {
    ENCODING_AUTO,
    ENCODING_NONE,
    ENCODING_PLE,
    ENCODING_BOTH, /* no key has it: for models of which some take numbers as they are, some encoded */
};
enum table_scaling { SCALING_STANDARD, SCALING_ROBUST, SCALING_MINMAX, SCALING_NONE };
enum data_sharding { SHARDING_SHUFFLED, SHARDING_DISJOINT, SHARDING_CHIEF, SHARDING_OWN };
enum placement_policy { PLACEMENT_RANGES, PLACEMENT_ROUND_ROBIN, PLACEMENT_GREEDY };
enum outer_optimizer { OUTER_AVERAGE, OUTER_MOMENTUM, OUTER_NESTEROV, OUTER_ADAM };
enum round_weights { WEIGHTS_BY_EXAMPLES, WEIGHTS_EQUAL };
enum validate_by { VALIDATE_AUTO, VALIDATE_BY_CHIEF, VALIDATE_BY_WORKERS };
enum final_test { FINAL_TEST_BEST, FINAL_TEST_NEWEST };
enum aggregate_kind { AGGREGATE_MEAN, AGGREGATE_TRIMMED_MEAN, AGGREGATE_MEDIAN };
enum wire_dtype { WIRE_FLOAT32, WIRE_BFLOAT16, WIRE_INT8 };

struct string_list {
    char **items;
    int count;
};

struct config_cluster {
    enum cluster_source cluster; /* where job_name, task_index and both lists come from */
    enum job_name job_name;
    int task_index;                  /* CONFIG_AUTO: worker/remote/worker.h finds one */
    struct string_list ps_hosts;     /* "host:port" */
    struct string_list worker_hosts; /* "host:port" */
    int ps_count, base_port;         /* for cluster=slurm: base/config/scheduler.h */
    bool issync;
    int replicas_to_aggregate;       /* gradients per synchronous step; 0 = one per worker */
    int min_replicas;                /* fewest gradients for a synchronous step */
    enum placement_policy placement; /* which ps holds what */
    bool elastic;                    /* workers beyond worker_hosts may join */
    int elastic_workers;             /* at most this many of them */
    char *worker_name;               /* with elastic: by which a worker gets the same index again; "": by what it is */
    int min_workers;                 /* training starts once this many have joined */
    int max_staleness;               /* steps a worker may be ahead of the slowest; 0 = no limit */
    enum wire_dtype wire_dtype;      /* of gradients and parameters on the wire */
    double wire_top;                 /* share of a gradient's elements sent, the largest first; 1 = all */
    bool local;                      /* exchange through shared memory with members on this machine */
    int pipeline_depth;              /* pushes that may be in flight while the next step computes */
    double lease_secs;               /* a member not heard from for this long counts as lost */
    double recovery_wait_secs;       /* longest delay between reconnects to a lost ps */
    double join_secs;                /* a worker that reaches no other member for this long after its start gives up */
    char *bind;                      /* address to listen on; "" = all interfaces */
    bool serve_forever;              /* a ps waits for the next job when this one is over */
    double leave_secs;               /* after a signal, a ps waits this long for worker 0 to leave first */
};

/* The largest number of workers: those in worker_hosts, plus elastic_workers with `elastic`. */
static inline int config_worker_room(const struct config_cluster *cluster)
{
    int room = cluster->worker_hosts.count + (cluster->elastic ? cluster->elastic_workers : 0);
    return room < CONFIG_MAX_WORKERS ? room : CONFIG_MAX_WORKERS;
}

/*
 * The interval, in seconds, at which each member polls a ps: often_s, or longer if all workers together would exceed
 * CONFIG_ASKED_A_SECOND requests a second.
 */
static inline double config_pace_s(const struct config_cluster *cluster, double often_s)
{
    const double pace_s = (double)config_worker_room(cluster) / CONFIG_ASKED_A_SECOND;
    return pace_s > often_s ? pace_s : often_s;
}

/* A worker's address in worker_hosts; "not listed" beyond the list. */
static inline const char *config_worker_host(const struct config_cluster *cluster, int index)
{
    return index < cluster->worker_hosts.count ? cluster->worker_hosts.items[index] : "not listed";
}

struct config_model {
    int layers[CONFIG_MAX_LAYERS]; /* units: input, hidden ..., classes */
    int layer_count;               /* entries of layers, 2..CONFIG_MAX_LAYERS */
    int hidden[CONFIG_MAX_LAYERS]; /* units of the hidden layers; input and output follow from the data */
    int hidden_count;              /* CONFIG_AUTO: as in layers; for a table without layers set, one layer of 256 */
    enum activation activation;    /* of the hidden layers */
    enum initializer initializer;  /* of the weights */
    double init_stddev;            /* of truncated_normal */
    double init_bias;              /* every bias starts here */
    char *ensemble;                /* "auto", or several nets whose outputs are averaged: "raw:1,ple:1" */
    /*
     * Not keys, but what follows from that: the nets, which are alike but for their views of the inputs. 0: a single
     * one, of the raw view, and the rest is not set.
     */
    int net_count;
    enum number_view views[CONFIG_MAX_NETS];
    int net_inputs[CONFIG_MAX_NETS]; /* units of the first layer; 0: as in layers */
};

/* Reads "2/5", data.fold: part *fold, from 1, of *folds; 0 of 0 for "". */
bool config_parse_fold(const char *text, int *fold, int *folds, struct error *error);

/* Reads "raw:1,ple:1" into net_count and views. */
bool config_parse_ensemble(struct config_model *model, const char *text, struct error *error);

/* The nets of a model, at least 1, and the units of a net's first layer. */
static inline int config_nets(const struct config_model *model)
{
    return model->net_count > 1 ? model->net_count : 1;
}

static inline int config_net_inputs(const struct config_model *model, int net)
{
    return net < model->net_count && model->net_inputs[net] > 0 ? model->net_inputs[net] : model->layers[0];
}

/* What validation measures; METRIC_AUTO: evaluation_best_metric (worker/evaluation/evaluate.h) says. */
enum metric {
    METRIC_AUTO,
    METRIC_LOSS,
    METRIC_ACCURACY,
    METRIC_BALANCED_ACCURACY,
    METRIC_LOG_LOSS,
    METRIC_ROC_AUC,
    METRIC_AVERAGE_PRECISION,
    METRIC_F1,
    METRIC_MCC,
    METRIC_MAE,
    METRIC_RMSE,
    METRIC_R2,
    METRIC_PINBALL,
    METRICS
};

struct config_train {
    enum optimizer_kind optimizer;
    double learning_rate;   /* auto: config_load fills in the optimizer's default, as for the keys below marked so */
    int retries;            /* no key: times that a divergence has lowered the rate (schedule_lowered_rate) */
    double lr_decay;        /* learning rate x lr_decay^(step / lr_decay_steps); 1 = constant */
    int64_t lr_decay_steps; /* 0 = the steps of one epoch */
    bool lr_staircase;
    int64_t lr_warmup_steps; /* of linear warm-up; 0 = none */
    int64_t lr_cosine_steps; /* of cosine decay; 0 = none */
    double lr_cosine_end;    /* fraction of the learning rate that remains after it */
    double momentum;
    bool nesterov;
    bool lazy_updates;   /* parameters with zero gradient are not updated */
    double adagrad_init; /* initial accumulator of adagrad and ftrl */
    double rho;          /* adadelta */
    double beta1, beta2; /* adam */
    double epsilon;      /* adam, adadelta and rmsprop */
    double rmsprop_decay, rmsprop_momentum;
    double label_smoothing;
    double dropout;      /* share of hidden units dropped in a training step */
    double clip_norm;    /* a batch's gradient is scaled down to this norm; 0 = never */
    double l1;           /* ftrl */
    double l2;           /* weights only: adds l2/2 x |w|^2 to the loss */
    double weight_decay; /* weights only: each step subtracts learning rate x this x weight */
    double ema_decay;    /* 0 = no moving averages */
    int batch_size;      /* auto, until the data are known (dataset_choose): 100 */
    int micro_batches;
    int local_steps;    /* a worker's steps between two exchanges; 1 = no rounds, every step is shared */
    int local_epochs;   /* the same, in passes over the worker's examples; 0 = use local_steps */
    double proximal_mu; /* pulls a worker's parameters towards the round's initial ones */
    enum outer_optimizer outer_optimizer;
    double outer_learning_rate; /* 0 or unset in the file: the outer optimizer's default, likewise */
    double outer_momentum;
    enum round_weights round_weights;
    enum aggregate_kind aggregate; /* how a round's differences are combined for outer_optimizer */
    double trim;                   /* share that trimmed_mean drops at each end */
    double clip_difference_norm;   /* larger differences are scaled down to this norm; 0 = off */
    double participation;          /* share of the present workers that take part in a round */
    double over_selection;         /* workers asked per worker that a round needs, at least 1 */
    double round_deadline_secs;    /* after this time a round is completed with what has arrived; 0 = none */
    int buffer_size;               /* asynchronous rounds: differences per global step; 0 = synchronous rounds */
    int64_t train_steps;           /* last global step, as StopAtStepHook's last_step; 0 = no limit (auto) */
    double epochs;                 /* 0 = no limit (auto) */
    double time_limit;             /* seconds of the process, from its start to the tested model; 0 = no limit */
    enum loss_kind loss;           /* LOSS_AUTO: follows from the target */
    double huber_delta;            /* errors up to this count quadratically */
    double quantile;               /* the quantile that LOSS_QUANTILE predicts and pinball measures */
    double anomaly_quantile;       /* reconstruction errors above this quantile of validation's are anomalies */
    char *class_weights;           /* "": all 1; "balanced"; "name:weight,..." */
    enum metric best_metric;
    enum final_test final_test;   /* which model the final test measures */
    int divergence_retries;       /* 0 = a divergence ends the run */
    enum validate_by validate_by; /* whose rows a validation uses, where each worker has its own */
    double target_accuracy;       /* stop once validation reaches it; 0 = never */
    double target_metric;         /* the same for best_metric; 0 = never */
    int patience;                 /* stop after this many validations without a new best; 0 = never (auto) */
    enum calibration calibration; /* of probabilities, by the validation examples */
    double
        interval; /* the share of targets that intervals around predicted numbers are to contain; 0: there are none */
    double threshold; /* of two classes, from which score on the second is predicted; CONFIG_AUTO: found */
    int64_t seed;
    char *warm_start;       /* checkpoint to initialize a new run from; "" = none */
    int num_threads;        /* 0 = the CPUs this process may use */
    double max_steps_per_s; /* of this process; 0 = no limit */
    enum device_kind device;
    int device_index;                     /* of gpu:N */
    char *towers;                         /* "gpu:0,gpu:1"; "" = device alone */
    int placement[CONFIG_MAX_LAYERS - 1]; /* per layer of weights: LAYER_ANYWHERE (as `device` says), ... */
    bool allow_soft_placement;
    bool log_device_placement;
    double gpu_memory_fraction;
    double gpu_timeout_secs;
    enum precision precision; /* of a GPU */
    enum cpu_kernels cpu_kernels;
    bool is_outer; /* not a key: of the shared model of rounds (ps/store/rounds.h) */
};

/* True if workers take several local steps between two exchanges (worker/local_steps.h). */
static inline bool config_has_rounds(const struct config_train *train)
{
    return train->local_steps > 1 || train->local_epochs > 0;
}

/* True if a round asks only some of the workers. */
static inline bool config_asks_some(const struct config_train *train)
{
    return train->participation > 0 && train->participation < 1;
}

/* The pictures that a model learns from. */
struct image_shape {
    int height, width; /* 0: not known */
    int channels;      /* 1: grey; 3: red, green and blue of each pixel in turn */
    bool digits;       /* other pictures are normalised like the digits of MNIST, not only scaled */
};

struct config_data {
    char *data_dir;
    enum data_source data_source;
    int validation_size; /* the first training examples, held out; 0 = none; CONFIG_AUTO: dataset_held_out */
    int synthetic_train, synthetic_test;
    /* Not keys, but the file names of one round of `train --follow`: it trains on the first list, and is tested on
       rows held out of the second. NULL: all files. */
    const struct string_list *round_files, *tested_files;
    /* Nor a key: the columns that a model was trained on, to know a file's row of names by. NULL: none. */
    const struct string_list *known_names;
    char *train_files, *test_files;      /* TFRecord files in data_dir, as shell patterns */
    char *image_feature, *label_feature; /* of their tf.train.Examples */
    enum label_dtype label_dtype;        /* of labels that are raw bytes */
    enum label_dtype feature_dtype;      /* of a table's other features that are raw bytes; auto: left out */
    enum picture_color color;            /* of pictures; auto: in colour if any training picture is stored so */
    char *image_size;                    /* "auto", "32" or "32x48" (height x width) */
    enum picture_fit image_fit;          /* how pictures of another size are fitted */
    /* Not a key: what follows from those three and the training set, or from a checkpoint. height 0: not known yet. */
    struct image_shape shape;
    bool new_data;                    /* a run may go on with other data than it was trained on */
    int max_bad_records;              /* damaged records to skip per part */
    int memory_mb;                    /* for images; a larger set streams from disk; 0 = half of the available memory */
    int shuffle_buffer;               /* images shuffled together when streaming */
    enum data_sharding data_sharding; /* how images are divided among the workers of a cluster */
    struct string_list target;        /* columns of a table to learn, by name or number; "inputs" = all inputs */
    struct string_list features;      /* to learn from; empty = all columns without another use */
    struct string_list ignore;        /* not to learn from */
    struct string_list categorical;   /* numeric columns that hold categories */
    char *weight;                     /* column of row weights; "" = all rows count alike */
    char *group;                      /* rows of one group stay together when split; "" = each row by itself */
    char *fold;                       /* "2/5": which of how many parts of the rows is held out; "" = by size */
    char *time;                       /* column of times: the latest rows are held out; "" = split by a hash */
    enum table_header header;         /* of CSV files */
    struct string_list missing;       /* texts that stand for a missing value, besides the usual ones */
    enum table_dates dates;           /* order of a date's parts */
    enum table_decimal decimal;       /* the decimal sign of numbers in text */
    enum table_scaling scaling;       /* of numbers */
    enum table_encoding encoding;     /* of numbers */
    int bins;                         /* of an encoded number, at most */
    int category_min;                 /* rarer categories share an input with unseen ones */
    double test_share;                /* share of the rows, if there are no test files */
    char *cache_dir;                  /* for rows that do not fit into memory; "" = train_dir, TMPDIR or /var/tmp */
};

struct config_output {
    char *train_dir;           /* "" = save nothing */
    int64_t save_steps;        /* 0 = not by steps */
    double save_model_secs;    /* 0 = not by time */
    int max_to_keep;           /* 0 = all */
    double keep_every_n_hours; /* 0 = none kept for good */
    int kept_rows;        /* held-out rows stored in each checkpoint (worker/evaluation/kept_rows.h); or CONFIG_AUTO */
    char *checkpoint_key; /* file with the secret of checkpoints' digests; "" = none */
    bool shared_files;    /* files of a run may be read by other users, as the umask says */
    int64_t log_steps;
    int64_t validate_steps;       /* 0 = at the end of every epoch */
    char *summary_dir;            /* "" = a folder in train_dir, if there is one */
    int64_t save_summaries_steps; /* 0 = not by steps */
    double save_summaries_secs;   /* 0 = not by time */
    char *profile;                /* file for a trace of what every thread does; "" = none */
    enum log_format log_format;
    bool progress; /* a progress bar where standard output is a terminal */
};

struct config_security {
    char *fleet_key; /* "" = fleet.key beside the config */
    bool insecure;   /* plain TCP, no authentication */
    bool seccomp;    /* only the system calls that the role needs */
};

struct config_observe {
    char *http;            /* address of this process's HTTP status server; "" = none */
    char *http_cert;       /* PEM; "" = the member's own key, plain text on loopback */
    char *http_key;        /* PEM; "" = in http_cert */
    char *http_token_file; /* holds the token that clients must present; "" = none */
    char *http_hosts;      /* names by which clients may call it, besides its own; "" = none */
    char *http_cors;       /* origins whose pages may use it; "" = none */
    bool http_insecure;    /* plain text, no token, reachable from anywhere */
};

struct config_fleet {
    char *name;
    int64_t version;
};

struct config_origin; /* where a value came from: base/config/keys.h */

struct config {
    struct config_cluster cluster;
    struct config_model model;
    struct config_train train;
    struct config_data data;
    struct config_output output;
    struct config_security security;
    struct config_observe observe;
    struct config_fleet fleet;
    char *path;                    /* of the file that was read; NULL: none, built-in defaults */
    struct config_origin *origins; /* one per key, for `config show` and errors */
};

/* A value from the command line for the key with this flag: {"batch_size", "100"}. */
struct config_setting {
    const char *flag; /* without the dashes */
    const char *text;
};

/* Every key at its default, as with no config.json and no flags. */
void config_defaults(struct config *config);

/*
 * Applies in turn, each overriding the one before: defaults; the file; the version rolled out to this machine, if it is
 * newer than the file's fleet.version (base/config/versions.h); the scheduler's environment variables (TF_CONFIG; with
 * cluster=slurm Slurm's: base/config/scheduler.h); the settings. Then checks ranges and relations. path NULL:
 * config.json in the current folder if there is one. On failure the config is left empty and need not be freed.
 */
bool config_load(struct config *config, const char *path, const struct config_setting *settings, int setting_count,
                 struct error *error);

/* One version as JSON: its job-scoped keys, and its machine-scoped keys (NULL: none). */
struct config_texts {
    const char *job;
    size_t job_size;
    const char *local;
    size_t local_size;
};

/*
 * The config that this process would get if it restarted in that version. `here` is the config it was started with: its
 * file is read again, its flags and environment stay.
 */
bool config_in_version(struct config *config, const struct config *here, const struct config_texts *texts,
                       struct error *error);

/*
 * config_load from bytes in memory, called `name` in errors; a pure function of its arguments. bytes NULL: no file.
 */
bool config_parse(struct config *config, const char *name, const uint8_t *bytes, size_t size,
                  const struct config_setting *settings, int setting_count, struct error *error);

/*
 * True if every worker of the cluster validates the model on its own rows (train.validate_by). They must agree on the
 * steps at which they do so, because epochs end at different steps on each.
 */
static inline bool config_validates_together(const struct config *config)
{
    return config->data.data_sharding == SHARDING_OWN && config->cluster.ps_hosts.count > 0 && config->cluster.issync &&
           config->train.ema_decay == 0 && config->output.validate_steps > 0 &&
           config->train.validate_by != VALIDATE_BY_CHIEF;
}

/* Safe on a zeroed config, and safe to call twice. */
void config_free(struct config *config);

/*
 * What the members of a job must agree on: BLAKE2b-256, in hex, of the job-scoped keys' values in effect, as canonical
 * text. The file's order and white space do not matter, nor whether a value was written down or is a default.
 */
void config_digest(const struct config *config, char digest[CONFIG_DIGEST_HEX + 1]);

/*
 * That text: one JSON object of the job-scoped keys, sections and keys in the table's order. Keys newer than builds
 * still in use appear only if they differ from their defaults (omit_default, base/config/keys.h), so that old and new
 * builds agree on a config that both understand. The caller frees it.
 */
char *config_job_text(const struct config *config);

/* The same for the keys that `wanted` selects; wanted NULL: all keys. */
struct config_key;
char *config_keys_text(const struct config *config, bool (*wanted)(const struct config_key *key, const void *context),
                       const void *context);

/*
 * Checks what this process's role needs beyond valid keys: host lists, and a task_index within them. Called by commands
 * that take on a role; local training needs neither.
 */
bool config_check_role(const struct config *config, struct error *error);

/* True if the data are a table: only there is something to be named as the target. */
static inline bool config_is_of_table(const struct config *config)
{
    return config->data.target.count > 0 || config->data.data_source == DATA_TABLE;
}

/* True if the key is "auto" and what was chosen for it stands in its field. */
bool config_was_chosen(const struct config *config, const char *section, const char *name);

/* The key is "auto", and the caller has set its field to what it chose; or it is so no longer. */
void config_note_chosen(struct config *config, const char *section, const char *name, bool is_chosen);

/* Of a table whose few rows leave none to validate on: what was chosen for patience and epochs is for that. */
void config_choose_blind(struct config *config);

/*
 * The optimizer's default learning rate: of pictures what reaches 97.8% on MNIST with 784-500-10 in the default number
 * of steps, of tables lower ones, since their inputs are correlated and their targets may be numbers. config_load
 * substitutes it for "auto".
 */
double config_default_learning_rate(enum optimizer_kind kind, bool of_table);
double config_default_outer_rate(enum outer_optimizer kind); /* the same for train.outer_learning_rate */

/* Names of enum values, as in the file. */
const char *config_optimizer_name(enum optimizer_kind kind);
const char *config_outer_name(enum outer_optimizer kind);
const char *config_view_name(enum number_view view);
const char *config_activation_name(enum activation activation);
const char *config_loss_name(enum loss_kind loss);
bool loss_is_of_numbers(enum loss_kind loss); /* not of classes, nor of yes and no */
const char *config_metric_name(enum metric metric);
const char *config_precision_name(enum precision precision);

/* --- Polling intervals --- */

/*
 * Polling intervals of idle members, in seconds: long enough that thousands of members cost a ps next to nothing, short
 * enough to renew their leases. Also, when members reconnect after a ps restarts.
 */

/* The interval between a worker's heartbeats. */
static inline double pace_beat_s(const struct config_cluster *cluster)
{
    return fmin(cluster->lease_secs / 3, config_pace_s(cluster, 1));
}

/* The longest time that a ps holds the request of a worker waiting for a round; the worker is silent meanwhile. */
static inline double pace_round_s(const struct config_cluster *cluster)
{
    return fmin(config_pace_s(cluster, 1), fmax(5, cluster->lease_secs / 4));
}

/* The interval between a member's reports to ps 0 while nothing is rolled out: how late it may hear of a rollout. */
static inline double pace_report_s(const struct config_cluster *cluster)
{
    return fmin(config_pace_s(cluster, 0.5), 20);
}

/*
 * When a ps restarts, all its peers reconnect, and each handshake takes both ends milliseconds. So worker 0, which has
 * the model, comes first; links that training needs follow within this time, at random; links that can wait come after
 * them, within as long again. Next to nothing for few workers, and bounded for very many, whom a listener admits in
 * turn anyway.
 */
static inline double pace_return_s(const struct config_cluster *cluster)
{
    return fmin(0.01 * cluster->worker_hosts.count, fmin(1, cluster->lease_secs / 8));
}

#endif
