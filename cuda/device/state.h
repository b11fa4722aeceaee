/* Shared by the files of this folder: a loaded driver, an open device, and how to call the driver for it. */
#ifndef CUDA_DEVICE_STATE_H
#define CUDA_DEVICE_STATE_H

#include "cuda/device/api.h"
#include "cuda/device/device.h"
#include "cuda/kernels/params.h"
#include "cuda/kernels/shards.h"
#include "ps/store/model.h"

#define DRIVER_FIELD(name, symbol, parameters) cu_result(*name) parameters;

struct driver {
    void *library;
    int version;
    int count;
    CUDA_DRIVER_FUNCTIONS(DRIVER_FIELD)
};

/* Entry points of cuda/kernels/kernels.cu; tiled ones in the order of enum kernel_tile. */
enum kernel {
    KERNEL_DRAW,
    KERNEL_SPREAD,
    KERNEL_LOSS,
    KERNEL_MEASURE,
    KERNEL_APPLY,
    KERNEL_FORWARD,
    KERNEL_DELTA = KERNEL_FORWARD + TILES,
    KERNEL_GRADIENT = KERNEL_DELTA + TILES,
    KERNEL_TRAIN_4 = KERNEL_GRADIENT + TILES,
    KERNEL_TRAIN_8,
    KERNELS
};

enum {
    DEVICE_UPDATES = 1024,   /* steps whose updates are on the device at once */
    DEVICE_GRAPH_STEPS = 16, /* steps in the longer of the two graphs */
    DEVICE_GRAPHS = 2,       /* of DEVICE_GRAPH_STEPS steps, and of one */
    DEVICE_SHARED = 8,       /* pinned pieces of the caller's memory */
    DEVICE_CHUNKS = 64,      /* pieces that a gradient is copied in, at most */
};

struct device {
    const struct driver *driver;
    struct device_shape shape;
    struct model model;
    char description[320];
    struct driver_device about;
    bool lost;

    cu_device handle;
    cu_context context;
    cu_module module;
    cu_function functions[KERNELS];
    cu_stream stream;  /* computes */
    cu_stream copying; /* copies gradients to the host meanwhile */
    cu_event computed[DEVICE_CHUNKS], copied[DEVICE_CHUNKS];
    cu_event known; /* the outcome of a step has reached the host */

    int rows;            /* examples that the matrices have room for */
    cu_pointer memory;   /* the block allocated when the device is opened */
    cu_pointer data;     /* examples to train on, ... */
    uint64_t data_bytes; /* ... and their size */
    cu_pointer gradient; /* allocated on first use */
    uint64_t taken;      /* bytes allocated in total */
    uint64_t allowed;    /* bytes */

    struct kernel_network network;
    struct kernel_source train;  /* batches drawn from the data */
    struct kernel_source staged; /* examples passed in by the host */
    struct update *updates;      /* device: [DEVICE_UPDATES][2] */
    cu_graph_exec graphs[DEVICE_GRAPHS];

    bool sharded;
    struct kernel_shards shards;

    struct host *host; /* layers computed on the host (host.c); NULL: none */

    /* Pinned host memory. */
    struct kernel_progress *progress;
    struct update (*host_updates)[2]; /* [DEVICE_UPDATES] */
    uint8_t *host_images;             /* [rows, image_stride]; NULL: rows of a table */
    float *host_logits;               /* [rows, pitch] */
    void *pinned[DEVICE_SHARED];
    int pinned_count;
};

/* The kernels: cubins and PTX for every architecture, embedded at build time. */
extern const unsigned char gpu_kernels[];

/* --- driver.c: calls --- */

/* Records that the device is lost if the result says so. */
bool device_failed(struct device *device, const char *call, cu_result result, struct error *error);

/* DEVICE_TRY(device, error, stream_wait, (device->stream)) goes on, or returns false with the error set. */
#define DEVICE_TRY(device, error, function, arguments)                                                                 \
    do {                                                                                                               \
        cu_result device_result = (device)->driver->function arguments;                                                \
        if (device_result != CU_SUCCESS) {                                                                             \
            return device_failed(device, #function, device_result, error);                                             \
        }                                                                                                              \
    } while (0)

/* As a device pointer of the kernels' structs, and back. */
static inline void *device_pointer(cu_pointer pointer)
{
    return (void *)(uintptr_t)pointer;
}
static inline cu_pointer device_address(const void *pointer)
{
    return (cu_pointer)(uintptr_t)pointer;
}

/* --- memory.c --- */

/* True if this model has that vector. */
bool memory_keeps(const struct device_shape *shape, enum store_vector vector);

/* Allocates the memory of device->network and everything with it; vectors are zeroed. */
bool memory_take(struct device *device, struct error *error);
/* Does nothing if it exists already. */
bool memory_take_gradient(struct device *device, struct error *error);
void memory_release(struct device *device);

/* Bytes from one image to the next. */
int memory_image_stride(int pixels);

/*
 * Copies examples, device->rows of them at most, to [at, at + count) of those on the device; NULL arrays are skipped.
 * They must stay valid until device->stream has been waited for.
 */
bool memory_stage(struct device *device, const struct kernel_source *to, int at, const struct device_examples *examples,
                  struct error *error);

/* The training set, in place of an earlier one; launches that are recorded still refer to that. */
bool memory_take_examples(struct device *device, const struct device_examples *examples, struct error *error);

/* As device_write and device_read, of the vectors on the device. */
bool memory_write(struct device *device, enum store_vector vector, size_t first, size_t count, const float *values,
                  struct error *error);
bool memory_read(struct device *device, enum store_vector vector, size_t first, size_t count, float *values,
                 struct error *error);

/* Resets device->network.progress for a new call. */
bool memory_begin(struct device *device, int64_t first_step, struct error *error);
bool memory_fetch_progress(struct device *device, struct error *error); /* asynchronous: wait for the stream */

/* --- launch.c: work queued on device->stream --- */

bool launch_load(struct device *device, struct error *error);

/* The forward pass of at most `count` examples. */
bool launch_forward(struct device *device, struct kernel_network *network, struct kernel_source *source, int count,
                    bool training, struct error *error);

bool launch_forward_layer(struct device *device, struct kernel_network *network, struct kernel_source *source,
                          int layer, int count, bool training, struct error *error);
/* The losses, and the deltas of the last layer. */
bool launch_loss(struct device *device, struct kernel_source *source, struct error *error);
/* The deltas of hidden layer `layer`. */
bool launch_delta(struct device *device, int layer, int count, struct error *error);

/* From the draw to the deltas of all layers. */
bool launch_batch(struct device *device, struct kernel_source *source, struct error *error);

/*
 * Rows of a tile; and rows [first, first + rows), rounded up to tiles, of a layer's gradient, where row `in` is that of
 * the biases.
 */
int launch_gradient_rows(const struct device *device, int layer);
bool launch_gradient(struct device *device, struct kernel_source *source, int layer, int first, int rows, int mode,
                     float weight, struct error *error);

/* Parts in which a batch's gradient is computed, to be added up: products with few tiles do not fill a GPU. */
int launch_gradient_parts(const struct device *device);

/* The gradients of all layers. */
bool launch_gradients(struct device *device, struct kernel_source *source, int mode, float weight, struct error *error);

/* Clips the gradient, then uses it as `how` (enum kernel_apply) says. */
bool launch_clip(struct device *device, int how, float weight, struct error *error);

/* Applies the gradient as `how` (enum kernel_apply) says. */
bool launch_apply(struct device *device, int how, float weight, struct error *error);

/* One whole step of training: all its batches, and the update. */
bool launch_step(struct device *device, struct error *error);

/* Draws a batch; rows of a table become the first layer's input. */
bool launch_draw(struct device *device, struct kernel_source *source, struct error *error);

/* Steps in one launch, if device->sharded. */
bool launch_sharded(struct device *device, int steps, struct error *error);

/* Decides whether and how training is sharded: sets device->sharded and shards. reason: set if it is not. */
bool launch_plan(struct device *device, const char **reason, struct error *error);

/* --- host.c --- */

/*
 * Layers of an open device that train.placement puts on the CPU. Their parameters, slots and averages are only in host
 * memory; their passes and updates run on the thread that uses the device, as plain loops. All other layers run on the
 * device. Activations and deltas are copied between the two with every batch, and the host waits for them: manual
 * placement is for experiments and comparisons, not for speed.
 *
 * The CPU computes in float32, whatever the device's precision.
 */

/* Sets up device->network.host_layers; device->host stays NULL if there are none. After memory_take. */
bool host_create(struct device *device, struct error *error);
void host_destroy(struct device *device);

/* The training images, for a first layer on the host; copied. [count, widths[0]]; NULL: rows of a table. */
bool host_data(struct device *device, const uint8_t *images, int count, struct error *error);

/* Copies the host layers' part of floats [first, first + count) of a vector to or from values. */
void host_write(struct device *device, enum store_vector vector, size_t first, size_t count, const float *values);
void host_read(const struct device *device, enum store_vector vector, size_t first, size_t count, float *values);

/*
 * The forward pass of `count` examples. given: the images, packed; NULL: those drawn from the training set, or table
 * rows that the device has written out.
 */
bool host_forward(struct device *device, struct kernel_network *network, struct kernel_source *source,
                  const uint8_t *given, int count, bool training, struct error *error);

/* From the draw to the deltas of all layers; sets device->progress. */
bool host_batch(struct device *device, struct kernel_source *source, const uint8_t *given, struct error *error);

/* The gradients of all layers: the device's by launch_gradient's mode, the host's likewise into its own memory. */
bool host_gradients(struct device *device, struct kernel_source *source, const uint8_t *given, int mode, float weight,
                    struct error *error);

/* Copies the host's gradients to the others on the device. */
bool host_send_gradients(struct device *device, struct error *error);

/* One whole step of training. */
bool host_step(struct device *device, struct error *error);

#endif
