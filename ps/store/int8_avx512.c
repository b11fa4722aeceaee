/* The loops over int8 blocks, for CPUs with AVX-512. */
#define INT8_LOOPS int8_avx512
#include "ps/store/int8_loops.h"
