/* Fingerprints of pictures: what changes them, what does not; and their text. */
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"
#include "worker/data/fingerprint.h"

enum { SIDE = 28, PIXELS = SIDE * SIDE };

static struct examples make(int count)
{
    struct examples examples = {.count = count, .height = SIDE, .width = SIDE, .classes = 10};
    examples.images = malloc((size_t)count * PIXELS + 64);
    examples.labels = malloc((size_t)count * sizeof *examples.labels);
    assert_non_null(examples.images);
    assert_non_null(examples.labels);
    for (int i = 0; i < count * PIXELS; i++) {
        examples.images[i] = (uint8_t)((unsigned)i * 2654435761u >> 24);
    }
    for (int i = 0; i < count; i++) {
        examples.labels[i] = i * 7 % 10;
    }
    return examples;
}

static bool same(const struct fingerprint *a, const struct fingerprint *b)
{
    struct error error;
    return fingerprint_same(a, b, &error);
}

/* Small sets are covered to the last pixel. */
TEST(test_every_pixel_and_label_of_a_small_set)
{
    struct examples examples = make(2000);
    const struct fingerprint before = fingerprint_of_pictures(&examples, 2000);
    for (int image = 0; image < 2000; image += 37) {
        uint8_t *pixel = examples.images + (size_t)image * PIXELS + image % PIXELS;
        *pixel ^= 1;
        struct fingerprint now = fingerprint_of_pictures(&examples, 2000);
        assert_false(same(&before, &now));
        assert_int_equal(before.first == now.first, image >= FINGERPRINT_FIRST);
        *pixel ^= 1;
        examples.labels[image] ^= 1;
        now = fingerprint_of_pictures(&examples, 2000);
        assert_false(same(&before, &now));
        examples.labels[image] ^= 1;
    }
    const struct fingerprint again = fingerprint_of_pictures(&examples, 2000);
    assert_true(same(&before, &again));
    examples_free(&examples);
}

/* Of a large one every label counts, and enough pixels that a set of other pictures is another one. */
TEST(test_a_large_set)
{
    struct examples examples = make(30000);
    const struct fingerprint before = fingerprint_of_pictures(&examples, 30000);
    examples.labels[29999] ^= 1;
    struct fingerprint now = fingerprint_of_pictures(&examples, 30000);
    assert_false(same(&before, &now));
    examples.labels[29999] ^= 1;
    for (int image = 15000; image < 15020; image++) { /* neighbours */
        examples.images[(size_t)image * PIXELS] ^= 1;
    }
    now = fingerprint_of_pictures(&examples, 30000);
    assert_false(same(&before, &now));
    examples_free(&examples);
}

/* A set that streams is compared by what is in memory, with one that does not, too. */
TEST(test_a_set_that_streams)
{
    struct examples examples = make(3000);
    const struct fingerprint whole = fingerprint_of_pictures(&examples, 3000);
    examples.count = 1300;
    const struct fingerprint part = fingerprint_of_pictures(&examples, 3000);
    assert_true(part.whole == 0 && whole.whole != 0);
    assert_true(same(&whole, &part) && same(&part, &whole));
    examples.labels[FINGERPRINT_FIRST - 1] ^= 1;
    const struct fingerprint other = fingerprint_of_pictures(&examples, 3000);
    assert_false(same(&whole, &other));
    examples_free(&examples);
}

TEST(test_text)
{
    char text[FINGERPRINT_TEXT];
    const struct fingerprint most = {.count = INT64_MAX,
                                     .held_out = INT64_MAX,
                                     .height = INT32_MAX,
                                     .width = INT32_MAX,
                                     .first = UINT64_MAX,
                                     .whole = UINT64_MAX};
    struct fingerprint read;
    struct error error;
    fingerprint_text(&most, text);
    assert_true(strlen(text) < FINGERPRINT_TEXT - 1);
    assert_true(fingerprint_parse(&read, text));
    assert_memory_equal(&read, &most, sizeof most);
    assert_false(fingerprint_parse(&read, ""));
    assert_false(fingerprint_parse(&read, "count=12"));
    const struct fingerprint small = {.count = 1599, .whole = 1}, more = {.count = 1600, .whole = 1};
    assert_false(fingerprint_same(&small, &more, &error));
    assert_string_equal(error.text, "1,599 rows there, 1,600 here");
}

int main(void)
{
    return check_run(NULL, NULL);
}
