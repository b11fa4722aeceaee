/*
 * The model as it was sent to workers, if parameters travel packed: in synchronous training with wire_dtype int8 or
 * wire_top (DTYPE_INT8 and DTYPE_LARGEST_...). A shard keeps one sent model for all workers: after each step it sends
 * the difference of the parameters from it, packed like gradients (ps/store/int8.h, ps/store/largest.h), and a worker
 * that knew the sent model before the step knows it afterwards. So packing errors are not lost: they are part of the
 * next difference (Tang et al., "DoubleSqueeze: Parallel Stochastic Gradient Descent with Double-Pass Error-Compensated
 * Compression", 2019). A worker that does not know that model gets all of it, as float32.
 *
 * Both sides update it by sent_model_apply, and so to the same bits; not while denormals are flushed (optimizer_enter).
 */
#ifndef PS_STORE_SENT_MODEL_H
#define PS_STORE_SENT_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/config.h"
#include "base/simulation.h"
#include "net/message.h"
#include "ps/store/largest.h"
#include "ps/store/placement.h"

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
