/*
 * Arbitrary pictures: refused with a one-line message, or decoded to the size that their head states, in grey or in
 * colour, and fitted to a model. Decoding takes no more memory than image_memory says.
 */
#include "tests/fuzz/fuzz.h"

#include "worker/data/image.h"

FUZZ_MEMORY(25 << 10, 4 << 20)

enum { COLOUR_BIT = 1, SIDE = 28 };

static void check_fit(const struct image *image)
{
    uint8_t fitted[SIDE * SIDE * IMAGE_RGB];
    struct error error;
    for (int digits = 0; digits < 2; digits++) {
        const struct image_shape shape = {SIDE, SIDE, image->channels, digits == 1};
        assert(image_fit(image, &shape, fitted, &error));
    }
}

/* The last byte says what is wanted: what follows a picture's end is its own matter. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct error error = {""};
    struct image image;
    struct image_head head;
    bool more;
    const int channels = size > 0 && (bytes[size - 1] & COLOUR_BIT) ? IMAGE_RGB : 1;
    const bool has_head = image_examine(&head, bytes, size, &more, &error);
    if (!has_head) {
        check_refusal(&error, "");
        assert(image_memory(bytes, size) == 0);
    }
    if (!image_decode(&image, bytes, size, channels, &error)) {
        assert(!image.pixels);
        check_refusal(&error, "");
        return 0;
    }
    assert(has_head && image_is_known(bytes, size) && image.width == head.width && image.height == head.height);
    const size_t values = (size_t)image.width * (size_t)image.height * (size_t)channels;
    assert(image_memory(bytes, size) >= values);
    unsigned long sum = 0;
    for (size_t i = 0; i < values; i++) {
        sum += image.pixels[i];
    }
    assert(sum <= 255 * values);
    if (values <= 1 << 16) {
        check_fit(&image);
    }
    image_free(&image);
    return 0;
}
