/*
 * Many steps of a network with one hidden layer and few classes in one cooperative launch, one barrier per step.
 *
 * The hidden units are sharded over the blocks: each keeps its columns of the first layer's weights and its rows of the
 * second's, with their slots and averages, in shared memory for the whole call. Every block goes through the whole
 * batch, which it copies into shared memory while still working on the previous batch. The blocks only exchange their
 * parts of the logits, which they add up in global memory: as integers, so that the sum does not depend on the order.
 * After the barrier every block computes the whole (small) softmax itself, and from it its units' deltas, gradients and
 * updates; all blocks keep identical copies of the logits' biases.
 *
 * Three sums rotate, so that nobody waits for one to be cleared: in step s the blocks add to sum s % 3; after the
 * barrier they read it and clear sum (s + 2) % 3, which nobody reads any more and nobody adds to before the next
 * barrier.
 *
 *     step s:  forward (copying batch s + 1) | add | arrive, draw s + 2, await | softmax, backward, update
 *
 * Batches that do not fit into shared memory are processed in chunks, twice: forwards, then backwards from the last
 * one, which is still loaded.
 */
#ifndef CUDA_KERNELS_SHARDED_CUH
#define CUDA_KERNELS_SHARDED_CUH

#include "cuda/kernels/batch.cuh"
#include "cuda/kernels/elements.cuh"
#include "cuda/kernels/machine.cuh"
#include "cuda/kernels/shards.h"

/* --- A block's part --- */

/* Its state in shared memory, and how images get there. */

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

/* --- Steps --- */

/* --- forward --- */

/* sum[r][u] += 16 pixels of image r x their weights. */
template <int UNITS>
static __device__ __forceinline__ void shard_multiply(const uint4 *images[shard<UNITS>::IMAGES], const float *weights,
                                                      uint32_t float_2_23, float (&sum)[shard<UNITS>::IMAGES][UNITS])
{
    uint32_t word[shard<UNITS>::IMAGES][4];
#pragma unroll
    for (int r = 0; r < shard<UNITS>::IMAGES; r++) {
        uint4 words = *images[r];
        word[r][0] = words.x;
        word[r][1] = words.y;
        word[r][2] = words.z;
        word[r][3] = words.w;
    }
#pragma unroll
    for (int i = 0; i < 16; i++) {
        __align__(16) float weight[UNITS];
#pragma unroll
        for (int u = 0; u < UNITS; u += 4) {
            *(float4 *)&weight[u] = *(const float4 *)&weights[i * UNITS + u];
        }
#pragma unroll
        for (int r = 0; r < shard<UNITS>::IMAGES; r++) {
            float x = byte_of(word[r][i / 4], i % 4, float_2_23);
#pragma unroll
            for (int u = 0; u < UNITS; u++) {
                sum[r][u] = __fmaf_rn(x, weight[u], sum[r][u]);
            }
        }
    }
}

/* A chunk through the first layer: each thread has a slice of the pixels of shard<UNITS>::IMAGES images. */
template <int UNITS>
static __device__ __forceinline__ void shard_forward(const struct shard<UNITS> &s, const uint8_t *buffer, int step,
                                                     int first)
{
    typedef struct shard<UNITS> mine;
    const int chunk = s.shards->chunk;
    const int images = min(chunk, s.count(step) - first);
    const int apart = (chunk + mine::IMAGES - 1) / mine::IMAGES; /* a thread's images */
    const int slice = threadIdx.x / apart;
    const int place = threadIdx.x % apart;
    const int pieces = s.stride() / 16;
    const int begin = pieces * slice / s.at().slices;
    const int end = pieces * (slice + 1) / s.at().slices;
    const uint32_t float_2_23 = s.shards->float_2_23;
    float *parts = s.template place<float>(s.at().parts);
    if (slice < s.at().slices && place < images) {
        const uint4 *image[mine::IMAGES];
        __align__(16) float sum[mine::IMAGES][UNITS];
#pragma unroll
        for (int r = 0; r < mine::IMAGES; r++) {
            image[r] = (const uint4 *)(buffer + (size_t)min(place + r * apart, images - 1) * s.stride()) + begin;
#pragma unroll
            for (int u = 0; u < UNITS; u++) {
                sum[r][u] = 0.0f;
            }
        }
#pragma unroll 1
        for (int piece = begin; piece < end; piece++) {
            shard_multiply<UNITS>(image, s.vector(0) + piece * 16 * UNITS, float_2_23, sum);
#pragma unroll
            for (int r = 0; r < mine::IMAGES; r++) {
                image[r]++;
            }
        }
#pragma unroll
        for (int r = 0; r < mine::IMAGES; r++) {
            const int i = place + r * apart;
#pragma unroll
            for (int u = 0; u < UNITS && i < images; u += 4) {
                *(float4 *)&parts[(slice * chunk + i) * UNITS + u] = *(const float4 *)&sum[r][u];
            }
        }
    }
    __syncthreads();
    float *activations = s.template place<float>(s.at().activations) + (size_t)first * UNITS;
    float *outputs = s.template place<float>(s.at().outputs) + (size_t)first * UNITS;
    const struct kernel_network &network = *s.network;
#pragma unroll 1
    for (int e = threadIdx.x; e < images * UNITS; e += SHARD_THREADS) {
        float sum = 0.0f;
#pragma unroll 2
        for (int i = 0; i < s.at().slices; i++) {
            sum += parts[i * chunk * UNITS + e];
        }
        float a = activate(network.activation, sum * (1.0f / 255.0f) + s.vector(0)[s.at().biases + e % UNITS]);
        float out = e % UNITS < s.units() ? a : 0.0f;
        if (network.dropout.threshold > 0) {
            out *= drop_factor(network.dropout, s.source->sampler.task, s.network->progress->first_step + step, 0,
                               first + e / UNITS, s.first_unit() + e % UNITS);
        }
        activations[e] = a;
        outputs[e] = out;
    }
}

/* Adds this block's parts to the shared logits. Blocks begin at different ones, so that few add to the same at once. */
template <int UNITS> static __device__ __forceinline__ void shard_add(const struct shard<UNITS> &s, int step)
{
    const float *outputs = s.template place<float>(s.at().outputs);
    const float *weights = s.vector(0) + s.at().weights2;
    unsigned long long *sums = s.sums(step);
    const int all = s.count(step) * s.classes();
    const int begin = blockIdx.x * all / gridDim.x;
#pragma unroll 1
    for (int i = threadIdx.x; i < all; i += SHARD_THREADS) {
        int e = i + begin < all ? i + begin : i + begin - all;
        int row = s.row_of(e);
        int c = e - row * s.classes();
        float part = 0.0f;
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            part = __fmaf_rn(outputs[row * UNITS + u], weights[u * s.classes() + c], part);
        }
        if (fabsf(part) < SHARD_LIMIT) {
            atomicAdd(&sums[e], (unsigned long long)__float2ll_rn(part * SHARD_FIXED));
        } else {
            atomicAdd(&sums[s.shards->capacity * s.classes()], 1ull);
        }
    }
}

/* --- softmax --- */

/* One row by one thread, as softmax_row; logits become deltas. */
static __device__ __forceinline__ float shard_softmax_row(float *logits, int classes, int label, float scale,
                                                          float smoothing, int *correct)
{
    float z[SHARD_CLASSES];
    float largest = logits[0];
    const float target = logits[label];
    float sum = 0.0f;
    float below = 0.0f;
    int best = 0;
#pragma unroll
    for (int c = 0; c < SHARD_CLASSES; c++) {
        z[c] = c < classes ? logits[c] : 0.0f;
        if (c < classes && !(z[c] <= largest)) {
            largest = z[c];
            best = c;
        }
    }
#pragma unroll
    for (int c = 0; c < SHARD_CLASSES; c++) {
        if (c < classes) {
            below += target - z[c];
            z[c] = expf(z[c] - largest);
            sum += z[c];
        }
    }
    const float factor = scale / sum;
    const float share = smoothing > 0.0f ? scale * smoothing / (float)classes : 0.0f;
#pragma unroll
    for (int c = 0; c < SHARD_CLASSES; c++) {
        if (c < classes) {
            float delta = z[c] * factor - share;
            logits[c] = c == label ? delta - scale * (1.0f - smoothing) : delta;
        }
    }
    *correct = best == label;
    return logf(sum) + (largest - target) + (smoothing > 0.0f ? smoothing * below / (float)classes : 0.0f);
}

/* Counts a step, or keeps the loss that is not finite. */
template <int UNITS>
static __device__ __forceinline__ void shard_count(struct shard<UNITS> &s, int count, bool bad, float loss, int correct)
{
    const double share = loss * (count == (int)s.source->sampler.batch_size ? s.share : 1.0 / count);
    if (bad) {
        s.bad_loss = share;
        return;
    }
    s.last_loss = share;
    s.loss_sum += share;
    s.correct += correct;
    s.images += count;
    s.steps++;
}

/* From the sums of all blocks to deltas. False: the loss is not finite. */
template <int UNITS> static __device__ __forceinline__ bool shard_softmax(struct shard<UNITS> &s, int step)
{
    float *logits = s.template place<float>(s.at().logits);
    const float *biases = s.vector(0) + s.at().biases2;
    const unsigned long long *sums = s.sums(step);
    const int count = s.count(step);
    /* Bypasses the L1 cache, which does not see what other blocks have added. */
    const bool fits = __ldcg(&sums[s.shards->capacity * s.classes()]) == 0;
#pragma unroll 2
    for (int e = threadIdx.x; e < count * s.classes(); e += SHARD_THREADS) {
        logits[e] = (float)(long long)__ldcg(&sums[e]) * (1.0f / SHARD_FIXED) + biases[e - s.row_of(e) * s.classes()];
    }
    __syncthreads();
    const int row = threadIdx.x;
    int correct = 0;
    float loss = 0.0f;
    if (row < count) {
        loss = shard_softmax_row(logits + row * s.classes(), s.classes(), s.labels(step)[row], 1.0f / (float)count,
                                 s.network->loss.smoothing, &correct);
        loss = fits ? loss : INFINITY;
    }
    const bool bad = __syncthreads_or(!isfinite(loss)) != 0;
    shard_count(s, count, bad, loss, correct);
    return !bad;
}

/* --- backward --- */

/* The deltas of this block's units, in place of their activations. */
template <int UNITS> static __device__ __forceinline__ void shard_deltas(const struct shard<UNITS> &s, int step)
{
    float *activations = s.template place<float>(s.at().activations);
    const float *above = s.template place<float>(s.at().logits);
    const float *weights = s.vector(0) + s.at().weights2;
    const struct kernel_network &network = *s.network;
#pragma unroll 1
    for (int e = threadIdx.x; e < s.count(step) * UNITS; e += SHARD_THREADS) {
        int row = e / UNITS;
        int u = e % UNITS;
        float sum = 0.0f;
#pragma unroll 5
        for (int c = 0; c < s.classes(); c++) {
            sum = __fmaf_rn(above[row * s.classes() + c], weights[u * s.classes() + c], sum);
        }
        if (network.dropout.threshold > 0) {
            sum *= drop_factor(network.dropout, s.source->sampler.task, s.network->progress->first_step + step, 0, row,
                               s.first_unit() + u);
        }
        activations[e] = derive(network.activation, activations[e], sum);
    }
}

/*
 * Gradients of all biases and of the second layer's rows, into shared memory in the order of the vectors. Each is a
 * product of two columns, over the batch, by 8 threads; a bias's first column is 1.
 */
template <int UNITS>
static __device__ __forceinline__ void shard_small_gradients(const struct shard<UNITS> &s, int step)
{
    enum { LANES = 8 };
    const float *deltas = s.template place<float>(s.at().activations);
    const float *outputs = s.template place<float>(s.at().outputs);
    const float *above = s.template place<float>(s.at().logits);
    float *small = s.template place<float>(s.at().small);
    const int classes = s.classes();
    const int all = s.at().biases2 + classes - s.at().biases;
    const int lane = threadIdx.x % LANES;
#pragma unroll 1
    for (int first = threadIdx.x / KERNEL_WARP * (KERNEL_WARP / LANES); first < all; first += SHARD_THREADS / LANES) {
        const int i = min(first + (int)threadIdx.x % KERNEL_WARP / LANES, all - 1);
        const int u = s.row_of(max(i - UNITS, 0)); /* UNITS: of the second layer's biases */
        const float *x = i >= UNITS && u < UNITS ? outputs + u : small + all;
        const float *y = i < UNITS ? deltas + i : above + i - UNITS - u * classes;
        const int x_step = i >= UNITS && u < UNITS ? UNITS : 0;
        const int y_step = i < UNITS ? UNITS : classes;
        float sum = 0.0f;
#pragma unroll 4
        for (int row = lane; row < s.count(step); row += LANES) {
            sum = __fmaf_rn(x[row * x_step], y[row * y_step], sum);
        }
#pragma unroll
        for (int lanes = LANES / 2; lanes > 0; lanes /= 2) {
            sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
        }
        if (lane == 0) {
            small[i] = sum;
        }
    }
}

/* sum[p][u] += the gradients of a thread's pixels in a chunk; threads share the pixels, and then the images. */
template <int UNITS>
static __device__ __forceinline__ void shard_backward(const struct shard<UNITS> &s, const uint8_t *buffer, int step,
                                                      int first, float (&sum)[shard<UNITS>::PIXELS][UNITS])
{
    enum { WORDS = shard<UNITS>::PIXELS / 4 };
    const int across = s.stride() / shard<UNITS>::PIXELS;
    const int slice = threadIdx.x / across;
    const int images = min(s.shards->chunk, s.count(step) - first);
    const float *deltas = s.template place<float>(s.at().activations) + (size_t)first * UNITS;
    const uint8_t *pixels = buffer + threadIdx.x % across * shard<UNITS>::PIXELS;
    const int end = slice < s.at().image_slices ? images * (slice + 1) / s.at().image_slices : 0;
    const uint32_t float_2_23 = s.shards->float_2_23;
#pragma unroll 2
    for (int i = images * slice / s.at().image_slices; i < end; i++) {
        __align__(16) float delta[UNITS];
        __align__(8) uint32_t word[WORDS];
#pragma unroll
        for (int u = 0; u < UNITS; u += 4) {
            *(float4 *)&delta[u] = *(const float4 *)&deltas[i * UNITS + u];
        }
        if constexpr (WORDS == 2) {
            *(uint2 *)word = *(const uint2 *)&pixels[(size_t)i * s.stride()];
        } else {
            word[0] = *(const uint32_t *)&pixels[(size_t)i * s.stride()];
        }
#pragma unroll
        for (int p = 0; p < shard<UNITS>::PIXELS; p++) {
            float x = byte_of(word[p / 4], p % 4, float_2_23);
#pragma unroll
            for (int u = 0; u < UNITS; u++) {
                sum[p][u] = __fmaf_rn(x, delta[u], sum[p][u]);
            }
        }
    }
}

/*
 * Writes a thread's sums over a slice of the images: [slices][PIXELS][pixels / PIXELS, units], so that neighbouring
 * threads write neighbouring places.
 */
template <int UNITS>
static __device__ __forceinline__ void shard_put_parts(const struct shard<UNITS> &s, float *parts,
                                                       const float (&sum)[shard<UNITS>::PIXELS][UNITS])
{
    enum { PIXELS = shard<UNITS>::PIXELS };
    const int across = s.stride() / PIXELS;
    const int slice = threadIdx.x / across;
    const int place = threadIdx.x % across;
    if (slice < s.at().image_slices) {
#pragma unroll
        for (int p = 0; p < PIXELS; p++) {
#pragma unroll
            for (int u = 0; u < UNITS; u += 4) {
                *(float4 *)&parts[((slice * PIXELS + p) * across + place) * UNITS + u] = *(const float4 *)&sum[p][u];
            }
        }
    }
}

/* The first slice's sum for element `e` of the first layer's weights. */
template <int UNITS>
static __device__ __forceinline__ const float *shard_part(const struct shard<UNITS> &s, const float *parts, int e)
{
    enum { PIXELS = shard<UNITS>::PIXELS };
    const int pixel = e / UNITS;
    return parts + (pixel % PIXELS * (s.stride() / PIXELS) + pixel / PIXELS) * UNITS + e % UNITS;
}

/* The gradient of element `e` of this block's vectors. */
template <int UNITS>
static __device__ __forceinline__ float shard_gradient(const struct shard<UNITS> &s, const float *parts, int e)
{
    if (e >= s.at().biases) {
        return s.template place<float>(s.at().small)[e - s.at().biases];
    }
    const int slice = s.stride() * UNITS;
    const float *part = shard_part(s, parts, e);
    float gradient = 0.0f;
#pragma unroll 5
    for (int i = 0; i < s.at().image_slices; i++) {
        gradient += part[i * slice];
    }
    return gradient * (1.0f / 255.0f);
}

/* Plain gradient descent, of four weights at once. Units that do not exist have a gradient of 0. */
template <int UNITS>
static __device__ __forceinline__ void shard_descend(const struct shard<UNITS> &s, const float *parts, float rate)
{
    const int slice = s.stride() * UNITS;
#pragma unroll 1
    for (int e = 4 * threadIdx.x; e < s.pixels() * UNITS; e += 4 * SHARD_THREADS) {
        const float *part = shard_part(s, parts, e);
        float4 *parameters = (float4 *)&s.vector(0)[e];
        float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 5
        for (int i = 0; i < s.at().image_slices; i++) {
            const float4 more = *(const float4 *)&part[i * slice];
            sum = {sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w};
        }
        const float scale = 1.0f / 255.0f;
        float4 to = *parameters;
        to.x -= rate * (sum.x * scale);
        to.y -= rate * (sum.y * scale);
        to.z -= rate * (sum.z * scale);
        to.w -= rate * (sum.w * scale);
        *parameters = to;
    }
    const float *small = s.template place<float>(s.at().small);
    float *parameters = s.vector(0) + s.at().biases;
#pragma unroll 1
    for (int e = threadIdx.x; e < s.at().biases2 + s.classes() - s.at().biases; e += SHARD_THREADS) {
        parameters[e] -= rate * small[e];
    }
}

/* Applies all gradients: those of one variable after the other, so that they share one update. */
template <int UNITS>
static __device__ __forceinline__ void shard_update(const struct shard<UNITS> &s, const float *parts)
{
    const struct update *updates = s.template place<struct update>(s.at().updates);
    if (optimizer_is_plain(&updates[0]) && optimizer_is_plain(&updates[1])) {
        shard_descend(s, parts, updates[1].learning_rate);
        return;
    }
#pragma unroll 1
    for (int i = 0; i < 4; i++) {
        const struct update update = updates[i % 2 == 0];
        const int begin = i == 0 ? 0 : i == 1 ? s.at().biases : i == 2 ? s.at().weights2 : s.at().biases2;
        const int end = begin + (i == 0   ? s.pixels() * UNITS
                                 : i == 1 ? s.units()
                                 : i == 2 ? s.units() * s.classes()
                                          : s.classes());
#pragma unroll 1
        for (int e = begin + threadIdx.x; e < end; e += SHARD_THREADS) {
            if (i > 0 || e % UNITS < s.units()) {
                optimizer_element(&update, shard_gradient(s, parts, e), s.vector(0), s.vector(1), s.vector(2),
                                  s.vector(3), e);
            }
        }
    }
}

template <int UNITS>
static __device__ __forceinline__ void shard_learn(struct shard<UNITS> &s, uint8_t *buffer, int step, int chunks)
{
    shard_deltas(s, step);
    __syncthreads();
    shard_small_gradients(s, step);
    __align__(16) float sum[shard<UNITS>::PIXELS][UNITS];
#pragma unroll
    for (int p = 0; p < shard<UNITS>::PIXELS; p++) {
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            sum[p][u] = 0.0f;
        }
    }
#pragma unroll 1
    for (int i = 0; i < chunks; i++) {
        if (i > 0) {
            buffer = shard_next(s, step, chunks, chunks - 1 + i);
        }
        shard_backward(s, buffer, step, (chunks - 1 - i) * s.shards->chunk, sum);
    }
    __syncthreads();
    float *parts = s.at().apart ? s.template place<float>(s.at().parts) : (float *)buffer;
    shard_put_parts(s, parts, sum);
    __syncthreads();
    shard_update(s, parts);
}

/* --- all together --- */

/* One thread per word of a step's two updates; not the first ones, which wait for other blocks. */
template <int UNITS> static __device__ __forceinline__ void shard_fetch_updates(const struct shard<UNITS> &s, int step)
{
    enum { WORDS = 2 * sizeof(struct update) / 4 };
    static_assert(KERNEL_WARP + WORDS <= SHARD_THREADS, "one thread per word");
    const uint32_t *from = (const uint32_t *)(s.network->updates + 2 * step);
    const int i = threadIdx.x - KERNEL_WARP;
    if (i >= 0 && i < WORDS) {
        s.template place<uint32_t>(s.at().updates)[i] = from[i];
    }
}

/* From the images to all logits; returns the buffer of the last chunk. */
template <int UNITS>
static __device__ __forceinline__ uint8_t *shard_logits(struct shard<UNITS> &s, int step, int chunks)
{
    uint8_t *buffer = nullptr;
#pragma unroll 1
    for (int i = 0; i < chunks; i++) {
        buffer = shard_next(s, step, chunks, i);
        shard_forward(s, buffer, step, i * s.shards->chunk);
    }
    __syncthreads();
    shard_add(s, step);
    __syncthreads();
    if (threadIdx.x == 0) {
        counter_arrive(s.shards->arrived);
    }
    if (step + 2 < s.shards->steps) {
        shard_draw(s, step + 2);
    }
    shard_fetch_updates(s, step);
    if (threadIdx.x == 0) {
        counter_await(s.shards->arrived, (uint32_t)(step + 1) * (uint32_t)s.shards->blocks);
    }
    __syncthreads();
    return buffer;
}

/* What the host wants to know; by one block. */
template <int UNITS> static __device__ __forceinline__ void shard_report(const struct shard<UNITS> &s, bool stopped)
{
    double *scratch = s.template place<double>(s.at().scratch);
    struct kernel_progress *progress = s.network->progress;
    const double loss_sum = block_sum<SHARD_THREADS>(s.loss_sum, scratch);
    const double last_loss = block_sum<SHARD_THREADS>(s.last_loss, scratch);
    const double bad_loss = block_sum<SHARD_THREADS>(s.bad_loss, scratch);
    const double correct = block_sum<SHARD_THREADS>(s.correct, scratch);
    if (threadIdx.x == 0) {
        progress->steps = s.steps;
        progress->images = s.images;
        progress->correct = (int64_t)correct;
        progress->loss_sum = loss_sum;
        progress->last_loss = last_loss;
        progress->bad_loss = bad_loss;
        progress->stopped = stopped;
    }
}

template <int UNITS>
static __device__ __forceinline__ void train_sharded(const struct kernel_network &network,
                                                     const struct kernel_source &source,
                                                     const struct kernel_shards &shards)
{
    struct shard<UNITS> s;
    bool stopped = false;
    shard_begin(s, network, source, shards);
#pragma unroll 1
    for (int step = 0; step < 2 && step < shards.steps; step++) {
        shard_draw(s, step);
    }
    __syncthreads();
    shard_load(s, 0, 0);
#pragma unroll 1
    for (int step = 0; step < shards.steps && !stopped; step++) {
        int chunks = (s.count(step) + shards.chunk - 1) / shards.chunk;
        uint8_t *buffer = shard_logits(s, step, chunks);
        unsigned long long *clear = s.sums(step + 2);
#pragma unroll 1
        for (int e = blockIdx.x * SHARD_THREADS + threadIdx.x; e <= shards.capacity * s.classes();
             e += shards.blocks * SHARD_THREADS) {
            clear[e] = 0;
        }
        stopped = !shard_softmax(s, step);
        if (!stopped) {
            shard_learn(s, buffer, step, chunks);
        }
    }
    copies_wait();
    __syncthreads();
    shard_copy(s, true);
    if (blockIdx.x == 0) {
        shard_report(s, stopped);
    }
}

#endif
