/* Functions of single elements: activations, their derivatives, and the optimizers' update. */
#ifndef CUDA_KERNELS_ELEMENTS_CUH
#define CUDA_KERNELS_ELEMENTS_CUH

#include "cuda/kernels/params.h"
#include "ps/optimizer_math.h"

/* The formulas of worker/cpu/kernels_reference.c; not a number stays one. */
static __device__ __forceinline__ float activate(int activation, float z)
{
    switch (activation) {
    case ACTIVATION_RELU:
        return z < 0.0f ? 0.0f : z;
    case ACTIVATION_SIGMOID:
        return 1.0f / (1.0f + expf(-z));
    case ACTIVATION_TANH:
        return tanhf(z);
    default:
        return z;
    }
}

/* delta x f'(z), given a = f(z). */
static __device__ __forceinline__ float derive(int activation, float a, float delta)
{
    switch (activation) {
    case ACTIVATION_RELU:
        return a > 0.0f ? delta : 0.0f;
    case ACTIVATION_SIGMOID:
        return delta * (a * (1.0f - a));
    case ACTIVATION_TANH:
        return delta * (1.0f - a * a);
    default:
        return delta;
    }
}

/* What a unit of hidden layer `layer` is multiplied with: 0, or the scale of those that stay. */
static __device__ __forceinline__ float drop_factor(const struct dropout &dropout, uint32_t task, int64_t step,
                                                    int layer, int place, int unit)
{
    struct dropout_batch batch = {task, step};
    return dropout_drops(&dropout, &batch, layer, place, unit) ? 0.0f : dropout.scale;
}

/* Element `at` of all vectors, as ps/optimizer_loops.h has it. Not inlined: it holds every optimizer there is. */
static __device__ __noinline__ void update_element(const struct update *shared, float g, float *parameters,
                                                   float *slot0, float *slot1, float *averages, uint64_t at)
{
    const struct update &update = *shared;
    float parameter = parameters[at];
    if (update.l2 != 0.0f || update.shrink != 1.0f) {
        g = optimizer_gradient(&update, g, parameter);
        parameter *= update.shrink;
    }
    switch (update.kind) {
    case OPTIMIZER_SGD:
        optimizer_sgd(&update, g, &parameter);
        break;
    case OPTIMIZER_MOMENTUM:
        if (update.nesterov) {
            optimizer_nesterov(&update, g, &parameter, &slot0[at]);
        } else {
            optimizer_momentum(&update, g, &parameter, &slot0[at]);
        }
        break;
    case OPTIMIZER_ADAGRAD:
        optimizer_adagrad(&update, g, &parameter, &slot0[at]);
        break;
    case OPTIMIZER_ADADELTA:
        optimizer_adadelta(&update, g, &parameter, &slot0[at], &slot1[at]);
        break;
    case OPTIMIZER_ADAM:
        optimizer_adam(&update, g, &parameter, &slot0[at], &slot1[at]);
        break;
    case OPTIMIZER_RMSPROP:
        optimizer_rmsprop(&update, g, &parameter, &slot0[at], &slot1[at]);
        break;
    default:
        optimizer_ftrl(&update, g, &parameter, &slot0[at], &slot1[at]);
        break;
    }
    if (update.ema_decay >= 0.0f) {
        optimizer_average(&update, parameter, &averages[at]);
    }
    parameters[at] = parameter;
}

#endif
