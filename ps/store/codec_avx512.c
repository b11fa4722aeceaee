/* The loops over packed floats for CPUs with AVX-512. */
#define CODEC_LOOPS codec_avx512
#include "ps/store/codec_loops.h"
