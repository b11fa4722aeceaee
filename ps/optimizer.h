/*
 * Optimizers by TensorFlow 1.x's definitions. The scalar formulas stand in ps/optimizer_math.h, which C and CUDA share;
 * this is the loop over ranges of a variable, compiled once per instruction set and giving the same bits in each
 * (no contraction of multiply and add, correctly rounded division and square root).
 */
#ifndef PS_OPTIMIZER_H
#define PS_OPTIMIZER_H

#include <stddef.h>

#include "base/config.h"

enum { OPTIMIZER_MAX_SLOTS = 2 };

/* What one global step needs, worked out once per step in double precision and then rounded. */
struct update {
    enum optimizer_kind kind;
    bool nesterov;
    float learning_rate; /* of this step; for adam with the bias correction sqrt(1-beta2^t)/(1-beta1^t) folded in */
    float momentum, rho, beta1, beta2, epsilon;
    float l2;        /* 0 for biases */
    float ema_decay; /* of this step, ramp included; negative = no averages */
};

int optimizer_slots(enum optimizer_kind kind);                       /* 0..OPTIMIZER_MAX_SLOTS */
const char *optimizer_slot_name(enum optimizer_kind kind, int slot); /* TensorFlow's: "momentum", "adam_m", ... */
float optimizer_slot_initial(const struct config_train *config, int slot);
double optimizer_default_learning_rate(enum optimizer_kind kind);

/* Learning rate at a global step (the number of steps already applied), as tf.train.exponential_decay. */
double schedule_learning_rate(const struct config_train *config, int64_t global_step);

/* Fills `update` for the step that takes global_step to global_step + 1. */
void update_prepare(struct update *update, const struct config_train *config, int64_t global_step);

/* True if a zero gradient leaves every parameter, slot and average as it is: absent blocks may then be skipped. */
bool update_zero_is_noop(const struct update *update);

/*
 * Applies one update to n consecutive floats. gradient may be NULL: zeros. slot0, slot1, average: as many as the
 * optimizer has, else NULL. All arrays 64-byte aligned? not required; they do not overlap.
 */
void optimizer_apply(const struct update *update, size_t n, const float *gradient, float *parameters, float *slot0,
                     float *slot1, float *average);

#endif
