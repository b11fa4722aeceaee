/*
 * Synchronous steps and rounds compared with the reference: the mean or the median, in the order of workers, whichever
 * threads help; and their answers.
 */
#include "tests/check.h"
#include "tests/ps/twin.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "ps/store/rounds.h"

/* The reference of an aggregate, as ps/store/store.h defines it; gradients: [WORKERS] of the whole vector. */
static void step_twin_by_mean(struct fixture *f, float *const gradients[WORKERS], const int *workers, int count,
                              const float *weights)
{
    float *sum = calloc(f->model.float_count, sizeof *sum);
    for (size_t i = 0; i < f->model.float_count; i++) {
        sum[i] = weights[0] * gradients[workers[0]][i];
        for (int k = 1; k < count; k++) {
            sum[i] += weights[k] * gradients[workers[k]][i];
        }
    }
    step_twin(f, sum);
    free(sum);
}

static int random_workers(int workers[WORKERS], struct test_random *random)
{
    int count = 0;
    while (count == 0) {
        for (int worker = 0; worker < WORKERS; worker++) {
            if (test_random_below(random, 3) > 0) {
                workers[count++] = worker;
            }
        }
    }
    return count;
}

struct helper {
    pthread_t thread;
    struct shard *shard;
    atomic_bool end;
};

static void *help_on(void *context)
{
    struct helper *helper = context;
    while (!atomic_load(&helper->end)) {
        shard_help(helper->shard);
        usleep(20); /* the lock is for others, too */
    }
    return NULL;
}

/* With rounds every worker has a number of examples; otherwise it is ignored. */
static void weigh(struct shard *shard, bool rounds, const int *workers, int count, float weights[WORKERS],
                  struct test_random *random)
{
    double all = 0, examples[WORKERS];
    for (int k = 0; k < count; k++) {
        examples[k] = 1 + test_random_below(random, 1000);
        stage_set_weight(shard_stage(shard, workers[k]), (uint32_t)examples[k]);
        all += examples[k];
    }
    for (int k = 0; k < count; k++) {
        weights[k] = rounds ? (float)(examples[k] / all) : 1.0f / (float)count;
    }
}

static void run_synchronous_variant(bool rounds, int shape, int variant, struct test_random *random)
{
    struct fixture f;
    float *gradients[WORKERS];
    struct helper helpers[2];
    (rounds ? set_up_rounds : set_up_synchronous)(&f, shape, variant, random);
    struct shard *shard = f.shards[0];
    for (int i = 0; i < WORKERS; i++) {
        gradients[i] = calloc(f.model.float_count, sizeof(float));
    }
    for (int i = 0; i < 2; i++) {
        helpers[i].shard = shard;
        atomic_init(&helpers[i].end, false);
        assert_int_equal(pthread_create(&helpers[i].thread, NULL, help_on, &helpers[i]), 0);
    }
    for (int step = 0; step < 12; step++) {
        int workers[WORKERS], count = random_workers(workers, random);
        float weights[WORKERS];
        for (int i = 0; i < WORKERS; i++) { /* also from workers that are not in the set: they must have no effect */
            push_random(&f, 0, shard_stage(shard, i), gradients[i], random);
        }
        weigh(shard, rounds, workers, count, weights, random);
        assert_true(shard_aggregate(shard, GENERATION, workers, count));
        step_twin_by_mean(&f, gradients, workers, count, weights);
        for (int i = 0; i < WORKERS; i++) {
            struct changes changes;
            if (i > 0 && test_random_below(random, 4) == 0) {
                continue; /* this one is away for a step, and gets the changes of several later */
            }
            assert_true(
                shard_answer(shard, GENERATION, shard_stage(shard, i), f.versions[i][0], DTYPE_FLOAT32, &changes));
            assert_true(step == 0 || i > 0 || changes.shared); /* the first is never away */
            assert_int_equal(changes.version, step + 2);
            assert_int_equal(changes.global_step, step + 1);
            take_changes(f.views[i], &changes);
            f.versions[i][0] = changes.version;
            shard_answered(shard, &changes);
            assert_memory_equal(f.views[i], f.twin[STORE_PARAMETERS], f.model.float_count * sizeof(float));
        }
    }
    for (int i = 0; i < 2; i++) {
        atomic_store(&helpers[i].end, true);
        pthread_join(helpers[i].thread, NULL);
    }
    check_vectors(&f);
    for (int i = 0; i < WORKERS; i++) {
        free(gradients[i]);
    }
    tear_down(&f);
}

TEST(test_aggregates_are_means_in_the_order_of_workers)
{
    struct test_random random = test_random_begin("aggregate");
    for (int variant = 0; variant < 40; variant++) {
        run_synchronous_variant(false, test_random_below(&random, 4), variant, &random);
    }
}

static double squares_of(const struct model *model, const float *difference)
{
    double squares = 0;
    for (int i = 0; i < model->variable_count; i++) {
        for (int row = 0; row < model->variables[i].rows; row++) {
            squares = outer_squares(squares, difference + variable_at(&model->variables[i], row, 0),
                                    (size_t)model->variables[i].cols);
        }
    }
    return squares;
}

/* The result of a round of these differences, and whether the shard reports the same about each. */
static void check_middle(struct fixture *f, float *const *differences, const int *workers, int count,
                         const struct config_train *train)
{
    float scales[WORKERS], *middle = calloc(f->model.float_count, sizeof *middle);
    const float *values[WORKERS];
    void *scratch = malloc(robust_scratch(count));
    for (int k = 0; k < count; k++) {
        values[k] = differences[workers[k]];
        scales[k] = outer_clip(squares_of(&f->model, values[k]), train->clip_difference_norm);
    }
    robust_mean(middle, values, scales, count, robust_cut(train, count), f->model.float_count, scratch);
    assert_true(shard_aggregate(f->shards[0], GENERATION, workers, count));
    step_twin(f, middle);
    const double squares_of_middle = squares_of(&f->model, middle);
    for (int k = 0; k < count; k++) {
        float cosine, norm;
        double dot = 0, squares = squares_of(&f->model, values[k]);
        for (size_t i = 0; i < f->model.float_count; i++) {
            dot += (double)values[k][i] * (double)middle[i];
        }
        shard_round_figures(f->shards[0], workers[k], &cosine, &norm);
        assert_true(fabs((double)norm - sqrt(squares)) <= 1e-4 * sqrt(squares));
        if (squares > 0 && squares_of_middle > 0) {
            assert_true(fabs((double)cosine - dot / sqrt(squares * squares_of_middle)) < 1e-4);
        }
    }
    free(scratch);
    free(middle);
}

TEST(test_rounds_may_take_the_middle)
{
    struct test_random random = test_random_begin("middle");
    for (int variant = 0; variant < 20; variant++) {
        struct fixture f;
        float *differences[WORKERS];
        struct error error;
        set_up_rounds(&f, test_random_below(&random, 4), variant, &random);
        struct config_train train = f.config.train;
        train.aggregate = variant % 2 == 0 ? AGGREGATE_MEDIAN : AGGREGATE_TRIMMED_MEAN;
        train.trim = 0.3;
        train.clip_difference_norm = variant % 3 == 0 ? 5 : 0;
        f.config.train.aggregate = train.aggregate;
        f.config.train.trim = train.trim;
        f.config.train.clip_difference_norm = train.clip_difference_norm;
        shard_destroy(f.shards[0]);
        f.config.train.outer_optimizer = (enum outer_optimizer)(variant % 4);
        assert_true(shard_create(&f.shards[0], &f.model, &f.config, 0, &error));
        f.config.train = outer_train(&f.config.train);
        restore(f.shards[0], f.twin[STORE_PARAMETERS], 0);
        for (int i = 0; i < WORKERS; i++) {
            differences[i] = calloc(f.model.float_count, sizeof(float));
        }
        for (int step = 0; step < 6; step++) {
            int workers[WORKERS], count = random_workers(workers, &random);
            for (int k = 0; k < count; k++) {
                struct stage *stage = shard_stage(f.shards[0], workers[k]);
                push_random(&f, 0, stage, differences[workers[k]], &random);
                stage_set_weight(stage, 1 + (uint32_t)test_random_below(&random, 100));
            }
            check_middle(&f, differences, workers, count, &train);
        }
        check_vectors(&f);
        for (int i = 0; i < WORKERS; i++) {
            free(differences[i]);
        }
        tear_down(&f);
    }
}

/* Those of small differences are as exact as those of large ones; no difference has a direction. */
TEST(test_figures_are_of_the_round)
{
    static const float sizes[] = {1e-4f, 0};
    struct test_random random = test_random_begin("figures");
    struct fixture f;
    const int one[1] = {1};
    float cosine, norm;
    set_up_rounds(&f, STRIPES, 0, &random);
    for (int i = 0; i < 2; i++) {
        fill_stage(f.shards[0], shard_stage(f.shards[0], 1), sizes[i]);
        assert_true(shard_aggregate(f.shards[0], GENERATION, one, 1));
        shard_round_figures(f.shards[0], 1, &cosine, &norm);
        const double expected = (double)sizes[i] * sqrt((double)f.model.parameter_count);
        assert_true(fabs((double)norm - expected) <= 1e-4 * expected);
        assert_true(i == 0 ? fabsf(cosine - 1) < 1e-4f : isnan(cosine));
    }
    const int two[2] = {0, 1};
    fill_stage(f.shards[0], shard_stage(f.shards[0], 0), 0);
    fill_stage(f.shards[0], shard_stage(f.shards[0], 1), 1);
    assert_true(shard_aggregate(f.shards[0], GENERATION, two, 2));
    for (int i = 0; i < 2; i++) {
        shard_round_figures(f.shards[0], i, &cosine, &norm);
        assert_true(i == 1 ? fabsf(cosine - 1) < 1e-4f : isnan(cosine));
    }
    tear_down(&f);
    set_up_synchronous(&f, 1, 0, &random);
    fill_stage(f.shards[0], shard_stage(f.shards[0], 1), 1);
    assert_true(shard_aggregate(f.shards[0], GENERATION, one, 1));
    shard_round_figures(f.shards[0], 1, &cosine, &norm);
    assert_true(isnan(cosine) && isnan(norm));
    tear_down(&f);
}

TEST(test_rounds_weigh_workers_by_examples)
{
    struct test_random random = test_random_begin("rounds");
    for (int variant = 0; variant < 40; variant++) {
        run_synchronous_variant(true, test_random_below(&random, 4), variant, &random);
    }
}

/* An answer still being sent does not change, though steps continue. */
TEST(test_answers_on_their_way_do_not_change)
{
    struct test_random random = test_random_begin("answers");
    struct fixture f;
    struct changes held[3];
    float *copies[3];
    const int all[WORKERS] = {0, 1, 2};
    set_up_synchronous(&f, 0, 0, &random);
    struct shard *shard = f.shards[0];
    for (int step = 0; step < 3; step++) {
        for (int i = 0; i < WORKERS; i++) {
            fill_stage(shard, shard_stage(shard, i), -1.0f);
        }
        assert_true(shard_aggregate(shard, GENERATION, all, WORKERS));
        assert_true(
            shard_answer(shard, GENERATION, shard_stage(shard, step), (uint64_t)step + 1, DTYPE_FLOAT32, &held[step]));
        /* The third finds both shared answers in use, and gets its own. */
        assert_true(!!held[step].shared == (step < 2));
        copies[step] = malloc(held[step].value_count * sizeof(float));
        memcpy(copies[step], held[step].values, held[step].value_count * sizeof(float));
    }
    for (int step = 0; step < 3; step++) {
        assert_memory_equal(copies[step], held[step].values, held[step].value_count * sizeof(float));
        shard_answered(shard, &held[step]);
        free(copies[step]);
    }
    assert_false(shard_aggregate(shard, GENERATION + 1, all, WORKERS));
    tear_down(&f);
}

/* Changes of the last step of the previous generation are no answer in this one, though the versions are equal. */
TEST(test_a_shared_answer_is_of_one_generation)
{
    struct test_random random = test_random_begin("generation");
    struct fixture f;
    struct changes changes;
    const int all[WORKERS] = {0, 1, 2};
    set_up_synchronous(&f, 1, 0, &random);
    struct shard *shard = f.shards[0];
    for (int i = 0; i < WORKERS; i++) {
        fill_stage(shard, shard_stage(shard, i), -1.0f);
    }
    assert_true(shard_aggregate(shard, GENERATION, all, WORKERS)); /* from version 1 to 2 */
    struct error error;
    shard_begin_write(shard, GENERATION + 1);
    write_range(shard, STORE_PARAMETERS, (struct span){0, f.model.float_count}, f.twin[STORE_PARAMETERS]);
    assert_true(shard_end_write(shard, 0, 0, &error));
    assert_true(shard_answer(shard, GENERATION + 1, shard_stage(shard, 0), 1, DTYPE_FLOAT32, &changes));
    assert_null(changes.shared);
    assert_int_equal(changes.version, 1);
    assert_int_equal(changes.value_count, 0);
    assert_false(shard_answer(shard, GENERATION, shard_stage(shard, 0), 0, DTYPE_FLOAT32, &changes));
    tear_down(&f);
}

/* A sum starts as zero, so that no sum is minus zero, as in a process that trains with micro-batches. */
TEST(test_no_sum_is_minus_zero)
{
    struct test_random random = test_random_begin("zeros");
    struct fixture f;
    struct error error;
    float *values, out[8];
    const int two[2] = {0, 1};
    set_up_synchronous(&f, 1, 0, &random); /* sgd: minus zero stays so if zero is subtracted from it */
    struct shard *shard = f.shards[0];
    const struct range few = {0, 8};
    for (size_t i = 0; i < 8; i++) {
        f.twin[STORE_PARAMETERS][i] = -0.0f;
    }
    restore(shard, f.twin[STORE_PARAMETERS], 0);
    stage_begin(shard_stage(shard, 0)); /* nothing in it */
    stage_begin(shard_stage(shard, 1));
    assert_true(stage_claim(shard_stage(shard, 1), few, &values, &error));
    for (size_t i = 0; i < few.count; i++) {
        values[i] = -0.0f;
    }
    assert_true(shard_aggregate(shard, GENERATION, two, 2));
    assert_true(shard_read(shard, STORE_PARAMETERS, few, out, &error));
    for (size_t i = 0; i < few.count; i++) {
        assert_true(out[i] == 0.0f && signbit(out[i]));
    }
    tear_down(&f);
}

/* A pull does not spoil the same worker's gradient, which waits for its step. */
TEST(test_pulling_leaves_the_staged_gradient_alone)
{
    struct test_random random = test_random_begin("pull");
    struct fixture f;
    struct changes changes;
    float *gradients[WORKERS];
    const int one[1] = {1};
    set_up_synchronous(&f, 1, 1, &random);
    struct shard *shard = f.shards[0];
    for (int i = 0; i < WORKERS; i++) {
        gradients[i] = calloc(f.model.float_count, sizeof(float));
    }
    push_random(&f, 0, shard_stage(shard, 1), gradients[1], &random);
    assert_true(shard_changes(shard, GENERATION, shard_stage(shard, 1), 0, DTYPE_FLOAT32, &changes));
    take_changes(f.views[1], &changes);
    assert_memory_equal(f.views[1], f.twin[STORE_PARAMETERS], f.model.float_count * sizeof(float));
    assert_true(shard_aggregate(shard, GENERATION, one, 1));
    step_twin_by_mean(&f, gradients, one, 1, (const float[]){1});
    check_vectors(&f);
    for (int i = 0; i < WORKERS; i++) {
        free(gradients[i]);
    }
    tear_down(&f);
}

int main(void)
{
    return check_run(NULL, NULL);
}
