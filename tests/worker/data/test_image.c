/*
 * Decoders on bytes made here, whole, truncated and altered. Files of other programs are tested in
 * tests/test_export.py.
 */
#include "tests/check.h"
#include "worker/data/image.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "tests/random.h"

static void put_be32(uint8_t *bytes, uint32_t value)
{
    for (int i = 0; i < 4; i++) {
        bytes[i] = (uint8_t)(value >> (24 - 8 * i));
    }
}

/* From memory of its exact size, so that overreads are caught. */
static bool decode(struct image *image, const uint8_t *bytes, size_t size, struct error *error)
{
    uint8_t *exact = malloc(size > 0 ? size : 1);
    assert_non_null(exact);
    memcpy(exact, bytes, size);
    bool done = image_decode(image, exact, size, 1, error);
    free(exact);
    if (!done) {
        assert_null(image->pixels);
        assert_null(strchr(error->text, '\n'));
    }
    return done;
}

TEST(png_reads_back)
{
    struct test_random random = test_random_begin(__func__);
    static const int sides[][2] = {{1, 1}, {7, 3}, {28, 28}, {300, 5}};
    for (size_t i = 0; i < 4; i++) {
        int width = sides[i][0], height = sides[i][1];
        size_t count = (size_t)width * (size_t)height, size;
        uint8_t *pixels = malloc(count), *bytes;
        for (size_t k = 0; k < count; k++) {
            pixels[k] = (uint8_t)test_random_next(&random);
        }
        struct error error;
        struct image image;
        const struct image original = {width, height, 1, pixels};
        assert_true(image_encode_png(&original, &bytes, &size, &error));
        assert_true(image_is_known(bytes, size));
        assert_true(decode(&image, bytes, size, &error));
        assert_int_equal(image.width, width);
        assert_int_equal(image.height, height);
        assert_memory_equal(image.pixels, pixels, count);
        image_free(&image);
        free(bytes);
        free(pixels);
    }
}

/* Every truncation and every altered byte is refused, thanks to the CRCs and the size. */
TEST(damaged_png_is_refused)
{
    uint8_t pixels[64], *bytes;
    size_t size;
    struct error error;
    struct image image;
    for (int i = 0; i < 64; i++) {
        pixels[i] = (uint8_t)(i * i);
    }
    const struct image original = {8, 8, 1, pixels};
    assert_true(image_encode_png(&original, &bytes, &size, &error));
    /* The IEND chunk, 12 bytes, contains nothing that matters. */
    for (size_t cut = 0; cut < size - 12; cut++) {
        assert_false(decode(&image, bytes, cut, &error));
    }
    for (size_t at = 0; at < size - 12; at++) {
        bytes[at] ^= 0x20;
        assert_false(decode(&image, bytes, size, &error));
        bytes[at] ^= 0x20;
    }
    free(bytes);
}

/* A whole PNG from a header of 13 bytes and raw rows. Returns its size. */
static size_t make_png(uint8_t *file, const uint8_t header[13], const uint8_t *rows, size_t row_bytes)
{
    static const uint8_t signature[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};
    uint8_t packed[512];
    uLongf packed_bytes = sizeof packed;
    assert_int_equal(compress(packed, &packed_bytes, rows, row_bytes), Z_OK);
    const struct {
        const char *type;
        const uint8_t *bytes;
        size_t size;
    } chunks[] = {{"IHDR", header, 13},
                  {"IDAT", packed, packed_bytes / 2},
                  {"IDAT", packed, 0},
                  {"IDAT", packed + packed_bytes / 2, packed_bytes - packed_bytes / 2},
                  {"IEND", packed, 0}};
    size_t at = sizeof signature;
    memcpy(file, signature, sizeof signature);
    for (size_t i = 0; i < 5; i++) {
        put_be32(file + at, (uint32_t)chunks[i].size);
        memcpy(file + at + 4, chunks[i].type, 4);
        memcpy(file + at + 8, chunks[i].bytes, chunks[i].size);
        put_be32(file + at + 8 + chunks[i].size, (uint32_t)crc32(0, file + at + 4, (uInt)chunks[i].size + 4));
        at += chunks[i].size + 12;
    }
    return at;
}

/* 5x3 of two bits a pixel, interlaced: the passes put each pixel where it belongs. */
TEST(interlaced_png)
{
    const uint8_t header[13] = {0, 0, 0, 5, 0, 0, 0, 3, 2, 0, 0, 0, 1};
    /* grey levels 0..3 of pixel (x, y): (x + y) % 4. Pass 1: (0,0); 2: (4,0); 4: (2,0); 5: (0,2)(2,2)(4,2);
     * 6: (1,0)(3,0), then y = 2; 7: row 1. */
    const uint8_t rows[] = {0, 0x00,        /* 0 */
                            0, 0x00,        /* 4 % 4 = 0 */
                            0, 0x80,        /* 2 */
                            0, 0x88,        /* 2, 0, 2 */
                            0, 0x70,        /* 1, 3 */
                            0, 0xD0,        /* 3, 1 */
                            0, 0x6C, 0x40}; /* 1, 2, 3, 0, 1 */
    uint8_t file[1024];
    struct image image;
    struct error error;
    size_t size = make_png(file, header, rows, sizeof rows);
    assert_true(decode(&image, file, size, &error));
    for (int y = 0; y < 3; y++) {
        for (int x = 0; x < 5; x++) {
            assert_int_equal(image.pixels[5 * y + x], (x + y) % 4 * 85);
        }
    }
    image_free(&image);
}

/* What a header announces is refused before memory is allocated for it. */
TEST(impossible_sizes)
{
    const uint8_t rows[4] = {0};
    uint8_t file[1024];
    struct image image;
    struct error error;
    static const uint32_t sides[][2] = {{0, 1}, {1, 0}, {16385, 1}, {16384, 16384}, {UINT32_MAX, UINT32_MAX}};
    for (size_t i = 0; i < 5; i++) {
        uint8_t header[13] = {0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0};
        put_be32(header, sides[i][0]);
        put_be32(header + 4, sides[i][1]);
        assert_false(decode(&image, file, make_png(file, header, rows, sizeof rows), &error));
        assert_non_null(strstr(error.text, "pixels; the limits are 16384"));
    }
    /* and rows that are not there */
    const uint8_t header[13] = {0, 0, 8, 0, 0, 0, 8, 0, 8, 0, 0, 0, 0};
    assert_false(decode(&image, file, make_png(file, header, rows, sizeof rows), &error));
    assert_non_null(strstr(error.text, "is a PNG "));
}

static void expect_pixels(const char *text, int width, int height, const uint8_t *pixels)
{
    struct image image;
    struct error error;
    assert_true(decode(&image, (const uint8_t *)text, strlen(text), &error));
    assert_int_equal(image.width, width);
    assert_int_equal(image.height, height);
    assert_memory_equal(image.pixels, pixels, (size_t)width * (size_t)height);
    image_free(&image);
    for (size_t cut = 0; cut < strlen(text); cut++) {
        if (decode(&image, (const uint8_t *)text, cut, &error)) {
            image_free(&image); /* digits may be missing at the end and still leave a number */
            assert_true(cut + 3 >= strlen(text));
        }
    }
}

TEST(pnm_as_text_and_bytes)
{
    expect_pixels("P1\n# a comment\n3 2\n101\n0 1 0", 3, 2, (const uint8_t[]){0, 255, 0, 255, 0, 255});
    expect_pixels("P2 2 2 #\n15\n0 15 5 10", 2, 2, (const uint8_t[]){0, 255, 85, 170});
    expect_pixels("P3 1 2 255 255 0 0 0 0 255", 1, 2, (const uint8_t[]){76, 29});
    expect_pixels("P4\n9 1\n\x55\x80", 9, 1, (const uint8_t[]){255, 0, 255, 0, 255, 0, 255, 0, 0});
    expect_pixels("P5\n2 1\n255\nAz", 2, 1, (const uint8_t[]){'A', 'z'});
    expect_pixels("P6 1 1 255\nABC", 1, 1, (const uint8_t[]){66});
    struct image image;
    struct error error;
    assert_false(decode(&image, (const uint8_t *)"P5 2 1 0\nab", 11, &error));
    assert_false(decode(&image, (const uint8_t *)"P5 99999 99999 255\n", 19, &error));
}

TEST(unknown_bytes)
{
    struct image image;
    struct error error;
    assert_false(decode(&image, (const uint8_t *)"plain text", 10, &error));
    assert_string_equal(error.text, "is not a JPEG, PNG, BMP or PGM picture");
    assert_false(image_is_known((const uint8_t *)"P7\n", 3));
    assert_false(image_is_known(NULL, 0));
}

/* Formats that are not read are named, and known as pictures. */
TEST(foreign_formats)
{
    static const struct {
        const char *name, *bytes;
        size_t size;
    } files[] = {{"GIF", "GIF89a.......", 12},
                 {"WebP", "RIFF....WEBPVP8 ", 16},
                 {"TIFF", "II*\0........", 12},
                 {"AVIF", "\0\0\0 ftypavif....", 16},
                 {"HEIC", "\0\0\0 ftypheic....", 16}};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        struct image image;
        struct error error;
        char wanted[96];
        assert_true(image_is_known((const uint8_t *)files[i].bytes, files[i].size));
        assert_false(decode(&image, (const uint8_t *)files[i].bytes, files[i].size, &error));
        snprintf(wanted, sizeof wanted, "is a %s picture, which is not read; convert it to PNG or JPEG", files[i].name);
        assert_string_equal(error.text, wanted);
        assert_int_equal(image_memory((const uint8_t *)files[i].bytes, files[i].size), 0);
    }
}

/* What can't be decoded, as its bytes are too few, takes no memory, whatever size it states. */
TEST(cut_pictures_take_no_memory)
{
    static const uint8_t pnm[] = "P5 4096 4096 255\n";
    static const uint8_t bmp[64] = {'B', 'M', [10] = 54, [14] = 40, [18] = 0, 16, [22] = 0, 16, [26] = 1, [28] = 24};
    struct image image;
    struct error error;
    assert_false(decode(&image, pnm, sizeof pnm - 1, &error));
    assert_string_equal(error.text, "is a PNM of 4096x4096 pixels with only 17 bytes");
    assert_int_equal(image_memory(pnm, sizeof pnm - 1), 0);
    assert_false(decode(&image, bmp, sizeof bmp, &error));
    assert_string_equal(error.text, "is a BMP that ends within its pixels");
    assert_int_equal(image_memory(bmp, sizeof bmp), 0);
}

/* In colour, and what the head says of it. */
TEST(in_colour)
{
    const uint8_t pixels[] = {255, 0, 0, 0, 255, 0, 1, 2, 3, 7, 7, 7};
    const struct image original = {2, 2, IMAGE_RGB, (uint8_t *)(uintptr_t)pixels};
    struct image image;
    struct image_head head;
    struct error error;
    uint8_t *bytes;
    size_t size;
    bool more;
    assert_true(image_encode_png(&original, &bytes, &size, &error));
    assert_true(image_examine(&head, bytes, size, &more, &error));
    assert_true(head.width == 2 && head.height == 2 && head.channels == IMAGE_RGB);
    assert_true(image_decode(&image, bytes, size, IMAGE_RGB, &error));
    assert_memory_equal(image.pixels, pixels, sizeof pixels);
    image_free(&image);
    assert_true(image_decode(&image, bytes, size, 1, &error));
    assert_memory_equal(image.pixels, ((const uint8_t[]){76, 150, 2, 7}), 4);
    image_free(&image);
    free(bytes);
}

int main(void)
{
    return check_run(NULL, NULL);
}
