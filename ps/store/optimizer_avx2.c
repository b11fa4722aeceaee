/* The optimizers' loops for CPUs with AVX2. */
#define OPTIMIZER_KERNELS      optimizer_kernels_avx2
#define OPTIMIZER_KERNELS_NAME "avx2"
#include "ps/store/optimizer_loops.h"
