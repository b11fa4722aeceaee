/* Which records may arrive before a handshake is over: each by its header, in the order of RFC 8446. */
#include "net/tls/gate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "net/connection.h"
#include "net/tls/record.h"

enum { UNEXPECTED_MESSAGE = 10, BAD_RECORD_MAC = 20, RECORD_OVERFLOW = 22 };

static struct gate gate;
static uint8_t alert;
static const char *why;

static enum gate_verdict look(uint8_t type, size_t length, bool sealed)
{
    const uint8_t header[] = {type, 3, 3, (uint8_t)(length >> 8), (uint8_t)length};
    alert = 0;
    why = "";
    return gate_look(&gate, header, sizeof header, sealed, &alert, &why);
}

static void refused(uint8_t type, size_t length, bool sealed, uint8_t code, const char *words)
{
    const struct gate before = gate;
    assert_int_equal(look(type, length, sealed), GATE_REFUSED);
    assert_int_equal(alert, code);
    assert_string_equal(why, words);
    assert_memory_equal(&gate, &before, sizeof gate);
}

static void goes_through(uint8_t type, size_t length, bool sealed)
{
    assert_int_equal(look(type, length, sealed), GATE_PASS);
    assert_int_equal(gate.type, type);
    assert_int_equal(gate.left, RECORD_HEADER + length);
    gate_pass(&gate, gate.left);
}

static int begin(void **state)
{
    (void)state;
    memset(&gate, 0, sizeof gate);
    return 0;
}

static void a_handshake_goes_through(void **state)
{
    (void)state;
    goes_through(RECORD_HANDSHAKE, 300, false);
    goes_through(RECORD_CHANGE_CIPHER_SPEC, 1, true);
    goes_through(RECORD_DATA, 2000, true);
    goes_through(RECORD_DATA, RECORD_TAG, true);
    assert_int_equal(gate.passed, 300 + 1 + 2000 + RECORD_TAG + 4 * RECORD_HEADER);
}

/* It needs a header, and looks no further before that record has passed. */
static void records_come_in_pieces(void **state)
{
    (void)state;
    const uint8_t header[] = {RECORD_HANDSHAKE, 3, 3, 1, 2}, other[] = {99, 99, 99, 99, 99};
    for (size_t size = 0; size < RECORD_HEADER; size++) {
        assert_int_equal(gate_look(&gate, header, size, false, &alert, &why), GATE_MORE);
    }
    assert_int_equal(gate_look(&gate, header, sizeof header, false, &alert, &why), GATE_PASS);
    assert_int_equal(gate.left, RECORD_HEADER + 258);
    gate_pass(&gate, 262);
    assert_int_equal(gate.left, 1);
    assert_int_equal(gate_look(&gate, other, sizeof other, false, &alert, &why), GATE_PASS);
    gate_pass(&gate, 1);
    assert_int_equal(gate_look(&gate, other, sizeof other, false, &alert, &why), GATE_REFUSED);
}

static void change_cipher_spec_comes_once_behind_the_hello(void **state)
{
    (void)state;
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

static void what_is_sealed_and_what_is_not(void **state)
{
    (void)state;
    refused(RECORD_DATA, 100, false, UNEXPECTED_MESSAGE, "data before the handshake");
    refused(RECORD_HANDSHAKE, 100, true, UNEXPECTED_MESSAGE, "a record that is not encrypted");
    refused(24, 100, true, UNEXPECTED_MESSAGE, "a record of an unknown type");
    refused(24, 100, false, UNEXPECTED_MESSAGE, "a record of an unknown type");
    assert_int_equal(look(RECORD_ALERT, 2, true), GATE_ALERT);
    assert_int_equal(gate.left, 0);
    goes_through(RECORD_ALERT, 2, false);
}

static void sizes_have_bounds(void **state)
{
    (void)state;
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

static void a_handshake_has_an_end(void **state)
{
    (void)state;
    const size_t least = CONNECTION_HANDSHAKE_BYTES / (RECORD_HEADER + 1000);
    for (size_t i = 0; i <= least; i++) {
        goes_through(RECORD_HANDSHAKE, 1000, false);
    }
    refused(RECORD_HANDSHAKE, 1000, false, UNEXPECTED_MESSAGE, "an endless handshake");
    gate.passed = CONNECTION_HANDSHAKE_BYTES;
    goes_through(RECORD_HANDSHAKE, 1, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_handshake_goes_through, begin),
        cmocka_unit_test_setup(records_come_in_pieces, begin),
        cmocka_unit_test_setup(change_cipher_spec_comes_once_behind_the_hello, begin),
        cmocka_unit_test_setup(what_is_sealed_and_what_is_not, begin),
        cmocka_unit_test_setup(sizes_have_bounds, begin),
        cmocka_unit_test_setup(a_handshake_has_an_end, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
