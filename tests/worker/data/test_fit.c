/* Images of other sizes become like MNIST's digits: 20 of 28 high, centred by mass, light on black. */
#include "worker/data/image.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { SIDE = 28 };

/* A bar of ink `value` on `paper`. */
static struct image bar(int width, int height, int left, int top, int bar_width, int bar_height, uint8_t paper,
                        uint8_t value)
{
    struct image image = {width, height, malloc((size_t)width * (size_t)height)};
    assert_non_null(image.pixels);
    memset(image.pixels, paper, (size_t)width * (size_t)height);
    for (int y = top; y < top + bar_height; y++) {
        memset(image.pixels + (size_t)y * (size_t)width + left, value, (size_t)bar_width);
    }
    return image;
}

static void the_same_size_is_taken_as_it_is(void **state)
{
    (void)state;
    struct error error;
    uint8_t fitted[SIDE * SIDE];
    struct image image = bar(SIDE, SIDE, 0, 0, 3, 5, 200, 10); /* dark on light, in a corner: must stay as it is */
    assert_true(image_fit(&image, SIDE, SIDE, fitted, &error));
    assert_memory_equal(fitted, image.pixels, sizeof fitted);
    image_free(&image);
}

static void check_bar(struct image *image)
{
    struct error error;
    uint8_t fitted[SIDE * SIDE];
    double mass = 0, x_sum = 0, y_sum = 0;
    int top = SIDE, bottom = -1;
    assert_true(image_fit(image, SIDE, SIDE, fitted, &error));
    for (int y = 0; y < SIDE; y++) {
        for (int x = 0; x < SIDE; x++) {
            double value = fitted[y * SIDE + x];
            mass += value;
            x_sum += value * (x + 0.5);
            y_sum += value * (y + 0.5);
            if (value > 0) {
                top = y < top ? y : top;
                bottom = y;
            }
        }
    }
    assert_true(fabs(x_sum / mass - SIDE / 2.0) <= 0.5);
    assert_true(fabs(y_sum / mass - SIDE / 2.0) <= 0.5);
    assert_int_equal(bottom - top + 1, 20);
    assert_int_equal(fitted[14 * SIDE + 14], 255);
    assert_int_equal(fitted[0], 0);
    image_free(image);
}

static void scaled_and_centred(void **state)
{
    (void)state;
    struct image images[] = {
        bar(200, 300, 100, 5, 40, 160, 0, 255), /* large, light on black */
        bar(200, 300, 2, 100, 40, 160, 255, 0), /* dark on white */
        bar(12, 14, 1, 1, 3, 12, 0, 255),       /* small: made larger */
        bar(1000, 30, 700, 3, 6, 24, 255, 0),   /* a wide page */
    };
    for (size_t i = 0; i < sizeof images / sizeof images[0]; i++) {
        check_bar(&images[i]);
    }
}

static void nothing_on_the_paper(void **state)
{
    (void)state;
    struct error error;
    uint8_t fitted[SIDE * SIDE];
    for (int paper = 0; paper < 256; paper += 255) {
        struct image image = bar(50, 40, 0, 0, 0, 0, (uint8_t)paper, 0);
        assert_true(image_fit(&image, SIDE, SIDE, fitted, &error));
        for (int i = 0; i < SIDE * SIDE; i++) {
            assert_int_equal(fitted[i], 0);
        }
        image_free(&image);
    }
}

/* Every size fits into every other, down to one pixel. */
static void awkward_sizes(void **state)
{
    (void)state;
    static const int sides[] = {1, 2, 7, 27, 29, 200};
    struct error error;
    uint8_t *fitted = malloc(200 * 200);
    assert_non_null(fitted);
    for (int i = 0; i < 6 * 6 * 6; i++) {
        int width = sides[i % 6], height = sides[i / 6 % 6], target = sides[i / 36];
        struct image image = bar(width, height, width / 2, 0, 1, height, 0, 255);
        assert_true(image_fit(&image, target, 200 / target, fitted, &error));
        image_free(&image);
    }
    free(fitted);
}

static void inputs_of_a_model(void **state)
{
    (void)state;
    struct error error;
    uint8_t fitted[64];
    assert_int_equal(image_side(784), 28);
    assert_int_equal(image_side(1), 1);
    assert_int_equal(image_side(600), 0);
    struct image flat = bar(6, 4, 1, 1, 2, 2, 0, 9);
    assert_true(image_fit_inputs(&flat, 24, fitted, &error)); /* the number of pixels matters, not the shape */
    assert_memory_equal(fitted, flat.pixels, 24);
    assert_true(image_fit_inputs(&flat, 64, fitted, &error));
    assert_false(image_fit_inputs(&flat, 23, fitted, &error));
    assert_string_equal(error.text, "is an image of 6x4, but the model's 23 inputs are not a square to scale it to");
    image_free(&flat);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_size_is_taken_as_it_is),
        cmocka_unit_test(scaled_and_centred),
        cmocka_unit_test(nothing_on_the_paper),
        cmocka_unit_test(awkward_sizes),
        cmocka_unit_test(inputs_of_a_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
