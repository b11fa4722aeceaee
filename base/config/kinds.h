/*
 * What the config calls by name and arithmetic knows as well: activations, optimizers, precisions, and how many layers
 * there may be. Code that computes includes this and no more of the config; CUDA kernels do, whose build takes minutes, so
 * that a new key does not make them anew.
 */
#ifndef BASE_CONFIG_KINDS_H
#define BASE_CONFIG_KINDS_H

enum { CONFIG_MAX_LAYERS = 16 /* entries of model.layers: the input, hidden layers, the output */ };

enum activation { ACTIVATION_RELU, ACTIVATION_SIGMOID, ACTIVATION_TANH, ACTIVATION_IDENTITY };
enum optimizer_kind {
    OPTIMIZER_SGD,
    OPTIMIZER_MOMENTUM,
    OPTIMIZER_ADAGRAD,
    OPTIMIZER_ADADELTA,
    OPTIMIZER_ADAM,
    OPTIMIZER_RMSPROP,
    OPTIMIZER_FTRL,
    OPTIMIZER_KINDS
};
enum cpu_kernels { CPU_KERNELS_AUTO, CPU_KERNELS_REFERENCE, CPU_KERNELS_AVX2, CPU_KERNELS_AVX512, CPU_KERNELS_NEON };
enum precision { PRECISION_FLOAT32, PRECISION_TF32, PRECISION_BFLOAT16 };

#endif
