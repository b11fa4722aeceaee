/* Images of other sizes become like MNIST's digits: 20 of 28 high, centred by mass, light on black. */
#include "tests/check.h"
#include "worker/data/image.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SIDE = 28 };

static const struct image_shape digit = {SIDE, SIDE, 1, true};

/* A bar of ink `value` on `paper`. */
static struct image bar(int width, int height, int left, int top, int bar_width, int bar_height, uint8_t paper,
                        uint8_t value)
{
    struct image image = {width, height, 1, malloc((size_t)width * (size_t)height)};
    assert_non_null(image.pixels);
    memset(image.pixels, paper, (size_t)width * (size_t)height);
    for (int y = top; y < top + bar_height; y++) {
        memset(image.pixels + (size_t)y * (size_t)width + left, value, (size_t)bar_width);
    }
    return image;
}

TEST(the_same_size_is_taken_as_it_is)
{
    struct error error;
    uint8_t fitted[SIDE * SIDE];
    struct image image = bar(SIDE, SIDE, 0, 0, 3, 5, 200, 10); /* dark on light, in a corner: must stay as it is */
    assert_true(image_fit(&image, &digit, fitted, &error));
    assert_memory_equal(fitted, image.pixels, sizeof fitted);
    image_free(&image);
}

static void check_bar(struct image *image)
{
    struct error error;
    uint8_t fitted[SIDE * SIDE];
    double mass = 0, x_sum = 0, y_sum = 0;
    int top = SIDE, bottom = -1;
    assert_true(image_fit(image, &digit, fitted, &error));
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

TEST(scaled_and_centred)
{
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

TEST(nothing_on_the_paper)
{
    struct error error;
    uint8_t fitted[SIDE * SIDE];
    for (int paper = 0; paper < 256; paper += 255) {
        struct image image = bar(50, 40, 0, 0, 0, 0, (uint8_t)paper, 0);
        assert_true(image_fit(&image, &digit, fitted, &error));
        for (int i = 0; i < SIDE * SIDE; i++) {
            assert_int_equal(fitted[i], 0);
        }
        image_free(&image);
    }
}

/* Every size fits into every other, down to one pixel. */
TEST(awkward_sizes)
{
    static const int sides[] = {1, 2, 7, 27, 29, 200};
    struct error error;
    uint8_t *fitted = malloc(200 * 200);
    assert_non_null(fitted);
    for (int i = 0; i < 6 * 6 * 6; i++) {
        int width = sides[i % 6], height = sides[i / 6 % 6], target = sides[i / 36];
        struct image image = bar(width, height, width / 2, 0, 1, height, 0, 255);
        for (int digits = 0; digits < 2; digits++) {
            const struct image_shape shape = {200 / target, target, 1, digits == 1};
            assert_true(image_fit(&image, &shape, fitted, &error));
        }
        image_free(&image);
    }
    free(fitted);
}

/* What is no digit keeps its place and its colours; a picture of one colour stays of that colour. */
TEST(others_are_scaled)
{
    enum { FROM = 64, TO = 16 };
    struct error error;
    uint8_t fitted[TO * TO * IMAGE_RGB];
    const struct image_shape shape = {TO, TO, IMAGE_RGB, false};
    struct image image = {FROM, FROM, IMAGE_RGB, calloc(FROM * FROM, IMAGE_RGB)};
    assert_non_null(image.pixels);
    for (int i = 0; i < FROM * FROM; i++) {
        image.pixels[IMAGE_RGB * i + (i % FROM < FROM / 2 ? 0 : 2)] = 200; /* left red, right blue */
    }
    assert_true(image_fit(&image, &shape, fitted, &error));
    for (int i = 0; i < TO * TO; i++) {
        const int x = i % TO;
        const uint8_t *pixel = fitted + (size_t)IMAGE_RGB * (size_t)i;
        assert_int_equal(pixel[1], 0);
        if (x < TO / 2 - 1 || x > TO / 2) {
            assert_int_equal(pixel[0], x < TO / 2 ? 200 : 0);
            assert_int_equal(pixel[2], x < TO / 2 ? 0 : 200);
        }
    }
    image_free(&image);
}

TEST(inputs_of_a_model)
{
    assert_int_equal(image_side(784), 28);
    assert_int_equal(image_side(1), 1);
    assert_int_equal(image_side(600), 0);
    const struct image_shape square = image_shape_of(784), line = image_shape_of(600);
    assert_true(square.height == 28 && square.width == 28 && square.channels == 1 && square.digits);
    assert_true(line.height == 1 && line.width == 600 && line.channels == 1 && !line.digits);
}

TEST(sizes_as_text)
{
    static const struct {
        const char *text;
        int height, width;
    } good[] = {{"auto", 0, 0}, {"32", 32, 32}, {"32x48", 32, 48}, {"1x16384", 1, 16384}};
    static const char *const bad[] = {"", "0", "32x", "x32", "32x0", "32x48x3", "-3", "16385", "3.5", "99999999999x1"};
    struct error error;
    int height, width;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_true(image_size_parse(good[i].text, &height, &width, &error));
        assert_int_equal(height, good[i].height);
        assert_int_equal(width, good[i].width);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_false(image_size_parse(bad[i], &height, &width, &error));
        assert_non_null(strstr(error.text, bad[i]));
    }
}

int main(void)
{
    return check_run(NULL, NULL);
}
