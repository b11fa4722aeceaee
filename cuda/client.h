/*
 * The GPU engine as the program sees it: a process of its own that loads NVIDIA's driver, because a static program
 * cannot, and that is asked over shared memory (cuda/protocol.h).
 *
 * Every wait has a deadline, and every failure is one message: the driver's own; or that the process ended, and how; or
 * that the GPU does not answer. After a failure of the last two kinds, or of a lost device, the client is dead: every
 * further call fails with the same message, until gpu_client_stop. What it held of memory in common stays readable.
 *
 * One thread uses a client; gpu_client_start wants the main thread (cuda/launch.h).
 */
#ifndef CUDA_CLIENT_H
#define CUDA_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "cuda/protocol.h"

struct gpu_client;

/* What the driver shows. */
struct gpu_list {
    int driver_version; /* 13000: CUDA 13.0 */
    int count;
    struct driver_device devices[PROTOCOL_MAX_DEVICES];
};

/* Where things lie in the memory in common. Two sets of vectors: one may be read into while the other one is whole. */
enum { GPU_VECTOR_SETS = 2 };

struct gpu_areas {
    float *vectors[GPU_VECTOR_SETS][STORE_VECTORS]; /* [float_count]; NULL where the shape has none */
    float *gradient;                                /* [float_count] */
    uint8_t *images;                                /* [batch_images, widths[0]] */
    int32_t *labels;                                /* [batch_images] */
    float *logits;                                  /* [batch_images, classes] */
    int batch_images;                               /* the most of one STEP and of one FORWARD */
};

/* Is there a program to start? Builds without nvcc have none. */
bool gpu_client_is_built(void);

/*
 * Starts the process, which loads the driver by itself, without waiting for it. timeout_s: within which a command is to be done that takes no time to speak
 * of; training gets what it took before on top.
 */
bool gpu_client_start(struct gpu_client **client, double timeout_s, struct error *error);

/* The same with another program than the one that is built in. */
bool gpu_client_start_program(struct gpu_client **client, const void *bytes, size_t size, double timeout_s,
                              struct error *error);

/* Ends the process, at once if it is not idle; NULL is fine. */
void gpu_client_stop(struct gpu_client *client);

/* What the driver shows, once it is loaded. */
bool gpu_client_list(struct gpu_client *client, struct gpu_list *list, struct error *error);

/*
 * Takes a device for a model, and the memory in common. memory_fraction: of the device's memory that may be taken, 1 = no
 * bound. float_count: of the model's flat vector (ps/store/model.h). _begin only asks for it, and _end waits, so that the caller
 * can do something else meanwhile; nothing else may be asked of the client in between.
 */
bool gpu_client_open_begin(struct gpu_client *client, int ordinal, const struct device_shape *shape,
                           double memory_fraction, size_t float_count, struct error *error);
bool gpu_client_open_end(struct gpu_client *client, struct error *error);
const struct gpu_areas *
gpu_client_areas(const struct gpu_client *client);                   /* after gpu_client_open_end, until the stop */
const char *gpu_client_description(const struct gpu_client *client); /* device_describe's */
int gpu_client_precision(const struct gpu_client *client);           /* device_precision's, an enum precision */

/* images: [count, widths[0]], labels: [count]; copied. */
bool gpu_client_data(struct gpu_client *client, const uint8_t *images, const int32_t *labels, int count,
                     struct error *error);

/* Floats [first, first + count) of a vector, from or to the same place in a set of the areas. */
bool gpu_client_write(struct gpu_client *client, int set, enum store_vector vector, size_t first, size_t count,
                      struct error *error);
bool gpu_client_read(struct gpu_client *client, int set, enum store_vector vector, size_t first, size_t count,
                     struct error *error);

/* Where the updates of train's steps are to be written: [PROTOCOL_UPDATES]. */
struct update (*gpu_client_updates(struct gpu_client *client))[2];

/* steps: 1..PROTOCOL_UPDATES. */
bool gpu_client_train(struct gpu_client *client, int64_t first_step, int steps, struct device_outcome *outcome,
                      struct error *error);

/*
 * The gradient of the batch that lies in the areas, into areas->gradient. grown(context, floats) is called with the number of
 * leading floats that are final, as it grows, at last with all of them; not at all where the loss is not finite.
 */
bool gpu_client_step(struct gpu_client *client, int images, uint32_t task, int64_t step,
                     void (*grown)(void *context, size_t floats), void *context, struct device_outcome *outcome,
                     struct error *error);

/* Logits of the images that lie in the areas, 1..batch_images of them, into areas->logits. */
bool gpu_client_forward(struct gpu_client *client, bool averaged, int images, struct error *error);

/* True after a failure that no further call can mend. */
bool gpu_client_is_dead(const struct gpu_client *client);

#endif
