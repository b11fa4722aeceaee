/* Which kernel runs on how many blocks: the choice between sharded training and one kernel after the other. */
#include <string.h>

#include "cuda/device/state.h"

static const struct {
    int side, shared_bytes;
} tiles[TILES] = {
    [TILE_SMALL] = {KERNEL_SMALL_TILE, KERNEL_SMALL_BYTES},
    [TILE_MEDIUM] = {KERNEL_MEDIUM_TILE, KERNEL_MEDIUM_BYTES},
    [TILE_LARGE] = {KERNEL_LARGE_TILE, KERNEL_LARGE_BYTES},
    [TILE_TENSOR] = {KERNEL_TENSOR_TILE, KERNEL_TENSOR_BYTES},
};

bool launch_load(struct device *device, struct error *error)
{
    static const char *const names[KERNELS] = {
        [KERNEL_DRAW] = "draw",
        [KERNEL_SPREAD] = "spread",
        [KERNEL_LOSS] = "loss",
        [KERNEL_MEASURE] = "measure",
        [KERNEL_APPLY] = "apply",
        [KERNEL_FORWARD + TILE_SMALL] = "forward_small",
        [KERNEL_FORWARD + TILE_MEDIUM] = "forward_medium",
        [KERNEL_FORWARD + TILE_LARGE] = "forward_large",
        [KERNEL_FORWARD + TILE_TENSOR] = "forward_tensor",
        [KERNEL_DELTA + TILE_SMALL] = "delta_small",
        [KERNEL_DELTA + TILE_MEDIUM] = "delta_medium",
        [KERNEL_DELTA + TILE_LARGE] = "delta_large",
        [KERNEL_DELTA + TILE_TENSOR] = "delta_tensor",
        [KERNEL_GRADIENT + TILE_SMALL] = "gradient_small",
        [KERNEL_GRADIENT + TILE_MEDIUM] = "gradient_medium",
        [KERNEL_GRADIENT + TILE_LARGE] = "gradient_large",
        [KERNEL_GRADIENT + TILE_TENSOR] = "gradient_tensor",
        [KERNEL_TRAIN_4] = "train_sharded_4",
        [KERNEL_TRAIN_8] = "train_sharded_8",
    };
    cu_result result = device->driver->module_load(&device->module, gpu_kernels);
    if (result == CU_NO_BINARY_FOR_GPU || result == CU_INVALID_IMAGE) {
        return error_set(error,
                         "%s has compute capability %d.%d, which this program has no kernels for: use --device=cpu",
                         device->about.name, device->about.major, device->about.minor);
    }
    if (result != CU_SUCCESS) {
        return device_failed(device, "cuModuleLoadData", result, error);
    }
    for (int i = 0; i < KERNELS; i++) {
        int registers;
        DEVICE_TRY(device, error, module_function, (&device->functions[i], device->module, names[i]));
        /*
         * Loads the kernel now: drivers otherwise defer it to the first launch, which may be one that a graph records.
         */
        DEVICE_TRY(device, error, function_get, (&registers, CU_FUNCTION_REGISTERS, device->functions[i]));
    }
    return true;
}

static bool launch(struct device *device, int kernel, int64_t blocks, int threads, int shared_bytes, void **arguments,
                   struct error *error)
{
    DEVICE_TRY(device, error, launch,
               (device->functions[kernel], (unsigned)blocks, 1, 1, (unsigned)threads, 1, 1, (unsigned)shared_bytes,
                device->stream, arguments, NULL));
    return true;
}

static int64_t along(int size, int tile)
{
    return ((int64_t)size + tile - 1) / tile;
}

static int64_t tile_count(enum kernel_tile tile, int rows, int cols)
{
    return along(rows, tiles[tile].side) * along(cols, tiles[tile].side);
}

/* Large tiles move the least data, provided there are enough of them, or of their parts, for all multiprocessors. */
static enum kernel_tile choose_tile(const struct device *device, int rows, int cols, int parts)
{
    if (device->network.precision != PRECISION_FLOAT32) {
        return TILE_TENSOR;
    }
    int64_t wanted = device->about.multiprocessors;
    if (parts * tile_count(TILE_LARGE, rows, cols) >= wanted) {
        return TILE_LARGE;
    }
    return parts * tile_count(TILE_MEDIUM, rows, cols) >= wanted - wanted / 4 ? TILE_MEDIUM : TILE_SMALL;
}

static bool launch_tiles(struct device *device, int kernel, enum kernel_tile tile, int64_t blocks, void **arguments,
                         struct error *error)
{
    return launch(device, kernel + (int)tile, blocks, KERNEL_BLOCK_THREADS, tiles[tile].shared_bytes, arguments, error);
}

bool launch_forward_layer(struct device *device, struct kernel_network *network, struct kernel_source *source,
                          int layer, int count, bool training, struct error *error)
{
    int32_t number = layer;
    int32_t is_training = training;
    int out = network->layer[number].out;
    enum kernel_tile tile = choose_tile(device, count, out, 1);
    void *arguments[] = {network, source, &number, &is_training};
    return launch_tiles(device, KERNEL_FORWARD, tile, tile_count(tile, count, out), arguments, error);
}

bool launch_forward(struct device *device, struct kernel_network *network, struct kernel_source *source, int count,
                    bool training, struct error *error)
{
    for (int i = 0; i < network->layers; i++) {
        if (!launch_forward_layer(device, network, source, i, count, training, error)) {
            return false;
        }
    }
    return true;
}

static int largest_batch(const struct device *device, const struct kernel_source *source)
{
    return source->given ? source->given : device->shape.batch_size;
}

bool launch_loss(struct device *device, struct kernel_source *source, struct error *error)
{
    int most = largest_batch(device, source);
    void *arguments[] = {&device->network, source};
    return launch(device, KERNEL_LOSS, along(most, KERNEL_BLOCK_THREADS / KERNEL_WARP), KERNEL_BLOCK_THREADS,
                  KERNEL_WARP * (int)sizeof(double) + 16, arguments, error);
}

bool launch_delta(struct device *device, int layer, int count, struct error *error)
{
    int32_t number = layer;
    int out = device->network.layer[number].out;
    enum kernel_tile tile = choose_tile(device, count, out, 1);
    void *arguments[] = {&device->network, &number};
    return launch_tiles(device, KERNEL_DELTA, tile, tile_count(tile, count, out), arguments, error);
}

bool launch_draw(struct device *device, struct kernel_source *source, struct error *error)
{
    void *arguments[] = {&device->network, source};
    int most = largest_batch(device, source);
    return launch(device, KERNEL_DRAW, along(most, KERNEL_BLOCK_THREADS), KERNEL_BLOCK_THREADS,
                  (int)sizeof(struct sampler_order) + 16, arguments, error) &&
           (!device->network.rows.inputs ||
            launch(device, KERNEL_SPREAD, most, KERNEL_BLOCK_THREADS, 0, arguments, error));
}

bool launch_batch(struct device *device, struct kernel_source *source, struct error *error)
{
    struct kernel_network *network = &device->network;
    int most = largest_batch(device, source);
    if (!launch_draw(device, source, error) || !launch_forward(device, network, source, most, true, error) ||
        !launch_loss(device, source, error)) {
        return false;
    }
    for (int i = network->layers - 2; i >= 0; i--) {
        if (!launch_delta(device, i, most, error)) {
            return false;
        }
    }
    return true;
}

/* Parts of a batch that are worth blocks of their own, at most. */
static int most_parts(const struct device *device)
{
    enum { IMAGES = 128 };
    return device->shape.batch_size < IMAGES ? 1 : device->shape.batch_size / IMAGES;
}

/* One choice for all layers, by the largest: they share a launch. */
static enum kernel_tile gradient_tile(const struct device *device, int parts)
{
    enum kernel_tile best = TILE_SMALL;
    for (int i = 0; i < device->network.layers; i++) {
        const struct kernel_layer *layer = &device->network.layer[i];
        enum kernel_tile tile = choose_tile(device, layer->in + 1, layer->out, parts);
        best = tile > best ? tile : best;
    }
    return best;
}

static int64_t gradient_tiles(const struct device *device, enum kernel_tile tile)
{
    int64_t sum = 0;
    for (int i = 0; i < device->network.layers; i++) {
        sum += tile_count(tile, device->network.layer[i].in + 1, device->network.layer[i].out);
    }
    return sum;
}

/* Parts in which a batch's gradient is computed, to be added up: products with few tiles do not fill a GPU. */
int launch_gradient_parts(const struct device *device)
{
    enum { RESIDENT = 2 }; /* blocks of the largest tiles on a multiprocessor, on most GPUs */
    const struct device_shape *shape = &device->shape;
    if (device->sharded || shape->host_layers != 0 || shape->clip_norm > 0.0 || shape->micro_batches > 1) {
        return 1;
    }
    int most = most_parts(device);
    int64_t blocks = RESIDENT * (int64_t)device->about.multiprocessors;
    int parts = 1;
    while (parts < most && (parts + 1) * gradient_tiles(device, gradient_tile(device, most)) <= blocks) {
        parts++;
    }
    return parts;
}

int launch_gradient_rows(const struct device *device, int layer)
{
    (void)layer;
    return tiles[gradient_tile(device, 1)].side;
}

bool launch_gradient(struct device *device, struct kernel_source *source, int layer, int first, int rows, int mode,
                     float weight, struct error *error)
{
    enum kernel_tile tile = gradient_tile(device, 1);
    int64_t across = along(device->network.layer[layer].out, tiles[tile].side);
    int32_t number = layer;
    int32_t first_tile = (int32_t)(first / tiles[tile].side * across);
    int32_t parts = 1;
    int32_t how = mode;
    void *arguments[] = {&device->network, source, &number, &first_tile, &parts, &how, &weight};
    return launch_tiles(device, KERNEL_GRADIENT, tile, along(rows, tiles[tile].side) * across, arguments, error);
}

static bool launch_parts(struct device *device, struct kernel_source *source, int parts, int mode, float weight,
                         struct error *error)
{
    /* With several parts, the tile that launch_gradient_parts counts on. */
    enum kernel_tile tile = gradient_tile(device, parts > 1 ? most_parts(device) : 1);
    int32_t number = 0;
    int32_t first_tile = 0;
    int32_t of = parts;
    int32_t how = mode;
    void *arguments[] = {&device->network, source, &number, &first_tile, &of, &how, &weight};
    return launch_tiles(device, KERNEL_GRADIENT, tile, parts * gradient_tiles(device, tile), arguments, error);
}

bool launch_gradients(struct device *device, struct kernel_source *source, int mode, float weight, struct error *error)
{
    int parts = mode == GRADIENT_UPDATE ? device->network.parts : 1;
    if (parts > 1) {
        return launch_parts(device, source, parts, GRADIENT_STORE, 1.0f, error) &&
               launch_apply(device, APPLY_PARTS, 1.0f, error);
    }
    return launch_parts(device, source, 1, mode, weight, error);
}

static bool launch_rows(struct device *device, int kernel, int shared_bytes, void **arguments, struct error *error)
{
    int64_t rows = 0;
    for (int i = 0; i < device->network.layers; i++) {
        rows += device->network.layer[i].in + 1;
    }
    return launch(device, kernel, rows, KERNEL_BLOCK_THREADS, shared_bytes, arguments, error);
}

bool launch_apply(struct device *device, int how, float weight, struct error *error)
{
    int32_t what = how;
    void *arguments[] = {&device->network, &what, &weight};
    return launch_rows(device, KERNEL_APPLY, 0, arguments, error);
}

bool launch_clip(struct device *device, int how, float weight, struct error *error)
{
    void *arguments[] = {&device->network};
    return launch_rows(device, KERNEL_MEASURE, KERNEL_WARP * (int)sizeof(double) + 16, arguments, error) &&
           launch_apply(device, how, weight, error);
}

bool launch_step(struct device *device, struct error *error)
{
    const struct kernel_network *network = &device->network;
    struct kernel_source source = device->train;
    bool clips = network->clip_norm > 0.0;
    bool collects = network->micro_batches > 1;
    float share = 1.0f / (float)network->micro_batches;
    for (source.micro = 0; source.micro < network->micro_batches; source.micro++) {
        bool first = source.micro == 0;
        int mode = clips ? GRADIENT_STORE : !collects ? GRADIENT_UPDATE : first ? GRADIENT_STORE : GRADIENT_ADD;
        int how = !collects ? APPLY_CLIPPED : first ? CLIP_COLLECT_FIRST : CLIP_COLLECT;
        if (!launch_batch(device, &source, error) ||
            !launch_gradients(device, &source, mode, clips ? 1.0f : share, error) ||
            (clips && !launch_clip(device, how, share, error))) {
            return false;
        }
    }
    return !collects || launch_apply(device, clips ? APPLY_COLLECTED : APPLY_GRADIENT, 1.0f, error);
}

/* --- sharded training --- */

enum {
    SHARD_LEAST_CHUNK = 32,
};

bool launch_sharded(struct device *device, int steps, struct error *error)
{
    struct kernel_shards *shards = &device->shards;
    uint64_t sums = SHARD_TURNS * ((uint64_t)shards->capacity * (uint64_t)device->network.layer[1].out + 1);
    void *arguments[] = {&device->network, &device->train, shards};
    DEVICE_TRY(device, error, set_bytes,
               (device_address(shards->logits), 0, sums * sizeof *shards->logits, device->stream));
    DEVICE_TRY(device, error, set_bytes, (device_address(shards->arrived), 0, sizeof *shards->arrived, device->stream));
    shards->steps = steps;
    DEVICE_TRY(device, error, launch_cooperative,
               (device->functions[shards->units == 4 ? KERNEL_TRAIN_4 : KERNEL_TRAIN_8], (unsigned)shards->blocks, 1, 1,
                SHARD_THREADS, 1, 1, shards->at.bytes, device->stream, arguments));
    return true;
}

/* The longest chunk of a batch for which a block's share fits into shared memory; false: none. */
static bool fit_shards(struct device *device, int units, uint32_t shared_bytes, const int32_t kept[4])
{
    struct kernel_shards *shards = &device->shards;
    int capacity = device->shape.batch_size;
    int stride = device->network.image_stride;
    int chunk = capacity;
    int classes = device->shape.widths[2];
    for (int parts = 1; parts == 1 || chunk >= SHARD_LEAST_CHUNK; parts++) {
        *shards = (struct kernel_shards){.units = units,
                                         .blocks = (device->shape.widths[1] + units - 1) / units,
                                         .capacity = capacity,
                                         .chunk = chunk,
                                         .float_2_23 = FLOAT_2_23,
                                         .per_class = (uint32_t)(((1 << 20) + classes - 1) / classes)};
        shard_layout_make(&shards->at, units, chunk, capacity, stride, classes, kept);
        if (shards->at.bytes <= shared_bytes) {
            return true;
        }
        chunk = (capacity + parts) / (parts + 1);
    }
    return false;
}

static const char *never_sharded(const struct device *device, int cooperative)
{
    const struct device_shape *shape = &device->shape;
    return shape->host_layers != 0                          ? "with layers on the CPU"
           : shape->numbers > 0 || shape->codes > 0         ? "for rows of a table"
           : shape->targets > 0                             ? "for its loss"
           : shape->weighted                                ? "for the weights of its examples"
           : shape->layer_count != 2                        ? "for its layers"
           : shape->widths[2] > SHARD_CLASSES               ? "for its many classes"
           : device->network.image_stride > SHARD_PIXELS    ? "for its large images"
           : shape->clip_norm > 0.0                         ? "for the clipping of its gradients"
           : shape->micro_batches > 1                       ? "for its micro-batches"
           : shape->batch_size > SHARD_IMAGES               ? "for its large batch"
           : device->network.precision != PRECISION_FLOAT32 ? "for its precision"
           : !cooperative                                   ? "as the device has no cooperative launch"
                                                            : NULL;
}

bool launch_plan(struct device *device, const char **reason, struct error *error)
{
    int cooperative = 0;
    int shared_bytes = 0;
    int resident = 0;
    int32_t kept[STORE_VECTORS];
    for (int i = 0; i < STORE_VECTORS; i++) {
        kept[i] = memory_keeps(&device->shape, (enum store_vector)i);
    }
    DEVICE_TRY(device, error, device_attribute, (&cooperative, CU_ATTRIBUTE_COOPERATIVE_LAUNCH, device->handle));
    DEVICE_TRY(device, error, device_attribute, (&shared_bytes, CU_ATTRIBUTE_SHARED_BYTES, device->handle));
    *reason = never_sharded(device, cooperative);
    for (int units = 4; !*reason && units <= 8; units += 4) {
        int blocks = (device->shape.widths[1] + units - 1) / units;
        cu_function function = device->functions[units == 4 ? KERNEL_TRAIN_4 : KERNEL_TRAIN_8];
        if (blocks > device->about.multiprocessors || blocks > SHARD_BLOCKS ||
            !fit_shards(device, units, (uint32_t)shared_bytes, kept)) {
            continue;
        }
        DEVICE_TRY(device, error, function_set, (function, CU_FUNCTION_SHARED_BYTES, (int)device->shards.at.bytes));
        DEVICE_TRY(device, error, occupancy, (&resident, function, SHARD_THREADS, device->shards.at.bytes));
        if (resident > 0) {
            device->sharded = true;
            return true;
        }
    }
    *reason = *reason ? *reason : "as its layers do not fit into the multiprocessors";
    return true;
}
