/*
 * The optimizers compared with TensorFlow's results, every instruction set compared with the baseline, and the
 * schedules.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/config.h"
#include "base/cpu.h"
#include "ps/store/optimizer.h"
#include "ps/store/optimizer_math.h"
#include "tests/check.h"
#include "tests/ps/store/apply.h"
#include "tests/random.h"
#include "tests/vectors/optimizer_vectors.h"

enum { WEIGHTS = VECTOR_ROWS * VECTOR_COLS, MAX_N = 200 };

/* The instruction sets of this machine; prints which are missing. */
static int available_kernels(const struct optimizer_kernels *kernels[3])
{
    kernels[0] = optimizer_kernels_get(CPU_KERNELS_REFERENCE);
    int count = 1;
    if (cpu_features_get()->avx2) {
        kernels[count++] = optimizer_kernels_get(CPU_KERNELS_AVX2);
    } else {
        fprintf(stderr, "[  SKIPPED ] AVX2, which this CPU lacks\n");
    }
    if (cpu_features_get()->avx512) {
        kernels[count++] = optimizer_kernels_get(CPU_KERNELS_AVX512);
    } else {
        fprintf(stderr, "[  SKIPPED ] AVX-512, which this CPU lacks\n");
    }
    return count;
}

/* gradient() and start() of make_vectors.py. */
static float vector_gradient(int step, int i)
{
    if (i < WEIGHTS && i / VECTOR_COLS == 1 && step != 40) {
        return 0.0f;
    }
    uint32_t mixed = ((uint32_t)step * 131 + (uint32_t)i * 31337 + 7) * 2654435761u;
    return (float)((int)((mixed >> 8) % 2049) - 1024) / 1024.0f;
}

static float vector_start(int i)
{
    return (float)(i * 37 % 41 - 20) / 64.0f;
}

static void check_shown(const struct optimizer_vector *vector, const char *kernels, int shown,
                        float values[4][VECTOR_FLOATS])
{
    for (int v = 0; v < 4; v++) {
        const double *expected = vector->shown[shown].values[v];
        double largest = 0;
        for (int i = 0; i < VECTOR_FLOATS; i++) {
            largest = fmax(largest, fabs(expected[i]));
        }
        for (int i = 0; i < VECTOR_FLOATS; i++) {
            double off = fabs((double)values[v][i] - expected[i]);
            if (!(off <= 1e-6 * fabs(expected[i]) + 1e-6 * largest)) {
                fail_msg("%s on %s, vector %d, element %d after %d steps: %.9g here, %.9g in TensorFlow", vector->name,
                         kernels, v, i, vector->shown[shown].steps, (double)values[v][i], expected[i]);
            }
        }
    }
}

static void run_vector(const struct optimizer_vector *vector, const struct optimizer_kernels *kernels)
{
    const struct config_train *config = &vector->config;
    int slots = optimizer_slots(config->optimizer);
    float values[4][VECTOR_FLOATS] = {{0}};
    for (int i = 0; i < VECTOR_FLOATS; i++) {
        values[0][i] = vector_start(i);
        values[3][i] = config->ema_decay > 0 ? vector_start(i) : 0.0f;
        for (int slot = 0; slot < slots; slot++) {
            values[1 + slot][i] = optimizer_slot_initial(config, slot);
        }
    }
    int shown = 0;
    for (int step = 0; step < vector->shown[VECTOR_SHOWN - 1].steps; step++) {
        float gradient[VECTOR_FLOATS];
        for (int i = 0; i < VECTOR_FLOATS; i++) {
            gradient[i] = vector_gradient(step, i);
        }
        struct update update;
        update_prepare(&update, config, step);
        struct optimizer_rows rows = {.rows = WEIGHTS / VECTOR_COLS,
                                      .cols = VECTOR_COLS,
                                      .gradient = gradient,
                                      .gradient_stride = VECTOR_COLS,
                                      .parameters = values[0],
                                      .slot0 = values[1],
                                      .slot1 = values[2],
                                      .average = values[3],
                                      .stride = VECTOR_COLS};
        optimizer_loop_get(kernels, &update, true)(&update, &rows);
        update_spare_biases(&update);
        rows = (struct optimizer_rows){.rows = 1,
                                       .cols = VECTOR_COLS,
                                       .gradient = gradient + WEIGHTS,
                                       .parameters = values[0] + WEIGHTS,
                                       .slot0 = values[1] + WEIGHTS,
                                       .slot1 = values[2] + WEIGHTS,
                                       .average = values[3] + WEIGHTS};
        optimizer_loop_get(kernels, &update, true)(&update, &rows);
        if (step + 1 == vector->shown[shown].steps) {
            check_shown(vector, kernels->name, shown++, values);
        }
    }
    assert_int_equal(shown, VECTOR_SHOWN);
}

TEST(hundred_steps_are_tensorflows)
{
    const struct optimizer_kernels *kernels[3];
    int count = available_kernels(kernels);
    for (size_t i = 0; i < sizeof optimizer_vectors / sizeof *optimizer_vectors; i++) {
        for (int k = 0; k < count; k++) {
            run_vector(&optimizer_vectors[i], kernels[k]);
        }
    }
}

/* By default the fastest that this CPU can run. */
TEST(kernels_are_those_that_are_wanted)
{
    const struct optimizer_kernels *best = &optimizer_kernels_baseline;
#if defined(__x86_64__)
    const struct cpu_features *cpu = cpu_features_get();
    best = cpu->avx2 ? &optimizer_kernels_avx2 : best;
    assert_ptr_equal(optimizer_kernels_get(CPU_KERNELS_AVX2), best);
    best = cpu->avx512 ? &optimizer_kernels_avx512 : best;
    assert_ptr_equal(optimizer_kernels_get(CPU_KERNELS_AVX512), best);
#endif
    assert_ptr_equal(optimizer_kernels_get(CPU_KERNELS_AUTO), best);
    assert_ptr_equal(optimizer_kernels_get(CPU_KERNELS_REFERENCE), &optimizer_kernels_baseline);
}

TEST(slot_names_are_tensorflows)
{
    for (size_t i = 0; i < sizeof optimizer_vectors / sizeof *optimizer_vectors; i++) {
        const struct optimizer_vector *vector = &optimizer_vectors[i];
        int slots = optimizer_slots(vector->config.optimizer);
        for (int slot = 0; slot < OPTIMIZER_MAX_SLOTS; slot++) {
            assert_int_equal(!!vector->names[slot], slot < slots);
            if (slot < slots) {
                assert_string_equal(vector->names[slot], optimizer_slot_name(vector->config.optimizer, slot));
            }
        }
        if (vector->names[2]) {
            assert_string_equal(vector->names[2], OPTIMIZER_AVERAGE_NAME);
        }
    }
}

struct arrays {
    float gradient[MAX_N], values[4][MAX_N];
};

static struct arrays random_arrays(struct test_random *random)
{
    struct arrays arrays;
    for (int i = 0; i < MAX_N; i++) {
        arrays.gradient[i] = test_random_below(random, 4) == 0 ? 0.0f : test_random_float(random);
        arrays.values[0][i] = test_random_float(random);
        arrays.values[1][i] = fabsf(test_random_float(random)) + 1e-6f;
        arrays.values[2][i] = fabsf(test_random_float(random));
        arrays.values[3][i] = test_random_float(random);
    }
    return arrays;
}

/* Each kind with and without each of L2, averages, Nesterov, in turn. */
static struct update random_update(struct test_random *random, int variant)
{
    struct config_train config = {
        .optimizer = (enum optimizer_kind)(variant % OPTIMIZER_KINDS),
        .nesterov = variant / OPTIMIZER_KINDS % 2,
        .l2 = variant / (2 * OPTIMIZER_KINDS) % 2 ? 1e-3 : 0,
        .ema_decay = variant / (4 * OPTIMIZER_KINDS) % 2 ? 0.99 : 0,
        .learning_rate = 0.01,
        .lr_decay = 1,
        .momentum = 0.9,
        .rho = 0.95,
        .beta1 = 0.9,
        .beta2 = 0.999,
        .epsilon = 1e-7,
        .rmsprop_decay = 0.9,
        .rmsprop_momentum = 0.5,
        .l1 = 0.1,
        .weight_decay = variant % 3 == 0 ? 0.01 : 0,
    };
    config.lazy_updates = variant / (8 * OPTIMIZER_KINDS) % 2;
    struct update update;
    update_prepare(&update, &config, test_random_below(random, 1000));
    return update;
}

enum { VARIANTS = 16 * OPTIMIZER_KINDS };

static void apply(optimizer_loop loop, const struct update *update, struct arrays *arrays, int first, int n)
{
    struct optimizer_rows rows = {.rows = 1,
                                  .cols = (size_t)n,
                                  .gradient = arrays->gradient + first,
                                  .parameters = arrays->values[0] + first,
                                  .slot0 = arrays->values[1] + first,
                                  .slot1 = arrays->values[2] + first,
                                  .average = arrays->values[3] + first};
    loop(update, &rows);
}

TEST(every_instruction_set_gives_the_same_bits)
{
    struct test_random random = test_random_begin("every_instruction_set_gives_the_same_bits");
    const struct optimizer_kernels *kernels[3];
    int count = available_kernels(kernels);
    for (int round = 0; round < 10 * VARIANTS; round++) {
        struct update update = random_update(&random, round % VARIANTS);
        struct arrays start = random_arrays(&random);
        int n = test_random_below(&random, 100), first = test_random_below(&random, 16);
        for (int with_gradient = 0; with_gradient < 2; with_gradient++) {
            struct arrays expected = start;
            apply(optimizer_loop_get(kernels[0], &update, with_gradient), &update, &expected, first, n);
            for (int k = 1; k < count; k++) {
                struct arrays got = start;
                apply(optimizer_loop_get(kernels[k], &update, with_gradient), &update, &got, first, n);
                assert_memory_equal(&got, &expected, sizeof got);
            }
        }
    }
}

/* Ranges beside the given one stay unchanged, and cutting it anywhere changes nothing. */
TEST(in_pieces_is_as_whole)
{
    struct test_random random = test_random_begin("in_pieces_is_as_whole");
    const struct optimizer_kernels *kernels[3];
    int count = available_kernels(kernels);
    for (int round = 0; round < 10 * VARIANTS; round++) {
        struct update update = random_update(&random, round % VARIANTS);
        struct arrays start = random_arrays(&random);
        optimizer_loop loop = optimizer_loop_get(kernels[round % count], &update, true);
        struct arrays whole = start, pieces = start;
        int first = test_random_below(&random, 16), n = test_random_below(&random, MAX_N - 16);
        apply(loop, &update, &whole, first, n);
        for (int done = 0, piece; done < n; done += piece) {
            piece = 1 + test_random_below(&random, n - done);
            apply(loop, &update, &pieces, first + done, piece);
        }
        assert_memory_equal(&pieces, &whole, sizeof pieces);
        for (int v = 0; v < 4; v++) {
            assert_memory_equal(whole.values[v], start.values[v], (size_t)first * sizeof(float));
            assert_memory_equal(whole.values[v] + first + n, start.values[v] + first + n,
                                (size_t)(MAX_N - first - n) * sizeof(float));
        }
    }
}

TEST(no_gradient_is_a_gradient_of_zeros)
{
    struct test_random random = test_random_begin("no_gradient_is_a_gradient_of_zeros");
    const struct optimizer_kernels *kernels[3];
    int count = available_kernels(kernels);
    for (int round = 0; round < 4 * VARIANTS; round++) {
        struct update update = random_update(&random, round % VARIANTS);
        struct arrays without = random_arrays(&random);
        memset(without.gradient, 0, sizeof without.gradient);
        struct arrays start = without, zeros = without, fresh = without;
        int k = round % count;
        apply(optimizer_loop_get(kernels[k], &update, true), &update, &zeros, 0, MAX_N);
        if (update.lazy) {
            assert_memory_equal(&zeros, &start, sizeof start);
            assert_true(update_zero_is_noop(&update) && update_zero_is_noop_at_start(&update));
            continue;
        }
        apply(optimizer_loop_get(kernels[k], &update, false), &update, &without, 0, MAX_N);
        assert_memory_equal(&without, &zeros, sizeof zeros);
        bool same = memcmp(&without, &start, sizeof start) == 0;
        assert_int_equal(update_zero_is_noop(&update), same);

        /* And with slots as at the start. */
        memset(fresh.values[1], 0, sizeof fresh.values[1]);
        memset(fresh.values[2], 0, sizeof fresh.values[2]);
        bool accumulates = update.kind == OPTIMIZER_ADAGRAD || update.kind == OPTIMIZER_FTRL;
        for (int i = 0; i < MAX_N; i++) {
            fresh.values[1][i] = accumulates ? 0.1f : update.kind == OPTIMIZER_RMSPROP ? 1.0f : 0.0f;
        }
        start = fresh;
        apply(optimizer_loop_get(kernels[k], &update, false), &update, &fresh, 0, MAX_N);
        same = memcmp(&fresh, &start, sizeof start) == 0;
        assert_int_equal(update_zero_is_noop_at_start(&update), same);
    }
}

/* Where there is a gradient, they give the same bits as the others. */
TEST(lazy_updates_leave_what_has_no_gradient)
{
    struct test_random random = test_random_begin("lazy_updates_leave_what_has_no_gradient");
    const struct optimizer_kernels *kernels[3];
    int count = available_kernels(kernels);
    for (int round = 0; round < 2 * VARIANTS; round++) {
        struct update update = random_update(&random, round % VARIANTS);
        struct arrays start = random_arrays(&random), lazy = start, all = start, one = start;
        update.lazy = false;
        apply(optimizer_loop_get(kernels[round % count], &update, true), &update, &all, 0, MAX_N);
        update.lazy = true;
        apply(optimizer_loop_get(kernels[round % count], &update, true), &update, &lazy, 0, MAX_N);
        for (int i = 0; i < MAX_N; i++) {
            for (int v = 0; v < 4; v++) {
                const struct arrays *expected = start.gradient[i] == 0.0f ? &start : &all;
                assert_memory_equal(&lazy.values[v][i], &expected->values[v][i], sizeof(float));
            }
            optimizer_element(&update, one.gradient[i], one.values[0], one.values[1], one.values[2], one.values[3],
                              (size_t)i);
        }
        assert_memory_equal(&one, &lazy, sizeof lazy);
    }
}

TEST(tiny_numbers_become_zero_and_the_threads_mode_stays)
{
    struct config_train config = {
        .optimizer = OPTIMIZER_MOMENTUM, .learning_rate = 0.1, .lr_decay = 1, .momentum = 0.9};
    struct update update;
    update_prepare(&update, &config, 0);
    float parameters[17], slot[17];
    for (int i = 0; i < 17; i++) {
        parameters[i] = 1.0f;
        slot[i] = 1e-38f;
    }
    for (int step = 0; step < 100; step++) {
        apply_update(&update, 17, NULL, parameters, slot, NULL, NULL);
    }
    for (int i = 0; i < 17; i++) {
        assert_true(slot[i] == 0.0f);
    }
    volatile float tiny = 1e-38f;
    assert_true(tiny * 0.1f > 0.0f);
}

TEST(learning_rate_decays_as_exponential_decay)
{
    struct config_train config = {.learning_rate = 0.8, .lr_decay = 0.99, .lr_decay_steps = 550};
    assert_true(schedule_learning_rate(&config, 0) == 0.8);
    assert_true(fabs(schedule_learning_rate(&config, 275) - 0.8 * sqrt(0.99)) < 1e-15);
    assert_true(fabs(schedule_learning_rate(&config, 5500) - 0.8 * pow(0.99, 10)) < 1e-15);
    config.lr_staircase = true;
    assert_true(schedule_learning_rate(&config, 549) == 0.8);
    assert_true(fabs(schedule_learning_rate(&config, 1099) - 0.8 * 0.99) < 1e-15);
    config.lr_decay = 1;
    config.lr_decay_steps = 0;
    assert_true(schedule_learning_rate(&config, 1 << 30) == 0.8);
}

/*
 * Apart from the gradient: neither adam's moments nor momentum's accumulator see it, and it follows the learning rate.
 */
TEST(weight_decay_is_beside_the_gradient)
{
    static const enum optimizer_kind kinds[] = {OPTIMIZER_SGD, OPTIMIZER_MOMENTUM, OPTIMIZER_ADAM, OPTIMIZER_RMSPROP};
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        struct config_train config = {.optimizer = kinds[k],
                                      .learning_rate = 0.1,
                                      .lr_decay = 0.5,
                                      .lr_decay_steps = 1,
                                      .momentum = 0.9,
                                      .beta1 = 0.9,
                                      .beta2 = 0.999,
                                      .rmsprop_decay = 0.9,
                                      .epsilon = 1e-8};
        float plain[3] = {2, 0, 1}, decayed[3] = {2, 0, 1}, biases[3] = {2, 0, 1}, gradient = 0.5f;
        struct update update;
        update_prepare(&update, &config, 1);
        apply_update(&update, 1, &gradient, &plain[0], &plain[1], &plain[2], NULL);
        config.weight_decay = 0.2;
        update_prepare(&update, &config, 1);
        assert_false(update_zero_is_noop(&update));
        apply_update(&update, 1, &gradient, &decayed[0], &decayed[1], &decayed[2], NULL);
        /* 2 x (1 - 0.05 x 0.2) instead of 2 */
        assert_true(fabs((double)(plain[0] - decayed[0]) - 2 * 0.05 * 0.2) < 1e-6);
        assert_true(plain[1] == decayed[1] && plain[2] == decayed[2]);
        update_spare_biases(&update);
        apply_update(&update, 1, &gradient, &biases[0], &biases[1], &biases[2], NULL);
        assert_true(biases[0] == plain[0]);
    }
}

TEST(warm_up_and_cosine)
{
    struct config_train config = {.learning_rate = 0.8, .lr_decay = 1, .lr_warmup_steps = 4};
    assert_true(schedule_learning_rate(&config, 0) == 0.8 / 4);
    assert_true(schedule_learning_rate(&config, 3) == 0.8);
    assert_true(schedule_learning_rate(&config, 4) == 0.8);
    assert_true(schedule_learning_rate(&config, 1000) == 0.8);
    config.lr_cosine_steps = 100;
    config.lr_cosine_end = 0.5;
    assert_true(fabs(schedule_learning_rate(&config, 50) - 0.8 * 0.75) < 1e-15);
    assert_true(fabs(schedule_learning_rate(&config, 100) - 0.8 * 0.5) < 1e-15);
    assert_true(fabs(schedule_learning_rate(&config, 5000) - 0.8 * 0.5) < 1e-15);
    assert_true(schedule_learning_rate(&config, 25) > 0.8 * 0.75);
}

TEST(averages_have_tensorflows_ramp)
{
    struct config_train config = {.learning_rate = 0.1, .lr_decay = 1, .ema_decay = 0.99};
    struct update update;
    update_prepare(&update, &config, 0);
    assert_true(update.ema_decay == (float)(2.0 / 11.0));
    update_prepare(&update, &config, 1000000);
    assert_true(update.ema_decay == 0.99f);
    config.ema_decay = 0;
    update_prepare(&update, &config, 0);
    assert_true(update.ema_decay < 0.0f);
}

int main(void)
{
    return check_run(NULL, NULL);
}
