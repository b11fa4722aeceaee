/* The optimizers' loops for CPUs with AVX-512. */
#define OPTIMIZER_KERNELS      optimizer_kernels_avx512
#define OPTIMIZER_KERNELS_NAME "avx512"
#include "ps/optimizer_loops.h"
