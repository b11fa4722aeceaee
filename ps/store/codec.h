/*
 * The forms in which floats travel: bfloat16, and differences of them; int8; the largest of them; and the model as it
 * was sent to workers in such forms.
 */
#ifndef PS_STORE_CODEC_H
#define PS_STORE_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/config.h"
#include "base/simulation.h"
#include "net/message.h"
#include "ps/store/model.h"

/* --- bfloat16 --- */

/*
 * bfloat16: the upper half of a float32. Rounding is to nearest, ties to even, as in TensorFlow and on GPUs; NaN stays
 * NaN.
 */

static inline uint16_t bfloat16_round(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    uint32_t quiet = (bits >> 16) | 0x40u; /* keeps a NaN a NaN, whatever its lower bits */
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

static inline float bfloat16_widen(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Whole arrays, which must not overlap, with the widest instructions of this CPU; the bits do not depend on them. */
void bfloat16_from_floats(uint16_t *halves, const float *values, size_t n);
void bfloat16_to_floats(float *values, const uint16_t *halves, size_t n);

/*
 * Rounds values + remainders, and keeps the rounding errors in remainders. Values that are not finite pass unchanged
 * and leave no remainder. True if any half is not zero.
 */
bool bfloat16_feed_back(uint16_t *halves, float *remainders, const float *values, size_t n);

/*
 * Differences: the encoding of halves for a receiver that knows their previous values. From one step to the next most
 * weights move by a few units in the last place of a bfloat16, if at all, so that 4 bits suffice instead of 16.
 *
 * Every 32 halves are a block: a byte with the number of bits per half, then
 *      0: nothing; no half has changed;
 *      4: 16 bytes; byte j has the changes of half j, in its lower bits, and of half j + 16, as two's complement;
 *      8: 32 bytes, the changes as two's complement;
 *     16: 64 bytes, the halves themselves, little-endian.
 * A change is the difference of two halves as 16-bit integers. A last block of fewer than 32 halves uses 0 or 16 bits
 * each.
 */
enum { BFLOAT16_BLOCK = 32 };

/* Bytes that bfloat16_encode_delta needs for n halves: the largest encoding, and scratch space beyond it. */
static inline size_t bfloat16_encoded_room(size_t n)
{
    return n * sizeof(uint16_t) + n / BFLOAT16_BLOCK + 1 + BFLOAT16_BLOCK;
}

/*
 * Updates `known` to `halves`, and encodes the update to `encoded`; returns its bytes. in_full: the receiver knows
 * nothing.
 */
size_t bfloat16_encode_delta(uint8_t *encoded, uint16_t *known, const uint16_t *halves, size_t n, bool in_full);

/*
 * Updates `known` by what bfloat16_encode_delta encoded, of at most `size` bytes. Returns the bytes read; 0: invalid.
 * n: at least 1.
 */
size_t bfloat16_apply_delta(uint16_t *known, const uint8_t *encoded, size_t size, size_t n);

/* --- int8 --- */

/*
 * int8: floats as bytes that share a scale. Every INT8_BLOCK floats are a block, the last one may be shorter; its scale
 * is the largest magnitude in it / 127, and each float is sent as the nearest multiple of that, ties to even. The
 * sender adds the rounding error to what it sends next (error feedback: Karimireddy et al., "Error Feedback Fixes
 * SignSGD and other Gradient Compression Schemes", 2019).
 *
 * The encoding of n floats: the scales of all blocks, as float32, then n bytes in two's complement. A block with a
 * float that is not finite, or of magnitude 2^127 or more, has the scale NaN, so that the receiver decodes the whole
 * block as not finite; a block of zeros, or of floats too small for a normal scale, has the scale 0.
 *
 * The bits depend neither on this CPU's instructions nor on whether it flushes denormals.
 */

enum { INT8_BLOCK = 64 };

static inline size_t int8_blocks(size_t n)
{
    return (n + INT8_BLOCK - 1) / INT8_BLOCK;
}

static inline size_t int8_size(size_t n)
{
    return n + int8_blocks(n) * sizeof(float);
}

/* Writes int8_size(n) bytes, and leaves the rounding errors in `values`: zeros for a block that is not finite. */
void int8_round(uint8_t *bytes, float *values, size_t n);

/* Decodes them. False: a scale is below 0, or infinite, which int8_round never writes. */
bool int8_widen(float *values, const uint8_t *bytes, size_t n);

/* --- The largest --- */

/*
 * The largest floats of a gradient, by magnitude: those worth sending (Strom, "Scalable Distributed DNN Training Using
 * Commodity GPU Cloud Computing", 2015; Lin et al., "Deep Gradient Compression", 2018). The sender adds the rest to
 * what it sends next, as with int8.
 *
 * They are sent in pieces, each with the chosen floats among up to LARGEST_PIECE consecutive floats of the vector:
 *      2 bytes     the number of chosen floats, little-endian
 *      2 bytes     the bytes that the gaps take, little-endian
 *      gaps        for each chosen float the number of floats between it and the previous one, or the piece's start: a
 *                  byte up to 127, else two, the lower 7 bits first, with the top bit of the first byte set
 *      values      one after another, as float32, as bfloat16, or as int8 blocks
 */

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

/* --- The sent model --- */

/*
 * The model as it was sent to workers, if parameters travel packed: in synchronous training with wire_dtype int8 or
 * wire_top (DTYPE_INT8 and DTYPE_LARGEST_...). A shard keeps one sent model for all workers: after each step it sends
 * the difference of the parameters from it, packed like gradients, and a worker that knew the sent model before the
 * step knows it afterwards. So packing errors are not lost: they are part of the next difference (Tang et al.,
 * "DoubleSqueeze: Parallel Stochastic Gradient Descent with Double-Pass Error-Compensated Compression", 2019). A worker
 * that does not know that model gets all of it, as float32.
 *
 * Both sides update it by sent_model_apply, and so to the same bits; not while denormals are flushed (optimizer_enter).
 */

/* The dtype in which a worker sends its gradients. */
enum dtype sent_model_gradient_dtype(const struct config_cluster *cluster);

/* True if there is a sent model; answers then have that dtype, too. */
bool sent_model_is_kept(const struct config_cluster *cluster);

/* Limits on the bulk of a frame of packed answers, and on its ranges. */
enum { SENT_FRAME_BYTES = 64 * 1024, SENT_FRAME_RANGES = SMALLER(512, 1) };

/*
 * Packs a piece of up to PACKED_FLOATS differences, and updates `known` accordingly. `bytes` has LARGEST_ROOM. Returns
 * the bytes used, 0: no difference is worth sending; `left` is overwritten. chosen: for the largest, as for
 * largest_pack.
 */
size_t sent_model_pack(uint8_t *bytes, float *left, float *known, size_t n, struct largest *chosen, enum dtype dtype);

/*
 * Packs a whole step: the difference of `parameters` from `known`, which is updated accordingly. Both hold these spans
 * one after another; the sink, which may be NULL, gets the pieces in ascending order.
 */
struct sent_packer {
    enum dtype dtype;
    size_t chosen;               /* for the largest: how many are sent per step */
    float *left;                 /* [floats of the spans]: scratch */
    uint8_t piece[LARGEST_ROOM]; /* likewise */
};
struct sent_sink {
    void (*piece)(void *context, struct range range, const uint8_t *bytes, size_t size);
    void *context;
};
/* values: the number of floats without padding. left: borrowed. */
void sent_packer_begin(struct sent_packer *packer, const struct config_cluster *cluster, size_t values, float *left);
void sent_packer_pack(struct sent_packer *packer, const float *parameters, float *known, const struct span *spans,
                      int span_count, const struct sent_sink *sink);

/* Updates `known` by one received piece, of at most `size` bytes. Returns the bytes read; 0: invalid. n: at least 1. */
size_t sent_model_apply(float *known, const uint8_t *bytes, size_t size, size_t n, enum dtype dtype);

#endif
