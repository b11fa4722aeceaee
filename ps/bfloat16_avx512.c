/* The loops over bfloat16 arrays for CPUs with AVX-512. */
#define BFLOAT16_LOOPS bfloat16_avx512
#include "ps/bfloat16_loops.h"
