/*
 * Arbitrary TFRecord bytes, and single records as if after a valid CRC: refused with a one-line message, or decoded to
 * a label and an image of its stated size.
 */
#include "tests/fuzz/fuzz.h"

#include "worker/data/tfrecord/example.h"
#include "worker/data/tfrecord/reader.h"

FUZZ_MEMORY(1032 + 64, 1 << 20)

static const struct example_names names = {.image = "image_raw", .label = "label"};

/* seen: a reader that has read the records before, and must find the same. */
static void decode(const uint8_t *record, size_t size, struct example *seen)
{
    struct example example = {.capacity = 0};
    struct error error = {""};
    bool done = example_decode(&example, record, size, &names, &error);
    struct error same;
    assert(example_decode(seen, record, size, &names, &same) == done);
    if (done) {
        unsigned sum = 0;
        size_t pixels = (size_t)example.image.width * (size_t)example.image.height;
        assert(pixels >= 1 && pixels <= IMAGE_MAX_PIXELS && example.label >= 0);
        for (size_t i = 0; i < pixels; i++) {
            sum |= example.image.pixels[i];
        }
        assert(sum <= 255 && seen->label == example.label && seen->image.width == example.image.width &&
               seen->image.height == example.image.height &&
               memcmp(seen->image.pixels, example.image.pixels, pixels) == 0);
    } else {
        check_refusal(&error, "");
    }
    example_free(&example);
}

/* Records one after another, each after a byte with its length: without CRCs, which would hardly ever match. */
static void decode_all(const uint8_t *bytes, size_t size, struct example *seen)
{
    while (size > 0) {
        size_t length = bytes[0] < size - 1 ? bytes[0] : size - 1;
        uint8_t *record = malloc(length > 0 ? length : 1); /* its own block: the sanitizer catches overreads */
        if (!record) {
            abort();
        }
        memset(record, 0, 1);
        memcpy(record, bytes + 1, length);
        decode(record, length, seen);
        free(record);
        bytes += 1 + length;
        size -= 1 + length;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct tfrecord_reader *reader;
    struct error error = {""};
    const uint8_t *record;
    size_t record_size;
    struct example seen = {.capacity = 0};
    decode(bytes, size, &seen);
    decode_all(bytes, size, &seen);
    if (!tfrecord_open_bytes(&reader, "file", bytes, size, &error)) {
        assert(strncmp(error.text, "file: ", 6) == 0);
        example_free(&seen);
        return 0;
    }
    enum tfrecord_status status;
    while ((status = tfrecord_next(reader, &record, &record_size, &error)) == TFRECORD_RECORD ||
           status == TFRECORD_DAMAGED) {
        if (status == TFRECORD_RECORD) {
            decode(record, record_size, &seen);
        } else {
            check_refusal(&error, "file: ");
        }
    }
    tfrecord_close(reader);
    example_free(&seen);
    return 0;
}
