/*
 * Enums shared by the config and the code that computes: activations, optimizers, precisions, and the layer limit.
 * Kernels include only this part of the config: the CUDA kernels take minutes to build, and a new key should not cause
 * that.
 */
#ifndef BASE_CONFIG_KINDS_H
#define BASE_CONFIG_KINDS_H

enum {
    CONFIG_MAX_LAYERS = 16, /* entries of model.layers: the input, hidden layers, the output */
    CONFIG_MAX_NETS = 16,   /* of model.ensemble ... */
    CONFIG_MAX_WEIGHTS = 64 /* ... and their layers of weights, over all nets */
};

/* How a net sees the numbers of a table: as they are scaled, or encoded piecewise. */
enum number_view { VIEW_RAW, VIEW_PIECEWISE };

enum activation { ACTIVATION_RELU, ACTIVATION_SIGMOID, ACTIVATION_TANH, ACTIVATION_IDENTITY };
enum optimizer_kind {
    OPTIMIZER_SGD,
    OPTIMIZER_MOMENTUM,
    OPTIMIZER_ADAGRAD,
    OPTIMIZER_ADADELTA,
    OPTIMIZER_ADAM,
    OPTIMIZER_RMSPROP,
    OPTIMIZER_FTRL,
    OPTIMIZER_KINDS,
    OPTIMIZER_AUTO = OPTIMIZER_KINDS /* as written; config_load chooses one */
};
enum cpu_kernels { CPU_KERNELS_AUTO, CPU_KERNELS_REFERENCE, CPU_KERNELS_AVX2, CPU_KERNELS_AVX512, CPU_KERNELS_NEON };
enum loss_kind { LOSS_AUTO, LOSS_SOFTMAX, LOSS_SIGMOID, LOSS_MSE, LOSS_MAE, LOSS_HUBER, LOSS_QUANTILE };
enum precision { PRECISION_FLOAT32, PRECISION_TF32, PRECISION_BFLOAT16 };

#endif
