/* The optimizers' loops for CPUs with AVX-512. */
#define OPTIMIZER_KERNELS      optimizer_kernels_avx512
#define OPTIMIZER_KERNELS_NAME "avx512"
#if defined(__GNUC__) && !defined(__clang__)
/* The compiler's own choice is half of the width. */
#pragma GCC target("prefer-vector-width=512")
#endif
#include "ps/store/optimizer_loops.h"
