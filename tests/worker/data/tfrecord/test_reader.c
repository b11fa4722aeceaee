/* Records through the reader: whole, damaged, truncated, compressed; and larger than its buffer. */
#include "tests/check.h"
#include "worker/data/tfrecord/reader.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <zlib.h>

#include "tests/random.h"

/* Record i of a file: its number, repeated. */
static size_t record_size(int i)
{
    static const size_t sizes[] = {0, 1, 7, 8, 100, 300000, 784, 5};
    return sizes[i % 8];
}

static void append_record(struct proto *file, int i)
{
    size_t size = record_size(i);
    uint8_t *record = malloc(size + 1);
    assert_non_null(record);
    memset(record, i, size + 1);
    tfrecord_append(file, record, size);
    free(record);
}

static struct proto make_file(int records)
{
    struct proto file = {0};
    for (int i = 0; i < records; i++) {
        append_record(&file, i);
    }
    return file;
}

static void expect_record(struct tfrecord_reader *reader, int i)
{
    const uint8_t *record;
    size_t size;
    struct error error;
    assert_int_equal(tfrecord_next(reader, &record, &size, &error), TFRECORD_RECORD);
    assert_int_equal(size, record_size(i));
    for (size_t k = 0; k < size; k++) {
        assert_int_equal(record[k], i);
    }
}

static void expect(struct tfrecord_reader *reader, enum tfrecord_status status, const char *message)
{
    const uint8_t *record;
    size_t size;
    struct error error = {""};
    assert_int_equal(tfrecord_next(reader, &record, &size, &error), status);
    if (message) {
        assert_string_equal(error.text, message);
    }
}

TEST(a_frame_as_tensorflow_writes_it)
{
    /* tf.io.TFRecordWriter's file of the one record b"abc" */
    static const uint8_t expected[] = {0x03, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xb0, 0x99,
                                       0x49, 0x0e, 0x61, 0x62, 0x63, 0x6e, 0x57, 0xf1, 0x21};
    struct proto file = {0};
    tfrecord_append(&file, "abc", 3);
    assert_int_equal(file.size, sizeof expected);
    assert_memory_equal(file.bytes, expected, sizeof expected);
    proto_free(&file);
}

TEST(whole_files)
{
    for (int packing = 0; packing < 3; packing++) {
        struct proto file = make_file(20);
        struct tfrecord_reader *reader;
        struct error error;
        uint8_t *bytes = file.bytes, *packed = NULL;
        size_t size = file.size;
        if (packing > 0) {
            z_stream deflater = {0};
            assert_int_equal(deflateInit2(&deflater, 6, Z_DEFLATED, packing == 1 ? 15 : 31, 8, 0), Z_OK);
            size = deflateBound(&deflater, file.size);
            packed = malloc(size);
            deflater.next_in = file.bytes;
            deflater.avail_in = (uInt)file.size;
            deflater.next_out = packed;
            deflater.avail_out = (uInt)size;
            assert_int_equal(deflate(&deflater, Z_FINISH), Z_STREAM_END);
            size -= deflater.avail_out;
            deflateEnd(&deflater);
            bytes = packed;
        }
        assert_true(tfrecord_open_bytes(&reader, "file", bytes, size, &error));
        uint64_t offset = 0;
        for (int i = 0; i < 20; i++) {
            expect_record(reader, i);
            assert_int_equal(tfrecord_offset(reader), offset);
            offset += record_size(i) + 16;
        }
        expect(reader, TFRECORD_END, NULL);
        expect(reader, TFRECORD_END, NULL);
        tfrecord_close(reader);
        free(packed);
        proto_free(&file);
    }
}

/* 0x8B1F bytes make the first two bytes of the file those of gzip. */
TEST(a_length_that_looks_like_gzip)
{
    struct proto file = {0};
    uint8_t *record = calloc(0x8B1F, 1);
    struct tfrecord_reader *reader;
    struct error error;
    const uint8_t *found;
    size_t size;
    tfrecord_append(&file, record, 0x8B1F);
    assert_true(tfrecord_open_bytes(&reader, "file", file.bytes, file.size, &error));
    assert_int_equal(tfrecord_next(reader, &found, &size, &error), TFRECORD_RECORD);
    assert_int_equal(size, 0x8B1F);
    tfrecord_close(reader);
    proto_free(&file);
    free(record);
}

TEST(damage_costs_one_record)
{
    struct tfrecord_reader *reader;
    struct error error;
    struct proto file = make_file(5); /* at 0, 16, 33, 56, 80 */
    file.bytes[33 + 14] ^= 1;         /* in the data of record 2 */
    assert_true(tfrecord_open_bytes(&reader, "file", file.bytes, file.size, &error));
    expect_record(reader, 0);
    expect_record(reader, 1);
    expect(reader, TFRECORD_DAMAGED, "file: the record at byte 33 is damaged: wrong CRC");
    expect_record(reader, 3);
    expect_record(reader, 4);
    expect(reader, TFRECORD_END, NULL);
    tfrecord_close(reader);

    file.bytes[33 + 14] ^= 1;
    file.bytes[33 + 2] ^= 1; /* in its length: the start of the next one must be found */
    assert_true(tfrecord_open_bytes(&reader, "file", file.bytes, file.size, &error));
    expect_record(reader, 0);
    expect_record(reader, 1);
    expect(reader, TFRECORD_DAMAGED, "file: the record at byte 33 is damaged: wrong CRC of its length");
    expect_record(reader, 3);
    expect_record(reader, 4);
    expect(reader, TFRECORD_END, NULL);
    tfrecord_close(reader);
    proto_free(&file);
}

/* Truncated anywhere, whole records are read, and the damage is reported once. */
TEST(cut_files)
{
    struct proto file = make_file(5);
    static const size_t ends[] = {0, 16, 33, 56, 80, 196};
    for (size_t cut = 0; cut < file.size; cut++) {
        struct tfrecord_reader *reader;
        struct error error;
        uint8_t *exact = malloc(cut > 0 ? cut : 1);
        memcpy(exact, file.bytes, cut);
        assert_true(tfrecord_open_bytes(&reader, "file", exact, cut, &error));
        int whole = 0;
        while (ends[whole + 1] <= cut) {
            expect_record(reader, whole++);
        }
        if (ends[whole] < cut) {
            expect(reader, TFRECORD_DAMAGED, NULL);
        }
        expect(reader, TFRECORD_END, NULL);
        tfrecord_close(reader);
        free(exact);
    }
    proto_free(&file);
}

/* However the bytes are changed, every record read is one that was written, and the reader ends. */
TEST(random_damage)
{
    struct test_random random = test_random_begin(__func__);
    for (int round = 0; round < 300; round++) {
        struct proto file = make_file(5);
        struct tfrecord_reader *reader;
        struct error error;
        for (int i = test_random_below(&random, 6); i >= 0; i--) {
            file.bytes[test_random_below(&random, (int)file.size)] ^= (uint8_t)(1 << test_random_below(&random, 8));
        }
        if (tfrecord_open_bytes(&reader, "file", file.bytes, file.size, &error)) {
            const uint8_t *record;
            size_t size;
            enum tfrecord_status status;
            int calls = 0;
            while ((status = tfrecord_next(reader, &record, &size, &error)) == TFRECORD_RECORD ||
                   status == TFRECORD_DAMAGED) {
                assert_true(++calls < 300);
                if (status == TFRECORD_RECORD && size > 0) {
                    assert_int_equal(size, record_size(record[0]));
                }
            }
            tfrecord_close(reader);
        }
        proto_free(&file);
    }
}

/* Back and forth in a plain file, forward in compressed ones; within the buffer and beyond it. */
TEST(goes_to_any_record)
{
    enum { RECORDS = 24 };
    uint64_t offsets[RECORDS + 1] = {0};
    struct proto file = make_file(RECORDS);
    for (int i = 0; i < RECORDS; i++) {
        offsets[i + 1] = offsets[i] + record_size(i) + TFRECORD_HEADER + TFRECORD_FOOTER;
    }
    char path[] = "/tmp/test_reader.XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    for (int packed = 0; packed < 2; packed++) {
        gzFile out = gzopen(path, packed ? "wb" : "wbT"); /* T: uncompressed */
        struct tfrecord_reader *reader;
        struct error error;
        assert_non_null(out);
        assert_int_equal(gzwrite(out, file.bytes, (unsigned)file.size), file.size);
        assert_int_equal(gzclose(out), Z_OK);
        assert_true(tfrecord_open(&reader, path, &error));
        assert_int_equal(tfrecord_is_packed(reader), packed);
        for (int i = 0; i < RECORDS; i += 1 + i % 3) {
            assert_true(tfrecord_go_to(reader, offsets[i], &error));
            expect_record(reader, i);
            assert_int_equal(tfrecord_offset(reader), offsets[i]);
            assert_int_equal(tfrecord_position(reader), offsets[i + 1]);
        }
        for (int i = RECORDS - 1; i >= 0 && !packed; i -= 1 + i % 2) {
            assert_true(tfrecord_go_to(reader, offsets[i], &error));
            expect_record(reader, i);
        }
        assert_true(tfrecord_go_to(reader, offsets[RECORDS], &error));
        expect(reader, TFRECORD_END, NULL);
        assert_true(tfrecord_go_to(reader, offsets[RECORDS] + 10, &error));
        expect(reader, TFRECORD_END, NULL);
        tfrecord_close(reader);
    }
    close(fd);
    unlink(path);
    proto_free(&file);
}

int main(void)
{
    return check_run(NULL, NULL);
}
