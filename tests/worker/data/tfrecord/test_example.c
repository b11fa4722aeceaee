/*
 * tf.train.Example: what is written reads back; every kind of image and label; anything else is refused with a reason.
 */
#include "tests/check.h"
#include "worker/data/tfrecord/example.h"

#include <stdlib.h>
#include <string.h>

#include "tests/random.h"

static const struct example_names names = {.image = "image_raw", .label = "label"};

enum kind { BYTES = 1, FLOATS = 2, INTEGERS = 3 };

/* Adds one feature to a map of features; content: the encoded list. */
static void put_feature(struct proto *map, const char *name, enum kind kind, const struct proto *content)
{
    size_t entry = proto_begin(map, 1);
    proto_text(map, 1, name);
    size_t value = proto_begin(map, 2);
    proto_bytes(map, (int)kind, content->bytes, content->size);
    proto_end(map, value);
    proto_end(map, entry);
}

static void put_integers(struct proto *map, const char *name, const int64_t *values, size_t count)
{
    struct proto list = {0};
    proto_packed_integers(&list, 1, values, count);
    put_feature(map, name, INTEGERS, &list);
    proto_free(&list);
}

static void put_floats(struct proto *map, const char *name, const float *values, size_t count, bool packed)
{
    struct proto list = {0};
    size_t begun = packed ? proto_begin(&list, 1) : 0;
    for (size_t i = 0; i < count; i++) {
        if (packed) {
            proto_raw(&list, &values[i], sizeof values[i]);
        } else {
            proto_float(&list, 1, values[i]);
        }
    }
    if (packed) {
        proto_end(&list, begun);
    }
    put_feature(map, name, FLOATS, &list);
    proto_free(&list);
}

static void put_bytes(struct proto *map, const char *name, const void *bytes, size_t size)
{
    struct proto list = {0};
    proto_bytes(&list, 1, bytes, size);
    put_feature(map, name, BYTES, &list);
    proto_free(&list);
}

/* The Example around a map, which is freed. */
static struct proto whole(struct proto *map)
{
    struct proto record = {0};
    proto_bytes(&record, 1, map->bytes, map->size);
    proto_free(map);
    return record;
}

static void accepts(struct proto *map, int width, int height, const uint8_t *pixels, int label)
{
    struct proto record = whole(map);
    struct example example = {.capacity = 0};
    struct error error = {""};
    bool done = example_decode(&example, record.bytes, record.size, &names, &error);
    assert_string_equal(done ? "" : error.text, "");
    assert_int_equal(example.image.width, width);
    assert_int_equal(example.image.height, height);
    assert_memory_equal(example.image.pixels, pixels, (size_t)width * (size_t)height);
    assert_int_equal(example.label, label);
    example_free(&example);
    proto_free(&record);
}

static void refuses(struct proto *map, const char *message)
{
    struct proto record = whole(map);
    struct example example = {.capacity = 0};
    struct error error = {""};
    assert_false(example_decode(&example, record.bytes, record.size, &names, &error));
    assert_string_equal(error.text, message);
    example_free(&example);
    proto_free(&record);
}

static uint8_t six[] = {0, 51, 102, 153, 204, 255};
static const struct image picture = {3, 2, 1, six};

TEST(what_is_written_reads_back)
{
    struct proto record = {0};
    struct example example = {.capacity = 0};
    struct error error;
    example_encode(&record, &names, &picture, 300);
    assert_true(example_decode(&example, record.bytes, record.size, &names, &error));
    assert_true(example.image.width == 3 && example.image.height == 2 && example.label == 300);
    assert_memory_equal(example.image.pixels, six, sizeof six);
    example_free(&example);
    proto_free(&record);
}

TEST(images_of_every_kind)
{
    const float ones[] = {0, 0.2f, 0.4f, 0.6f, 0.8f, 1}, bytes[] = {0, 51, 102, 153, 204, 255};
    const int64_t label = 7, two = 2, three = 3;
    for (int kind = 0; kind < 5; kind++) {
        struct proto map = {0};
        put_integers(&map, "label", &label, 1);
        put_integers(&map, "height", &two, 1);
        put_integers(&map, "image/width", &three, 1);
        put_bytes(&map, "something else", "x", 1);
        if (kind == 0) {
            put_bytes(&map, "image_raw", six, sizeof six);
        } else {
            put_floats(&map, "image_raw", kind <= 2 ? ones : bytes, 6, kind % 2 == 0);
        }
        accepts(&map, 3, 2, six, 7);
    }
    uint8_t *png;
    size_t size;
    struct error error;
    struct proto map = {0};
    assert_true(image_encode_png(&picture, &png, &size, &error));
    put_bytes(&map, "image_raw", png, size);
    put_integers(&map, "label", &label, 1);
    accepts(&map, 3, 2, six, 7); /* no sizes needed */
    free(png);
    put_integers(&map, "label", &label, 1);
    put_bytes(&map, "image_raw", six, 4);
    accepts(&map, 2, 2, six, 7); /* a square without sizes */
    put_integers(&map, "label", &label, 1);
    put_bytes(&map, "image_raw", six, 6);
    accepts(&map, 6, 1, six, 7); /* a row */
}

/* A label as tf.decode_raw reads it: of every type, alone and one-hot. */
TEST(labels_of_raw_bytes)
{
    const uint8_t image[4] = {1, 2, 3, 4};
    const double doubles[10] = {[7] = 1}, seven = 7;
    const float floats[10] = {[7] = 1}, single = 7;
    const int64_t longs[3] = {[1] = 1}, long_seven = 7;
    const int32_t seven_32 = 7;
    const uint8_t bytes[10] = {[7] = 1}, byte = 7;
    const struct {
        const void *raw;
        size_t size;
        int label;
    } cases[] = {{doubles, sizeof doubles, 7}, {&seven, 8, 7},    {floats, sizeof floats, 7}, {&single, 4, 7},
                 {&long_seven, 8, 7},          {&seven_32, 4, 7}, {bytes, sizeof bytes, 7},   {&byte, 1, 7}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct proto map = {0};
        put_bytes(&map, "image_raw", image, sizeof image);
        put_bytes(&map, "label", cases[i].raw, cases[i].size);
        accepts(&map, 2, 2, image, cases[i].label);
    }
    struct proto map = {0};
    put_bytes(&map, "image_raw", image, sizeof image);
    put_bytes(&map, "label", longs, sizeof longs);
    refuses(&map, "the 24 raw bytes of its label \"label\" may be label 8 or 2; set it by --label_dtype");
}

TEST(labels_of_every_kind)
{
    const int64_t integers[] = {0, 0, 1, 0};
    const float floats[] = {0, 0, 0, 1, 0}, number = 4;
    for (int kind = 0; kind < 3; kind++) {
        struct proto map = {0};
        put_bytes(&map, "image_raw", six, 6);
        if (kind == 0) {
            put_integers(&map, "label", integers, 4);
        } else {
            put_floats(&map, "label", kind == 1 ? floats : &number, kind == 1 ? 5 : 1, true);
        }
        accepts(&map, 6, 1, six, 2 + kind);
    }
}

TEST(reasons)
{
    struct proto map = {0};
    const int64_t label = 7, negative = -1, large = 65536, nothing[] = {0, 0}, both[] = {1, 1}, four = 4;
    const float half = 0.5f, dark = -1, two[] = {0, 2}, light = 256;
    refuses(&map, "it has no feature \"label\" for its label");
    put_integers(&map, "label", &label, 1);
    refuses(&map, "it has no feature \"image_raw\" for its image; it has label: name them with --image_feature and "
                  "--label_feature");
    put_integers(&map, "label", &label, 1);
    put_integers(&map, "image_raw", &label, 1);
    refuses(&map, "its feature \"image_raw\" is integers, not an image");
    put_bytes(&map, "label", "no", 2);
    refuses(&map, "the 2 raw bytes of its label \"label\" are neither a number nor one-hot");
    put_bytes(&map, "label", "\0\0\0\0\1\0\0\0\0\0\0\0", 12);
    refuses(&map, "the 12 raw bytes of its label \"label\" may be label 4 or 1; set it by --label_dtype");
    put_integers(&map, "label", &negative, 1);
    refuses(&map, "its label is -1; expected 0 to 65535");
    put_integers(&map, "label", &large, 1);
    refuses(&map, "its label is 65536; expected 0 to 65535");
    put_floats(&map, "label", &half, 1, true);
    refuses(&map, "its label is 0.5; expected 0 to 65535");
    put_integers(&map, "label", nothing, 2);
    refuses(&map, "its label \"label\" is a list of 2 numbers, but not one-hot");
    put_integers(&map, "label", both, 2);
    refuses(&map, "its label \"label\" is a list of 2 numbers, but not one-hot");
    put_floats(&map, "label", two, 2, true);
    refuses(&map, "its label \"label\" is a list of 2 numbers, but not one-hot");
    put_integers(&map, "label", nothing, 0);
    refuses(&map, "its label \"label\" is empty");
    put_integers(&map, "label", &label, 1);
    put_floats(&map, "image_raw", &dark, 1, true);
    refuses(&map, "a pixel of its image is -1; expected 0 to 255, or 0 to 1");
    put_integers(&map, "label", &label, 1);
    put_floats(&map, "image_raw", &light, 1, true);
    refuses(&map, "a pixel of its image is 256; expected 0 to 255, or 0 to 1");
    put_integers(&map, "label", &label, 1);
    put_bytes(&map, "image_raw", "", 0);
    refuses(&map, "its image has 0 pixels; expected 1 to 16777216");
    put_integers(&map, "label", &label, 1);
    put_integers(&map, "height", &four, 1);
    put_integers(&map, "width", &four, 1);
    put_bytes(&map, "image_raw", six, 6);
    refuses(&map, "its image has 6 pixels, but height x width is 4x4");
    put_integers(&map, "label", &label, 1);
    put_integers(&map, "height", &negative, 1);
    put_bytes(&map, "image_raw", six, 6);
    refuses(&map, "its height or width is not a number from 1 to 16384");
}

/* Truncated anywhere, an Example is refused, or still contains everything that matters. */
TEST(cut_anywhere)
{
    struct proto record = {0};
    example_encode(&record, &names, &picture, 9);
    for (size_t size = 0; size < record.size; size++) {
        struct example example = {.capacity = 0};
        struct error error;
        uint8_t *exact = calloc(1, size > 0 ? size : 1); /* bytes after an empty one must not matter */
        memcpy(exact, record.bytes, size);
        assert_false(example_decode(&example, exact, size, &names, &error));
        example_free(&example);
        free(exact);
    }
    proto_free(&record);
}

/* Where six pixels lie in a record. */
static uint8_t *pixels_of(uint8_t *record, size_t size)
{
    uint8_t *at = record;
    while (at + sizeof six <= record + size && memcmp(at, six, sizeof six) != 0) {
        at++;
    }
    return at + sizeof six <= record + size ? at : NULL;
}

/* Whatever was read before, a record is read as by a fresh reader. */
TEST(what_came_before_changes_nothing)
{
    enum { KINDS = 8, ROUNDS = 20000, PIXELS = 6 };
    struct proto records[KINDS] = {{0}};
    struct test_random random = test_random_begin("what_came_before_changes_nothing");
    for (int kind = 0; kind < KINDS; kind++) {
        const int64_t label = kind % 4 == 0 ? 200 : kind; /* of two bytes, or one */
        struct proto map = {0};
        if (kind < 4) {
            example_encode(&records[kind], &names, &picture, (int32_t)label);
            continue;
        }
        if (kind == 6) {
            put_bytes(&map, "image_raw", six, PIXELS);
        }
        put_integers(&map, "label", &label, 1);
        if (kind == 5) {
            put_integers(&map, "label", &label, 1);
        }
        if (kind != 6) {
            put_bytes(&map, "image_raw", six, PIXELS);
        }
        records[kind] = whole(&map);
    }
    struct example seen = {.capacity = 0};
    int good = 0;
    for (int round = 0; round < ROUNDS; round++) {
        const struct proto *record =
            &records[test_random_below(&random, 3) > 0 ? 1 + round / 100 % 2 : test_random_below(&random, KINDS)];
        size_t size = round % 50 == 0 ? 0 : record->size;
        uint8_t *bytes = calloc(1, size > 0 ? size : 1);
        memcpy(bytes, record->bytes, size);
        if (round % 50 == 1) {
            memcpy(pixels_of(bytes, size), "P5 1 1", sizeof six); /* an image, or the rest of one */
        }
        for (int flips = test_random_below(&random, 4); flips > 1 && size > 0; flips--) {
            bytes[test_random_below(&random, (int)size)] ^= (uint8_t)(1 << test_random_below(&random, 8));
        }
        struct example fresh = {.capacity = 0};
        struct error error;
        bool done = example_decode(&fresh, bytes, size, &names, &error);
        assert_int_equal(example_decode(&seen, bytes, size, &names, &error), done);
        if (done) {
            good++;
            assert_int_equal(seen.label, fresh.label);
            assert_int_equal(seen.image.width, fresh.image.width);
            assert_int_equal(seen.image.height, fresh.image.height);
            assert_memory_equal(seen.image.pixels, fresh.image.pixels,
                                (size_t)fresh.image.width * (size_t)fresh.image.height);
        }
        example_free(&fresh);
        free(bytes);
    }
    assert_in_range(good, ROUNDS / 3, ROUNDS - 1);
    example_free(&seen);
    for (int kind = 0; kind < KINDS; kind++) {
        proto_free(&records[kind]);
    }
}

int main(void)
{
    return check_run(NULL, NULL);
}
