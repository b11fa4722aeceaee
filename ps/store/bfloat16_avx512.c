/* The loops over bfloat16 arrays for CPUs with AVX-512. */
#define BFLOAT16_LOOPS bfloat16_avx512
#include "ps/store/bfloat16_loops.h"
