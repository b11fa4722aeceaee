/*
 * The optimizers' loops, compiled once per instruction set: ps/store/optimizer.c includes this for the baseline,
 * ps/store/optimizer_avx2.c and ps/store/optimizer_avx512.c, compiled for the instruction sets in their names, rename
 * their tables first. It is included nowhere else.
 *
 * Every choice that does not depend on the element is a constant inside its loop, so that the compiler vectorises it:
 * 8 formulas x with or without L2 x averages x kinds of gradients. The bits do not depend on the instruction set, since
 * each element sees the same correctly rounded operations in the same order.
 */
#ifndef PS_STORE_OPTIMIZER_LOOPS_H
#define PS_STORE_OPTIMIZER_LOOPS_H

#include "ps/store/optimizer.h"
#include "ps/store/optimizer_math.h"

#ifndef OPTIMIZER_KERNELS
#define OPTIMIZER_KERNELS      optimizer_kernels_baseline
#define OPTIMIZER_KERNELS_NAME "reference"
#endif

/* The constants of a loop. */
struct optimizer_choice {
    enum optimizer_formula formula;
    bool with_l2, with_average;
    enum optimizer_gradients gradients;
};

static inline __attribute__((always_inline)) void optimizer_loop_body(const struct optimizer_choice choice,
                                                                      const struct update *shared, size_t n,
                                                                      const float *restrict gradient,
                                                                      float *restrict parameters, float *restrict slot0,
                                                                      float *restrict slot1, float *restrict average)
{
    const enum optimizer_formula formula = choice.formula;
    const bool with_l2 = choice.with_l2, with_average = choice.with_average;
    const bool with_gradient = choice.gradients != GRADIENTS_ABSENT;
    const struct update update = *shared; /* a copy that no store below can alias */
    const bool moves = with_gradient || with_l2 || formula == FORMULA_MOMENTUM || formula == FORMULA_NESTEROV ||
                       formula == FORMULA_ADAM || formula == FORMULA_RMSPROP || formula == FORMULA_FTRL;
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC ivdep
#endif
    for (size_t i = 0; i < n; i++) {
        float parameter = parameters[i];
        float g = with_gradient ? gradient[i] : 0.0f;
        if (choice.gradients == GRADIENTS_LAZY && g == 0.0f) {
            continue;
        }
        if (with_l2) {
            g = optimizer_gradient(&update, g, parameter);
            parameter *= update.shrink;
        }
        if (formula == FORMULA_SGD) {
            optimizer_sgd(&update, g, &parameter);
        } else if (formula == FORMULA_MOMENTUM) {
            optimizer_momentum(&update, g, &parameter, &slot0[i]);
        } else if (formula == FORMULA_NESTEROV) {
            optimizer_nesterov(&update, g, &parameter, &slot0[i]);
        } else if (formula == FORMULA_ADAGRAD) {
            optimizer_adagrad(&update, g, &parameter, &slot0[i]);
        } else if (formula == FORMULA_ADADELTA) {
            optimizer_adadelta(&update, g, &parameter, &slot0[i], &slot1[i]);
        } else if (formula == FORMULA_RMSPROP) {
            optimizer_rmsprop(&update, g, &parameter, &slot0[i], &slot1[i]);
        } else if (formula == FORMULA_FTRL) {
            optimizer_ftrl(&update, g, &parameter, &slot0[i], &slot1[i]);
        } else {
            optimizer_adam(&update, g, &parameter, &slot0[i], &slot1[i]);
        }
        if (with_average) {
            optimizer_average(&update, parameter, &average[i]);
        }
        if (moves) {
            parameters[i] = parameter;
        }
    }
}

enum { OPTIMIZER_AHEAD = 4 /* rows */ };

static inline __attribute__((always_inline)) float *optimizer_row(float *values, size_t at)
{
    return values ? values + at : NULL;
}

/* Slots are far away in memory, and the hardware prefetcher does not cover pieces of rows. */
static inline __attribute__((always_inline)) void optimizer_fetch(const float *row, size_t cols)
{
    enum { LINE = 64 / sizeof(float) };
    for (size_t i = 0; row && i < cols; i += LINE) {
        __builtin_prefetch(row + i, 1);
    }
}

static inline __attribute__((always_inline)) size_t optimizer_place(const struct optimizer_rows *rows, size_t r)
{
    return rows->places ? (size_t)rows->places[r] : r;
}

static inline __attribute__((always_inline)) void optimizer_rows_body(const struct optimizer_choice choice,
                                                                      const struct update *update,
                                                                      const struct optimizer_rows *rows)
{
    for (size_t r = 0; r < rows->rows; r++) {
        size_t at = optimizer_place(rows, r) * rows->stride;
        if ((choice.formula != FORMULA_SGD || choice.with_average || rows->places) &&
            r + OPTIMIZER_AHEAD < rows->rows + rows->following) {
            size_t next = optimizer_place(rows, r + OPTIMIZER_AHEAD) * rows->stride;
            optimizer_fetch(rows->parameters + next, rows->cols);
            optimizer_fetch(optimizer_row(rows->slot0, next), rows->cols);
            optimizer_fetch(optimizer_row(rows->slot1, next), rows->cols);
            optimizer_fetch(optimizer_row(rows->average, next), rows->cols);
        }
        optimizer_loop_body(choice, update, rows->cols,
                            choice.gradients != GRADIENTS_ABSENT ? rows->gradient + r * rows->gradient_stride : NULL,
                            rows->parameters + at, optimizer_row(rows->slot0, at), optimizer_row(rows->slot1, at),
                            optimizer_row(rows->average, at));
    }
}

#define LOOP_NAME(formula, l2, average, gradients) loop_##formula##_##l2##average##gradients
#define DEFINE_LOOP(formula, l2, with_average, gradients)                                                              \
    static void LOOP_NAME(formula, l2, with_average, gradients)(const struct update *update,                           \
                                                                const struct optimizer_rows *rows)                     \
    {                                                                                                                  \
        optimizer_rows_body((struct optimizer_choice){formula, l2, with_average, gradients}, update, rows);            \
    }
#define DEFINE_LOOPS(formula)                                                                                          \
    DEFINE_LOOP(formula, 0, 0, 0)                                                                                      \
    DEFINE_LOOP(formula, 0, 0, 1)                                                                                      \
    DEFINE_LOOP(formula, 0, 1, 0)                                                                                      \
    DEFINE_LOOP(formula, 0, 1, 1)                                                                                      \
    DEFINE_LOOP(formula, 1, 0, 0)                                                                                      \
    DEFINE_LOOP(formula, 1, 0, 1)                                                                                      \
    DEFINE_LOOP(formula, 1, 1, 0)                                                                                      \
    DEFINE_LOOP(formula, 1, 1, 1)                                                                                      \
    DEFINE_LOOP(formula, 1, 0, 2)                                                                                      \
    DEFINE_LOOP(formula, 1, 1, 2)
/* Lazy loops have no variant without L2: without L2, its terms are zero. */
#define LIST_LOOPS(formula)                                                                                            \
    {                                                                                                                  \
        {{LOOP_NAME(formula, 0, 0, 0), LOOP_NAME(formula, 0, 0, 1), LOOP_NAME(formula, 1, 0, 2)},                      \
         {LOOP_NAME(formula, 0, 1, 0), LOOP_NAME(formula, 0, 1, 1), LOOP_NAME(formula, 1, 1, 2)}},                     \
            {{LOOP_NAME(formula, 1, 0, 0), LOOP_NAME(formula, 1, 0, 1), LOOP_NAME(formula, 1, 0, 2)},                  \
             {LOOP_NAME(formula, 1, 1, 0), LOOP_NAME(formula, 1, 1, 1), LOOP_NAME(formula, 1, 1, 2)}},                 \
    }

DEFINE_LOOPS(FORMULA_SGD)
DEFINE_LOOPS(FORMULA_MOMENTUM)
DEFINE_LOOPS(FORMULA_NESTEROV)
DEFINE_LOOPS(FORMULA_ADAGRAD)
DEFINE_LOOPS(FORMULA_ADADELTA)
DEFINE_LOOPS(FORMULA_ADAM)
DEFINE_LOOPS(FORMULA_RMSPROP)
DEFINE_LOOPS(FORMULA_FTRL)

const struct optimizer_kernels OPTIMIZER_KERNELS = {
    .name = OPTIMIZER_KERNELS_NAME,
    .loops =
        {
            [FORMULA_SGD] = LIST_LOOPS(FORMULA_SGD),
            [FORMULA_MOMENTUM] = LIST_LOOPS(FORMULA_MOMENTUM),
            [FORMULA_NESTEROV] = LIST_LOOPS(FORMULA_NESTEROV),
            [FORMULA_ADAGRAD] = LIST_LOOPS(FORMULA_ADAGRAD),
            [FORMULA_ADADELTA] = LIST_LOOPS(FORMULA_ADADELTA),
            [FORMULA_ADAM] = LIST_LOOPS(FORMULA_ADAM),
            [FORMULA_RMSPROP] = LIST_LOOPS(FORMULA_RMSPROP),
            [FORMULA_FTRL] = LIST_LOOPS(FORMULA_FTRL),
        },
};

#endif
