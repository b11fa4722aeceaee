/* Outer optimizers compared with their papers' formulas, in double precision; and their part of a config. */
#include <math.h>
#include <string.h>

#include "ps/store/rounds.h"
#include "ps/store/store.h"
#include "tests/check.h"
#include "tests/random.h"

enum { ROUNDS = 20 };

static struct config_model model_config = {.layers = {5, 3}, .layer_count = 2};

static struct config_train rounds_of(enum outer_optimizer kind)
{
    return (struct config_train){.optimizer = OPTIMIZER_FTRL,
                                 .lazy_updates = true,
                                 .learning_rate = 0.3,
                                 .lr_decay = 0.5,
                                 .lr_warmup_steps = 7,
                                 .lr_cosine_steps = 9,
                                 .l1 = 0.1,
                                 .l2 = 0.1,
                                 .weight_decay = 0.1,
                                 .local_steps = 4,
                                 .outer_optimizer = kind,
                                 .outer_learning_rate = kind == OUTER_ADAM ? 0.05 : 0.6,
                                 .outer_momentum = 0.8};
}

/* One parameter, by the papers: x is the model, d the mean of x minus the workers' results. */
struct paper {
    double x, first, second;
    int round;
};

static void apply(struct paper *p, enum outer_optimizer kind, double rate, double beta, double d)
{
    const double beta2 = 0.99, tau = 1e-3;
    p->round++;
    switch (kind) {
    case OUTER_AVERAGE:
        p->x -= rate * d;
        break;
    case OUTER_MOMENTUM: /* Hsu et al., section 4.3: v <- beta v + d; w <- w - v, here with a rate */
        p->first = beta * p->first + d;
        p->x -= rate * p->first;
        break;
    case OUTER_NESTEROV: /* torch.optim.SGD(nesterov=True), DiLoCo's outer optimizer */
        p->first = beta * p->first + d;
        p->x -= rate * (d + beta * p->first);
        break;
    case OUTER_ADAM: /* Reddi et al., algorithm 2, with the bias corrected as Kingma and Ba do */
        p->first = beta * p->first + (1 - beta) * d;
        p->second = beta2 * p->second + (1 - beta2) * d * d;
        p->x -= rate * sqrt(1 - pow(beta2, p->round)) / (1 - pow(beta, p->round)) * p->first / (sqrt(p->second) + tau);
        break;
    }
}

TEST(rounds_follow_the_papers)
{
    struct model model;
    model_layout(&model, &model_config);
    const struct variable *weights = &model.variables[0];
    for (int kind = OUTER_AVERAGE; kind <= OUTER_ADAM; kind++) {
        struct test_random random = test_random_begin("outer");
        const struct config_train train = rounds_of((enum outer_optimizer)kind), outer = outer_train(&train);
        struct store store;
        struct paper paper = {.x = 0.25};
        store_create(&store, &model, &outer);
        store.vectors[STORE_PARAMETERS][weights->offset] = 0.25f;
        for (int round = 0; round < ROUNDS; round++) {
            const bool is_absent = round % 4 == 3; /* as good as 0: lazy updates are the workers' own */
            float differences[5][3] = {{is_absent ? 0 : test_random_float(&random)}};
            store_begin_step(&store);
            store_apply(&store, &(struct gradient_block){.rows = weights->rows,
                                                         .cols = weights->cols,
                                                         .values = *differences,
                                                         .stride = 3,
                                                         .present = is_absent ? (const int32_t[]){0} : NULL});
            store_end_step(&store);
            apply(&paper, (enum outer_optimizer)kind, train.outer_learning_rate, train.outer_momentum,
                  (double)differences[0][0]);
            assert_true(fabs((double)store.vectors[STORE_PARAMETERS][weights->offset] - paper.x) < 1e-5);
        }
        store_destroy(&store);
    }
}

/* With rate 1 the new model is the mean of the workers': the average in FedAvg. */
TEST(the_average_is_one)
{
    struct config_train train = rounds_of(OUTER_AVERAGE);
    train.outer_learning_rate = 1;
    const struct config_train outer = outer_train(&train);
    struct update update;
    update_prepare(&update, &outer, 1000);
    assert_int_equal(update.kind, OPTIMIZER_SGD);
    assert_true(update.learning_rate == 1.0f && update.l2 == 0.0f && update.shrink == 1.0f);
    const float ended[] = {0.5f, 0.25f, 0.125f}, begun = 0.75f;
    float sum = 0, parameter = begun;
    for (int i = 0; i < 3; i++) {
        sum += outer_weight(i + 1, 6) * (begun - ended[i]);
    }
    parameter -= update.learning_rate * sum;
    assert_true(fabs((double)parameter - (0.5 + 2 * 0.25 + 3 * 0.125) / 6) < 1e-6);
}

TEST(without_rounds_nothing_is_different)
{
    struct config_train train = rounds_of(OUTER_ADAM);
    train.local_steps = 1;
    const struct config_train outer = outer_train(&train);
    assert_memory_equal(&outer, &train, sizeof train);
    train.local_epochs = 1;
    assert_int_equal(outer_train(&train).optimizer, OPTIMIZER_ADAM);
}

int main(void)
{
    return check_run(NULL, NULL);
}
