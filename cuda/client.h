/*
 * The client of the GPU engine, which is a separate process that loads NVIDIA's driver, because a static program
 * cannot. They communicate over shared memory (cuda/protocol.h).
 *
 * Every wait has a deadline, and every failure is one message: the driver's own, how the process ended, or that the GPU
 * does not answer. After one of the last two, or once the device is lost, the client is dead: every further call fails
 * with the same message, until gpu_client_stop. The shared memory stays readable.
 *
 * One thread uses a client; gpu_client_start must be called by the main thread (cuda/launch.h).
 */
#ifndef CUDA_CLIENT_H
#define CUDA_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "cuda/protocol.h"

struct gpu_client;

/* The devices that the driver shows. */
struct gpu_list {
    int driver_version; /* 13000: CUDA 13.0 */
    int count;
    struct driver_device devices[PROTOCOL_MAX_DEVICES];
};

/* The layout of the shared memory. Two sets of vectors: one stays complete while the other is being read into. */
enum { GPU_VECTOR_SETS = 2 };

struct gpu_areas {
    float *vectors[GPU_VECTOR_SETS][STORE_VECTORS]; /* [float_count]; NULL where the shape has none */
    float *gradient;                                /* [float_count] */
    void *arrays[DEVICE_ARRAYS];                    /* of most_examples; NULL where the shape has none */
    float *outputs;                                 /* [most_examples, widths[layer_count]] */
    int most_examples;                              /* limit of one STEP and one FORWARD */
};

/* True if the build contains a program to start; builds without nvcc do not. */
bool gpu_client_is_built(void);

/*
 * Starts the process, which loads the driver, without waiting for it. timeout_s: the time limit of a command that does
 * next to no work; training gets its previous duration on top.
 */
bool gpu_client_start(struct gpu_client **client, double timeout_s, struct error *error);

/* The same with a program other than the built-in one. */
bool gpu_client_start_program(struct gpu_client **client, const void *bytes, size_t size, double timeout_s,
                              struct error *error);

/* Ends the process, at once if it is not idle; safe on NULL. */
void gpu_client_stop(struct gpu_client *client);

/* Lists the driver's devices, once it is loaded. */
bool gpu_client_list(struct gpu_client *client, struct gpu_list *list, struct error *error);

/*
 * Opens a device for a model, and allocates the shared memory. memory_fraction: share of the device's memory that may
 * be used, 1 = no limit. float_count: of the model's flat vector (ps/store/model.h). _begin only sends the request and
 * _end waits, so that the caller can work meanwhile; no other call may come in between.
 */
bool gpu_client_open_begin(struct gpu_client *client, int ordinal, const struct device_shape *shape,
                           double memory_fraction, size_t float_count, struct error *error);
bool gpu_client_open_end(struct gpu_client *client, struct error *error);
const struct gpu_areas *
gpu_client_areas(const struct gpu_client *client);                   /* after gpu_client_open_begin, until the stop */
const char *gpu_client_description(const struct gpu_client *client); /* device_describe's */
int gpu_client_precision(const struct gpu_client *client);           /* device_precision's, an enum precision */

/* Sets the training set; copied through temporary shared memory of the same size. */
bool gpu_client_data(struct gpu_client *client, const struct device_examples *examples, struct error *error);

/* Copies floats [first, first + count) of a vector from or to the same place in one of the sets. */
bool gpu_client_write(struct gpu_client *client, int set, enum store_vector vector, size_t first, size_t count,
                      struct error *error);
bool gpu_client_read(struct gpu_client *client, int set, enum store_vector vector, size_t first, size_t count,
                     struct error *error);

/* Where the caller writes the updates of train's steps: [PROTOCOL_UPDATES]. */
struct update (*gpu_client_updates(struct gpu_client *client))[2];

/* steps: 1..PROTOCOL_UPDATES. */
bool gpu_client_train(struct gpu_client *client, int64_t first_step, int steps, struct device_outcome *outcome,
                      struct error *error);

/*
 * Computes the gradient of the batch in the areas into areas->gradient. grown(context, floats) is called with the
 * number of final leading floats as it grows, finally with all of them; never if the loss is not finite.
 */
bool gpu_client_step(struct gpu_client *client, int examples, uint32_t task, int64_t step,
                     void (*grown)(void *context, size_t floats), void *context, struct device_outcome *outcome,
                     struct error *error);

/* Computes the outputs of the examples in the areas, 1..most_examples of them, into areas->outputs. */
bool gpu_client_forward(struct gpu_client *client, bool averaged, int examples, struct error *error);

/* --- GPU time of this process (use.c): the durations of its commands, summed over all clients. Any thread. --- */

/* A client has opened a device, or closed it. */
void gpu_use_take(void);
void gpu_use_return(void);

/* A device starts computing; stops computing. */
void gpu_use_begin(void);
void gpu_use_end(void);

/* Seconds so far, running commands included; *gpus: the number of open devices. */
double gpu_use_seconds(int *gpus);

#endif
