/* The program's own digits: the same everywhere, different in each image, as sparse as MNIST. */
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"
#include "worker/data/synth.h"

enum { COUNT = 2000 };

static uint8_t images[COUNT][SYNTH_PIXELS], other[COUNT][SYNTH_PIXELS];
static int32_t labels[COUNT], other_labels[COUNT];

static void fill(uint64_t seed, enum synth_split split, int threads, uint8_t (*to)[SYNTH_PIXELS], int32_t *to_labels)
{
    struct error error;
    assert_true(synth_fill(seed, split, COUNT, threads, to[0], to_labels, &error));
}

static void test_same_for_any_number_of_threads(void **state)
{
    fill(7, SYNTH_TRAIN, 1, images, labels);
    fill(7, SYNTH_TRAIN, 3, other, other_labels);
    assert_memory_equal(images, other, sizeof images);
    assert_memory_equal(labels, other_labels, sizeof labels);
    for (uint32_t i = 0; i < COUNT; i += 331) {
        uint8_t one[SYNTH_PIXELS];
        assert_int_equal(synth_draw(7, SYNTH_TRAIN, i, one), labels[i]);
        assert_memory_equal(one, images[i], sizeof one);
    }
}

static int equal_images(void)
{
    int equal = 0;
    for (int i = 0; i < COUNT; i++) {
        equal += memcmp(images[i], other[i], SYNTH_PIXELS) == 0;
    }
    return equal;
}

static void test_splits_and_seeds_differ(void **state)
{
    fill(7, SYNTH_TRAIN, 2, images, labels);
    fill(7, SYNTH_TEST, 2, other, other_labels);
    assert_int_equal(equal_images(), 0);
    fill(8, SYNTH_TRAIN, 2, other, other_labels);
    assert_int_equal(equal_images(), 0);
    fill(7 + ((uint64_t)1 << 32), SYNTH_TRAIN, 2, other, other_labels);
    assert_int_equal(equal_images(), 0);
    memcpy(other, images + 1, sizeof images - sizeof images[0]);
    assert_int_equal(equal_images(), 0);
}

static void test_classes_and_sparsity(void **state)
{
    fill(3, SYNTH_TRAIN, 2, images, labels);
    int per_class[SYNTH_CLASSES] = {0};
    double zeros = 0, sum = 0;
    for (int i = 0; i < COUNT; i++) {
        assert_in_range(labels[i], 0, SYNTH_CLASSES - 1);
        per_class[labels[i]]++;
        for (int p = 0; p < SYNTH_PIXELS; p++) {
            zeros += images[i][p] == 0;
            sum += images[i][p];
        }
    }
    for (int c = 0; c < SYNTH_CLASSES; c++) {
        assert_in_range(per_class[c], COUNT / 10 - 70, COUNT / 10 + 70); /* 5 standard deviations */
    }
    zeros /= COUNT * SYNTH_PIXELS;
    sum /= COUNT * SYNTH_PIXELS;
    assert_true(zeros > 0.75 && zeros < 0.82);
    assert_true(sum > 25 && sum < 40);
}

/* The ink of every digit, including its soft edge, stays near the middle: the border cuts off almost nothing. */
static void test_digits_fit(void **state)
{
    fill(4, SYNTH_TRAIN, 2, images, labels);
    int touching = 0;
    for (int i = 0; i < COUNT; i++) {
        int border = 0;
        for (int p = 0; p < SYNTH_SIDE; p++) {
            border += (images[i][p] > 0) + (images[i][SYNTH_PIXELS - 1 - p] > 0);
            border += (images[i][p * SYNTH_SIDE] > 0) + (images[i][p * SYNTH_SIDE + SYNTH_SIDE - 1] > 0);
        }
        touching += border > 2; /* there may be specks */
    }
    assert_true(touching < COUNT / 50);
}

/* Changing these pixels changes what everybody trains on by default, and the published results. */
static void test_known_image(void **state)
{
    uint32_t hash = 2166136261u; /* FNV-1a */
    fill(1, SYNTH_TRAIN, 2, images, labels);
    for (int i = 0; i < COUNT; i++) {
        for (int p = 0; p < SYNTH_PIXELS; p++) {
            hash = (hash ^ images[i][p]) * 16777619u;
        }
        hash = (hash ^ (uint32_t)labels[i]) * 16777619u;
    }
    if (hash != 0x728bfb0bu) {
        fail_msg("the images of seed 1 have changed: 0x%08xu", hash);
    }
}

static void test_glyphs_are_well_formed(void **state)
{
    for (int digit = 0; digit < 10; digit++) {
        int weight = 0;
        for (int s = 0; s < GLYPH_MAX_STYLES && glyphs[digit][s].weight > 0; s++) {
            const struct glyph *glyph = &glyphs[digit][s];
            weight += glyph->weight;
            assert_in_range(glyph->count, 2, GLYPH_MAX_POINTS);
            assert_int_equal(glyph->points[glyph->count - 1].turn, GLYPH_LIFT);
            assert_int_not_equal(glyph->points[0].turn, GLYPH_LIFT);
        }
        assert_int_equal(weight, 100);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_glyphs_are_well_formed),
        cmocka_unit_test(test_same_for_any_number_of_threads),
        cmocka_unit_test(test_splits_and_seeds_differ),
        cmocka_unit_test(test_classes_and_sparsity),
        cmocka_unit_test(test_digits_fit),
        cmocka_unit_test(test_known_image),
    };
    return cmocka_run_group_tests_name("synth", tests, NULL, NULL);
}
