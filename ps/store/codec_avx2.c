/* The loops over packed floats for CPUs with AVX2. */
#define CODEC_LOOPS codec_avx2
#include "ps/store/codec_loops.h"
