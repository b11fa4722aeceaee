/* The mean of several gradients: in order, each weighted first; missing rows are zeros; padding stays. */
#include <stdlib.h>
#include <string.h>

#include "ps/store/store.h"
#include "tests/check.h"

enum { IN = 5, OUT = 3 };

static const float UNTOUCHED = -77.0f;

static int setup(struct model *model, float **sum)
{
    const struct config_model config = {.layers = {IN, OUT}, .layer_count = 2};
    model_layout(model, &config);
    *sum = malloc(model->float_count * sizeof **sum);
    assert_non_null(*sum);
    for (size_t i = 0; i < model->float_count; i++) {
        (*sum)[i] = UNTOUCHED;
    }
    return model->variables[0].rows == IN ? 0 : 1; /* the weights */
}

static void hand_in(const struct collector *collector, const struct gradient_block *block)
{
    struct collector copy = *collector;
    const struct gradient_sink sink = collector_sink(&copy);
    sink.block(sink.context, block);
}

TEST(sums_weigh_first_and_keep_their_order)
{
    struct model model;
    float *sum, first[IN * OUT], second[IN * OUT], third[IN * OUT];
    const int weights = setup(&model, &sum);
    const struct variable *variable = &model.variables[weights];
    for (int i = 0; i < IN * OUT; i++) {
        first[i] = 0.1f * (float)(i + 1);
        second[i] = 1e7f / (float)(i + 1);
        third[i] = -1e7f / (float)(i + 2);
    }
    const float *const parts[] = {first, second, third};
    const float shares[] = {0.5f, 0.3f, 0.2f};
    for (int k = 0; k < 3; k++) {
        const struct collector collector = {.model = &model, .sum = sum, .weight = shares[k], .first = k == 0};
        const struct gradient_block block = {
            .variable = weights, .rows = IN, .cols = OUT, .values = parts[k], .stride = OUT};
        hand_in(&collector, &block);
    }
    for (int row = 0; row < IN; row++) {
        for (int col = 0; col < variable->stride; col++) {
            const int i = row * OUT + col;
            const float got = sum[variable->offset + (size_t)row * (size_t)variable->stride + (size_t)col];
            if (col >= OUT) {
                assert_true(got == UNTOUCHED);
                continue;
            }
            float wanted = shares[0] * first[i];
            wanted += shares[1] * second[i];
            wanted += shares[2] * third[i];
            assert_memory_equal(&got, &wanted, sizeof got);
        }
    }
    const struct variable *biases = &model.variables[!weights];
    assert_true(sum[biases->offset] == UNTOUCHED);
    free(sum);
}

/* A block in the middle; only rows 1 and 3 are present. */
TEST(rows_that_are_left_out_are_zeros)
{
    struct model model;
    float *sum;
    const int weights = setup(&model, &sum);
    const struct variable *variable = &model.variables[weights];
    const int32_t present[] = {0, 2};
    const float values[] = {1, 2, -1, 3, 4, -1}; /* two columns, three apart */
    struct collector collector = {.model = &model, .sum = sum, .weight = 2, .first = true};
    const struct gradient_block block = {.variable = weights,
                                         .row = 1,
                                         .rows = 4,
                                         .col = 1,
                                         .cols = 2,
                                         .values = values,
                                         .stride = 3,
                                         .present = present,
                                         .present_count = 2};
    hand_in(&collector, &block);
    collector.first = false;
    hand_in(&collector, &block);
    const float wanted[IN][OUT] = {{UNTOUCHED, UNTOUCHED, UNTOUCHED},
                                   {UNTOUCHED, 4, 8},
                                   {UNTOUCHED, 0, 0},
                                   {UNTOUCHED, 12, 16},
                                   {UNTOUCHED, 0, 0}};
    for (int row = 0; row < IN; row++) {
        assert_memory_equal(sum + variable->offset + (size_t)row * (size_t)variable->stride, wanted[row],
                            sizeof wanted[row]);
    }
    free(sum);
}

int main(void)
{
    return check_run(NULL, NULL);
}
