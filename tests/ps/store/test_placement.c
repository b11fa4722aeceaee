/* Placement: invariants of every policy for every model, and TensorFlow's results for some models. */
#include "ps/store/model.h"
#include "tests/check.h"
#include "tests/random.h"

static struct model lay_out(const int *layers, int count)
{
    struct config_model config = {.layer_count = count};
    struct model model;
    for (int i = 0; i < count; i++) {
        config.layers[i] = layers[i];
    }
    model_layout(&model, &config);
    return model;
}

static bool is_row_boundary(const struct model *model, size_t position)
{
    for (int i = 0; i < model->variable_count; i++) {
        const struct variable *variable = &model->variables[i];
        size_t end = variable->offset + (size_t)variable->rows * (size_t)variable->stride;
        if (position >= variable->offset && position < end) {
            return (position - variable->offset) % (size_t)variable->stride == 0;
        }
    }
    return position == model->float_count;
}

/* Spans of all ps: whole rows, ascending, disjoint, and together every float once. */
static void check_cover(const struct model *model, enum placement_policy policy, int ps_count)
{
    size_t total = 0;
    size_t sum_of_squares = 0; /* of positions: the same for any division, if each is there once */
    for (int ps = 0; ps < ps_count; ps++) {
        struct span spans[PLACEMENT_MAX_SPANS];
        int count = placement_spans(model, policy, ps_count, ps, spans);
        for (int i = 0; i < count; i++) {
            assert_true(spans[i].count > 0);
            assert_true(is_row_boundary(model, spans[i].first));
            assert_true(is_row_boundary(model, spans[i].first + spans[i].count));
            assert_true(i == 0 || spans[i - 1].first + spans[i - 1].count < spans[i].first);
            total += spans[i].count;
            for (size_t k = spans[i].first; k < spans[i].first + spans[i].count; k++) {
                sum_of_squares += k * k;
            }
        }
    }
    assert_int_equal(total, model->float_count);
    for (size_t k = 0; k < model->float_count; k++) {
        sum_of_squares -= k * k;
    }
    assert_int_equal(sum_of_squares, 0);
}

TEST(test_every_float_has_one_home)
{
    struct test_random random = test_random_begin("placement");
    for (int round = 0; round < 200; round++) {
        int layers[CONFIG_MAX_LAYERS];
        int count = 2 + test_random_below(&random, 4);
        for (int i = 0; i < count; i++) {
            layers[i] = 1 + test_random_below(&random, 90);
        }
        struct model model = lay_out(layers, count);
        int ps_count = 1 + test_random_below(&random, 40);
        for (int policy = PLACEMENT_RANGES; policy <= PLACEMENT_GREEDY; policy++) {
            check_cover(&model, (enum placement_policy)policy, ps_count);
        }
    }
}

/* The row boundary nearest to the exact share; of two, the first. */
static size_t cut_plainly(const struct model *model, int ps, int ps_count)
{
    const size_t position = model->float_count * (size_t)ps / (size_t)ps_count;
    size_t nearest = 0;
    for (size_t at = 0; at <= model->float_count; at++) {
        const size_t here = at < position ? position - at : at - position;
        const size_t there = nearest < position ? position - nearest : nearest - position;
        if (is_row_boundary(model, at) && here < there) {
            nearest = at;
        }
    }
    return nearest;
}

/* Every member and every version must come to the same result. */
TEST(test_ranges_are_cut_at_the_nearest_row)
{
    struct test_random random = test_random_begin("cuts");
    for (int round = 0; round < 20; round++) {
        const int layers[] = {1 + test_random_below(&random, 30), 1 + test_random_below(&random, 60), 3};
        struct model model = lay_out(layers, 3);
        const int ps_count = 1 + test_random_below(&random, 20);
        int first = -1;
        for (int ps = 0; ps < ps_count; ps++) {
            struct span spans[PLACEMENT_MAX_SPANS];
            const size_t begin = cut_plainly(&model, ps, ps_count), end = cut_plainly(&model, ps + 1, ps_count);
            assert_int_equal(placement_spans(&model, PLACEMENT_RANGES, ps_count, ps, spans), end > begin);
            assert_true(end == begin || (spans[0].first == begin && spans[0].count == end - begin));
            first = first < 0 && end > begin ? ps : first;
        }
        assert_int_equal(placement_first(&model, PLACEMENT_RANGES, ps_count), first);
    }
}

TEST(test_the_first_that_holds_anything)
{
    struct model model = lay_out((const int[]){2, 1}, 2);
    const struct model nothing = {.float_count = 0};
    struct span spans[PLACEMENT_MAX_SPANS];
    const int first = placement_first(&model, PLACEMENT_RANGES, 50);
    assert_true(first > 0);
    assert_int_equal(placement_spans(&model, PLACEMENT_RANGES, 50, first, spans), 1);
    assert_int_equal(spans[0].first, 0);
    assert_int_equal(placement_first(&model, PLACEMENT_ROUND_ROBIN, 50), 0);
    assert_int_equal(placement_first(&nothing, PLACEMENT_RANGES, 3), 0);
}

TEST(test_ranges_are_balanced)
{
    struct model model = lay_out((const int[]){784, 500, 10}, 3);
    for (int ps_count = 1; ps_count <= 8; ps_count++) {
        for (int ps = 0; ps < ps_count; ps++) {
            struct span spans[PLACEMENT_MAX_SPANS];
            assert_int_equal(placement_spans(&model, PLACEMENT_RANGES, ps_count, ps, spans), 1);
            double share = (double)model.float_count / ps_count;
            assert_true((double)spans[0].count > share - 528 && (double)spans[0].count < share + 528);
        }
    }
}

TEST(test_more_ps_than_rows)
{
    struct model model = lay_out((const int[]){2, 1}, 2);
    int holders = 0;
    for (int ps = 0; ps < 50; ps++) {
        struct span spans[PLACEMENT_MAX_SPANS];
        holders += placement_spans(&model, PLACEMENT_RANGES, 50, ps, spans);
    }
    assert_int_equal(holders, 3); /* two rows of weights and the bias */
}

TEST(test_round_robin_deals_variables)
{
    struct model model = lay_out((const int[]){784, 500, 10}, 3);
    struct span spans[PLACEMENT_MAX_SPANS];
    assert_int_equal(placement_spans(&model, PLACEMENT_ROUND_ROBIN, 2, 0, spans), 2); /* both weights */
    assert_int_equal(spans[0].first, model.variables[0].offset);
    assert_int_equal(spans[1].first, model.variables[2].offset);
    assert_int_equal(placement_spans(&model, PLACEMENT_ROUND_ROBIN, 2, 1, spans), 2); /* both biases */
    assert_int_equal(spans[0].first, model.variables[1].offset);
    assert_int_equal(spans[1].first, model.variables[3].offset);
}

TEST(test_greedy_gives_to_the_least_loaded)
{
    struct model model = lay_out((const int[]){784, 500, 10}, 3);
    struct span spans[PLACEMENT_MAX_SPANS];
    assert_int_equal(placement_spans(&model, PLACEMENT_GREEDY, 2, 0, spans), 1); /* the large one alone */
    assert_int_equal(spans[0].count, 784 * 528);
    assert_int_equal(placement_spans(&model, PLACEMENT_GREEDY, 2, 1, spans), 1); /* all others, which touch */
    assert_int_equal(spans[0].first, model.variables[1].offset);
}

int main(void)
{
    return check_run(NULL, NULL);
}
