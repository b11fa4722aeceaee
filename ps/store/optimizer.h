/*
 * Optimizers by TensorFlow 1.x's definitions. The scalar formulas stand in ps/store/optimizer_math.h, which C and
 * CUDA share; this is the loop over ranges of a variable, compiled once per instruction set and giving the same bits
 * in each (no contraction of multiply and add, correctly rounded division and square root).
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
 * What one global step needs, worked out once per step in double precision and then rounded. All of 1 - momentum,
 * 1 - beta1 and so on are taken from the rounded values, as TensorFlow's kernels do.
 */
struct update {
    enum optimizer_kind kind;
    bool nesterov;
    bool lazy;           /* where the gradient is zero, nothing moves: neither parameter nor slots nor average */
    float learning_rate; /* of this step; for adam with the bias correction sqrt(1-beta2^t)/(1-beta1^t) folded in */
    float momentum, rho, beta1, beta2, epsilon; /* momentum and rho also of rmsprop */
    float l1;
    float l2;        /* 0 for biases */
    float shrink;    /* 1 - learning rate x weight decay, what weights are multiplied by; 1 for biases */
    float ema_decay; /* of this step, ramp included; negative = no averages */
};

/* Turns an update of weights into that of biases, which neither L2 nor weight decay applies to. */
void update_spare_biases(struct update *update);

int optimizer_slots(enum optimizer_kind kind); /* 0..OPTIMIZER_MAX_SLOTS */

/* What TensorFlow appends to a variable's name in its checkpoints: "Momentum"; "Adam" and "Adam_1"; ... */
const char *optimizer_slot_name(enum optimizer_kind kind, int slot);
#define OPTIMIZER_AVERAGE_NAME "ExponentialMovingAverage"

float optimizer_slot_initial(const struct config_train *config, int slot);

/*
 * Learning rate at a global step (the number of steps already applied), as tf.train.exponential_decay:
 * learning_rate x lr_decay^(step / lr_decay_steps), the exponent rounded down if staircase; times
 * tf.train.cosine_decay's factor, lr_cosine_end + (1 - lr_cosine_end) x (1 + cos(pi x step / lr_cosine_steps)) / 2,
 * where that is asked for, and times (step + 1) / lr_warmup_steps until that is 1. Unless lr_decay is 1,
 * lr_decay_steps must be positive by now: who knows how many steps an epoch has fills in that default.
 */
double schedule_learning_rate(const struct config_train *config, int64_t global_step);

/*
 * Fills `update` for the step that takes global_step to global_step + 1. The averages' ramp, min(ema_decay,
 * (1 + n) / (10 + n)), counts this step too (n = global_step + 1): the averages follow the update, as in TensorFlow
 * programs that apply them after the gradients.
 */
void update_prepare(struct update *update, const struct config_train *config, int64_t global_step);

/* True if a zero gradient leaves every parameter, slot and average as it is: absent blocks may then be skipped. */
bool update_zero_is_noop(const struct update *update);

/* The same for places whose slots still hold their initial values: then momentum and adam do not move either. */
bool update_zero_is_noop_at_start(const struct update *update);

/*
 * Around calls of loops, on the thread that calls them: numbers below 1e-38 become zero, as in TensorFlow's threads.
 * Momentum and adam's mean of a weight that gets no gradient sink there within a thousand steps, and arithmetic on such
 * numbers is a hundred times slower. Leave gets what enter returned, and puts the thread's own mode back.
 */
unsigned optimizer_enter(void);
void optimizer_leave(unsigned mode);

/*
 * Rows of floats that an update is applied to: row r begins places[r] x stride floats behind the first, or r x stride
 * if places is NULL; its gradient, r x gradient_stride. gradient: ignored by a loop that was asked for without one.
 * slot0, slot1, average: as many as the optimizer has, else ignored. No alignment is needed; arrays do not overlap.
 */
struct optimizer_rows {
    size_t rows, cols;
    const float *gradient;
    size_t gradient_stride;
    float *parameters, *slot0, *slot1, *average;
    size_t stride;
    const int32_t *places; /* [rows], all different */
    size_t following;      /* rows behind these whose turn comes next: fetched into the cache meanwhile */
};

/* Applies one update. */
typedef void (*optimizer_loop)(const struct update *update, const struct optimizer_rows *rows);

/* The loops of one instruction set. */
struct optimizer_kernels;

/* The best that this CPU runs, but none beyond `wanted` (CPU_KERNELS_AUTO: no bound). */
const struct optimizer_kernels *optimizer_kernels_get(enum cpu_kernels wanted);

/* The loop for an update, with or without a gradient; picked once, called for many rows. */
optimizer_loop optimizer_loop_get(const struct optimizer_kernels *kernels, const struct update *update,
                                  bool with_gradient);

#endif
