/*
 * TFRecord bytes from anywhere, and single records as they stand behind a right CRC: refused with one line, or decoded to
 * an image of the size that it says and a label.
 */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "worker/data/tfrecord/example.h"
#include "worker/data/tfrecord/reader.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void decode(const uint8_t *record, size_t size)
{
    static const struct example_names names = {"image_raw", "label"};
    struct example example = {.capacity = 0};
    struct error error = {""};
    if (example_decode(&example, record, size, &names, &error)) {
        unsigned sum = 0;
        size_t pixels = (size_t)example.image.width * (size_t)example.image.height;
        assert(pixels >= 1 && pixels <= IMAGE_MAX_PIXELS && example.label >= 0);
        for (size_t i = 0; i < pixels; i++) {
            sum |= example.image.pixels[i];
        }
        assert(sum <= 255);
    } else {
        assert(error.text[0] != '\0' && !strchr(error.text, '\n'));
    }
    example_free(&example);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct tfrecord_reader *reader;
    struct error error = {""};
    const uint8_t *record;
    size_t record_size;
    decode(bytes, size);
    if (!tfrecord_open_bytes(&reader, "file", bytes, size, &error)) {
        assert(strncmp(error.text, "file: ", 6) == 0);
        return 0;
    }
    enum tfrecord_status status;
    while ((status = tfrecord_next(reader, &record, &record_size, &error)) == TFRECORD_RECORD ||
           status == TFRECORD_DAMAGED) {
        if (status == TFRECORD_RECORD) {
            decode(record, record_size);
        } else {
            assert(strncmp(error.text, "file: ", 6) == 0 && !strchr(error.text, '\n'));
        }
    }
    tfrecord_close(reader);
    return 0;
}
