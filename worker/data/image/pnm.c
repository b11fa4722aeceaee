/* PBM, PGM and PPM, as text (P1 to P3) and in bytes (P4 to P6). Format: netpbm.sourceforge.net/doc/pgm.html. */
#include "worker/data/image/formats.h"

#include <string.h>

struct pnm_reader {
    const uint8_t *bytes;
    size_t size, at;
};

bool pnm_is(const uint8_t *bytes, size_t size)
{
    return size >= 3 && bytes[0] == 'P' && bytes[1] >= '1' && bytes[1] <= '6' &&
           (bytes[2] == '#' || (bytes[2] != 0 && strchr(" \t\r\n", bytes[2])));
}

static bool is_blank(uint8_t byte)
{
    return byte == ' ' || (byte >= '\t' && byte <= '\r');
}

static void skip_blanks(struct pnm_reader *reader)
{
    bool in_comment = false;
    for (; reader->at < reader->size; reader->at++) {
        uint8_t byte = reader->bytes[reader->at];
        if (byte == '#') {
            in_comment = true;
        } else if (byte == '\n' || byte == '\r') {
            in_comment = false;
        } else if (!in_comment && !is_blank(byte)) {
            return;
        }
    }
}

/* most_digits: 1 in P1, where digits need no separator. */
static bool read_number(struct pnm_reader *reader, int most_digits, unsigned *number)
{
    skip_blanks(reader);
    int digits = 0;
    for (*number = 0; reader->at < reader->size && digits < most_digits; digits++) {
        uint8_t byte = reader->bytes[reader->at];
        if (byte < '0' || byte > '9') {
            break;
        }
        *number = *number * 10 + (byte - '0');
        reader->at++;
    }
    return digits > 0;
}

/* The next sample in 0..255. */
static bool read_sample(struct pnm_reader *reader, int kind, unsigned largest, unsigned *value)
{
    if (kind <= 3) {
        if (!read_number(reader, kind == 1 ? 1 : 5, value)) {
            return false;
        }
    } else {
        size_t bytes = largest > 255 ? 2 : 1;
        if (reader->size - reader->at < bytes) {
            return false;
        }
        const uint8_t *sample = reader->bytes + reader->at;
        *value = bytes == 2 ? (unsigned)sample[0] << 8 | sample[1] : sample[0];
        reader->at += bytes;
    }
    *value = *value > largest ? 255 : (*value * 255 + largest / 2) / largest;
    return true;
}

/* P4: eight pixels in a byte, each row begins a new one; a set bit is black. */
static bool read_bits(struct pnm_reader *reader, struct image *image, struct error *error)
{
    size_t row_bytes = ((size_t)image->width + 7) / 8;
    if ((reader->size - reader->at) / row_bytes < (size_t)image->height) {
        return error_set(error, "is a PBM that ends within its pixels");
    }
    for (int y = 0; y < image->height; y++) {
        const uint8_t *row = reader->bytes + reader->at + (size_t)y * row_bytes;
        for (int x = 0; x < image->width; x++) {
            bool black = row[x / 8] >> (7 - x % 8) & 1;
            image->pixels[(size_t)y * (size_t)image->width + (size_t)x] = black ? 0 : 255;
        }
    }
    return true;
}

static bool read_pixels(struct pnm_reader *reader, struct image *image, int kind, unsigned largest, struct error *error)
{
    unsigned samples = kind % 3 == 0 ? 3 : 1;
    size_t pixels = (size_t)image->width * (size_t)image->height;
    for (size_t i = 0; i < pixels; i++) {
        unsigned values[3] = {0};
        for (unsigned s = 0; s < samples; s++) {
            if (!read_sample(reader, kind, largest, &values[s])) {
                return error_set(error, "is a PNM that ends within its pixels, after %zu of %zu", i, pixels);
            }
        }
        image->pixels[i] = samples == 3 ? image_luma(values[0], values[1], values[2]) : (uint8_t)values[0];
        if (kind == 1) {
            image->pixels[i] = (uint8_t)(255 - image->pixels[i]);
        }
    }
    return true;
}

bool pnm_decode(struct image *image, const uint8_t *bytes, size_t size, struct error *error)
{
    struct pnm_reader reader = {bytes, size, 2};
    int kind = bytes[1] - '0';
    unsigned width, height, largest = 1;
    if (!read_number(&reader, 9, &width) || !read_number(&reader, 9, &height) ||
        (kind % 3 != 1 && !read_number(&reader, 9, &largest))) {
        return error_set(error, "is a PNM with an incomplete header");
    }
    if (largest < 1 || largest > 65535) {
        return error_set(error, "is a PNM whose largest value is %u; expected 1 to 65535", largest);
    }
    if (kind > 3 && (reader.at == size || !is_blank(bytes[reader.at++]))) {
        return error_set(error, "is a PNM without a blank before its pixels");
    }
    /* Each pixel takes at least a bit in P4, and a byte in other formats. */
    uint64_t pixels = (uint64_t)width * height;
    if (pixels / 8 > size) {
        return error_set(error, "is a PNM of %ux%u pixels with only %zu bytes", width, height, size);
    }
    if (!image_create(image, width, height, error)) {
        return false;
    }
    return kind == 4 ? read_bits(&reader, image, error) : read_pixels(&reader, image, kind, largest, error);
}
