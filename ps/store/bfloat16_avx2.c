/* The loops over bfloat16 arrays for CPUs with AVX2. */
#define BFLOAT16_LOOPS bfloat16_avx2
#include "ps/store/bfloat16_loops.h"
