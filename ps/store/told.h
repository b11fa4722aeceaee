/*
 * The model that workers were told, if parameters are sent packed: in synchronous training with wire_dtype int8 or
 * wire_top (DTYPE_INT8 and DTYPE_LARGEST_...). A shard keeps one told model for all workers: after each step it sends
 * the difference of the parameters from it, packed like gradients (ps/store/int8.h, ps/store/largest.h), and a worker
 * that knew the told model before the step knows it afterwards. So packing errors are not lost: they are part of the
 * next difference (Tang et al., "DoubleSqueeze: Parallel Stochastic Gradient Descent with Double-Pass Error-Compensated
 * Compression", 2019). A worker that does not know that model gets all of it, as float32.
 *
 * Both sides update it by told_learn, and so to the same bits; not while denormals are flushed (optimizer_enter).
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

/* The dtype in which a worker sends its gradients. */
enum dtype told_gradient_dtype(const struct config_cluster *cluster);

/* True if there is a told model; answers then have that dtype, too. */
bool told_is_kept(const struct config_cluster *cluster);

/* Limits on the bulk of a frame of packed answers, and on its ranges. */
enum { TOLD_FRAME_BYTES = 64 * 1024, TOLD_FRAME_RANGES = SMALLER(512, 1) };

/*
 * Packs a piece of up to PACKED_FLOATS differences, and updates `known` accordingly. `bytes` has LARGEST_ROOM. Returns
 * the bytes used, 0: no difference is worth sending; `left` is overwritten. chosen: for the largest, as for
 * largest_pack.
 */
size_t told_tell(uint8_t *bytes, float *left, float *known, size_t n, struct largest *chosen, enum dtype dtype);

/*
 * Packs a whole step: the difference of `parameters` from `known`, which is updated accordingly. Both hold these spans
 * one after another; the sink, which may be NULL, gets the pieces in ascending order.
 */
struct teller {
    enum dtype dtype;
    size_t chosen;               /* for the largest: how many are sent per step */
    float *left;                 /* [floats of the spans]: scratch */
    uint8_t piece[LARGEST_ROOM]; /* likewise */
};
struct told_sink {
    void (*piece)(void *context, struct range range, const uint8_t *bytes, size_t size);
    void *context;
};
/* values: the number of floats without padding. left: borrowed. */
void teller_begin(struct teller *teller, const struct config_cluster *cluster, size_t values, float *left);
void teller_tell(struct teller *teller, const float *parameters, float *known, const struct span *spans, int span_count,
                 const struct told_sink *sink);

/* Updates `known` by one received piece, of at most `size` bytes. Returns the bytes read; 0: invalid. n: at least 1. */
size_t told_learn(float *known, const uint8_t *bytes, size_t size, size_t n, enum dtype dtype);

#endif
