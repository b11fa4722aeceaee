/* One block's part of sharded training (sharded.cuh): its state in shared memory, and how images get there. */
#ifndef CUDA_KERNELS_SHARD_CUH
#define CUDA_KERNELS_SHARD_CUH

#include "cuda/kernels/batch.cuh"
#include "cuda/kernels/elements.cuh"
#include "cuda/kernels/machine.cuh"
#include "cuda/kernels/shards.h"

/* What every thread of a block knows. */
template <int UNITS> struct shard {
    enum { IMAGES = SHARD_SUMS / UNITS, PIXELS = SHARD_GRADIENTS / UNITS }; /* of a thread, at once */
    const struct kernel_network *network;
    const struct kernel_source *source;
    const struct kernel_shards *shards;
    char *memory;
    uint32_t position;     /* of the next batch, in its epoch's order */
    uint32_t loaded;       /* chunks so far; they alternate between two buffers */
    int64_t steps, images; /* so far */
    /* Of this thread's images, one in each batch. Losses are divided by the batch's size: they add up to its mean. */
    double loss_sum, last_loss, bad_loss;
    int correct;
    double share; /* 1 / the size of a whole batch */

    template <class T> __device__ __forceinline__ T *place(uint32_t bytes) const
    {
        return (T *)(memory + bytes);
    }
    __device__ __forceinline__ const struct shard_layout &at() const
    {
        return shards->at;
    }
    __device__ __forceinline__ float *vector(int which) const
    {
        return place<float>(shards->at.vectors[which]);
    }
    __device__ __forceinline__ int pixels() const
    {
        return network->layer[0].in;
    }
    __device__ __forceinline__ int stride() const
    {
        return network->image_stride;
    }
    __device__ __forceinline__ int classes() const
    {
        return network->layer[1].out;
    }
    /* The first of this block's hidden units, and how many of UNITS exist. */
    __device__ __forceinline__ int first_unit() const
    {
        return blockIdx.x * UNITS;
    }
    __device__ __forceinline__ int units() const
    {
        return min(UNITS, network->layer[0].out - first_unit());
    }
    /* Element `e` of [.., classes] is in row e / classes. */
    __device__ __forceinline__ int row_of(int e) const
    {
        return (int)((uint32_t)e * shards->per_class >> 20);
    }
    __device__ __forceinline__ int32_t *indexes(int step) const
    {
        return place<int32_t>(at().indexes) + step % SHARD_TURNS * shards->capacity;
    }
    __device__ __forceinline__ int32_t *labels(int step) const
    {
        return place<int32_t>(at().labels) + step % SHARD_TURNS * shards->capacity;
    }
    __device__ __forceinline__ struct shard_drawn *drawn() const
    {
        return place<struct shard_drawn>(shards->at.drawn);
    }
    __device__ __forceinline__ int count(int step) const
    {
        return drawn()->counts[step % SHARD_TURNS];
    }
    __device__ __forceinline__ unsigned long long *sums(int step) const
    {
        return (unsigned long long *)shards->logits + step % SHARD_TURNS * (shards->capacity * classes() + 1);
    }
    __device__ __forceinline__ uint8_t *image_buffer(uint32_t load) const
    {
        return place<uint8_t>(at().images) + (size_t)(load % 2) * shards->chunk * stride();
    }
};

/* --- state --- */

/* Maps element `i` of a block's vectors to the network's; false: padding. */
template <int UNITS>
static __device__ __forceinline__ bool shard_global(const struct shard<UNITS> &s, int i, uint64_t *at)
{
    const struct kernel_layer *layer = s.network->layer;
    if (i < s.at().biases) {
        *at = layer[0].weights + (uint64_t)(i / UNITS) * layer[0].stride + s.first_unit() + i % UNITS;
        return i / UNITS < s.pixels() && i % UNITS < s.units();
    }
    if (i < s.at().weights2) {
        i -= s.at().biases;
        *at = layer[0].biases + s.first_unit() + i;
        return i < s.units();
    }
    if (i < s.at().biases2) {
        i -= s.at().weights2;
        *at = layer[1].weights + (uint64_t)(s.first_unit() + i / s.classes()) * layer[1].stride + i % s.classes();
        return i / s.classes() < s.units();
    }
    i -= s.at().biases2;
    *at = layer[1].biases + i;
    return i < s.classes();
}

template <int UNITS>
static __device__ __forceinline__ void shard_copy_vector(const struct shard<UNITS> &s, float *global, float *local,
                                                         bool back)
{
#pragma unroll 1
    for (int i = threadIdx.x; global != nullptr && i < s.at().floats; i += SHARD_THREADS) {
        uint64_t at;
        bool real = shard_global(s, i, &at);
        if (back) {
            if (real && (i < s.at().biases2 || blockIdx.x == 0)) {
                global[at] = local[i];
            }
        } else {
            local[i] = real ? global[at] : 0.0f;
        }
    }
}

template <int UNITS> static __device__ __forceinline__ void shard_copy(const struct shard<UNITS> &s, bool back)
{
    const struct kernel_vectors &global = s.network->vectors;
    float *const of[4] = {global.parameters, global.slot0, global.slot1, global.averages};
#pragma unroll 1
    for (int i = 0; i < 4; i++) {
        shard_copy_vector(s, of[i], s.vector(i), back);
    }
}

template <int UNITS>
static __device__ __forceinline__ void shard_begin(struct shard<UNITS> &s, const struct kernel_network &network,
                                                   const struct kernel_source &source,
                                                   const struct kernel_shards &shards)
{
    s.network = &network;
    s.source = &source;
    s.shards = &shards;
    s.memory = (char *)shared_memory();
    s.loaded = 0;
    s.share = 1.0 / source.sampler.batch_size;
    s.loss_sum = s.last_loss = s.bad_loss = 0.0;
    s.steps = s.images = 0;
    s.correct = 0;
    const int64_t step = network.progress->first_step;
    const int64_t batches = sampler_epoch_batches(&source.sampler);
    s.position = (uint32_t)(step % batches * source.sampler.batch_size);
    if (threadIdx.x == 0) {
        s.drawn()->epoch = step / batches;
        batch_order_make(&s.drawn()->order, source.sampler, step / batches);
        s.template place<float>(s.at().small)[s.at().biases2 + s.classes() - s.at().biases] = 1.0f;
    }
    shard_copy(s, false);
    __syncthreads();
}

/* --- batches --- */

/*
 * Draws the batch of `step` of this call; must be called for every step in turn. A barrier must come before it is read.
 * Small batches are left to the last threads: the first one is the one that waits for other blocks.
 */
template <int UNITS> static __device__ __forceinline__ void shard_draw(struct shard<UNITS> &s, int step)
{
    const struct sampler &sampler = s.source->sampler;
    if (s.position >= sampler.examples) {
        s.position = 0;
        __syncthreads();
        if (threadIdx.x == 0) {
            s.drawn()->epoch++;
            batch_order_make(&s.drawn()->order, sampler, s.drawn()->epoch);
        }
        __syncthreads();
    }
    const int count = (int)min(sampler.batch_size, sampler.examples - s.position);
    if (threadIdx.x == SHARD_THREADS - 1) {
        s.drawn()->counts[step % SHARD_TURNS] = count;
    }
    int32_t *indexes = s.indexes(step);
    int32_t *labels = s.labels(step);
#pragma unroll 1
    for (int i = SHARD_THREADS - 1 - threadIdx.x; i < count; i += SHARD_THREADS) {
        int32_t index = batch_index(&s.drawn()->order, s.position + i);
        indexes[i] = index;
        labels[i] = s.source->labels[index];
    }
    s.position += sampler.batch_size;
}

/* Starts copying images [first, first + chunk) of a step's batch into the next buffer. */
template <int UNITS> static __device__ __forceinline__ void shard_load(struct shard<UNITS> &s, int step, int first)
{
    const int32_t *indexes = s.indexes(step);
    uint8_t *to = s.image_buffer(s.loaded);
    s.loaded++;
    const int pieces = s.stride() / KERNEL_IMAGE_ALIGN;
    const int images = min(s.shards->chunk, s.count(step) - first);
    /* A warp copies whole images, so that its accesses coalesce. */
#pragma unroll 1
    for (int i = threadIdx.x / KERNEL_WARP; i < images; i += SHARD_WARPS) {
        const uint8_t *from = s.source->images + (size_t)indexes[first + i] * s.stride();
#pragma unroll 1
        for (int piece = threadIdx.x % KERNEL_WARP; piece < pieces; piece += KERNEL_WARP) {
            copy_start(to + (size_t)i * s.stride() + piece * KERNEL_IMAGE_ALIGN, from + piece * KERNEL_IMAGE_ALIGN);
        }
    }
}

/* Waits for the chunk requested last, of a step's `turn`th use; requests the next; returns its buffer. */
template <int UNITS>
static __device__ __forceinline__ uint8_t *shard_next(struct shard<UNITS> &s, int step, int chunks, int turn)
{
    copies_wait();
    __syncthreads(); /* all copies have arrived, and no thread uses the other buffer any more */
    uint8_t *buffer = s.image_buffer(s.loaded - 1);
    const bool same = turn + 1 < 2 * chunks - 1;
    const int chunk = !same ? 0 : turn + 1 < chunks ? turn + 1 : 2 * chunks - 3 - turn;
    if (same || step + 1 < s.shards->steps) {
        shard_load(s, step + !same, chunk * s.shards->chunk);
    }
    return buffer;
}

#endif
