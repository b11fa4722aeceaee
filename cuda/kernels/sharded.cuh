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
 *     step s:  forward (copying batch s + 1) | add | arrive | draw s + 2 | await | softmax, backward, update
 *
 * Batches that do not fit into shared memory are processed in chunks, twice: forwards, then backwards from the last
 * one, which is still loaded.
 */
#ifndef CUDA_KERNELS_SHARDED_CUH
#define CUDA_KERNELS_SHARDED_CUH

#include "cuda/kernels/shard.cuh"

/* Byte i of a word as a float: inserted into the low bits of 2^23, which is then subtracted. */
static __device__ __forceinline__ float byte_of(uint32_t word, int i)
{
    return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7650u + i)) - 8388608.0f;
}

/* --- forward --- */

/* sum[r][u] += 16 pixels of image r x their weights. */
template <int UNITS>
static __device__ __forceinline__ void shard_multiply(const uint4 *images[shard<UNITS>::IMAGES], const float *weights,
                                                      float (&sum)[shard<UNITS>::IMAGES][UNITS])
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
            float x = byte_of(word[r][i / 4], i % 4);
#pragma unroll
            for (int u = 0; u < UNITS; u++) {
                sum[r][u] = __fmaf_rn(x, weight[u], sum[r][u]);
            }
        }
    }
}

/* A chunk through the first layer: each warp has shard<UNITS>::GROUP images and a slice of the pixels. */
template <int UNITS>
static __device__ __forceinline__ void shard_forward(const struct shard<UNITS> &s, const uint8_t *buffer, int step,
                                                     int first)
{
    const int images = min(s.shards->chunk, s.count(step) - first);
    const int warp = threadIdx.x / KERNEL_WARP;
    const int group = warp % s.at().groups;
    const int slice = warp / s.at().groups;
    const int pieces = s.stride() / 16;
    const int begin = pieces * slice / s.at().slices;
    const int end = pieces * (slice + 1) / s.at().slices;
    float *parts = s.template place<float>(s.at().parts);
    if (group * shard<UNITS>::GROUP < images) {
        const uint4 *image[shard<UNITS>::IMAGES];
        float sum[shard<UNITS>::IMAGES][UNITS];
#pragma unroll
        for (int r = 0; r < shard<UNITS>::IMAGES; r++) {
            int i = group * shard<UNITS>::GROUP + r * KERNEL_WARP + threadIdx.x % KERNEL_WARP;
            image[r] = (const uint4 *)(buffer + (size_t)min(i, images - 1) * s.stride()) + begin;
#pragma unroll
            for (int u = 0; u < UNITS; u++) {
                sum[r][u] = 0.0f;
            }
        }
#pragma unroll 1
        for (int piece = begin; piece < end; piece++) {
            shard_multiply<UNITS>(image, s.vector(0) + piece * 16 * UNITS, sum);
#pragma unroll
            for (int r = 0; r < shard<UNITS>::IMAGES; r++) {
                image[r]++;
            }
        }
#pragma unroll
        for (int r = 0; r < shard<UNITS>::IMAGES; r++) {
            int i = group * shard<UNITS>::GROUP + r * KERNEL_WARP + threadIdx.x % KERNEL_WARP;
#pragma unroll
            for (int u = 0; u < UNITS && i < images; u++) {
                parts[(slice * s.shards->chunk + i) * UNITS + u] = sum[r][u];
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
            sum += parts[i * s.shards->chunk * UNITS + e];
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

/* Adds this block's parts to the shared logits. */
template <int UNITS> static __device__ __forceinline__ void shard_add(const struct shard<UNITS> &s, int step)
{
    const float *outputs = s.template place<float>(s.at().outputs);
    const float *weights = s.vector(0) + s.at().weights2;
    unsigned long long *sums = s.sums(step);
#pragma unroll 1
    for (int e = threadIdx.x; e < s.count(step) * s.classes(); e += SHARD_THREADS) {
        int row = e / s.classes();
        int c = e % s.classes();
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
    int best = 0;
#pragma unroll 2
    for (int c = 1; c < classes; c++) {
        best = !(logits[c] <= logits[best]) ? c : best;
    }
    const float largest = logits[best];
    const float target = logits[label];
    float sum = 0.0f;
    float below = 0.0f;
#pragma unroll 2
    for (int c = 0; c < classes; c++) {
        below += target - logits[c];
        float e = expf(logits[c] - largest);
        logits[c] = e;
        sum += e;
    }
    const float share = smoothing > 0.0f ? scale * smoothing / (float)classes : 0.0f;
#pragma unroll 2
    for (int c = 0; c < classes; c++) {
        float delta = logits[c] / sum * scale - share;
        logits[c] = c == label ? delta - scale * (1.0f - smoothing) : delta;
    }
    *correct = best == label;
    return logf(sum) + (largest - target) + (smoothing > 0.0f ? smoothing * below / (float)classes : 0.0f);
}

/*
 * From the sums of all blocks to deltas. True: the loss is not finite. Replaces the labels by whether each answer was
 * correct.
 */
template <int UNITS> static __device__ __forceinline__ bool shard_softmax(const struct shard<UNITS> &s, int step)
{
    float *logits = s.template place<float>(s.at().logits);
    float *losses = s.template place<float>(s.at().losses);
    const float *biases = s.vector(0) + s.at().biases2;
    int32_t *labels = s.labels(step);
    const unsigned long long *sums = s.sums(step);
    const int count = s.count(step);
    /* Bypasses the L1 cache, which does not see what other blocks have added. */
    bool bad = __ldcg(&sums[s.shards->capacity * s.classes()]) != 0;
#pragma unroll 2
    for (int e = threadIdx.x; e < count * s.classes(); e += SHARD_THREADS) {
        logits[e] = (float)(long long)__ldcg(&sums[e]) * (1.0f / SHARD_FIXED) + biases[e % s.classes()];
    }
    __syncthreads();
#pragma unroll 1
    for (int row = threadIdx.x; row < count; row += SHARD_THREADS) {
        int correct;
        float loss = shard_softmax_row(logits + row * s.classes(), s.classes(), labels[row], 1.0f / (float)count,
                                       s.network->loss.smoothing, &correct);
        losses[row] = bad ? INFINITY : loss;
        labels[row] = correct;
        bad |= !isfinite(loss);
    }
    return __syncthreads_or(bad) != 0;
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
#pragma unroll 2
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

/* Gradients of the second layer's rows and of all biases, one warp each; applied at once. */
template <int UNITS> static __device__ __forceinline__ void shard_update_small(const struct shard<UNITS> &s, int step)
{
    const float *deltas = s.template place<float>(s.at().activations);
    const float *outputs = s.template place<float>(s.at().outputs);
    const float *above = s.template place<float>(s.at().logits);
    const int weights = UNITS * s.classes();
    const int lane = threadIdx.x % KERNEL_WARP;
#pragma unroll 1
    for (int i = threadIdx.x / KERNEL_WARP; i < weights + s.classes() + UNITS; i += SHARD_WARPS) {
        float sum = 0.0f;
#pragma unroll 2
        for (int row = lane; row < s.count(step); row += KERNEL_WARP) {
            if (i < weights) {
                sum =
                    __fmaf_rn(outputs[row * UNITS + i / s.classes()], above[row * s.classes() + i % s.classes()], sum);
            } else if (i < weights + s.classes()) {
                sum += above[row * s.classes() + i - weights];
            } else {
                sum += deltas[row * UNITS + i - weights - s.classes()];
            }
        }
        sum = warp_sum(sum);
        int at = i < weights                 ? s.at().weights2 + i
                 : i < weights + s.classes() ? s.at().biases2 + i - weights
                                             : s.at().biases + i - weights - s.classes();
        bool real = i < weights ? i / s.classes() < s.units() : i < weights + s.classes() + s.units();
        if (lane == 0 && real) {
            s.update(i < weights, sum, at);
        }
    }
}

/* sum[p][u] += the gradients of a thread's four pixels in a chunk; threads share the pixels, and then the images. */
template <int UNITS>
static __device__ __forceinline__ void shard_backward(const struct shard<UNITS> &s, const uint8_t *buffer, int step,
                                                      int first, float (&sum)[4][UNITS])
{
    const int words = s.stride() / 4;
    const int slice = threadIdx.x / words;
    const int images = min(s.shards->chunk, s.count(step) - first);
    const float *deltas = s.template place<float>(s.at().activations) + (size_t)first * UNITS;
    const uint32_t *word = (const uint32_t *)buffer + threadIdx.x % words;
    const int end = slice < s.at().image_slices ? images * (slice + 1) / s.at().image_slices : 0;
#pragma unroll 2
    for (int i = images * slice / s.at().image_slices; i < end; i++) {
        __align__(16) float delta[UNITS];
#pragma unroll
        for (int u = 0; u < UNITS; u += 4) {
            *(float4 *)&delta[u] = *(const float4 *)&deltas[i * UNITS + u];
        }
        uint32_t pixels = word[(size_t)i * words];
#pragma unroll
        for (int p = 0; p < 4; p++) {
            float x = byte_of(pixels, p);
#pragma unroll
            for (int u = 0; u < UNITS; u++) {
                sum[p][u] = __fmaf_rn(x, delta[u], sum[p][u]);
            }
        }
    }
}

/* Adds up the image slices, and applies the gradient to this block's columns of the first layer. */
template <int UNITS>
static __device__ __forceinline__ void shard_update_first(const struct shard<UNITS> &s, const float (&sum)[4][UNITS])
{
    float *parts = s.template place<float>(s.at().parts);
    const int words = s.stride() / 4;
    const int slice = threadIdx.x / words;
    const int word = threadIdx.x % words;
    if (slice < s.at().image_slices) {
#pragma unroll
        for (int p = 0; p < 4; p++) {
#pragma unroll
            for (int u = 0; u < UNITS; u++) {
                parts[(slice * s.stride() + 4 * word + p) * UNITS + u] = sum[p][u];
            }
        }
    }
    __syncthreads();
#pragma unroll 1
    for (int e = threadIdx.x; e < s.pixels() * UNITS; e += SHARD_THREADS) {
        float gradient = 0.0f;
#pragma unroll 2
        for (int i = 0; i < s.at().image_slices; i++) {
            gradient += parts[i * s.stride() * UNITS + e];
        }
        if (e % UNITS < s.units()) {
            s.update(true, gradient * (1.0f / 255.0f), e);
        }
    }
}

template <int UNITS>
static __device__ __forceinline__ void shard_learn(struct shard<UNITS> &s, const uint8_t *buffer, int step, int chunks)
{
    shard_deltas(s, step);
    __syncthreads();
    shard_update_small(s, step);
    float sum[4][UNITS];
#pragma unroll
    for (int p = 0; p < 4; p++) {
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
    shard_update_first(s, sum);
}

/* --- all together --- */

/* One thread per word of a step's two updates. */
template <int UNITS> static __device__ __forceinline__ void shard_fetch_updates(const struct shard<UNITS> &s, int step)
{
    static_assert(2 * sizeof(struct update) / 4 <= SHARD_THREADS, "one thread per word");
    const uint32_t *from = (const uint32_t *)(s.network->updates + 2 * step);
    if (threadIdx.x < 2 * sizeof(struct update) / 4) {
        s.template place<uint32_t>(s.at().updates)[threadIdx.x] = from[threadIdx.x];
    }
}

/* From the images to all logits; returns the buffer of the last chunk. */
template <int UNITS>
static __device__ __forceinline__ const uint8_t *shard_logits(struct shard<UNITS> &s, int step, int chunks)
{
    const uint8_t *buffer = nullptr;
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

template <int UNITS>
static __device__ __forceinline__ void train_sharded(const struct kernel_network &network,
                                                     const struct kernel_source &source,
                                                     const struct kernel_shards &shards)
{
    struct shard<UNITS> s;
    shard_begin(s, network, source, shards);
#pragma unroll 1
    for (int step = 0; step < 2 && step < shards.steps; step++) {
        shard_draw(s, step);
    }
    __syncthreads();
    shard_load(s, 0, 0);
#pragma unroll 1
    for (int step = 0; step < shards.steps; step++) {
        int chunks = (s.count(step) + shards.chunk - 1) / shards.chunk;
        const uint8_t *buffer = shard_logits(s, step, chunks);
        unsigned long long *clear = s.sums(step + 2);
#pragma unroll 1
        for (int e = blockIdx.x * SHARD_THREADS + threadIdx.x; e <= shards.capacity * s.classes();
             e += shards.blocks * SHARD_THREADS) {
            clear[e] = 0;
        }
        bool bad = shard_softmax(s, step);
        if (blockIdx.x == 0) {
            double loss;
            int right;
            sum_losses(s.template place<float>(s.at().losses), s.labels(step), s.count(step),
                       s.template place<double>(s.at().scratch), &loss, &right);
            if (threadIdx.x == 0) {
                network.progress->count = s.count(step);
                record_batch(network.progress, 0, 1, loss, right);
            }
        }
        if (bad) {
            break;
        }
        shard_learn(s, buffer, step, chunks);
    }
    copies_wait();
    __syncthreads();
    shard_copy(s, true);
}

#endif
