/*
 * Record protection: records of all sizes round trip, nothing altered passes, keys and numbers are limited. The filter:
 * which records may arrive before a handshake is over, each by its header, in the order of RFC 8446.
 */
#include "net/tls/stream.h"
#include "tests/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sodium.h>

#include "net/connection.h"
#include "net/tls/gcm.h"
#include "net/tls/tls.h"
#include "tests/random.h"

static const enum record_cipher ciphers[] = {RECORD_CHACHA20_POLY1305_SHA256, RECORD_AES_256_GCM_SHA384};

static int cipher_count(void)
{
    return gcm_is_available() ? 2 : 1;
}

static int start(void **state)
{
    struct error error;
    return !tls_start(&error);
}

static void make_pair(enum record_cipher cipher, struct record_key *out, struct record_key *in)
{
    uint8_t secret[RECORD_MOST_SECRET];
    randombytes_buf(secret, sizeof secret);
    assert_true(record_key_set(out, cipher, secret));
    assert_true(record_key_set(in, cipher, secret));
}

/* Seals `size` bytes and opens them, in place or not. */
static void there_and_back(struct record_key *out, struct record_key *in, size_t size, bool in_place)
{
    static uint8_t record[RECORD_SEALED], content[RECORD_CONTENT], beside[RECORD_PLAIN];
    uint8_t type = 0;
    randombytes_buf(content, size);
    memcpy(record + RECORD_HEADER, content, size);
    assert_int_equal(record_seal(out, RECORD_DATA, record, size), RECORD_HEADER + size + 1 + RECORD_TAG);
    assert_int_equal(record[0], 23);
    assert_int_equal((size_t)record[3] << 8 | record[4], size + 1 + RECORD_TAG);
    uint8_t *plain = in_place ? record + RECORD_HEADER : beside;
    assert_int_equal(record_open(in, record, size + 1 + RECORD_TAG, plain, &type), size);
    assert_int_equal(type, RECORD_DATA);
    assert_memory_equal(plain, content, size);
}

TEST(records_there_and_back)
{
    struct record_key out, in;
    for (int c = 0; c < cipher_count(); c++) {
        make_pair(ciphers[c], &out, &in);
        for (size_t size = 0; size <= RECORD_CONTENT; size += size < 300 ? 1 : size > 16000 ? 64 : 1999) {
            there_and_back(&out, &in, size, size % 2 == 0);
        }
        there_and_back(&out, &in, RECORD_CONTENT, true);
        assert_int_equal(out.sequence, in.sequence);
    }
}

/* One bit anywhere, in header, content or tag; a record twice, or one left out. */
TEST(altered_records)
{
    struct record_key out, in;
    uint8_t record[RECORD_HEADER + 101 + RECORD_TAG], altered[sizeof record], plain[101], type;
    static const uint8_t zeros[101];
    struct test_random random = test_random_begin("altered");
    for (int c = 0; c < cipher_count(); c++) {
        make_pair(ciphers[c], &out, &in);
        for (int i = 0; i < 300; i++) {
            memset(record, 'a', sizeof record);
            assert_int_equal(record_seal(&out, RECORD_DATA, record, 100), sizeof record);
            memcpy(altered, record, sizeof record);
            altered[test_random_below(&random, sizeof record)] ^= (uint8_t)(1 << test_random_below(&random, 8));
            assert_int_equal(record_open(&in, altered, 101 + RECORD_TAG, plain, &type), RECORD_FORGED);
            assert_memory_equal(plain, zeros, sizeof plain);
            in.sequence--;
            assert_int_equal(record_open(&in, record, 101 + RECORD_TAG, plain, &type), 100);
            assert_int_equal(record_open(&in, record, 101 + RECORD_TAG, plain, &type), RECORD_FORGED);
            in.sequence--;
        }
        out.sequence++;
        record_seal(&out, RECORD_DATA, record, 100);
        assert_int_equal(record_open(&in, record, 101 + RECORD_TAG, plain, &type), RECORD_FORGED);
    }
}

/* Padding of any length is removed; a record of nothing but padding has no type and is refused. */
TEST(padded_records)
{
    struct record_key out, in;
    uint8_t record[RECORD_HEADER + 64 + RECORD_TAG], plain[64], type;
    make_pair(ciphers[0], &out, &in);
    memset(record, 0, sizeof record);
    record[RECORD_HEADER] = 'x';
    record[RECORD_HEADER + 1] = RECORD_ALERT; /* the type and zeros after it; the last of them is seal's own */
    record_seal(&out, 0, record, 63);
    assert_int_equal(record_open(&in, record, sizeof plain + RECORD_TAG, plain, &type), 1);
    assert_int_equal(type, RECORD_ALERT);
    assert_int_equal(plain[0], 'x');
    memset(record, 0, sizeof record);
    record_seal(&out, 0, record, 63);
    assert_int_equal(record_open(&in, record, sizeof plain + RECORD_TAG, plain, &type), RECORD_WITHOUT_TYPE);
}

/* Record numbers never wrap: the last one is not used. */
TEST(numbers_end)
{
    struct record_key out, in;
    uint8_t record[RECORD_HEADER + 2 + RECORD_TAG], plain[2], type;
    make_pair(ciphers[0], &out, &in);
    out.sequence = in.sequence = UINT64_MAX - 1;
    record_seal(&out, RECORD_DATA, record, 1);
    assert_int_equal(record_open(&in, record, sizeof plain + RECORD_TAG, plain, &type), 1);
    record_seal(&out, RECORD_DATA, record, 1);
    assert_int_equal(record_open(&in, record, sizeof plain + RECORD_TAG, plain, &type), RECORD_FORGED);
}

TEST(keys_change)
{
    struct record_key out, in;
    for (int c = 0; c < cipher_count(); c++) {
        make_pair(ciphers[c], &out, &in);
        struct record_key before = out;
        assert_int_equal(out.limit, (uint64_t)1 << 24); /* RFC 8446, 5.5: 2^24.5 with AES-GCM */
        out.sequence = in.sequence = out.limit - 1;
        assert_false(record_key_is_spent(&out));
        there_and_back(&out, &in, 1000, true);
        assert_true(record_key_is_spent(&out));
        assert_true(record_key_next(&out));
        assert_true(record_key_next(&in));
        assert_false(record_key_is_spent(&out));
        assert_memory_not_equal(before.secret, out.secret, record_secret_size(ciphers[c]));
        assert_memory_not_equal(before.iv, out.iv, sizeof out.iv);
        there_and_back(&out, &in, 1000, false);
    }
}

/* --- The filter --- */

enum { UNEXPECTED_MESSAGE = 10, BAD_RECORD_MAC = 20, RECORD_OVERFLOW = 22 };

static struct record_filter filter;
static uint8_t alert;
static const char *why;

static enum record_verdict look(uint8_t type, size_t length, bool sealed)
{
    const uint8_t header[] = {type, 3, 3, (uint8_t)(length >> 8), (uint8_t)length};
    alert = 0;
    why = "";
    return record_filter_check(&filter, header, sizeof header, sealed, &alert, &why);
}

static void refused(uint8_t type, size_t length, bool sealed, uint8_t code, const char *words)
{
    const struct record_filter before = filter;
    assert_int_equal(look(type, length, sealed), RECORD_REFUSED);
    assert_int_equal(alert, code);
    assert_string_equal(why, words);
    assert_memory_equal(&filter, &before, sizeof filter);
}

static void goes_through(uint8_t type, size_t length, bool sealed)
{
    assert_int_equal(look(type, length, sealed), RECORD_PASSES);
    assert_int_equal(filter.type, type);
    assert_int_equal(filter.left, RECORD_HEADER + length);
    record_filter_consume(&filter, filter.left);
}

static int begin(void **state)
{
    memset(&filter, 0, sizeof filter);
    return 0;
}

TEST_WITH(a_handshake_goes_through, begin, NULL)
{
    goes_through(RECORD_HANDSHAKE, 300, false);
    goes_through(RECORD_CHANGE_CIPHER_SPEC, 1, true);
    goes_through(RECORD_DATA, 2000, true);
    goes_through(RECORD_DATA, RECORD_TAG, true);
    assert_int_equal(filter.passed, 300 + 1 + 2000 + RECORD_TAG + 4 * RECORD_HEADER);
}

/* It needs a header, and looks no further before that record has passed. */
TEST_WITH(records_come_in_pieces, begin, NULL)
{
    const uint8_t header[] = {RECORD_HANDSHAKE, 3, 3, 1, 2}, other[] = {99, 99, 99, 99, 99};
    for (size_t size = 0; size < RECORD_HEADER; size++) {
        assert_int_equal(record_filter_check(&filter, header, size, false, &alert, &why), RECORD_INCOMPLETE);
    }
    assert_int_equal(record_filter_check(&filter, header, sizeof header, false, &alert, &why), RECORD_PASSES);
    assert_int_equal(filter.left, RECORD_HEADER + 258);
    record_filter_consume(&filter, 262);
    assert_int_equal(filter.left, 1);
    assert_int_equal(record_filter_check(&filter, other, sizeof other, false, &alert, &why), RECORD_PASSES);
    record_filter_consume(&filter, 1);
    assert_int_equal(record_filter_check(&filter, other, sizeof other, false, &alert, &why), RECORD_REFUSED);
}

TEST_WITH(change_cipher_spec_comes_once_behind_the_hello, begin, NULL)
{
    refused(RECORD_CHANGE_CIPHER_SPEC, 1, false, UNEXPECTED_MESSAGE, "a ChangeCipherSpec before its hello");
    goes_through(RECORD_ALERT, 2, false); /* it is no hello */
    refused(RECORD_CHANGE_CIPHER_SPEC, 1, false, UNEXPECTED_MESSAGE, "a ChangeCipherSpec before its hello");
    goes_through(RECORD_HANDSHAKE, 10, false);
    refused(RECORD_CHANGE_CIPHER_SPEC, 2, false, UNEXPECTED_MESSAGE, "a ChangeCipherSpec of the wrong size");
    refused(RECORD_CHANGE_CIPHER_SPEC, 0, false, UNEXPECTED_MESSAGE, "a ChangeCipherSpec of the wrong size");
    goes_through(RECORD_HANDSHAKE, 10, false);
    goes_through(RECORD_CHANGE_CIPHER_SPEC, 1, false);
    goes_through(RECORD_HANDSHAKE, 10, false);
    refused(RECORD_CHANGE_CIPHER_SPEC, 1, false, UNEXPECTED_MESSAGE, "more than one ChangeCipherSpec");
}

TEST_WITH(what_is_sealed_and_what_is_not, begin, NULL)
{
    refused(RECORD_DATA, 100, false, UNEXPECTED_MESSAGE, "data before the handshake");
    refused(RECORD_HANDSHAKE, 100, true, UNEXPECTED_MESSAGE, "a record that is not encrypted");
    refused(24, 100, true, UNEXPECTED_MESSAGE, "a record of an unknown type");
    refused(24, 100, false, UNEXPECTED_MESSAGE, "a record of an unknown type");
    assert_int_equal(look(RECORD_ALERT, 2, true), RECORD_PLAIN_ALERT);
    assert_int_equal(filter.left, 0);
    goes_through(RECORD_ALERT, 2, false);
}

TEST_WITH(sizes_have_bounds, begin, NULL)
{
    goes_through(RECORD_HANDSHAKE, RECORD_CONTENT, false);
    refused(RECORD_HANDSHAKE, RECORD_CONTENT + 1, false, RECORD_OVERFLOW, "a record that is too large");
    goes_through(RECORD_DATA, RECORD_MOST_SEALED, true);
    refused(RECORD_DATA, RECORD_MOST_SEALED + 1, true, RECORD_OVERFLOW, "a record that is too large");
    refused(RECORD_HANDSHAKE, 0, false, UNEXPECTED_MESSAGE, "an empty record");
    refused(RECORD_ALERT, 0, true, UNEXPECTED_MESSAGE, "an empty record");
    refused(RECORD_DATA, 0, true, UNEXPECTED_MESSAGE, "an empty record");
    refused(RECORD_DATA, RECORD_TAG - 1, true, BAD_RECORD_MAC, "a record that is too small");
    goes_through(RECORD_HANDSHAKE, 1, false);
}

TEST_WITH(a_handshake_has_an_end, begin, NULL)
{
    const size_t least = CONNECTION_HANDSHAKE_BYTES / (RECORD_HEADER + 1000);
    for (size_t i = 0; i <= least; i++) {
        goes_through(RECORD_HANDSHAKE, 1000, false);
    }
    refused(RECORD_HANDSHAKE, 1000, false, UNEXPECTED_MESSAGE, "an endless handshake");
    filter.passed = CONNECTION_HANDSHAKE_BYTES;
    goes_through(RECORD_HANDSHAKE, 1, false);
}

int main(void)
{
    return check_run(start, NULL);
}
