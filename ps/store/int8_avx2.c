/* The loops over int8 blocks, for CPUs with AVX2. */
#define INT8_LOOPS int8_avx2
#include "ps/store/int8_loops.h"
