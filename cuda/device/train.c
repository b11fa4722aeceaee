/* Many steps without the host: one cooperative launch, or CUDA graphs of one or more steps. */
#include <assert.h>
#include <string.h>

#include "cuda/device/host.h"
#include "cuda/device/state.h"

static const int graph_steps[DEVICE_GRAPHS] = {DEVICE_GRAPH_STEPS, 1};

static bool record_steps(struct device *device, int steps, struct error *error)
{
    for (int i = 0; i < steps; i++) {
        if (!launch_step(device, error)) {
            return false;
        }
    }
    return true;
}

static bool make_graph(struct device *device, int which, struct error *error)
{
    const struct driver *driver = device->driver;
    cu_graph graph = NULL;
    if (device->graphs[which]) {
        return true;
    }
    DEVICE_TRY(device, error, capture_begin, (device->stream, CU_CAPTURE_THREAD_LOCAL));
    bool recorded = record_steps(device, graph_steps[which], error);
    cu_result result = driver->capture_end(device->stream, &graph);
    if (!recorded || result != CU_SUCCESS) {
        if (graph) {
            driver->graph_destroy(graph);
        }
        return recorded ? device_failed(device, "cuStreamEndCapture", result, error) : false;
    }
    result = driver->graph_instantiate(&device->graphs[which], graph, 0);
    driver->graph_destroy(graph);
    if (result != CU_SUCCESS) {
        device->graphs[which] = NULL;
        return device_failed(device, "cuGraphInstantiate", result, error);
    }
    return true;
}

static bool launch_graphs(struct device *device, int steps, struct error *error)
{
    for (int which = 0; which < DEVICE_GRAPHS; which++) {
        for (; steps >= graph_steps[which]; steps -= graph_steps[which]) {
            if (!make_graph(device, which, error)) {
                return false;
            }
            DEVICE_TRY(device, error, graph_launch, (device->graphs[which], device->stream));
        }
    }
    return true;
}

/* Step by step, with the CPU's part in each. */
static bool step_with_host(struct device *device, int steps, struct error *error)
{
    device->progress->stopped = 0;
    for (int i = 0; i < steps && !device->progress->stopped; i++) {
        if (!host_step(device, error)) {
            return false;
        }
    }
    return true;
}

/* At most DEVICE_UPDATES steps. */
static bool train_some(struct device *device, int64_t first_step, int n, const struct update (*updates)[2],
                       struct error *error)
{
    memcpy(device->host_updates, updates, (size_t)n * sizeof *updates);
    if (!memory_begin(device, first_step, error)) {
        return false;
    }
    DEVICE_TRY(device, error, copy_to_device,
               (device_address(device->updates), device->host_updates, (size_t)n * sizeof *updates, device->stream));
    if (device->host      ? !step_with_host(device, n, error)
        : device->sharded ? !launch_sharded(device, n, error)
                          : !launch_graphs(device, n, error)) {
        return false;
    }
    if (!memory_fetch_progress(device, error)) {
        return false;
    }
    DEVICE_TRY(device, error, stream_wait, (device->stream));
    return true;
}

bool device_train(struct device *device, int64_t first_step, int n, const struct update (*updates)[2],
                  struct device_outcome *outcome, struct error *error)
{
    assert(device->data != 0 && n >= 0);
    *outcome = (struct device_outcome){.finite = 1};
    bool gathers = device->network.micro_batches > 1 || device->network.clip_norm > 0.0;
    if (gathers && !memory_take_gradient(device, error)) {
        return false;
    }
    for (int done = 0; done < n && outcome->finite;) {
        int some = n - done < DEVICE_UPDATES ? n - done : DEVICE_UPDATES;
        if (!train_some(device, first_step + done, some, updates + done, error)) {
            return false;
        }
        const struct kernel_progress *progress = device->progress;
        outcome->steps += progress->steps;
        outcome->correct += progress->correct;
        outcome->images += progress->images;
        outcome->loss_sum += progress->loss_sum;
        if (progress->steps > 0) {
            outcome->last_loss = progress->last_loss;
        }
        if (progress->stopped) {
            outcome->finite = 0;
            outcome->bad_loss = progress->bad_loss;
        }
        done += some;
    }
    return true;
}
