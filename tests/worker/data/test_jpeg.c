/* JPEG files made here by the library's encoder: colours, orientations, progressive ones, damaged and hostile ones. */
#include "tests/check.h"
#include "worker/data/image.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <jpeglib.h>

enum { WIDTH = 24, HEIGHT = 16 };

struct file {
    unsigned char *bytes;
    unsigned long size;
};

/* What to encode: a picture whose left upper quarter is of one colour, and the rest of another. */
struct kind {
    J_COLOR_SPACE space;
    int samples;
    uint8_t corner[4], rest[4];
    bool progressive;
    int orientation; /* 0: no EXIF data */
    bool big_endian;
};

static void put_orientation(struct jpeg_compress_struct *encoder, const struct kind *kind)
{
    const uint8_t little[] = {'E', 'x',  'i', 'f', 0,
                              0,   'I',  'I', 42,  0,
                              8,   0,    0,   0,   1,
                              0,   0x12, 1,   3,   0,
                              1,   0,    0,   0,   (uint8_t)kind->orientation,
                              0,   0,    0,   0,   0,
                              0,   0};
    const uint8_t big[] = {'E', 'x', 'i', 'f', 0,    0, 'M', 'M', 0, 42, 0, 0, 0,
                           8,   0,   1,   1,   0x12, 0, 3,   0,   0, 0,  1, 0, (uint8_t)kind->orientation,
                           0,   0,   0,   0,   0,    0};
    jpeg_write_marker(encoder, JPEG_APP0 + 1, kind->big_endian ? big : little, sizeof little);
}

static struct file encode(const struct kind *kind, int width, int height)
{
    struct file file = {NULL, 0};
    struct jpeg_compress_struct encoder;
    struct jpeg_error_mgr errors;
    encoder.err = jpeg_std_error(&errors);
    jpeg_create_compress(&encoder);
    jpeg_mem_dest(&encoder, &file.bytes, &file.size);
    encoder.image_width = (JDIMENSION)width;
    encoder.image_height = (JDIMENSION)height;
    encoder.input_components = kind->samples;
    encoder.in_color_space = kind->space;
    jpeg_set_defaults(&encoder);
    jpeg_set_quality(&encoder, 100, TRUE);
    if (kind->progressive) {
        jpeg_simple_progression(&encoder);
    }
    jpeg_start_compress(&encoder, TRUE);
    if (kind->orientation > 0) {
        put_orientation(&encoder, kind);
    }
    uint8_t *row = malloc((size_t)width * 4);
    assert_non_null(row);
    for (int y = 0; y < height; y++) {
        for (int x = 0; x < width; x++) {
            const bool in_corner = x < width / 2 && y < height / 2;
            memcpy(row + x * kind->samples, in_corner ? kind->corner : kind->rest, (size_t)kind->samples);
        }
        JSAMPROW rows[1] = {row};
        jpeg_write_scanlines(&encoder, rows, 1);
    }
    free(row);
    jpeg_finish_compress(&encoder);
    jpeg_destroy_compress(&encoder);
    return file;
}

/* From memory of its exact size, so that overreads are caught. */
static bool decode(struct image *image, const uint8_t *bytes, size_t size, int channels, struct error *error)
{
    uint8_t *exact = malloc(size > 0 ? size : 1);
    assert_non_null(exact);
    memcpy(exact, bytes, size);
    const bool done = image_decode(image, exact, size, channels, error);
    free(exact);
    assert_true(done || !image->pixels);
    return done;
}

static void expect_near(const struct image *image, int x, int y, const uint8_t *wanted)
{
    const uint8_t *pixel = image->pixels + (y * image->width + x) * image->channels;
    for (int i = 0; i < image->channels; i++) {
        assert_in_range(pixel[i] + 6, wanted[i], wanted[i] + 12);
    }
}

static void check_kind(const struct kind *kind, int channels, const uint8_t *corner, const uint8_t *rest)
{
    struct file file = encode(kind, WIDTH, HEIGHT);
    struct image image;
    struct image_head head;
    struct error error;
    bool more;
    assert_true(image_examine(&head, file.bytes, file.size, &more, &error));
    assert_int_equal(head.width, WIDTH);
    assert_int_equal(head.height, HEIGHT);
    assert_int_equal(head.channels, kind->samples == 1 ? 1 : 3);
    assert_true(image_memory(file.bytes, file.size) > (size_t)3 * WIDTH * HEIGHT);
    assert_true(decode(&image, file.bytes, file.size, channels, &error));
    assert_int_equal(image.width, WIDTH);
    assert_int_equal(image.height, HEIGHT);
    expect_near(&image, 2, 2, corner);
    expect_near(&image, WIDTH - 3, HEIGHT - 3, rest);
    image_free(&image);
    free(file.bytes);
}

TEST(colours)
{
    static const uint8_t red[] = {200, 20, 30}, blue[] = {10, 40, 220}, dark[] = {40, 40, 40},
                         light[] = {210, 210, 210};
    const uint8_t red_grey[] = {75}, blue_grey[] = {51};
    for (int progressive = 0; progressive < 2; progressive++) {
        const struct kind rgb = {JCS_RGB, 3, {200, 20, 30}, {10, 40, 220}, progressive == 1, 0, false};
        const struct kind grey = {JCS_GRAYSCALE, 1, {40}, {210}, progressive == 1, 0, false};
        check_kind(&rgb, 3, red, blue);
        check_kind(&rgb, 1, red_grey, blue_grey);
        check_kind(&grey, 1, dark, light);
        check_kind(&grey, 3, dark, light);
    }
}

/* The encoder marks inks as Adobe's programs do, which store them inverted. */
TEST(inks)
{
    const struct kind cmyk = {JCS_CMYK, 4, {255, 0, 255, 255}, {100, 100, 100, 128}, false, 0, false};
    check_kind(&cmyk, 3, (const uint8_t[]){255, 0, 255}, (const uint8_t[]){50, 50, 50});
}

TEST(orientations)
{
    /* Where the dark quarter lies in the upright picture: right, below. */
    static const bool right[] = {false, false, true, true, false, false, true, true, false};
    static const bool below[] = {false, false, false, true, true, false, false, true, true};
    for (int i = 1; i <= 8; i++) {
        const struct kind kind = {JCS_GRAYSCALE, 1, {10}, {240}, false, i, i % 2 == 1};
        const int width = i > 4 ? HEIGHT : WIDTH, height = i > 4 ? WIDTH : HEIGHT;
        struct file file = encode(&kind, WIDTH, HEIGHT);
        struct image_head head;
        struct image image;
        struct error error;
        bool more;
        assert_true(image_examine(&head, file.bytes, file.size, &more, &error));
        assert_int_equal(head.width, width);
        assert_true(decode(&image, file.bytes, file.size, 1, &error));
        assert_int_equal(image.width, width);
        assert_int_equal(image.height, height);
        for (int corner = 0; corner < 4; corner++) {
            const bool is_dark = (corner % 2 == 1) == right[i] && (corner / 2 == 1) == below[i];
            expect_near(&image, corner % 2 == 1 ? width - 2 : 1, corner / 2 == 1 ? height - 2 : 1,
                        (const uint8_t[]){is_dark ? 10 : 240});
        }
        image_free(&image);
        free(file.bytes);
    }
}

/* Whatever is cut off, the picture is refused, and the head says when it needs more. */
TEST(truncated)
{
    for (int progressive = 0; progressive < 2; progressive++) {
        const struct kind kind = {JCS_RGB, 3, {200, 20, 30}, {10, 40, 220}, progressive == 1, 6, false};
        struct file file = encode(&kind, WIDTH, HEIGHT);
        bool known = false;
        for (unsigned long cut = 0; cut < file.size; cut++) {
            struct image_head head;
            struct image image;
            struct error error;
            bool more;
            assert_false(decode(&image, file.bytes, cut, 3, &error));
            const bool now = image_examine(&head, file.bytes, cut, &more, &error);
            assert_true(now || !known); /* once known it stays known */
            assert_true(now || more || cut < 4);
            known = now;
        }
        free(file.bytes);
    }
}

TEST(altered)
{
    const struct kind kind = {JCS_RGB, 3, {200, 20, 30}, {10, 40, 220}, true, 0, false};
    struct file file = encode(&kind, WIDTH, HEIGHT);
    for (unsigned long at = 0; at < file.size; at++) {
        for (int bit = 0; bit < 8; bit += 3) {
            struct image image;
            struct error error;
            file.bytes[at] ^= (uint8_t)(1 << bit);
            if (decode(&image, file.bytes, file.size, 3, &error)) {
                image_free(&image);
            } else {
                assert_null(strchr(error.text, '\n'));
            }
            file.bytes[at] ^= (uint8_t)(1 << bit);
        }
    }
    free(file.bytes);
}

/* The position of a marker after `from`. */
static unsigned long find_marker(const struct file *file, unsigned long from, uint8_t marker)
{
    while (file->bytes[from] != 0xFF || file->bytes[from + 1] != marker) {
        from++;
        assert_true(from + 1 < file->size);
    }
    return from;
}

/* A scan of a few bytes again and again: each would cost as much as a whole one. */
TEST(too_many_scans)
{
    enum { TIMES = 300 };
    const struct kind kind = {JCS_GRAYSCALE, 1, {10}, {10}, true, 0, false};
    struct file file = encode(&kind, WIDTH, HEIGHT);
    const unsigned long scan = find_marker(&file, 0, 0xDA), next = find_marker(&file, scan + 2, 0xC4);
    uint8_t *bomb = malloc(file.size + TIMES * (next - scan));
    assert_non_null(bomb);
    unsigned long at = next;
    memcpy(bomb, file.bytes, next);
    for (int i = 0; i < TIMES; i++, at += next - scan) {
        memcpy(bomb + at, file.bytes + scan, next - scan);
    }
    memcpy(bomb + at, file.bytes + next, file.size - next);
    struct image image;
    struct error error;
    assert_false(decode(&image, bomb, at + file.size - next, 1, &error));
    assert_string_equal(error.text, "is a JPEG of more than 100 scans; save it again");
    free(bomb);
    free(file.bytes);
}

TEST(too_large)
{
    const struct kind kind = {JCS_GRAYSCALE, 1, {10}, {10}, false, 0, false};
    struct file file = encode(&kind, WIDTH, HEIGHT);
    const unsigned long frame = find_marker(&file, 0, 0xC0);
    memset(file.bytes + frame + 5, 0xFF, 4); /* 65535x65535 */
    struct image image;
    struct error error;
    assert_int_equal(image_memory(file.bytes, file.size), 0);
    assert_false(decode(&image, file.bytes, file.size, 1, &error));
    assert_non_null(strstr(error.text, "65535x65535 pixels; the limits are 16384"));
    free(file.bytes);
}

int main(void)
{
    return check_run(NULL, NULL);
}
