/*
 * The largest of many floats, by magnitude: what of a gradient is worth its bytes (Strom, "Scalable Distributed DNN
 * Training Using Commodity GPU Cloud Computing", 2015; Lin et al., "Deep Gradient Compression", 2018). What is left
 * behind is the sender's to add to what it sends next, as with int8 (ps/store/int8.h).
 *
 * They travel in pieces of up to LARGEST_PIECE floats of the vector, each with those of its floats that were chosen:
 *      2 bytes     how many, little-endian
 *      2 bytes     how many bytes the gaps take, little-endian
 *      gaps        for each one how many floats lie between it and the one before it, or the piece's first: a byte up
 *                  to 127, else two, the lower 7 bits first, with the top bit of the first byte set
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
    LARGEST_GAP = 2,                                                                  /* bytes of one, at most */
    LARGEST_ROOM = LARGEST_HEAD + LARGEST_PIECE * (LARGEST_GAP + (int)sizeof(float)), /* of a piece, at most */
};

/* Bytes that so many chosen floats take. `dtype` is one of DTYPE_LARGEST_..., here and below. */
size_t largest_values_size(enum dtype dtype, size_t count);

/* Which are chosen: those with a magnitude above this one, and the next `ties` of exactly this one. Never zeros. */
struct largest {
    uint32_t bits; /* of the magnitude */
    size_t ties;
};

/* How they are found: the largest `count` of all floats that largest_look sees. */
struct largest_search {
    uint32_t counts[2048];
    uint32_t prefix, known; /* bits of the threshold, and which of them are known */
    size_t left;            /* to be found among those that begin like that */
    int pass;
};
enum { LARGEST_PASSES = 3 }; /* so often largest_look has to see all floats, and then comes largest_end_pass */
void largest_begin(struct largest_search *search, size_t count);
void largest_look(struct largest_search *search, const float *values, size_t n);
void largest_end_pass(struct largest_search *search);
struct largest largest_found(const struct largest_search *search);

/*
 * Writes the chosen ones of a piece's n floats, and leaves in `values` what that lacks; chosen->ties become fewer.
 * `bytes` has LARGEST_ROOM. Returns how many bytes that takes; 0: none was chosen, and nothing is written.
 */
size_t largest_pack(uint8_t *bytes, float *values, size_t n, struct largest *chosen, enum dtype dtype);

/*
 * Reading: the head; then the places, of floats in a piece of n. largest_read_places is false if they reach beyond it,
 * or if there is something else in those bytes.
 */
struct largest_head {
    uint16_t count, gap_bytes;
};
struct largest_head largest_read_head(const uint8_t bytes[LARGEST_HEAD]);
bool largest_read_places(uint16_t *places, struct largest_head head, const uint8_t *gaps, size_t n);
bool largest_read_values(float *values, const uint8_t *bytes, size_t count, enum dtype dtype); /* as int8_widen */

#endif
