/*
 * Optimizers by TensorFlow 1.x's definitions. The scalar formulas are in ps/store/optimizer_math.h, which C and CUDA
 * share; this is the loop over ranges of a variable, compiled once per instruction set and giving the same bits in each
 * (no contraction of multiply and add, correctly rounded division and square root).
 *
 * Everything here is pure: any thread may call it on data of its own.
 */
#ifndef PS_STORE_OPTIMIZER_H
#define PS_STORE_OPTIMIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/config/kinds.h"

struct config_train; /* base/config.h */

enum { OPTIMIZER_MAX_SLOTS = 2 };

/*
 * The constants of one global step, computed once per step in double precision, then rounded. 1 - momentum, 1 - beta1
 * and so on are computed from the rounded values, as in TensorFlow's kernels.
 */
struct update {
    enum optimizer_kind kind;
    bool nesterov;
    bool lazy;           /* where the gradient is zero, parameter, slots and average stay unchanged */
    float learning_rate; /* of this step; for adam with the bias correction sqrt(1-beta2^t)/(1-beta1^t) folded in */
    float momentum, rho, beta1, beta2, epsilon; /* momentum and rho also of rmsprop */
    float l1;
    float l2;        /* 0 for biases */
    float shrink;    /* factor on weights, 1 - learning rate x weight decay; 1 for biases */
    float ema_decay; /* of this step, ramp included; negative = no averages */
};

/*
 * The updates of one step. Nets on encoded numbers, whose inputs are mostly ones, learn at half the rate.
 */
enum update_kind { UPDATE_BIASES, UPDATE_WEIGHTS, UPDATE_ENCODED_BIASES, UPDATE_ENCODED_WEIGHTS, UPDATE_KINDS };

/* Turns an update of weights into one of biases, to which neither L2 nor weight decay applies. */
void update_spare_biases(struct update *update);

int optimizer_slots(enum optimizer_kind kind); /* 0..OPTIMIZER_MAX_SLOTS */

/* TensorFlow's suffix of a variable's name in checkpoints: "Momentum"; "Adam" and "Adam_1"; ... */
const char *optimizer_slot_name(enum optimizer_kind kind, int slot);
#define OPTIMIZER_AVERAGE_NAME "ExponentialMovingAverage"

float optimizer_slot_initial(const struct config_train *config, int slot);

/*
 * Learning rate at a global step (the number of steps already applied), as tf.train.exponential_decay: learning_rate x
 * lr_decay^(step / lr_decay_steps), the exponent rounded down if staircase; times tf.train.cosine_decay's factor,
 * lr_cosine_end + (1 - lr_cosine_end) x (1 + cos(pi x step / lr_cosine_steps)) / 2, if configured, and times (step + 1)
 * / lr_warmup_steps until that reaches 1. Unless lr_decay is 1, lr_decay_steps must be positive: the caller has
 * replaced the default of 0 by the steps of an epoch.
 */
double schedule_learning_rate(const struct config_train *config, int64_t global_step);

/* learning_rate, lowered RETRY_RATE times for each of the divergences so far. */
#define RETRY_RATE 0.3
double schedule_lowered_rate(const struct config_train *config);

/*
 * Fills `update` for the step that takes global_step to global_step + 1. The averages' ramp, min(ema_decay,
 * (1 + n) / (10 + n)), counts this step too (n = global_step + 1): the averages follow the update, as in TensorFlow
 * programs that apply them after the gradients.
 */
void update_prepare(struct update *update, const struct config_train *config, int64_t global_step);

/* All updates of that step. */
void updates_prepare(struct update updates[UPDATE_KINDS], const struct config_train *config, int64_t global_step);

/* True if a zero gradient changes no parameter, slot or average, so that absent blocks may be skipped. */
bool update_zero_is_noop(const struct update *update);

/* The same where slots still hold their initial values: there, momentum and adam do not move either. */
bool update_zero_is_noop_at_start(const struct update *update);

/*
 * Bracket calls of loops on the calling thread: between them denormals (below 1e-38) are flushed to zero, as in
 * TensorFlow's threads. Momentum, and adam's mean, of a weight without gradient become denormal within a thousand
 * steps, and arithmetic on denormals is a hundred times slower. optimizer_leave takes what optimizer_enter returned,
 * and restores the thread's own mode.
 */
unsigned optimizer_enter(void);
void optimizer_leave(unsigned mode);

/*
 * Rows of floats that an update is applied to: row r begins places[r] x stride floats after the first, or r x stride if
 * places is NULL; its gradient, r x gradient_stride. gradient: ignored by loops without a gradient. slot0, slot1,
 * average: ignored unless the optimizer has them. No alignment is needed; arrays must not overlap.
 */
struct optimizer_rows {
    size_t rows, cols;
    const float *gradient;
    size_t gradient_stride;
    float *parameters, *slot0, *slot1, *average;
    size_t stride;
    const int32_t *places; /* [rows], all different */
    size_t following;      /* rows after these that are processed next: prefetched meanwhile */
};

/* Applies one update. */
typedef void (*optimizer_loop)(const struct update *update, const struct optimizer_rows *rows);

enum optimizer_formula {
    FORMULA_SGD,
    FORMULA_MOMENTUM,
    FORMULA_NESTEROV,
    FORMULA_ADAGRAD,
    FORMULA_ADADELTA,
    FORMULA_ADAM,
    FORMULA_RMSPROP,
    FORMULA_FTRL,
    FORMULA_COUNT
};

enum optimizer_gradients {
    GRADIENTS_ABSENT, /* all zero */
    GRADIENTS_PRESENT,
    GRADIENTS_LAZY, /* present; zero ones change nothing */
    GRADIENTS_KINDS
};

/* The loops of one instruction set: ps/store/optimizer.c and the files that are compiled for it define them. */
struct optimizer_kernels {
    const char *name;
    optimizer_loop loops[FORMULA_COUNT][2][2][GRADIENTS_KINDS]; /* [formula][with L2][with averages][gradients] */
};

extern const struct optimizer_kernels optimizer_kernels_baseline;
#if defined(__x86_64__)
extern const struct optimizer_kernels optimizer_kernels_avx2;
extern const struct optimizer_kernels optimizer_kernels_avx512;
#endif

/* The best kernels that this CPU supports, up to `wanted` (CPU_KERNELS_AUTO: no limit). */
const struct optimizer_kernels *optimizer_kernels_get(enum cpu_kernels wanted);

/* The loop for an update, with or without a gradient; picked once, called for many rows. */
optimizer_loop optimizer_loop_get(const struct optimizer_kernels *kernels, const struct update *update,
                                  bool with_gradient);

#endif
