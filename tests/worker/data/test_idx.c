/* IDX files with every kind of error: each is refused with its cause, before memory is allocated for it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <zlib.h>

#include "tests/check.h"
#include "tests/random.h"
#include "worker/data/idx.h"

/* 2 images of 2x3 */
static const uint8_t good[] = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};

static bool decode(const void *bytes, size_t size, struct idx_header *header, uint8_t **elements, struct error *error)
{
    struct stream *stream;
    if (!stream_open_bytes(&stream, "f", bytes, size, error)) {
        return false;
    }
    bool done = idx_read_header(header, stream, error) && idx_read_elements(header, stream, elements, error);
    stream_close(stream);
    return done;
}

static void expect_refused(const void *bytes, size_t size, const char *why)
{
    struct idx_header header;
    struct error error = {""};
    uint8_t *elements = NULL;
    if (decode(bytes, size, &header, &elements, &error)) {
        free(elements);
        fail_msg("was read, though: %s", why);
    }
    if (strncmp(error.text, "f: ", 3) != 0 || !strstr(error.text, why)) {
        fail_msg("\"%s\" does not say \"%s\"", error.text, why);
    }
}

static void expect_good(const void *bytes, size_t size)
{
    struct idx_header header;
    struct error error = {""};
    uint8_t *elements = NULL;
    if (!decode(bytes, size, &header, &elements, &error)) {
        fail_msg("%s", error.text);
        return; /* analyzers don't know that this is unreachable */
    }
    assert_int_equal(header.type, IDX_UINT8);
    assert_int_equal(header.dimensions, 3);
    assert_int_equal(header.sizes[0], 2);
    assert_int_equal(header.sizes[1], 2);
    assert_int_equal(header.sizes[2], 3);
    assert_int_equal(header.sizes[3], 1);
    assert_int_equal(header.bytes, 12);
    assert_memory_equal(elements, good + 16, 12);
    for (int i = 0; i < EXAMPLES_PADDING; i++) {
        assert_int_equal(elements[12 + i], 0);
    }
    free(elements);
}

/* Packs bytes as gzip into packed[capacity]; returns the size. */
static size_t gzip(const uint8_t *bytes, size_t size, uint8_t *packed, size_t capacity)
{
    z_stream deflater = {0};
    assert_int_equal(deflateInit2(&deflater, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    uint8_t *input = malloc(size + 1);
    memcpy(input, bytes, size);
    deflater.next_in = input;
    deflater.avail_in = (uInt)size;
    deflater.next_out = packed;
    deflater.avail_out = (uInt)capacity;
    assert_int_equal(deflate(&deflater, Z_FINISH), Z_STREAM_END);
    size_t used = capacity - deflater.avail_out;
    deflateEnd(&deflater);
    free(input);
    return used;
}

static void test_reads(void **state)
{
    uint8_t packed[256];
    expect_good(good, sizeof good);
    expect_good(packed, gzip(good, sizeof good, packed, sizeof packed));
}

static void test_bad_headers(void **state)
{
    uint8_t bytes[sizeof good];
    expect_refused("", 0, "ends after 0 of the 4 bytes of its header");
    expect_refused("\0\0\x08", 3, "ends after 3 of the 4 bytes of its header");
    expect_refused("\0\0\x08\x03\0\0", 6, "ends after 2 of the 12 bytes of its list of dimensions");
    expect_refused("P5 28", 5, "is not an IDX file: begins with 50 35 20 32");
    memcpy(bytes, good, sizeof good);
    bytes[2] = 0x0A;
    expect_refused(bytes, sizeof bytes, "is not an IDX file");
    bytes[2] = 8;
    bytes[3] = 0;
    expect_refused(bytes, sizeof bytes, "has 0 dimensions");
    bytes[3] = 5;
    expect_refused(bytes, sizeof bytes, "has 5 dimensions");
    bytes[3] = 3;
    bytes[11] = 0;
    expect_refused(bytes, sizeof bytes, "dimension 2 at byte 8 is 0");
    bytes[8] = 0x80;
    expect_refused(bytes, sizeof bytes, "dimension 2 at byte 8 is 2147483648");
    bytes[8] = 0;
    bytes[11] = 3;
    expect_refused(bytes, sizeof bytes, "its header promises 34 bytes, but the file has 28");
    bytes[11] = 1;
    expect_refused(bytes, sizeof bytes, "its header promises 22 bytes, but the file has 28");
}

/* Products that overflow 64 bits, and sizes that only an attacker requests. */
static void test_huge_promises(void **state)
{
    uint8_t bytes[20 + 8] = {0, 0, 8, 4};
    memset(bytes + 4, 0x7F, 16);
    expect_refused(bytes, sizeof bytes, "its dimensions need more than 64 GiB");
    memset(bytes + 4, 0, 16);
    bytes[5] = bytes[9] = bytes[13] = bytes[17] = 1; /* (2^16)^4 = 2^64: zero, modulo 2^64 */
    expect_refused(bytes, sizeof bytes, "its dimensions need more than 64 GiB");
    memset(bytes + 4, 0, 16);
    bytes[2] = 0x0E; /* doubles: 2^33 of them are 64 GiB */
    bytes[3] = 2;
    bytes[5] = 1;
    bytes[8] = 2;
    expect_refused(bytes, sizeof bytes, "its dimensions need more than 64 GiB");
    /* A few compressed bytes that announce a gigabyte: more than deflate can contain. */
    uint8_t packed[256];
    uint8_t bomb[16] = {0, 0, 8, 3, 0x40, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1};
    expect_refused(packed, gzip(bomb, sizeof bomb, packed, sizeof packed), "bytes, but the file has at most");
}

static void test_every_truncation(void **state)
{
    uint8_t packed[256];
    size_t size = gzip(good, sizeof good, packed, sizeof packed);
    for (size_t cut = 0; cut < sizeof good; cut++) {
        expect_refused(good, cut, cut < 16 ? "ends after" : "its header promises 28 bytes, but the file has");
    }
    for (size_t cut = 2; cut < size; cut++) {
        expect_refused(packed, cut, "within its gzip data");
    }
}

static void test_trailing_bytes(void **state)
{
    uint8_t longer[sizeof good + 1] = {0}, packed[600];
    memcpy(longer, good, sizeof good);
    expect_refused(longer, sizeof longer, "its header promises 28 bytes, but the file has 29");
    size_t size = gzip(longer, sizeof longer, packed, sizeof packed);
    expect_refused(packed, size, "continues after the 12 bytes of elements");
    size = gzip(good, sizeof good, packed, sizeof packed);
    packed[size] = 0;
    expect_refused(packed, size + 1, "its gzip data ends at byte");
    memcpy(packed + size, packed, size);
    expect_refused(packed, 2 * size, "continues after the 12 bytes of elements"); /* members are one content */
    size = gzip(good, sizeof good - 1, packed, sizeof packed);
    expect_refused(packed, size, "ends after 11 of the 12 bytes of its elements");
}

static void test_gzip_checksum(void **state)
{
    uint8_t packed[256];
    size_t size = gzip(good, sizeof good, packed, sizeof packed);
    packed[size - 8] ^= 1;
    expect_refused(packed, size, "(incorrect data check)");
    packed[size - 8] ^= 1;
    packed[size - 1] ^= 1;
    expect_refused(packed, size, "(incorrect length check)");
    packed[size - 1] ^= 1;
    packed[2] = 7;
    expect_refused(packed, size, "(unknown compression method)");
}

/* Whichever bit flips, the file is refused or its content is unchanged (some bits of gzip mean nothing). */
static void test_every_flipped_bit_of_gzip(void **state)
{
    uint8_t packed[256];
    size_t size = gzip(good, sizeof good, packed, sizeof packed);
    for (size_t bit = 0; bit < 8 * size; bit++) {
        struct idx_header header;
        struct error error = {""};
        uint8_t *elements = NULL;
        packed[bit / 8] ^= (uint8_t)(1 << bit % 8);
        if (decode(packed, size, &header, &elements, &error)) {
            assert_int_equal(header.bytes, 12);
            assert_memory_equal(elements, good + 16, 12);
            free(elements);
        } else {
            assert_int_equal(strncmp(error.text, "f: ", 3), 0);
        }
        packed[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

static void write_file(const char *path, const void *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

/* Files larger than the stream's buffer, read in pieces of many sizes. */
static void test_large_files(void **state)
{
    struct test_random random = test_random_begin("test_large_files");
    enum { SIZE = 300000 };
    uint8_t *content = malloc(SIZE), *packed = malloc(2 * SIZE), *read = malloc(SIZE + 100);
    for (int i = 0; i < SIZE; i++) {
        content[i] = test_random_below(&random, 3) ? 0 : (uint8_t)test_random_next(&random);
    }
    content[0] = 0;
    char path[] = "/tmp/test_idx_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    for (int gz = 0; gz < 2; gz++) {
        size_t size = gz ? gzip(content, SIZE, packed, 2 * SIZE) : SIZE;
        write_file(path, gz ? packed : content, size);
        struct stream *stream;
        struct error error;
        assert_true(stream_open_file(&stream, path, &error));
        assert_int_equal(stream_is_packed(stream), gz);
        assert_true(stream_most_bytes(stream) >= SIZE);
        size_t used = 0, wanted, got;
        do {
            wanted = 1 + (size_t)test_random_below(&random, test_random_below(&random, 2) ? 100 : 100000);
            wanted = wanted < SIZE + 100 - used ? wanted : SIZE + 100 - used;
            assert_true(stream_read(stream, read + used, wanted, &got, &error));
            used += got;
        } while (got == wanted);
        assert_int_equal(used, SIZE);
        assert_memory_equal(read, content, SIZE);
        stream_close(stream);
    }
    remove(path);
    free(content);
    free(packed);
    free(read);
}

static void test_not_a_file(void **state)
{
    struct stream *stream;
    struct error error;
    assert_false(stream_open_file(&stream, "/nonexistent/images", &error));
    assert_string_equal(error.text, "/nonexistent/images: cannot be opened: No such file or directory; check the path");
    assert_false(stream_open_file(&stream, "/tmp", &error));
    assert_string_equal(error.text, "/tmp: is not a regular file");
    /* A named pipe without a writer must not block. */
    char folder[] = "/tmp/test_idx_XXXXXX", fifo[64];
    assert_non_null(mkdtemp(folder));
    snprintf(fifo, sizeof fifo, "%s/images", folder);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    alarm(60);
    assert_false(stream_open_file(&stream, fifo, &error));
    alarm(0);
    assert_non_null(strstr(error.text, "/images: is not a regular file"));
    remove(fifo);
    remove(folder);
}

static void test_write_header(void **state)
{
    uint8_t bytes[IDX_MAX_HEADER];
    uint32_t sizes[] = {2, 2, 3};
    assert_int_equal(idx_write_header(bytes, 3, sizes), 16);
    assert_memory_equal(bytes, good, 16);
    sizes[0] = 0x01020304;
    assert_int_equal(idx_write_header(bytes, 1, sizes), 8);
    assert_memory_equal(bytes, "\0\0\x08\x01\x01\x02\x03\x04", 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads),
        cmocka_unit_test(test_bad_headers),
        cmocka_unit_test(test_huge_promises),
        cmocka_unit_test(test_every_truncation),
        cmocka_unit_test(test_trailing_bytes),
        cmocka_unit_test(test_gzip_checksum),
        cmocka_unit_test(test_every_flipped_bit_of_gzip),
        cmocka_unit_test(test_large_files),
        cmocka_unit_test(test_not_a_file),
        cmocka_unit_test(test_write_header),
    };
    return cmocka_run_group_tests_name("idx", tests, NULL, NULL);
}
