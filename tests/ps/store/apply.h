/* One update of any floats, by this machine's loops. */
#ifndef TESTS_PS_STORE_APPLY_H
#define TESTS_PS_STORE_APPLY_H

#include "ps/store/optimizer.h"

/* To n consecutive floats; gradient may be NULL: zeros. */
static inline void apply_update(const struct update *update, size_t n, const float *gradient, float *parameters,
                                float *slot0, float *slot1, float *average)
{
    optimizer_loop loop = optimizer_loop_get(optimizer_kernels_get(CPU_KERNELS_AUTO), update, gradient);
    unsigned mode = optimizer_enter();
    loop(update, &(struct optimizer_rows){.rows = 1,
                                          .cols = n,
                                          .gradient = gradient,
                                          .parameters = parameters,
                                          .slot0 = slot0,
                                          .slot1 = slot1,
                                          .average = average});
    optimizer_leave(mode);
}

#endif
