/* Evaluation with an engine whose answers are in the images. */
#include "tests/check.h"
#include "worker/evaluation/evaluate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CLASSES = 5, PIXELS = 2 };

static int forward_calls, classes_now = CLASSES;
static bool averages_asked;

/* Pixel 0 names the class whose logit is `pixel 1`; all others are 0. 255 stands for a NaN. */
static bool forward(struct engine *engine, bool averaged, const struct examples *examples, int first, int count,
                    float *logits, struct error *error)
{
    const uint8_t *images = examples->images + (size_t)first * PIXELS;
    averages_asked = averaged;
    if (forward_calls++ == 1000) {
        return error_set(error, "the device is gone");
    }
    for (int i = 0; i < count; i++) {
        for (int c = 0; c < classes_now; c++) {
            logits[i * classes_now + c] = 0;
        }
        logits[i * classes_now + images[i * PIXELS]] = images[i * PIXELS + 1] == 255 ? NAN : images[i * PIXELS + 1];
    }
    return true;
}

static const struct engine_table table = {.name = "fake", .forward = forward};
static struct engine engine = {.table = &table};

static void create(struct evaluation *evaluation, int classes)
{
    static const struct config_train train;
    evaluation_create(evaluation, &(struct evaluation_options){.train = &train, .outputs = classes});
}

static struct examples make_examples(uint8_t *images, int32_t *labels, int count)
{
    return (struct examples){
        .images = images, .labels = labels, .count = count, .height = 1, .width = PIXELS, .classes = CLASSES};
}

TEST(counts_and_losses)
{
    uint8_t images[] = {0, 3, 1, 3, 2, 3, 2, 3, 0, 3, 4, 3};
    int32_t labels[] = {0, 1, 2, 3, 3, 4};
    struct examples examples = make_examples(images, labels, 6);
    struct evaluation evaluation;
    struct error error;
    create(&evaluation, CLASSES);
    for (int twice = 0; twice < 2; twice++) { /* the second time starts from nothing again */
        assert_true(evaluate(&evaluation, &engine, twice == 1, &examples, &error));
        assert_int_equal(averages_asked, twice == 1);
        assert_int_equal(evaluation.images, 6);
        assert_int_equal(evaluation.correct, 4);
        double right = log(exp(3) + 4) - 3, wrong = log(exp(3) + 4);
        assert_true(fabs(evaluation.loss - (4 * right + 2 * wrong) / 6) < 1e-12);
        assert_true(fabs(evaluation_accuracy(&evaluation) - 4.0 / 6) < 1e-12);
        assert_int_equal(evaluation.class_images[3], 2);
        assert_int_equal(evaluation.class_correct[3], 0);
        assert_int_equal(evaluation.confusions[3 * CLASSES + 2], 1);
        assert_int_equal(evaluation.confusions[3 * CLASSES + 0], 1);
        assert_int_equal(evaluation.confusions[4 * CLASSES + 4], 1);
    }
    evaluation_destroy(&evaluation);
}

TEST(worst_pairs_come_first)
{
    struct evaluation evaluation;
    struct confused_pair pairs[3];
    create(&evaluation, CLASSES);
    assert_int_equal(evaluation_worst_pairs(&evaluation, pairs, 3), 0);
    evaluation.confusions[0 * CLASSES + 1] = 2;
    evaluation.confusions[1 * CLASSES + 1] = 100; /* no mistake */
    evaluation.confusions[2 * CLASSES + 1] = 7;
    evaluation.confusions[3 * CLASSES + 4] = 2;
    evaluation.confusions[4 * CLASSES + 0] = 3;
    assert_int_equal(evaluation_worst_pairs(&evaluation, pairs, 3), 3);
    assert_true(pairs[0].label == 2 && pairs[0].predicted == 1 && pairs[0].images == 7);
    assert_true(pairs[1].label == 4 && pairs[1].predicted == 0 && pairs[1].images == 3);
    assert_true(pairs[2].label == 0 && pairs[2].predicted == 1 && pairs[2].images == 2);
    evaluation_destroy(&evaluation);
}

TEST(many_images_come_in_chunks)
{
    enum { COUNT = 5003 };
    uint8_t *images = calloc(COUNT, PIXELS);
    int32_t *labels = calloc(COUNT, sizeof *labels);
    for (int i = 0; i < COUNT; i++) {
        images[i * PIXELS] = (uint8_t)(i % CLASSES);
        images[i * PIXELS + 1] = 9;
        labels[i] = i % CLASSES;
    }
    struct examples examples = make_examples(images, labels, COUNT);
    struct evaluation evaluation;
    struct error error;
    create(&evaluation, CLASSES);
    assert_true(evaluate(&evaluation, &engine, false, &examples, &error));
    assert_int_equal(evaluation.correct, COUNT);
    assert_int_equal(evaluation.class_images[0], 1001);
    evaluation_destroy(&evaluation);

    classes_now = 20000; /* more classes than fit into a chunk: one image at a time */
    create(&evaluation, classes_now);
    assert_null(evaluation.confusions);
    examples.count = 10;
    assert_true(evaluate(&evaluation, &engine, false, &examples, &error));
    assert_int_equal(evaluation.correct, 10);
    evaluation_destroy(&evaluation);
    classes_now = CLASSES;
    free(images);
    free(labels);
}

TEST(a_nan_shows_in_the_loss)
{
    struct evaluation evaluation;
    struct error error;
    int32_t labels[] = {0, 0};
    create(&evaluation, CLASSES);
    for (int c = 0; c < CLASSES; c++) {
        uint8_t images[] = {0, 3, (uint8_t)c, 255};
        struct examples examples = make_examples(images, labels, 2);
        assert_true(evaluate(&evaluation, &engine, false, &examples, &error));
        bool finite = isfinite(evaluation.loss);
        assert_false(finite);
    }
    evaluation_destroy(&evaluation);
}

TEST(a_failing_engine_fails_it)
{
    uint8_t images[] = {0, 3};
    int32_t labels[] = {0};
    struct examples examples = make_examples(images, labels, 1);
    struct evaluation evaluation;
    struct error error;
    create(&evaluation, CLASSES);
    forward_calls = 1000;
    assert_false(evaluate(&evaluation, &engine, false, &examples, &error));
    assert_string_equal(error.text, "the device is gone");
    forward_calls = 0;
    evaluation_destroy(&evaluation);
}

int main(void)
{
    return check_run(NULL, NULL);
}
