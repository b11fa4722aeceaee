/*
 * One element of each optimizer, as TensorFlow 1.x defines it, for C and CUDA alike.
 *
 * Source: tensorflow/core/kernels/training_ops.cc (ApplyGradientDescent, ApplyMomentum, ApplyAdagrad, ApplyAdadelta,
 * ApplyAdam, ApplyRMSProp, ApplyFtrl) and tensorflow/python/training/moving_averages.py. Where TensorFlow multiplies
 * by an approximate reciprocal square root, this divides by the correctly rounded square root, so that every
 * instruction set gives the same bits. For the same reason it must be compiled without contraction
 * (-ffp-contract=off, nvcc -fmad=false).
 *
 * gradient is that of the loss without L2; optimizer_gradient adds L2's part first.
 */
#ifndef PS_STORE_OPTIMIZER_MATH_H
#define PS_STORE_OPTIMIZER_MATH_H

#include <math.h>

#include "ps/store/optimizer.h"

#ifdef __CUDACC__
#define OPTIMIZER_INLINE static __host__ __device__ __forceinline__
#else
#define OPTIMIZER_INLINE static inline __attribute__((always_inline))
#endif

/* The derivative of loss + l2/2 x |parameters|^2 (tf.nn.l2_loss). */
OPTIMIZER_INLINE float optimizer_gradient(const struct update *update, float gradient, float parameter)
{
    return gradient + update->l2 * parameter;
}

OPTIMIZER_INLINE void optimizer_sgd(const struct update *update, float gradient, float *parameter)
{
    *parameter -= update->learning_rate * gradient;
}

OPTIMIZER_INLINE void optimizer_momentum(const struct update *update, float gradient, float *parameter,
                                         float *accumulator)
{
    *accumulator = *accumulator * update->momentum + gradient;
    *parameter -= *accumulator * update->learning_rate;
}

OPTIMIZER_INLINE void optimizer_nesterov(const struct update *update, float gradient, float *parameter,
                                         float *accumulator)
{
    *accumulator = *accumulator * update->momentum + gradient;
    *parameter -= gradient * update->learning_rate + *accumulator * update->momentum * update->learning_rate;
}

OPTIMIZER_INLINE void optimizer_adagrad(const struct update *update, float gradient, float *parameter,
                                        float *accumulator)
{
    *accumulator += gradient * gradient;
    *parameter -= gradient * update->learning_rate / sqrtf(*accumulator);
}

OPTIMIZER_INLINE void optimizer_adadelta(const struct update *update, float gradient, float *parameter,
                                         float *accumulator, float *accumulated_update)
{
    float rest = 1.0f - update->rho;
    *accumulator = *accumulator * update->rho + gradient * gradient * rest;
    float step = sqrtf((*accumulated_update + update->epsilon) / (*accumulator + update->epsilon)) * gradient;
    *accumulated_update = *accumulated_update * update->rho + step * step * rest;
    *parameter -= step * update->learning_rate;
}

OPTIMIZER_INLINE void optimizer_adam(const struct update *update, float gradient, float *parameter, float *mean,
                                     float *variance)
{
    *mean += (gradient - *mean) * (1.0f - update->beta1);
    *variance += (gradient * gradient - *variance) * (1.0f - update->beta2);
    *parameter -= *mean * update->learning_rate / (sqrtf(*variance) + update->epsilon);
}

OPTIMIZER_INLINE void optimizer_rmsprop(const struct update *update, float gradient, float *parameter,
                                        float *mean_square, float *momentum)
{
    *mean_square += (gradient * gradient - *mean_square) * (1.0f - update->rho);
    *momentum = *momentum * update->momentum + gradient * update->learning_rate / sqrtf(*mean_square + update->epsilon);
    *parameter -= *momentum;
}

/* With learning_rate_power -0.5, and L2 as part of the gradient: a parameter is a function of the two slots. */
OPTIMIZER_INLINE void optimizer_ftrl(const struct update *update, float gradient, float *parameter, float *accumulator,
                                     float *linear)
{
    float before = sqrtf(*accumulator);
    *accumulator += gradient * gradient;
    float root = sqrtf(*accumulator);
    *linear += gradient - (root - before) / update->learning_rate * *parameter;
    float excess = fabsf(*linear) - update->l1;
    float magnitude = excess > 0.0f ? excess * update->learning_rate / root : 0.0f;
    *parameter = *linear > 0.0f ? -magnitude : magnitude;
}

/* The average follows the updated parameter. */
OPTIMIZER_INLINE void optimizer_average(const struct update *update, float parameter, float *average)
{
    *average -= (*average - parameter) * (1.0f - update->ema_decay);
}

/* True: optimizer_element only calls optimizer_sgd. */
OPTIMIZER_INLINE int optimizer_is_plain(const struct update *update)
{
    return update->kind == OPTIMIZER_SGD && !update->lazy && update->l2 == 0.0f && update->shrink == 1.0f &&
           update->ema_decay < 0.0f;
}

/*
 * Applies one update to element `at` of all vectors, as the loops of ps/store/optimizer_loops.h do. Vectors that the
 * optimizer does not have may be any pointer.
 */
OPTIMIZER_INLINE void optimizer_element(const struct update *shared, float gradient, float *parameters, float *slot0,
                                        float *slot1, float *averages, size_t at)
{
    const struct update update = *shared;
    if (update.lazy && gradient == 0.0f) {
        return;
    }
    float parameter = parameters[at];
    if (update.l2 != 0.0f || update.shrink != 1.0f) {
        gradient = optimizer_gradient(&update, gradient, parameter);
        parameter *= update.shrink;
    }
    switch (update.kind) {
    case OPTIMIZER_SGD:
        optimizer_sgd(&update, gradient, &parameter);
        break;
    case OPTIMIZER_MOMENTUM:
        if (update.nesterov) {
            optimizer_nesterov(&update, gradient, &parameter, &slot0[at]);
        } else {
            optimizer_momentum(&update, gradient, &parameter, &slot0[at]);
        }
        break;
    case OPTIMIZER_ADAGRAD:
        optimizer_adagrad(&update, gradient, &parameter, &slot0[at]);
        break;
    case OPTIMIZER_ADADELTA:
        optimizer_adadelta(&update, gradient, &parameter, &slot0[at], &slot1[at]);
        break;
    case OPTIMIZER_ADAM:
        optimizer_adam(&update, gradient, &parameter, &slot0[at], &slot1[at]);
        break;
    case OPTIMIZER_RMSPROP:
        optimizer_rmsprop(&update, gradient, &parameter, &slot0[at], &slot1[at]);
        break;
    default:
        optimizer_ftrl(&update, gradient, &parameter, &slot0[at], &slot1[at]);
        break;
    }
    if (update.ema_decay >= 0.0f) {
        optimizer_average(&update, parameter, &averages[at]);
    }
    parameters[at] = parameter;
}

#endif
