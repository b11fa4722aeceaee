/* Temperatures of made-up outputs: what they reach, and where there is little or nothing to learn from. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
/* cmocka needs the headers above first. */
#include "tests/check.h"

#include "tests/random.h"
#include "worker/evaluation/calibration.h"

enum { ROWS = 20000, CLASSES = 4 };

struct scene {
    struct examples examples;
    float *logits; /* [ROWS, outputs] */
};

static void set_up(struct scene *scene, int outputs)
{
    *scene = (struct scene){.examples = {.count = ROWS, .targets = outputs}};
    scene->logits = calloc((size_t)ROWS * CLASSES, sizeof *scene->logits);
    scene->examples.labels = calloc(ROWS, sizeof *scene->examples.labels);
    scene->examples.target_values = calloc((size_t)ROWS * CLASSES, sizeof *scene->examples.target_values);
}

static void tear_down(struct scene *scene)
{
    free(scene->logits);
    free(scene->examples.labels);
    free(scene->examples.target_values);
}

static double uniform(struct test_random *random, double low, double high)
{
    return low + (high - low) * ((double)test_random_float(random) + 1) / 2;
}

/* Labels drawn by the true probabilities; the outputs are theirs times `sureness`. */
static void draw_classes(struct scene *scene, double sureness, struct test_random *random)
{
    for (int row = 0; row < ROWS; row++) {
        double shares[CLASSES], sum = 0, point = 0;
        const double drawn = uniform(random, 0, 1);
        for (int i = 0; i < CLASSES; i++) {
            const double z = uniform(random, -2, 2);
            scene->logits[row * CLASSES + i] = (float)(sureness * z);
            shares[i] = exp(z);
            sum += shares[i];
        }
        int label = 0;
        while (label < CLASSES - 1 && (point += shares[label] / sum) < drawn) {
            label++;
        }
        scene->examples.labels[row] = label;
    }
}

static void draw_flags(struct scene *scene, double sureness, struct test_random *random)
{
    for (int i = 0; i < ROWS * 2; i++) {
        const double z = uniform(random, -3, 3);
        scene->logits[i] = (float)(sureness * z);
        scene->examples.target_values[i] = uniform(random, 0, 1) < 1 / (1 + exp(-z)) ? 1 : 0;
    }
}

TEST(finds_how_sure_a_model_is)
{
    struct test_random random = test_random_begin(__func__);
    static const double sure[] = {0.3, 0.8, 1, 1.7, 4};
    for (size_t i = 0; i < sizeof sure / sizeof *sure; i++) {
        struct scene scene;
        set_up(&scene, 0);
        draw_classes(&scene, sure[i], &random);
        assert_true(fabs(log(calibration_fit(LOSS_SOFTMAX, scene.logits, CLASSES, &scene.examples, i % 2 == 0) /
                             sure[i])) < 0.1);
        tear_down(&scene);
        set_up(&scene, 2);
        draw_flags(&scene, sure[i], &random);
        assert_true(fabs(log(calibration_fit(LOSS_SIGMOID, scene.logits, 2, &scene.examples, i % 2 == 0) / sure[i])) <
                    0.1);
        tear_down(&scene);
    }
}

/* Few rows, or rows that are all right, say little. */
TEST(is_careful)
{
    struct test_random random = test_random_begin(__func__);
    struct scene scene;
    set_up(&scene, 0);
    draw_classes(&scene, 1, &random);
    scene.examples.count = 5;
    const double few = calibration_fit(LOSS_SOFTMAX, scene.logits, CLASSES, &scene.examples, true);
    const double others = calibration_fit(LOSS_SOFTMAX, scene.logits, CLASSES, &scene.examples, false);
    assert_true(few > 0.7 && few < 1.5 && fabs(log(few)) < fabs(log(others)) && others > 0.4 && others < 2.5);
    scene.examples.count = 0;
    assert_true(calibration_fit(LOSS_SOFTMAX, scene.logits, CLASSES, &scene.examples, true) == 1);
    scene.examples.count = 300;
    for (int row = 0; row < 300; row++) {
        for (int i = 0; i < CLASSES; i++) {
            scene.logits[row * CLASSES + i] = scene.examples.labels[row] == i ? 6 : 0;
        }
    }
    const double right = calibration_fit(LOSS_SOFTMAX, scene.logits, CLASSES, &scene.examples, true);
    assert_true(right > 0.5 && right <= 1);
    for (int row = 0; row < 300; row++) {
        scene.examples.labels[row] = (scene.examples.labels[row] + 1) % CLASSES; /* all wrong, and sure of it */
    }
    const double wrong = calibration_fit(LOSS_SOFTMAX, scene.logits, CLASSES, &scene.examples, true);
    assert_true(wrong > 3 && wrong <= 10);
    scene.logits[0] = INFINITY;
    assert_true(calibration_fit(LOSS_SOFTMAX, scene.logits, CLASSES, &scene.examples, true) == 1);
    tear_down(&scene);
}

TEST(thresholds_follow)
{
    assert_true(calibration_threshold(0.5, 3) == 0.5);
    assert_true(isnan(calibration_threshold(NAN, 3)));
    assert_true(fabs(calibration_threshold(0.7, 0) - 0.7) < 1e-15);
    const double z = 1.25;
    assert_true(fabs(calibration_threshold(1 / (1 + exp(-z)), 2) - 1 / (1 + exp(-z / 2))) < 1e-15);
}

/* Of 19 rows the farthest error on either side is the bound of 90%; of 18 there is none. */
TEST(intervals_are_of_ranks)
{
    double scales[] = {2, 1};
    float outputs[38], wanted[38];
    struct interval interval;
    struct examples examples = {.count = 19, .targets = 2, .target_values = wanted, .target_scales = scales};
    for (int row = 0; row < 19; row++) {
        const float error = (float)((row * 7) % 19);
        outputs[2 * row] = 100;
        wanted[2 * row] = 100 + error - 5;
        outputs[2 * row + 1] = error * error;
        wanted[2 * row + 1] = 0;
    }
    assert_true(calibration_interval(0.9, outputs, &examples, &interval));
    assert_true(interval.coverage == 0.9 && interval.targets == 2);
    assert_true(interval.low[0] == -10 && interval.high[0] == 26);
    assert_true(interval.low[1] == -18 * 18 && interval.high[1] == 0);
    assert_true(calibration_interval(0.5, outputs, &examples, &interval)); /* the fifth from each end */
    assert_true(interval.low[0] == -2 && interval.high[0] == 18);
    examples.count = 18;
    assert_false(calibration_interval(0.9, outputs, &examples, &interval));
    assert_true(interval.coverage == 0);
    assert_true(calibration_interval(0.8, outputs, &examples, &interval));
}

int main(void)
{
    return check_run(NULL, NULL);
}
