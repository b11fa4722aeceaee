/*
 * Arbitrary images: refused with a one-line message, or decoded to their stated number of pixels and scaled to a digit.
 */
#include "tests/fuzz/fuzz.h"

#include "worker/data/image.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct error error = {""};
    struct image image;
    uint8_t fitted[28 * 28];
    if (!image_decode(&image, bytes, size, &error)) {
        assert(!image.pixels);
        check_refusal(&error, "");
        return 0;
    }
    assert(image_is_known(bytes, size) && image.width > 0 && image.height > 0);
    unsigned sum = 0;
    for (int i = 0; i < image.width * image.height; i++) {
        sum += image.pixels[i];
    }
    assert(sum <= 255u * (unsigned)(image.width * image.height));
    if (image.width * image.height <= 1 << 16) {
        assert(image_fit(&image, 28, 28, fitted, &error));
    }
    image_free(&image);
    return 0;
}
