/*
 * The rules of RFC 8446, 5 and 5.1, for the fields of a record's header. mbedTLS drops ChangeCipherSpec records however
 * many come, and so never checks whether its time is over.
 */
#include "net/tls/gate.h"

#include <assert.h>

#include <mbedtls/ssl.h>

#include "net/connection.h"
#include "net/tls/record.h"

static enum gate_verdict refuse(uint8_t code, const char *what, uint8_t *alert, const char **why)
{
    *alert = code;
    *why = what;
    return GATE_REFUSED;
}

/* Why a record of this type is refused; NULL: it is not. */
static const char *misplaced(const struct gate *gate, uint8_t type, size_t length, bool sealed)
{
    switch (type) {
    case RECORD_CHANGE_CIPHER_SPEC:
        return !gate->greeted  ? "a ChangeCipherSpec before its hello"
               : gate->changed ? "more than one ChangeCipherSpec"
               : length != 1   ? "a ChangeCipherSpec of the wrong size"
                               : NULL;
    case RECORD_HANDSHAKE:
        return sealed ? "a record that is not encrypted" : NULL;
    case RECORD_ALERT:
        return NULL;
    case RECORD_DATA:
        return sealed ? NULL : "data before the handshake";
    default:
        return "a record of an unknown type";
    }
}

enum gate_verdict gate_look(struct gate *gate, const uint8_t *bytes, size_t size, bool sealed, uint8_t *alert,
                            const char **why)
{
    if (gate->left > 0) {
        return GATE_PASS;
    }
    if (size < RECORD_HEADER) {
        return GATE_MORE;
    }
    uint8_t type = bytes[0];
    size_t length = (size_t)bytes[3] << 8 | bytes[4];
    const char *objection = misplaced(gate, type, length, sealed);
    if (objection) {
        return refuse(MBEDTLS_SSL_ALERT_MSG_UNEXPECTED_MESSAGE, objection, alert, why);
    }
    if (length > (type == RECORD_DATA ? RECORD_MOST_SEALED : RECORD_CONTENT)) {
        return refuse(MBEDTLS_SSL_ALERT_MSG_RECORD_OVERFLOW, "a record that is too large", alert, why);
    }
    if (length == 0) {
        return refuse(MBEDTLS_SSL_ALERT_MSG_UNEXPECTED_MESSAGE, "an empty record", alert, why);
    }
    if (type == RECORD_DATA && length < RECORD_TAG) {
        return refuse(MBEDTLS_SSL_ALERT_MSG_BAD_RECORD_MAC, "a record that is too small", alert, why);
    }
    if (type == RECORD_ALERT && sealed) {
        return GATE_ALERT;
    }
    if (gate->passed > CONNECTION_HANDSHAKE_BYTES) {
        return refuse(MBEDTLS_SSL_ALERT_MSG_UNEXPECTED_MESSAGE, "an endless handshake", alert, why);
    }
    gate->type = type;
    gate->left = RECORD_HEADER + length;
    gate->passed += gate->left;
    gate->greeted = gate->greeted || type == RECORD_HANDSHAKE;
    gate->changed = gate->changed || type == RECORD_CHANGE_CIPHER_SPEC;
    return GATE_PASS;
}

void gate_pass(struct gate *gate, size_t size)
{
    assert(size <= gate->left);
    gate->left -= size;
}
