#include "worker/cpu/kernels.h"
