/* Passes over a batch, and over the gradient of the whole network. */
#ifndef CUDA_KERNELS_BATCH_CUH
#define CUDA_KERNELS_BATCH_CUH

#include "cuda/kernels/elements.cuh"
#include "cuda/kernels/machine.cuh"

/* --- The beginning and the end of a forward pass --- */

/* The beginning and the end of a batch's forward pass: drawing its examples, and computing the loss. */

/* These two are called rarely: not inlining them saves code. */
inline __device__ __noinline__ void batch_order_make(struct sampler_order *order, struct sampler sampler, int64_t epoch)
{
    sampler_order_make(order, &sampler, epoch);
}

inline __device__ __noinline__ int32_t batch_index(const struct sampler_order *order, uint32_t position)
{
    return (int32_t)sampler_index(order, position);
}

/* The shuffled order that batch `step` of a task is drawn from, its position there, and its size. */
static __device__ __forceinline__ void batch_order(struct sampler sampler, uint32_t micro, int64_t step,
                                                   struct sampler_order *order, uint32_t *first, int32_t *count)
{
    int64_t batches = sampler_epoch_batches(&sampler);
    sampler.task += micro;
    batch_order_make(order, sampler, step / batches);
    *first = (uint32_t)(step % batches * sampler.batch_size);
    uint32_t left = sampler.examples - *first;
    *count = (int32_t)(left < sampler.batch_size ? left : sampler.batch_size);
}

/* Blocks of KERNEL_BLOCK_THREADS, one thread an example. */
static __device__ __forceinline__ void draw_batch(const struct kernel_network &network,
                                                  const struct kernel_source &source)
{
    struct drawn {
        struct sampler_order order;
        uint32_t first;
        int32_t count;
    };
    struct drawn *drawn = (struct drawn *)shared_memory();
    struct kernel_progress *progress = network.progress;
    if (progress->stopped) {
        return;
    }
    if (threadIdx.x == 0) {
        int64_t step = progress->first_step + progress->steps;
        drawn->count = source.given;
        if (!source.given) {
            batch_order(source.sampler, source.micro, step, &drawn->order, &drawn->first, &drawn->count);
        }
        if (blockIdx.x == 0) {
            progress->step = step;
            progress->task = source.sampler.task + source.micro;
            progress->count = drawn->count;
        }
    }
    __syncthreads();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < drawn->count) {
        network.indexes[i] = source.given ? i : batch_index(&drawn->order, drawn->first + i);
    }
}

/* Writes the drawn rows of a table out: the numbers, then 0 or 1 for each category. One block a row. */
static __device__ __forceinline__ void spread_row(const struct kernel_network &network,
                                                  const struct kernel_source &source)
{
    const struct kernel_rows &rows = network.rows;
    const struct kernel_progress &progress = *network.progress;
    const int row = blockIdx.x;
    if (progress.stopped || row >= progress.count) {
        return;
    }
    const size_t example = (size_t)network.indexes[row];
    const int width = network.layer[0].in;
    float *inputs = rows.inputs + (size_t)row * rows.pitch;
#pragma unroll 1
    for (int i = threadIdx.x; i < width; i += KERNEL_BLOCK_THREADS) {
        inputs[i] = i < rows.numbers ? source.values[example * rows.numbers + i] : 0.0f;
    }
    __syncthreads(); /* a category's thread may not be the one that cleared its place */
#pragma unroll 1
    for (int i = threadIdx.x; i < rows.codes; i += KERNEL_BLOCK_THREADS) {
        const int place = source.places[example * rows.codes + i];
        if (place >= 0) {
            inputs[rows.numbers + place] = 1.0f;
        }
    }
}

/* --- losses --- */

static __device__ __forceinline__ float warp_sum(float value)
{
#pragma unroll
    for (int lanes = KERNEL_WARP / 2; lanes > 0; lanes /= 2) {
        value += __shfl_xor_sync(0xffffffffu, value, lanes);
    }
    return value;
}

static __device__ __forceinline__ double warp_sum(double value)
{
#pragma unroll
    for (int lanes = KERNEL_WARP / 2; lanes > 0; lanes /= 2) {
        value += __shfl_xor_sync(0xffffffffu, value, lanes);
    }
    return value;
}

/* The first of the largest; NaN counts as largest, because !(x <= y) holds for it. */
static __device__ __forceinline__ void warp_largest(float &value, int &place)
{
#pragma unroll
    for (int lanes = KERNEL_WARP / 2; lanes > 0; lanes /= 2) {
        float other = __shfl_xor_sync(0xffffffffu, value, lanes);
        int there = __shfl_xor_sync(0xffffffffu, place, lanes);
        bool same = other == value || (other != other && value != value);
        if (same ? there < place : !(other <= value) && value == value) {
            value = other;
            place = there;
        }
    }
}

/*
 * One row by one warp, as struct softmax of base/kernels.h: deltas become (softmax - target) x scale. Returns the
 * cross-entropy; *correct as there.
 */
static __device__ __forceinline__ float softmax_row(const float *logits, float *deltas, int classes, int label,
                                                    float scale, float smoothing, int *correct)
{
    const int lane = threadIdx.x % KERNEL_WARP;
    const float target = logits[label];
    float largest = -INFINITY;
    int best = 0x7fffffff;
    float below = 0.0f;
#pragma unroll 1
    for (int j = lane; j < classes; j += KERNEL_WARP) {
        float z = logits[j];
        if (best == 0x7fffffff || (!(z <= largest) && largest == largest)) {
            largest = z;
            best = j;
        }
        below += target - z;
    }
    warp_largest(largest, best);
    float sum = 0.0f;
#pragma unroll 1
    for (int j = lane; j < classes; j += KERNEL_WARP) {
        sum += expf(logits[j] - largest);
    }
    sum = warp_sum(sum);
    float share = scale * smoothing / (float)classes;
#pragma unroll 1
    for (int j = lane; j < classes; j += KERNEL_WARP) {
        float delta = expf(logits[j] - largest) / sum * scale;
        if (smoothing > 0.0f) {
            delta -= share;
        }
        if (j == label) {
            delta -= scale * (1.0f - smoothing);
        }
        deltas[j] = delta;
    }
    *correct = best == label;
    float smoothed = smoothing > 0.0f ? smoothing * warp_sum(below) / (float)classes : 0.0f;
    return logf(sum) + (largest - target) + smoothed;
}

/* One row by one warp, as struct output_loss of base/kernels.h: deltas become slopes x scale. Returns the mean loss. */
static __device__ __forceinline__ float output_row(const struct kernel_loss &loss, const float *outputs, float *deltas,
                                                   const float *wanted, float scale, int *correct)
{
    const int lane = threadIdx.x % KERNEL_WARP;
    float sum = 0.0f;
    float wrong = 0.0f;
#pragma unroll 1
    for (int j = lane; j < loss.targets; j += KERNEL_WARP) {
        float slope;
        sum += output_loss(loss, outputs[j], wanted[j], &slope);
        wrong += output_is_right(loss, outputs[j], wanted[j]) ? 0.0f : 1.0f;
        deltas[j] = slope * (scale / (float)loss.targets);
    }
    *correct = warp_sum(wrong) == 0.0f;
    return warp_sum(sum) / (float)loss.targets;
}

/* Row `row` of the batch by one warp; its loss and its deltas count by its weight. */
static __device__ __forceinline__ float batch_row(const struct kernel_network &network,
                                                  const struct kernel_source &source, int row, int count, int *correct)
{
    const struct kernel_layer &layer = network.layer[network.layers - 1];
    const struct kernel_loss &loss = network.loss;
    const size_t example = (size_t)network.indexes[row];
    const size_t at = (size_t)row * layer.pitch;
    const float weight = source.weights ? source.weights[example] : 1.0f;
    const float scale = weight / (float)count;
    if (loss.targets > 0) {
        return weight * output_row(loss, layer.activations + at, layer.deltas + at,
                                   source.targets + example * loss.targets, scale, correct);
    }
    return weight * softmax_row(layer.activations + at, layer.deltas + at, layer.out, source.labels[example], scale,
                                loss.smoothing, correct);
}

/* Sum over a block of THREADS in a fixed order, returned to thread 0 only. scratch: [THREADS / KERNEL_WARP]. */
template <int THREADS> static __device__ __forceinline__ double block_sum(double sum, double *scratch)
{
    sum = warp_sum(sum);
    if (threadIdx.x % KERNEL_WARP == 0) {
        scratch[threadIdx.x / KERNEL_WARP] = sum;
    }
    __syncthreads();
#pragma unroll 1
    for (int i = 1; threadIdx.x == 0 && i < THREADS / KERNEL_WARP; i++) {
        sum += scratch[i];
    }
    __syncthreads();
    return sum;
}

/* Records a batch, as worker/cpu/engine.c does; or that its loss is not finite. */
static __device__ __forceinline__ void record_batch(struct kernel_progress *progress, int micro, int micro_batches,
                                                    double loss, int right)
{
    loss /= progress->count;
    if (!isfinite(loss)) {
        progress->stopped = 1;
        progress->bad_loss = loss;
        return;
    }
    if (micro == 0) {
        progress->last_loss = 0.0;
    }
    progress->last_loss += loss / micro_batches;
    progress->correct += right;
    progress->images += progress->count;
    if (micro + 1 == micro_batches) {
        progress->steps++;
        progress->loss_sum += progress->last_loss;
    }
}

/* Blocks of KERNEL_BLOCK_THREADS, one warp per row; the last block to finish adds up. */
static __device__ __forceinline__ void loss_batch(const struct kernel_network &network,
                                                  const struct kernel_source &source)
{
    double *scratch = (double *)shared_memory(); /* [KERNEL_WARP], then a flag */
    int *last = (int *)(scratch + KERNEL_WARP);
    struct kernel_progress *progress = network.progress;
    if (progress->stopped) {
        return;
    }
    const int count = progress->count;
    const int row = blockIdx.x * (KERNEL_BLOCK_THREADS / KERNEL_WARP) + threadIdx.x / KERNEL_WARP;
    if (row < count) {
        int correct;
        float loss = batch_row(network, source, row, count, &correct);
        if (threadIdx.x % KERNEL_WARP == 0) {
            network.losses[row] = loss;
            network.correct[row] = correct;
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        *last = atomicAdd(&progress->ticket, 1u) == gridDim.x - 1;
        __threadfence();
    }
    __syncthreads();
    if (*last) {
        double loss = 0.0;
        double right = 0.0;
#pragma unroll 2
        for (int i = threadIdx.x; i < count; i += KERNEL_BLOCK_THREADS) {
            loss += (double)network.losses[i];
            right += (double)network.correct[i];
        }
        loss = block_sum<KERNEL_BLOCK_THREADS>(loss, scratch);
        right = block_sum<KERNEL_BLOCK_THREADS>(right, scratch);
        if (threadIdx.x == 0) {
            progress->ticket = 0;
            record_batch(progress, source.micro, network.micro_batches, loss, (int)right);
        }
    }
}

/* --- The whole gradient --- */

/*
 * Passes over the gradient of the whole network, for the cases where it cannot be applied as it is computed: clipping
 * by norm (worker/cpu/engine.h), which needs the whole gradient first, micro-batches, and gradients computed in parts.
 *
 * Each block handles one row: of a layer's weights, or its biases, which count as one more row.
 */

struct gradient_row {
    uint64_t first; /* of its floats in the flat vector */
    int floats;
    bool weights;
    bool of_host; /* its parameters are on the host */
};

static __device__ __forceinline__ struct gradient_row row_of_block(const struct kernel_network &network)
{
    int row = blockIdx.x;
    int number = 0;
    while (row > network.layer[number].in) {
        row -= network.layer[number].in + 1;
        number++;
    }
    const struct kernel_layer &layer = network.layer[number];
    bool weights = row < layer.in;
    return {weights ? layer.weights + (uint64_t)row * layer.stride : layer.biases, layer.out, weights,
            (network.host_layers >> number & 1) != 0};
}

/* The gradient's norm, and from it the clipping factor; the last block to finish adds up. */
static __device__ __forceinline__ void measure_gradient(const struct kernel_network &network)
{
    double *scratch = (double *)shared_memory(); /* [KERNEL_WARP], then a flag */
    int *last = (int *)(scratch + KERNEL_WARP);
    struct kernel_progress *progress = network.progress;
    if (progress->stopped) {
        return;
    }
    const struct gradient_row row = row_of_block(network);
    double sum = 0.0;
#pragma unroll 2
    for (int n = threadIdx.x; n < row.floats; n += KERNEL_BLOCK_THREADS) {
        double value = network.gradient[row.first + n];
        sum += value * value;
    }
    sum = block_sum<KERNEL_BLOCK_THREADS>(sum, scratch);
    if (threadIdx.x == 0) {
        network.squares[blockIdx.x] = sum;
        __threadfence();
        *last = atomicAdd(&progress->ticket, 1u) == gridDim.x - 1;
        __threadfence();
    }
    __syncthreads();
    if (*last) {
        sum = 0.0;
#pragma unroll 2
        for (int i = threadIdx.x; i < (int)gridDim.x; i += KERNEL_BLOCK_THREADS) {
            sum += network.squares[i];
        }
        sum = block_sum<KERNEL_BLOCK_THREADS>(sum, scratch);
        if (threadIdx.x == 0) {
            double norm = sqrt(sum);
            progress->ticket = 0;
            progress->factor = norm <= network.clip_norm ? 1.0f : (float)(network.clip_norm / norm);
        }
    }
}

static __device__ __forceinline__ void apply_row(const struct kernel_network &network, int how, float weight)
{
    const struct kernel_progress &progress = *network.progress;
    if (progress.stopped) {
        return;
    }
    const struct gradient_row row = row_of_block(network);
    if (row.of_host && (how == APPLY_GRADIENT || how == APPLY_CLIPPED || how == APPLY_COLLECTED)) {
        return;
    }
    const struct update *update = network.updates + 2 * (progress.step - progress.first_step) + row.weights;
    const struct kernel_vectors &to = network.vectors;
    const bool clips = how != APPLY_GRADIENT && how != APPLY_PARTS && how != APPLY_COLLECTED;
    const float factor = clips ? progress.factor : 1.0f;
    const float *from = how == APPLY_COLLECTED ? network.collected : network.gradient;
#pragma unroll 1
    for (int n = threadIdx.x; n < row.floats; n += KERNEL_BLOCK_THREADS) {
        const uint64_t at = row.first + n;
        float g = factor * from[at];
#pragma unroll 4
        for (int part = 1; how == APPLY_PARTS && part < network.parts; part++) {
            g += from[part * network.part_floats + at];
        }
        if (how == CLIP_COLLECT_FIRST) {
            network.collected[at] = weight * g;
        } else if (how == CLIP_COLLECT) {
            network.collected[at] += weight * g;
        } else if (how == CLIP_IN_PLACE) {
            network.gradient[at] = g;
        } else {
            update_element(update, g, to.parameters, to.slot0, to.slot1, to.averages, at);
        }
    }
}

#endif
