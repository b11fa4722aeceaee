/* The loops over bfloat16 arrays for CPUs with AVX2. */
#define BFLOAT16_LOOPS bfloat16_avx2
#include "ps/bfloat16_loops.h"
