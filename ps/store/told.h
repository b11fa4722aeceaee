/*
 * What workers were told of the parameters, where these travel packed: in synchronous training with wire_dtype int8 or
 * wire_top (DTYPE_INT8 and DTYPE_LARGEST_...). A shard keeps one told model for all: what it says after each step is
 * how the parameters differ from that, packed as gradients are (ps/store/int8.h, ps/store/largest.h), and whoever knew
 * the told model before the step knows it afterwards. So what packing takes away is not lost: it is part of the next
 * difference (Tang et al., "DoubleSqueeze: Parallel Stochastic Gradient Descent with Double-Pass Error-Compensated
 * Compression", 2019). Whoever does not know that model gets all of it, as float32.
 *
 * Both sides bring it up by told_learn, and so to the same bits; not while denormals are flushed (optimizer_enter).
 */
#ifndef PS_STORE_TOLD_H
#define PS_STORE_TOLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/config.h"
#include "base/simulation.h"
#include "net/message.h"
#include "ps/store/largest.h"
#include "ps/store/placement.h"

/* What a worker sends its gradients as, of all dtypes. */
enum dtype told_gradient_dtype(const struct config_cluster *cluster);

/* Is there a told model? Then answers are of that dtype, too. */
bool told_is_kept(const struct config_cluster *cluster);

/* The bulk of a frame of packed answers is no larger than this, nor are there more ranges. */
enum { TOLD_FRAME_BYTES = 64 * 1024, TOLD_FRAME_RANGES = SMALLER(512, 1) };

/*
 * Packs a piece of up to PACKED_FLOATS differences, and brings `known` up by what that says. `bytes` has LARGEST_ROOM.
 * Returns how many it took, 0: none is worth it; *left is used up. chosen: of the largest, as for largest_pack.
 */
size_t told_tell(uint8_t *bytes, float *left, float *known, size_t n, struct largest *chosen, enum dtype dtype);

/*
 * A whole step's: how `parameters` differ from `known`, which it brings up by what it says. Both are of these spans,
 * one after another; the sink hears of each piece, in ascending order, and may be NULL.
 */
struct teller {
    enum dtype dtype;
    size_t chosen;               /* of the largest: how many each step tells of */
    float *left;                 /* [floats of the spans]: scratch */
    uint8_t piece[LARGEST_ROOM]; /* likewise */
};
struct told_sink {
    void (*piece)(void *context, struct range range, const uint8_t *bytes, size_t size);
    void *context;
};
/* values: of the floats, those that are no padding. left: borrowed. */
void teller_begin(struct teller *teller, const struct config_cluster *cluster, size_t values, float *left);
void teller_tell(struct teller *teller, const float *parameters, float *known, const struct span *spans, int span_count,
                 const struct told_sink *sink);

/*
 * What one piece says, to whoever hears it: at most `size` bytes. Returns how many it took; 0: they make no sense.
 * n: at least 1.
 */
size_t told_learn(float *known, const uint8_t *bytes, size_t size, size_t n, enum dtype dtype);

#endif
