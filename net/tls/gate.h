/*
 * Filters a peer's records, by their headers, until its handshake is over: stops in front of mbedTLS, which parses the
 * records, whatever mbedTLS would accept without limit, reject without an alert, or misinterpret. A whole handshake
 * takes at most CONNECTION_HANDSHAKE_BYTES.
 *
 * Pure functions of their arguments.
 */
#ifndef NET_TLS_GATE_H
#define NET_TLS_GATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Starts as zeros. */
struct gate {
    size_t left;   /* bytes of the current record not yet passed on */
    size_t passed; /* bytes of all records begun */
    uint8_t type;  /* of the last record begun */
    bool greeted;  /* a handshake record was received */
    bool changed;  /* the one ChangeCipherSpec was received */
};

enum gate_verdict {
    GATE_PASS,    /* pass on gate->left bytes as they arrive */
    GATE_MORE,    /* too few bytes to decide */
    GATE_ALERT,   /* a plaintext alert after keys were agreed on: from a peer that could not read what we sent */
    GATE_REFUSED, /* *alert is for the peer, *why for the log */
};

/* Judges the `size` bytes received and not yet passed on. sealed: keys are agreed on. */
enum gate_verdict gate_look(struct gate *gate, const uint8_t *bytes, size_t size, bool sealed, uint8_t *alert,
                            const char **why);

/* `size` of them, at most gate->left, were passed on. */
void gate_pass(struct gate *gate, size_t size);

#endif
