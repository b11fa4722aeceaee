/*
 * Which records a peer may send before its handshake is over, by their headers: what mbedTLS, which reads the records,
 * lets through without end, answers without an alert, or takes for something else, is stopped in front of it. All of a
 * handshake is CONNECTION_HANDSHAKE_BYTES at most.
 *
 * Pure functions of their arguments.
 */
#ifndef NET_TLS_GATE_H
#define NET_TLS_GATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* All zero in the beginning. */
struct gate {
    size_t left;   /* bytes of the record under way that have not gone through */
    size_t passed; /* bytes of all that have begun */
    uint8_t type;  /* of the last that has begun */
    bool greeted;  /* a handshake record has come */
    bool changed;  /* the one ChangeCipherSpec has come */
};

enum gate_verdict {
    GATE_PASS,    /* gate->left bytes, as they come */
    GATE_MORE,    /* too few bytes to tell */
    GATE_ALERT,   /* an alert in clear though keys are agreed on: of a peer that could not read what we sent */
    GATE_REFUSED, /* *alert is what the peer is told, *why what the log is */
};

/* The `size` bytes that have come and not gone through. sealed: keys are agreed on. */
enum gate_verdict gate_look(struct gate *gate, const uint8_t *bytes, size_t size, bool sealed, uint8_t *alert,
                            const char **why);

/* `size` of them, at most gate->left, have gone through. */
void gate_pass(struct gate *gate, size_t size);

#endif
