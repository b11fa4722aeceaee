/* The optimizers' definitions, the constants of a step, and the choice of the loops that apply it. */
#include "ps/store/optimizer.h"

#include <assert.h>
#include <math.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "base/config.h"
#include "base/cpu.h"

#include "ps/store/optimizer_loops.h"

static const struct {
    int slots;
    const char *slot_names[OPTIMIZER_MAX_SLOTS];
} kinds[] = {
    [OPTIMIZER_SGD] = {0, {NULL, NULL}},          [OPTIMIZER_MOMENTUM] = {1, {"Momentum", NULL}},
    [OPTIMIZER_ADAGRAD] = {1, {"Adagrad", NULL}}, [OPTIMIZER_ADADELTA] = {2, {"Adadelta", "Adadelta_1"}},
    [OPTIMIZER_ADAM] = {2, {"Adam", "Adam_1"}},   [OPTIMIZER_RMSPROP] = {2, {"RMSProp", "RMSProp_1"}},
    [OPTIMIZER_FTRL] = {2, {"Ftrl", "Ftrl_1"}},
};

int optimizer_slots(enum optimizer_kind kind)
{
    return kinds[kind].slots;
}

const char *optimizer_slot_name(enum optimizer_kind kind, int slot)
{
    assert(slot >= 0 && slot < kinds[kind].slots);
    return kinds[kind].slot_names[slot];
}

float optimizer_slot_initial(const struct config_train *config, int slot)
{
    assert(slot >= 0 && slot < kinds[config->optimizer].slots);
    bool accumulates = config->optimizer == OPTIMIZER_ADAGRAD || config->optimizer == OPTIMIZER_FTRL;
    if (slot == 0 && accumulates) {
        return (float)config->adagrad_init;
    }
    return slot == 0 && config->optimizer == OPTIMIZER_RMSPROP ? 1.0f : 0.0f; /* as in TensorFlow: the mean square */
}

static double exponential_decay(const struct config_train *config, int64_t global_step)
{
    if (config->lr_decay == 1.0) {
        return 1.0;
    }
    assert(config->lr_decay_steps > 0);
    double exponent = (double)global_step / (double)config->lr_decay_steps;
    if (config->lr_staircase) {
        exponent = floor(exponent);
    }
    return pow(config->lr_decay, exponent);
}

static double cosine_decay(const struct config_train *config, int64_t global_step)
{
    if (config->lr_cosine_steps == 0) {
        return 1.0;
    }
    double done = fmin(1.0, (double)global_step / (double)config->lr_cosine_steps);
    return config->lr_cosine_end + (1.0 - config->lr_cosine_end) * 0.5 * (1.0 + cos(acos(-1.0) * done));
}

double schedule_lowered_rate(const struct config_train *config)
{
    return config->learning_rate * pow(RETRY_RATE, config->retries);
}

double schedule_learning_rate(const struct config_train *config, int64_t global_step)
{
    double warmth =
        global_step < config->lr_warmup_steps ? ((double)global_step + 1.0) / (double)config->lr_warmup_steps : 1.0;
    return schedule_lowered_rate(config) * exponential_decay(config, global_step) * cosine_decay(config, global_step) *
           warmth;
}

void update_prepare(struct update *update, const struct config_train *config, int64_t global_step)
{
    double applied = (double)global_step + 1.0; /* steps, including this one */
    double learning_rate = schedule_learning_rate(config, global_step);
    *update = (struct update){
        .kind = config->optimizer,
        .nesterov = config->nesterov,
        .lazy = config->lazy_updates,
        .momentum = (float)config->momentum,
        .rho = (float)config->rho,
        .beta1 = (float)config->beta1,
        .beta2 = (float)config->beta2,
        .epsilon = (float)config->epsilon,
        .l1 = (float)config->l1,
        .l2 = (float)config->l2,
        .shrink = (float)(1.0 - learning_rate * config->weight_decay),
        .ema_decay = -1.0f,
    };
    if (config->optimizer == OPTIMIZER_RMSPROP) {
        update->momentum = (float)config->rmsprop_momentum;
        update->rho = (float)config->rmsprop_decay;
    }
    if (config->optimizer == OPTIMIZER_ADAM) {
        /* From the rounded betas: the correction must match the averages, which use those. */
        double correction1 = 1.0 - pow((double)update->beta1, applied);
        double correction2 = 1.0 - pow((double)update->beta2, applied);
        learning_rate *= sqrt(correction2) / correction1;
    }
    update->learning_rate = (float)learning_rate;
    if (config->ema_decay > 0.0) {
        update->ema_decay = (float)fmin(config->ema_decay, (1.0 + applied) / (10.0 + applied));
    }
}

void update_spare_biases(struct update *update)
{
    update->l2 = 0.0f;
    update->shrink = 1.0f;
}

/* Exact, because it is a power of two. */
#define ENCODED_RATE 0.5

void updates_prepare(struct update updates[UPDATE_KINDS], const struct config_train *config, int64_t global_step)
{
    struct update *encoded = &updates[UPDATE_ENCODED_WEIGHTS];
    update_prepare(&updates[UPDATE_WEIGHTS], config, global_step);
    *encoded = updates[UPDATE_WEIGHTS];
    if (!config->is_outer) {
        encoded->learning_rate *= (float)ENCODED_RATE;
    }
    if (!config->is_outer && config->weight_decay > 0) {
        const double rate = ENCODED_RATE * schedule_learning_rate(config, global_step);
        encoded->shrink = (float)(1.0 - rate * config->weight_decay);
    }
    updates[UPDATE_BIASES] = updates[UPDATE_WEIGHTS];
    updates[UPDATE_ENCODED_BIASES] = *encoded;
    update_spare_biases(&updates[UPDATE_BIASES]);
    update_spare_biases(&updates[UPDATE_ENCODED_BIASES]);
}

/* Do weights change without a gradient, by L2 or by weight decay? The loops treat both alike. */
static bool pulls(const struct update *update)
{
    return update->l2 != 0.0f || update->shrink != 1.0f;
}

bool update_zero_is_noop_at_start(const struct update *update)
{
    /*
     * Adadelta's slots start at zero and stay there, and so do momentum's and adam's. Rmsprop's mean square starts at 1
     * and decays, and ftrl derives the parameter from its slots.
     */
    if (update->lazy) {
        return true;
    }
    bool rests = update->kind != OPTIMIZER_RMSPROP && update->kind != OPTIMIZER_FTRL;
    return rests && !pulls(update) && update->ema_decay < 0.0f;
}

bool update_zero_is_noop(const struct update *update)
{
    return update_zero_is_noop_at_start(update) &&
           (update->lazy || update->kind == OPTIMIZER_SGD || update->kind == OPTIMIZER_ADAGRAD);
}

const struct optimizer_kernels *optimizer_kernels_get(enum cpu_kernels wanted)
{
#if defined(__x86_64__)
    const struct cpu_features *cpu = cpu_features_get();
    if (cpu->avx512 && (wanted == CPU_KERNELS_AUTO || wanted == CPU_KERNELS_AVX512)) {
        return &optimizer_kernels_avx512;
    }
    if (cpu->avx2 && wanted != CPU_KERNELS_REFERENCE) {
        return &optimizer_kernels_avx2;
    }
#endif
    (void)wanted;
    return &optimizer_kernels_baseline;
}

static enum optimizer_formula formula_of(const struct update *update)
{
    switch (update->kind) {
    case OPTIMIZER_SGD:
        return FORMULA_SGD;
    case OPTIMIZER_MOMENTUM:
        return update->nesterov ? FORMULA_NESTEROV : FORMULA_MOMENTUM;
    case OPTIMIZER_ADAGRAD:
        return FORMULA_ADAGRAD;
    case OPTIMIZER_ADADELTA:
        return FORMULA_ADADELTA;
    case OPTIMIZER_ADAM:
        return FORMULA_ADAM;
    case OPTIMIZER_RMSPROP:
        return FORMULA_RMSPROP;
    case OPTIMIZER_FTRL:
        return FORMULA_FTRL;
    case OPTIMIZER_KINDS:
        break;
    }
    assert(false); /* all kinds are listed above */
    return FORMULA_SGD;
}

optimizer_loop optimizer_loop_get(const struct optimizer_kernels *kernels, const struct update *update,
                                  bool with_gradient)
{
    enum optimizer_gradients gradients = !with_gradient ? GRADIENTS_ABSENT
                                         : update->lazy ? GRADIENTS_LAZY
                                                        : GRADIENTS_PRESENT;
    return kernels->loops[formula_of(update)][pulls(update)][update->ema_decay >= 0.0f][gradients];
}

unsigned optimizer_enter(void)
{
#if defined(__x86_64__)
    const unsigned flush_to_zero = 0x8000, denormals_are_zero = 0x0040;
    unsigned mode = _mm_getcsr();
    _mm_setcsr(mode | flush_to_zero | denormals_are_zero);
    return mode;
#elif defined(__aarch64__)
    const uint64_t flush_to_zero = 1u << 24; /* of operands and results */
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    __asm__ volatile("msr fpcr, %0" : : "r"(mode | flush_to_zero));
    return (unsigned)mode;
#else
    return 0;
#endif
}

void optimizer_leave(unsigned mode)
{
#if defined(__x86_64__)
    _mm_setcsr(mode);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)mode));
#else
    (void)mode;
#endif
}
