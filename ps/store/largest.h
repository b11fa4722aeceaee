/*
 * The largest floats of a gradient, by magnitude: those worth sending (Strom, "Scalable Distributed DNN Training Using
 * Commodity GPU Cloud Computing", 2015; Lin et al., "Deep Gradient Compression", 2018). The sender adds the rest to
 * what it sends next, as with int8 (ps/store/int8.h).
 *
 * They are sent in pieces, each with the chosen floats among up to LARGEST_PIECE consecutive floats of the vector:
 *      2 bytes     the number of chosen floats, little-endian
 *      2 bytes     the bytes that the gaps take, little-endian
 *      gaps        for each chosen float the number of floats between it and the previous one, or the piece's start: a
 *                  byte up to 127, else two, the lower 7 bits first, with the top bit of the first byte set
 *      values      one after another, as float32, as bfloat16, or as int8 blocks
 */
#ifndef PS_STORE_LARGEST_H
#define PS_STORE_LARGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/message.h"

enum {
    LARGEST_PIECE = 8192,
    LARGEST_HEAD = 4,
    LARGEST_GAP = 2,                                                                  /* bytes of one gap, at most */
    LARGEST_ROOM = LARGEST_HEAD + LARGEST_PIECE * (LARGEST_GAP + (int)sizeof(float)), /* bytes of a piece, at most */
};

/* Bytes that the values of `count` chosen floats take. `dtype` is one of DTYPE_LARGEST_..., here and below. */
size_t largest_values_size(enum dtype dtype, size_t count);

/* The selection: floats with a magnitude above this one, and the next `ties` of exactly this one. Never zeros. */
struct largest {
    uint32_t bits; /* of the magnitude */
    size_t ties;
};

/* A search for the largest `count` of all floats that largest_look sees. */
struct largest_search {
    uint32_t counts[2048];
    uint32_t prefix, known; /* bits of the threshold, and a mask of those known */
    size_t left;            /* still to be found among floats with that prefix */
    int pass;
};
enum { LARGEST_PASSES = 3 }; /* passes: largest_look over all floats, then largest_end_pass */
void largest_begin(struct largest_search *search, size_t count);
void largest_look(struct largest_search *search, const float *values, size_t n);
void largest_end_pass(struct largest_search *search);
struct largest largest_found(const struct largest_search *search);

/*
 * Encodes the chosen floats among a piece's n, leaves the rest and the rounding errors in `values`, and reduces
 * chosen->ties. `bytes` has LARGEST_ROOM. Returns the bytes written; 0: none was chosen.
 */
size_t largest_pack(uint8_t *bytes, float *values, size_t n, struct largest *chosen, enum dtype dtype);

/*
 * Decoding: the head; then the places of the floats within a piece of n. largest_read_places returns false if they
 * reach beyond the piece, or if the gaps' bytes are malformed.
 */
struct largest_head {
    uint16_t count, gap_bytes;
};
struct largest_head largest_read_head(const uint8_t bytes[LARGEST_HEAD]);
bool largest_read_places(uint16_t *places, struct largest_head head, const uint8_t *gaps, size_t n);
bool largest_read_values(float *values, const uint8_t *bytes, size_t count, enum dtype dtype); /* as int8_widen */

#endif
