/* The tables of loops that ps/store/optimizer.c picks from; only it and the files that define them include this. */
#ifndef PS_STORE_OPTIMIZER_KERNELS_H
#define PS_STORE_OPTIMIZER_KERNELS_H

#include "ps/store/optimizer.h"

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

struct optimizer_kernels {
    const char *name;
    optimizer_loop loops[FORMULA_COUNT][2][2][GRADIENTS_KINDS]; /* [formula][with L2][with averages][gradients] */
};

extern const struct optimizer_kernels optimizer_kernels_baseline;
#if defined(__x86_64__)
extern const struct optimizer_kernels optimizer_kernels_avx2;
extern const struct optimizer_kernels optimizer_kernels_avx512;
#endif

#endif
