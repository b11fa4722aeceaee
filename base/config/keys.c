/* The table of keys: the single definition of what config.json may hold. */
#include "base/config/keys.h"

#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/threads.h"

#define AT(member) offsetof(struct config, member)

/* 2^53 - 1: the largest integer that every JSON reader keeps exact. */
#define MAX_EXACT 9007199254740991.0

static const char *const job_names[] = {"local", "ps", "worker", "evaluator", NULL};
static const char *const cluster_sources[] = {"none", "slurm", NULL};
static const char *const activations[] = {"relu", "sigmoid", "tanh", "identity", NULL};
static const char *const initializers[] = {"zeros", "truncated_normal", "glorot", "he", NULL};
static const char *const optimizers[] = {"sgd",     "momentum", "adagrad", "adadelta", "adam",
                                         "rmsprop", "ftrl",     "auto",    NULL};
static const char *const losses[] = {"auto", "softmax", "sigmoid", "mse", "mae", "huber", "quantile", NULL};
static const char *const metrics[] = {
    "auto", "loss", "accuracy", "balanced_accuracy", "log_loss", "roc_auc", "average_precision", "f1", "mcc",
    "mae",  "rmse", "r2",       "pinball",           NULL};
static const char *const calibrations[] = {"none", "temperature", NULL};
static const char *const kernels[] = {"auto", "reference", "avx2", "avx512", "neon", NULL};
static const char *const sources[] = {"auto", "idx", "synthetic", "tfrecord", "folders", "table", NULL};
static const char *const label_dtypes[] = {"auto", "uint8", "int32", "int64", "float32", "float64", NULL};
static const char *const colors[] = {"auto", "gray", "rgb", NULL};
static const char *const picture_fits[] = {"auto", "scale", "digits", NULL};
static const char *const headers[] = {"auto", "yes", "no", NULL};
static const char *const dates[] = {"auto", "dmy", "mdy", "ymd", NULL};
static const char *const decimals[] = {"auto", "point", "comma", NULL};
static const char *const encodings[] = {"auto", "none", "ple", NULL};
static const char *const scalings[] = {"standard", "robust", "minmax", "none", NULL};
static const char *const shardings[] = {"shuffled", "disjoint", "chief", "own", NULL};
static const char *const outer_optimizers[] = {"average", "momentum", "nesterov", "adam", NULL};
static const char *const validators[] = {"auto", "chief", "workers", NULL};
static const char *const tested_models[] = {"best", "newest", NULL};
static const char *const aggregates[] = {"mean", "trimmed_mean", "median", NULL};
static const char *const round_weights[] = {"examples", "equal", NULL};
static const char *const placements[] = {"ranges", "round_robin", "greedy", NULL};
static const char *const wire_dtypes[] = {"float32", "bfloat16", "int8", NULL};
static const char *const precisions[] = {"float32", "tf32", "bfloat16", NULL};
static const char *const log_formats[] = {"text", "json", NULL};

/* clang-format off */
const struct config_key config_keys[] = {
    {"cluster", "cluster", KEY_WORD, AT(cluster.cluster), .words = cluster_sources, .initial = "none",
     .scope = SCOPE_MACHINE, .change = CHANGE_LOCAL,
     .description = "scheduler that defines this process's role and the other members' addresses: none = these keys "
                    "or TF_CONFIG; slurm = the tasks that srun starts are the members"},
    {"cluster", "job_name", KEY_WORD, AT(cluster.job_name), .words = job_names, .initial = "local",
     .scope = SCOPE_MACHINE, .change = CHANGE_LOCAL,
     .description = "role of this process: local trains on this machine alone; evaluator evaluates every checkpoint "
                    "in train_dir"},
    {"cluster", "task_index", KEY_COUNT, AT(cluster.task_index), .takes_auto = true, .maximum = CONFIG_MAX_WORKERS - 1,
     .initial = "0", .scope = SCOPE_MACHINE, .change = CHANGE_LOCAL,
     .description = "index of this process in its role's host list; worker 0 is the chief; auto = for workers, the "
                    "one in the certificate, or with elastic a free one beyond the list, which stays the same across "
                    "restarts"},
    {"cluster", "ps_hosts", KEY_HOSTS, AT(cluster.ps_hosts), .initial = "", .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "addresses of the parameter servers"},
    {"cluster", "worker_hosts", KEY_HOSTS, AT(cluster.worker_hosts), .initial = "",
     .scope = SCOPE_JOB, .change = CHANGE_JOB, .description = "addresses of the workers"},
    {"cluster", "ps_count", KEY_COUNT, AT(cluster.ps_count), .minimum = 1, .maximum = CONFIG_MAX_HOSTS,
     .initial = "1", .scope = SCOPE_MACHINE, .change = CHANGE_LOCAL,
     .description = "with cluster=slurm: number of ps; they are the first tasks, the others are the workers"},
    {"cluster", "base_port", KEY_COUNT, AT(cluster.base_port), .minimum = 1, .maximum = 65535, .initial = "2222",
     .scope = SCOPE_MACHINE, .change = CHANGE_LOCAL,
     .description = "with cluster=slurm: port of the first task on each node; the next ones follow"},
    {"cluster", "issync", KEY_SWITCH, AT(cluster.issync), .initial = "false", .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "average the workers' gradients into one step instead of applying each as it arrives"},
    {"cluster", "replicas_to_aggregate", KEY_COUNT, AT(cluster.replicas_to_aggregate), .maximum = CONFIG_MAX_WORKERS,
     .initial = "0", .scope = SCOPE_JOB, .change = CHANGE_LIVE,
     .description = "gradients per synchronous step; workers beyond that number are backups; 0 = one per worker"},
    {"cluster", "min_replicas", KEY_COUNT, AT(cluster.min_replicas), .minimum = 1, .maximum = CONFIG_MAX_WORKERS,
     .initial = "1", .scope = SCOPE_JOB, .change = CHANGE_LIVE,
     .description = "with issync: as workers are lost, steps shrink to the survivors, but never below this many "
                    "gradients"},
    {"cluster", "placement", KEY_WORD, AT(cluster.placement), .words = placements, .initial = "ranges",
     .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "how parameters are spread over the ps: equal ranges, variables in turn, or each variable to the "
                    "least loaded"},
    {"cluster", "elastic", KEY_SWITCH, AT(cluster.elastic), .initial = "false",
     .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "let elastic_workers beyond worker_hosts join, with a task_index past the end of the list, or "
                    "auto"},
    {"cluster", "elastic_workers", KEY_COUNT, AT(cluster.elastic_workers), .minimum = 1,
     .maximum = CONFIG_MAX_WORKERS, .initial = "64", .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "with elastic: maximum number of workers beyond worker_hosts; each takes some memory on the ps"},
    {"cluster", "worker_name", KEY_TEXT, AT(cluster.worker_name), .initial = "",
     .scope = SCOPE_MACHINE, .change = CHANGE_LOCAL,
     .description = "with elastic and task_index=auto: what this worker is known by, so that it gets the same index "
                    "again; empty = its certificate's key, or its machine, host name, folder and arguments, of which "
                    "a new container has others"},
    {"cluster", "min_workers", KEY_COUNT, AT(cluster.min_workers), .minimum = 1, .maximum = CONFIG_MAX_WORKERS,
     .initial = "1", .scope = SCOPE_JOB, .change = CHANGE_LIVE,
     .description = "training starts once this many workers, including the chief, have loaded their data and joined"},
    {"cluster", "max_staleness", KEY_COUNT, AT(cluster.max_staleness), .maximum = 1e6, .initial = "0",
     .scope = SCOPE_JOB, .change = CHANGE_LIVE,
     .description = "steps that a worker may be ahead of the slowest one before it must wait; 0 = no limit"},
    {"cluster", "wire_dtype", KEY_WORD, AT(cluster.wire_dtype), .words = wire_dtypes, .initial = "float32",
     .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "type of gradients and parameters on the wire; bfloat16 takes about a third of the bytes, int8 a "
                    "quarter (of parameters: in synchronous training)"},
    {"cluster", "wire_top", KEY_NUMBER, AT(cluster.wire_top), .maximum = 1, .above_minimum = true, .initial = "1",
     .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "share of a gradient's floats that a worker sends, the largest ones; the rest is added to the "
                    "next gradient; in synchronous training parameters are sent back in the same way; 1 = all"},
    {"cluster", "local", KEY_SWITCH, AT(cluster.local), .initial = "true", .scope = SCOPE_MACHINE,
     .change = CHANGE_LOCAL,
     .description = "workers exchange gradients and parameters with a ps of the same machine and user through shared "
                    "memory; false = as with all others, over TLS"},
    {"cluster", "pipeline_depth", KEY_COUNT, AT(cluster.pipeline_depth), .maximum = 8, .initial = "0",
     .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "pushes that may be in flight while a worker computes its next step"},
    {"cluster", "lease_secs", KEY_NUMBER, AT(cluster.lease_secs), .minimum = 0.5, .maximum = 3600, .initial = "10",
     .scope = SCOPE_JOB, .change = CHANGE_JOB, .description = "a member not heard from for this long counts as lost"},
    {"cluster", "recovery_wait_secs", KEY_NUMBER, AT(cluster.recovery_wait_secs), .minimum = 0.05, .maximum = 3600,
     .initial = "1", .scope = SCOPE_MACHINE, .change = CHANGE_LOCAL,
     .description = "longest delay between reconnects to a lost ps"},
    {"cluster", "join_secs", KEY_NUMBER, AT(cluster.join_secs), .maximum = 31536000, .initial = "3600",
     .scope = SCOPE_MACHINE, .change = CHANGE_LOCAL,
     .description = "a worker that has reached no other member for this long gives up, since the job may be over; 0 "
                    "= never"},
    {"cluster", "bind", KEY_TEXT, AT(cluster.bind), .initial = "", .scope = SCOPE_MACHINE, .change = CHANGE_LOCAL,
     .description = "what to listen on, if not all interfaces and the port that others are given: an address or host "
                    "name, host:port, [ipv6]:port or :port; a port forwarder needs another port"},
    {"cluster", "serve_forever", KEY_SWITCH, AT(cluster.serve_forever), .initial = "false",
     .scope = SCOPE_MACHINE, .change = CHANGE_LOCAL,
     .description = "keep the ps running for the next job after this one ends"},
    {"cluster", "leave_secs", KEY_NUMBER, AT(cluster.leave_secs), .maximum = 3600, .initial = "0",
     .scope = SCOPE_MACHINE, .change = CHANGE_LOCAL,
     .description = "how long a ps that has to stop first waits for worker 0 to save and leave; 0 = it stops at "
                    "once"},

    {"model", "layers", KEY_LAYERS, AT(model.layers), AT(model.layer_count), 1, CONFIG_MAX_WIDTH,
     .initial = "784,500,10", .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "units per layer: inputs (pixels of an image; up to 1048576), hidden layers, classes; 784,10 is "
                    "softmax regression"},
    {"model", "hidden", KEY_HIDDEN, AT(model.hidden), AT(model.hidden_count), 1, CONFIG_MAX_WIDTH,
     .initial = "auto", .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "units of the hidden layers, with inputs and outputs determined by the data; replaces layers; "
                    "auto = as in layers or, for tables if layers is not set, one layer of 256"},
    {"model", "activation", KEY_WORD, AT(model.activation), .words = activations, .initial = "relu",
     .scope = SCOPE_JOB, .change = CHANGE_JOB, .description = "activation function of the hidden layers"},
    {"model", "initializer", KEY_WORD, AT(model.initializer), .words = initializers, .initial = "glorot",
     .scope = SCOPE_JOB, .change = CHANGE_JOB, .description = "initial distribution of the weights"},
    {"model", "init_stddev", KEY_NUMBER, AT(model.init_stddev), .maximum = 10, .initial = "0.1",
     .scope = SCOPE_JOB, .change = CHANGE_JOB, .description = "standard deviation of initializer truncated_normal"},
    {"model", "init_bias", KEY_NUMBER, AT(model.init_bias), .minimum = -10, .maximum = 10, .initial = "0",
     .scope = SCOPE_JOB, .change = CHANGE_JOB, .description = "initial value of every bias"},
    {"model", "ensemble", KEY_TEXT, AT(model.ensemble), .initial = "auto", .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .omit_default = true,
     .description = "several nets in one model, whose probabilities or numbers are averaged: view:count,..., as "
                    "raw:2; auto = one net; for tables on one machine, if neither layers nor hidden are set, "
                    "raw:1,ple:1 or, without numbers, raw:2"},

    {"train", "optimizer", KEY_WORD, AT(train.optimizer), .words = optimizers, .initial = "auto",
     .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "how gradients update parameters, by TensorFlow's formulas; auto = adam for tables, sgd for "
                    "pictures"},
    {"train", "learning_rate", KEY_NUMBER, AT(train.learning_rate), .takes_auto = true, .maximum = 1e38,
     .above_minimum = true, .initial = "auto", .scope = SCOPE_JOB, .change = CHANGE_LIVE,
     .description = "learning rate at step 0; auto = the optimizer's default for the kind of data"},
    {"train", "lr_decay", KEY_NUMBER, AT(train.lr_decay), .maximum = 1, .above_minimum = true, .initial = "1",
     .scope = SCOPE_JOB, .change = CHANGE_LIVE,
     .description = "the learning rate is multiplied by lr_decay^(step / lr_decay_steps); 1 = constant"},
    {"train", "lr_decay_steps", KEY_LONG, AT(train.lr_decay_steps), .maximum = MAX_EXACT, .initial = "0",
     .scope = SCOPE_JOB, .change = CHANGE_LIVE,
     .description = "steps per factor of lr_decay; 0 = the steps of one epoch"},
    {"train", "lr_staircase", KEY_SWITCH, AT(train.lr_staircase), .initial = "true",
     .scope = SCOPE_JOB, .change = CHANGE_LIVE, .description = "decay in discrete steps: round the exponent down"},
    {"train", "lr_warmup_steps", KEY_LONG, AT(train.lr_warmup_steps), .maximum = MAX_EXACT, .initial = "0",
     .scope = SCOPE_JOB, .change = CHANGE_LIVE,
     .description = "steps over which the learning rate rises linearly to its full value; 0 = no warm-up"},
    {"train", "lr_cosine_steps", KEY_LONG, AT(train.lr_cosine_steps), .maximum = MAX_EXACT, .initial = "0",
     .scope = SCOPE_JOB, .change = CHANGE_LIVE,
     .description = "steps over which the learning rate falls along half a cosine (cosine_decay); 0 = no cosine decay"},
    {"train", "lr_cosine_end", KEY_NUMBER, AT(train.lr_cosine_end), .maximum = 1, .initial = "0",
     .scope = SCOPE_JOB, .change = CHANGE_LIVE,
     .description = "fraction of the learning rate that is left after cosine decay"},
    {"train", "momentum", KEY_NUMBER, AT(train.momentum), .maximum = 1, .below_maximum = true, .initial = "0.9",
     .scope = SCOPE_JOB, .change = CHANGE_LIVE, .description = "coefficient of optimizer momentum"},
    {"train", "nesterov", KEY_SWITCH, AT(train.nesterov), .initial = "false",
     .scope = SCOPE_JOB, .change = CHANGE_LIVE, .description = "use Nesterov momentum, with optimizer momentum"},
    {"train", "lazy_updates", KEY_SWITCH, AT(train.lazy_updates), .initial = "false",
     .scope = SCOPE_JOB, .change = CHANGE_LIVE,
     .description = "leave parameters whose gradient is zero, and their optimizer state, untouched, so that "
                    "categories absent from a batch cost nothing"},
    {"train", "adagrad_init", KEY_NUMBER, AT(train.adagrad_init), .maximum = 1000, .above_minimum = true,
     .initial = "0.1", .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "initial value of the accumulators of optimizers adagrad and ftrl"},
    {"train", "rho", KEY_NUMBER, AT(train.rho), .maximum = 1, .below_maximum = true, .initial = "0.95",
     .scope = SCOPE_JOB, .change = CHANGE_LIVE, .description = "decay rate of optimizer adadelta's averages"},
    {"train", "beta1", KEY_NUMBER, AT(train.beta1), .maximum = 1, .below_maximum = true, .initial = "0.9",
     .scope = SCOPE_JOB, .change = CHANGE_LIVE, .description = "decay rate of optimizer adam's first moment"},
    {"train", "beta2", KEY_NUMBER, AT(train.beta2), .maximum = 1, .below_maximum = true, .initial = "0.999",
     .scope = SCOPE_JOB, .change = CHANGE_LIVE, .description = "decay rate of optimizer adam's second moment"},
    {"train", "epsilon", KEY_NUMBER, AT(train.epsilon), .maximum = 1, .above_minimum = true, .initial = "1e-08",
     .scope = SCOPE_JOB, .change = CHANGE_LIVE,
     .description = "keeps adam, adadelta and rmsprop from dividing by zero"},
    {"train", "rmsprop_decay", KEY_NUMBER, AT(train.rmsprop_decay), .maximum = 1, .below_maximum = true,
     .initial = "0.9", .scope = SCOPE_JOB, .change = CHANGE_LIVE,
     .description = "decay rate of optimizer rmsprop's mean square"},
    {"train", "rmsprop_momentum", KEY_NUMBER, AT(train.rmsprop_momentum), .maximum = 1, .below_maximum = true,
     .initial = "0", .scope = SCOPE_JOB, .change = CHANGE_LIVE, .description = "momentum of optimizer rmsprop"},
    {"train", "l1", KEY_NUMBER, AT(train.l1), .maximum = 1000, .initial = "0",
     .scope = SCOPE_JOB, .change = CHANGE_LIVE,
     .description = "L1 strength of optimizer ftrl, which drives parameters to exact zeros"},
    {"train", "loss", KEY_WORD, AT(train.loss), .words = losses, .initial = "auto",
     .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "what training minimises; auto = softmax for classes, sigmoid for several yes/no targets, mse for "
                    "numbers"},
    {"train", "huber_delta", KEY_NUMBER, AT(train.huber_delta), .maximum = 1e6, .above_minimum = true, .initial = "1",
     .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "error, in standard deviations of the target, above which loss huber is linear"},
    {"train", "quantile", KEY_NUMBER, AT(train.quantile), .maximum = 1, .above_minimum = true, .below_maximum = true,
     .initial = "0.5", .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "quantile that loss quantile predicts and that metric pinball measures"},
    {"train", "anomaly_quantile", KEY_NUMBER, AT(train.anomaly_quantile), .maximum = 1, .above_minimum = true,
     .initial = "0.99", .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "with target=inputs: a row is an anomaly if its error exceeds this quantile of the validation "
                    "rows' errors"},
    {"train", "class_weights", KEY_TEXT, AT(train.class_weights), .initial = "",
     .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "weights of a table's classes in the loss: balanced, or name:weight,...; empty = equal"},
    {"train", "label_smoothing", KEY_NUMBER, AT(train.label_smoothing), .maximum = 1, .below_maximum = true,
     .initial = "0", .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "share of the target probability that is spread evenly over all classes"},
    {"train", "dropout", KEY_NUMBER, AT(train.dropout), .maximum = 1, .below_maximum = true, .initial = "0",
     .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "share of the hidden units that a training step drops, drawn separately for every image"},
    {"train", "clip_norm", KEY_NUMBER, AT(train.clip_norm), .maximum = 1e9, .initial = "0",
     .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "scale a batch's gradient down to this global norm (clip_by_global_norm) before L2; 0 = no "
                    "clipping"},
    {"train", "l2", KEY_NUMBER, AT(train.l2), .maximum = 1000, .initial = "0",
     .scope = SCOPE_JOB, .change = CHANGE_LIVE,
     .description = "adds l2/2 x the sum of squared weights to the loss"},
    {"train", "weight_decay", KEY_NUMBER, AT(train.weight_decay), .maximum = 1000, .initial = "0",
     .scope = SCOPE_JOB, .change = CHANGE_LIVE,
     .description = "each step subtracts learning rate x weight_decay x the weights, separately from the gradient "
                    "(as in AdamW)"},
    {"train", "ema_decay", KEY_NUMBER, AT(train.ema_decay), .takes_auto = true, .maximum = 1, .below_maximum = true,
     .initial = "auto", .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "evaluate with exponential moving averages of the parameters, with this decay rate; 0 = off; auto "
                    "= 0.99 for tables on one machine, if neither layers nor hidden are set, else 0"},
    {"train", "batch_size", KEY_COUNT, AT(train.batch_size), .takes_auto = true, .minimum = 1, .maximum = 65536,
     .initial = "auto", .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "examples per batch; auto = of a table 1/32 of the training rows, from 16 to 256, and of pictures "
                    "100, but never more than there are"},
    {"train", "micro_batches", KEY_COUNT, AT(train.micro_batches), .minimum = 1, .maximum = 1024, .initial = "1",
     .scope = SCOPE_JOB, .change = CHANGE_JOB, .description = "batches whose gradients are averaged into one step"},
    {"train", "local_steps", KEY_COUNT, AT(train.local_steps), .minimum = 1, .maximum = 1e6, .initial = "1",
     .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "steps that each worker takes by itself before the workers' models are averaged into the next "
                    "global step, a round; 1 = every step is shared"},
    {"train", "local_epochs", KEY_COUNT, AT(train.local_epochs), .maximum = 1e6, .initial = "0",
     .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "like local_steps, in passes over the worker's own training examples; 0 = use local_steps"},
    {"train", "proximal_mu", KEY_NUMBER, AT(train.proximal_mu), .maximum = 1000, .initial = "0",
     .scope = SCOPE_JOB, .change = CHANGE_LIVE,
     .description = "with rounds: adds proximal_mu/2 x the squared distance from the round's initial parameters to "
                    "the loss (FedProx)"},
    {"train", "outer_optimizer", KEY_WORD, AT(train.outer_optimizer), .words = outer_optimizers, .initial = "average",
     .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "how the ps apply the mean of a round's differences: average (FedAvg), momentum (FedAvgM), "
                    "nesterov (DiLoCo) or adam (FedAdam)"},
    {"train", "outer_learning_rate", KEY_NUMBER, AT(train.outer_learning_rate), .maximum = 1e38, .initial = "0",
     .scope = SCOPE_JOB, .change = CHANGE_LIVE,
     .description = "learning rate of outer_optimizer; 0 = its default: average 1, momentum 1, nesterov 0.7, adam "
                    "0.01"},
    {"train", "outer_momentum", KEY_NUMBER, AT(train.outer_momentum), .maximum = 1, .below_maximum = true,
     .initial = "0.9", .scope = SCOPE_JOB, .change = CHANGE_LIVE,
     .description = "coefficient of outer_optimizer momentum and nesterov, and adam's first decay rate"},
    {"train", "round_weights", KEY_WORD, AT(train.round_weights), .words = round_weights, .initial = "examples",
     .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "weight of each worker in a round's mean: its number of training examples, or the same for all"},
    {"train", "aggregate", KEY_WORD, AT(train.aggregate), .words = aggregates, .initial = "mean",
     .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "how a round's differences are combined, coordinate by coordinate: their mean or, against faulty "
                    "or malicious workers, trimmed_mean or median, which weight all workers equally"},
    {"train", "trim", KEY_NUMBER, AT(train.trim), .maximum = 0.5, .below_maximum = true, .initial = "0.1",
     .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "share of the values that trimmed_mean drops at each end"},
    {"train", "clip_difference_norm", KEY_NUMBER, AT(train.clip_difference_norm), .maximum = 1e38, .initial = "0",
     .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "scale a worker's difference down to this norm if it is larger; 0 = off"},
    {"train", "participation", KEY_NUMBER, AT(train.participation), .maximum = 1, .above_minimum = true, .initial = "1",
     .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "share of the workers (or --clients) present that is selected for each round, by seed and round"},
    {"train", "over_selection", KEY_NUMBER, AT(train.over_selection), .minimum = 1, .maximum = 100, .initial = "1",
     .scope = SCOPE_JOB, .change = CHANGE_LIVE,
     .description = "with participation below 1: select this many times as many workers as a round needs, such as "
                    "1.2; the first to answer make the round"},
    {"train", "round_deadline_secs", KEY_NUMBER, AT(train.round_deadline_secs), .maximum = 1e6, .initial = "0",
     .scope = SCOPE_JOB, .change = CHANGE_LIVE,
     .description = "how long a round waits before it is made from the differences that have arrived, at least "
                    "min_replicas; 0 = it waits for all workers present"},
    {"train", "buffer_size", KEY_COUNT, AT(train.buffer_size), .maximum = 1e6, .initial = "0",
     .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "asynchronous rounds (FedBuff): every this many differences, from whichever workers, make a "
                    "global step, and no worker waits for another; 0 = rounds are synchronous"},
    {"train", "train_steps", KEY_LONG, AT(train.train_steps), .takes_auto = true, .maximum = MAX_EXACT,
     .initial = "auto", .scope = SCOPE_JOB, .change = CHANGE_LIVE,
     .description = "last global step; 0 = no limit; auto = 10000 for pictures unless epochs is set, else no limit"},
    {"train", "epochs", KEY_NUMBER, AT(train.epochs), .takes_auto = true, .maximum = 1e9, .initial = "auto",
     .scope = SCOPE_JOB, .change = CHANGE_LIVE,
     .description = "passes over the training examples; 0 = no limit; auto = 300 for tables unless train_steps is set, "
                    "otherwise no limit"},
    {"train", "time_limit", KEY_NUMBER, AT(train.time_limit), .maximum = 31536000, .is_time = true, .initial = "0",
     .scope = SCOPE_MACHINE, .change = CHANGE_LOCAL,
     .description = "longest time from the start of this process to the saved and tested model, in seconds or as 90s, "
                    "5m or 2h; training stops early enough; in a cluster worker 0's counts; 0 = no limit"},
    {"train", "target_accuracy", KEY_NUMBER, AT(train.target_accuracy), .maximum = 1, .initial = "0",
     .scope = SCOPE_JOB, .change = CHANGE_LIVE,
     .description = "stop once validation accuracy reaches this, such as 0.97; 0 = never"},
    {"train", "best_metric", KEY_WORD, AT(train.best_metric), .words = metrics, .initial = "auto",
     .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "validation metric that decides which model is best; of equals, the one with the lower loss; auto "
                    "= the loss for tables (of numbers with loss mse: rmse), accuracy for pictures and with a target"},
    {"train", "validate_by", KEY_WORD, AT(train.validate_by), .words = validators, .initial = "auto",
     .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "whose held-out rows are used for validation, with data_sharding=own: the chief's, or all "
                    "workers'; auto = all workers' with issync and validate_steps, and no ema_decay"},
    {"train", "target_metric", KEY_NUMBER, AT(train.target_metric), .maximum = 1e9, .initial = "0",
     .scope = SCOPE_JOB, .change = CHANGE_LIVE,
     .description = "stop once best_metric is this good on validation data; 0 = never"},
    {"train", "patience", KEY_COUNT, AT(train.patience), .takes_auto = true, .maximum = 1e6, .initial = "auto",
     .scope = SCOPE_JOB, .change = CHANGE_LIVE,
     .description = "stop after this many validations without a new best; 0 = never; auto = 30, or never where "
                    "train_steps or epochs is set"},
    {"train", "calibration", KEY_WORD, AT(train.calibration), .words = calibrations, .initial = "none",
     .scope = SCOPE_JOB, .change = CHANGE_JOB, .omit_default = true,
     .description = "temperature = divide the outputs of a table's model by the number that gives the validation "
                    "data's classes the best probabilities; none = not"},
    {"train", "interval", KEY_NUMBER, AT(train.interval), .maximum = 1, .below_maximum = true, .initial = "0",
     .scope = SCOPE_JOB, .change = CHANGE_JOB, .omit_default = true,
     .description = "predict an interval around each number that contains the true one this often, 0.9 say, by the "
                    "validation data's errors; 0 = none"},
    {"train", "threshold", KEY_NUMBER, AT(train.threshold), .takes_auto = true, .maximum = 1, .above_minimum = true,
     .below_maximum = true, .initial = "0.5", .scope = SCOPE_JOB, .change = CHANGE_JOB, .omit_default = true,
     .description = "of two classes, the second is predicted from this probability on; auto = what is best on the "
                    "validation data by best_metric (by accuracy where that is a loss)"},
    {"train", "final_test", KEY_WORD, AT(train.final_test), .words = tested_models, .initial = "best",
     .scope = SCOPE_JOB, .change = CHANGE_JOB, .omit_default = true,
     .description = "which model the test at the end of a run measures: the best by validation, or the newest"},
    {"train", "divergence_retries", KEY_COUNT, AT(train.divergence_retries), .maximum = 10, .initial = "3",
     .scope = SCOPE_JOB, .change = CHANGE_JOB, .omit_default = true,
     .description = "if training diverges, how many times it goes back to its best model so far and "
                    "continues at 0.3 times the learning rate; 0 = it ends at once"},
    {"train", "seed", KEY_LONG, AT(train.seed), .maximum = MAX_EXACT, .initial = "1",
     .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "seed of all random numbers; a seed gives the same bits at any number of threads"},
    {"train", "warm_start", KEY_TEXT, AT(train.warm_start), .initial = "",
     .scope = SCOPE_MACHINE, .change = CHANGE_LOCAL,
     .description = "checkpoint, or folder of checkpoints, from which to initialise a new run; empty = use the "
                    "initializer"},
    {"train", "num_threads", KEY_COUNT, AT(train.num_threads), .maximum = POOL_MAX_THREADS, .initial = "0",
     .scope = SCOPE_MACHINE, .change = CHANGE_LOCAL,
     .description = "compute threads; 0 = one per CPU that this process may use"},
    {"train", "max_steps_per_s", KEY_NUMBER, AT(train.max_steps_per_s), .maximum = 1e9, .initial = "0",
     .scope = SCOPE_MACHINE, .change = CHANGE_LOCAL,
     .description = "maximum steps per second of this process, to leave CPU and network to other work; 0 = no limit"},
    {"train", "device", KEY_DEVICE, AT(train.device), AT(train.device_index), .initial = "auto",
     .scope = SCOPE_MACHINE, .change = CHANGE_LOCAL, .description = "where to compute; auto = a GPU if there is one"},
    {"train", "towers", KEY_DEVICES, AT(train.towers), .initial = "", .scope = SCOPE_MACHINE, .change = CHANGE_LOCAL,
     .description = "devices that share the micro_batches of a step; empty = device alone"},
    {"train", "placement", KEY_LAYER_DEVICES, AT(train.placement), .initial = "", .scope = SCOPE_MACHINE,
     .change = CHANGE_LOCAL, .no_flag = true,
     .description = "layers to compute on another device than `device`: {\"layer1\": \"cpu:0\"}"},
    {"train", "allow_soft_placement", KEY_SWITCH, AT(train.allow_soft_placement), .initial = "true",
     .scope = SCOPE_MACHINE, .change = CHANGE_LOCAL,
     .description = "fall back to the CPU if the requested GPU is missing or fails; false = end the run"},
    {"train", "log_device_placement", KEY_SWITCH, AT(train.log_device_placement), .initial = "false",
     .scope = SCOPE_MACHINE, .change = CHANGE_LOCAL,
     .description = "log the job, task and device of every variable and operation"},
    {"train", "gpu_memory_fraction", KEY_NUMBER, AT(train.gpu_memory_fraction), .maximum = 1, .above_minimum = true,
     .initial = "1", .scope = SCOPE_MACHINE, .change = CHANGE_LOCAL,
     .description = "largest share of GPU memory to use; only what the model, batch and data need is allocated"},
    {"train", "gpu_timeout_secs", KEY_NUMBER, AT(train.gpu_timeout_secs), .minimum = 0.1, .maximum = 3600,
     .initial = "10", .scope = SCOPE_MACHINE, .change = CHANGE_LOCAL,
     .description = "a GPU counts as hung when an operation takes this much longer than ten times its usual duration"},
    {"train", "precision", KEY_WORD, AT(train.precision), .words = precisions, .initial = "float32",
     .scope = SCOPE_MACHINE, .change = CHANGE_LOCAL,
     .description = "format to which a GPU's tensor cores round matrix operands; sums, and everything on a CPU, are "
                    "float32"},
    {"train", "cpu_kernels", KEY_WORD, AT(train.cpu_kernels), .words = kernels, .initial = "auto",
     .scope = SCOPE_MACHINE, .change = CHANGE_LOCAL,
     .description = "instruction set of the CPU kernels; auto = the fastest that this CPU has"},

    {"data", "data_dir", KEY_TEXT, AT(data.data_dir), .initial = "data",
     .scope = SCOPE_MACHINE, .change = CHANGE_LOCAL,
     .description = "folder with the four IDX files of MNIST (plain or .gz), TFRecord files, a table, or train/ and "
                    "test/ with a folder of images per class"},
    {"data", "data_source", KEY_WORD, AT(data.data_source), .words = sources, .initial = "auto",
     .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "kind of the data set; auto = what data_dir holds; synthetic = digits that the program draws"},
    {"data", "validation_size", KEY_COUNT, AT(data.validation_size), .takes_auto = true, .maximum = 1e8,
     .initial = "auto", .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "training examples held out for validation; 0 = none; auto = a tenth, of a table 15%, at most "
                    "5000"},
    {"data", "synthetic_train", KEY_COUNT, AT(data.synthetic_train), .minimum = 1, .maximum = 1e7, .initial = "60000",
     .scope = SCOPE_JOB, .change = CHANGE_JOB, .description = "number of synthetic training images"},
    {"data", "synthetic_test", KEY_COUNT, AT(data.synthetic_test), .minimum = 1, .maximum = 1e7, .initial = "10000",
     .scope = SCOPE_JOB, .change = CHANGE_JOB, .description = "number of synthetic test images"},
    {"data", "train_files", KEY_TEXT, AT(data.train_files), .initial = "train*.tfrecord*",
     .scope = SCOPE_JOB, .change = CHANGE_JOB, .description = "pattern of the TFRecord files in data_dir to train on"},
    {"data", "test_files", KEY_TEXT, AT(data.test_files), .initial = "test*.tfrecord*",
     .scope = SCOPE_JOB, .change = CHANGE_JOB, .description = "pattern of the TFRecord files in data_dir to test with"},
    {"data", "image_feature", KEY_TEXT, AT(data.image_feature), .initial = "image_raw",
     .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "name of the image feature in tf.train.Example: raw pixels, an encoded picture, or a list of "
                    "floats"},
    {"data", "label_feature", KEY_TEXT, AT(data.label_feature), .initial = "label",
     .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "name of the label feature in tf.train.Example: an integer, a one-hot list, or either as raw "
                    "bytes"},
    {"data", "label_dtype", KEY_WORD, AT(data.label_dtype), .words = label_dtypes, .initial = "auto",
     .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "type of a label feature that is raw bytes, as for tf.decode_raw; auto = inferred"},
    {"data", "feature_dtype", KEY_WORD, AT(data.feature_dtype), .words = label_dtypes, .initial = "auto",
     .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "type of the numbers in features that are raw bytes, if TFRecord files are a table; auto = such "
                    "features are ignored"},
    {"data", "color", KEY_WORD, AT(data.color), .words = colors, .initial = "auto",
     .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "learn pictures in gray or in rgb (three inputs a pixel); auto = in colour if any training picture "
                    "is stored in colour"},
    {"data", "image_size", KEY_TEXT, AT(data.image_size), .initial = "auto", .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "size that pictures in folders and encoded ones in TFRecord files are scaled to, as height x width "
                    "(32x48) or one side (32); auto = their own, if they are all of one size, else at most 64x64"},
    {"data", "image_fit", KEY_WORD, AT(data.image_fit), .words = picture_fits, .initial = "auto",
     .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "how a picture of another size is fitted: scale; digits = cut out, scaled and centred like MNIST's "
                    "digits; auto = digits for IDX files, synthetic data and raw pixels in TFRecord files in gray"},
    {"data", "max_bad_records", KEY_COUNT, AT(data.max_bad_records), .maximum = 1e9, .initial = "0",
     .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "number of damaged TFRecord records or table rows to skip, each with a warning; one more is an "
                    "error"},
    {"data", "memory_mb", KEY_COUNT, AT(data.memory_mb), .maximum = 1e8, .initial = "0",
     .scope = SCOPE_MACHINE, .change = CHANGE_LOCAL,
     .description = "MiB of images to hold in memory; a larger training set streams from its files; 0 = half of the "
                    "available memory"},
    {"data", "shuffle_buffer", KEY_COUNT, AT(data.shuffle_buffer), .minimum = 1, .maximum = 1e8, .initial = "50000",
     .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "images that are shuffled together when the training set streams; twice as many are held in "
                    "memory"},
    {"data", "data_sharding", KEY_WORD, AT(data.data_sharding), .words = shardings, .initial = "shuffled",
     .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "in a cluster: each worker shuffles all images (shuffled), has its own part of them (disjoint), "
                    "gets batches from the chief (chief), or trains on its own data_dir (own)"},

    {"data", "target", KEY_NAMES, AT(data.target), .initial = "", .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "columns of a table to predict, by name or by number from 0 (-1: the last); inputs = the inputs "
                    "themselves"},
    {"data", "features", KEY_NAMES, AT(data.features), .initial = "", .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "columns of a table to use as inputs; empty = all that have no other use"},
    {"data", "ignore", KEY_NAMES, AT(data.ignore), .initial = "", .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "columns of a table not to use as inputs"},
    {"data", "categorical", KEY_NAMES, AT(data.categorical), .initial = "", .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "columns of a table to treat as categories although they contain numbers"},
    {"data", "weight", KEY_TEXT, AT(data.weight), .initial = "", .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "column of a table with the weight of each row; empty = equal weights"},
    {"data", "group", KEY_TEXT, AT(data.group), .initial = "", .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "column of a table: rows with the same value stay together when rows are held out"},
    {"data", "fold", KEY_TEXT, AT(data.fold), .initial = "", .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .omit_default = true,
     .description = "hold out this part of a table's rows for validation: 2/5 = the second of five, of rows (or "
                    "groups) at random; empty = validation_size rows"},
    {"data", "time", KEY_TEXT, AT(data.time), .initial = "", .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "column of a table with the time of each row: the latest rows are held out; numbers, or dates"},
    {"data", "header", KEY_WORD, AT(data.header), .words = headers, .initial = "auto",
     .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "whether CSV files begin with the column names; auto = if a row at the beginning has the target's "
                    "name, or differs in kind from the rows below it"},
    {"data", "missing", KEY_NAMES, AT(data.missing), .initial = "", .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "texts in a table that stand for a missing value, such as -999; NA, null and ? are known"},
    {"data", "dates", KEY_WORD, AT(data.dates), .words = dates, .initial = "auto",
     .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "order of day, month and year in a table's dates, such as 3/4/2024; auto = found in the column"},
    {"data", "decimal", KEY_WORD, AT(data.decimal), .words = decimals, .initial = "auto",
     .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "the decimal sign of a table's numbers: point or comma; auto = found in each column"},
    {"data", "scaling", KEY_WORD, AT(data.scaling), .words = scalings, .initial = "standard",
     .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "scaling of a table's numbers: to mean 0 and standard deviation 1 (standard), by median and "
                    "quartiles (robust), to 0..1 (minmax), or none"},
    {"data", "encoding", KEY_WORD, AT(data.encoding), .words = encodings, .initial = "auto",
     .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "inputs of a table's numbers: one (none), or one for each of its bins, which fill up one after the "
                    "other (ple, piecewise linear); auto = what the nets of model.ensemble take, and none for a "
                    "single one"},
    {"data", "bins", KEY_COUNT, AT(data.bins), .minimum = 2, .maximum = CONFIG_MOST_BINS, .initial = "16",
     .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "bins of a number with encoding=ple, of equal counts of training rows; numbers with few different "
                    "values have fewer"},
    {"data", "category_min", KEY_COUNT, AT(data.category_min), .minimum = 1, .maximum = 1e9, .initial = "2",
     .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "categories with fewer rows than this share one input with those never seen"},
    {"data", "test_share", KEY_NUMBER, AT(data.test_share), .maximum = 0.9, .initial = "0.1",
     .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "share of a table's rows, or of pictures in folders, to hold out for the test if there is none"},
    {"data", "new_data", KEY_SWITCH, AT(data.new_data), .initial = "false", .scope = SCOPE_MACHINE,
     .change = CHANGE_LOCAL,
     .description = "go on with a run although the training data are not those it was trained on; its checkpoints "
                    "record the step"},
    {"data", "cache_dir", KEY_TEXT, AT(data.cache_dir), .initial = "", .scope = SCOPE_MACHINE, .change = CHANGE_LOCAL,
     .description = "folder for the rows of a table that is larger than memory_mb; empty = train_dir, or else TMPDIR "
                    "or /var/tmp"},

    {"output", "train_dir", KEY_TEXT, AT(output.train_dir), .initial = "",
     .scope = SCOPE_MACHINE, .change = CHANGE_LOCAL,
     .description = "folder for checkpoints; training resumes from the newest intact one; empty = save nothing"},
    {"output", "save_steps", KEY_LONG, AT(output.save_steps), .maximum = MAX_EXACT, .initial = "0",
     .scope = SCOPE_JOB, .change = CHANGE_LIVE, .description = "steps between checkpoints; 0 = not by steps"},
    {"output", "save_model_secs", KEY_NUMBER, AT(output.save_model_secs), .maximum = 1e9, .initial = "600",
     .scope = SCOPE_JOB, .change = CHANGE_LIVE, .description = "seconds between checkpoints; 0 = not by time"},
    {"output", "max_to_keep", KEY_COUNT, AT(output.max_to_keep), .maximum = 1e6, .initial = "5",
     .scope = SCOPE_JOB, .change = CHANGE_LIVE, .description = "number of newest checkpoints to keep; 0 = all"},
    {"output", "keep_every_n_hours", KEY_NUMBER, AT(output.keep_every_n_hours), .maximum = 1e6, .initial = "0",
     .scope = SCOPE_JOB, .change = CHANGE_LIVE,
     .description = "also keep one checkpoint every N hours for good; 0 = none"},
    {"output", "kept_rows", KEY_COUNT, AT(output.kept_rows), .takes_auto = true, .maximum = 64, .initial = "auto",
     .scope = SCOPE_MACHINE, .change = CHANGE_LOCAL,
     .description = "held-out rows stored in each checkpoint with the model's outputs, by which trainer serve checks "
                    "it; 0 = none; auto = 4, and none of a table with a group, whose rows are often people"},
    {"output", "shared_files", KEY_SWITCH, AT(output.shared_files), .initial = "false",
     .scope = SCOPE_MACHINE, .change = CHANGE_LOCAL,
     .description = "whether other users may read what a run writes, as the umask says; otherwise only its own user"},
    {"output", "checkpoint_key", KEY_TEXT, AT(output.checkpoint_key), .initial = "",
     .scope = SCOPE_MACHINE, .change = CHANGE_LOCAL,
     .description = "file with a secret: checkpoints get a digest made with it, and no others are loaded or served"},
    {"output", "log_steps", KEY_LONG, AT(output.log_steps), .maximum = MAX_EXACT, .initial = "100",
     .scope = SCOPE_JOB, .change = CHANGE_LIVE, .description = "steps between log lines; 0 = none"},
    {"output", "validate_steps", KEY_LONG, AT(output.validate_steps), .maximum = MAX_EXACT, .initial = "0",
     .scope = SCOPE_JOB, .change = CHANGE_LIVE,
     .description = "steps between validations; 0 = at the end of every epoch"},
    {"output", "summary_dir", KEY_TEXT, AT(output.summary_dir), .initial = "",
     .scope = SCOPE_MACHINE, .change = CHANGE_LOCAL,
     .description = "folder for TensorBoard summaries; empty = summaries/ in train_dir, if that is set"},
    {"output", "save_summaries_steps", KEY_LONG, AT(output.save_summaries_steps), .maximum = MAX_EXACT,
     .initial = "100", .scope = SCOPE_JOB, .change = CHANGE_LIVE,
     .description = "steps between summaries; 0 = not by steps"},
    {"output", "save_summaries_secs", KEY_NUMBER, AT(output.save_summaries_secs), .maximum = 1e9, .initial = "0",
     .scope = SCOPE_JOB, .change = CHANGE_LIVE, .description = "seconds between summaries; 0 = not by time"},
    {"output", "profile", KEY_TEXT, AT(output.profile), .initial = "",
     .scope = SCOPE_MACHINE, .change = CHANGE_LOCAL,
     .description = "file for a Chrome trace of what every thread does, written at exit; empty = none"},
    {"output", "log_format", KEY_WORD, AT(output.log_format), .words = log_formats, .initial = "text",
     .scope = SCOPE_MACHINE, .change = CHANGE_LOCAL,
     .description = "format of standard output; json = one object per line"},
    {"output", "progress", KEY_SWITCH, AT(output.progress), .initial = "true",
     .scope = SCOPE_MACHINE, .change = CHANGE_LOCAL,
     .description = "show a progress bar if standard output is a terminal"},

    {"security", "fleet_key", KEY_TEXT, AT(security.fleet_key), .initial = "",
     .scope = SCOPE_MACHINE, .change = CHANGE_LOCAL,
     .description = "file with this member's key; empty = fleet.key beside config.json"},
    {"security", "insecure", KEY_SWITCH, AT(security.insecure), .initial = "false",
     .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .description = "no encryption and no authentication: plain TCP between members"},
    {"security", "seccomp", KEY_SWITCH, AT(security.seccomp), .initial = "true",
     .scope = SCOPE_MACHINE, .change = CHANGE_LOCAL,
     .description = "confine this process to the system calls that its role needs, by a filter in the kernel"},

    {"observe", "http", KEY_TEXT, AT(observe.http), .initial = "", .scope = SCOPE_MACHINE, .change = CHANGE_LOCAL,
     .description = "address, host:port, at which this process serves a page, Prometheus metrics and JSON about its "
                    "training; empty = none"},
    {"observe", "http_cert", KEY_TEXT, AT(observe.http_cert), .initial = "",
     .scope = SCOPE_MACHINE, .change = CHANGE_LOCAL,
     .description = "PEM file with the certificate chain for that address; empty = this member's own key, and plain "
                    "text on loopback"},
    {"observe", "http_key", KEY_TEXT, AT(observe.http_key), .initial = "",
     .scope = SCOPE_MACHINE, .change = CHANGE_LOCAL,
     .description = "PEM file with the private key of http_cert; empty = it is in http_cert"},
    {"observe", "http_token_file", KEY_TEXT, AT(observe.http_token_file), .initial = "",
     .scope = SCOPE_MACHINE, .change = CHANGE_LOCAL,
     .description = "file with the token that clients must send as Authorization: Bearer; required beyond loopback"},
    {"observe", "http_hosts", KEY_TEXT, AT(observe.http_hosts), .initial = "",
     .scope = SCOPE_MACHINE, .change = CHANGE_LOCAL,
     .description = "further names in a request's Host header, separated by commas: those of a reverse proxy"},
    {"observe", "http_cors", KEY_TEXT, AT(observe.http_cors), .initial = "",
     .scope = SCOPE_MACHINE, .change = CHANGE_LOCAL,
     .description = "origins whose web pages may send requests, separated by commas; empty = only this server's own"},
    {"observe", "http_insecure", KEY_SWITCH, AT(observe.http_insecure), .initial = "false",
     .scope = SCOPE_MACHINE, .change = CHANGE_LOCAL,
     .description = "allow http beyond loopback in plain text, and without a token"},

    {"fleet", "name", KEY_TEXT, AT(fleet.name), .initial = "", .scope = SCOPE_JOB, .change = CHANGE_JOB,
     .no_flag = true, .description = "name of the fleet that this file is for"},
    {"fleet", "version", KEY_LONG, AT(fleet.version), .maximum = MAX_EXACT, .initial = "0",
     .scope = SCOPE_JOB, .change = CHANGE_JOB, .no_flag = true,
     .description = "version of this file; must rise with every rollout"},
    {.section = NULL},
};
/* clang-format on */

const int config_key_count = (int)(sizeof config_keys / sizeof config_keys[0]) - 1;

void config_key_path(const struct config_key *key, char path[CONFIG_PATH_SIZE])
{
    snprintf(path, CONFIG_PATH_SIZE, "%s.%s", key->section, key->name);
}

const struct config_key *config_key_by_flag(const char *flag)
{
    for (const struct config_key *key = config_keys; key->section; key++) {
        if (!key->no_flag && strcmp(key->name, flag) == 0) {
            return key;
        }
    }
    return NULL;
}

const struct config_key *config_key_by_path(const char *section, const char *name)
{
    for (const struct config_key *key = config_keys; key->section; key++) {
        if (strcmp(key->section, section) == 0 && strcmp(key->name, name) == 0) {
            return key;
        }
    }
    return NULL;
}

const char *config_scope_name(enum key_scope scope)
{
    return scope == SCOPE_JOB ? "job" : "machine";
}

const char *config_change_name(enum key_change change)
{
    static const char *const names[] = {"live", "local", "job"};
    return names[change];
}

void config_note_chosen(struct config *config, const char *section, const char *name, bool is_chosen)
{
    if (config->origins) {
        config_origin_of(config, config_key_by_path(section, name))->is_auto = is_chosen;
    }
}

bool config_was_chosen(const struct config *config, const char *section, const char *name)
{
    return config->origins && config_origin_of(config, config_key_by_path(section, name))->is_auto;
}

const char *config_optimizer_name(enum optimizer_kind kind)
{
    return optimizers[kind];
}

const char *config_view_name(enum number_view view)
{
    return view == VIEW_RAW ? "raw" : "ple";
}

const char *config_activation_name(enum activation activation)
{
    return activations[activation];
}

bool loss_is_of_numbers(enum loss_kind loss)
{
    return loss == LOSS_MSE || loss == LOSS_MAE || loss == LOSS_HUBER || loss == LOSS_QUANTILE;
}

const char *config_loss_name(enum loss_kind loss)
{
    return losses[loss];
}

const char *config_metric_name(enum metric metric)
{
    return metrics[metric];
}

const char *config_precision_name(enum precision precision)
{
    return precisions[precision];
}

const char *config_outer_name(enum outer_optimizer kind)
{
    return outer_optimizers[kind];
}

double config_default_outer_rate(enum outer_optimizer kind)
{
    static const double rates[] = {
        [OUTER_AVERAGE] = 1.0, [OUTER_MOMENTUM] = 1.0, [OUTER_NESTEROV] = 0.7, [OUTER_ADAM] = 0.01};
    return rates[kind];
}

double config_default_learning_rate(enum optimizer_kind kind, bool of_table)
{
    static const double rates[][2] = {
        [OPTIMIZER_SGD] = {0.5, 0.02},     [OPTIMIZER_MOMENTUM] = {0.05, 0.002}, [OPTIMIZER_ADAGRAD] = {0.05, 0.05},
        [OPTIMIZER_ADADELTA] = {1.0, 1.0}, [OPTIMIZER_ADAM] = {0.001, 0.002},    [OPTIMIZER_RMSPROP] = {0.001, 0.001},
        [OPTIMIZER_FTRL] = {0.1, 0.1},
    };
    return rates[kind][of_table];
}

/* --- The difference of two configurations --- */

/* Walks the table of keys, so that new keys are compared and copied without any change here. */

static bool is_version(const struct config_key *key)
{
    return strcmp(key->section, "fleet") == 0 && strcmp(key->name, "version") == 0;
}

void config_diff(struct config_diff *diff, const struct config *before, const struct config *after,
                 enum key_scope scope)
{
    *diff = (struct config_diff){.changes =
                                     must_zero((size_t)config_key_count, sizeof *diff->changes, "changes of a config")};
    for (const struct config_key *key = config_keys; key->section; key++) {
        if (key->scope != scope || is_version(key)) {
            continue;
        }
        char *old = config_key_text(key, before), *new = config_key_text(key, after);
        if (strcmp(old, new) != 0) {
            diff->changes[diff->count++] = (struct config_change){key, old, new};
        } else {
            free(old);
            free(new);
        }
    }
}

void config_diff_free(struct config_diff *diff)
{
    for (int i = 0; i < diff->count; i++) {
        free(diff->changes[i].before);
        free(diff->changes[i].after);
    }
    free(diff->changes);
    *diff = (struct config_diff){NULL, 0};
}

void config_diff_line(const struct config_change *change, char *text, size_t size)
{
    char path[CONFIG_PATH_SIZE];
    config_key_path(change->key, path);
    snprintf(text, size, "%-28s %s -> %s  (%s)", path, change->before[0] != '\0' ? change->before : "(empty)",
             change->after[0] != '\0' ? change->after : "(empty)", config_change_name(change->key->change));
}

static size_t size_of(enum key_type type)
{
    switch (type) {
    case KEY_SWITCH:
        return sizeof(bool);
    case KEY_COUNT:
        return sizeof(int);
    case KEY_LONG:
        return sizeof(int64_t);
    case KEY_NUMBER:
        return sizeof(double);
    case KEY_TEXT:
    case KEY_WORD:
    case KEY_LAYERS:
    case KEY_HOSTS:
    case KEY_NAMES:
    case KEY_HIDDEN:
    case KEY_DEVICES:
    case KEY_DEVICE:
    case KEY_LAYER_DEVICES:
        break;
    }
    assert(false); /* live keys are numbers and switches: see the table */
    return 0;
}

/* Copies the live keys with offsets in [first, end) of struct config; part and from point to offset `first`. */
static void take_part(void *part, const void *from, size_t first, size_t end)
{
    for (const struct config_key *key = config_keys; key->section; key++) {
        if (key->change == CHANGE_LIVE && key->offset >= first && key->offset < end) {
            const size_t at = key->offset - first;
            memcpy((char *)part + at, (const char *)from + at, size_of(key->type));
        }
    }
}

/* A learning rate that is set anew is used as it is: divergences at another one say nothing about it. */
static void forget_retries(struct config_train *train, const struct config_train *from)
{
    train->retries =
        train->learning_rate < from->learning_rate || train->learning_rate > from->learning_rate ? 0 : train->retries;
}

void config_take_live(struct config *config, const struct config *from)
{
    forget_retries(&config->train, &from->train);
    take_part(config, from, 0, sizeof *config);
    for (const struct config_key *key = config_keys; key->section && config->origins && from->origins; key++) {
        if (key->change == CHANGE_LIVE) {
            config_origin_of(config, key)->is_auto = config_origin_of(from, key)->is_auto;
        }
    }
}

void config_take_live_train(struct config_train *train, const struct config_train *from)
{
    const size_t first = offsetof(struct config, train);
    forget_retries(train, from);
    take_part(train, from, first, first + sizeof *train);
}
