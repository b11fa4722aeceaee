/* The decoder accepts what the format allows and what Python writes, and refuses everything else with a reason. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/checkpoint/safetensors.h"
#include "tests/check.h"

static struct safetensors file;
static struct error error;

/* A file of this header and this many bytes of data, in memory of exactly its size. */
static bool decode(const char *header, uint64_t data_bytes)
{
    size_t length = strlen(header), header_size;
    uint8_t *bytes = malloc(SAFETENSORS_PREFIX + length);
    for (int i = 0; i < SAFETENSORS_PREFIX; i++) {
        bytes[i] = (uint8_t)((uint64_t)length >> (8 * i));
    }
    for (size_t i = 0; i < length; i++) {
        bytes[SAFETENSORS_PREFIX + i] = (uint8_t)header[i];
    }
    uint64_t size = SAFETENSORS_PREFIX + length + data_bytes;
    snprintf(error.text, sizeof error.text, "no reason given");
    bool decoded = safetensors_header_size(bytes, size, &header_size, &error) &&
                   safetensors_decode(&file, bytes, header_size, size, &error);
    /* The texts point into it. */
    static uint8_t *previous;
    free(previous);
    previous = bytes;
    return decoded;
}

TEST(takes_what_the_format_says)
{
    assert_true(decode("{}", 0));
    assert_int_equal(file.tensor_count, 0);
    assert_true(decode("{ \"a\" : { \"data_offsets\" : [ 0 , 24 ] ,\t\"shape\" : [ 2 , 3 ] , \"dtype\" : \"F32\" } ,\n"
                       "\"b\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[24,28]},"
                       "\"c\":{\"dtype\":\"F32\",\"shape\":[0,9],\"data_offsets\":[28,28]},"
                       "\"__metadata__\":{\"k\\u00e9y\":\"a \\\"quoted\\\" v\\n\",\"x\":\"\"}}   ",
                       28));
    assert_int_equal(file.tensor_count, 3);
    const struct safetensors_tensor *a = safetensors_find(&file, "a");
    assert_int_equal(a->dimensions, 2);
    assert_int_equal(a->shape[0], 2);
    assert_int_equal(a->shape[1], 3);
    assert_int_equal(a->size, 24);
    const struct safetensors_tensor *b = safetensors_find(&file, "b");
    assert_int_equal(b->dimensions, 0);
    assert_int_equal(b->offset, a->offset + 24);
    assert_null(safetensors_find(&file, "aa"));
    assert_null(safetensors_find(&file, ""));
    assert_int_equal(safetensors_metadata(&file, "x")->size, 0);
    assert_null(safetensors_metadata(&file, "y"));
    assert_true(decode("{\"__metadata__\":{}}", 0));
    assert_true(decode("{\"__metadata__\":{\"x\":\"\\u09AF \\uafAF \\\\ \\/\"}}", 0));
}

TEST(refuses_everything_else)
{
#define TENSOR(shape, offsets) "{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
    const struct {
        const char *header;
        uint64_t data_bytes;
        const char *reason;
    } cases[] = {
        {"[]", 0, "does not begin"},
        {" {}", 0, "does not begin"},
        {"{}{", 0, "follows the header's end"},
        {"{", 0, "header of 1 bytes"},
        {"{ ", 0, "a string is missing"},
        {"{\"a", 0, "a string without an end"},
        {"{\"a\"", 0, "':' is missing"},
        {"{\"a\":1}", 0, "not an object"},
        {"{\"a\":{}}", 0, "a string is missing"},
        {"{,}", 0, "a string is missing"},
        {"{\"a\":" TENSOR("[1]", "[0,4]") ",}", 4, "a string is missing"},
        {"{\"a\":" TENSOR("[1]", "[0,4]"), 4, "no end"},
        {"{\"a\":" TENSOR("[1]", "[0,4]") "}", 3, "cut off"},
        {"{\"a\":" TENSOR("[1]", "[0,4]") "}", 5, "too long"},
        {"{\"a\":" TENSOR("[1]", "[4,8]") "}", 8, "do not follow"},
        {"{\"a\":" TENSOR("[1]", "[0,8]") "}", 8, "do not fit its shape"},
        {"{\"a\":" TENSOR("[1]", "[4,0]") "}", 8, "do not follow"},
        {"{\"a\":" TENSOR("[1]", "[0,4]") ",\"a\":" TENSOR("[1]", "[4,8]") "}", 8, "a tensor twice"},
        {"{\"a\":" TENSOR("[1]", "[0,4]") ",\"b\":" TENSOR("[1]", "[0,4]") "}", 4, "do not follow"},
        {"{\"a\":" TENSOR("[1]", "[0,4,5]") "}", 4, "no end"},
        {"{\"a\":" TENSOR("[1]", "[0]") "}", 4, "one number only"},
        {"{\"a\":" TENSOR("[-1]", "[0,4]") "}", 4, "whole number is missing"},
        {"{\"a\":" TENSOR("[1.0]", "[0,4]") "}", 4, "no end"},
        {"{\"a\":" TENSOR("[01]", "[0,4]") "}", 4, "leading zero"},
        {"{\"a\":" TENSOR("[1e1]", "[0,40]") "}", 40, "no end"},
        {"{\"a\":" TENSOR("[1,1,1,1,1]", "[0,4]") "}", 4, "too many dimensions"},
        {"{\"a\":" TENSOR("[18446744073709551617]", "[0,4]") "}", 4, "2^53"},
        {"{\"a\":" TENSOR("[4294967296,4294967296]", "[0,0]") "}", 0, "too large"},
        {"{\"a\":" TENSOR("[1", "[0,4]") "}", 4, "whole number is missing"},
        {"{\"a\":" TENSOR("[1}", "[0,4]") "}", 4, "shape has no end"},
        {"{\"a\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8, "not F32"},
        {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "without dtype"},
        {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "key twice"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4, "unknown key"},
        {"{\"\":" TENSOR("[1]", "[0,4]") "}", 4, "empty or too long"},
        {"{\"\\u0061\":" TENSOR("[1]", "[0,4]") "}", 4, "an escape in a name"},
        {"{\"__metadata__\":{\"x\":\"\\u00G0\"}}", 0, "\\u without four hexadecimal digits"},
        {"{\"__metadata__\":{\"x\":\"\\u00@0\"}}", 0, "\\u without four hexadecimal digits"},
        {"{\"__metadata__\":{\"x\":\"\\u:000\"}}", 0, "\\u without four hexadecimal digits"},
        {"{\"a\tb\":" TENSOR("[1]", "[0,4]") "}", 4, "control character"},
        {"{\"__metadata__\":[]}", 0, "not an object"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "a string is missing"},
        {"{\"__metadata__\":{\"a\":\"\\x\"}}", 0, "unknown escape"},
        {"{\"__metadata__\":{\"a\":\"\\u12g4\"}}", 0, "hexadecimal"},
        {"{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0, "twice in __metadata__"},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "__metadata__ twice"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (decode(cases[i].header, cases[i].data_bytes) || !strstr(error.text, cases[i].reason)) {
            fail_msg("%s: \"%s\", not \"%s\"", cases[i].header, error.text, cases[i].reason);
        }
    }
}

/* Wherever it ends: nothing beyond its end is looked at. */
TEST(a_part_is_no_header)
{
    const char *whole =
        "{\"__metadata__\":{\"k\":\"a\\n\\u12ab\",\"x\":\"\"},\"a\":{\"dtype\":\"F32\",\"shape\":[12,0],"
        "\"data_offsets\":[0,0]}}";
    char part[200];
    assert_true(decode(whole, 0));
    for (size_t length = 0; length < strlen(whole); length++) {
        memcpy(part, whole, length);
        part[length] = '\0';
        assert_false(decode(part, 0));
    }
}

TEST(counts_are_limited)
{
    for (int over = 0; over < 2; over++) {
        char *header = malloc(SAFETENSORS_MAX_HEADER);
        size_t used = (size_t)sprintf(header, "{\"__metadata__\":{}");
        for (int i = 0; i < SAFETENSORS_MAX_TENSORS + over; i++) {
            used += (size_t)sprintf(header + used, ",\"t%d\":" TENSOR("[1]", "[%d,%d]"), i, 4 * i, 4 * i + 4);
        }
        sprintf(header + used, "}");
        assert_int_equal(decode(header, 4 * (SAFETENSORS_MAX_TENSORS + (uint64_t)over)), !over);
        used = (size_t)sprintf(header, "{\"__metadata__\":{\"k\":\"\"");
        for (int i = 1; i < SAFETENSORS_MAX_METADATA + over; i++) {
            used += (size_t)sprintf(header + used, ",\"k%d\":\"\"", i);
        }
        sprintf(header + used, "}}");
        assert_int_equal(decode(header, 0), !over);
        used = (size_t)sprintf(header, "{\"");
        memset(header + used, 'n', (size_t)SAFETENSORS_MAX_NAME + (size_t)over);
        sprintf(header + used + SAFETENSORS_MAX_NAME + over, "\":" TENSOR("[1]", "[0,4]") "}");
        assert_int_equal(decode(header, 4), !over);
        free(header);
    }
}

TEST(header_length_is_checked_before_anything)
{
    size_t size;
    const uint8_t huge[8] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
    assert_false(safetensors_header_size(huge, UINT64_MAX, &size, &error));
    const uint8_t more[8] = {1, 0, 0, 1};
    assert_false(safetensors_header_size(more, UINT64_MAX, &size, &error));
    const uint8_t most[8] = {0, 0, 0, 1};
    assert_true(safetensors_header_size(most, SAFETENSORS_MAX_HEADER + 8, &size, &error));
    assert_int_equal(size, SAFETENSORS_MAX_HEADER + 8);
    assert_false(safetensors_header_size(most, SAFETENSORS_MAX_HEADER + 7, &size, &error));
    const uint8_t none[8] = {0};
    assert_false(safetensors_header_size(none, 100, &size, &error));
}

TEST(reads_what_it_writes)
{
    char buffer[1024];
    struct safetensors_writer writer;
    safetensors_write_begin(&writer, buffer, sizeof buffer);
    safetensors_write_metadata(&writer, "first", "1");
    size_t at = safetensors_write_metadata(&writer, "second", "two");
    safetensors_write_tensor(&writer, "w", 2, (const int64_t[]){3, 5});
    safetensors_write_tensor(&writer, "b", 1, (const int64_t[]){5});
    size_t size = safetensors_write_end(&writer);
    assert_int_equal(size % SAFETENSORS_DATA_ALIGN, 0);
    assert_memory_equal(buffer + at, "two\"", 4);
    size_t header_size;
    assert_true(safetensors_header_size((uint8_t *)buffer, size + 80, &header_size, &error));
    assert_int_equal(header_size, size);
    if (!safetensors_decode(&file, (uint8_t *)buffer, size, size + 80, &error)) {
        fail_msg("%s", error.text);
    }
    assert_int_equal(file.metadata_count, 2);
    assert_int_equal(safetensors_find(&file, "b")->offset, size + 60);
    assert_int_equal(writer.data_size, 80);

    /* A buffer that is too small is noticed wherever it ends, and nothing is written past it. */
    for (size_t room = 0; room < size; room++) {
        char *small = malloc(room + 1);
        safetensors_write_begin(&writer, small, room);
        safetensors_write_metadata(&writer, "first", "1");
        safetensors_write_metadata(&writer, "second", "two");
        safetensors_write_tensor(&writer, "w", 2, (const int64_t[]){3, 5});
        safetensors_write_tensor(&writer, "b", 1, (const int64_t[]){5});
        assert_int_equal(safetensors_write_end(&writer), 0);
        free(small);
    }
    safetensors_write_begin(&writer, buffer, sizeof buffer);
    size = safetensors_write_end(&writer);
    assert_true(safetensors_decode(&file, (uint8_t *)buffer, size, size, &error));
}

int main(void)
{
    return check_run(NULL, NULL);
}
